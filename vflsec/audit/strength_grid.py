"""Every strength that was trained, under every gate: which meet them all, and which costs least."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vflsec.audit import gate as gates
from vflsec.audit.leakage import UNDEFENDED, is_undefended, rows_of

if TYPE_CHECKING:
    from vflsec.audit.dosing import Doses
    from vflsec.audit.point import Point
    from vflsec.audit.validated import Alive

__all__ = ["grid"]

_POINT = ("dataset", "algorithm", "defense", "strength")


def grid(
    points: Sequence[Point],
    asked: Sequence[gates.Gate],
    alive: Alive,
    doses: Doses,
    beside: Iterable[gates.Verdict] = (),
) -> list[dict[str, Any]]:
    """Every point under every gate, whichever strength a gate names.

    A gate that names the deployed strength asks the same of the others here, so that a weaker one
    which would do is seen. One on the undefended run alone is met or not whatever the strength, and
    counts at each. This is no verdict: who picks a strength by it has looked at many.

    Args:
        points: of :func:`vflsec.audit.leakage.summarise`.
        asked: gates.
        alive, doses: as for :func:`vflsec.audit.gate.judge`.
        beside: verdicts that no gate asked for, which stand in the way where they are no PASS.

    Returns:
        a row for each point that as many gates select as any of its data set: the point,
        ``gates`` and ``passed`` (how many), ``utility_drop`` with its bounds, and ``cheapest``: it
        meets all, and of the training's points that do it costs the least (the weakest of equals).
    """
    bare = [replace(g, strength=None) for g in asked if g.defense == UNDEFENDED]
    swept = [replace(g, strength=None) for g in asked if g.defense != UNDEFENDED]
    found: dict[tuple[Any, ...], list[str]] = defaultdict(list)
    for v in [*gates.judge(points, swept or bare, alive, doses), *beside]:
        if v.defense:
            found[tuple(getattr(v, k) for k in _POINT)].append(v.verdict)
    for v in gates.judge(points, bare if swept else (), alive, doses):
        for key in found:
            if key[:2] == (v.dataset, v.algorithm):
                found[key].append(v.verdict)
    drops = {
        tuple(None if r[k] != r[k] else r[k] for k in _POINT): r
        for r in rows_of(points)
        if not r["attack"]
    }
    most: dict[str, int] = defaultdict(int)
    for key, of in found.items():
        most[key[0]] = max(most[key[0]], len(of))
    out = [
        _row(key, of, drops.get(key, {})) for key, of in found.items() if len(of) == most[key[0]]
    ]
    for training in dict.fromkeys(map(_training, out)):
        good = [r for r in out if _training(r) == training and r["passed"] == r["gates"]]
        known = [r for r in good if r["utility_drop"] is not None]
        if known:
            min(known, key=lambda r: (r["utility_drop"], r["strength"] or 0.0))["cheapest"] = True
    return out


def _training(r: Mapping[str, Any]) -> tuple[str, str]:
    return r["dataset"], r["algorithm"]


def _row(key: tuple[Any, ...], verdicts: Sequence[str], r: Mapping[str, Any]) -> dict[str, Any]:
    point: dict[str, Any] = dict(zip(_POINT, key, strict=True))
    names = ("utility_drop", "utility_drop_low", "utility_drop_high")
    bare = is_undefended(point)
    return point | {
        "gates": len(verdicts),
        "passed": sum(v == gates.PASS for v in verdicts),
        **{k: 0.0 if bare else _number(r.get(k)) for k in names},
        "cheapest": False,
    }


def _number(value: Any) -> float | None:
    return None if value is None or value != value else float(value)
