"""What labels share that are one number of a row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Self

from vflsec.errors import Remediable
from vflsec.label.kind import Ints, Label

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class Number(Label):
    """A label that is one number of a row, which attacks rank and estimate; it has no classes."""

    numeric: ClassVar[bool] = True
    control: ClassVar[str] = "quantity_gaussian"
    neighbour: ClassVar[str] = "another value"
    remedy: ClassVar[str] = "cut the label into classes (label_edges)"
    outputs: ClassVar[int] = 1
    sides: ClassVar[int] = 1

    @classmethod
    def build(cls, classes: int, names: tuple[str, ...]) -> Self:
        """There is one."""
        return cls()

    def form_predictions(self, answers: Tensor) -> Tensor:
        """The values."""
        return self.form_scores(answers)

    def suits(self, target: str, *, quantities: bool, labelwise: bool) -> bool:
        """Attacks that guess a number, and those on other things than the label."""
        return quantities or target not in ("label", "integrity")

    def explain_unsuited(self, attack: str) -> str:
        """That it guesses classes."""
        return Remediable(
            f"{attack} needs classes; {self.sentence}.", "Take residual or value_completion."
        )

    def list_parts(
        self, quantities: bool, labelwise: bool, questions: Sequence[str]
    ) -> Sequence[str]:
        """The number, where it is guessed, and the questions about it."""
        asked = [q for q in questions if q in self.questions]
        return [*[""] * quantities, *asked] if asked else ("",)

    def encode(self, truth: Tensor, prior: Sequence[float]) -> Tensor:
        """The number."""
        return truth.unsqueeze(1)

    def draw(self, rows: int, shares: Tensor, rng: torch.Generator) -> Tensor:
        """Normal values."""
        import torch

        return torch.randn(rows, generator=rng, dtype=torch.float64)

    def describe(self, y: Ints) -> str:
        """What it is."""
        return f"{self.noun}: utility is the concordance"
