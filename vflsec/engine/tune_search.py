"""How strong a defense has to be: the least strength that meets a leakage target, and its cost.

Strengths are tried over whole cohorts (all seeds of a strength train together) in one results
directory, so nothing is trained twice. A strength *meets* the target if the upper bound of every
attack's advantage over the controls is within it, turned round or not, and no attack and no
training failed there on any seed; it is *affordable* if the upper bound of the utility drop is
within the given drop; bounds are those of the audit's t intervals. The search halves the interval
between the strongest strength that fails and the weakest that meets, on a logarithmic scale, which
takes for granted that a stronger setting never leaks more. A strength picked because its bounds
look good looks better than it is, so the choice is then judged once more on seeds that had no part
in it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vflsec.audit.gate import MIN_SEEDS
from vflsec.audit.pareto_front import Trial, trials
from vflsec.audit.result_row import ResultRow, read_rows
from vflsec.audit.rounding import show, show_exact
from vflsec.config.scenario import Scenario, load_scenario
from vflsec.config.sections import Gate
from vflsec.core import check
from vflsec.engine.run import run_audit
from vflsec.engine.tune_advice import list_remedies
from vflsec.epsilon.claimed_vs_measured import pair_claims
from vflsec.errors import ConfigError
from vflsec.plugins import registry
from vflsec.report.taxonomies import list_read
from vflsec.runtime.progress_protocol import Reporter
from vflsec.specs import Params


@dataclass(frozen=True)
class Tuned:
    """What the search found.

    Attributes:
        strength: the least that meets the target within the utility floor, None if there is none.
        reason: one sentence.
        trials: all strengths that were run, weakest first.
        fresh: the chosen strength on seeds that had no part in the choice; None if there is no
            choice or no confirmation was asked for.
        confirmed: whether `fresh` meets the target and the floor; None without it.
        next: where there is no strength, or fresh seeds do not confirm it, what to try, one
            sentence each, with the options to set.
        deploy: what to write into the scenario for the chosen strength; '' if there is none, or
            fresh seeds do not confirm it.
        silent: attacks that are not shown to work, whose silence at that strength proves nothing.
    """

    defense: str
    strength: float | None
    reason: str
    trials: tuple[Trial, ...]
    fresh: Trial | None = None
    confirmed: bool | None = None
    next: tuple[str, ...] = ()
    deploy: str = ""
    silent: tuple[str, ...] = ()


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
            meaning for `defense` is tried, and whole numbers alone where it counts something.
        rounds: halvings after both ends were tried.
        confirm: whether to judge the choice on as many fresh seeds, the numbers after those used.
        target: only attacks on this count, as in a gate (``label``, ``feature``, ...); ``*`` all.
        how: `progress`, which makes what is told of each audit; and what is passed on to
            :func:`vflsec.engine.run.run_audit` (seeds, device, jobs, ...); the
            results directory `out` is ``out/tune-DEFENSE`` by default.

    Raises:
        ConfigError: the defense has no strength, the bounds make no sense, or the scenario has no
            attack on `target` that can run.
    """
    name = registry.defenses.entry(defense).name
    kind: Any = registry.defenses.get(name)
    low, high = between
    high = min(check.positive("tune: high", high), kind.largest)
    _check_bounds(leak, drop, low, high, rounds)
    if kind.whole:
        low, high = float(math.ceil(low)), float(math.floor(high))
        if high <= low:
            rule = f"at least 1 above low in whole numbers ({kind.strengths})"
            raise check.fail("tune: high", rule, between[1])
    loaded = load_scenario(scenario)
    if not kind.strengths:
        raise ConfigError(f"tune: {name} has no strength.")
    out, progress = how.pop("out", None), how.pop("progress", Reporter)
    folder = Path(out) if out is not None else Path("out") / f"tune-{name}"
    search = _Search(
        loaded, _section(loaded, name), folder, how, _targeted(loaded, target), progress
    )
    tried = search.between(low, high, leak, rounds)
    found = tuple(tried[s] for s in sorted(tried))
    strength, reason = _choose(found, leak, drop)
    reason += search.alone
    if strength is not None:
        reason += _not_safer(strength, found, leak)
        reason += tried[strength].epsilons()
        if tried[strength].claimed is not None:  # Papernot and Steinke 2022
            reason += (
                " That epsilon is of one training; it does not cover choosing among "
                f"{len(found)} strengths."
            )
        reason += "".join(
            f" {name} is not validated here ({why})." for name, why in search.silent.items()
        )
    if strength is None:
        given = how.get("seeds") or loaded.root.audit.seeds
        count = given if isinstance(given, int) else len(given)
        more = list_remedies(
            name, found, leak, drop, seeds=count, rounds=rounds, reads=search.reads
        )
        if count < MIN_SEEDS:
            more = (f"Nothing passes on fewer than {MIN_SEEDS} seeds: --seeds 5.", *more)
        return Tuned(name, None, reason, found, next=more)
    deploy = _deploy(name, strength, search.others) if strength else ""
    silent = tuple(search.silent)
    alive = () if not silent else (
        f"No gate passes beside {' and '.join(silent)}: grant more (known_rows or aux_rows), or "
        "leave it out.",
    )  # fmt: skip
    if not confirm:
        return Tuned(name, strength, reason, found, next=alive, deploy=deploy, silent=silent)
    seeds = _fresh(how.get("seeds"), loaded.root.audit.seeds)
    fresh = search.audited([strength], folder / "confirm", seeds=seeds)[strength]
    met = fresh.meets(leak) and fresh.drop_high <= drop
    reason += (
        f" On fresh seeds {seeds[0]} to {seeds[-1]} the bounds are "
        f"{show(fresh.leak_high, leak, '+.3f')} and {show(fresh.drop_high, drop)}: "
        f"{'' if met else 'not '}confirmed."
    )
    more = () if met else (
        f"Set --seeds {2 * len(seeds)}, or a lower --leak.",
    )  # fmt: skip
    deploy = deploy if met else ""
    return Tuned(name, strength, reason, found, fresh, met, (*more, *alive), deploy, silent)


