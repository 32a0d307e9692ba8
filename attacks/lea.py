"""Label enumeration: clusters of gradients, and the map to classes that fits best.

Gradients of the first epoch are alike for rows of one class, for the joint model predicts nearly
the same for all: g_i = (p - e_{y_i}) W. Later W turns and p differs by row, but noise that is drawn
anew averages out, and a defense may begin or end with an epoch. So the directions of two gradients
stand side by side: of the first one of a row, and of the mean of all, each divided by the root mean
square row norm of its batch. They are split into as many clusters as there are classes. Of all maps
c(k) from clusters k to classes the one with the largest sum is taken:
    sum_k  N n_k/n log P(c(k)) + log(9 (C - 1)) v_k,c(k) + N/n sum_{i in k} cos(g_i, G_i,c(k))
with N = min(n, 100), n_k the rows of cluster k and P the class shares; v_kc the known rows of class
c in cluster k, taken to lie in the cluster of their class in nine of ten cases; and G_ic, compared
with both, the gradient of the granted top model as it was before training, at the own embedding
before training, for class c. What is not granted is left out. The sum is over clusters, so the best
of all C! maps is an assignment problem, and none is enumerated. Score of class c: minus the squared
distance to the centre of its cluster.
Renaming the classes together with the output units of an unknown top model changes no gradient at
all. So without a granted row or top model, and between classes whose shares are equal, all maps are
equally good, and the attack declines rather than answer up to a permutation.

Attacker: any passive party that receives per-row gradients; any number of classes. Needs class
shares that differ, or known rows of all classes but one, or the label party's model
(``peer_model``).
Known failure cases: clusters that are not the classes (noise far larger than the gradients, several
kinds of rows in a class); randomised labels, of which it finds the released ones; a deep top model
whose gradient depends on the peers' embeddings, for which zeros stand.

Source: Jiang, Fu, Luo, Liu, "LEA: label enumeration attack in vertical federated learning",
arXiv:2603.03777 (2026), which trains a simulated model for every map and reads first gradients; the
symmetry, the assignment and the mean are this package's own statement. Assignment: Kuhn, Naval
Research Logistics 1955.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vflsec.inference.clustering_points import Points, assign, k_means, make_points
from vflsec.nn.rows import sums
from vflsec.plugin import Attack, Guess, ThreatModelError, View, check, registry

ALIASES = ("label_enumeration",)
FAMILY = "clusters"
MOST = 100  # rows that sizes may speak for: clusters are never as exact as counts
TRUST = 9.0  # odds that a known row lies in the cluster of its class


@registry.attack
@dataclass(frozen=True)
class Lea(Attack):
    """Hyper-parameters.

    Attributes:
        restarts: starts of k-means.
    """

    restarts: check.Count = 8
    needs = frozenset({"gradient:first", "gradient:scaled"})
    seconds: ClassVar[float] = 0.02

    def declines(self, view: View) -> str:
        """Why nothing tells two of the classes apart, or ''."""
        if _granted_top(view) is not None:
            return ""
        known = set() if view.known is None else set(view.known.labels.tolist())
        n = len(view.targets["train"]) + len(known)
        for a in range(view.facts.classes):
            for b in range(a):
                if {a, b} & known:
                    continue
                if view.prior is None:
                    why = "no shares are granted"
                elif (gap := abs(float(view.prior[a] - view.prior[b]))) <= 2 / math.sqrt(n):
                    why = f"their shares differ by {gap:.3f}, within 2 / sqrt({n})"
                else:
                    continue
                return (
                    f"lea cannot separate class {b} from class {a}: {why}, and no row of either is "
                    "known. Grant known_rows, shares that differ, or peer_model."
                )
        return ""

    def infer(self, view: View, rng: torch.Generator) -> Guess:
        why = self.declines(view)
        if why:
            raise ThreatModelError(why)
        found, classes = _directions(view), view.facts.classes
        made = k_means(found.x, classes, rng, restarts=self.restarts)
        worth = _worth(view, found, made.member)
        of_class = assign(worth)
        rest = Points(found.rows, -made.distances(found.x)[:, of_class])
        if view.known is not None:
            rest = rest.without(view.known.rows)
        sizes = torch.bincount(made.member, minlength=classes).tolist()
        return Guess(self.target, rest.rows, rest.x, notes={"cluster_sizes": sizes})


def _directions(view: View) -> Points:
    """The directions (n, 2 d) of each row's first gradient and of its mean one."""
    first, mean = make_points(view, "gradient", "first"), make_points(view, "gradient", "scaled")
    both = [nn.functional.normalize(x, dim=1) for x in (first.x, mean.of(first.rows))]
    return Points(first.rows, torch.cat(both, dim=1))


def _worth(view: View, found: Points, member: Tensor) -> NDArray[np.float64]:
    """What each cluster as each class is worth, (clusters, classes)."""
    rows, classes = found.rows, view.facts.classes
    worth = np.zeros((classes, classes))
    weight = min(len(rows), MOST) / len(rows)
    if view.prior is not None:
        sizes = np.bincount(member.cpu().numpy(), minlength=classes)
        share = view.prior.cpu().numpy().clip(1e-6)
        worth += weight * sizes[:, None] * np.log(share)[None, :]
    if view.known is not None:
        there = torch.isin(view.known.rows, rows)
        at = member[torch.searchsorted(rows, view.known.rows[there])]
        vote = math.log(TRUST * max(classes - 1, 1))
        labels = view.known.labels[there]
        np.add.at(worth, (at.cpu().numpy(), labels.cpu().numpy()), vote)
    top = _granted_top(view)
    if top is not None:
        for c in range(classes):
            told = nn.functional.normalize(_expected(view, top, rows, c), dim=1).repeat(1, 2)
            alike = nn.functional.cosine_similarity(found.x, told)
            worth[:, c] += weight * sums(alike, member, classes).cpu().numpy()
    return worth


def _granted_top(view: View) -> nn.Module | None:
    """The top model before training, where the label party's models were granted to one party."""
    if len(view.adversary) > 1:
        return None
    return view.models.get(view.facts.active, {}).get("initial_top")


def _expected(view: View, top: nn.Module, rows: Tensor, c: int) -> Tensor:
    """The gradient (n, d) that rows of class `c` get from the top model before training."""
    with torch.no_grad():
        z = view.model("initial")(view.columns[view.party][rows]).flatten(1)
    z = z.detach().requires_grad_()
    whole = z
    if view.facts.aggregation == "concat":
        widths = view.facts.widths
        whole = torch.cat(
            [
                z if p == view.party else z.new_zeros(len(z), widths[p])
                for p in view.facts.parties
                if p in widths
            ],
            dim=1,
        )
    log_p = torch.log_softmax(top(whole), dim=1)
    (slope,) = torch.autograd.grad(-log_p[:, c].sum(), z)
    return slope.double()
