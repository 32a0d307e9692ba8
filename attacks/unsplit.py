"""UnSplit's label part: clone the label party's one linear layer and try every label.

Behind one linear layer the received gradient of row i is g_i = W^T (softmax(W z_i + b) - e_{y_i}).
The attacker keeps a clone (W', b') of that layer, computes the gradient that each label c would
give, and takes the nearest:  score_ic = -||W'^T (softmax(W' z_i + b') - e_c) - g_i||^2 .
The clone is first fitted to the known rows, then to all rows with the labels it chose itself, in
turn, while it replays gradients better.
Differs from the paper: what reaches a party may carry a factor that it is not told (a learning
rate, the sum of a loss for its mean, mixed precision). The clone is therefore fitted to gradients
up to one positive factor for all rows, and g_i is divided by the least-squares factor before the
distances are taken. Under label randomisation and noise that is no weaker than the factor 1.
Noise that is drawn anew in every epoch averages out, and a defense may begin after an epoch. So it
is made twice: of the last embeddings beside the mean over epochs of gradients divided by the root
mean square row norm of their batch, and of the first epoch. The answer is given that stands better
by the known rows (mean area under their ROC curves; a few of all rows that the clone is fitted to).

Attacker: the party before a one-layer head: the one in the middle of a U-shaped split (algorithm
``ushaped``), as published, or a passive party whose peers' embeddings go through the same linear
layer (``splitnn`` with ``top = []``), for which b' stands on average.
Needs received gradients, the embeddings sent, and known rows.
Does not apply: behind a deeper top model, or none.
Known failure cases: peers that carry most of the logit make the clone's softmax wrong, which shifts
distances but rarely their order; few known rows with many classes leave columns of W' at random.

Source: Erdogan, Kupcu, Cicek, "UnSplit: Data-oblivious model inversion, model stealing, and label
inference attacks against split learning", WPES 2022, arXiv:2108.09033, section 3.4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from vflsec.inference.clustering_points import Points
from vflsec.inference.gradient_replay import EPOCHS, by_epoch, measure_separation, messages_of
from vflsec.nn import optim
from vflsec.plugin import Attack, Facts, Guess, View, check, registry

ALIASES = ("unsplit_label",)
FAMILY = "imitation"

LEAST = 0.01
"""A factor is positive: of tables at a wider angle this share of their lengths' ratio is taken."""


