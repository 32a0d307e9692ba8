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
Differs from the paper: what reaches a party may carry a factor that it is not told (a learning
rate, the sum of a loss for its mean, mixed precision). Where the root mean square length of J over
even labels, with p_i = softmax(z_i), is more than 4 times off, the search matches the direction of
J alone, which is to fit one positive factor for each batch. A factor between that is not seen.

Attacker: any passive party, also under encryption of all messages; no labelled row; any number of
classes. Needs its own gradients and weights in the first epoch.
Does not apply: behind a trainable top model (rows are then solved for, but not their labels).
Known failure cases: batches far larger than the number of parameters; noise on gradients;
dropout, whose masks are not recorded.

Source: Zou, Liu, Kang, Liu, He, Yi, Yang, Zhang, "Defending batch-level label inference and
replacement attacks in vertical federated learning", IEEE Transactions on Big Data (2022),
arXiv:2112.05409, section 4. The closed form is ours.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from vflsec import check, registry
from vflsec.attack import Attack
from vflsec.errors import ThreatModelError
from vflsec.guess import Guess
from vflsec.nn import optim
from vflsec.view import Facts, Update, View

ALIASES = ("bli", "batch_label_inference")
FAMILY = "Labels from batch averages, also under encryption"
ITERATIONS = 20
AROUND = 4.0
"""How far the length of J may be from that of even labels, and be read without a factor."""
CUTOFF = 1e-10
"""Eigenvalues below this share of the largest count as zero: their directions are undetermined."""


@registry.attack
@dataclass(frozen=True)
class BatchInference(Attack):
    """Hyper-parameters.

    Attributes:
        method: ``auto`` (closed form where it determines all rows, else the search), or one of
            ``closed`` and ``search`` for every batch.
        steps, lr: Adam steps of the search, and their length (the paper: 200 to 20,000; 0.05).
        starts: searches side by side, whose answers are averaged; many answers fit equally well.
    """

    method: Literal["auto", "closed", "search"] = "auto"
    steps: int = 300
    lr: float = 0.05
    starts: int = 8
    needs = frozenset({"parameter_gradient"})
    world: ClassVar[dict[str, Any]] = {"top": (), "linear_top": False, "aggregation": "sum"}
    seconds: ClassVar[float] = 1.2

    def __post_init__(self) -> None:
        check.one_of("batch_inference.method", self.method, ("auto", "closed", "search"))
        check.integer("batch_inference.steps", self.steps)
        check.integer("batch_inference.starts", self.starts)
        check.positive("batch_inference.lr", self.lr)

    def applicable(self, facts: Facts) -> str:
        if facts.top or facts.aggregation == "concat":
            return (
                "batch_inference reads labels off the gradient of summed logits; here a trainable "
                "top model stands in between. It applies with top = [], linear_top = false and "
                'aggregation = "sum".'
            )
        return ""

    def infer(self, view: View, rng: torch.Generator) -> Guess:
        updates = view.updates.get(view.party, ())
        if not updates:
            raise ThreatModelError(
                f"batch_inference needs the gradients of {view.party}'s own parameters; none were "
                "recorded in this phase."
            )
        rows, scores, closed = [], [], 0
        for update in updates:
            if update.epoch > updates[0].epoch:
                continue
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
        return Guess(self.target, every[last], torch.cat(scores)[last], notes=notes)


def _last(rows: Tensor) -> Tensor:
    """Where each row id stands last: labels released in stages train the model several times."""
    places = {row: place for place, row in enumerate(rows.tolist())}
    return torch.tensor(list(places.values()), dtype=torch.int64)


