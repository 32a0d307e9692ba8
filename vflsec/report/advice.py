"""What to do next, each step with the command that does it."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from vflsec.audit.exposed import EXPOSED
from vflsec.audit.findings import FindingKind
from vflsec.audit.gate import Gate, Verdict
from vflsec.audit.gate_selection import strip_label
from vflsec.audit.leakage_claims import Quantity
from vflsec.audit.record import Acting, AttackFacts
from vflsec.audit.rounding import show_exact
from vflsec.audit.strength_grid import GridRow
from vflsec.errors import join_some
from vflsec.report.coverage import find_uncovered
from vflsec.report.first_screen import format_price, format_spots
from vflsec.report.sanitize import clean
from vflsec.report.summary import Summary
from vflsec.report.taxonomies import list_read
from vflsec.report.tree import Step
from vflsec.report.ungated_leaks import find_deployed, format_parts
from vflsec.report.verdicts import NO_GATE, format_headline, format_place

_SHOW_GATE = "vflsec show gate"
_GRANT_MORE = "Record with more known labels"
_LIST_ATTACKS, _LIST_DEFENSES = "vflsec list attacks", "vflsec list defenses"


def format_command(summary: Summary, verb: str, *more: str) -> str:
    """A command about this audit that works when it is pasted; '' where it was no file.

    Args:
        summary: of the audit.
        verb: ``audit`` or ``tune`` name the scenario, any other the results directory.
        more: further words.
    """
    about = summary.command
    folder, scenario = about.folder, about.scenario
    if verb in ("audit", "tune"):
        if not scenario:
            return ""
        last: dict[str, str] = {}
        for text in about.set:  # the last of a key stands, in its place
            last.pop(key := text.partition("=")[0].strip(), None)
            last[key] = text
        if "--seeds" in more:
            last.pop("audit.seeds", None)
        last |= {k: _count_seeds(text) for k, text in last.items() if k == "audit.seeds"}
        given = [x for s in last.values() for x in ("--set", s)]
        given = [] if verb == "tune" else given
        out = ["--out", folder] if verb == "audit" else []
        words = ["vflsec", verb, scenario, *out, *given, *more]
    else:
        if not folder:
            return ""
        words = ["vflsec", verb, folder, *more]
    return clean(shlex.join(words))


def _count_seeds(text: str) -> str:
    """``audit.seeds=[0, 1, 2]`` as ``audit.seeds=3``; other seeds as they were given."""
    key, _, value = text.partition("=")
    n = value.count(",") + 1
    counted = f"[{','.join(map(str, range(n)))}]"
    return f"{key}={n}" if value.replace(" ", "") == counted else text


def next_steps(summary: Summary) -> list[Step]:
    """What to do now, most urgent first; chosen by the codes of verdicts, never by their words."""
    found, _ = format_headline(summary)
    if found in _BEFORE_ANY_VERDICT:
        return [_BEFORE_ANY_VERDICT[found](summary)]
    open_ = [v for v in summary.gates if v.verdict == "INCONCLUSIVE"]
    failed = dict.fromkeys(v.dataset for v in summary.gates if v.verdict == "FAIL")
    steps = [_cure(dataset, summary) for dataset in failed]
    steps += [step for make in _OF_VERDICTS if (step := make(open_, summary))]
    if open_ and not steps:
        v = open_[0]
        text = f"What keeps '{clean(v.label)}' open: {clean(v.reason)}"
        steps.append(Step(text, _SHOW_GATE))
    keep = format_command(summary, "gate", "--baseline", "baseline.json", "--update-baseline")
    kept = Step("Keep these results as the baseline: a later rise fails.", keep)
    more = (_insensitive(summary), _limits(summary), kept if found == "PASS" else None,
            _uncovered(summary))  # fmt: skip
    return [*steps, *filter(None, more)]


def _no_gate(summary: Summary) -> Step:
    if not summary.attacks:
        return Step("Add an [[attack]] and a [[gate]].", _LIST_ATTACKS)
    limit = format_command(summary, "gate", "--max", "0.1")
    where = "with --max or --gates" if summary.is_of_traces else "in a [[gate]]"
    return Step(f"Set a limit {where}, or try one:", limit)


def _unfinished(summary: Summary) -> Step:
    return Step("Run the audit again: it resumes.", format_command(summary, "audit"))


_BEFORE_ANY_VERDICT = {NO_GATE: _no_gate, "UNFINISHED": _unfinished}

Open = Sequence[Verdict]
"""Verdicts that are INCONCLUSIVE."""


def _not_validated(open_: Open, summary: Summary) -> Step | None:
    """What to do where nothing shows that an attack works."""
    places = [place for v in open_ for place in v.not_validated]
    found = {k: a for k, a in sorted(summary.alive.items()) if a.place in places}
    if not found:
        return None
    never = any(a.code == "never_undefended" for a in found.values())
    if never and not format_command(summary, "audit"):
        return Step("Add as many traces without a defense (run={'defense': 'none'}) to the audit.")
    more = (_GRANT_MORE if summary.is_of_traces
            else "Check settings, grant more (known_rows, aux_rows)")  # fmt: skip
    return Step(
        f"Not validated: {clean(', '.join(found))}. {more}, or name the attacks of a gate.",
        _show(next(iter(found.values())).place.attack),
    )


def _more_seeds(open_: Open, summary: Summary) -> Step | None:
    """How to add the seeds that would decide what is open; none beside a FAIL, at which
    `--until-decided` ends.
    """
    more = max((v.more_seeds or 0 for v in open_), default=0)
    if not more or any(v.verdict == "FAIL" for v in summary.gates):
        return None
    budget = str(max(v.n for v in open_) + max(more, 5))
    again = format_command(summary, "audit", "--until-decided", budget)
    text = "Add seeds" if again else "Add records of further runs"
    if any(v.stuck for v in open_):
        text += " for the other gates; they alone do not make this audit pass"
    return Step(f"{text}.", again)


def _stuck(open_: Open, summary: Summary) -> Step | None:
    """What to do where no number of seeds decides."""
    stuck = [v for v in open_ if v.stuck and v.rule != "no_room"]
    if not stuck:
        return None
    kinds = {v.gate.limits_leaks for v in stuck}
    more = " or ".join(what for of, what in ((True, "known_rows"), (False, "test rows"))
                       if of in kinds)  # fmt: skip
    where = "vflsec show attack" if True in kinds else _SHOW_GATE
    text = f"Take more {more}, or try another strength or limit."
    if summary.is_of_traces:
        text, where = f"{_GRANT_MORE}, or try another limit.", _SHOW_GATE
    named = ", ".join(f"'{clean(label)}'" for label in dict.fromkeys(v.label for v in stuck))
    return Step(f"Seeds do not decide {named}. {text}", where)


def _no_room(open_: Open, summary: Summary) -> Step | None:
    """What to do where no figure that was measured can exceed a limit."""
    v = next((v for v in open_ if v.rule == "no_room"), None)
    if v is None:
        return None
    text = clean(v.reason)
    if not v.detail:
        return Step(f"{text} Lower it.", _SHOW_GATE)
    if v.detail in EXPOSED:  # it decides where it was not counted
        return Step(f"{text} Audit again.", format_command(summary, "audit", "--fresh"))
    words = [*_limit(replace(v.gate, of=v.detail)), "--dataset", v.dataset]
    words += ["--defense", v.gate.defense] if v.gate.defense != "*" else []
    words += [] if v.gate.strength is None else ["--strength", show_exact(v.gate.strength)]
    return Step(text, format_command(summary, "gate", *words))


_UNFOUND = {"insensitive", "question_underpowered"}
"""Warnings of a PASS that more seeds or rows would mend."""


def _insensitive(summary: Summary) -> Step | None:
    """What to do where a gate passed and a leak above its limit may be undetected."""
    found = [v for v in summary.gates if _UNFOUND & set(v.warnings)]
    if not found:
        return None
    more = max(v.more_seeds or 0 for v in found)
    seeds = ["--seeds", str(max(v.n for v in found) + more)]
    return Step(
        "A leak may be undetected. Add seeds, or set detect in a [[gate]].",
        format_command(summary, "audit", *seeds) if more else _SHOW_GATE,
    )


def _uncovered(summary: Summary) -> Step | None:
    """Attack families not tested, although the messages they need were sent."""
    gaps = [] if summary.is_of_traces else find_uncovered(summary)  # a trace was asked for all
    if not gaps:
        return None
    return Step(
        f"Not tested, although their messages were sent: {', '.join(gaps)}. Add an [[attack]]:",
        shlex.join(["vflsec", "show", gaps[0]]),
    )  # fmt: skip


def _limits(summary: Summary) -> Step | None:
    """What leaks where the system is judged and no gate limits: a gate, and what may stop it."""
    found = find_deployed(summary)
    if not found:
        return None
    p = found[0]
    kinds = list_read(summary.attacks.get(p.attack_key, AttackFacts()).needs)
    acting = _find_acting(kinds, summary)
    tuned = () if summary.is_of_traces else acting.tuned
    where = f"No gate limits {format_parts(found)} at {format_place(p)}"
    ones = [f'one with target = "{clean(t)}"' for t in dict.fromkeys(c.target for c in found)]
    text = f"{where}: add {' and '.join(ones)}"
    if not tuned:
        fixed = next(iter(acting.fixed), "")
        return Step(f"{text}, or a defense.", f"vflsec show {fixed}" if fixed else _LIST_DEFENSES)
    asked = [w for w in _sought(p.dataset, summary) if w.startswith("--") and w != "--target"]
    words = ["--defense", tuned[0], *asked, "--target", clean(p.target)]
    read = " and ".join(sorted(kinds))
    return Step(f"{text}, or a defense of {read}:", format_command(summary, "tune", *words))


def _find_acting(kinds: Iterable[str], summary: Summary) -> Acting:
    """The defenses that act on some of these kinds of messages."""
    found = [summary.acting[k] for k in sorted(kinds) if k in summary.acting]
    tuned = dict.fromkeys(name for of in found for name in of.tuned)
    return Acting(tuple(tuned), tuple(dict.fromkeys(n for of in found for n in of.fixed)))


def _failed(open_: Open, summary: Summary) -> Step | None:
    """What to do where a training or an attack has failed, or gave no figure."""
    v = next((v for v in open_ if v.rule in ("failed_runs", "nothing_measured")), None)
    if v is None:
        return None
    text = f"'{clean(v.label)}' stays open. {clean(v.reason)}"
    if any(p.failed for p in summary.points):
        return Step(f"{text} Mend that, and audit again.", format_command(summary, "audit"))
    return Step(f"{text} Take another attack.", _LIST_ATTACKS)


def _reversed_ranking(open_: Open, summary: Summary) -> Step | None:
    """What to do where a reversed ranking keeps a gate open and seeds do not close it."""
    v = next((v for v in open_ if v.rule == "reversed_ranking" and not v.more_seeds), None)
    if v is None:
        return None
    more = _GRANT_MORE if summary.is_of_traces else "Grant known_rows"
    shown = any(c.is_leak and c.quantity is Quantity.REVERSED and c.training == v.training
                and (c.adversary, c.attack) == (v.adversary, v.attack)
                for c in summary.claims)  # fmt: skip
    return Step(
        f"{clean(v.attack)} {'leaks' if shown else 'may leak'} at {format_place(v)} with labels "
        f"flipped, once its classes are swapped. {more}, and look for another strength.",
        _search(v.dataset, summary) or _show(v.attack),
    )


_OF_VERDICTS: tuple[Callable[[Open, Summary], Step | None], ...] = (
    _not_validated, _failed, _reversed_ranking, _no_room, _stuck, _more_seeds,
)  # fmt: skip
"""Steps that verdicts ask for, most urgent first."""


def _show(attack: str) -> str:
    """The command that shows an attack by its label, such as ``norm(steps=3)``."""
    return shlex.join(["vflsec", "show", clean(strip_label(attack))])


def _limit(gate: Gate) -> list[str]:
    """A gate's metric, limit and attacks as options of `vflsec gate`."""
    out = ["--metric", gate.metric]
    limits = {"max": gate.max, "min": gate.min, "detect": gate.detect}
    out += [f"--{key}={show_exact(limit)}" for key, limit in limits.items() if limit is not None]
    named = {"of": gate.of, "attack": gate.attack, "adversary": gate.adversary,
             "split": gate.split, "target": gate.target}  # fmt: skip
    return out + [
        x for key, name in named.items() if name not in ("*", "") for x in (f"--{key}", name)
    ]


