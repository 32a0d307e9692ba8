"""LASER-VFL: a family of predictors, one for every set of parties that is there.

Each party with columns has an embedding h_k = f_k(x_k) (b, d), all of one width, and a predictor
g_k. Where the parties S are there, each k of S answers g_k(mean of h_j, j in S): all predictors of
all sets share the f_k and g_k. A row whose parties P are there is trained on

    sum over non-empty S in P of 1/|S| sum over k in S of loss(g_k(mean of h_j, j in S)),

of which a step takes an estimate without bias: for each k of P and each size s of 1 to |P| one set
S of s parties of P with k is drawn, and counts binom(|P| - 1, s - 1) / s times. Aligned rows have
all parties; the other labelled rows of the active party, an own pass of each epoch, have it alone.
At inference any parties may be `absent`.

In the released code each client has its g_k and needs the labels for it. Here the active party has
the labels, so it has all of the g_k, too, and embeddings need not go from client to client.
Messages are those of FedSplitNN, one embedding up and one gradient down by step and passive party;
the gradient sums over all sets with that party, so it tells labels as there. An absent party sends
nothing, and nothing is sent for rows that the active party has alone.

Source: Valdeira, Wang, Chi, "Vertical federated learning with missing features during training and
inference", ICLR 2025, arXiv:2410.22564, with the weights and draws of its public code (linear g_k,
a batch of rows with one P a step); sets are drawn here by seed, there for all of a batch alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from typing import Literal

import torch
from torch import Tensor

from vflsec.algorithms._any_parties import AnyParties
from vflsec.algorithms.splitnn import Exchange
from vflsec.core.federation import Federation
from vflsec.core.rng import Streams
from vflsec.plugins import registry


@registry.algorithm
@dataclass(frozen=True)
class Laser(AnyParties):
    """Hyper-parameters beside those of FedSplitNN.

    Attributes:
        sets: ``drawn``, one set by predictor and size at each step, or ``all`` of them: for few
            parties, as their number is 2^K - 1.
    """

    sets: Literal["drawn", "all"] = "drawn"

    def build(self, fed: Federation) -> None:
        super().build(fed)
        first = self.holders(fed)[0].name
        width = self.width(first, fed.outputs)
        if first != fed.active.name:
            width = fed.link(first).width(width)
        for head in self._heads(fed)[1:]:
            fed.add(fed.active.name, head, self._top(width, fed.outputs))
        fed.active.start(self.optimizer, self.lr, self.weight_decay, embedding_l2=self.embedding_l2)
        fed.extra["sets"] = Streams(fed.seeds, "sets", device=fed.stack.device)

    def _heads(self, fed: Federation) -> list[str]:
        """Names of the predictors, which the active party holds, by party with columns."""
        return ["top", *(f"top_{p.name}" for p in self.holders(fed)[1:])]

    def own_step(self, fed: Federation, rows: Tensor) -> None:
        active, y, parts = fed.active, fed.targets(rows), ("bottom", "top")
        x = fed.columns(active.name, rows)
        z = active.modules["bottom"](x)
        total = fed.loss(active.modules["top"](z), y)
        penalty = fed.penalty(active.name, x, {active.name: z}, y)
        total = total if penalty is None else total + penalty
        active.update(torch.autograd.grad(total.sum(), active.parameters(parts)), parts)

    def differentiate(
        self, fed: Federation, batch: Exchange
    ) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        active, every = fed.active, torch.stack(list(batch.got.values()))
        terms = []
        for k, head in enumerate(self._heads(fed)):
            for size in range(1, len(every) + 1):
                sets = list_sets(len(every), k, size, every.dtype, every.device)
                for of, weight in self._pick(fed, sets):
                    logits = active.modules[head](torch.einsum("rk,krbd->rbd", of / size, every))
                    terms.append(weight / size * fed.loss(logits, batch.y))
            if k == 0:
                batch.logits = logits.detach()  # of all parties together
        penalty = fed.penalty(active.name, batch.x[active.name], batch.got, batch.y)
        total = torch.stack([*terms, *([] if penalty is None else [penalty])]).sum()
        mine = active.parameters()
        grads = torch.autograd.grad(total, [*mine, *(batch.got[p] for p in batch.sent)])
        return grads[: len(mine)], grads[len(mine) :]

    def _pick(self, fed: Federation, sets: Tensor) -> list[tuple[Tensor, float]]:
        """Which of some sets (m, K) of one size count, by replica (R, K), and how often each."""
        if self.sets == "all":
            return [(one.expand(fed.replicas, -1), 1.0) for one in sets]
        draws: Streams = fed.extra["sets"]
        return [(sets[draws.integers(len(sets), ()).to(sets.device)], float(len(sets)))]

    def step(self, fed: Federation, rows: Tensor) -> None:
        """One split training step on aligned rows (R, b)."""
        batch = self.up(fed, rows)
        own, cut = self.differentiate(fed, batch)
        self.down(fed, batch, cut)
        fed.active.update(own)

    def logits(self, fed: Federation, parts: list[Tensor], *, train: bool) -> Tensor:
        """Logits (R, b, C) of the first party that is there, from all who are."""
        heads = dict(zip((p.name for p in self.holders(fed)), self._heads(fed), strict=True))
        head = fed.active.modules[heads[self.present(fed)[0].name]]
        return head(self.fuse(parts), train=train)


@cache  # brought to a device once, not in every step
def list_sets(
    parties: int, k: int, size: int, dtype: torch.dtype | None = None,
    device: torch.device | None = None,
) -> Tensor:  # fmt: skip
    """All sets of `size` parties with party `k`, as rows of 0 and 1, (binom(K - 1, s - 1), K)."""
    others = [j for j in range(parties) if j != k]
    found = [{k, *of} for of in combinations(others, size - 1)]
    hits = [[float(j in of) for j in range(parties)] for of in found]
    return torch.tensor(hits, dtype=dtype, device=device)
