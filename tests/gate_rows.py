"""Made-up figures of attacks, and what a gate says of them."""

from __future__ import annotations

from typing import Any

from scipy import stats

from vflsec.audit.gate import Gate, Verdict
from vflsec.audit.judge import judge
from vflsec.audit.leakage import read_records, summarise
from vflsec.audit.point import Place
from vflsec.audit.validated import Validation

LIVE: dict[str, Validation] = dict.fromkeys(
    ("direction", "norm", "a0", "a1", "a2", "a3"), Validation(True, "planted leak found")
)
STEADY = (-0.01, 0.0, 0.01, 0.0, 0.0)
WIDE = tuple(0.08 * stats.zscore((-1.2, 0.4, 0.2, 1.0, -0.4), ddof=1))  # mean 0, sd 0.08


def rows(
    mean: float, noise: Any = STEADY, *, attack: str = "direction", **extra: Any
) -> list[dict[str, Any]]:
    """An attack whose advantage over a control of 0.5 is `mean` plus `noise`, one per seed."""
    return [
        {
            "cell": f"{s}", "dataset": "toy", "algorithm": "splitnn", "seed": s, "split": "test",
            "adversary": "bank", "attack": attack, "target": "label", "metric": "auc",
            "value": 0.5 + mean + e, "n": 500, "chance": 0.5,
            "controls": {"majority": {"value": 0.5, "cv": None}},
        } | extra
        for s, e in enumerate(noise)
    ]  # fmt: skip


def task(mean: float, noise: Any = STEADY, **extra: Any) -> list[dict[str, Any]]:
    gone = {"attack": "", "adversary": "", "target": "", "controls": {}}
    return rows(mean - 0.5, noise, **{**gone, **extra})


def record(seed: int, value: float | None, **extra: Any) -> dict[str, Any]:
    """One row of an attack on one seed, with all that identifies it; without a value it failed."""
    lost = {"status": "error", "reason": "diverged"} if value is None else {}
    (row,) = rows(0.0, (0.0,), n=100)
    cell = f"c{seed}{extra.get('defense', '')}{extra.get('strength', '')}"
    more = {"cell": cell, "seed": seed, "value": value, "phase": "train", "attack_key": "k"}
    return row | more | lost | extra


def task_record(seed: int, value: float | None, **extra: Any) -> dict[str, Any]:
    bare = {"attack": "", "adversary": "", "attack_key": "", "target": "", "controls": {}}
    return record(seed, value, **{**bare, **extra})


def at(summary: Any, live: Any) -> dict[Place, Validation]:
    """What `live` says by attack, at every place of the summary."""
    return {p.place: live[p.attack] for p in summary if p.attack in live}


def verdicts_of(records: list[dict[str, Any]], gate: Gate, live: Any = LIVE) -> list[Verdict]:
    summary = summarise(read_records(records))
    return judge(summary, [gate], at(summary, live))


def one(records: list[dict[str, Any]], gate: Gate, live: Any = LIVE) -> Verdict:
    found = verdicts_of(records, gate, live)
    assert len(found) == 1
    return found[0]
