"""The policy by which gates are judged: ordered rules, of which the first that speaks decides.

1. ``exceeded``: an attack is significantly beyond the limit. FAIL: a leak that was measured needs
   no other proof, so nothing that follows can hide it.
2. ``single_seed``: an attack has one seed, so there is no interval.
3. ``failed_runs``: a training or an attack failed, or gave no figure. What it would have found
   nobody knows.
4. ``reversed_ranking``: an answer with its labels flipped leaks significantly. Whoever knows which
   way round it is has them.
5. ``not_validated``: nothing shows that an attack works here. Silence of a broken attack proves
   nothing.
6. ``undecided``: an interval holds the limit.
7. ``either_direction``: an answer with its labels flipped is not shown to be within the limit.
8. ``underpowered``: too few rows or seeds, or figures that say nothing.
9. ``insensitive``: a gate with `detect` asks for a sensitivity that this audit does not have.
10. ``no_room``: beside an attack a control leaves less to gain than the limit, in every figure that
   was measured (:mod:`vflsec.audit.gate_candidate`), so that within it says nothing.
11. ``within``: all upper bounds are within the limit. PASS, with warnings where it says little.

All but the first and the last are INCONCLUSIVE. Where nothing was measured no rule is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter

from vflsec.audit import verdict_text
from vflsec.audit.gate import MIN_SEEDS, Gate, Rule, Ruling
from vflsec.audit.gate_candidate import Candidate
from vflsec.audit.point import Point
from vflsec.errors import capitalise

_SEEDS_ADVISED = 5
_value, _reversed_value = attrgetter("value"), attrgetter("reversed_value")


@dataclass(frozen=True)
class Weighed:
    """What the rules look at: the attacks of one gate at one point, with their bounds.

    Attributes:
        gate: what was asked.
        alpha: level of the bound that passes an attack.
        level: of the test that fails one, which is stricter where there are several.
        found: what has a figure.
        beyond: of these, what is significantly beyond the limit.
        highs: upper bounds of `found`; None for a single seed.
        missing: points without a figure.
        failed: points of which a seed failed.
        blocked: of `missing`, what stands in the way of a PASS.
        detectable, dosed, units: as of :class:`vflsec.audit.gate.Verdict`.
    """

    gate: Gate
    alpha: float
    level: float
    found: Sequence[Candidate]
    beyond: Sequence[Candidate]
    highs: Sequence[float | None]
    missing: Sequence[Point]
    failed: Sequence[Point]
    blocked: Sequence[Point]
    detectable: Mapping[str, float]
    dosed: Mapping[str, float | None]
    units: Mapping[str, str]

    @cached_property
    def high(self) -> float | None:
        """The largest upper bound; None where an attack has none."""
        known = [x for x in self.highs if x is not None]
        return max(known) if len(known) == len(self.highs) else None

    @cached_property
    def within(self) -> list[Candidate]:
        """What is shown to be within the limit."""
        pairs = zip(self.found, self.highs, strict=True)
        return [c for c, x in pairs if x is not None and x <= c.most]

    @cached_property
    def reversed_open(self) -> list[Candidate]:
        """Of these, what is not with its labels flipped."""
        return [c for c in self.within if c.is_reversed_open(self.alpha)]


Decided = tuple[Candidate, Ruling]
"""The attack that decides, and how: of those that a rule speaks of, the strongest."""


def _strongest(of: Iterable[Candidate]) -> Candidate:
    return max(of, key=_value)


def _exceeded(w: Weighed) -> Decided | None:
    if not w.beyond:
        return None
    lead = _strongest(w.beyond)
    return lead, Ruling(Rule.EXCEEDED, verdict_text.format_exceeded(lead, w.beyond, w.gate))


def _single_seed(w: Weighed) -> Decided | None:
    if w.high is not None:
        return None
    lead = _strongest(c for c, high in zip(w.found, w.highs, strict=True) if high is None)
    reason = f"{verdict_text.format_lack(lead.name, lead.n, MIN_SEEDS)}."
    return lead, Ruling(Rule.SINGLE_SEED, reason, _SEEDS_ADVISED - lead.n)


def _failed_runs(w: Weighed) -> Decided | None:
    if not (w.failed or w.blocked):
        return None
    reason = verdict_text.format_failed(w.failed, w.blocked)
    return _strongest(w.found), Ruling(Rule.FAILED_RUNS, reason)


def _reversed_ranking(w: Weighed) -> Decided | None:
    leaking = [c for c in w.reversed_open if c.is_reversed_leak(w.alpha)]
    if not leaking:
        return None
    lead = max(leaking, key=_reversed_value)
    far = lead.reversed_metric or lead.reversed_value > lead.limit
    more = None if far else verdict_text.seeds_to_add(leaking, w.alpha, w.level)
    cure = "" if more is None else f"; {verdict_text.format_seeds(more)}"
    reason = verdict_text.format_flipped(lead, cure, w.gate)
    return lead, Ruling(Rule.REVERSED_RANKING, reason, more)


def _not_validated(w: Weighed) -> Decided | None:
    idle = [c for c in w.found if c.not_validated]
    if not idle:
        return None
    lead = _strongest(idle)
    why = lead.not_validated
    assert why is not None
    reason = verdict_text.format_not_validated(lead.name, why.text, [c.name for c in idle])
    places = tuple(c.point.place for c in idle)
    return lead, Ruling(Rule.NOT_VALIDATED, reason, detail=why.code, not_validated=places)


def _undecided(w: Weighed) -> Decided | None:
    open_ = [c for c in w.found if c not in w.within]
    if not open_:
        return None
    more = verdict_text.seeds_to_add([*open_, *w.reversed_open], w.alpha, w.level)
    lead = _strongest(open_)
    reason = verdict_text.format_undecided(lead, more, w.gate)
    return lead, Ruling(Rule.UNDECIDED, reason, more, stuck=more is None)


def _either_direction(w: Weighed) -> Decided | None:
    if not w.reversed_open:
        return None
    more = verdict_text.seeds_to_add(w.reversed_open, w.alpha, w.level)
    lead = max(w.reversed_open, key=_reversed_value)
    cure = f"; {verdict_text.format_seeds(more)}"
    reason = verdict_text.format_flipped(lead, cure, w.gate)
    return lead, Ruling(Rule.EITHER_DIRECTION, reason, more)


def _underpowered(w: Weighed) -> Decided | None:
    lacking = [c for c in w.found if c.shortfall]
    if not lacking:
        return None
    lead = _strongest(lacking)
    short = lead.shortfall
    assert short is not None
    more = MIN_SEEDS - lead.n if lead.n < MIN_SEEDS else None
    return lead, Ruling(Rule.UNDERPOWERED, f"{short.text}.", more, short.code)


def _insensitive(w: Weighed) -> Decided | None:
    found = None if w.gate.detect is None else _find_insensitive(w)
    if found is None:
        return None
    reason = f"{capitalise(found.warning.text)}."
    return found.lead, Ruling(Rule.INSENSITIVE, reason, found.more)


def _no_room(w: Weighed) -> Decided | None:
    found = [(c, c.no_room) for c in w.found if c.no_room]
    if not found:
        return None
    lead, why = min(found, key=lambda pair: pair[1].room)
    reason = verdict_text.format_no_room(lead, why, w.gate)
    return lead, Ruling(Rule.NO_ROOM, reason, detail=why.decider, stuck=True)


def _within(w: Weighed) -> Decided:
    assert w.high is not None  # else a rule before has spoken
    found = _find_insensitive(w)
    lead = _strongest(c for c, high in zip(w.found, w.highs, strict=True) if high == w.high)
    reason = verdict_text.format_within(lead, w.high, w.found, w.missing, w.gate)
    reason += verdict_text.format_sensitivity(w.detectable, w.dosed, w.units, w.gate)
    if found is None:
        return lead, Ruling(Rule.WITHIN, reason)
    said = Ruling(Rule.WITHIN, reason + found.sentence, found.more, warnings=(found.warning,))
    return lead, said


def _find_insensitive(w: Weighed) -> verdict_text.Insensitive | None:
    return verdict_text.Insensitive.of(w.found, w.detectable, w.dosed, w.units, w.gate)


RULES: tuple[Callable[[Weighed], Decided | None], ...] = (
    _exceeded, _single_seed, _failed_runs, _reversed_ranking, _not_validated, _undecided,
    _either_direction, _underpowered, _insensitive, _no_room, _within,
)  # fmt: skip
"""The first that speaks decides; the last always does."""


def decide(weighed: Weighed) -> Decided:
    """What the first rule that speaks says."""
    return next(found for rule in RULES if (found := rule(weighed)) is not None)