def _not_safer(strength: float, found: Sequence[Trial], leak: float) -> str:
    """That a stronger setting leaks, so that what is advised holds at that strength alone."""
    worse = [t for t in found if t.strength > strength and not t.failed and not t.meets(leak)]
    if not worse:
        return ""
    top = max(worse, key=lambda t: t.leak_high)
    return (
        f" A stronger setting leaks: {show(top.leak_high, leak, '+.3f')} ({top.attack}) at "
        f"strength {show_exact(top.strength)}."
    )


def _deploy(name: str, strength: float, others: Sequence[str]) -> str:
    """How a scenario says it, and how its gates name the point; beside others both apply."""
    value = show_exact(strength)  # another one was not tried
    grid, stack = f"strength = [0, {value}] under {name}", name
    if others:  # the search left them out
        grid = f"{grid}, a [[defense]] behind {' and '.join(others)}"
        stack = " + ".join([*others, f"{name}(strength={float(strength)})"])
        return f"{grid}; in its gates defense = {stack!r} and strength that of {others[0]}."
    return f"{grid}; in its gates defense = {stack!r} and strength = {value}."


def _check_bounds(leak: float, drop: float, low: float, high: float, rounds: int) -> None:
    for key, value, rule in (
        ("low", low, check.positive), ("drop", drop, check.non_negative),
        ("leak", leak, check.finite), ("rounds", rounds, check.at_least(0)),
    ):  # fmt: skip
        rule(f"tune: {key}", value)
    if high <= low:
        raise check.fail("tune: high", f"above low ({low:g})", high)


_ANY = {"metric": "advantage", "max": 0.1}


