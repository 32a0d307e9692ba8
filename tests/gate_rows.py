"""Made-up figures of attacks, and what a gate says of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from scipy import stats

from vflsec.audit.gate import Gate, Verdict
from vflsec.audit.judge import judge
from vflsec.audit.leakage import complete_rows, summarise
from vflsec.audit.point import UNDEFENDED, Place, Point
from vflsec.audit.result_row import ResultRow
from vflsec.audit.validated import Validation

Live = Mapping[str, Validation] | None
SHOWN = Validation(True, "planted leak found")
STEADY = (-0.01, 0.0, 0.01, 0.0, 0.0)
WIDE = tuple(0.08 * stats.zscore((-1.2, 0.4, 0.2, 1.0, -0.4), ddof=1))  # mean 0, sd 0.08


def rows(
    mean: float, noise: Any = STEADY, *, attack: str = "direction", **extra: Any
) -> list[ResultRow]:
    """An attack whose advantage over a control of 0.5 is `mean` plus `noise`, one per seed."""
    usual: dict[str, Any] = {
        "dataset": "toy", "algorithm": "splitnn", "defense": UNDEFENDED, "strength": 0.0,
        "split": "test", "adversary": "bank", "target": "label", "metric": "auc", "n": 500,
        "chance": 0.5, "controls": {"majority": {"value": 0.5, "cv": None}},
    }  # fmt: skip
    return [
        ResultRow(
            attack=attack, **{"cell": f"{s}", "seed": s, "value": 0.5 + mean + e, **usual, **extra}
        )
        for s, e in enumerate(noise)
    ]


def task(mean: float, noise: Any = STEADY, **extra: Any) -> list[ResultRow]:
    gone = {"adversary": "", "target": "", "controls": {}}
    return rows(mean - 0.5, noise, **{"attack": "", **gone, **extra})


def record(seed: int, value: float | None, **extra: Any) -> ResultRow:
    """One row of an attack on one seed, with all that identifies it; without a value it failed."""
    lost = {"status": "error", "reason": "diverged"} if value is None else {}
    more = {"cell": f"c{seed}", "seed": seed, "value": value, "phase": "train", "attack_key": "k"}
    return rows(0.0, (0.0,), **{"n": 100, **more, **lost, **extra})[0]


def task_record(seed: int, value: float | None, **extra: Any) -> ResultRow:
    bare = {"attack": "", "adversary": "", "attack_key": "", "target": "", "controls": {}}
    return record(seed, value, **{**bare, **extra})


def points_of(rows: Iterable[ResultRow], **kw: Any) -> list[Point]:
    return summarise(complete_rows(rows), **kw)


def at(points: Iterable[Point], live: Live = None) -> dict[Place, Validation]:
    """What `live` says by attack, at every place of the points; None: all are shown to work."""
    every = {p.place: SHOWN if live is None else live.get(p.attack) for p in points if p.attack}
    return {place: found for place, found in every.items() if found}


def verdicts_of(rows: Iterable[ResultRow], gate: Gate, live: Live = None) -> list[Verdict]:
    points = points_of(rows)
    return judge(points, [gate], at(points, live))


def one(rows: Iterable[ResultRow], gate: Gate, live: Live = None) -> Verdict:
    (found,) = verdicts_of(rows, gate, live)
    return found
