"""Fitting numbers to vectors from a few rows: shared by feature attacks and their controls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch
from torch import Tensor

from vflsec.core.party import step
from vflsec.core.rng import as_global
from vflsec.nn import optim
from vflsec.nn.dense import backward, forward
from vflsec.nn.flat_parameters import gradients_like
from vflsec.nn.models import mlp
from vflsec.nn.replicas import Replicas
from vflsec.nn.rows import ROWS, in_pieces, spread, sums

ALPHAS = (0.1, 1.0, 10.0, 100.0, 1000.0)
FOLDS = 5
WHOLE, ONE = 1.0, 1.25
"""Standard errors of its gain below which a fit does not count: of the one that is best on the
whole against the mean of every column, and of the best of many for one column against that."""
WIDE = 4
"""Columns for each known row above which a network answers in coordinates of the rows."""
DECAY = 1e-3
"""Weight decay of networks."""


@dataclass(frozen=True)
class Regression:
    """A fitted variant.

    Attributes:
        variant: its name.
        cv: cross-validated R^2 on the known rows.
        made: its answer (n, d), or what makes it: most fits are never asked.
        held: its answers for the known rows (q, d) from fits without them; None if not told.
    """

    variant: str
    cv: float
    made: Tensor | Callable[[], Tensor]
    held: Tensor | None = None

    @cached_property
    def values(self) -> Tensor:
        """Its answer (n, d)."""
        return self.made() if callable(self.made) else self.made


def by_column(guess: Tensor, truth: Tensor) -> Tensor:
    """R^2 (d,) of each column of (n, d); 0 of one that does not vary."""
    truth = truth.double()
    spread, off = truth.var(0, correction=0), ((guess.double() - truth) ** 2).mean(0)
    return torch.where(spread > 0, 1 - off / spread.clamp_min(1e-300), torch.zeros_like(spread))


def _added(x: Tensor, columns: Tensor | None) -> Tensor:
    """Numbers (..., d) added up by column, (..., k)."""
    if columns is None:
        return x
    return sums(x.movedim(-1, 0), columns, int(columns.max()) + 1).movedim(0, -1)


def r_squared(guess: Tensor, truth: Tensor, columns: Tensor | None = None) -> float:
    """1 - squared error / variance, mean over columns that vary; 0 if none does.

    `columns` (d,) says of which column each number is, where one may have several (the codes of a
    category); None where each has one.
    """
    spread = _added(truth.var(0, correction=0), columns)
    use = spread > 1e-12
    if not bool(use.any()):
        return 0.0
    off = _added(((guess - truth) ** 2).mean(0), columns)
    return float((1 - off[use] / spread[use]).mean())


def choose_best(
    fits: Sequence[Regression], y: Tensor, columns: Tensor | None = None
) -> tuple[Regression, list[str]]:
    """What cross-validation finds best on the whole, and for a column what it finds better there.

    With f the fit of the largest R^2 and f_j the nearest one to number j, which may be its mean,
        whole = mean + s (f - mean),    answer_j = whole_j + s_j (f_j - whole_j),
        s = max(0, 1 - (c / t)^2),
    t the gain in squared error on known rows in standard errors, over the means and over the
    whole, c :data:`WHOLE` or :data:`ONE`. So one column that is told is not lost among many that
    nobody can tell, and what is best by chance counts little. Answers stay as near to the known
    values as these are to each other: a line through few rows leads far out on long tails.

    Source: the positive part of James and Stein's estimator, see Efron and Morris, "Stein's
    estimation rule and its competitors", Journal of the American Statistical Association 1973.

    Args:
        fits: of the same rows and columns, with what they answer for known rows.
        y: the known values (q, d).
        columns: as for :func:`r_squared`.

    Returns:
        the answer, and the name of the fit that each number is answered by.
    """
    base, truth = max(fits, key=lambda f: f.cv), y.double()
    if base.held is None or len(y) < 2:
        return replace(base, variant="chosen"), [base.variant] * y.shape[1]
    mean, told = truth.mean(0), [f for f in fits if f.held is not None]
    spread = _added(truth.var(0, correction=0), columns)
    better = _added((truth - mean) ** 2 - (truth - base.held) ** 2, columns)
    better = better[:, spread > 0] / spread[spread > 0]
    whole = _as_far_as_sure(better.mean(1, keepdim=True), WHOLE)
    held, values = (mean + whole * (x.double() - mean) for x in (base.held, base.values))
    told.append(Regression("mean", 0.0, mean.expand_as(values), mean.expand_as(truth)))
    nearest = torch.stack([(truth - f.held) ** 2 for f in told if f.held is not None])
    best = nearest.mean(1).argmin(0)
    every = torch.arange(y.shape[1], device=y.device)
    share = _as_far_as_sure((truth - held) ** 2 - nearest[best, :, every].T, ONE)
    names = [base.variant] * y.shape[1]
    for j in (share > 0).nonzero().squeeze(1).tolist():
        fit = told[int(best[j])]
        assert fit.held is not None
        held[:, j] += share[j] * (fit.held[:, j] - held[:, j])
        values[:, j] += share[j] * (fit.values[:, j] - values[:, j])
        names[j] = fit.variant
    least, most = truth.amin(0), truth.amax(0)
    values = values.clamp(2 * least - most, 2 * most - least)
    return Regression("chosen", r_squared(held, truth, columns), values, held), names


def of_columns(fits: Sequence[Regression], y: Tensor, columns: Tensor) -> list[Regression]:
    """The fits with the R^2 of known values (q, d) by column, as for :func:`r_squared`."""
    return [
        f if f.held is None else replace(f, cv=r_squared(f.held.double(), y.double(), columns))
        for f in fits
    ]


def _as_far_as_sure(gain: Tensor, least: float) -> Tensor:
    """Shares (d,) of gains (q, d) by row: 0 up to `least` standard errors, 1 if far above."""
    mean, error = gain.mean(0), gain.std(0) / len(gain) ** 0.5
    share = 1 - (least * error / mean.clamp_min(1e-300)) ** 2
    return torch.where(mean > 0, share.clamp_min(0), torch.zeros_like(share))


def assign_folds(n: int) -> Tensor:
    """Fold of each of `n` known rows, (n,) int64."""
    return torch.arange(n) % min(FOLDS, n)


Asked = Tensor | Callable[[], Tensor]
"""Rows to answer (n, p), or what makes them anew whenever they are looked at."""
_Answer = Callable[[Tensor], Tensor]


def _standardise(*parts: Tensor) -> _Answer:
    """What standardises rows as those of all parts (n, p)."""
    sd, mean = spread(*parts)
    sd = torch.where(sd > 1e-9, sd, torch.ones_like(sd))
    return lambda rows: (rows - mean) / sd


def _ridge(x: Tensor, y: Tensor, alphas: Sequence[float]) -> list[_Answer]:
    """What answers (n, d) rows (n, p) under each penalty; all else is computed once.

    Of more inputs than rows, slopes are sought among combinations of rows, where they lie.
    """
    mean_x, mean_y = x.mean(0), y.mean(0)
    centred, told, wide = x - mean_x, y - mean_y, x.shape[1] > len(x)
    gram, told = (centred @ centred.T, told) if wide else (centred.T @ centred, centred.T @ told)
    eye = torch.eye(len(gram), dtype=x.dtype, device=x.device)
    systems = torch.stack([gram + alpha * eye for alpha in alphas])
    slopes = torch.linalg.solve(systems, told.expand(len(alphas), -1, -1))

    def answer(slope: Tensor, rows: Tensor) -> Tensor:
        asked = rows - mean_x
        return (asked @ centred.T if wide else asked) @ slope + mean_y

    return [partial(answer, slope) for slope in slopes]


def fit_ridge(variant: str, x: Tensor, y: Tensor, targets: Asked) -> Regression:
    """Ridge regression on standardised columns, its penalty chosen by cross-validation.

    Args:
        variant: name of the result.
        x: inputs of the known rows (q, p).
        y: their values (q, d).
        targets: inputs of the rows to answer (n, p).
    """
    if len(x) < 4:  # too few to choose by
        fit = fit_ridges(variant, x, y, targets, ALPHAS[-1:])[0]
        return replace(fit, cv=-torch.inf, held=None)
    return max(fit_ridges(variant, x, y, targets), key=lambda f: f.cv)


def fit_ridges(
    variant: str, x: Tensor, y: Tensor, targets: Asked, alphas: Sequence[float] = ALPHAS
) -> list[Regression]:
    """The same under every penalty; at least two known rows."""

    def asked() -> Tensor:
        return targets() if callable(targets) else targets

    standard = _standardise(x.double(), asked())
    x, y = standard(x.double()), y.double()
    fold = assign_folds(len(x)).to(x.device)
    held = y.new_empty((len(alphas), *y.shape))
    for f in range(int(fold.max()) + 1):
        out = fold == f
        for of, told in zip(held, _ridge(x[~out], y[~out], alphas), strict=True):
            of[out] = told(x[out])

    def answer(told: _Answer) -> Tensor:
        return in_pieces(lambda rows: told(standard(rows.double())), asked())

    return [
        Regression(variant, r_squared(of, y), partial(answer, told), of)
        for of, told in zip(held, _ridge(x, y, alphas), strict=True)
    ]


def by_entry(
    variant: str, x: Tensor, y: Tensor, targets: Tensor | Callable[[Tensor], Tensor]
) -> Regression:
    """Each value by a line through the one input that is correlated with it most.

    What a single entry tells plainly, a regression on as many inputs as rows does not see. Inputs
    and outputs as for :func:`fit_ridge`, of two known rows or more; `targets` may give the inputs
    (n, d) that are named by their places (d,) alone.
    """
    x, y = x.double(), y.double()
    fold, held = assign_folds(len(x)).to(x.device), torch.empty_like(y)
    for f in range(int(fold.max()) + 1):
        out = fold == f
        at, line = _line(x[~out], y[~out])
        held[out] = line(x[out][:, at])
    at, line = _line(x, y)

    def answer() -> Tensor:
        return line((targets(at) if callable(targets) else targets[:, at]).double())

    return Regression(variant, r_squared(held, y), answer, held)


def _line(x: Tensor, y: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Which column of x (q, p) each of y (q, d) goes with most, (d,), and values (n, d) by it."""
    middle, mean = x.mean(0), y.mean(0)
    centred = x - middle
    size = centred.square().sum(0).clamp_min(1e-24)
    both = centred.T @ (y - mean)  # (p, d)
    at = both.abs().div_(size.sqrt().unsqueeze(1)).max(0).indices  # argmax takes twice as long
    slope = both.gather(0, at.unsqueeze(0)) / size[at]
    return at, lambda told: (told - middle[at]) * slope + mean