@registry.attack
@dataclass(frozen=True)
class Unsplit(Attack):
    """Hyper-parameters.

    Attributes:
        epoch: whose messages are used: ``mean``, ``first``, ``last``, or the ``best`` of the first
            two.
        rounds: of fitting the clone and choosing labels.
        steps, lr: Adam steps of each round.
    """

    epoch: Literal["best", "mean", "first", "last"] = "best"
    rounds: check.Count = 5
    steps: check.Count = 100
    lr: check.Positive = 0.03
    world = {"top": ()}
    quick = {"rounds": 3, "steps": 40}
    seconds: ClassVar[float] = 1

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        return messages_of(self.epoch) | {"known_rows"}

    def applicable(self, facts: Facts) -> str:
        if not facts.top:
            return self.explain_need("a top model", "Without one take direct.")
        if facts.extra.get("top"):
            return self.explain_need("one linear top layer", "Set top = [], or take ushaped.")
        return ""

    def infer_many(self, views: Sequence[View], rngs: Sequence[torch.Generator]) -> list[Guess]:
        each = by_epoch(self, views, rngs)
        if each is not None:
            return each
        of_gradients, of_embeddings = EPOCHS[self.epoch]
        classes = views[0].facts.classes
        rows, zs, gs, places, known = [], [], [], [], []
        for view in views:
            granted, gradient = view.require_known(), view.received("gradient", of_gradients)
            order = torch.argsort(gradient.rows)
            rows.append(gradient.rows[order])
            gs.append(gradient.tensor[order].flatten(1).double())
            sent = view.sent("embedding", of_embeddings)
            zs.append(sent.of_rows(rows[-1]).flatten(1).double())
            places.append(torch.searchsorted(rows[-1], granted.rows))
            known.append(granted.labels)
        z, g, at, given = (torch.stack(v) for v in (zs, gs, places, known))
        shape = (classes, z.shape[2])
        w = [0.1 * torch.randn(shape, generator=r, dtype=torch.float64) for r in rngs]
        clone = (
            torch.stack(w).to(z).requires_grad_(),
            torch.zeros(len(views), 1, classes).to(z).requires_grad_(),
        )
        every = torch.arange(len(views), device=z.device).unsqueeze(1)
        _, factor = self._fit(clone, z[every, at], g[every, at], given)
        scores = label_distances(clone, z, g / factor)
        best = torch.full((len(views),), torch.inf).to(z)
        going = torch.ones(len(views), dtype=torch.bool, device=z.device)
        for _ in range(self.rounds):
            labels = (-scores).argmin(2).scatter(1, at, given)
            misfit, factor = self._fit(clone, z, g, labels)
            going = going & (misfit < best * 0.999)  # a view that stops keeps what it has
            if not bool(going.any()):
                break
            best = torch.where(going, misfit, best)
            fresh = label_distances(clone, z, g / factor)
            scores = torch.where(going[:, None, None], fresh, scores)
        out = []
        for r, view in enumerate(views):
            rest = Points(rows[r], scores[r]).without(view.require_known().rows)
            notes = {
                "misfit": round(float(best[r]), 4),
                "known_rows": round(measure_separation(scores[r, at[r]], given[r]), 4),
            }
            out.append(Guess(self.target, rest.rows, rest.x, notes=notes))
        return out

    def _fit(
        self, clone: tuple[Tensor, Tensor], z: Tensor, g: Tensor, y: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Adam on the angle between the tables (n, d) of replayed and received gradients.

        Returns the relative squared distance (R,) that is left, and the factor (R, 1, 1).
        """
        optimizer = optim.Adam(list(clone), lr=self.lr)
        hot = torch.nn.functional.one_hot(y, clone[0].shape[1]).to(z)
        for _ in range(self.steps):
            loss = 1 - alignment(replayed(clone, z, hot), g)
            clone[0].grad, clone[1].grad = torch.autograd.grad(loss.sum(), list(clone))
            optimizer.step()
        with torch.no_grad():
            replay = replayed(clone, z, hot)
            along = alignment(replay, g).clamp_min(LEAST)
            factor = along * (length(g) / length(replay))
            left = (1 - along.square()).clamp_min(0)
            return left, factor.reshape(-1, 1, 1).clamp_min(1e-300)


def length(g: Tensor) -> Tensor:
    """Length (R,) of whole tables of gradients (R, n, d); never 0."""
    return torch.linalg.vector_norm(g, dim=(1, 2)).clamp_min(1e-150)


def alignment(replay: Tensor, g: Tensor) -> Tensor:
    """Cosine (R,) of the angle between whole tables of gradients (R, n, d)."""
    return (replay * g).sum((1, 2)) / (length(replay) * length(g))


def replayed(clone: tuple[Tensor, Tensor], z: Tensor, hot: Tensor) -> Tensor:
    """Gradients (..., n, d) that labels (..., n, C) would give through the clone."""
    w, b = clone
    return (torch.softmax(z @ w.mT + b, dim=-1) - hot) @ w


def label_distances(clone: tuple[Tensor, Tensor], z: Tensor, g: Tensor) -> Tensor:
    """Minus the squared distance of each label's gradient to the received one, (..., n, C)."""
    with torch.no_grad():
        w, b = clone
        base = torch.softmax(z @ w.mT + b, dim=-1) @ w - g  # (..., n, d)
        return -(base.unsqueeze(-2) - w.unsqueeze(-3)).square().sum(-1)
