"""What an attack reaches on all of several labels: their mean, and the label that it tells most of.

A mean hides a label that leaks among many that do not, so verdicts rest on each label with its own
controls and intervals, corrected for their number (:mod:`vflsec.audit.gate`); this is beside them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from vflsec.audit import intervals
from vflsec.audit.attack_names import find_attack, tell_apart
from vflsec.audit.findings import Finding, FindingKind
from vflsec.audit.point import Grants, Identity
from vflsec.audit.record import AttackFacts
from vflsec.audit.result_row import ResultRow

_ATTACK = ("dataset", "algorithm", "phase", "adversary", "attack_key")


@dataclass(frozen=True, slots=True)
class LabelRow(Identity):
    """An attack on several labels; the figures are means over those with one in every seed.

    Attributes:
        labels, seeds: how many there are.
        left_out: labels without a figure.
        value, low, high: of the attack, with the t interval over seeds; None without a label.
        control_value, advantage: of each label's strongest control.
        most: the label of the largest advantage, '' where none has a figure; its own figures are
            ``most_value``, ``most_control`` and ``most_advantage``.
    """

    labels: int = 0
    left_out: tuple[str, ...] = ()
    seeds: int = 0
    value: float | None = None
    low: float | None = None
    high: float | None = None
    control_value: float | None = None
    advantage: float | None = None
    most: str = ""
    most_value: float | None = None
    most_control: float | None = None
    most_advantage: float | None = None


def by_label(
    rows: Iterable[ResultRow], attacks: Mapping[str, AttackFacts], confidence: float
) -> list[LabelRow]:
    """One row for each attack on several labels, at each point and split.

    Args:
        rows: of :func:`vflsec.audit.leakage.complete_rows`, of an audit.
        attacks: what they are by key; those on one of several labels have a name without it.
        confidence: of the two-sided t interval over seeds.
    """
    groups: dict[Identity, dict[str, dict[int, ResultRow]]] = defaultdict(dict)
    for r in rows:
        spec = attacks.get(r.attack_key, AttackFacts())
        if r.of_label and spec.every_label and r.metric == r.primary and "@" not in r.phase:
            at = replace(
                r.without("of_label", "target", "victim"), attack=spec.every_label,
                attack_key=spec.section,
            )  # fmt: skip
            groups[at].setdefault(r.of_label, {})[r.seed] = r
    return [_over(at, of, confidence) for at, of in groups.items()]


def _over(at: Identity, of: Mapping[str, Mapping[int, ResultRow]], confidence: float) -> LabelRow:
    """Figures of one attack at one point, from its rows by label and seed."""
    seeds = sorted({s for rows in of.values() for s in rows})
    scored = {
        label: rows
        for label, rows in of.items()
        if sorted(rows) == seeds and all(r.advantage is not None for r in rows.values())
    }
    left = tuple(label for label in of if label not in scored)
    if not scored:
        return LabelRow(**at.as_dict(), left_out=left, seeds=len(seeds))
    value, control, gain = (
        np.array([[getattr(rows[s], what) for s in seeds] for rows in scored.values()], float)
        for what in ("value", "control_value", "advantage")
    )  # each (L, seeds)
    low, high = intervals.t_interval(value.mean(axis=0), confidence)
    k = int(gain.mean(axis=1).argmax())
    return LabelRow(
        **at.as_dict(), labels=len(scored), left_out=left, seeds=len(seeds),
        value=float(value.mean()),
        low=intervals.clip_bound(low, (0.0, 1.0)), high=intervals.clip_bound(high, (0.0, 1.0)),
        control_value=float(control.mean()), advantage=float(gain.mean()), most=list(scored)[k],
        most_value=float(value[k].mean()), most_control=float(control[k].mean()),
        most_advantage=float(gain[k].mean()),
    )  # fmt: skip


def build_label_findings(
    rows: Iterable[LabelRow], grants: Mapping[str, Grants] | None = None
) -> list[Finding]:
    """A finding for each attack on several labels without a defense, of test rows if there are.

    Args:
        rows: of :func:`by_label`.
        grants: what is not usual of attacks, by section.
    """
    bare = [r for r in rows if r.is_undefended and r.most]
    tested = {r.keep(*_ATTACK) for r in bare if r.split == "test"}
    apart, out = tell_apart(bare, grants), []
    for r in bare:
        if r.split != "test" and r.keep(*_ATTACK) in tested:
            continue
        left = f" ({', '.join(r.left_out)} left out)" if r.left_out else ""
        name = f"{r.attack} {apart[find_attack(r)]}".strip()
        text = (
            f"{r.dataset}: {name} by {r.adversary}, mean AUC of {r.labels} labels{left} "
            f"{r.value:.2f}, baseline {r.control_value:.2f}; {r.most} {r.most_value:.2f}, baseline "
            f"{r.most_control:.2f}."
        )
        values = {"value": r.value, "control_value": r.control_value, "advantage": r.advantage}
        out.append(
            Finding(FindingKind.SEVERAL_LABELS, text, replace(r.identity, target="label"),
                    {k: v for k, v in values.items() if v is not None})
        )  # fmt: skip
    return out
