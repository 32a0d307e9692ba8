"""A label that is a count: a whole number from 0, trained on by Poisson regression."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from vflsec.label.kind import Floats, Ints
from vflsec.label.number import Number

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from torch import Tensor


@dataclass(frozen=True)
class Counts(Number):
    """A count as it is; an answer is the logarithm of its mean."""

    name: ClassVar[str] = "counts"
    codes: ClassVar[range] = range(-1, 0)
    target: ClassVar[str] = "count"
    control: ClassVar[str] = "count_gaussian"
    noun: ClassVar[str] = "a count"
    sentence: ClassVar[str] = "the label is a count"
    column: ClassVar[str] = "counts"
    remark: ClassVar[str] = "A count; label_edges makes classes."
    measures: ClassVar[tuple[str, ...]] = ("concordance", "r2", "deviance")

    @cached_property
    def losses(self) -> Callable[[Tensor, Tensor], Tensor]:
        """Negative log likelihood of a Poisson variable, less what no answer changes."""
        from vflsec.nn.loss import poisson_loss

        return poisson_loss

    def compute_start(self, y: Floats | Ints) -> Floats:
        """The logarithm of the mean."""
        mean: Floats = np.asarray(y.mean(0), dtype=np.float64)
        return np.log(mean.clip(1e-9))

    def compute_newton(self, scores: Floats, y: Floats | Ints) -> tuple[Floats, Floats]:
        """Those of the negative log likelihood of a Poisson variable."""
        mean: Floats = np.exp(scores)
        return mean - np.asarray(y, dtype=np.float64), mean

    def compute_losses(self, scores: Floats, y: Floats | Ints) -> Floats:
        """The negative log likelihood of a Poisson variable, less what no score changes."""
        return np.asarray(np.exp(scores) - y * scores, dtype=np.float64)

    def form_scores(self, answers: Tensor) -> Tensor:
        """The mean."""
        return answers.exp()

    def plant(self, given: Tensor, rows: Tensor, carried: Tensor) -> None:
        """The largest count and 0."""
        given[rows] = given.nan_to_num(0.0).max() * (1 - carried.to(given))

    def guess_mean(self, known: Tensor | None) -> float:
        """The mean of known counts, or 1."""
        return 1.0 if known is None or not len(known) else float(known.mean())

    def encode(self, truth: Tensor, prior: Sequence[float]) -> Tensor:
        """The count, less the mean."""
        return (truth - truth.mean()).unsqueeze(1)

    def draw(self, rows: int, shares: Tensor, rng: torch.Generator) -> Tensor:
        """Poisson counts of mean 2."""
        import torch

        return torch.poisson(torch.full((rows,), 2.0, dtype=torch.float64), generator=rng)
