"""UnSplit's label part: clone the label party's one linear layer and try every label.

Behind one linear layer the received gradient of row i is g_i = W^T (softmax(W z_i + b) - e_{y_i}).
The attacker keeps a clone (W', b') of that layer, computes the gradient that each label c would
give, and takes the nearest:  score_ic = -||W'^T (softmax(W' z_i + b') - e_c) - g_i||^2 .
The clone is first fitted to the known rows, then to all rows with the labels it chose itself, in
turn, while it replays gradients better.

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

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from vflsec import check, registry
from vflsec.attack import Attack
from vflsec.guess import Guess
from vflsec.nn.points import Points
from vflsec.view import Facts, View

ALIASES = ("unsplit_label",)


@registry.attack
@dataclass(frozen=True)
class Unsplit(Attack):
    """Hyper-parameters.

    Attributes:
        epoch: whose messages are used: ``last`` or ``first``.
        rounds: of fitting the clone and choosing labels.
        steps, lr: Adam steps of each round.
    """

    epoch: Literal["last", "first"] = "last"
    rounds: int = 5
    steps: int = 100
    lr: float = 0.03
    world: ClassVar[dict[str, Any]] = {"top": ()}

    def __post_init__(self) -> None:
        check.one_of("unsplit.epoch", self.epoch, ("last", "first"))
        check.integer("unsplit.rounds", self.rounds)
        check.integer("unsplit.steps", self.steps)
        check.positive("unsplit.lr", self.lr)

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        messages = {f"gradient:{self.epoch}", f"sent.embedding:{self.epoch}"}
        return frozenset(messages | {"known_rows"})

    def applicable(self, facts: Facts) -> str:
        if not facts.top:
            return (
                "unsplit clones the linear layer of the label party; here there is none, and the "
                "attack direct reads labels without a clone."
            )
        if facts.extra.get("top"):
            return (
                "unsplit clones one linear layer; here the top model has hidden layers "
                f"{tuple(facts.extra['top'])}. It applies with top = [], and under ushaped."
            )
        return ""

    def infer(self, view: View, rng: torch.Generator) -> Guess:
        known, classes = view.require_known(), view.facts.classes
        gradient = view.received("gradient", self.epoch)
        order = torch.argsort(gradient.rows)
        rows = gradient.rows[order]
        g = gradient.tensor[order].flatten(1).double()
        z = view.sent("embedding", self.epoch).of_rows(rows).flatten(1).double()
        at = torch.searchsorted(rows, known.rows)
        w = 0.1 * torch.randn((classes, z.shape[1]), generator=rng, dtype=torch.float64).to(z)
        clone = (w.requires_grad_(), torch.zeros(classes).to(z).requires_grad_())
        misfit = self._fit(clone, z[at], g[at], known.labels)
        best, scores = torch.inf, label_distances(clone, z, g)
        for _ in range(self.rounds):
            labels = (-scores).argmin(1)
            labels[at] = known.labels
            misfit = self._fit(clone, z, g, labels)
            if misfit >= best * 0.999:
                break
            best, scores = misfit, label_distances(clone, z, g)
        rest = Points(rows, scores).without(known.rows)
        return Guess(self.target, rest.rows, rest.x, notes={"misfit": round(misfit, 4)})

    def _fit(self, clone: tuple[Tensor, Tensor], z: Tensor, g: Tensor, y: Tensor) -> float:
        """Adam on the relative squared distance of replayed gradients; returns it."""
        optimizer = torch.optim.Adam(list(clone), lr=self.lr)
        size = g.square().sum(1).mean().clamp_min(1e-300)
        hot = torch.nn.functional.one_hot(y, clone[0].shape[0]).to(z)
        loss = torch.tensor(torch.inf)
        for _ in range(self.steps):
            loss = (replayed(clone, z, hot) - g).square().sum(1).mean() / size
            clone[0].grad, clone[1].grad = torch.autograd.grad(loss, list(clone))
            optimizer.step()
        return float(loss.detach())


def replayed(clone: tuple[Tensor, Tensor], z: Tensor, hot: Tensor) -> Tensor:
    """Gradients (n, d) that labels (n, C) would give through the clone."""
    w, b = clone
    return (torch.softmax(z @ w.T + b, dim=1) - hot) @ w


def label_distances(clone: tuple[Tensor, Tensor], z: Tensor, g: Tensor) -> Tensor:
    """Minus the squared distance of each label's gradient to the received one, (n, C)."""
    with torch.no_grad():
        w, b = clone
        base = torch.softmax(z @ w.T + b, dim=1) @ w - g  # (n, d)
        return -(base.unsqueeze(1) - w.unsqueeze(0)).square().sum(2)
