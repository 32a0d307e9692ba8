"""Which points of an audit a gate asks about: one rule for plans, verdicts and reports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from vflsec.audit import defense_label
from vflsec.audit.gate import EPSILON, TASK, Gate
from vflsec.audit.leakage import POINT, UNDEFENDED, clean, is_undefended

__all__ = ["PLANNED", "answer", "bare", "left_out", "named", "selected", "stacked", "weighs"]

PLANNED = "planned"
"""Status of a row whose figure, whatever it is, counts as the one that is asked for."""

_MADE = tuple(k for k in POINT if k != "metric")


def answer(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """What identifies the guesses behind a point, whatever they are scored by."""
    return tuple(clean(row[k]) for k in _MADE)


def bare(label: str) -> str:
    """The registered name in the label of an attack.

    All after the first bracket are parameters, be it of a column that is called ``a) + b``.
    """
    return label.partition("(")[0]


def named(label: str, wanted: str) -> bool:
    """Whether the label of an attack is wanted, by itself or by the bare name."""
    return wanted in ("*", label, bare(label))


def stacked(label: str, wanted: str) -> bool:
    """Whether the label of a defense is wanted, by itself or by the bare names: ``iso + noise``."""
    return wanted in ("*", label, defense_label.bare(label))


def selected(row: Mapping[str, Any], gate: Gate) -> bool:
    """Whether a gate asks about a row of results.

    One that is not ``ok`` needs no figure of the gate's metric; one that is only planned, or that
    failed, may name neither phase nor split.
    """
    return _here(row, gate) and weighs(row, gate)


def weighs(row: Mapping[str, Any], gate: Gate) -> bool:
    """Whether a gate that judges the training of a row asks about that row."""
    planned = row["status"] == PLANNED
    if planned and gate.metric in (*TASK, EPSILON):
        return True
    if gate.metric == EPSILON:
        return bool(row["metric"] == gate.metric)
    if gate.metric in TASK:
        return not row["attack"] and row["metric"] == row["utility_metric"]
    if not _attacked(row, gate):
        return False
    if row["status"] != "ok":
        return True
    wanted = gate.metric if gate.metric != "advantage" else gate.of or row["primary"]
    return bool(row["metric"] == wanted)


def _here(row: Mapping[str, Any], gate: Gate) -> bool:
    """Whether a gate asks about the training of a row."""
    bare = is_undefended(row)
    if gate.defense == "defended" and bare:
        return False
    if gate.defense == UNDEFENDED and not bare:
        return False
    if gate.defense not in ("defended", UNDEFENDED) and not stacked(row["defense"], gate.defense):
        return False
    if gate.strength is not None and row["strength"] != gate.strength:
        return False
    return all(getattr(gate, k) in ("*", row[k]) for k in ("dataset", "algorithm"))


def _attacked(row: Mapping[str, Any], gate: Gate) -> bool:
    """Whether a gate on attacks asks about the attack of a row, by whatever it is scored."""
    if not row["attack"] or not named(row["attack"], gate.attack):
        return False
    unsplit = row["status"] in (PLANNED, "error")
    return all(
        getattr(gate, key) in ("*", row[key]) or (unsplit and not row[key])
        for key in ("adversary", "phase", "split", "target")
    )


def left_out(rows: Iterable[Mapping[str, Any]], gate: Gate) -> dict[tuple[Any, ...], list[str]]:
    """Attacks that a gate on one metric would ask about and that are not scored by it.

    Args:
        rows: points of :func:`vflsec.audit.leakage.summarise`.
        gate: of one that names what is attacked (`attack`, `target`) nothing is left out unsaid.

    Returns:
        by data set, algorithm, defense and strength their labels with what they are scored by.
    """
    if gate.metric in (*TASK, EPSILON) or (gate.attack, gate.target) != ("*", "*"):
        return {}
    asked: dict[tuple[Any, ...], str] = {}
    judged = set()
    for r in rows:
        if r["status"] == "ok" and _here(r, gate) and _attacked(r, gate):
            asked.setdefault(answer(r), str(r["primary"]))
            if weighs(r, gate):
                judged.add(answer(r))
    out: dict[tuple[Any, ...], list[str]] = {}
    for key, primary in asked.items():
        if key not in judged:
            told = dict(zip(_MADE, key, strict=True))
            place = tuple(told[k] for k in ("dataset", "algorithm", "defense", "strength"))
            out.setdefault(place, []).append(f"{told['attack']} ({primary})")
    return {place: list(dict.fromkeys(names)) for place, names in out.items()}
