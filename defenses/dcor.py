"""A penalty on the distance correlation between embeddings and labels, or embeddings and features.

dCor^2 = dCov^2(z, t) / sqrt(dVar^2(z) dVar^2(t)) from doubly centred matrices of pairwise distances
in a batch; the owner adds strength x log dCor (or dCor with ``log = false``) to its loss. The
*label* form (t = one-hot labels) is the active party's, for every embedding that it receives, and
reaches the passive bottoms through the gradients; the *feature* form (t = own input rows) is the
passive parties' own. Where all rows of a batch coincide, or one class is alone, it adds nothing.

Hook: penalty. Owner: the active party (label form) or every passive party (feature form).
Guarantee: none. In small batches the estimate is biased upwards (0.5 for independent data at b =
32) and the penalty works against the bias. Does not stop: attacks on gradients (it targets
embeddings); inversion of the embeddings of the first epoch, which are sent before the penalty has
acted; completion where the passive party is the only one with signal, except by ruining the task.

Source: Szekely, Rizzo, Bakirov, "Measuring and testing dependence by correlation of distances",
Annals of Statistics 35 (2007); Vepakomma, Gupta, Dubey, Raskar, "NoPeek", ICDM workshops 2020,
arXiv:2008.09161 (feature form); Sun, Yang, Yao, Wang, "Label leakage and protection from forward
embedding in vertical federated learning", arXiv:2203.01451 (label form).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from vflsec.defenses.alibi import one_hot
from vflsec.plugin import Own, Policy, PolicyError, registry

ALIASES = ("distance_correlation", "nopeek")


@registry.defense
@dataclass(frozen=True)
class DCor(Policy):
    """Hyper-parameters.

    Attributes:
        form: ``label`` or ``feature``.
        log: penalise log dCor instead of dCor.
    """

    form: Literal["label", "feature"] = "label"
    log: bool = True
    strengths: ClassVar[str] = "weight of the penalty"

    @property
    def owner(self) -> str:  # type: ignore[override]
        return "active" if self.form == "label" else "passive"

    def penalty(self, x: Tensor, h: dict[str, Tensor], y: Tensor | None, own: Own) -> Tensor | None:
        if not any(own.active):
            return None
        if self.form == "label":
            if y is None:
                raise PolicyError(f"{self.name}: the label form belongs to the active party.")
            t = one_hot(y, own.classes, x.dtype) if y.dim() == 2 else y.to(x)
            received = [z for party, z in h.items() if party != own.party]
        else:
            t = x.reshape(x.shape[0], x.shape[1], -1)
            received = list(h.values())
        terms = [distance_correlation(z, t) for z in received]
        if not terms:
            return None
        total = sum((d.clamp_min(1e-6).log() if self.log else d) for d in terms)
        assert isinstance(total, Tensor)
        return own.column(total) * total


def distance_correlation(a: Tensor, b: Tensor) -> Tensor:
    """dCor (the root of dCor^2) of rows a (R, n, p) and b (R, n, q), (R,); 1 if one is constant.

    A constant side has no distances to correlate; it gives 1 with gradient 0, whose logarithm adds
    nothing.
    """
    one, two = _centred(a), _centred(b)
    n = a.shape[1] ** 2
    covariance = (one * two).flatten(1).sum(1) / n
    spread = (one * one).flatten(1).sum(1) / n * ((two * two).flatten(1).sum(1) / n)
    there = spread > 1e-24
    squared = covariance / torch.where(there, spread, torch.ones_like(spread)).sqrt()
    return torch.where(there, squared.clamp_min(1e-12), torch.ones_like(squared)).sqrt()


def _centred(x: Tensor) -> Tensor:
    """Doubly centred pairwise distances (R, n, n); coinciding rows have gradient 0."""
    d = torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist")
    return d - d.mean(1, keepdim=True) - d.mean(2, keepdim=True) + d.mean((1, 2), keepdim=True)
