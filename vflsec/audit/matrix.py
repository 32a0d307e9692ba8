"""Which point stands for an attack in a summary, and who leaks to whom."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

__all__ = ["leaks", "secret", "shown"]

Row = Mapping[str, Any]

_SPLITS = ("test", "validation", "train")
_IDENTITY = ("dataset", "algorithm", "defense", "strength", "adversary", "attack", "attack_key",
             "target")  # fmt: skip
_CELL = ("dataset", "algorithm", "defense", "strength", "adversary", "victim", "target",
         "attack", "metric", "split", "advantage", "advantage_low", "advantage_high")  # fmt: skip
_SECRETS = {
    "label": "labels", "feature": "columns", "attribute": "a column", "embedding": "embeddings",
    "integrity": "predictions (forced)",
}  # fmt: skip


def shown(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """One point for each (data, algorithm, defense, strength, adversary, attack).

    Args:
        rows: points of :func:`vflsec.audit.leakage.summarise`, missing numbers None.

    Returns:
        those of the metric that verdicts rest on, after the last phase, on test rows where there
        are some.
    """
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for r in rows:
        if r["attack"] and r["status"] == "ok" and r["metric"] == r["primary"]:
            groups[tuple(r[k] for k in _IDENTITY)].append(dict(r))
    return [_one(of) for of in groups.values()]


def _one(of: Sequence[dict[str, Any]]) -> dict[str, Any]:
    last = [r for r in of if r["phase"] == of[-1]["phase"]]
    rank = {s: i for i, s in enumerate(_SPLITS)}
    return min(last, key=lambda r: rank.get(r["split"], len(rank)))


def secret(row: Row) -> str:
    """What leaks and whose it is, in words: "labels of active"."""
    what = _SECRETS.get(row["target"] or "label", row["target"])
    victim = row.get("victim", "")  # results of an earlier version do not say whose
    return f"{what} of {victim.replace('+', ' and ')}" if victim else str(what)


def leaks(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Who leaks to whom: for each data set, adversary, victim and target the strongest attack.

    On the undefended training; where nothing of a data set is undefended, all points count.

    Args:
        rows: points of :func:`vflsec.audit.leakage.summarise`, missing numbers None.

    Returns:
        rows with dataset, algorithm, defense, strength, adversary, victim, target, attack,
        metric, split, and the advantage (mean over seeds) with its interval; None if it has none.
        The largest of several advantages is biased upwards; gates correct for that.
    """
    points = shown(rows)
    bare = {r["dataset"] for r in points if _undefended(r)}
    best: dict[tuple[Any, ...], dict[str, Any]] = {}
    for r in points:
        if r["dataset"] in bare and not _undefended(r):
            continue
        key = tuple(r.get(k) for k in ("dataset", "adversary", "victim", "target"))
        if key not in best or _gain(r) > _gain(best[key]):
            best[key] = r
    return [{k: r.get(k) for k in _CELL} for r in best.values()]


def _undefended(row: Row) -> bool:
    return bool(row["defense"] == "none" or row["strength"] == 0)


def _gain(row: Row) -> float:
    value = row["advantage"]
    return -float("inf") if value is None else float(value)
