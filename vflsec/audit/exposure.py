"""What stays visible under the defenses of an audit: tables when planned, outcomes when measured.

The tables and the claims come from the defenses (`Policy.visibility`, `Policy.bought`); this module
adds which attacks were not observable and what the others measured, each beside the same attack
where nothing is hidden.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from vflsec.audit.findings import metric_name
from vflsec.audit.intervals import t_interval
from vflsec.audit.leakage import UNDEFENDED, defense_point, rows_of
from vflsec.plugins import registry

if TYPE_CHECKING:
    from vflsec.plan.values import Group

__all__ = ["outcomes", "tables"]

Seeds = Mapping[int, float]
_SPLITS = ("test", "validation", "train")
_ERROR = "relative_error"
_SAME = 1e-6  # figures that differ by less come from the same numbers


def tables(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """One entry for each algorithm and stack of defenses that has a protocol of its own.

    Keys: ``algorithm``, ``defense`` (as in results), ``names``, ``lines`` (see
    `vflsec.core.visibility.Line`), ``hides``, ``leaves``.
    """
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for group in groups:
        cell = group.cells[0]
        label, _ = defense_point(cell.defenses)
        if group.role != "audit" or (group.title, label) in found:
            continue
        for d in cell.defenses:
            policy = registry.defenses.create(d.name, d.params)
            lines = policy.visibility()
            if not lines:
                continue
            cls = registry.algorithms.get(cell.algorithm)
            given = {k: p.default for k, p in registry.parameters(cls).items()} | dict(cell.params)
            hides, leaves = policy.bought(given)
            found[group.title, label] = {
                "algorithm": group.title, "defense": label,
                "names": [d.name for d in cell.defenses],
                "lines": [asdict(line) for line in lines], "hides": hides, "leaves": leaves,
            }  # fmt: skip
    return list(found.values())


def outcomes(
    entries: Sequence[Mapping[str, Any]], frame: pd.DataFrame, level: float
) -> list[dict[str, Any]]:
    """The entries of :func:`tables` with one sentence for each data set, and what was not seen.

    Args:
        entries: of the audit.
        frame: one row for each measure, see `vflsec.audit.leakage.COLUMNS`.
        level: of the intervals.

    Returns:
        The entries with ``unseen`` ([attack, adversary, status, reason]), ``measured`` (every
        attack beside its control and beside the same attack unencrypted) and ``sentences``
        ([data set, text]; none where nothing is hidden).
    """
    mine = frame[(frame["attack"] != "") & (frame["role"] == "audit")] if len(frame) else frame
    rows = rows_of(mine)
    by_point: dict[tuple[str, str, str], list[Mapping[str, Any]]] = defaultdict(list)
    for r in rows:
        by_point[r["algorithm"], r["defense"], r["dataset"]].append(r)
    out = []
    for entry in entries:
        bare = _twin(entry, entries)
        datasets = [k[2] for k in by_point if k[:2] == (entry["algorithm"], entry["defense"])]
        sentences: list[list[str]] = []
        measured: list[dict[str, Any]] = []
        unseen: dict[tuple[Any, ...], None] = {}
        for dataset in dict.fromkeys(datasets):
            of = by_point[entry["algorithm"], entry["defense"], dataset]
            gone = [r for r in of if r["status"].startswith("not-")]
            unseen |= {(r["attack"], r["adversary"], r["status"], r["reason"]): None for r in gone}
            beside = by_point.get((entry["algorithm"], bare, dataset), []) if bare else []
            found = _measured(dataset, of, beside, level)
            measured += found
            if entry["hides"]:
                sentences.append([dataset, _sentence(entry, dataset, found, gone)])
        more = {"unseen": [list(u) for u in unseen], "measured": measured, "sentences": sentences}
        out.append({**entry, **more})
    return out


def _twin(entry: Mapping[str, Any], entries: Sequence[Mapping[str, Any]]) -> str:
    """The point to compare with: the same defenses with nothing hidden, else none at all."""
    if not entry["hides"]:
        return ""
    for other in entries:
        same = other["names"] == entry["names"] and other["algorithm"] == entry["algorithm"]
        if same and not other["hides"]:
            return str(other["defense"])
    return UNDEFENDED


def _sentence(
    entry: Mapping[str, Any],
    dataset: str,
    found: Sequence[Mapping[str, Any]],
    gone: Sequence[Mapping[str, Any]],
) -> str:
    said: dict[bool, list[str]] = {True: [], False: []}
    for m in found:
        labels = m["target"] == "label"
        text = f"{m['attack']} {m['metric']} {m['value']:.3g}"
        if labels:
            text += f", its control {m['control']:.3g}" if m["control"] is not None else ""
            text += f", {m['verdict']}" if m["verdict"] else ""
        said[labels].append(text)
    unseen = list(dict.fromkeys(r["attack"] for r in gone if r["status"] == "not-observable"))
    first = f"On {dataset}, {entry['algorithm']} with {entry['defense']} hides {entry['hides']}"
    first += f" ({'; '.join(said[False])})" if said[False] else ""
    first += f"; not observable (not the same as safe): {', '.join(unseen)}" if unseen else ""
    second = f"it leaves {entry['leaves']}"
    second += f" ({'; '.join(said[True])})" if said[True] else ""
    return f"{first}; {second}."


def _measured(
    dataset: str,
    rows: Sequence[Mapping[str, Any]],
    beside: Sequence[Mapping[str, Any]],
    level: float,
) -> list[dict[str, Any]]:
    """Every attack with its mean over seeds, its control, and its paired change, with intervals."""
    theirs = _values(beside)
    out = []
    for key, (metric, values, control, target) in _values(rows).items():
        twin = theirs.get(key, ("", {}, None, ""))
        other = twin[1] if twin[0] == metric else {}
        shared = sorted(set(values) & set(other))
        change = np.array([values[s] - other[s] for s in shared])
        verdict = ""
        low = high = None
        if shared:
            low, high = t_interval(change, level)[:2]
            if np.abs(change).max() < _SAME:
                verdict = "unchanged"
            elif low is not None and high is not None:
                moved = f"changed by {change.mean():+.3f}"
                verdict = "change within its interval" if low <= 0 <= high else moved
        mine = np.array(list(values.values()))
        out.append(
            {"dataset": dataset, "attack": key[0], "adversary": key[1], "target": target,
             "metric": "relative error" if metric == _ERROR else metric_name(metric),
             "value": float(mine.mean()),
             "value_low": t_interval(mine, level)[0], "value_high": t_interval(mine, level)[1],
             "control": control, "seeds": len(mine),
             "unencrypted": float(np.mean([other[s] for s in shared])) if shared else None,
             "change": float(change.mean()) if shared else None,
             "change_low": low, "change_high": high, "verdict": verdict}
        )  # fmt: skip
    return out


def _values(
    rows: Sequence[Mapping[str, Any]],
) -> dict[tuple[str, str], tuple[str, Seeds, float | None, str]]:
    """(attack, adversary) -> metric, value by seed, mean of the control, target.

    Test rows where there are some; the relative error of an inversion rather than its R².
    """
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = defaultdict(list)
    for r in rows:
        errors = r["target"] == "embedding" and r["metric"] == _ERROR
        wanted = errors or (r["target"] != "embedding" and r["metric"] == r["primary"])
        if r["status"] == "ok" and wanted and "@" not in r["phase"]:
            groups[r["attack"], r["adversary"]].append(r)
    out: dict[tuple[str, str], tuple[str, Seeds, float | None, str]] = {}
    for key, of in groups.items():
        split = next((s for s in _SPLITS if any(r["split"] == s for r in of)), of[0]["split"])
        phase = of[-1]["phase"]
        kept = [r for r in of if r["split"] == split and r["phase"] == phase]
        known = [r["control_value"] for r in kept if r["control_value"] == r["control_value"]]
        control = float(np.mean(known)) if known else None
        values = {int(r["seed"]): float(r["value"]) for r in kept}
        out[key] = (str(kept[0]["metric"]), values, control, str(kept[0]["target"]))
    return out
