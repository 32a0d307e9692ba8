"""How strong a defense has to be: the least strength that meets a leakage target, and its cost.

Strengths are tried over whole cohorts (all seeds of a strength train together) in one results
directory, so nothing is trained twice. A strength *meets* the target if a gate with that
maximum of the advantage would pass there, were every attack validated: it is judged by the same
figures, bounds and rules; it is *affordable* if the upper bound of the utility drop, of the audit's
t interval, is within the given drop. The search halves the interval
between the strongest strength that fails and the weakest that meets, on a logarithmic scale, which
takes for granted that a stronger setting never leaks more. A strength picked because its bounds
look good looks better than it is, so the choice is then judged once more on seeds that had no part
in it.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vflsec.audit.defense_label import list_names
from vflsec.audit.gate import EPSILON, TASK, Gate, Rule, Verdict, WordedCode
from vflsec.audit.gate_selection import strip_label
from vflsec.audit.leakage import defense_point
from vflsec.audit.metrics import METRICS, find_reach, format_size, format_unit
from vflsec.audit.pareto_front import Trial, trials
from vflsec.audit.point import UNDEFENDED
from vflsec.audit.record import AttackFacts
from vflsec.audit.rounding import show, show_exact
from vflsec.audit.summary import Summary
from vflsec.audit.validated import Validation
from vflsec.config.components import flat_params
from vflsec.config.scenario import Scenario, load_scenario
from vflsec.config.sections import Gate as GateSection
from vflsec.core import check
from vflsec.engine.dry_run import make_plan
from vflsec.engine.run import run_audit
from vflsec.engine.tune_advice import list_acting, list_doubts, list_remedies
from vflsec.epsilon.claimed_vs_measured import pair_claims
from vflsec.errors import ConfigError, VflsecError
from vflsec.plan.feasible import find_largest
from vflsec.plan.values import Plan
from vflsec.plugins import registry
from vflsec.report.progress import pick_reporter
from vflsec.report.steps import advise_defenses
from vflsec.report.taxonomies import list_read
from vflsec.report.tree import Step
from vflsec.runtime.progress_protocol import Reporter
from vflsec.specs import DefenseSpec, Params


class Unasked(WordedCode):
    """Why a gate of the scenario judges no strength of a search."""

    OTHER_TARGET = "other_target", "its attacks have another target"
    NO_CLAIM = "no_claim", "no epsilon of this defense is tested"


@dataclass(frozen=True)
class Deployment:
    """What to write into the scenario for a strength.

    Attributes:
        defense, strength: what to add or change under ``[[defense]]``; strength 0 stays beside it.
        behind: the scenario's other defenses, which come before it; all apply.
        instead: those that it cannot be planned beside, and takes the place of.
        points: what gates name as their `defense` and `strength`, for each point that there is.
    """

    defense: str
    strength: float
    behind: tuple[str, ...]
    instead: tuple[str, ...]
    points: tuple[tuple[str, float | None], ...]


@dataclass(frozen=True)
class Tuned:
    """What the search found.

    Attributes:
        strength: the least that meets the target within the utility floor, and every gate where one
            of those tried does; None if there is none.
        reason: one sentence.
        trials: all strengths that were run, weakest first.
        fresh: the chosen strength on seeds that had no part in the choice; None if there is no
            choice or no confirmation was asked for.
        confirmed: whether `fresh` meets the target and the floor, and passes every gate of the
            scenario; None without it.
        next: what to try where there is no strength, or something speaks against it.
        deploy: what to write into the scenario for the chosen strength; None if that is 0, there
            is none, or fresh seeds do not confirm it.
        silent: attacks that are not shown to work, whose silence at that strength proves nothing.
        unasked: gates of the scenario that judge no strength here, by label, and why.
        without: the scenario's other defenses, which the search leaves out.
    """

    defense: str
    strength: float | None
    reason: str
    trials: tuple[Trial, ...]
    fresh: Trial | None = None
    confirmed: bool | None = None
    next: tuple[Step, ...] = ()
    deploy: Deployment | None = None
    silent: tuple[str, ...] = ()
    unasked: Mapping[str, Unasked] = field(default_factory=dict)
    without: tuple[str, ...] = ()


def tune(
    scenario: str | Path | Mapping[str, Any] | Scenario,
    defense: str,
    *,
    leak: float = 0.05,
    drop: float = 0.03,
    between: tuple[float, float] = (0.1, 100.0),
    rounds: int = 5,
    confirm: bool = True,
    target: str = "*",
    **how: Any,
) -> Tuned:
    """The cheapest strength of `defense` that meets a leakage target at a utility floor.

    Args:
        scenario: whose data, algorithm, attacks and seeds are used; the parameters of `defense`
            are taken from it too if it lists that defense once.
        defense: registered name of one that has a strength.
        leak: largest upper bound of an advantage that is accepted.
        drop: largest upper bound of a utility drop that is accepted.
        between: strengths to search between, 0 < low < high; none above the largest that has a
            meaning for `defense` in the scenario's systems is tried, and whole numbers alone where
            it counts something.
        rounds: halvings after both ends were tried.
        confirm: whether to judge the choice on as many fresh seeds, the numbers after those used.
        target: only attacks on this count, as in a gate (``label``, ``feature``, ...); ``*`` all.
        how: `of`, the metric whose advantage `leak` limits, as in a gate, by default the primary
            one; `progress`; `set`, overrides ``a.b=value``
            of the scenario; and what is passed on to
            :func:`vflsec.engine.run.run_audit` (seeds, device, jobs, ...); the
            results directory `out` is ``out/tune-DEFENSE`` by default.

    Raises:
        ConfigError: the defense has no strength, the bounds make no sense, or the scenario has no
            attack on `target` that can run.
    """
    of = str(how.pop("of", ""))
    name = registry.defenses.entry(defense).name
    kind: Any = registry.defenses.get(name)
    low, high = between
    high = min(check.positive("tune: high", high), kind.largest)
    _check_bounds(leak, of, drop, low, high, rounds)
    if kind.whole:
        low, high = float(math.ceil(low)), float(math.floor(high))
        if high <= low:
            rule = f"at least 1 above low in whole numbers ({kind.strengths})"
            raise check.fail("tune: high", rule, between[1])
    loaded = load_scenario(scenario, how.pop("set", ()))
    if not kind.strengths:
        raise ConfigError(f"tune: {name} has no strength.")
    out, progress = how.pop("out", None), how.pop("progress", None)
    folder = Path(out) if out is not None else Path("out") / f"tune-{name}"
    _check_target(loaded, target)
    limit = Gate(max=leak, target=target, of=of)
    search = _Search(loaded, _section(loaded, name), folder, how, limit, progress)
    largest = search.find_largest(low)
    tried = search.between(low, min(high, largest), leak, rounds)
    found = tuple(tried[s] for s in sorted(tried))
    strength, reason = _choose(found, leak, drop)
    seeds = how.get("seeds") or loaded.root.audit.seeds
    count = seeds if isinstance(seeds, int) else len(seeds)
    about: dict[str, Any] = {"unasked": search.unasked, "without": search.others}
    unproven, silent = search.silent, tuple(search.silent)
    if strength is None:
        more = list_remedies(
            largest, found, leak, drop, seeds=count, rounds=rounds, others=search.list_others
        )
        return Tuned(name, None, reason, found, next=more, **about)
    reason += _not_safer(strength, found, leak) + _format_epsilons(tried[strength], len(found))
    fresh, confirmed, met = None, None, False
    if confirm:
        new = _fresh(how.get("seeds"), loaded.root.audit.seeds)
        fresh = search.audited([strength], folder / "confirm", seeds=new)[strength]
        met = fresh.meets(leak) and fresh.drop_high <= drop
        confirmed = met and all(g.passes for g in fresh.gates)
        reason += f"{_format_fresh(fresh, new, leak, drop)}: {'' if confirmed else 'not '}confirmed"
        reason += f" without {' and '.join(search.others)}." if search.others else "."
        if any(g.rule is Rule.NOT_VALIDATED for g in fresh.gates):
            unproven = search.silent | unproven
    attacks = {f"{k} ({a.text})": a for k, a in unproven.items()}
    doubts = list_doubts(fresh, leak, attacks, seeds=count, met=met, target=target)
    deploy = search.deploy(strength) if strength and confirmed is not False else None
    return Tuned(name, strength, reason, found, fresh, confirmed, doubts, deploy, silent, **about)


def _format_epsilons(chosen: Trial, count: int) -> str:
    """The epsilons of a choice, and that they do not cover choosing (Papernot and Steinke 2022)."""
    if chosen.claimed is None:
        return ""
    return (
        f"{chosen.epsilons()} That epsilon is of one training; it does not cover choosing among "
        f"{count} strengths."
    )


def _format_fresh(trial: Trial, seeds: Sequence[int], leak: float, drop: float) -> str:
    """What seeds show that had no part in the choice."""
    many, passed = len(trial.gates), sum(g.passes for g in trial.gates)
    gates = f", and {passed} of {many} gates of the scenario pass" if many else ""
    on, lost = f" On fresh seeds {seeds[0]} to {seeds[-1]}", show(trial.drop_high, drop)
    if math.isinf(trial.leak_high):
        return (
            f"{on} {trial.named} has too few figures for an upper bound; that of the loss of "
            f"utility is {lost}{gates}"
        )
    most = f"{trial.format_gain(trial.leak_high, leak)} (advantage{trial.unit})"
    return f"{on} the upper bounds are {most} and {lost} (loss of utility){gates}"


def _not_safer(strength: float, found: Sequence[Trial], leak: float) -> str:
    """That a stronger setting leaks, so that what is advised holds at that strength alone."""
    worse = [t for t in found if t.strength > strength and not t.failed and not t.meets(leak)]
    if not worse:
        return ""
    top = max(worse, key=lambda t: t.find_excess(leak))
    at = f"at strength {show_exact(top.strength)}"
    if top.leak_high > leak:
        what = f"leaks: {top.format_gain(top.leak_high, leak)} ({top.named}) {at}"
    else:
        what = f"may expose single rows {at}"
    return f" A stronger setting {what}."


def _name_points(
    stacks: Iterable[Sequence[DefenseSpec]], name: str, strength: float
) -> tuple[tuple[str, float | None], ...]:
    """How gates name the points at which a defense has a strength, by bare names if these do."""
    points = {defense_point(s): any((d.name, d.strength) == (name, strength) for d in s)
              for s in stacks}  # fmt: skip
    bare = Counter((list_names(label), at) for label, at in points)
    named: dict[tuple[str, float | None], None] = {}
    for (label, at), wanted in points.items():
        short = (list_names(label), at)
        if wanted:
            named[short if bare[short] == 1 else (label, at)] = None
    return tuple(named)


def _check_bounds(leak: float, of: str, drop: float, low: float, high: float, rounds: int) -> None:
    if of:
        check.one_of("tune: of", of, METRICS)
    for key, value, rule in (
        ("low", low, check.positive), ("drop", drop, check.non_negative),
        ("leak", leak, check.finite), ("rounds", rounds, check.at_least(0)),
    ):  # fmt: skip
        rule(f"tune: {key}", value)
    if leak >= (most := find_reach("advantage", of)[1]):
        raise check.fail("tune: leak", f"below {most:g}, the most an advantage can reach", leak)
    if high <= low:
        raise check.fail("tune: high", f"above low ({low:g})", high)


class _Search:
    """Audits of one defense at strengths that are found on the way."""

    def __init__(
        self, loaded: Scenario, section: Params, folder: Path, how: Mapping[str, Any],
        limit: Gate, progress: Reporter | bool | None = None,
    ) -> None:  # fmt: skip
        self.progress = progress
        self.loaded, self.section, self.folder, self.how = loaded, section, folder, how
        self.limit, self.target = limit, limit.target
        self.tried: dict[float, Trial] = {}
        self.silent: dict[str, Validation] = {}
        self.attacks: dict[str, AttackFacts] = {}
        self.whole: bool = getattr(registry.defenses.get(str(section["name"])), "whole", False)
        others = dict.fromkeys(registry.defenses.entry(d.name).name for d in loaded.root.defense)
        others.pop(str(section["name"]), None)
        claims = getattr(registry.defenses.get(str(section["name"])), "counted", "")
        self.gates, self.unasked = _divide_gates(
            loaded, self.target, claims=bool(claims) and loaded.root.audit.canaries
        )
        self.others = tuple(others)

    def audited(self, strengths: Sequence[float], where: Path, **how: Any) -> dict[float, Trial]:
        """What is measured at each strength, and undefended. Gates judge fresh seeds by all attacks
        of the scenario, and the limits those on the target.
        """
        grid = sorted({0.0, *strengths})
        overrides = [f"defense=[{_inline({**self.section, 'strength': grid})}]"]
        overrides.append(f"gate=[{', '.join(map(_inline, self._ask(defended=len(grid) > 1)))}]")
        if where == self.folder and self.loaded.root.audit.positive_control:
            overrides.append("audit.positive_control='always'")  # it asks, whatever gates do
        if self.target != "*" and (where == self.folder or not self.gates):
            asked = [
                a.model_dump(exclude_unset=True) for a in self.loaded.root.attack
                if _target_of(a.name) == self.target
            ]  # fmt: skip
            overrides.append(f"attack=[{', '.join(map(_inline, asked))}]")
        scenario = load_scenario(self.loaded, overrides, components=False)
        how = {**self.how, **how}
        progress = pick_reporter(self.progress)
        progress.note(f"{self.section['name']} at {', '.join(map(show_exact, grid))}:")
        audit = run_audit(scenario, where, progress=progress, **how)
        summary, verdicts = audit.found, audit.verdicts
        self.attacks |= {a.label: a for a in summary.attacks.values()}
        self.silent = {k: a for k, a in summary.alive.items() if not a.validated}
        both = _claims(summary)
        both |= {s: pair for (_, s), pair in pair_claims(verdicts).items()}
        made = {}
        limit = replace(self.limit, confidence=summary.confidence)
        for t in trials(audit.points, limit):
            claimed, measured = both.get(t.strength, (None, None))
            gates = _judged(verdicts, t.strength)
            made[t.strength] = replace(t, claimed=claimed, measured=measured, gates=gates)
        return made

    def _ask(self, *, defended: bool) -> list[dict[str, Any]]:
        """The gates of the scenario, of every strength of the grid, whichever they name."""
        asked = []
        for gate in self.gates:
            bare = gate.defense == UNDEFENDED or gate.strength == 0
            if defended or gate.metric != "utility_drop":  # undefended, nothing is lost
                told = gate.model_dump(exclude_none=True, exclude={"strength"})
                asked.append(told | {"defense": UNDEFENDED if bare else "*"})
        return asked

    def list_others(self, attack: str) -> list[Step]:
        """What else acts on the messages that an attack reads, and the planner takes."""
        sections = self.loaded.root.algorithm
        systems = [registry.algorithms.create(a.name, flat_params(a)) for a in sections]
        of, there = (
            self.attacks.get(attack, AttackFacts()),
            (str(self.section["name"]), *self.others),
        )
        kinds, acting = sorted(list_read(of.needs)), list_acting(systems)
        return advise_defenses([attack], kinds, acting, there, self.accepts, [of.target])

    def accepts(self, defense: str) -> bool:
        """Whether the planner takes another defense in the place of the one that is searched."""
        kind: Any = registry.defenses.get(defense)
        section = {"name": defense} | ({"strength": kind.trial[1:2]} if kind.strengths else {})
        try:
            self._plan(_inline(section))
        except VflsecError:
            return False
        return True

    def deploy(self, strength: float) -> Deployment:
        """What to write into the scenario, as the planner takes it."""
        name = str(self.section["name"])
        mine = _inline({**self.section, "strength": [0.0, strength]})
        beside = [
            _inline(d.model_dump(exclude_unset=True)) for d in self.loaded.root.defense
            if registry.defenses.entry(d.name).name != name
        ]  # fmt: skip
        behind, instead = self.others, tuple[str, ...]()
        try:
            plan = self._plan(", ".join([*beside, mine]))
        except VflsecError:
            plan, behind, instead = self._plan(mine), (), self.others
        stacks = (c.defenses for g in plan.groups if g.role == "audit" for c in g.cells)
        return Deployment(name, strength, behind, instead, _name_points(stacks, name, strength))

    def find_largest(self, low: float) -> float:
        """The largest strength of the defense that has a meaning in some system of the scenario.

        Raises:
            ConfigError: it is below `low`.
        """
        kind: Any = registry.defenses.get(str(self.section["name"]))
        largest = find_largest(str(self.section["name"]), self._plan(try_out=False).groups)
        if low > largest:
            rule = f"at most {largest:g}, all there are ({kind.strengths})"
            raise check.fail("tune: low", rule, low)
        return largest

    def _plan(self, defense: str = "", *, try_out: bool = True) -> Plan:
        """What one seed of the scenario takes with another defense, or with none."""
        sets = [f"defense=[{defense}]", "gate=[]", "audit.seeds=[0]"]
        return make_plan(load_scenario(self.loaded, sets, components=False), try_out=try_out)

    def run(self, strengths: Sequence[float]) -> None:
        """Try further strengths; what was tried before is not done again."""
        self.tried.update(self.audited([*self.tried, *strengths], self.folder))

    def between(self, low: float, high: float, leak: float, rounds: int) -> dict[float, Trial]:
        """Halve, on a logarithmic scale, the stretch in which the leak passes the target.

        Where the upper bound at the strongest is beyond it and the mean within, by the means: a
        weaker strength may have a closer bound.
        """
        self.run([low, high])
        tried = self.tried
        met = Trial.meets if tried[high].meets(leak) else Trial.is_near
        if not any(met(tried[s], leak) for s in (0.0, low)) and met(tried[high], leak):
            bottom, top = low, high
            for _ in range(rounds):
                middle = float(f"{math.sqrt(bottom * top):.4g}")
                if self.whole and (middle := float(round(middle))) in (bottom, top):
                    break
                self.run([middle])
                if met(tried[middle], leak):
                    top = middle
                else:
                    bottom = middle
        return tried


def _claims(summary: Summary) -> dict[float | None, tuple[float | None, float | None]]:
    """(largest epsilon that is claimed, None) by strength, of what may not have been tested."""
    out: dict[float | None, tuple[float | None, float | None]] = {}
    for point in summary.cost.points:
        made = [g.epsilon for g in point.guarantees if g.epsilon is not None]
        if point.role == "audit" and made:
            out[point.strength] = (max(made), None)
    return out


def _judged(verdicts: Sequence[Verdict], strength: float) -> tuple[Verdict, ...]:
    """What all gates say of a strength; those on the undefended run say it of each."""
    return tuple(
        v for v in verdicts if v.strength in (strength, None) or v.gate.defense == UNDEFENDED
    )


def _divide_gates(
    loaded: Scenario, target: str, *, claims: bool
) -> tuple[list[GateSection], dict[str, Unasked]]:
    """The gates that judge strengths of a defense; labels of the others, each with why not."""
    asked, unasked = [], {}
    for section, gate in zip(loaded.root.gate, loaded.list_gates(), strict=True):
        of = gate.target if gate.attack == "*" else _target_of(strip_label(gate.attack))
        if gate.metric == EPSILON and not claims:
            unasked[gate.label] = Unasked.NO_CLAIM
        elif gate.metric not in (*TASK, EPSILON) and "*" not in (of, target) and of != target:
            unasked[gate.label] = Unasked.OTHER_TARGET
        else:
            asked.append(section)
    return asked, unasked


def _check_target(loaded: Scenario, target: str) -> None:
    """Refuse a target that no attack of the scenario has; ``*`` is all."""
    found = {_target_of(a.name) for a in loaded.root.attack}
    check.one_of("tune: target", target, ["*", *sorted(found)])


def _target_of(attack: str) -> str:
    kind: Any = registry.attacks.get(attack)
    return str(kind.target)


def _fresh(given: int | Sequence[int] | None, listed: Sequence[int]) -> list[int]:
    """As many seeds as were used, from the number after the largest on."""
    used = range(given) if isinstance(given, int) else given or listed
    start = max(used) + 1
    return list(range(start, start + len(used)))


def _choose(found: Sequence[Trial], leak: float, drop: float) -> tuple[float | None, str]:
    meets = [t for t in found if t.meets(leak)]
    good = [t for t in meets if t.drop_high <= drop]
    if good:
        best = min(good, key=lambda t: (not all(g.passes for g in t.gates), t.strength))
        if best.strength == 0:
            return (
                0.0,
                f"Undefended, every upper bound is within {best.format_limit(leak)} already.",
            )
        least = min(t.strength for t in good)
        weaker = " Weaker ones do not pass every gate." if best.strength > least else ""
        return best.strength, (
            f"At strength {best.strength:g} the worst upper bound is "
            f"{best.format_gain(best.leak_high, leak)} ({best.named}) and utility falls by at most "
            f"{show(best.drop_high, drop)}.{weaker}"
        )
    if meets:
        best = min(meets, key=lambda t: t.drop_high)
        first = min(t.strength for t in meets)
        return None, (
            f"Leakage is within {best.format_limit(leak)} from strength {first:g} on, but utility "
            f"may fall by {show(best.drop_high, drop)}, more than {drop:g}."
        )
    return None, _explain_leak(found, leak)


def _explain_leak(found: Sequence[Trial], leak: float) -> str:
    """What is in the way where no strength meets the target."""
    whole = [t for t in found if not t.failed]
    least = min(whole or found, key=lambda t: t.find_excess(leak))
    if whole and least.leak_high <= leak and (gate := least.exposing):
        first = min(t.strength for t in whole if t.leak_high <= leak)
        return (
            f"Averages are within {least.format_limit(leak)} from strength {first:g} on, but "
            f"single rows may be exposed. Strength {least.strength:g} comes closest, with an upper "
            f"bound of {format_size(gate.high or 0.0, gate.limited, gate.threshold)}"
            f"{format_unit(gate.limited)} ({gate.label})."
        )
    failed = [f" At strength {t.strength:g}: {t.failed.reason}" for t in found if t.failed]
    said = "No strength is shown to be within the limits." if not whole else (
        f"No strength brings every upper bound within {least.format_limit(leak)}: the lowest is "
        f"{least.format_gain(least.leak_high, leak)} ({least.named}) at strength "
        f"{least.strength:g}."
    )  # fmt: skip
    return said + "".join(failed[:1])


def _section(loaded: Scenario, name: str) -> dict[str, Any]:
    """The scenario's own section of the defense without what is swept, or a bare one."""
    natural = getattr(registry.defenses.get(name), "natural", {})
    listed = [
        d
        for d in loaded.resolved().get("defense", [])
        if registry.defenses.entry(d["name"]).name == name
    ]
    if len(listed) != 1:
        return {"name": name}
    return {k: v for k, v in listed[0].items() if k != "strength" and k not in natural}


def _inline(section: Params) -> str:
    """A TOML inline table of texts, numbers, truth values and lists of them."""
    return "{" + ", ".join(f"{k} = {json.dumps(v)}" for k, v in section.items()) + "}"
