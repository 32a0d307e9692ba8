"""Limits that own columns or luck leave little room for, foretold before anything is trained."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vflsec.audit.exposed import EXPOSED, LUCKY, count_nameable
from vflsec.audit.gate import MIN_ROWS, Gate
from vflsec.audit.metrics import ERROR_REMOVED, find_reach
from vflsec.audit.rounding import show_exact
from vflsec.audit.truth_join import pick_one_each
from vflsec.core.rng import numpy_generator
from vflsec.core.task import Task
from vflsec.data.prepare import make_task
from vflsec.data.source import Source
from vflsec.errors import VflsecError
from vflsec.plan.values import DataInfo

_MOST_ROWS, _MOST_COLUMNS, _FOLDS = 4000, 200, 5
"""What the quick look at own columns takes at most, and how often it is cross-validated."""

Floats = NDArray[np.float64]


def warn_of_room(
    gates: Iterable[Gate], info: DataInfo, source: Source, sample: int = 0
) -> list[str]:
    """Which gates on labels an audit may be unable to decide, and why, a sentence each.

    Args:
        gates: of the audit.
        info, source: a data set.
        sample: rows that attacks guess, 0 for all.
    """
    here = [g for g in gates if g.target in ("*", "label") and g.dataset in ("*", info.name)]
    asked = [g for g in here if g.limits_leaks]
    if not asked or info.classes < 2 or info.labels or not info.labelled:
        return []
    try:
        return list(dict.fromkeys(_warn(asked, info, source, sample)))
    except VflsecError:
        return []  # training says why


def _prepare(source: Source, split: Mapping[str, Any]) -> Task | None:
    """The rows as they are trained on; None where there are too many for a quick look."""
    return make_task(source, 0, **split) if len(source.y) <= 25 * _MOST_ROWS else None


def rank_by_own_columns(task: Task | None) -> dict[str, float]:
    """AUC of each passive party's own columns, where labels are of two classes."""
    if task is None or task.classes != 2:
        return {}
    rows, ranks = task.sets["labelled"][:_MOST_ROWS], {}
    for party in task.parties[1:]:
        schema = task.schema[party]
        x = schema.design(task.x[party][rows]).double().numpy() if not schema.empty else None
        if x is not None and x.shape[1] <= _MOST_COLUMNS:
            ranks[party] = _cross_validate(x, task.y[rows].numpy())
    return ranks


def leaves_no_room(source: Source, limit: float) -> bool:
    """Whether own columns of a passive party leave less than a limit of AUC to gain."""
    try:
        ranks = rank_by_own_columns(_prepare(source, {}))
    except VflsecError:
        return False  # training says why
    return any(find_reach("auc")[1] - auc < limit for auc in ranks.values())


def pick_scored(source: Source, rows: NDArray[np.int64], sample: int = 0) -> NDArray[np.int64]:
    """Of `sample` of these rows (0 for all), drawn, one of each person whom they are of."""
    if 0 < sample < len(rows):
        rows = numpy_generator(0, "sample").permutation(rows)[:sample]
    people = None if source.group is None else source.group[rows]
    return rows[pick_one_each(people, rows)]


def _warn(
    asked: Iterable[Gate], info: DataInfo, source: Source, sample: int
) -> Iterator[str]:  # fmt: skip
    task = _prepare(source, info.split)
    ranks = rank_by_own_columns(task)
    for gate in asked:
        if gate.of in EXPOSED:
            rows = np.flatnonzero(source.y >= 0) if task is None else task.sets["labelled"].numpy()
            yield from _warn_of_luck(gate, info, source.y[pick_scored(source, rows, sample)])
        elif gate.of in ("", "auc"):
            yield from _warn_of_own_columns(gate, info, ranks)


def _warn_of_luck(gate: Gate, info: DataInfo, y: NDArray[np.int64]) -> Iterator[str]:
    people, luck = count_nameable(y)
    base, factor = LUCKY
    if people >= MIN_ROWS and gate.threshold * people >= base + factor * luck:
        return
    yield (
        f"{info.name}: the gate '{gate.label}' allows {show_exact(gate.threshold)} of {people} "
        f"rows that are guessed, and luck alone names about {luck:.1f}. Have more or raise the "
        "limit."
    )


def _warn_of_own_columns(gate: Gate, info: DataInfo, ranks: Mapping[str, float]) -> Iterator[str]:
    for party, auc in ranks.items():
        room = find_reach("auc")[1] - auc
        if room < gate.threshold and gate.adversary in ("*", party):
            yield (
                f"{info.name}: {party} reaches AUC {auc:.2f} from its own columns alone "
                f"(cross-validated). No attack can gain {show_exact(gate.threshold)} more, so the "
                f"gate '{gate.label}' would be judged by exposed rows. Set its limit for these, "
                f'of = "exposed", or for the share of the remaining error, of = "{ERROR_REMOVED}".'
            )


def _cross_validate(x: Floats, y: NDArray[Any]) -> float:
    """AUC of a ridge regression on two classes (n,), on rows that it was not fitted on."""
    x = np.column_stack([x, np.ones(len(x))])
    said = np.zeros(len(y))
    fold = np.arange(len(y)) % _FOLDS
    for k in range(_FOLDS):
        fit = fold != k
        gram = x[fit].T @ x[fit] + np.eye(x.shape[1])
        said[~fit] = x[~fit] @ np.linalg.solve(gram, x[fit].T @ (2.0 * y[fit] - 1))
    ranks = np.argsort(np.argsort(said))
    up = y == 1
    many = int(up.sum())
    if not 0 < many < len(y):
        return 0.5
    return float((ranks[up].sum() - many * (many - 1) / 2) / (many * (len(y) - many)))
