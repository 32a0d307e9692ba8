"""Received gradients of all epochs, epoch by epoch, and what is made of them for each row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from vflsec.core.view import Table

LEAST = 4  # an epoch with fewer rows says nothing about a class mean
WIDEST = 64  # principal components of an embedding that enter the EM's classifier
INVERSE_PENALTY = 0.1
MUCH = 16 << 20  # bytes of received gradients beyond which no second copy is kept


@dataclass(frozen=True)
class History:
    """Gradients of the same rows at several times, scaled to be compared.

    Attributes:
        rows: (n,) sample ids, ascending.
        epochs: for each epoch the places in `rows` of the gradients received, (k,) int64, and what
            gives the gradients (k, m), float64, divided by the root mean square row norm of their
            batch: an estimate of the noise's scale where that goes with the batch's largest
            gradient. They are made anew where all together would take much memory.
        sizes: for each epoch the norms (k,) of the gradients before that division.
    """

    rows: Tensor
    epochs: tuple[tuple[Tensor, Callable[[], Tensor]], ...]
    sizes: tuple[Tensor, ...]

    @classmethod
    def of(cls, table: Table) -> History:
        """The history of a table in the form ``all``."""
        rows, place = table.by_row
        batch, rms = table.batches()
        epochs, sizes = [], []
        for epoch in table.by_epoch[0]:
            at = (table.epoch == epoch).nonzero().squeeze(1)
            if len(at) < LEAST:
                continue
            at = at[torch.argsort(place[at], stable=True)]
            g = table.tensor[at].flatten(1).double()
            sizes.append(torch.linalg.vector_norm(g, dim=1))
            made = partial(_scaled, table, at, rms[batch[at]])
            if table.tensor.nbytes <= MUCH:
                made = partial(_same, made())
            epochs.append((place[at], made))
        return cls(rows, tuple(epochs), tuple(sizes))

    @classmethod
    def folded(cls, table: Table) -> History:
        """That of a table in the form ``scaled``: one epoch, the mean of all."""
        g = table.tensor.flatten(1).double()
        place = torch.arange(len(g), device=g.device)
        return cls(table.rows, ((place, partial(_same, g)),), (torch.linalg.vector_norm(g, dim=1),))

    def mean(self, how: str = "scaled") -> Tensor:
        """Each row's mean gradient (n, m) over epochs.

        Args:
            how: ``scaled`` (by the batch), ``unit`` (each row to length 1), or ``raw``.
        """
        width = self.epochs[0][1]().shape[1]
        total = torch.zeros(len(self.rows), width, dtype=torch.float64, device=self.rows.device)
        count = torch.zeros(len(self.rows), 1, dtype=torch.float64, device=self.rows.device)
        for (at, made), size in zip(self.epochs, self.sizes, strict=True):
            value = made()
            if how != "scaled":
                value = torch.nn.functional.normalize(value, dim=1)
                value = value * size.unsqueeze(1) if how == "raw" else value
            total.index_add_(0, at, value)
            count.index_add_(0, at, torch.ones(len(at), 1).to(count))
        return total / count.clamp_min(1)

    def evidence(self, share: Tensor) -> Tensor:
        """Log-likelihoods (n, C) of the classes but for a constant, given each row's present
        shares (n, C).

        In every epoch the gradients are projected on what the class means span; a row's evidence
        is that of normal distributions of one spread, the same in all directions, added over
        epochs.
        """
        out = torch.zeros_like(share)
        for at, made in self.epochs:
            out.index_add_(0, at, _evidence(made(), share[at]))
        return out


def _scaled(table: Table, at: Tensor, size: Tensor) -> Tensor:
    g = table.tensor[at].flatten(1)
    return (g / size.to(g).unsqueeze(1)).double()


def _same(made: Tensor) -> Tensor:
    return made


def _evidence(g: Tensor, p: Tensor) -> Tensor:
    """The same (k, C) of one epoch's gradients (k, m), given the shares (k, C)."""
    means = p.T @ g / p.sum(0).clamp_min(1e-9).unsqueeze(1)
    if p.shape[1] == 2:
        d = means[1:] - means[:1]
        basis = d / torch.linalg.vector_norm(d).clamp_min(1e-300)
    else:
        apart = means - p.mean(0) @ means
        basis = torch.linalg.svd(apart, full_matrices=False).Vh[: p.shape[1] - 1]
    q, centre = g @ basis.T, means @ basis.T
    far = (q.unsqueeze(1) - centre).square().sum(2)
    spread = ((p * far).sum(1).mean() / len(basis)).clamp_min(1e-12)
    return -far / (2 * spread)


def em_scores(
    history: History, z: Tensor, start: Tensor, fixed: Tensor, labels: Tensor, steps: int = 12
) -> Tensor:
    """Log-odds (n, C) of the classes, but for a constant a row, by expectation maximisation.

    Each step takes every row's shares of the classes as given, works out the class means of the
    gradients epoch by epoch (so the direction may turn from one epoch to the next) and a logistic
    regression of each share on `z`, and adds the evidence of both into new shares.

    Args:
        history: of the rows.
        z: own embeddings (n, d) of the same rows.
        start: first shares (n, C).
        fixed, labels: places (q,) of the known rows and their labels, which keep them.
        steps: how often.
    """
    z = z - z.mean(0)
    if z.shape[1] > WIDEST:
        z = z @ torch.linalg.eigh(z.T @ z).eigenvectors[:, -WIDEST:]
    z = z / z.std(0, correction=0).clamp_min(1e-9)
    known = torch.nn.functional.one_hot(labels, start.shape[1]).to(start)
    share, score = start.clone(), torch.zeros_like(start)
    share[fixed] = known
    own = range(1, 2) if start.shape[1] == 2 else range(start.shape[1])
    weights: dict[int, Tensor | None] = dict.fromkeys(own)
    for _ in range(steps):
        score = history.evidence(share)
        for c in own:
            w = weights[c] = soft_logistic(z, share[:, c], weights[c])
            told = z @ w[:-1] + w[-1]
            score[:, c] += told if len(own) == 1 else torch.nn.functional.logsigmoid(told)
        share = torch.softmax(score, dim=1)
        share[fixed] = known
    return score


def soft_logistic(
    x: Tensor, share: Tensor, start: Tensor | None = None, *, c: float = INVERSE_PENALTY,
    steps: int = 8,
) -> Tensor:  # fmt: skip
    """Logistic regression of shares (n,) in [0, 1] on rows (n, d): weights and intercept (d + 1,).

    Newton steps with halving, from `start`; `c` is the inverse strength of the L2 penalty.
    """
    design = torch.cat([x, torch.ones_like(x[:, :1])], dim=1)
    penalty = torch.full((design.shape[1],), 1 / c, dtype=x.dtype, device=x.device)
    penalty[-1] = 1e-6
    w = torch.zeros_like(penalty) if start is None else start.clone()

    def loss(s: Tensor, w: Tensor) -> Tensor:
        return (torch.nn.functional.softplus(s) - share * s).sum() + (penalty * w * w).sum() / 2

    s = design @ w
    now = loss(s, w)
    for _ in range(steps):
        p = torch.sigmoid(s)
        slope = design.T @ (p - share) + penalty * w
        curve = (design * (p * (1 - p)).unsqueeze(1)).T @ design + torch.diag(penalty)
        move = torch.linalg.solve(curve, slope)
        along, size = design @ move, 1.0
        for _ in range(20):
            new = loss(s - size * along, w - size * move)
            if new <= now:
                break
            size /= 2
        if not bool(new < now - 1e-9 * now.abs()):
            break
        w, s, now = w - size * move, s - size * along, new
    return w
