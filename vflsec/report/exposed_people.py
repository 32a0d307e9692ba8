"""How many of 1,000 people an attacker names with certainty, in sentences."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from vflsec.audit.controls import CHANCE, FALLBACK
from vflsec.audit.exposed import Exposed
from vflsec.audit.point import Identity, Point
from vflsec.audit.strongest_attack import format_secret
from vflsec.report.summary import Summary
from vflsec.report.verdicts import place

_APART = ("phase", "attack", "attack_key", "of_label", "known_rows", "split", "metric")
"""Fields in which the tries of one attacker for one secret differ."""


@dataclass(frozen=True)
class ExposedRow:
    """The most people that an attacker names at one point, corrected for the tries.

    Attributes:
        point: the attack.
        of: what it names, over all controls.
        low, high: interval of its share, at the confidence of the audit over all tries.
        tries: attacks, rows, stages and rates of false alarms among which it is the most.
        scored: rows of a training that were scored, of classes that cannot be named too.
    """

    point: Point
    of: Exposed
    low: float
    high: float
    tries: int
    scored: int

    @property
    def people(self) -> str:
        """Of whom it is a share: a class of more than four rows in five is left out."""
        return "people outside the largest class" if self.point.n < self.scored else "people"


def find_exposed(summary: Summary) -> list[ExposedRow]:
    """Of each attacker and secret, without a defense and where a gate judges, who is exposed.

    Left out where nobody surely is.
    """
    judged = {v.training for v in summary.gates if v.gate.metric != "epsilon_lower"}
    groups: dict[Identity, list[Point]] = defaultdict(list)
    for p in summary.points:
        if p.exposed is not None and (p.is_undefended or p.training in judged):
            groups[p.without(*_APART)].append(p)
    scored = {p.answer: p.n for p in summary.points if p.metric == p.primary}
    found = (_find_most(of, summary.confidence, scored) for of in groups.values())
    return [row for row in found if row is not None]


def _find_most(
    points: Sequence[Point], confidence: float, scored: Mapping[Identity, int]
) -> ExposedRow | None:
    """The most that surely is exposed of several tries; None where nobody is."""
    tail = (1 - confidence) / (2 * len(points))
    sure = []
    for p in points:
        if p.exposed is None or p.leakage is None:
            continue
        low, high = p.leakage.lower(tail), p.leakage.upper(tail)
        if low is not None and high is not None and low > 0:
            rows = scored.get(p.answer, p.n)
            sure.append(ExposedRow(p, p.exposed, low, min(1.0, high), len(points), rows))
    return max(sure, key=lambda row: (row.of.share, -row.of.false_alarms), default=None)


def format_exposed(dataset: str, rows: Iterable[ExposedRow]) -> list[str]:
    """``toy, with iso 5: of 1,000 people 50 [40, 60] are exposed with certainty to shop ...``."""
    here = [row for row in rows if row.point.dataset == dataset]
    several = len({row.point.algorithm for row in here}) > 1
    return [_format(row, several) for row in here]


def _format(row: ExposedRow, several: bool) -> str:
    p, of = row.point, row.of
    where = f"trained by {p.algorithm}, " if several else ""
    where += "without a defense" if p.is_undefended else f"with {place(p)}"
    sure = "with certainty" if not of.false_alarms else "at one false alarm in 1,000"
    own = "guessing" if of.control in (CHANCE, FALLBACK) else f"its baseline ({of.control})"
    text = (
        f"{p.dataset}, {where}: of 1,000 {row.people} {_many(of.share)} "
        f"[{_many(row.low)}, {_many(row.high)}] are exposed {sure} to {p.adversary}, beyond the "
        f"{_many(of.own)} that {own} names. Exposed: {format_secret(p)}, by {p.attack} on "
        f"{p.split} rows."
    )
    if of.sure > of.own_sure:
        text += (
            f" Of the tenth of rows about which it is surest, {of.sure:.0%} are right; of its "
            f"baseline's, {of.own_sure:.0%}."
        )
    if of.worst is not None and of.worst.share - of.worst.own > of.share:
        gain = _many(of.worst.share - of.worst.own)
        text += f" Worst class: {of.worst.label}, with {gain} of 1,000."
    return text


def _many(share: float) -> str:
    return f"{1000 * share:.0f}"
