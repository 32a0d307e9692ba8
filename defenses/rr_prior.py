"""Randomised response restricted to the classes that a prior makes likely (RRWithPrior).

With the prior's shares sorted in descending order, k* maximises e^eps / (e^eps + k - 1) times the
sum of the k largest shares. A label among the top k* classes goes through randomised response on
these; any other becomes one of them, uniformly. Each label is drawn once in a run and memoised;
validation labels too. The prior is a list in the scenario, which must not come from these labels,
or it is bought: a tenth of epsilon (`share`) goes to the class counts of the training labels with
Laplace noise, and the rest to the answers. The swept strength is 1 / epsilon.

Hook: labels. Owner: the active party.
Guarantee: epsilon-label-DP for each sample, the prior's price included. Does not stop: inference of
what features predict; at small epsilon on skewed classes k* = 1, the labels carry nothing at all
and the model learns nothing.

Source: Ghazi, Golowich, Kumar, Manurangsi, Zhang, "Deep learning with label differential privacy",
NeurIPS 2021, arXiv:2102.06062, algorithm 2 and theorem 3.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vflsec.core import accountants
from vflsec.defenses.label_dp import Released, released
from vflsec.plugin import Guarantee, Own, RunFacts, check, registry

ALIASES = ("rrwithprior", "rr_with_prior")


@registry.defense
@dataclass(frozen=True)
class RRPrior(Released):
    """Hyper-parameters.

    Attributes:
        prior: public class shares; empty = those of the training labels, bought with noise.
        share: of epsilon that buys the prior, in (0, 1); not used with a given one.
    """

    prior: tuple[check.Unit, ...] = ()
    share: check.OpenUnit = 0.1
    accountant = "randomised response with prior"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.prior and abs(sum(self.prior) - 1) > 1e-6:
            raise check.fail("rr_prior.prior", "shares that sum to 1", self.prior)

    @property
    def by_row(self) -> bool:  # type: ignore[override]
        return bool(self.prior)

    def check_task(self, classes: int) -> None:
        """Refuse a prior of another number of classes.

        Raises:
            ConfigError: `prior` has not one share for each class.
        """
        if self.prior and len(self.prior) != classes:
            raise check.fail(f"{self.name}.prior", f"a list of {classes} shares", self.prior)

    def labels(self, y: Tensor, own: Own) -> Tensor:
        self.check_classes(y)
        priors = self._given(own) if self.prior else self._bought(y, own)
        made = [
            matrix(prior, self.spent / s) if s > 0 else torch.eye(own.classes, dtype=torch.float64)
            for prior, s in zip(priors, own.strength.tolist(), strict=True)
        ]
        uniform = own.rng.uniform(y.shape[1:], active=own.active, dtype=torch.float64)
        drawn = draw(torch.stack(made).to(y.device), y.clamp_min(0), uniform)
        return own.choose(torch.where(y >= 0, drawn, y), y)

    @property
    def spent(self) -> float:
        """Share of epsilon that the answers cost; the rest buys the prior."""
        return 1.0 if self.prior else 1.0 - self.share

    def _given(self, own: Own) -> Tensor:
        return torch.tensor(self.prior).double().expand(len(own.strength), -1)

    def _bought(self, y: Tensor, own: Own) -> Tensor:
        """Class shares (R, C) of the training labels, of counts with Laplace noise.

        One label moves two counts by 1 each, so noise of scale 2 / (share x epsilon) costs that
        share.
        """
        rows = own.context.get("labelled")
        labels = y if rows is None else y.gather(1, rows)
        counts = torch.stack([(labels == c).sum(1) for c in range(own.classes)], dim=1).double()
        noise = own.rng.laplace((own.classes,), active=own.active, dtype=torch.float64)
        scale = 2.0 * own.strength.unsqueeze(1) / self.share
        noisy = accountants.round_to_grid(counts.cpu(), noise.cpu(), scale).clamp_min(1.0)
        return noisy / noisy.sum(1, keepdim=True)

    def guarantee(self, strength: float, facts: RunFacts) -> Guarantee:
        return released(
            strength, facts, self.accountant,
            given="a prior that is not of these labels" if self.prior else "",
        )  # fmt: skip


def top(prior: Tensor, epsilon: float) -> list[int]:
    """The k* classes among which labels are released, for a prior (C,) float64."""
    released = (matrix(prior, epsilon) > 0).any(0)
    return [int(c) for c in released.nonzero().squeeze(1)]


def matrix(prior: Tensor, epsilon: float) -> Tensor:
    """P(released o | label y), (..., C, C) float64 with rows y, for priors (..., C) float64."""
    c = prior.shape[-1]
    order = prior.argsort(dim=-1, descending=True, stable=True)
    sizes = torch.arange(1, c + 1, dtype=torch.float64)
    weaker = torch.exp(torch.tensor(-epsilon, dtype=torch.float64))
    score = prior.gather(-1, order).cumsum(-1) / (1 + (sizes - 1) * weaker)
    k = (score.argmax(dim=-1, keepdim=True) + 1).double()  # (..., 1)
    place = order.argsort(dim=-1)
    kept = place < k  # (..., C)
    keep = (1 / (1 + (k - 1) * weaker)).unsqueeze(-1)
    other = (1 - keep) / (k - 1).clamp_min(1.0).unsqueeze(-1)
    inside = torch.where(torch.eye(c, dtype=torch.bool), keep, other)
    rows = torch.where(kept.unsqueeze(-1), inside, (1 / k).unsqueeze(-1))
    return torch.where(kept.unsqueeze(-2), rows, 0.0)


def draw(matrices: Tensor, y: Tensor, uniform: Tensor) -> Tensor:
    """Released labels (R, n) from rows `y` (R, n) of matrices (R, C, C), by inverse sums."""
    rows = matrices.cumsum(2).gather(1, y.unsqueeze(2).expand(-1, -1, matrices.shape[2]))
    found = (uniform.unsqueeze(2) >= rows).sum(2)
    last = (matrices > 0).double().cumsum(2).argmax(2).gather(1, y)  # guards the sum's last bit
    return torch.minimum(found, last)
