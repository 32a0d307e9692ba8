"""Own columns and messages put together: what neither says alone, from a few known labels.

Own columns first give every row shares of the classes, by the known rows. These shares stand for
labels on all rows, and on each a reading of messages finds the direction that goes with them, on
other rows than it is then used on (five folds). A reading counts only where what it says of rows
it did not learn from goes with the shares, and with the known labels, as chance does not; so what
says nothing leaves the answer of own columns as it was, however wide it is. What counts enters a
logistic regression of the shares, whose log-odds are added to those of own columns, as if both were
independent within a class; the sums are the next shares (expectation maximisation).

Source: Nigam, McCallum, Thrun, Mitchell, "Text classification from labeled and unlabeled documents
using EM", Machine Learning 2000, for shares in place of labels; Blum, Mitchell, "Combining labeled
and unlabeled data with co-training", COLT 1998, for two views of a row; folds: Chernozhukov et al.,
"Double/debiased machine learning", Econometrics Journal 2018.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vflsec.core.view import Known, View
from vflsec.inference.completion import SHRINKAGE, Fit, logistic_cv
from vflsec.inference.gradient_history import soft_logistic
from vflsec.nn.rows import scale_blocks, spread

FOLDS = 5
RARE = 3.0
"""From how many standard errors on a reading counts, of both tests together."""
RARE_TOLD = 1.0
"""The same of a reading whose direction is known beforehand."""
AGAIN = 2
"""How often more a known row counts than one whose shares are guessed."""
WEIGHTS = tuple(2.0**k for k in range(-4, 4))
"""What may be made of the evidence beside own columns."""
LOADED = 0.1
"""Of the mean variance, added to every variance of a discriminant."""
_C = 1.0  # inverse penalty of what is found, in standard deviations, on the shares


@dataclass(frozen=True)
class Reading:
    """Something that messages say of rows.

    Attributes:
        rows: (m,) sample ids, ascending.
        value: (m, k) float64.
        told: entry c is known to be larger for rows of class c; k is then the number of classes.
    """

    rows: Tensor
    value: Tensor
    told: bool = False


def fit_head(blocks: Sequence[Tensor], at: Tensor, known: Known, classes: int) -> Fit:
    """Logistic regression of the known labels on blocks (n, k) side by side.

    None drowns another (:func:`vflsec.nn.rows.scale_blocks`); the penalty is chosen by
    cross-validation.

    Args:
        at: places (q,) of the known rows.
    """
    scaled = scale_blocks(blocks)
    return logistic_cv(scaled.take(at), known, scaled.pieces, classes, "head", SHRINKAGE)


def own_blocks(view: View, rows: Tensor, part: str = "bottom") -> list[Tensor]:
    """What a party has of rows itself, for :func:`fit_head`: embeddings (n, d), columns (n, p).

    Columns have spread 1, as their controls see them.
    """
    x = view.design(rows).double()
    x = x / spread(x)[0].clamp_min(1e-9)
    return [view.embed(rows, part=part).flatten(1).double(), x]


def placed(readings: Mapping[str, Reading], rows: Tensor, known: Known) -> dict[str, Placed]:
    """The readings by name, standardised, at their places in `rows` (n,), which ascend; without
    what is of no such row.
    """
    mine = torch.searchsorted(rows, known.rows)
    places: dict[int, tuple[Tensor, Tensor, Tensor]] = {}
    out = {}
    for name, r in readings.items():
        if id(r.rows) not in places:  # most are of the same
            there = torch.isin(r.rows, rows).nonzero().squeeze(1)
            at = torch.searchsorted(rows, r.rows[there])
            places[id(r.rows)] = there, at, torch.isin(at, mine)
        there, at, among = places[id(r.rows)]
        x = r.value if len(there) == len(r.value) else r.value[there]
        if r.told:
            x = x - x.mean(1, keepdim=True)
        sd, centre = spread(x)
        x = (x - centre) / sd.clamp_min(1e-300).where(sd > 0, torch.ones_like(sd))
        out[name] = Placed(x, at, among, len(rows), r.told)
    return out


def find_evidence(
    readings: Mapping[str, Placed], rows: Tensor, own: Tensor, known: Known, steps: int = 3
) -> tuple[Tensor, list[str]]:
    """Log-odds (n, C) that readings add to own columns, and the names of those that count.

    All zeros where none does. Of two classes the first column is 0.

    Args:
        readings: of some of the rows each, from :func:`placed`.
        rows: (n,) sample ids, ascending.
        own: log class shares (n, C) from own columns.
        known: among the rows.
        steps: how often shares are made anew.
    """
    at, classes = torch.searchsorted(rows, known.rows), own.shape[1]
    hot = torch.nn.functional.one_hot(known.labels, classes).to(own)
    asked = range(1, 2) if classes == 2 else range(classes)
    share, added = torch.softmax(own, dim=1), torch.zeros_like(own)
    share[at] = hot
    counts = {c: [name for name, p in readings.items() if p.counts(share[:, c], c)] for c in asked}
    for _ in range(steps):
        for c in asked:
            if counts[c]:
                said = torch.stack([readings[k].said(share[:, c], c) for k in counts[c]], dim=1)
                most = torch.cat([said, said[at].repeat(AGAIN, 1)])
                w = soft_logistic(most, torch.cat([share[:, c], hot[:, c].repeat(AGAIN)]), c=_C)
                told = said @ w[:-1]
                added[:, c] = told if classes == 2 else torch.nn.functional.logsigmoid(
                    told + w[-1]
                )  # fmt: skip
        share = torch.softmax(own + added, dim=1)
        share[at] = hot
    return added, list(dict.fromkeys(name for of in counts.values() for name in of))


def find_weight(held: Tensor, added: Tensor, labels: Tensor) -> tuple[float, float]:
    """By what the evidence is to be multiplied before it is added to own columns, and how likely
    that makes the known labels.

    That under which these are likeliest, whatever the scale of the sum; the logarithm of the weight
    is normal beforehand, with mean 0 and spread 1. At 0 it is not added at all.

    Args:
        held: log class shares (q, C) of the known rows, of fits that did not see them.
        added: of :func:`find_evidence`, at these rows.
        labels: (q,).
    """
    found = []
    for w in (0.0, *WEIGHTS):
        score = held + w * added
        told = [torch.log_softmax(s * score, dim=1)[torch.arange(len(labels)), labels].sum()
                for s in WEIGHTS]  # fmt: skip
        found.append((float(max(told)) - math.log(w or WEIGHTS[0]) ** 2 / 2, w))
    likely, w = max(found, key=lambda pair: (pair[0], -abs(math.log(pair[1] or WEIGHTS[0]))))
    return w, likely


def fit_discriminant(x: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
    """Weights (p, C) and intercepts (C,) of the linear discriminant of rows with class shares.

    It gives log class shares. The covariance that classes have in common gets :data:`LOADED` of its
    mean variance on its diagonal.

    Args:
        x: own columns (m, p).
        share: of the classes (m, C).
    """
    many, centre = share.sum(0).clamp_min(1e-9), x.mean(0)
    means = share.T @ (x - centre) / many.unsqueeze(1)
    within = (x - centre).T @ (x - centre) - (means.T * many) @ means
    within = within / len(x) + 1e-12 * torch.eye(x.shape[1]).to(x)
    within += LOADED * within.diagonal().mean() * torch.eye(x.shape[1]).to(x)
    weights = torch.linalg.solve(within, means.T)
    half = (means.T * weights).sum(0) / 2
    return weights, (many / len(x)).log() - half - centre @ weights


@dataclass(frozen=True)
class Placed:
    """A reading at its places: `at` (m,) in all n rows, of which `known` (m,) bool are known."""

    value: Tensor
    at: Tensor
    known: Tensor
    n: int
    told: bool

    def _found(self, share: Tensor, c: int) -> Tensor:
        """What it says of its rows (m,), each by a direction from other rows."""
        if self.told:
            return self.value[:, c]
        p, out = share[self.at], torch.empty_like(self.value[:, 0])
        folds = [(self.value[k::FOLDS], p[k::FOLDS]) for k in range(FOLDS)]
        both = torch.stack([q @ x for x, q in folds])
        alone = torch.stack([x.sum(0) for x, _ in folds])
        for k, (x, q) in enumerate(folds):  # sums of the other folds are those of all less its own
            rest, rows = alone.sum(0) - alone[k], len(p) - len(q)
            d = both.sum(0) - both[k] - (p.sum() - q.sum()) / rows * rest
            out[k::FOLDS] = (x @ d - rest @ d / rows) / d.norm().clamp_min(1e-300)
        return out

    def said(self, share: Tensor, c: int) -> Tensor:
        """The same of all n rows, of mean 0 and spread 1; 0 where there is no reading."""
        found = self._found(share, c)
        sd, mean = torch.std_mean(found, correction=0)
        out = torch.zeros(self.n, dtype=found.dtype, device=found.device)
        out[self.at] = (found - mean) / sd.clamp_min(1e-12)
        return out

    def counts(self, share: Tensor, c: int) -> bool:
        """Whether it goes with the shares, and with the known labels, as chance does not."""
        if len(self.at) < 2 * FOLDS or not self.value.shape[1]:
            return False
        found, p = self._found(share, c), share[self.at]
        every = (_goes_with(found[of], p[of]) for of in (~self.known, self.known))
        tests = [t for t in every if t is not None]
        limit = RARE_TOLD if self.told else RARE
        return bool(tests) and sum(tests) / len(tests) ** 0.5 > limit


def _goes_with(x: Tensor, y: Tensor) -> float | None:
    """Correlation of x and y (m,) in standard errors; None where one of them does not vary."""
    x, y = x - x.mean(), y - y.mean()
    size = float(x.norm() * y.norm()) if len(x) > 2 else 0.0
    return float(x @ y) / size * len(x) ** 0.5 if size > 0 else None