class _Search:
    """Audits of one defense at strengths that are found on the way."""

    def __init__(
        self, loaded: Scenario, section: Params, folder: Path, how: Mapping[str, Any],
        target: str = "*", progress: Callable[[], Reporter] = Reporter,
    ) -> None:  # fmt: skip
        self.progress = progress
        self.loaded, self.section, self.folder, self.how = loaded, section, folder, how
        self.target = target
        self.tried: dict[float, Trial] = {}
        self.silent: dict[str, str] = {}
        self.reads: dict[str, set[str]] = {}
        self.whole: bool = getattr(registry.defenses.get(str(section["name"])), "whole", False)
        others = dict.fromkeys(registry.defenses.entry(d.name).name for d in loaded.root.defense)
        others.pop(str(section["name"]), None)
        claims = getattr(registry.defenses.get(str(section["name"])), "counted", "")
        self.claims = bool(claims) and loaded.root.audit.canaries
        self.others = tuple(others)
        self.alone = f" Without {', '.join(others)}, which the scenario has." if others else ""

    def audited(self, strengths: Sequence[float], where: Path, **how: Any) -> dict[float, Trial]:
        """What is measured at each strength, and undefended."""
        grid = sorted({0.0, *strengths})
        overrides = [f"defense=[{_inline({**self.section, 'strength': grid})}]"]
        gates = [g.model_dump(exclude_none=True) for g in self.loaded.root.gate if self._is_free(g)]
        if self.loaded.root.gate and not gates and where == self.folder:
            gates = [_ANY]  # without a gate no planted leak runs, which shows that attacks work
        overrides.append(f"gate=[{', '.join(map(_inline, gates))}]")
        if self.target != "*":
            asked = [
                a.model_dump(exclude_unset=True) for a in self.loaded.root.attack
                if _target_of(a.name) == self.target
            ]  # fmt: skip
            overrides.append(f"attack=[{', '.join(map(_inline, asked))}]")
        scenario = load_scenario(self.loaded, overrides, components=False)
        how = {**self.how, **how}
        audit = run_audit(scenario, where, progress=self.progress(), **how)
        summary = getattr(audit, "summary", {})
        of = summary.get("attacks", {}).values()
        of = [spec for spec in of if self.target in ("*", spec["target"])]
        self.reads |= {spec["label"]: list_read(spec["needs"]) for spec in of}
        rows = read_rows(audit.results)
        self.silent = _silent(summary, self.target, _find_impossible(rows))
        both = _claims(summary)
        both |= {s: pair for (_, s), pair in pair_claims(getattr(audit, "verdicts", ())).items()}
        return {
            t.strength: replace(t, claimed=both[t.strength][0], measured=both[t.strength][1])
            if t.strength in both
            else t
            for t in trials(_on(rows, self.target))
        }

    def _is_free(self, gate: Gate) -> bool:
        """Whether a gate holds at every strength, so that another grid can answer it."""
        if gate.metric == "epsilon_lower" and not self.claims:
            return False
        return gate.strength is None and gate.defense in ("*", "none", "defended")

    def run(self, strengths: Sequence[float]) -> None:
        """Try further strengths; what was tried before is not done again."""
        self.tried.update(self.audited([*self.tried, *strengths], self.folder))

    def between(self, low: float, high: float, leak: float, rounds: int) -> dict[float, Trial]:
        """Halve, on a logarithmic scale, the stretch in which the leak passes the target."""
        self.run([low, high])
        tried = self.tried
        if not any(tried[s].meets(leak) for s in (0.0, low)) and tried[high].meets(leak):
            bottom, top = low, high
            for _ in range(rounds):
                middle = float(f"{math.sqrt(bottom * top):.4g}")
                if self.whole and (middle := float(round(middle))) in (bottom, top):
                    break
                self.run([middle])
                if tried[middle].meets(leak):
                    top = middle
                else:
                    bottom = middle
        return tried


