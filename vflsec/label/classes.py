"""A label that is one of C classes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from vflsec.core import check
from vflsec.label.kind import Floats, Ints, Label

if TYPE_CHECKING:
    import torch
    from torch import Tensor

PAIR = ("auc", "accuracy", "balanced_accuracy", "f1", "tpr_at_1pct_fpr")
"""Metrics of two classes."""
NAMED = ("exposed", "exposed_01pct")
"""Metrics of who is named with certainty, of any number of classes."""


@dataclass(frozen=True)
class Classes(Label):
    """One of C classes.

    Attributes:
        count: C.
    """

    count: int
    name: ClassVar[str] = "classification"
    codes: ClassVar[range] = range(2, 2**62)
    target: ClassVar[str] = "label"
    missing: ClassVar[float] = -1
    floating: ClassVar[bool] = False
    control: ClassVar[str] = "control_gaussian"
    rare: ClassVar[bool] = True
    noun: ClassVar[str] = "a class"
    sentence: ClassVar[str] = "the label is one of classes"
    remedy: ClassVar[str] = "{} them"
    neighbour: ClassVar[str] = "another class"

    @classmethod
    def build(cls, classes: int, names: tuple[str, ...]) -> Classes:
        """So many classes."""
        return cls(classes)

    @property
    def code(self) -> int:
        """C."""
        return self.count

    @property
    def outputs(self) -> int:
        """C logits."""
        return self.count

    @property
    def sides(self) -> int:
        """C."""
        return self.count

    @property
    def column(self) -> str:
        """What its column in a table is."""
        return f"{self.count} classes"

    @property
    def held(self) -> str:
        """How many classes."""
        return self.column

    @cached_property
    def losses(self) -> Callable[[Tensor, Tensor], Tensor]:
        """Cross entropy, with its gradient by hand."""
        from vflsec.nn.loss import cross_entropy

        return cross_entropy

    def stack(self, each: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
        """Class numbers (T, N) int64."""
        import torch

        return torch.stack(list(each))

    @property
    def trees(self) -> int:
        """One for each class, of two classes one."""
        return 1 if self.count == 2 else self.count

    def compute_start(self, y: Floats | Ints) -> Floats:
        """Logits of the class shares."""
        shares = self._find_shares(y).mean(0).clip(1e-9, 1 - 1e-9)
        return np.log(shares[1:] / shares[:1]) if self.count == 2 else np.log(shares)

    def compute_newton(self, scores: Floats, y: Floats | Ints) -> tuple[Floats, Floats]:
        """Those of cross entropy: p - y and p (1 - p)."""
        shares = self._find_shares(y)[:, -self.trees :]
        if self.count == 2:
            p = 1 / (1 + np.exp(-scores))
        else:
            e = np.exp(scores - scores.max(1, keepdims=True))
            p = e / e.sum(1, keepdims=True)
        return p - shares, p * (1 - p)

    def form_answers(self, scores: Floats) -> Floats:
        """Logits (n, C)."""
        return np.pad(scores, ((0, 0), (1, 0))) if self.count == 2 else scores

    def _find_shares(self, y: Floats | Ints) -> Floats:
        """Class shares (n, C)."""
        return np.eye(self.count)[y.astype(np.int64)] if y.ndim == 1 else y.astype(np.float64)

    def form_predictions(self, answers: Tensor) -> Tensor:
        """Class shares."""
        return answers.softmax(dim=-1)

    def form_scores(self, answers: Tensor) -> Tensor:
        """Log shares of the classes."""
        return answers.log_softmax(dim=-1)

    def plant(self, given: Tensor, rows: Tensor, carried: Tensor) -> None:
        """The class itself."""
        given[rows] = carried

    def draw_pairs(self, m: int, prior: Tensor, rng: torch.Generator) -> Tensor:
        """Any two classes, for a claim is about every pair; the more frequent one first."""
        import torch

        first = torch.randint(self.count, (m,), generator=rng)
        apart = torch.randint(1, self.count, (m,), generator=rng)
        ranks = torch.stack([first, (first + apart) % self.count], dim=1)
        return prior.argsort(stable=True)[ranks.sort(dim=1, descending=True).values]

    def suits(self, target: str, *, quantities: bool, labelwise: bool) -> bool:
        """Every attack."""
        return True

    def explain_unsuited(self, attack: str) -> str:
        """Nothing: every attack suits."""
        return ""

    def fits(self, quantities: bool) -> bool:
        """Every algorithm and every defense."""
        return True

    def choose_primary(self, prior: ArrayLike | None = None) -> str:
        """``auc`` for two classes; beyond, ``accuracy``, or ``balanced_accuracy`` where the largest
        class share is more than 1.5 times the smallest.
        """
        if check.integer("primary: classes", self.count, low=2) == 2:
            return "auc"
        shares = np.ones(self.count) if prior is None else np.asarray(prior, float)
        return "balanced_accuracy" if shares.max() > 1.5 * shares.min() else "accuracy"

    def list_metrics(self, *, groups: bool = True) -> Sequence[str]:
        """Of two classes rankings too."""
        if self.count > 2:
            return ["accuracy", "balanced_accuracy", "auc", *NAMED]
        return [*PAIR, *(["leak_auc"] if groups else []), *NAMED]

    def plan_metrics(self) -> tuple[str, Sequence[str]]:
        """The primary metric beyond two classes depends on the shares, which training tells."""
        return (self.choose_primary() if self.count == 2 else ""), self.list_metrics()

    def encode(self, truth: Tensor, prior: Sequence[float]) -> Tensor:
        """The class one-hot, less the class shares (C,)."""
        import torch

        shares = torch.tensor(prior).double()
        return torch.nn.functional.one_hot(truth, len(prior)).double() - shares

    def draw(self, rows: int, shares: Tensor, rng: torch.Generator) -> Tensor:
        """Classes by their shares."""
        return shares.multinomial(rows, replacement=True, generator=rng)

    def split_classes(self, y: Ints, values: Floats | None) -> Iterator[tuple[str, Ints]]:
        """The classes themselves."""
        yield "", y

    def describe(self, y: Ints) -> str:
        """How many, and how large the largest is."""
        counts = np.bincount(y[y >= 0], minlength=self.count)
        largest = counts.max() / counts.sum()
        return f"{self.count} classes, the largest has {largest:.0%}"

    def find_unasked(self, questions: bool, limit: float | None) -> str:
        """One class of many."""
        many = self.count
        if many < 3 or limit is None or limit < 1 / many:
            return ""
        return (
            f"whether one class of {many} is revealed ({1 / many:.2g}, limit "
            f"{limit:g}); set merge_classes."
        )