def _turned(y: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Values (q, d) with d > q in q coordinates (q, q), and the way back (q, d).

    No column is lost: q rows span at most q directions, along which squared errors are those of the
    columns but for a factor. The directions are drawn among those of the rows, which spreads what
    varies most over all of them. A coordinate is twice as large as a column was: a network is then
    further from repeating its rows after as many steps, and answered better in drawn worlds.
    """
    q, d = y.shape
    mixed = torch.linalg.qr(torch.randn(q, q, generator=rng, dtype=torch.float64))[0].to(y.device)
    basis = torch.linalg.qr(y.double().T)[0] @ mixed  # (d, q)
    size = (d / q) ** 0.5 / 2
    return (y.double() @ basis / size).to(y.dtype), (basis.T * size).to(y.dtype)


def fit_regressors(
    variant: str,
    inputs: Sequence[Tensor],
    values: Sequence[Tensor],
    targets: Sequence[Tensor],
    rngs: Sequence[torch.Generator],
    *,
    hidden: Sequence[int] = (64,),
    steps: int = 300,
    lr: float = 3e-3,
) -> list[Regression]:
    """Fit networks by squared error, for each replica and each fold, as one stacked model.

    Replicas that are alike, as own columns of one seed are under every strength, are fitted once.
    Values of more than :data:`WIDE` columns a known row are fitted in as many coordinates as there
    are rows, which costs as much less.

    Args:
        variant: name of the results.
        inputs, values, targets: R tensors (q, p), (q, d), (n, p).
        rngs: R generators for initial weights and, of wide values, the coordinates.
        hidden: widths of the hidden layers.
        steps, lr: of full-batch Adam, with a weight decay of :data:`DECAY`.
    """
    states = [g.get_state() for g in rngs]
    every = list(zip(inputs, values, targets, states, strict=True))
    like = [next(k for k, of in enumerate(every) if all(map(torch.equal, of, it))) for it in every]
    some = sorted(set(like))
    fits = _networks(
        variant, [inputs[k] for k in some], [values[k] for k in some],
        [targets[k] for k in some], [rngs[k] for k in some], hidden, steps, lr,
    )  # fmt: skip
    for r, k in enumerate(like):
        rngs[r].set_state(rngs[k].get_state())
    return [fits[some.index(k)] for k in like]


def _networks(
    variant: str, inputs: Sequence[Tensor], values: Sequence[Tensor], targets: Sequence[Tensor],
    rngs: Sequence[torch.Generator], hidden: Sequence[int], steps: int, lr: float,
) -> list[Regression]:  # fmt: skip
    """The same of replicas that differ."""
    told, backs = list(values), []
    if values[0].shape[1] > WIDE * len(values[0]):
        turned = [_turned(v, g) for v, g in zip(values, rngs, strict=True)]
        told, backs = [t for t, _ in turned], [back for _, back in turned]
    standard = [_standardise(*of) for of in zip(inputs, targets, strict=True)]
    known = [of(mine) for of, mine in zip(standard, inputs, strict=True)]
    fold = assign_folds(len(inputs[0])).to(inputs[0].device)
    copies = int(fold.max()) + 2
    widths = [inputs[0].shape[1], *hidden, told[0].shape[1]]
    modules = []
    for g in rngs:
        with as_global(g):
            modules += [mlp(widths) for _ in range(copies)]
    stack = Replicas(modules, device=inputs[0].device, dtype=inputs[0].dtype)
    optimizer = optim.Adam(stack.parameters(), lr=lr, weight_decay=DECAY, fused=True)
    x = torch.stack(known).repeat_interleave(copies, 0)
    y = torch.stack([v.to(x.dtype) for v in told]).repeat_interleave(copies, 0)
    weight = torch.stack([(fold != c).to(x.dtype) for c in range(copies)])
    weight = (weight / weight.sum(1, keepdim=True)).repeat(len(rngs), 1).unsqueeze(2)
    layers, params, twice = stack.plain or [], stack.parameters(), 2 * weight
    slopes = gradients_like(params)  # of the weighted squared error, anew in every step
    into = list(zip(slopes[::2], slopes[1::2], strict=True))
    with torch.no_grad():
        for _ in range(steps):
            outs = forward(layers, x)
            backward(layers, x, outs, outs[-1].sub_(y).mul_(twice), into, down=False)
            step(optimizer, params, slopes)
        held = stack(x, train=False)
        last = torch.arange(copies - 1, stack.count, copies, device=x.device)
        whole, pieces = stack.take(last), zip(*(x.split(ROWS) for x in targets), strict=True)
        asked = (torch.stack([s(x) for s, x in zip(standard, of, strict=True)]) for of in pieces)
        answer = torch.cat([whole(x, train=False) for x in asked], dim=1)
    rows = torch.arange(len(fold), device=x.device)
    out = []
    for r, truth in enumerate(values):
        mine, given = held[r * copies + fold, rows].double(), answer[r].double()
        if backs:
            mine, given = (t @ backs[r].double() for t in (mine, given))
        out.append(Regression(variant, r_squared(mine, truth.double()), given, mine))
    return out
