"""Every strength that was trained, under every gate: which meet them all, and which costs least."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from vflsec.audit.dosing import Doses
from vflsec.audit.gate import PASS, Gate, Verdict
from vflsec.audit.judge import judge
from vflsec.audit.leakage import TRAINING, UNDEFENDED, is_undefended, rows_of
from vflsec.audit.point import Point
from vflsec.audit.validated import Validated

__all__ = ["grid"]


def grid(
    points: Sequence[Point],
    asked: Sequence[Gate],
    validated: Validated,
    doses: Doses,
    beside: Iterable[Verdict] = (),
) -> list[dict[str, Any]]:
    """Every point under every gate, whichever strength a gate names.

    A gate that names the deployed strength asks the same of the others here, so that a weaker one
    which would do is seen. One on the undefended run alone is met or not whatever the strength, and
    counts at each. This is no verdict: who picks a strength by it has looked at many.

    Args:
        points: of :func:`vflsec.audit.leakage.summarise`.
        asked: gates.
        validated, doses: as for :func:`vflsec.audit.judge.judge`.
        beside: verdicts that no gate asked for, which stand in the way where they are no PASS.

    Returns:
        a row for each point that as many gates select as any of its data set: the point,
        ``gates`` and ``passed`` (how many), ``utility_drop`` with its bounds, and ``cheapest``: it
        meets all, and of the training's points that do it costs the least (the weakest of equals).
    """
    found = _judged(points, asked, validated, doses, beside)
    drops = {_point(r): r for r in rows_of(points) if not r["attack"]}
    most: dict[str, int] = defaultdict(int)
    for key, of in found.items():
        most[key[0]] = max(most[key[0]], len(of))
    out = [
        _row(key, of, drops.get(key, {})) for key, of in found.items() if len(of) == most[key[0]]
    ]
    _mark_cheapest(out)
    return out


def _judged(
    points: Sequence[Point], asked: Sequence[Gate], validated: Validated, doses: Doses,
    beside: Iterable[Verdict],
) -> dict[tuple[Any, ...], list[str]]:  # fmt: skip
    """How every gate came out, by point."""
    bare = [replace(g, strength=None) for g in asked if g.defense == UNDEFENDED]
    swept = [replace(g, strength=None) for g in asked if g.defense != UNDEFENDED]
    found: dict[tuple[Any, ...], list[str]] = defaultdict(list)
    for v in [*judge(points, swept or bare, validated, doses), *beside]:
        if v.defense:
            found[tuple(getattr(v, k) for k in TRAINING)].append(v.verdict)
    for v in judge(points, bare if swept else (), validated, doses):
        for key in found:
            if key[:2] == (v.dataset, v.algorithm):
                found[key].append(v.verdict)
    return found


def _point(r: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(None if r[k] != r[k] else r[k] for k in TRAINING)


def _mark_cheapest(rows: Sequence[dict[str, Any]]) -> None:
    """Set ``cheapest`` where a point passes every gate and costs its training the least."""
    good: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for r in rows:
        if r["passed"] == r["gates"] and r["utility_drop"] is not None:
            good[r["dataset"], r["algorithm"]].append(r)
    for of in good.values():
        min(of, key=lambda r: (r["utility_drop"], r["strength"] or 0.0))["cheapest"] = True


def _row(key: tuple[Any, ...], verdicts: Sequence[str], r: Mapping[str, Any]) -> dict[str, Any]:
    point: dict[str, Any] = dict(zip(TRAINING, key, strict=True))
    names = ("utility_drop", "utility_drop_low", "utility_drop_high")
    bare = is_undefended(point)
    return point | {
        "gates": len(verdicts),
        "passed": sum(v == PASS for v in verdicts),
        **{k: 0.0 if bare else _number(r.get(k)) for k in names},
        "cheapest": False,
    }


def _number(value: Any) -> float | None:
    return None if value is None or value != value else float(value)