def _sought(dataset: str, summary: Summary) -> list[str]:
    """What the gates ask on a data set as options of `vflsec tune`, which has defaults."""
    asked = [v.gate for v in summary.gates if v.dataset == dataset]
    out = []
    for option, metric in (("leak", "advantage"), ("drop", "utility_drop")):
        limits = _limits_of(asked, metric)
        out += [f"--{option}={show_exact(min(limits))}"] if limits else []
    targets = {g.target for g in asked if _limits_of([g], "advantage")}
    one = len(targets) == 1 and targets != {"*"}
    return [*out, "--target", *targets] if one else out


def _limits_of(gates: Iterable[Gate], metric: str) -> list[float]:
    return [
        g.max for g in gates if g.metric == metric and g.max is not None and g.of not in EXPOSED
    ]


def _cure(dataset: str, summary: Summary) -> Step:
    """The point that passes where the deployed one does not, or how to look for one."""
    rows = [r for r in summary.grid if r.dataset == dataset]
    cheapest = (r for r in rows if r.cheapest)
    best = min(cheapest, key=lambda r: r.utility_drop or 0.0, default=None)
    if best is not None and best.defense != "none" and best.strength:
        return _use(best, show_exact(best.strength), summary)
    good = [r for r in rows if r.passed == r.gates]
    return _deploy(good, summary) if good else _try_more(dataset, summary)


