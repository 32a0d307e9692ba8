"""A label that is a quantity: one number, trained on by squared error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from vflsec.label.kind import Floats, Ints
from vflsec.label.number import Number
from vflsec.specs import QUESTIONS

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Quantity(Number):
    """A quantity, in standard deviations from its mean over the labelled training rows."""

    name: ClassVar[str] = "regression"
    codes: ClassVar[range] = range(1, 2)
    target: ClassVar[str] = "value"
    questions: ClassVar[dict[str, float]] = dict(QUESTIONS)
    noun: ClassVar[str] = "a quantity"
    sentence: ClassVar[str] = "the label is a quantity"
    column: ClassVar[str] = "quantity"
    remark: ClassVar[str] = "A quantity; label_edges makes classes."
    scaled: ClassVar[bool] = True
    measures: ClassVar[tuple[str, ...]] = ("concordance", "r2", "mae")

    @cached_property
    def losses(self) -> Callable[[Tensor, Tensor], Tensor]:
        """Squared error."""
        from vflsec.nn.loss import squared_error

        return squared_error

    def compute_start(self, y: Floats | Ints) -> Floats:
        """The mean."""
        return np.asarray(y.mean(0), dtype=np.float64)

    def compute_newton(self, scores: Floats, y: Floats | Ints) -> tuple[Floats, Floats]:
        """Those of half the squared error."""
        return scores - y, np.ones_like(scores)

    def compute_losses(self, scores: Floats, y: Floats | Ints) -> Floats:
        """Half the squared error."""
        return np.asarray((scores - y) ** 2 / 2, dtype=np.float64)

    def plant(self, given: Tensor, rows: Tensor, carried: Tensor) -> None:
        """Three standard deviations above and below the mean."""
        given[rows] = 3.0 - 6.0 * carried.to(given)

    def take_part(self, name: str, truth: Tensor, cut: Tensor) -> Tensor:
        """The answers to a question."""
        from vflsec.core.quantity_questions import answer_question

        return answer_question(name, truth, cut)

    def prepare(self, values: Floats, labelled: Ints) -> Floats:
        """In standard deviations from the mean; scaled first, lest a square overflows."""
        values = np.ldexp(values, -np.frexp(np.abs(values[labelled]).max())[1])
        seen = values[labelled]
        return (values - seen.mean()) / max(float(seen.std()), 1e-300)

    def find_unasked(self, questions: bool, limit: float | None) -> str:
        """Its questions."""
        if questions:
            return ""
        return "questions about values (message_completion asks)."
