"""Linear inversion of an encrypted interactive layer: solve z = h W + b for the embedding h.

An active party that never sees h (it is encrypted) still holds the layer's output z, with plain
weights the weights W (m, o) and bias b themselves, and for every batch the weight gradient G = h^T
g beside its own g = dL/dz. Three ways to use that:

* ``output``: h = (z - b) W^+. Exact where o >= m and W has full rank; else the component of h in
  the column space of W, which is all that z carries.
* ``gradient``: h = (G g^+)^T for a batch. Exact where the batch is no larger than the rank of g, at
  most o; rows whose g are parallel (few classes, the same active units of the top) stay mixed.
* ``joint``: both; and what they leave open from the row's earlier epochs, in which W was another,
  as far as those predict held-out columns of the last z (h moves too, so older is not truer).

Attacker: the active party; it does not deviate from the protocol. With shared weights it holds only
its own share of W and a gradient with the passive party's noise in it, and the same formulas give
noise: that is the point of sharing them.
Known failure cases: an output narrower than the embedding together with large batches; shared
weights. The plain embedding, where it is sent, needs no attack at all.

Source: this package's own statement of a known property of linear layers: z = hW + b determines h
for full-rank W with o >= m; for the gradient see Geiping, Bauermeister, Dröge, Moeller, "Inverting
gradients", NeurIPS 2020, arXiv:2003.14053, proposition 3.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from vflsec.plugin import Attack, Facts, Guess, Table, View, check, registry

FAMILY = "features"

TOLERANCE = 1e-6
"""Singular values of W below this share of the largest count as zero."""
NOISE = 1e-4
"""The same for dL/dz, whose float32 sums carry errors of about 1e-7 of the largest."""
RIDGES = (10.0, 1.0, 0.1, 0.01, 0.001)


@registry.attack
@dataclass(frozen=True)
class LinearInversion(Attack):
    """Hyper-parameters.

    Attributes:
        use: ``output``, ``gradient`` or ``joint``.
        window: epochs that ``joint`` combines, the last ones.
    """

    use: Literal["output", "gradient", "joint"] = "output"
    window: check.Count = 5
    target: ClassVar[str] = "embedding"

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        output = {"activation:all" if self.use == "joint" else "activation:last", "weights:all"}
        gradient = {"weight_gradient:all", "output_gradient:all"}
        return frozenset(
            {"output": output, "gradient": gradient, "joint": output | gradient}[self.use]
        )

    def applicable(self, facts: Facts) -> str:
        if len(facts.parties) != 2:
            return self.explain_need("one passive party")
        return super().applicable(facts)

    def infer(self, view: View, rng: torch.Generator) -> Guess:
        notes: dict[str, object] = {"use": self.use}
        if self.use == "output":
            z, weights = view.received("activation", "last"), view.received("weights", "all")
            rows, h = z.rows, from_output(z, weights)
        elif self.use == "gradient":
            rows, h = self._by_batch(view, None)
        else:
            rows, h, notes = self._joint(view)
        order = torch.argsort(rows)
        return Guess(self.target, rows[order], h[order], notes=notes)

    def _by_batch(self, view: View, start: tuple[Table, Tensor] | None) -> tuple[Tensor, Tensor]:
        """Rows and embeddings from the batches in which each row was last seen.

        With `start` (activations and what :func:`from_output` makes of them) the gradient only adds
        what z leaves open.
        """
        g = view.received("output_gradient", "all")
        gradient = view.received("weight_gradient", "all")
        weights = view.received("weights", "all") if start is not None else None
        found: dict[int, Tensor] = {}
        for step in g.step.unique(sorted=True).tolist():
            of = g.step == step
            rows, mine = g.rows[of], g.tensor[of].double()  # (b, o)
            total = gradient.tensor[gradient.step == step][0].double()  # (m, o)
            inverse = torch.linalg.pinv(mine, rtol=NOISE)  # (o, b)
            h = (total @ inverse).T  # (b, m)
            if start is not None and weights is not None:
                z, solved = start
                known = solved[z.step == step][_places(z.rows[z.step == step], rows)]
                w = weights.tensor[weights.step == step][0, :-1].double()
                seen = w @ torch.linalg.pinv(w, rtol=TOLERANCE)  # (m, m) projector
                h = known + (h - (mine @ inverse) @ known) @ (torch.eye(len(w)).to(w) - seen)
            found.update(zip(rows.tolist(), h, strict=True))
        keys = torch.tensor(list(found), device=g.rows.device)
        return keys, torch.stack(list(found.values()))

    def _joint(self, view: View) -> tuple[Tensor, Tensor, dict[str, object]]:
        z, weights = view.received("activation", "all"), view.received("weights", "all")
        w = weights.tensor.double()
        place = _places(weights.step, z.step)
        last = int(z.epoch.max())
        rows, h = self._by_batch(view, None)
        now = (z.epoch == last).nonzero().squeeze(1)
        now = now[_places(z.rows[now], rows)]
        missed = _rows(h, w[place[now], :-1]) + w[place[now], -1] - z.tensor[now]
        spread = z.tensor[now] - z.tensor[now].mean(0)
        useful = bool(missed.square().sum() < spread.square().sum())
        solved = from_output(z, weights)
        h = self._by_batch(view, (z, solved))[1] if useful else solved[now]
        systems, answers = [], []
        for epoch in range(max(0, last - self.window + 1), last + 1):
            of = (z.epoch == epoch).nonzero().squeeze(1)
            if len(of) == len(rows):
                of = of[_places(z.rows[of], rows)]
                systems.append(w[place[of], :-1])  # (n, m, o)
                answers.append(z.tensor[of].double() - w[place[of], -1])
        chosen = _choose_ridge(systems, answers) if len(systems) > 1 else None
        if chosen is not None:
            before = (torch.cat(systems[:-1], dim=2), torch.cat(answers[:-1], dim=1))
            a = systems[-1]
            open_ = torch.eye(a.shape[1]).to(a) - a @ torch.linalg.pinv(a, rtol=TOLERANCE)
            h = _refine(h, open_, before[0], before[1], chosen)
        return rows, h, {"use": "joint", "gradient_used": useful, "ridge": chosen}


def _rows(h: Tensor, a: Tensor) -> Tensor:
    """h (n, m) times its own matrix a (n, m, k), row by row."""
    return (h.unsqueeze(1) @ a).squeeze(1)


def _refine(h: Tensor, open_: Tensor, a: Tensor, answer: Tensor, ridge: float) -> Tensor:
    """h + d, d within the projector `open_`, by ridge regression of h a = answer, row by row."""
    rest = answer - _rows(h, a)
    scale = a.square().sum(2).mean(1).reshape(-1, 1, 1)
    a = open_ @ a
    eye = torch.eye(a.shape[1]).to(a)
    right = a @ rest.unsqueeze(2)
    d = torch.linalg.solve(a @ a.transpose(1, 2) + ridge * scale * eye, right)
    return h + (open_ @ d).squeeze(2)


def _choose_ridge(systems: list[Tensor], answers: list[Tensor]) -> float | None:
    """The ridge with which older epochs help most to predict a quarter of the last z's columns from
    the other columns, in every epoch; None if the last epoch alone does no worse.
    """
    o = systems[-1].shape[2]
    if o < 2:
        return None
    held = max(1, o // 4)
    now, z = systems[-1][:, :, :-held], answers[-1][:, :-held]
    inverse = torch.linalg.pinv(now, rtol=TOLERANCE)
    h = _rows(z, inverse)
    open_ = torch.eye(now.shape[1]).to(now) - now @ inverse
    a = torch.cat([w[:, :, :-held] for w in systems[:-1]], dim=2)
    rest = torch.cat([y[:, :-held] for y in answers[:-1]], dim=1)

    def error(guess: Tensor) -> float:
        missed = _rows(guess, systems[-1][:, :, -held:]) - answers[-1][:, -held:]
        return float(missed.square().mean())

    best, chosen = 0.99 * error(h), None
    for ridge in RIDGES:
        found = error(_refine(h, open_, a, rest, ridge))
        if found < best:
            best, chosen = found, ridge
    return chosen


def from_output(z: Table, weights: Table) -> Tensor:
    """Smallest embeddings (n, m) that explain the activations, by the weights of their steps."""
    used = z.step.unique()
    w = weights.tensor[_places(weights.step, used)].double()  # (s, m + 1, o)
    inverse = torch.linalg.pinv(w[:, :-1], rtol=TOLERANCE)  # (s, o, m)
    place = torch.searchsorted(used, z.step)
    rest = (z.tensor.double() - w[place, -1]).unsqueeze(1)
    return (rest @ inverse[place]).squeeze(1)


def _places(held: Tensor, wanted: Tensor) -> Tensor:
    """Where each wanted row id, or step, stands in `held`, which names every one once."""
    order = torch.argsort(held)
    return order[torch.searchsorted(held[order], wanted)]