def _use(best: GridRow, strength: str, summary: Summary) -> Step:
    """How to judge the cheapest point that passes every gate."""
    dataset = best.dataset
    failed = (v for v in summary.gates if v.verdict == "FAIL")
    asked = next(v.gate for v in failed if v.dataset == dataset)
    more = ["--dataset", dataset, "--defense", best.defense, "--strength", strength,
            *_limit(asked)]  # fmt: skip
    return Step(
        f"On {_data(dataset)} use {_to_write(best)} with {clean(best.algorithm)}: every gate "
        f"passes, at {format_price(best)}:",
        format_command(summary, "gate", *more),
    )


def _deploy(good: Sequence[GridRow], summary: Summary) -> Step:
    """How to name points that pass every gate, of which the cost is not known."""
    where = _data(good[0].dataset)
    if not format_command(summary, "audit"):
        return Step(f"On {where} every gate passes at {format_spots(good)} (--defense defended).")
    spots_ = ", ".join(map(_to_write, good))
    text = f"On {where} every gate passes at {spots_}: set one in the scenario and its gates."
    return Step(text, format_command(summary, "audit"))


def _try_more(dataset: str, summary: Summary) -> Step:
    """How to look for a point that passes where none that was tried does."""
    text = f"On {_data(dataset)} no tested strength passes every gate."
    if not format_command(summary, "audit"):
        how = "(run={'defense': NAME, 'strength': S, 'seed': ...})."
        named = _name_acting(dataset, summary)
        return Step(f"{text} Share less, or record with a defense {how}{named}")
    found = _search(dataset, summary)
    if not found:
        return Step(f"{text} Add a [[defense]], or share less.", _LIST_DEFENSES)
    return Step(f"{text} Look for one, or share less:", found)


