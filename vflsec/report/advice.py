"""What to do next, each step with the command that does it."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from vflsec.audit.controls import is_leak
from vflsec.audit.defense_label import split_names
from vflsec.audit.exposed import EXPOSED
from vflsec.audit.findings import FindingKind
from vflsec.audit.gate import FAIL, INCONCLUSIVE, MIN_SEEDS, Gate, Origin, Verdict
from vflsec.audit.gate_selection import is_selected
from vflsec.audit.leakage_claims import Quantity, format_secret, rank
from vflsec.audit.point import Training
from vflsec.audit.rounding import show_exact
from vflsec.audit.strength_grid import GridRow
from vflsec.audit.summary import Summary
from vflsec.audit.validated import Evidence, Validation
from vflsec.audit.verdict_text import name_more_rows
from vflsec.errors import join_some, repeat_set
from vflsec.plugins import registry
from vflsec.report.coverage import find_uncovered
from vflsec.report.first_screen import format_price
from vflsec.report.sanitize import clean
from vflsec.report.steps import (
    GRANT_MORE,
    MOST_SEEDS,
    SHOW_GATE,
    advise_defenses,
    advise_open,
    advise_validation,
    find_missed,
    find_step,
    name_gates,
    show_attack,
)
from vflsec.report.taxonomies import list_read
from vflsec.report.tree import Step, StepKind
from vflsec.report.ungated_leaks import find_deployed, format_parts
from vflsec.report.verdicts import format_deployment, format_headline, format_place
from vflsec.runtime.grouping import group_by

_LIST_ATTACKS = "vflsec list attacks"
_RECORD_MORE = "Record with more known labels"
USUAL_SEEDS = 5
"""Seeds of an audit whose spread is not known yet."""


Asked = Sequence[Verdict]
"""Verdicts that ask for one kind of step."""


def format_command(summary: Summary, verb: str, *more: str) -> str:
    """A command about this audit that works when it is pasted; '' where it was no file.

    Args:
        summary: of the audit.
        verb: ``audit`` or ``tune`` name the scenario, any other the results directory.
        more: further words.
    """
    about = summary.command
    last: dict[str, str] = {}
    for text in about.set:  # the last of a key stands, in its place
        last.pop(key := text.partition("=")[0].strip(), None)
        last[key] = text
    if "--seeds" in more:
        last.pop("audit.seeds", None)
    given = repeat_set(last.values())
    words = {"audit": [about.scenario, "--out", about.folder, *given],
             "tune": [about.scenario, *given]}  # fmt: skip
    named = words.get(verb, [about.folder])
    return clean(shlex.join(["vflsec", verb, *named, *more])) if named[0] else ""


def next_steps(summary: Summary) -> list[Step]:
    """What to do now, most urgent first; chosen by the codes of verdicts, never by their words."""
    found, _ = format_headline(summary)
    if found == "UNFINISHED":
        return [_unfinished(summary)]
    if not summary.gates:
        return [*_unshown(summary), _no_gate(summary)]
    asked = group_by(summary.gates, find_step)
    if StepKind.MORE_SEEDS in asked:  # they serve what may be undetected, too
        asked.pop(StepKind.UNDETECTED, None)
    steps = [s for kind in StepKind if kind in asked
             for s in _OF_VERDICTS[kind](asked[kind], summary)]  # fmt: skip
    keep = format_command(summary, "gate", "--baseline", "baseline.json", "--update-baseline")
    text = "Keep these results in a file: a later rise fails."
    has_one = any(v.origin is Origin.BASELINE for v in summary.gates)
    kept = [Step(StepKind.KEEP_BASELINE, text, keep)] if found == "PASS" and not has_one else []
    ungated = _ungated(summary)
    if not summary.limits:
        steps += _unshown(summary)
        kept += [] if ungated else [_no_gate(summary)]
    return [*steps, *ungated, *kept, *_untested(summary)]


def _unshown(summary: Summary) -> list[Step]:
    """How many seeds it takes where too few leave open whether anything leaks, and no gate asks."""
    found = [c for c in summary.claims if c.quantity is Quantity.LEAKAGE and c.is_open]
    known = [c for c in found if c.more_seeds or c.low is None]
    if not known:
        return []
    c = max(known, key=rank)
    seeds = _count_trainings([c], summary)
    more = c.more_seeds or USUAL_SEEDS - seeds
    do = "Add records of further runs" if summary.is_of_traces else "Add seeds"
    text = (
        f"Too few seeds to show whether the {format_secret(c)} leak to {c.adversary} "
        f"{format_deployment(c)}. {do}: {seeds + more} may do."
    )
    return [Step(StepKind.MORE_SEEDS, text, _add_seeds(summary, seeds, more))]


def _count_trainings(of: Iterable[Training], summary: Summary) -> int:
    """How many seeds the trainings have; some may have nothing to score."""
    at = {x.training for x in of}
    return max((max(p.planned, p.seeds) for p in summary.points if p.training in at), default=0)


def _add_seeds(summary: Summary, seeds: int, more: int, of: Asked = ()) -> str:
    """A command that adds seeds to these, each look with its share of the error; where gates were
    typed, which no audit asks about, and judges by these again.
    """
    if of and summary.command.gate:
        run = format_command(summary, "audit", "--seeds", str(seeds + more))
        gates = dict.fromkeys(_judge(v.gate, summary, {}) for v in of)
        return " && ".join([run, *gates]) if run else ""
    budget = str(seeds + max(USUAL_SEEDS, more))
    return format_command(summary, "audit", "--until-decided", budget)


def _unfinished(summary: Summary) -> Step:
    if summary.shard and summary.cells.finished == summary.cells.planned:
        merge = format_command(summary, "merge", "OTHER_SHARDS", "--out", "DIR")
        return Step(StepKind.MERGE, "Merge the shards when all are done.", merge)
    part = ("--shard", summary.shard) if summary.shard else ()
    again = format_command(summary, "audit", *part)
    return Step(StepKind.RESUME, "Run the audit again: it resumes.", again)


def _no_gate(summary: Summary) -> Step:
    if not summary.attacks:
        return Step(StepKind.ADD_ATTACK, "Add an [[attack]] and a [[gate]].", _LIST_ATTACKS)
    limit = format_command(summary, "gate", "--max", "0.1")
    where = "with --max or --gates" if summary.is_of_traces else "in a [[gate]]"
    return Step(StepKind.SET_LIMIT, f"Set a limit {where}, or try one:", limit)


def _gate_fails(of: Asked, summary: Summary) -> list[Step]:
    """Of each data set the point that passes where the deployed one does not, or how to look."""
    return [_cure(dataset, mine, summary)
            for dataset, mine in group_by(of, lambda v: v.dataset).items()]  # fmt: skip


def _rose(of: Asked, summary: Summary) -> list[Step]:
    """What to do where leakage rose above a baseline, which another strength does not explain."""
    who = clean(join_some(list(dict.fromkeys(v.attack for v in of))))
    text = (
        f"{who} gained more than in the earlier audit. If it is meant, write the file anew with "
        "--update-baseline. If not, look for what changed among all figures:"
    )
    return [Step(StepKind.ROSE, text, format_command(summary, "report"))]


def _not_validated(of: Asked, summary: Summary) -> list[Step]:
    places = [p for v in of for p in v.not_validated]
    if summary.is_of_traces and any(v.detail == Evidence.NEVER_UNDEFENDED for v in of):
        text = "Add as many traces without a defense (run={'defense': 'none'}) to the audit."
        return [Step(StepKind.NOT_VALIDATED, text)]
    named = {k: a for k, a in sorted(summary.alive.items()) if a.place in places}
    named = named or {v.attack: Validation(place=v.place) for v in of}
    do, add = GRANT_MORE, "Add them"
    if summary.is_of_traces:
        do, add = _RECORD_MORE, "Record as many further runs"
    seeds = _count_trainings(of, summary)
    steps = advise_validation(named, seeds, do, add)
    return [
        replace(s, command=_add_seeds(summary, seeds, int(s.options[-1]) - seeds, of), options=())
        if s.options else s for s in steps
    ]  # fmt: skip


def _more_seeds(of: Asked, summary: Summary) -> list[Step]:
    """How to add the seeds that would decide; none beside a FAIL, where `--until-decided` ends."""
    others = {v.verdict for v in summary.gates if find_step(v) is not StepKind.MORE_SEEDS}
    if FAIL in others:
        return []
    more, seeds = max(v.more_seeds or 0 for v in of), max(v.n for v in of)
    trainings = _count_trainings(of, summary)
    text = "Add records of further runs" if summary.is_of_traces else "Add seeds"
    if INCONCLUSIVE in others:
        text += " for the other gates; they alone do not make this audit pass"
    text += f". About {more} more may do"
    text += f", by the spread over {seeds}." if seeds > 1 else "."
    if more > MOST_SEEDS:
        text += f" {_name_other_ways(of, summary)}"
    return [Step(StepKind.MORE_SEEDS, text, _add_seeds(summary, trainings, more, of))]


def _name_rows(v: Verdict) -> str:
    """The rows of which more may decide a gate."""
    return name_more_rows(v.target) if v.gate.limits_leaks else "test rows"


def _name_other_ways(of: Asked, summary: Summary) -> str:
    """What may decide besides seeds."""
    if summary.is_of_traces:
        return f"{_RECORD_MORE}, or try another limit."
    rows = " or ".join(sorted({_name_rows(v) for v in of}))
    return f"Take more {rows}, or try another strength or limit."


def _stuck(of: Asked, summary: Summary) -> list[Step]:
    """What to do where seeds would not decide, or more than anybody runs."""
    text = (
        f"No feasible number of seeds would decide {name_gates(of)}, by the spread over "
        f"{max(v.n for v in of)}. {_name_other_ways(of, summary)}"
    )
    known = not summary.is_of_traces and any(_name_rows(v) != "test rows" for v in of)
    return [Step(StepKind.STUCK, text, "vflsec show attack" if known else SHOW_GATE)]


def _no_room(of: Asked, summary: Summary) -> list[Step]:
    """What to do where no figure that was measured can exceed a limit."""
    by_figure = group_by(of, lambda v: v.detail)
    return [_by_figure(figure, mine, summary) for figure, mine in by_figure.items()]


def _by_figure(figure: str, of: Asked, summary: Summary) -> Step:
    """What to do where this metric would decide; or a lower limit, where none would."""
    kind, gates = StepKind.NO_ROOM, name_gates(of)
    if not figure:
        return Step(kind, f"Lower the limit of {gates}.", SHOW_GATE)
    by = f"Judge {gates} by {clean(figure)}"
    if figure in EXPOSED:  # it decides where it was not counted
        command = format_command(summary, "audit", "--fresh")
        return Step(kind, f"{by}, which is not counted yet. Audit again:", command)
    return Step(
        kind, f"{by}:", _judge(of[0].gate, summary, {"of": figure, "dataset": of[0].dataset})
    )


def _undetected(of: Asked, summary: Summary) -> list[Step]:
    """What to do where a gate passed and a leak above its limit may be undetected."""
    more = max(v.more_seeds or 0 for v in of)
    seeds = ["--seeds", str(_count_trainings(of, summary) + more)]
    command = format_command(summary, "audit", *seeds) if more else SHOW_GATE
    text = "The audit could miss a leak above the limit. Add seeds, or set detect in a [[gate]]."
    return [Step(StepKind.UNDETECTED, text, command)]


def _failed_runs(of: Asked, summary: Summary) -> list[Step]:
    """What to do where a training or an attack has failed, or gave no figure: by cause."""
    by_cause = group_by(of, lambda v: _find_cause(v, summary))
    return [
        Step(StepKind.FAILED_RUNS, f"{do}, to decide {name_gates(mine)}:", command)
        for (do, command), mine in by_cause.items()
    ]


def _find_cause(v: Verdict, summary: Summary) -> tuple[str, str]:
    """What would give a gate the figures that it lacks, in words, and a command."""
    asked = [p for p in summary.points if p.training == v.training and is_selected(p, v.gate)]
    if any(p.failed for p in asked):
        return "Mend what failed, and audit again", format_command(summary, "audit")
    if any(p.unscored and not p.value.seeds for p in asked):
        return "The rows that are left to guess give no figure: take more", SHOW_GATE
    whom, named = v.gate.target, "" if v.gate.attack == "*" else " and name it in the gate"
    here = [n for n in _find_gaps(summary) if n in registry.attacks.entries()]
    others = [n for n in here if whom in ("*", registry.attacks.create(n).target)]
    if others:
        return f"Add one of {join_some(others)}{named}", show_attack(others[0])
    return "No such attack reads what was sent here: change or drop the gate", SHOW_GATE


def _reversed_ranking(of: Asked, summary: Summary) -> list[Step]:
    """What to do where a reversed ranking keeps a gate open and seeds do not close it."""
    v = of[0]
    flipped = (p.mirrored for p in summary.points if p.answer == v.answer and p.is_ranking)
    shown = any(is_leak(f.mean, f.low) for f in flipped)
    more = _RECORD_MORE if summary.is_of_traces else f"Take more {_name_rows(v)}"
    text = (
        f"{clean(v.attack)} {'leaks' if shown else 'may leak'} at {format_place(v)} if its classes "
        f"are swapped. {more}, and look for another strength."
    )
    found = _seek("", v.dataset, [v.attack], summary)
    command = found.command if found.kind is StepKind.STRONGER else ""
    return [Step(StepKind.REVERSED_RANKING, text, command or show_attack(v.attack))]


_OF_VERDICTS: dict[StepKind, Callable[[Asked, Summary], list[Step]]] = {
    StepKind.GATE_FAILS: _gate_fails, StepKind.ROSE: _rose,
    StepKind.NOT_VALIDATED: _not_validated,
    StepKind.FAILED_RUNS: _failed_runs, StepKind.REVERSED_RANKING: _reversed_ranking,
    StepKind.NO_ROOM: _no_room, StepKind.STUCK: _stuck, StepKind.MORE_SEEDS: _more_seeds,
    StepKind.OPEN: lambda of, _: [advise_open(of)], StepKind.UNDETECTED: _undetected,
}  # fmt: skip
"""How the steps are said that verdicts ask for."""


def _find_gaps(summary: Summary) -> list[str]:
    """One attack of each family that could be added; of traces none, which were asked for all."""
    return [] if summary.is_of_traces else find_uncovered(summary)


def _untested(summary: Summary) -> list[Step]:
    """Attack families not tested, although the messages they need were sent."""
    gaps = _find_gaps(summary)
    if not gaps:
        return []
    text = f"Not tested, although their messages were sent: {', '.join(gaps)}. Add an [[attack]]:"
    return [Step(StepKind.UNTESTED, text, show_attack(gaps[0]))]


def _ungated(summary: Summary) -> list[Step]:
    """What leaks where the system is judged and no gate limits: a gate, and what may stop it."""
    found = find_deployed(summary)
    if not found:
        return []
    p = found[0]
    ones = dict.fromkeys(
        f'one with target = "{clean(c.target)}"'
        + (', of = "exposed"' if c.quantity is Quantity.EXPOSED else "")
        for c in found
    )
    text = (
        f"No gate limits {format_parts(found)} at {format_place(p)}: add {' and '.join(ones)}, or "
        "a defense."
    )
    step = _seek(text, p.dataset, [p.attack], summary, p.target)
    return [replace(step, kind=StepKind.UNGATED)]


def _judge(gate: Gate, summary: Summary, at: Mapping[str, Any]) -> str:
    """The command that judges by a gate, with these of its fields."""
    usual = {f.name: f.default for f in fields(Gate)}
    usual["confidence"] = summary.confidence
    words: list[str] = []
    for key in (key for key in usual if key not in ("name", "line")):
        value = at.get(key, getattr(gate, key))
        if value not in (usual[key], None):
            text = isinstance(value, str)
            words += [f"--{key}", value] if text else [f"--{key}={show_exact(value)}"]
    return format_command(summary, "gate", *words)


def _sought(dataset: str, summary: Summary, target: str = "") -> list[str]:
    """What the gates ask on a data set as options of `vflsec tune`, which has defaults."""
    limits = _find_limits(dataset, summary)
    leaks = limits["leak"]
    out = [f"--{k}={show_exact(min(g.threshold for g in of))}" for k, of in limits.items() if of]
    out += [word for g in leaks[:1] if g.of for word in ("--of", g.of)]
    targets = {target} if target else {g.target for g in leaks}
    if len(targets) == 1 and targets != {"*"}:
        out += ["--target", *map(clean, targets)]
    few = max((p.seeds for p in summary.points if p.dataset == dataset), default=0) < MIN_SEEDS
    return [*out, "--seeds", str(USUAL_SEEDS)] if few else out


def _find_limits(dataset: str, summary: Summary) -> dict[str, list[Gate]]:
    """The gates that limit the advantage in one metric, the attacks' own if any does, and those
    that limit the loss of utility.
    """
    asked = [v.gate for v in summary.limits if v.dataset == dataset and v.gate.max is not None]
    by = group_by((g for g in asked if g.of not in EXPOSED), lambda g: g.metric)
    leaks = group_by(by.get("advantage", ()), lambda g: g.of)
    leak = leaks.get("") or next(iter(leaks.values()), [])
    return {"leak": leak, "drop": by.get("utility_drop", [])}


def _cure(dataset: str, of: Asked, summary: Summary) -> Step:
    """The point that passes where the deployed one does not, or how to look for one."""
    rows = [r for r in summary.grid if r.dataset == dataset and r.passed == r.gates]
    best = min((r for r in rows if r.cheapest), key=lambda r: r.utility_drop or 0.0, default=None)
    where = f"On {clean(dataset) or 'the data'}"
    if not rows:
        named = list(dict.fromkeys(v.attack for v in of if v.attack))
        text = f"{where} no tested strength passes every gate{_find_open(dataset, summary)}."
        return _seek(text, dataset, named, summary)
    points = [best] if best else rows
    use = " or ".join(f"{_to_write(r)} with {clean(r.algorithm)}" for r in points)
    price = f", at {format_price(best)}" if best else ""
    text = f"{where} use {use}: every gate passes{price}:"
    command = _judge(of[0].gate, summary, points[0].training.as_dict())
    return Step(StepKind.USE_POINT, text, command)


def _find_open(dataset: str, summary: Summary) -> str:
    """Where no gate fails, and more seeds may let all pass; '' if nowhere."""
    there = [r for r in summary.grid if r.dataset == dataset and not r.failed]
    if summary.is_of_traces or not there:
        return ""
    near = max(there, key=lambda r: (r.passed, r.strength or 0.0))
    budget = 4 * max((p.seeds for p in summary.points), default=USUAL_SEEDS)
    return (
        f"; {format_deployment(near)} no gate fails, and more seeds may decide (name it in the "
        f"gates, then audit with --until-decided {budget})"
    )


def _to_write(r: GridRow) -> str:
    """A point of the grid with the strength that a scenario has to name."""
    shown = format_place(r)
    if r.defense == "none" or not r.strength:
        return shown
    return clean(f"{r.defense} {show_exact(r.strength)}")


def _seek(
    text: str, dataset: str, attacks: Sequence[str], summary: Summary, target: str = ""
) -> Step:
    """How to look for a point that stops attacks: beyond the strengths of a defense that acts on
    what they read, or with another one; of recordings, in words.
    """
    asked_by = [a for a in summary.attacks.values() if a.label in attacks]
    kinds = sorted({kind for a in asked_by for kind in list_read(a.needs)})
    targets = {a.target for a in asked_by}
    tried, asked = _find_tried(dataset, summary), _sought(dataset, summary, target)
    missed = find_missed(tried, kinds, summary.acting, targets)
    fits = (n for n, most in tried.items() if most and n not in missed)
    if not summary.is_of_traces and (name := next(fits, "")):
        words = ["--defense", name, "--high", show_exact(max(10 * tried[name], 100.0)), *asked]
        text = f"{text} Search for a strength that passes, or share fewer columns:"
        return Step(StepKind.STRONGER, text, format_command(summary, "tune", *words))
    there = dict.fromkeys(n for p in summary.points for n in split_names(p.defense))
    found = advise_defenses(attacks, kinds, summary.acting, {**tried, **there},
                            targets=targets)  # fmt: skip
    if summary.is_of_traces:
        known = [s.text for s in found if s.kind is not StepKind.NO_OTHER_DEFENSE]
        do = "Share less, or record with a defense (run={'defense': NAME, 'strength': S, ...})."
        return Step(found[0].kind, " ".join([text, *known, do]))
    first = found[0]
    command = first.command or format_command(summary, "tune", *first.options[:2], *asked)
    return Step(first.kind, f"{text} {first.text}", command)


def _find_tried(dataset: str, summary: Summary) -> dict[str, float]:
    """The largest strength of each defense that was tried, 0 of one that did nothing there, which
    no strength changes.
    """
    idle = {f.place.defense for f in summary.findings
            if f.kind is FindingKind.DEFENSE_IDLE and f.place.dataset == dataset}  # fmt: skip
    rows = [r for r in summary.grid if r.dataset == dataset and r.strength]
    named = group_by((r for r in rows if r.defense.isidentifier()), lambda r: r.defense)
    return {name: 0.0 if name in idle else max(r.strength or 0.0 for r in of)
            for name, of in named.items()}  # fmt: skip
