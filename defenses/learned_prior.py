"""Labels mixed with a prior by row that the active party learns privately from its own columns.

Own columns are no secret of a label, so only what depends on labels is noised. The columns of the
labelled training rows become standardised principal components, whitened and shortened: rows z_i,
with a constant in front. The statistic
    M = sum_i z_i [y_i = c],  c = 1..C-1
moves by at most max ||z_i|| (two classes) or sqrt(2) max ||z_i|| when one label is replaced, so
noise b of density proportional to exp(-e1 ||b|| / that) costs e1, at most ``share`` x epsilon. How
many components are taken, and what they cost, follows from the number of rows, epsilon and C (few
rows: none, at no cost, which leaves randomised response as in `label_dp`). The
scores z_i M, shrunk by what the noise adds to them, are the prior p_i. Every label goes once
through randomised response at epsilon - e1 and training sees class shares
    (one-hot(answer_i) + w p_i) / (1 + w),  w = 300 shrinkage / (n (q - (1 - q) / (C - 1))),
so that the prior leads where n answers tell little and fades where they tell enough. The swept
strength is 1 / epsilon.

Hook: labels. Owner: the active party. Cost: one eigen-decomposition of its columns' covariance.
Guarantee: epsilon-label-DP for each sample, the prior's price included: shares are computed from
the noisy statistic, the answers and columns. Does not stop: inference of what features predict,
which this even sharpens. It pays where epsilon is small, rows are many and own columns tell. Test
AUC of split training on Adult (employment and pay at the active party, 5 seeds) at epsilon 0.05,
0.1, 0.25, 0.5: 0.74, 0.75, 0.83, 0.87; `label_dp` 0.57, 0.70, 0.84, 0.88; `lp_mst` 0.67, 0.74,
0.82, 0.87; `rr_prior`, whose prior is by class only, nothing. Where the others' columns tell more,
or with 2,000 rows, `label_dp` keeps as much or more.

The nearest published method is LP-MST's RRWithPrior with a prior learnt from features, of which
`lp_mst` is the published form; this one learns it once, beforehand, from own columns and a noisy
sum instead of from a model trained on answers. It is **not** PATE (no teachers vote on public rows)
and not LabelDP-Pro (no projection of noisy gradients in every step): both need trainings of their
own or unlabelled public rows at the active party. No published figure is reproduced by it.

Source: label-DP with a prior: Ghazi, Golowich, Kumar, Manurangsi, Zhang, "Deep learning with label
differential privacy", NeurIPS 2021, arXiv:2102.06062; one learnt privately from features:
Esfandiari, Mirrokni, Syed, Vassilvitskii, "Label differential privacy via clustering", AISTATS
2022, arXiv:2110.02159; noise on sufficient statistics: Wang, "Revisiting differentially private
linear regression", UAI 2018, arXiv:1803.02596; its density: Chaudhuri, Monteleoni, Sarwate,
"Differentially private empirical risk minimization", JMLR 12 (2011), algorithm 1. The mixture is
this package's own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from vflsec.core import accountants
from vflsec.defenses.alibi import one_hot
from vflsec.defenses.label_dp import Released, keep_probability
from vflsec.defenses.rr_prior import draw
from vflsec.plugin import Own, check, registry

ALIASES = ("private_prior",)

MOST = 32  # components
CALM = 0.03  # standard deviation of the noise in an average score
LEAD = 300.0  # n times the squared weight of an answer at which it counts as much as the prior
FLOOR = 0.02  # of a share


@registry.defense
@dataclass(frozen=True)
class LearnedPrior(Released):
    """Hyper-parameters.

    Attributes:
        share: of epsilon that may buy the prior, in (0, 1).
    """

    share: check.OpenUnit = 0.1
    accountant = "noisy sum and randomised response"

    def labels(self, y: Tensor, own: Own) -> Tensor:
        """Class shares (R, n, C); zeros where the label is unknown."""
        self.check_classes(y)
        n, c = y.shape[1], own.classes
        rows = own.context.get("labelled")
        rows = torch.arange(n).expand(len(y), -1) if rows is None else rows.cpu()
        design: Callable[[int], Tensor] = own.context.get("design", lambda r: torch.zeros(n, 0))
        size = own.rng.laplace(((1 + MOST) * (c - 1),), active=own.active, dtype=torch.float64)
        way = own.rng.normal((1 + MOST, c - 1), active=own.active, dtype=torch.float64)
        coins = own.rng.uniform((n,), active=own.active, dtype=torch.float64)
        truth = y.cpu()
        hot = one_hot(truth, c, torch.float64)
        out = hot.clone()
        for r, strength in enumerate(own.strength.tolist()):
            if strength <= 0:
                continue
            epsilon = 1.0 / strength
            of, here = rows[r], truth[r]
            z, e1 = components(design(r).cpu().double(), of, epsilon * self.share, c)
            prior, kept = torch.zeros_like(hot[r]), 0.0
            if e1 > 0:
                prior, kept = learned(z, of, here, c, e1, size[r].abs().cpu(), way[r].cpu())
            known, flips = here >= 0, response(epsilon - e1, c).unsqueeze(0)
            answer = draw(flips, here.clamp_min(0).unsqueeze(0), coins[r : r + 1].cpu())
            tells = float(flips[0, 0, 0] - flips[0, 0, 1])
            w = LEAD * kept / (len(of) * max(tells, 1e-300))
            mixed = (one_hot(answer, c, torch.float64)[0] + w * prior) / (1 + w)
            out[r] = torch.where(known.unsqueeze(1), mixed, 0.0)
        return own.choose(out, hot).to(y.device, own.rng.dtype)


def response(epsilon: float, classes: int) -> Tensor:
    """P(answer o | label y) of randomised response, (C, C) float64 with rows y."""
    keep = float(keep_probability(epsilon, classes))
    other = torch.full((classes, classes), (1 - keep) / (classes - 1), dtype=torch.float64)
    return other.fill_diagonal_(keep)


def components(x: Tensor, rows: Tensor, most: float, classes: int) -> tuple[Tensor, float]:
    """Whitened rows (N, 1 + k) of own columns (N, p), and the epsilon that is spent on them.

    A constant, then k principal components; mean, scale and directions are those of `rows` (n,), of
    which sum_i z_i z_i' = 1. Labels are not looked at: k is the largest for which the noise of a
    score is calm at epsilon `most`, and what calm takes is what is spent; nothing if k is 0.
    """
    n = len(rows)
    unit = math.sqrt(2 * (classes - 1)) / (CALM * n)  # calm takes unit (1 + k)^1.5
    k = max(0, min(x.shape[1], MOST, int((most / unit) ** (2 / 3)) - 1))
    constant = torch.full((len(x), 1), 1 / math.sqrt(n), dtype=x.dtype)
    if k == 0:
        return constant, 0.0
    spread, mean = torch.std_mean(x[rows], dim=0, correction=0)
    x = torch.where(spread > 1e-9, (x - mean) / spread.clamp_min(1e-9), 0.0)
    values, vectors = torch.linalg.eigh(x[rows].T @ x[rows])
    values, vectors = values.flip(0)[:k], vectors.flip(1)[:, :k]
    scale = torch.where(values > 1e-6 * n, values.clamp_min(1e-12).rsqrt(), 0.0)
    return torch.cat([constant, (x @ vectors) * scale], dim=1), min(most, unit * (1 + k) ** 1.5)


def statistic(z: Tensor, rows: Tensor, y: Tensor, classes: int) -> tuple[Tensor, float]:
    """M (K, C - 1) of rows `z` (N, K) shortened to a length `bound`, in units of it; and `bound`.

    A grid keeps the sum exact, so that equal labels give equal bits whatever the order of rows.
    """
    used = z[rows]
    length = used.norm(dim=1)
    bound = float(length.quantile(0.95).clamp_min(1e-12))
    short = used / length.clamp_min(bound).unsqueeze(1)
    short = accountants.round_to_grid(short, torch.zeros_like(short))
    member = torch.stack([(y[rows] == c).double() for c in range(1, classes)], dim=1)
    return short.T @ member, bound


def learned(
    z: Tensor, rows: Tensor, y: Tensor, classes: int, epsilon: float, size: Tensor, way: Tensor
) -> tuple[Tensor, float]:
    """Priors (N, C) from the labels `y` (N,) of `rows` (n,), and how much of them is no noise.

    Args:
        z: rows (N, K).
        epsilon: that is spent.
        size: draws of the exponential distribution, at least K (C - 1).
        way: normal draws, at least K rows of C - 1.
    """
    k, m = z.shape[1], classes - 1
    told, bound = statistic(z, rows, y, classes)
    unit = (1.0 if m == 1 else math.sqrt(2.0)) / epsilon
    noise = way[:k] / way[:k].norm() * size[: k * m].sum()
    seen = bound * accountants.round_to_grid(told, noise, unit)  # (K, C - 1)
    variance = (k * m + 1) * (bound * unit) ** 2  # of each of its numbers
    square = float(seen[1:].square().sum())
    kept = max(0.0, 1 - variance * (k - 1) * m / max(square, 1e-30))
    score = z @ torch.cat([seen[:1], seen[1:] * kept])
    shares = torch.cat([1 - score.sum(1, keepdim=True), score], dim=1).clamp(FLOOR, 1.0)
    return shares / shares.sum(1, keepdim=True), kept
