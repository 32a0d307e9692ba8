"""Privacy against utility over a grid of strengths: CAP of a curve, DCS of its points; and
utility against a baseline: relative improvement.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from vflsec.audit import cap_score
from vflsec.audit.point import UNDEFENDED, Identity, Point, Training
from vflsec.runtime.grouping import group_by


@dataclass(frozen=True, slots=True)
class Curve(Identity):
    """One attack under one defense, over the strengths of the grid; it has no strength itself.

    The metric is that of CAP: ``auc`` for two classes, as max(AUC, 1 - AUC), for a reversed ranking
    is no protection, and ``accuracy`` beyond (He et al. 2022).

    Attributes:
        utility_metric: of the main task.
        strengths: ascending; `values`, `advantages`, `utilities` and `dcs` (defense capability
            scores) are by strength, None where there is no figure.
        cap: None where a point is missing or leaves [0, 1], or a training failed, for the mean over
            those that did not would tell too much.
        cap_strengths: that CAP is the mean over.
        undefended_value: of the same attack without a defense; None where it was not made.
        undefended_utility: of the main task without a defense; None where a training failed.
    """

    utility_metric: str = ""
    strengths: tuple[float | None, ...] = ()
    values: tuple[float | None, ...] = ()
    advantages: tuple[float | None, ...] = ()
    utilities: tuple[float | None, ...] = ()
    cap: float | None = None
    cap_strengths: tuple[float | None, ...] = ()
    undefended_value: float | None = None
    undefended_utility: float | None = None
    dcs: tuple[float | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Improvement(Training):
    """By how much the AUC of an undefended training is above that of another, "RelaImp".

    Attributes:
        baseline: what the other is called.
        value: of the means over seeds, 0.01 for one per cent.
    """

    baseline: str = ""
    value: float = 0.0


def find_improvements(points: Iterable[Point], baseline: str | None) -> list[Improvement]:
    """Of each undefended training on whose data set the baseline was trained too, if any is named.

    There is none of other metrics than AUC, of a training that failed on a seed, and over a
    baseline that is no better than chance.
    """
    found = {
        p.training: p.utility.mean for p in points
        if p.is_undefended and p.utility_metric == "auc" and not p.failed_trainings
        and p.utility.mean is not None
    }  # fmt: skip
    levels = {t.dataset: auc for t, auc in found.items() if t.algorithm == baseline and auc > 0.5}
    return [
        Improvement(
            **t.as_dict(), baseline=baseline or "",
            value=cap_score.relative_improvement(auc, levels[t.dataset]),
        )
        for t, auc in found.items() if t.dataset in levels and t.algorithm != baseline
    ]  # fmt: skip


def build_curves(points: Iterable[Point]) -> list[Curve]:
    """The curve of each defense and attack.

    Args:
        points: of :func:`vflsec.audit.leakage.summarise`. Strength 0, which is no defense, counts
            in the mean of CAP of the undefended curve alone, whose only point it is.
    """
    grid: dict[Identity, set[float | None]] = defaultdict(set)
    points = list(points)
    for p in points:
        grid[_swept(p)].add(p.strength)
    attacks = group_by((p for p in points if p.attack), lambda p: p.without("strength", "metric"))
    lines = {_of_one_metric(at, of): of for at, of in attacks.items()}
    found = {at: _by_strength(p for p in of if p.metric == at.metric) for at, of in lines.items()}
    bare = _undefended(found)
    out = []
    for at, line in found.items():
        used = [p for p in line if not p.is_undefended] or line
        whole = grid[_swept(at)] == {p.strength for p in line}
        cap = _cap(used) if whole else None
        undefended = bare.get(at.without("defense"))
        metric = lines[at][0].utility_metric  # a line without a figure has no point
        out.append(_make_curve(at, metric, line, [p.strength for p in used], cap, undefended))
    return out


def _make_curve(
    at: Identity, utility_metric: str, line: Sequence[Point], counted: Sequence[float | None],
    cap: float | None, bare: Point | None,
) -> Curve:  # fmt: skip
    """The curve of points by strength, of which CAP is the mean over the counted ones."""
    utility = None if bare is None or bare.failed_trainings else bare.utility.mean
    return Curve(
        **at.as_dict(), utility_metric=utility_metric,
        strengths=tuple(p.strength for p in line), values=tuple(p.value.mean for p in line),
        advantages=tuple(p.advantage.mean for p in line),
        utilities=tuple(p.utility.mean for p in line), cap=cap, cap_strengths=tuple(counted),
        undefended_value=bare.value.mean if bare else None, undefended_utility=utility,
        dcs=tuple(_dcs(p, utility) for p in line),
    )  # fmt: skip


def _swept(at: Identity) -> Identity:
    """What the strengths of one grid have in common."""
    return at.keep("dataset", "algorithm", "defense")


def _of_one_metric(at: Identity, points: Sequence[Point]) -> Identity:
    """What is attacked, with the metric that CAP uses."""
    metric = points[0].primary
    if metric != "auc" and any(p.metric == "accuracy" for p in points):
        metric = "accuracy"
    return replace(at, metric=metric)


def _by_strength(points: Iterable[Point]) -> list[Point]:
    """Ascending; one without a strength comes last."""
    return sorted(points, key=lambda p: (p.strength is None, p.strength or 0.0))


def _undefended(lines: dict[Identity, list[Point]]) -> dict[Identity, Point]:
    """The undefended point of each attack, of no defense rather than of one at strength 0."""
    bare = [(at.without("defense"), p) for at, of in lines.items() for p in of if p.is_undefended]
    first = dict(reversed(bare))
    return first | {at: p for at, p in bare if p.defense == UNDEFENDED}


def _either_way(point: Point) -> float | None:
    """The attack's figure; of a ranking the better of it and its reverse."""
    value = point.value.mean
    ranks = point.metric in ("auc", "concordance") and point.is_reversible
    return max(value, 1 - value) if ranks and value is not None else value


def _in_unit(values: Iterable[float | None]) -> list[float] | None:
    """The values if each is there and in [0, 1], else None."""
    known = list(values)
    found = [x for x in known if x is not None and 0 <= x <= 1]
    return found if len(found) == len(known) else None


def _cap(points: Sequence[Point]) -> float | None:
    utility = _in_unit(p.utility.mean for p in points)
    attack = _in_unit(map(_either_way, points))
    if not utility or not attack or any(p.failed_trainings for p in points):
        return None
    return cap_score.cap(utility, attack)


def _dcs(point: Point, undefended: float | None) -> float | None:
    found = _in_unit((_either_way(point), point.utility.mean, undefended))
    return None if found is None or point.failed_trainings else cap_score.dcs(*found)
