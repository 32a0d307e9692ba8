"""Several yes/no labels of each row, trained on together and attacked one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from vflsec.core import check
from vflsec.errors import Remediable
from vflsec.label.classes import Classes
from vflsec.label.kind import Floats, Ints, Label
from vflsec.specs import OF_THE_LABELS

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class MultiLabel(Label):
    """Several labels that are 0 or 1.

    Attributes:
        names: of the L labels.
    """

    names: tuple[str, ...] = ()
    name: ClassVar[str] = "multilabel"
    codes: ClassVar[range] = range(1)
    target: ClassVar[str] = "labels"
    by_part: ClassVar[bool] = True
    control: ClassVar[str] = "several_gaussian"
    rare: ClassVar[bool] = True
    noun: ClassVar[str] = "several labels"
    sentence: ClassVar[str] = "there are several labels"
    column: ClassVar[str] = "2 classes, one label of several"
    remark: ClassVar[str] = "Several yes/no labels of each row."
    remedy: ClassVar[str] = "{} one label"
    neighbour: ClassVar[str] = "other labels"
    sides: ClassVar[int] = 2
    measures: ClassVar[tuple[str, ...]] = ("macro_auc", "macro_accuracy")

    @classmethod
    def build(cls, classes: int, names: tuple[str, ...]) -> MultiLabel:
        """With these names."""
        return cls(names)

    @property
    def held(self) -> str:
        """The names."""
        return f"several of each row: {', '.join(self.names)}" if self.names else ""

    @property
    def outputs(self) -> int:
        """A logit for each label."""
        return len(self.names)

    @cached_property
    def losses(self) -> Callable[[Tensor, Tensor], Tensor]:
        """The mean of the binary cross entropies."""
        from vflsec.nn.loss import binary_cross_entropies

        return binary_cross_entropies

    def compute_start(self, y: Floats | Ints) -> Floats:
        """Logits of the shares of ones."""
        shares = y.mean(0).clip(1e-9, 1 - 1e-9)
        return np.asarray(np.log(shares / (1 - shares)), dtype=np.float64)

    def compute_newton(self, scores: Floats, y: Floats | Ints) -> tuple[Floats, Floats]:
        """Those of each label's binary cross entropy."""
        p = 1 / (1 + np.exp(-scores))
        return p - y, p * (1 - p)

    def form_predictions(self, answers: Tensor) -> Tensor:
        """The share of each label."""
        return answers.sigmoid()

    def compute_prior(self, y: Tensor, values: Tensor | None, rows: Tensor) -> Tensor:
        """The shares of ones, (L,)."""
        assert values is not None
        return values[rows].mean(0)

    def plant(self, given: Tensor, rows: Tensor, carried: Tensor) -> None:
        """All ones and all zeros."""
        given[rows] = carried.to(given).unsqueeze(1)

    def suits(self, target: str, *, quantities: bool, labelwise: bool) -> bool:
        """Attacks on one label at a time, and those on other things than labels."""
        return labelwise or target not in OF_THE_LABELS

    def explain_unsuited(self, attack: str) -> str:
        """That it takes all labels together."""
        return Remediable(f"{attack} needs one label.", "Take norm, direction or model_completion.")

    def list_parts(
        self, quantities: bool, labelwise: bool, questions: Sequence[str]
    ) -> Sequence[str]:
        """Each label, where one is attacked by itself."""
        return self.names if self.names and labelwise else ("",)

    def take_part(self, name: str, truth: Tensor, cut: Tensor) -> Tensor:
        """One of the labels."""
        return truth[:, self.names.index(name)].nan_to_num(nan=-1.0).long()

    def plan_metrics(self) -> tuple[str, Sequence[str]]:
        """Those of two classes, for each label is attacked by itself."""
        return Classes(2).plan_metrics()

    def encode(self, truth: Tensor, prior: Sequence[float]) -> Tensor:
        """Refuse: leaks are planted of one label at a time."""
        raise check.fail("the label of a planted leak", "one label", self.noun)

    def draw(self, rows: int, shares: Tensor, rng: torch.Generator) -> Tensor:
        """Refuse: traces are of one label."""
        raise check.fail("the label of a trace", "one label", self.noun)

    def split_classes(self, y: Ints, values: Floats | None) -> Iterator[tuple[str, Ints]]:
        """Each label by its name."""
        for name, column in zip(self.names, () if values is None else values.T, strict=False):
            yield name, np.where(np.isnan(column), -1, column).astype(np.int64)

    def find_strata(
        self, y: Ints, values: Floats | None, eligible: NDArray[np.bool_], least: int
    ) -> Ints:
        """The label whose rarer value a row has, the rarest of all if it has those of many.

        One pass of the iterative stratification of Sechidis, Tsoumakas & Vlahavas, "On the
        stratification of multi-label data", ECML PKDD 2011 (algorithm 1). A label with too few
        eligible rows of its own to be divided stands with the rows that have no rarer value.
        """
        if values is None:
            return y
        ones, n = values[eligible].sum(axis=0), int(eligible.sum())
        order = np.argsort(np.minimum(ones, n - ones), kind="stable")
        rare = (values == (2 * ones <= n))[:, order]
        first = np.where(rare.any(axis=1), rare.argmax(axis=1), len(order))
        own = np.bincount(first[eligible], minlength=len(order) + 1)
        first[own[first] < least] = len(order)
        return np.where(y < 0, -1, first)

    def find_scarce(
        self, y: Ints, values: Floats | None, class_names: Sequence[str], least: int
    ) -> Iterator[tuple[str, str, str]]:
        """Labels with fewer rows of either value."""
        given = np.empty((0, 0)) if values is None else values
        for name, one in zip(self.names, given.sum(axis=0), strict=True):
            if min(one, len(given) - one) < least:
                yield (
                    f"label {name!r} must have two values in at least {least} rows of",
                    f"{one:.0f} ones of {len(given)}",
                    "Leave it out of `label`",
                )

    def describe(self, y: Ints) -> str:
        """How many."""
        return f"{len(self.names)} yes/no labels: utility is their mean AUC"

    def find_unasked(self, questions: bool, limit: float | None) -> str:
        """What goes with two of them."""
        if len(self.names) < 2:
            return ""
        return "several labels together."
