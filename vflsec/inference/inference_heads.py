"""Inference heads on own bottoms, fit to a few labelled rows in steps.

All replicas and all folds of their cross-validation are one stacked model. Where its bottoms and
heads are plain networks a step needs no graph (:mod:`vflsec.nn.dense`) and gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vflsec.core.party import group_parameters, step
from vflsec.core.rng import as_global
from vflsec.inference.completion import Fitted, Problem, assign_folds, cv_score
from vflsec.nn import optim
from vflsec.nn.dense import backward, forward
from vflsec.nn.flat_parameters import gradients_like
from vflsec.nn.models import mlp
from vflsec.nn.replicas import LEAST, Composite, Replicas, Run, draws_random, stacked
from vflsec.nn.rows import ROWS, in_pieces, spread


class Standardise(nn.Module):
    """(z - mean) / sd with constants."""

    mean: Tensor
    sd: Tensor

    def __init__(self, mean: Tensor, sd: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean.clone())
        self.register_buffer("sd", sd.clone())

    def forward(self, z: Tensor) -> Tensor:
        return (z - self.mean) / self.sd


@stacked(Standardise)
def _standardise(s: Replicas, prefix: str, module: nn.Module, x: Tensor, train: bool) -> Tensor:
    return (x - s.buffers[f"{prefix}mean"].unsqueeze(1)) / s.buffers[f"{prefix}sd"].unsqueeze(1)


class Completed(Composite):
    """An own bottom followed by an inference head."""

    def __init__(self, bottom: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.bottom, self.head = bottom, head

    def combine(self, run: Run, x: Tensor) -> Tensor:
        return run("head", run("bottom", x))


@dataclass(frozen=True)
class HeadSettings:
    """How a head, and the bottom below it, are fitted to a few rows.

    Attributes:
        hidden: hidden widths of the head; () is a linear head.
        steps, lr_bottom, lr_head, weight_decay: full-batch Adam.
    """

    hidden: Sequence[int] = ()
    steps: int = 150
    lr_bottom: float = 1e-3
    lr_head: float = 1e-2
    weight_decay: float = 1e-3


def fit_networks(
    variant: str,
    bottoms: Sequence[nn.Module],
    problem: Problem,
    rngs: Sequence[torch.Generator],
    settings: HeadSettings,
    before: Sequence[Standardise] | None = None,
) -> Fitted:
    """Fit head o bottom to the known rows, for each replica and each fold, as one stacked model.

    Args:
        variant: name of the result.
        bottoms: R starting bottoms (``nn.Identity()`` for a frozen one whose input is z).
        problem: rows that are known, and rows to answer.
        rngs: R generators for the heads' initial weights.
        settings: of the head and its training.
        before: of :func:`make_fronts` of the bottoms' embeddings of the targets, if known already.

    Returns:
        The variant of all R. Known and target counts must be equal across replicas.
    """
    inputs, knowns, targets, classes = problem
    folds = [assign_folds(k.labels) for k in knowns]
    count = int(max(int(f.max()) for f in folds)) + 1
    if before is None:
        pairs = zip(bottoms, targets, strict=True)
        before = make_fronts([in_pieces(bottom.eval(), x) for bottom, x in pairs])
    modules = _stacked(bottoms, before, rngs, (*settings.hidden, classes), count + 1)

    def trained(of: Sequence[int], left_out: Sequence[int]) -> tuple[Replicas, Tensor]:
        """A stack fitted to the known rows of these replicas, in turn without each of these folds
        (`count` leaves out none), and these rows.
        """
        device, dtype = inputs[0].device, inputs[0].dtype
        stack = Replicas(
            [modules[r * (count + 1) + c] for r in of for c in left_out],
            device=device, dtype=dtype,
        )  # fmt: skip
        x = torch.stack([inputs[r] for r in of for _ in left_out])
        y = torch.stack([knowns[r].labels for r in of for _ in left_out]).to(device)
        weight = torch.stack([folds[r] != c for r in of for c in left_out]).to(device, dtype)
        heads_only = [p for k, p in stack.params.items() if k.startswith("head.")]
        body = [p for k, p in stack.params.items() if not k.startswith("head.")]
        optimizer = optim.Adam(
            group_parameters(heads_only, lr=settings.lr_head)
            + group_parameters(body, lr=settings.lr_bottom),
            weight_decay=settings.weight_decay,
        )
        share = weight / weight.sum(1, keepdim=True)
        slopes = _slopes(stack, x, y, share, draws_random(modules[0]))
        for _ in range(settings.steps):
            step(optimizer, stack.parameters(), slopes())
        return stack, x

    held = np.empty(0)
    if count:
        stack, x = trained(range(len(knowns)), range(count))
        with torch.no_grad():
            held = torch.log_softmax(stack(x, train=False), dim=-1).double().cpu().numpy()

    def answer(replicas: Sequence[int]) -> list[NDArray[np.float64]]:
        beside = list(replicas) * LEAST if len(replicas) < LEAST else replicas
        whole, _ = trained(beside, [count])
        return compute_answers([whole], [targets[r] for r in replicas], range(len(replicas)))

    return make_fitted(variant, problem, folds, held, answer)


def _slopes(
    stack: Replicas, x: Tensor, y: Tensor, share: Tensor, random: bool
) -> Callable[[], Sequence[Tensor]]:
    """Gradients by the parameters of R :class:`Completed` of what the known rows cost, when called.

    Args:
        stack: R of them.
        x: (R, q, ...) inputs of the known rows.
        y: (R, q) their classes.
        share: (R, q) what each counts.
        random: whether the bottom draws numbers in training, which it then must not do.
    """
    params, at = stack.parameters(), y.unsqueeze(2)
    bottom, front, head = (stack.sub(name) for name in ("bottom", "head.0", "head.1"))
    frozen = type(bottom.template) is nn.Identity
    if head.plain is None or not (frozen or bottom.plain):
        batch = random or any(isinstance(m, nn.BatchNorm1d) for m in stack.template.modules())

        def by_graph() -> Sequence[Tensor]:
            log_p = torch.log_softmax(stack(x, train=not batch), dim=-1)
            loss = -(share * log_p.gather(2, at).squeeze(2)).sum()
            return torch.autograd.grad(loss, params)

        return by_graph

    mean, sd = (front.buffers[k].unsqueeze(1) for k in ("mean", "sd"))
    down = x.new_zeros(*y.shape, head.plain[-1].weight.shape[1])  # of every step, by log shares
    down.scatter_(2, at, share.neg().unsqueeze(2))
    layers, below = head.plain, [] if frozen else bottom.plain or []
    rows = bottom.flattened(x) if below else (x - mean) / sd
    made = gradients_like(params)  # written anew in every step
    of = {id(p): slope for p, slope in zip(params, made, strict=True)}
    into, under = ([(of.get(id(w)), of.get(id(b))) for w, b, *_ in some]
                   for some in (layers, below))  # fmt: skip

    @torch.no_grad()
    def by_hand() -> Sequence[Tensor]:
        low = forward(below, rows) if below else []
        h = (low[-1] - mean) / sd if low else rows
        outs = forward(layers, h)
        log_p = torch.log_softmax(outs[-1], dim=-1)
        slope = torch._log_softmax_backward_data(down, log_p, -1, log_p.dtype)
        back = backward(layers, h, outs, slope, into, down=bool(low))
        if back is not None:
            backward(below, rows, low, back / sd, under, down=False)
        return made

    return by_hand


def make_fronts(embedded: Sequence[Tensor]) -> list[Standardise]:
    """What standardises embeddings (n, d) each."""
    pairs = [spread(z) for z in embedded]
    return [Standardise(mean, sd.clamp_min(1e-6)) for sd, mean in pairs]


def _stacked(
    bottoms: Sequence[nn.Module], before: Sequence[Standardise], rngs: Sequence[torch.Generator],
    widths: Sequence[int], copies: int,
) -> list[nn.Module]:  # fmt: skip
    """Each bottom with `copies` fresh heads of these widths behind standardised embeddings."""
    modules: list[nn.Module] = []
    for bottom, front, g in zip(bottoms, before, rngs, strict=True):
        with as_global(g):
            heads = [mlp([len(front.mean), *widths]) for _ in range(copies)]
        modules += [Completed(bottom.eval(), nn.Sequential(front, h)) for h in heads]
    return modules


def make_fitted(
    variant: str, problem: Problem, folds: Sequence[Tensor], held: NDArray[np.float64],
    answer: Callable[[Sequence[int]], Sequence[NDArray[np.float64]]],
) -> Fitted:  # fmt: skip
    """A variant with the score of each replica that its folds give.

    Args:
        variant, problem, answer: of the variant.
        folds: R of :func:`assign_folds`.
        held: log class shares (R * k, q, C) of the known rows, of each replica one after another
            by models that left out its fold 0, 1, ...
    """
    cv, every = [], []
    for r, (known, fold) in enumerate(zip(problem.knowns, folds, strict=True)):
        score, mine = 0.5 if problem.classes == 2 else 1.0 / problem.classes, None
        if int(fold.max()) >= 1:
            f = r * (len(held) // len(folds)) + fold.cpu().numpy()
            mine = held[f, np.arange(len(f))]
            score = cv_score(mine, known.labels.cpu().numpy())
        cv.append(score)
        every.append(mine)
    return Fitted(variant, cv, every, [None] * len(cv), answer)


def compute_answers(
    parts: Sequence[Replicas], targets: Sequence[Tensor], replicas: Sequence[int]
) -> list[NDArray[np.float64]]:
    """Log class shares (n, C) of the targets of each of the given replicas; a lone one stands
    beside a twin.

    Args:
        parts: stacks of R that make logits, one after another.
        targets: R tensors (n, ...).
        replicas: which.
    """
    beside = list(replicas) * LEAST if len(replicas) < LEAST else list(replicas)
    which = torch.tensor(beside, dtype=torch.int64, device=targets[0].device)
    some = [p.take(which) for p in parts]
    made = []
    with torch.no_grad():
        for pieces in zip(*(targets[r].split(ROWS) for r in beside), strict=True):
            x = torch.stack(pieces)
            for stack in some:
                x = stack(x, train=False)
            made.append(torch.log_softmax(x, dim=-1))
    return list(torch.cat(made, dim=1)[: len(replicas)].double().cpu().numpy())
