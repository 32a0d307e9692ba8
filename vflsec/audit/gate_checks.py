"""Gates that no result can answer: errors, not verdicts.

A misspelt name would only show as "inconclusive" after everything is trained, and a build may let
that pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from vflsec.audit.gate import Gate
from vflsec.audit.gate_selection import PLANNED, selected
from vflsec.audit.leakage import UNDEFENDED, is_undefended
from vflsec.audit.metrics import METRICS, reach
from vflsec.audit.rounding import exact
from vflsec.audit.verdict_text import TASK
from vflsec.core import check

__all__ = ["Found", "unanswerable"]

Found = tuple[str, Any, str]
"""What is wrong with a gate: the key, its value, and the rule that it breaks."""

_OF_ATTACKS = ("attack", "adversary", "phase", "split", "target")
_WHAT = {"dataset": "data set", "split": "rows"}
_SHOWN = 40  # names or strengths listed in one message


def unanswerable(gate: Gate, rows: Sequence[Mapping[str, Any]]) -> list[Found]:
    """What keeps every result from answering the gate.

    Args:
        gate: what is asked.
        rows: what is, or will be, measured: dataset, algorithm, defense, strength, and for attacks
            attack, adversary, phase, split, target ("" where any is possible) and, where they are
            known, primary and metrics (else empty); of what was measured, metric; of what is
            planned, claims: whether an epsilon may be claimed and tested there.
    """
    about_attacks = gate.metric not in (*TASK, "epsilon_lower")
    there = [r for r in rows if r["attack"]] if about_attacks else list(rows)
    if about_attacks and not there:
        return [("metric", gate.metric, "is about attacks, but the audit makes none. "
                 "Take utility, or add an [[attack]].")]  # fmt: skip
    found = []
    for key in ("dataset", "algorithm", "defense", *_OF_ATTACKS):
        named = [r for r in rows if r["attack"]] if key in _OF_ATTACKS else there
        wanted = getattr(gate, key)
        asked = _only(gate, key)
        if wanted != "*" and not any(selected(_open(r), asked) for r in named):
            names = _names(key, named)
            what = _WHAT.get(key, key)
            rule = f"names no {what} of this audit, got {wanted!r}. {check.nearest(wanted, names)} "
            found.append((key, wanted, f"{rule}There are: {_listed(names)}.".replace("  ", " ")))
    if not found and gate.strength is not None:
        asked = _only(gate, "defense")
        grid = sorted({r["strength"] for r in there if _has(r) and selected(_open(r), asked)})
        if gate.strength not in grid:
            rule = f"is no strength of this audit, got {exact(gate.strength)}. There are: "
            found.append(("strength", gate.strength, f"{rule}{_listed(map(exact, grid))}."))
    if not found and not any(selected(_open(r), gate) for r in there):
        keys = [
            k for k in ("dataset", "algorithm", "defense", *_OF_ATTACKS) if getattr(gate, k) != "*"
        ]
        keys += ["strength"] if gate.strength is not None else []
        said = ", ".join(f"{k} = {getattr(gate, k)!r}" for k in keys)
        found.append(("", None, f"asks for {said}: each is there, but nothing is all of that."))
    if not found and not about_attacks:
        found += _without(gate, [r for r in there if selected(_open(r), gate)], there)
    if not found and about_attacks:
        found += _unmeasured(gate, [r for r in there if selected(_open(r), gate)])
    if not found and gate.limits_leaks and not gate.of:
        found += _beyond(gate, [r for r in there if selected(_open(r), gate)])
    return found


def _without(
    gate: Gate, rows: Sequence[Mapping[str, Any]], every: Sequence[Mapping[str, Any]]
) -> list[Found]:
    """A loss of utility without an undefended run or a defended one, an untested epsilon."""
    if gate.metric == "epsilon_lower" and not any(r.get("claims", True) for r in rows):
        return [
            (
                "metric", gate.metric,
                "is measured where a defense claims an epsilon and is tested: no defense that is "
                "asked about does, or [audit] canaries = false leaves the test out.",
            )
        ]  # fmt: skip
    bare = {(r["dataset"], r["algorithm"]) for r in every if is_undefended(r)}
    defended = [(r["dataset"], r["algorithm"]) for r in rows if not is_undefended(r)]
    if gate.metric == "utility_drop" and rows and not defended:
        return [
            (
                "metric", gate.metric,
                "is the loss against a run without a defense, and nothing that is asked about has "
                "one: it would be 0 whatever happens. Add a defense, or gate the utility itself.",
            )
        ]  # fmt: skip
    if gate.metric == "utility_drop" and defended and not bare & set(defended):
        return [
            (
                "metric", gate.metric,
                "is taken from a run without a defense, and none is made: add strength 0 to the "
                "grid of the defense.",
            )
        ]  # fmt: skip
    return []


def _unmeasured(gate: Gate, rows: Sequence[Mapping[str, Any]]) -> list[Found]:
    """A metric that does not fit what is guessed, such as R^2 of classes."""
    asked = gate.of or gate.metric
    if asked not in METRICS or any("metrics" in r and not r["metrics"] for r in rows):
        return []
    told = [r["metrics"] if "metrics" in r else filter(None, [r["metric"]]) for r in rows]
    names = list(dict.fromkeys(name for some in told for name in some))
    if asked in names or not names:
        return []
    rule = f"is measured of no attack that is asked about, got {asked!r}. There are: "
    return [("of" if gate.of else "metric", asked, f"{rule}{_listed(names)}.")]


def _beyond(gate: Gate, rows: Sequence[Mapping[str, Any]]) -> list[Found]:
    """A limit that no primary metric's advantage can exceed, which a gate alone cannot know."""
    ends = {r.get("primary", ""): reach("advantage", r.get("primary", ""))[1] for r in rows}
    most = max(ends.values())
    if gate.threshold < most:
        return []
    rule = (
        f"must be below {most:g}, which is as far as the advantage in {' or '.join(ends)} can "
        f"reach, got {exact(gate.threshold)}. Beyond that the gate cannot fail: no result could "
        "fail it."
    )
    return [("max", gate.threshold, rule)]


def _only(gate: Gate, key: str) -> Gate:
    """The gate with one of its conditions, on whatever may be measured."""
    metric = "advantage" if key in _OF_ATTACKS else "utility"
    return Gate(metric=metric, max=0.0, **{key: getattr(gate, key)})


def _has(row: Mapping[str, Any]) -> bool:
    return row["strength"] is not None and row["strength"] == row["strength"]


def _open(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row as if its figure, whatever it is, were the one that is asked for."""
    return {**row, "status": PLANNED}


def _names(key: str, rows: Iterable[Mapping[str, Any]]) -> list[str]:
    found = list(dict.fromkeys(str(r[key]) for r in rows if r[key]))
    if key == "defense" and any(is_undefended(r) for r in rows) and UNDEFENDED not in found:
        found.append(UNDEFENDED)
    return found


def _listed(names: Iterable[str]) -> str:
    every = list(names)
    more = f" and {len(every) - _SHOWN} more" if len(every) > _SHOWN else ""
    return (", ".join(every[:_SHOWN]) or "none") + more
