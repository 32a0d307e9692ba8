"""What an attack reaches on all of several labels: their mean, and the label that it tells most of.

A mean hides a label that leaks among many that do not, so verdicts rest on each label with its own
controls and intervals, corrected for their number (:mod:`vflsec.audit.gate`); this is beside them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from vflsec.audit import intervals
from vflsec.audit.findings import Finding, FindingKind, Location
from vflsec.audit.leakage import is_undefended
from vflsec.audit.point import Identity
from vflsec.audit.result_row import ResultRow, read_rows

__all__ = ["by_label", "in_words"]

_AT = ("dataset", "algorithm", "defense", "strength", "phase", "adversary", "known_rows", "split")


def by_label(
    frame: pd.DataFrame, attacks: Mapping[str, Mapping[str, Any]], confidence: float
) -> list[dict[str, Any]]:
    """One row for each attack on several labels, at each point and split.

    Args:
        frame: of :func:`vflsec.audit.leakage.results_frame`, of an audit.
        attacks: what they are by key; those on one of several labels say ``every_label``, their
            name without it.
        confidence: of the two-sided t interval over seeds.

    Returns:
        the point, ``attack``, ``metric``, and of the labels that have a figure in every seed the
        mean ``value`` with ``low`` and ``high``, ``control_value`` (each label's strongest control)
        and ``advantage``; ``most``, the label of the largest advantage, with ``most_value``,
        ``most_control`` and ``most_advantage``; ``labels``, how many these are, and ``left_out``,
        those without a figure.
    """
    groups: dict[tuple[Identity, str], dict[str, dict[int, ResultRow]]] = defaultdict(dict)
    for r in read_rows(frame):
        spec = attacks.get(r.attack_key, {})
        named = r.of_label and "every_label" in spec
        if named and r.metric == r.primary and "@" not in r.phase:
            at = r.without("attack", "attack_key", "of_label", "target", "victim")
            of = groups[at, spec["every_label"]]
            of.setdefault(r.of_label, {})[r.seed] = r
    return [
        {k: getattr(at, k) for k in _AT} | {"attack": attack, "metric": at.metric}
        | _over(of, confidence)
        for (at, attack), of in groups.items()
    ]  # fmt: skip


def _over(of: Mapping[str, Mapping[int, ResultRow]], confidence: float) -> dict[str, Any]:
    """Figures of one attack at one point, from its rows by label and seed."""
    seeds = sorted({s for rows in of.values() for s in rows})
    told = {
        label: rows
        for label, rows in of.items()
        if sorted(rows) == seeds and all(r.advantage is not None for r in rows.values())
    }
    out: dict[str, Any] = {
        "labels": len(told), "left_out": [label for label in of if label not in told],
        "seeds": len(seeds),
    }  # fmt: skip
    if not told:
        return out
    means = {
        what: np.array([[getattr(rows[s], what) for s in seeds] for rows in told.values()], float)
        for what in ("value", "control_value", "advantage")
    }  # each (L, seeds)
    low, high = intervals.t_interval(means["value"].mean(axis=0), confidence)
    k = int(means["advantage"].mean(axis=1).argmax())
    return out | {
        **{what: float(v.mean()) for what, v in means.items()},
        "low": intervals.within(low, (0.0, 1.0)),
        "high": intervals.within(high, (0.0, 1.0)),
        "most": list(told)[k],
        "most_value": float(means["value"][k].mean()),
        "most_control": float(means["control_value"][k].mean()),
        "most_advantage": float(means["advantage"][k].mean()),
    }


def in_words(rows: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """A finding for each attack on several labels without a defense, of test rows if there are."""
    bare = [r for r in rows if is_undefended(r) and r.get("most")]
    place = [(r["dataset"], r["algorithm"], r["phase"], r["adversary"], r["attack"]) for r in bare]
    tested = {p for p, r in zip(place, bare, strict=True) if r["split"] == "test"}
    out = []
    for at, r in zip(place, bare, strict=True):
        if r["split"] != "test" and at in tested:
            continue
        left = f" ({', '.join(r['left_out'])} left out)" if r["left_out"] else ""
        text = (
            f"On {r['dataset']}, over {r['labels']} labels{left}, {r['attack']} by "
            f"{r['adversary']} reaches a mean AUC of {r['value']:.2f} against "
            f"{r['control_value']:.2f} for its own means; most is told of {r['most']}: "
            f"{r['most_value']:.2f} against {r['most_control']:.2f}."
        )
        values = {k: r[k] for k in ("value", "control_value", "advantage")}
        out.append(
            Finding(FindingKind.SEVERAL_LABELS, text, Location.of(r), r["adversary"], "label",
                    r["attack"], r["metric"], values)
        )  # fmt: skip
    return out
