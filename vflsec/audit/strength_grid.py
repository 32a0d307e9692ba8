"""Every strength that was trained, under every gate: which meet them all, and which costs least."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from vflsec.audit.dosing import Doses
from vflsec.audit.gate import FAIL, Gate, Verdict
from vflsec.audit.judge import judge
from vflsec.audit.point import UNDEFENDED, Estimate, Point, Training
from vflsec.audit.validated import Validated
from vflsec.runtime.grouping import group_by


@dataclass(frozen=True, slots=True)
class GridRow(Training):
    """A training under every gate.

    Attributes:
        gates, passed, failed: how many judge it, and how many of these it passes and fails.
        utility_drop: what it costs, with its bounds; None where that was not measured.
        left: the gates that it does not pass, by their labels.
        cheapest: whether it passes all, and of the trainings of its data and algorithm that do
            costs the least (the weakest of equals).
    """

    gates: int = 0
    passed: int = 0
    failed: int = 0
    utility_drop: float | None = None
    utility_drop_low: float | None = None
    utility_drop_high: float | None = None
    left: tuple[str, ...] = ()
    cheapest: bool = False


def build_grid(
    points: Sequence[Point],
    asked: Sequence[Gate],
    validated: Validated,
    doses: Doses,
    others: Iterable[Verdict] = (),
) -> list[GridRow]:
    """Every training under every gate, whichever strength a gate names.

    A gate that names the deployed strength asks the same of the others here, so that a weaker one
    which would do is seen. One on the undefended run alone is met or not whatever the strength, and
    counts at each. This is no verdict: who picks a strength by it has looked at many.

    Args:
        points: of :func:`vflsec.audit.leakage.summarise`.
        asked: gates.
        validated, doses: as for :func:`vflsec.audit.judge.judge`.
        others: verdicts that no gate asked for, which stand in the way where they are no PASS.

    Returns:
        a row for each training that as many gates select as any of its data set; none without a
        gate, for a baseline and a claimed epsilon limit no leak.
    """
    if not asked:
        return []
    found = _judged(points, asked, validated, doses, others)
    drops = {p.training: p.utility_drop for p in points if not p.attack}
    most: dict[str, int] = defaultdict(int)
    for at, of in found.items():
        most[at.dataset] = max(most[at.dataset], len(of))
    rows = [
        _row(at, of, drops.get(at, Estimate()))
        for at, of in found.items() if len(of) == most[at.dataset]
    ]  # fmt: skip
    cheapest = find_cheapest(rows)
    return [replace(r, cheapest=r.training in cheapest) for r in rows]


def _judged(
    points: Sequence[Point], asked: Sequence[Gate], validated: Validated, doses: Doses,
    others: Iterable[Verdict],
) -> dict[Training, list[Verdict]]:  # fmt: skip
    """How every gate came out, by training."""
    bare = [replace(g, strength=None) for g in asked if g.defense == UNDEFENDED]
    swept = [replace(g, strength=None) for g in asked if g.defense != UNDEFENDED]
    found: dict[Training, list[Verdict]] = defaultdict(list)
    for v in [*judge(points, swept or bare, validated, doses), *others]:
        if v.defense:
            found[v.training].append(v)
    for v in judge(points, bare if swept else (), validated, doses):
        for at in found:
            if at.system == v.system:
                found[at].append(v)
    return found


def find_cheapest(rows: Iterable[GridRow]) -> set[Training]:
    """Of each data set and algorithm the training that passes every gate and costs the least."""
    meet_all = (r for r in rows if r.passed == r.gates and r.utility_drop is not None)
    by_system = group_by(meet_all, lambda r: r.system)
    cheapest = (min(of, key=lambda r: (r.utility_drop or 0.0, r.strength or 0.0))
                for of in by_system.values())  # fmt: skip
    return {r.training for r in cheapest}


def _row(at: Training, verdicts: Sequence[Verdict], drop: Estimate) -> GridRow:
    drop = Estimate(0.0, low=0.0, high=0.0) if at.is_undefended else drop
    return GridRow(
        at.dataset, at.algorithm, at.defense, at.strength, len(verdicts),
        sum(v.passes for v in verdicts), sum(v.verdict == FAIL for v in verdicts),
        drop.mean, drop.low, drop.high,
        tuple(v.label for v in verdicts if not v.passes),
    )  # fmt: skip