def _claims(
    summary: Mapping[str, Any],
) -> dict[float | None, tuple[float | None, float | None]]:
    """(largest epsilon that is claimed, None) by strength, of what may not have been tested."""
    out: dict[float | None, tuple[float | None, float | None]] = {}
    for point in summary.get("cost", {}).get("points", ()):
        made = [g["epsilon"] for g in point["guarantees"] if g["epsilon"] is not None]
        if point["role"] == "audit" and made:
            out[point["strength"]] = (max(made), None)
    return out


def _silent(
    summary: Mapping[str, Any], target: str = "*", aside: Collection[tuple[str, str]] = ()
) -> dict[str, str]:
    """Attacks that are not shown to work, on these data or on a planted leak, with the evidence.

    Not those `aside`, attack and adversary, which cannot be made: they keep no gate open.
    """
    other = {a["label"] for a in summary.get("attacks", {}).values() if a["target"] != target}
    skipped = other if target != "*" else set()
    return {
        k: of["evidence"] for k, of in summary.get("alive", {}).items()
        if not of["alive"] and k not in skipped and _name(of.get("place", {})) not in aside
    }  # fmt: skip


def _name(place: Mapping[str, Any]) -> tuple[str, str]:
    return place.get("attack", ""), place.get("adversary", "")


def _find_impossible(rows: Sequence[ResultRow]) -> set[tuple[str, str]]:
    """Attacks and adversaries of which no row is more than why there is none."""
    every: dict[tuple[str, str], set[bool]] = {}
    for r in rows:
        every.setdefault((r.attack, r.adversary), set()).add(r.status.startswith("not-"))
    return {key for key, of in every.items() if of == {True}}


def _targeted(loaded: Scenario, target: str) -> str:
    """`target` where an attack of the scenario has it, or ``*``.

    Raises:
        ConfigError: no attack has it.
    """
    found = {_target_of(a.name) for a in loaded.root.attack}
    if target != "*":
        check.one_of("tune: target", target, ["*", *sorted(found)])
    return target


def _target_of(attack: str) -> str:
    kind: Any = registry.attacks.get(attack)
    return str(kind.target)


def _on(rows: Sequence[ResultRow], target: str) -> list[ResultRow]:
    """Rows of the main task, of attacks on `target`, and of those that broke and name none."""
    return [r for r in rows if target == "*" or r.target in (target, "")]


def _fresh(given: int | Sequence[int] | None, listed: Sequence[int]) -> list[int]:
    """As many seeds as were used, from the number after the largest on."""
    used = range(given) if isinstance(given, int) else given or listed
    start = max(used) + 1
    return list(range(start, start + len(used)))


def _choose(found: Sequence[Trial], leak: float, drop: float) -> tuple[float | None, str]:
    meets = [t for t in found if t.meets(leak)]
    good = [t for t in meets if t.drop_high <= drop]
    if good:
        best = min(good, key=lambda t: t.strength)
        if best.strength == 0:
            return 0.0, f"Undefended, every upper bound is within {leak:g} already."
        return best.strength, (
            f"At strength {best.strength:g} the worst upper bound is "
            f"{show(best.leak_high, leak, '+.3f')} ({best.named}) and utility falls by at most "
            f"{show(best.drop_high, drop)}."
        )
    if meets:
        best = min(meets, key=lambda t: t.drop_high)
        return None, (
            f"Leakage is within {leak:g} from strength {min(t.strength for t in meets):g} on, but "
            f"utility may fall by {show(best.drop_high, drop)}, more than {drop:g}."
        )
    whole = [t for t in found if not t.failed]
    least = min(whole or found, key=lambda t: t.leak_high)
    said = (
        f"No strength brings every upper bound within {leak:g}: the lowest is "
        f"{show(least.leak_high, leak, '+.3f')} ({least.named}) at strength {least.strength:g}."
    )
    failed = [f" At strength {t.strength:g} {t.failed}." for t in found if t.failed]
    return None, said + "".join(failed[:1])


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