def _name_acting(dataset: str, summary: Summary) -> str:
    """Which defenses act on what the attacks read that fail a gate, a sentence; or ''."""
    failed = {v.attack for v in summary.gates if v.verdict == "FAIL" and v.dataset == dataset}
    needs = [
        summary.attacks[p.attack_key].needs
        for p in summary.points
        if p.dataset == dataset and p.attack in failed and p.attack_key in summary.attacks
    ]
    kinds = {kind for of in needs for kind in list_read(of)}
    of = _find_acting(kinds, summary)
    names = (*of.tuned, *of.fixed)
    read = " and ".join(sorted(kinds))
    if not names:
        return ""
    act = "This defense acts" if len(names) == 1 else "These defenses act"
    return f" {act} on {read} messages: {join_some(names)} (vflsec list defenses)."


def _data(dataset: str) -> str:
    return clean(dataset) or "the data"


def _to_write(r: GridRow) -> str:
    """A point of the grid with the strength that a scenario has to name."""
    shown = format_place(r)
    if r.defense == "none" or not r.strength:
        return shown
    return clean(f"{r.defense} {show_exact(r.strength)}")


def _search(dataset: str, summary: Summary) -> str:
    """The command that looks for a strength of a swept defense beyond the grid; '' if none is.

    Not of one that did nothing there, which no strength changes.
    """
    idle = {f.place.defense for f in summary.findings
            if f.kind is FindingKind.DEFENSE_IDLE and f.place.dataset == dataset}  # fmt: skip
    swept: dict[str, float] = {}
    for r in summary.grid:
        named = r.defense.isidentifier() and r.defense not in ("none", *idle)
        if r.dataset == dataset and named:
            swept[r.defense] = max(swept.get(r.defense, 0.0), r.strength or 0.0)
    name = next((d for d, most in swept.items() if most), "")
    if not name:
        return ""
    high = show_exact(max(10 * swept[name], 100.0))
    return format_command(
        summary, "tune", "--defense", name, "--high", high, *_sought(dataset, summary)
    )
