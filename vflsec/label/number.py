"""What labels share that are one number of a row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar, Self

from vflsec.label.classes import scarce_classes
from vflsec.label.kind import Floats, Ints, Label

if TYPE_CHECKING:
    import torch
    from numpy.typing import ArrayLike
    from torch import Tensor


class Number(Label):
    """A label that is one number of a row, which attacks rank and estimate.

    Attributes:
        measures: metrics of guesses, the primary one first.
    """

    numeric: ClassVar[bool] = True
    control: ClassVar[str] = "quantity_gaussian"
    neighbour: ClassVar[str] = "another value"
    remedy: ClassVar[str] = "cut the label into classes (label_edges)"
    measures: ClassVar[tuple[str, ...]]

    @classmethod
    def build(cls, classes: int, names: tuple[str, ...]) -> Self:
        """There is one."""
        return cls()

    @property
    def outputs(self) -> int:
        """One number."""
        return 1

    @property
    def sides(self) -> int:
        """There are no classes to tell apart."""
        return 1

    def form_predictions(self, answers: Tensor) -> Tensor:
        """The values."""
        return self.form_scores(answers)

    def compute_prior(self, y: Tensor, values: Tensor | None, rows: Tensor) -> Tensor:
        """Nothing, which is one class of share 1."""
        counts = y[rows].bincount(minlength=1)
        return counts.double() / counts.sum()

    def suits(self, target: str, *, quantities: bool, labelwise: bool) -> bool:
        """Attacks that guess a number, and those on other things than the label."""
        return quantities or target not in ("label", "integrity")

    def explain_unsuited(self, attack: str) -> str:
        """That it guesses classes."""
        return f"{attack} needs classes; {self.sentence}. Take residual or value_completion."

    def list_parts(
        self, quantities: bool, labelwise: bool, questions: Sequence[str]
    ) -> Sequence[str]:
        """The number, where it is guessed, and the questions about it."""
        asked = [q for q in questions if q in self.questions]
        return [*[""] * quantities, *asked] if asked else ("",)

    def choose_primary(self, prior: ArrayLike | None = None) -> str:
        """The first of its metrics."""
        return self.measures[0]

    def list_metrics(self, *, groups: bool = True) -> Sequence[str]:
        """All of them."""
        return list(self.measures)

    def encode(self, truth: Tensor, prior: Sequence[float]) -> Tensor:
        """The number."""
        return truth.unsqueeze(1)

    def draw(self, rows: int, shares: Tensor, rng: torch.Generator) -> Tensor:
        """Normal values."""
        import torch

        return torch.randn(rows, generator=rng, dtype=torch.float64)

    def find_scarce(
        self, y: Ints, values: Floats | None, class_names: Sequence[str], least: int
    ) -> Iterator[tuple[str, str, str]]:
        """Fewer rows than a class needs."""
        return scarce_classes(y, class_names, least)

    def describe(self, y: Ints) -> str:
        """What it is."""
        return f"{self.noun}: utility is the concordance"