@dataclass(frozen=True)
class System:
    """J = A g for one batch, by its normal equations, over gradient rows that add up to zero.

    Attributes:
        gram: A^T A, (b (C-1), b (C-1)).
        right: A^T J, (b (C-1),).
        basis: (C, C-1) orthonormal, of the vectors that add up to zero.
        logits: own z (b, C).
        size: squared length of J.
        equations: length of J.
    """

    gram: Tensor
    right: Tensor
    basis: Tensor
    logits: Tensor
    size: float
    equations: int

    @cached_property
    def factor(self) -> Tensor | None:
        """Cholesky factor of the Gram matrix; None if that is singular, within CUTOFF.

        Its extreme eigenvalues are found by iteration, which takes a small part of the time of an
        eigendecomposition.
        """
        if self.equations < len(self.gram):
            return None
        factor, failed = torch.linalg.cholesky_ex(self.gram)
        if int(failed):
            return None
        n = len(self.gram)
        start = torch.cos(torch.arange(n, dtype=self.gram.dtype, device=self.gram.device))
        large = small = start / start.norm()
        for _ in range(ITERATIONS):
            large = self.gram @ large
            large = large / large.norm()
            small = torch.cholesky_solve(small.unsqueeze(1), factor).squeeze(1)
            small = small / small.norm()
        least, most = (float(v @ (self.gram @ v)) for v in (small, large))
        return factor if least > CUTOFF * most else None

    @property
    def determined(self) -> bool:
        """True if every row is determined."""
        return self.factor is not None

    def solve(self) -> Tensor:
        """The least-squares gradient rows of smallest norm, (b, C)."""
        if self.factor is not None:
            flat = torch.cholesky_solve(self.right.unsqueeze(1), self.factor).squeeze(1)
        else:
            values, vectors = torch.linalg.eigh(self.gram)
            use = values > CUTOFF * values[-1]
            inverse = torch.where(use, 1 / values, torch.zeros_like(values))
            flat = vectors @ (inverse * (vectors.T @ self.right))
        return flat.reshape(len(self.logits), -1) @ self.basis.T

    def misfit(self, g: Tensor) -> Tensor:
        """||A g - J||^2 / ||J||^2 of gradient rows (..., b, C) that add up to zero."""
        flat = (g @ self.basis).flatten(-2)
        value = ((flat @ self.gram) * flat).sum(-1) - 2 * flat @ self.right + self.size
        return value / max(self.size, 1e-300)

    @property
    def factor_seen(self) -> float:
        """||J|| over its root mean square for even labels and p = softmax of the own logits."""
        b, classes = self.logits.shape
        mean = ((torch.softmax(self.logits, dim=-1) - 1 / classes) @ self.basis).flatten()
        even = float(mean @ self.gram @ mean + self.gram.trace() / classes) / b**2
        return math.sqrt(self.size / max(even, 1e-300))

    def angle(self, g: Tensor) -> Tensor:
        """1 - the cosine of the angle between A g and J, of rows (..., b, C) that add up to 0."""
        flat = (g @ self.basis).flatten(-2)
        square = ((flat @ self.gram) * flat).sum(-1).clamp_min(1e-300)
        return 1 - (flat @ self.right) / (square * max(self.size, 1e-300)).sqrt()


def linear_system(modules: Mapping[str, nn.Module], columns: Tensor, update: Update) -> System:
    """The equations that one recorded step gives.

    Args:
        modules: own modules; ``bottom`` must be what maps columns to logits.
        columns: own rows by sample id.
        update: the recorded step, with weights before it.
    """
    if "bottom" not in modules:
        raise ThreatModelError("batch_inference needs a model of its own to differentiate.")
    module = modules["bottom"]
    names = [k for k in update.gradients if k.startswith("bottom.")]
    weights = {k.removeprefix("bottom."): update.weights[k].double() for k in names}
    fixed = {
        k: v.double() if v.is_floating_point() else v
        for k, v in {**dict(module.named_parameters()), **dict(module.named_buffers())}.items()
        if k not in weights
    }
    x = columns[update.rows].double()

    def entry(theta: dict[str, Tensor], row: Tensor, direction: Tensor) -> Tensor:
        return (
            functional_call(module, {**fixed, **theta}, (row.unsqueeze(0),))[0] * direction
        ).sum()

    with torch.no_grad():
        logits = functional_call(module, {**fixed, **weights}, (x,))
    basis = zero_sum_basis(logits.shape[1]).to(logits)
    each = vmap(vmap(grad(entry), (None, None, 0)), (None, 0, None))(weights, x, basis.T)
    a = torch.cat([v.detach().flatten(2) for v in each.values()], dim=2).flatten(0, 1)
    j = torch.cat([update.gradients[f"bottom.{k}"].double().flatten() for k in each])
    return System(a @ a.T, a @ j, basis, logits, float(j @ j), len(j))


def zero_sum_basis(classes: int) -> Tensor:
    """(C, C-1) orthonormal columns that add up to zero (Helmert)."""
    q = torch.zeros(classes, classes - 1, dtype=torch.float64)
    for k in range(1, classes):
        q[:k, k - 1] = 1.0
        q[k, k - 1] = -k
        q[:, k - 1] /= (k * (k + 1)) ** 0.5
    return q


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
