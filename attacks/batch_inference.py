"""Batch label inference: the gradient of the own parameters, solved for the gradient of each row.

Where gradient messages are encrypted, a passive party still computes the gradient J of its own
parameters. At fixed weights J is linear in the rows of the cut-layer gradient: with z_i = f(x_i),
    J = sum_i (dz_i/dtheta)^T g_i .
Behind summed logits g_i = (p_i - e_{y_i}) / b, so the entries of a row add up to zero and the
smallest one is the label. If these equations determine the g_i (roughly: as many independent
parameters as rows x (classes - 1); for the last layer alone, batch <= its width) they are solved by
least squares in closed form. Otherwise the peers' logits s_i and the labels t_i are searched for by
Adam, with g_i = (softmax(z_i + s_i) - softmax(t_i)) / b, as in the paper. Score of class c:
-b g_ic from the closed form, softmax(t_i)_c from the search.
That is said of one epoch. Where several were recorded, -b g_i = y_i - p_i is learned over all of
them by a Kalman filter (`vflsec.inference.kalman_filter`): batches are drawn anew in every epoch,
so equations of many epochs determine what those of one do not, noise that is drawn anew averages
out, and an epoch that is loud counts for little beside one that is not. Score: the mean of -b g_ic.
Differs from the paper: what reaches a party may carry a factor that it is not told (a learning
rate, the sum of a loss for its mean, mixed precision). Where the root mean square length of J over
even labels, with p_i = softmax(z_i), is more than 4 times off, the search matches the direction of
J alone, which is to fit one positive factor for each batch; the filter divides J by the median
over epochs, if that length is off in all of them. A factor between that is not seen. Where known
rows were granted, the answer is turned round or its classes renamed if that fits them (soft labels
and penalties of the label party do so, see `vflsec.inference.score_orientation`).

Attacker: any passive party, also under encryption of all messages; no labelled row, but uses those
it was granted; any number of classes. Needs its own gradients and weights in the first epoch, and
better in more of them.
Does not apply: behind a trainable top model (rows are then solved for, but not their labels).
Known failure cases: batches far larger than the number of parameters, or the same in all epochs;
noise far larger than the gradients; dropout, whose masks are not recorded.

Source: Zou, Liu, Kang, Liu, He, Yi, Yang, Zhang, "Defending batch-level label inference and
replacement attacks in vertical federated learning", IEEE Transactions on Big Data (2022),
arXiv:2112.05409, section 4. The closed form and the filter are ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor

from vflsec.core.step_sampling import Spread
from vflsec.core.view import Update
from vflsec.inference.gradient_equations import System, linear_system, zero_sum_basis
from vflsec.inference.kalman_filter import Rows
from vflsec.inference.score_orientation import read
from vflsec.nn import optim
from vflsec.plugin import Attack, Facts, Guess, View, check, registry

ALIASES = ("bli", "batch_label_inference")
FAMILY = "batch_averages"
Answer = tuple[Tensor, Tensor, dict[str, int]]
"""Rows, what they say of each class (n, C), and notes."""
AROUND = 4.0
"""How far the length of J may be from that of even labels, and be read without a factor."""


@registry.attack
@dataclass(frozen=True)
class BatchInference(Attack):
    """Hyper-parameters.

    Attributes:
        method: ``auto`` (the filter over several epochs; of one, the closed form where it
            determines all rows, else the search), ``closed`` (the same without the search), or
            ``search`` (of the first epoch, for every batch).
        steps, lr: Adam steps of the search, and their length (the paper: 200 to 20,000; 0.05).
        starts: searches side by side, whose answers are averaged; many answers fit equally well.
    """

    method: Literal["auto", "closed", "search"] = "auto"
    steps: check.Count = 300
    lr: check.Positive = 0.05
    starts: check.Count = 8
    needs = frozenset({"parameter_gradient:spread"})
    world = {"top": (), "linear_top": False, "aggregation": "sum", "epochs": 4}
    seconds: ClassVar[float] = 1.2

    def applicable(self, facts: Facts) -> str:
        return self.explain_top(facts)

    def infer(self, view: View, rng: torch.Generator) -> Guess:
        updates = view.updates.get(view.party, ())
        if not updates:
            raise self.lacks("gradients of its own parameters", "none", "")
        kept = Spread.of(updates)
        if self.method != "search" and any(u.epoch > updates[0].epoch for _, u in kept):
            rows, shares, notes = self._filter(view, kept)
        else:
            first = [u for u in updates if u.epoch <= updates[0].epoch]
            rows, shares, notes = self._first(view, first, rng)
        scores, reading = read(-shares, rows, view.known)
        return Guess(self.target, rows, scores, notes={**notes, "reading": reading})

    def _first(self, view: View, updates: Sequence[Update], rng: torch.Generator) -> Answer:
        """The answer of one epoch."""
        rows, scores, closed = [], [], 0
        for update in updates:
            system = linear_system(view.models[view.party], view.columns[view.party], update)
            if self.method == "closed" or (self.method == "auto" and system.determined):
                found, closed = -len(update.rows) * system.solve(), closed + 1
            else:
                found = search(system, rng, self.steps, self.lr, self.starts)
            rows.append(update.rows)
            scores.append(found)
        notes = {"batches": len(rows), "closed_form": closed}
        every = torch.cat(rows)
        last = _last(every)
        return every[last], torch.cat(scores)[last], notes

    def _filter(self, view: View, kept: Sequence[tuple[int, Update]]) -> Answer:
        """The answer of several epochs, each step with how often training had begun anew."""
        made = partial(linear_system, view.models[view.party], view.columns[view.party])
        heads = {u.epoch: u for _, u in reversed(kept)}.values()
        factor = one_factor([made(u).factor_seen for u in heads])
        every = torch.cat([u.rows for _, u in kept])
        rows = every.unique()
        classes = view.facts.classes
        turn, prior, closed = torch.full_like(rows, -1), 1 / classes, 0
        basis = zero_sum_basis(classes).to(rows.device)
        found = Rows.unknown(len(rows), classes - 1, prior, basis)
        for now, u in kept:
            at = torch.searchsorted(rows, u.rows)
            anew = at[turn[at] != now]  # labels may have been released again
            turn[anew], found.mean[anew], found.variance[anew] = now, 0.0, prior
            system = made(u).scaled(-len(u.rows), factor)
            closed += system.determined
            found.see(at, system.gram, system.right, system.size, system.equations,
                      prior=prior, noise=system.noise)  # fmt: skip
        notes = {"batches": len(kept), "closed_form": closed, "epochs": len(heads)}
        return rows, found.mean @ basis.T, notes


def one_factor(seen: Sequence[float]) -> float:
    """What J is divided by, of one :attr:`System.factor_seen` of each epoch."""
    if any(1 / AROUND < f < AROUND for f in seen):
        return 1.0
    return max(sorted(seen)[len(seen) // 2], 1e-150)


def _last(rows: Tensor) -> Tensor:
    """Where each row id stands last: labels released in stages train the model several times."""
    places = {row: place for place, row in enumerate(rows.tolist())}
    return torch.tensor(list(places.values()), dtype=torch.int64)


def search(system: System, rng: torch.Generator, steps: int, lr: float, starts: int) -> Tensor:
    """Class shares (b, C) of the labels whose gradients fit best: Adam, mean over normal starts."""
    shape = (2, starts, *system.logits.shape)
    draw = torch.randn(shape, generator=rng, dtype=torch.float64).to(system.logits)
    peers, labels = draw[0].requires_grad_(), draw[1].requires_grad_()
    told = 1 / AROUND < system.factor_seen < AROUND
    optimizer = optim.Adam([peers, labels], lr=lr)
    for _ in range(steps):
        p = torch.softmax(system.logits + peers, dim=-1)
        g = (p - torch.softmax(labels, dim=-1)) / shape[2]
        loss = (system.misfit(g) if told else system.angle(g)).sum()
        peers.grad, labels.grad = torch.autograd.grad(loss, [peers, labels])
        optimizer.step()
    return torch.softmax(labels.detach(), dim=-1).mean(0)
