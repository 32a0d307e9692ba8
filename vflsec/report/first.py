"""What a reader wants first: does it leak, how much, to whom; do the limits hold; what next.

The terminal, the HTML and Markdown reports, the page to sign and notebooks print these sentences.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from vflsec.audit import matrix
from vflsec.audit.beside import beside
from vflsec.audit.controls import leaks
from vflsec.audit.findings import COUNTED, in_people
from vflsec.audit.leakage import is_undefended
from vflsec.audit.wording import TASK
from vflsec.cell import QUESTIONS
from vflsec.cell import asked as asked_of
from vflsec.report.beyond import deployed, parts, unstopped
from vflsec.report.coverage import families, uncovered
from vflsec.report.families import reads
from vflsec.report.numbers import number
from vflsec.report.text import clean
from vflsec.report.verdicts import headline, place, weighed

__all__ = [
    "BOUNDS", "CORRECTED", "EACH", "Step", "answers", "attacker", "attacks_of", "bounds",
    "cheapest", "command", "each", "next_steps", "scope", "work",
]  # fmt: skip

BOUNDS = (
    "[a, b] is the {level:g} % interval of a mean over seeds (two-sided t; of an advantage, over "
    "all controls; never outside of what the figure can be). A gate asks a one-sided question: it "
    "passes on the upper and fails on the lower bound, each at {level:g} %, which stand beside it."
)
"""What every pair of bounds means, said once in each report."""
_OTHER_LEVEL = (
    " A line that names another level is judged at that: it is the gate's own, or the looks of "
    "--until-decided share the error."
)

CORRECTED = (
    "Whether it leaks, how much and to whom is corrected for the number of tries: attacks, rows "
    "and stages (Holm)."
)
EACH = (
    "Each finding speaks of one attack at one place, at {level:g} % by itself: of many some come "
    "up by chance. " + CORRECTED
)
"""What findings are corrected for, said where they stand."""

_NAMES = {
    "auc": "AUC", "leak_auc": "leak AUC", "r2": "R²", "r2_column": "R² of the column told best",
}  # fmt: skip


class Step(NamedTuple):
    """What to do now, and the command that does it ('' if none does)."""

    text: str
    command: str = ""


def attacker(summary: Mapping[str, Any]) -> str:
    """Which attacker it was: settings as written, or searched on drawn worlds, and what joined."""
    found = summary.get("attacker") or {"name": "default"}
    if found["name"] == "default":
        return "Attacker: default. Every attack ran with the settings that are written."
    rows = found.get("choices", [])
    if not rows:
        return f"Attacker: {found['name']}. No attack had other settings that could be tried."
    searched = ", ".join(clean(name) for name in dict.fromkeys(r["attack"] for r in rows))
    joined = dict.fromkeys(clean(r["chosen"]) for r in rows if r["joins"])
    more = f"what did better there ran too: {', '.join(joined)}" if joined else (
        "none did better there than what is written"
    )  # fmt: skip
    return (
        f"Attacker: {found['name']}. Settings of {searched} were tried on "
        f"{len(found['seeds'])} drawn worlds of the same shape, without the audited labels and "
        f"seeds; {more}."
    )


def bounds(summary: Mapping[str, Any]) -> str:
    """:data:`BOUNDS` at the confidence of this audit, and that gates have another."""
    level = float(summary.get("confidence", 0.95))
    asked = {v["gate"].get("confidence", level) for v in summary.get("gates", ()) if v.get("gate")}
    return BOUNDS.format(level=100 * level) + _OTHER_LEVEL * bool(asked - {level})


def each(summary: Mapping[str, Any]) -> str:
    """:data:`EACH` at the confidence of this audit."""
    return EACH.format(level=100 * float(summary.get("confidence", 0.95)))


def answers(summary: Mapping[str, Any]) -> list[str]:
    """Does it leak, how much, to whom: a sentence for each data set and each who and whose."""
    level = float(summary.get("confidence", 0.95))
    found = summary.get("leaks")
    found = matrix.leaks(summary["points"], level) if found is None else found
    out = []
    attacked = [p for p in summary["points"] if p["attack"]]
    for dataset in dict.fromkeys(p["dataset"] for p in summary["points"]):
        here = [r for r in found if r["dataset"] == dataset]
        sure = sorted(
            (r for r in here if leaks(r["advantage"], r["low"])), key=lambda r: -r["advantage"]
        )
        if not here:
            out.append(f"{clean(dataset)}: no attack gave a figure, so nothing is known.")
        for r in sure:
            of = f", the strongest of {_attacks(r)}" if _attacks(r) > 1 else ""
            out.append(
                f"{_under(r, attacked)}, leaks: the {clean(matrix.secret(r))} to "
                f"{clean(r['adversary'])}, {_gain(r)} above its own means ({_named(r)}{of})."
                f"{_in_people(r, attacked)}"
            )
        rest = [r for r in here if r not in sure and r["advantage"] is not None]
        if rest:
            most = max(rest, key=lambda r: r["advantage"])
            tried, attacks = sum(r["tried"] for r in rest), sum(map(_attacks, rest))
            alone = any(_alone(r, summary) for r in rest)
            what = f"outlasts the correction for {tried} tries" if alone else "is shown"
            which = "no other leak" if sure else f"no leak of the {clean(matrix.secret(most))}"
            out.append(
                f"{_under(most)}: {which} {what}; the most that {_count(attacks, 'attack')} gained "
                f"is {_gain(most)} ({_named(most)} by {clean(most['adversary'])})."
            )
    return out


def _in_people(r: Mapping[str, Any], points: Sequence[Mapping[str, Any]]) -> str:
    """A leak as a count of rows out of a hundred, where that was measured."""
    keys = ("dataset", "algorithm", "defense", "strength", "adversary", "attack", "phase", "split")
    here = [p for p in points if all(p[k] == r.get(k, p[k]) for k in keys)]
    point = next((p for p in here if p["metric"] == r["metric"]), None)
    hits = next((p for p in here if p["metric"] == COUNTED), None)
    return "" if point is None else clean(in_people(point, hits))


def _named(r: Mapping[str, Any]) -> str:
    return clean(matrix.named(r))


def _attacks(r: Mapping[str, Any]) -> int:
    """How many were tried; in summaries of earlier versions one try was one attack."""
    return int(r.get("attacks") or r["tried"])


def _alone(r: Mapping[str, Any], summary: Mapping[str, Any]) -> bool:
    """Whether the attack would be called a leak had it been the only one."""
    keys = ["dataset", "algorithm", "defense", "strength", "adversary", "attack", "metric", "split"]
    keys += ["phase"] if "phase" in r else []
    return any(
        leaks(p["advantage"], p["advantage_low"])
        for p in summary["points"]
        if p["attack"] and p["status"] == "ok" and all(p[k] == r[k] for k in keys)
    )


def _under(r: Mapping[str, Any], points: Iterable[Mapping[str, Any]] = ()) -> str:
    bare, where = is_undefended(r), _where(r["dataset"], r["algorithm"], points)
    return f"{where}, {'without a defense' if bare else f'with {place(r)}'}"


def _gain(r: Mapping[str, Any]) -> str:
    metric = _NAMES.get(r["metric"], clean(r["metric"]).replace("_", " "))
    if r["low"] is None or r["high"] is None:
        return f"{r['advantage']:+z.2f} of {metric} (one seed, no interval)"
    low, high = (beside(r[k], 0.0, "+.2f") for k in ("low", "high"))
    return f"{r['advantage']:+z.2f} of {metric} [{low}, {high}]"


def scope(summary: Mapping[str, Any]) -> str:
    """The verdict with what it holds for: attacks, families, points, and what would have been seen.

    ``PASS for 3 attacks of 2 of 11 families, at iso 25; would have found 0.093.``, or where that is
    above a gate's limit: ``PASS ...; but this audit would only have found a leak of 0.17 (norm),
    above the limit 0.1; about 9 more seeds would do.``
    """
    found, how = headline(summary)
    judged = [v for v in summary["gates"] if v["defense"]]
    if found in ("NO GATE", "UNFINISHED") or not judged:
        return f"{found}. {how}"
    other = (*TASK, "epsilon_lower")
    asked = [v for v in judged if v["attack"] or v["gate"]["metric"] not in other]
    names = {n for v in asked for n in attacks_of(v, summary)}
    limited = [v for v in judged if v["gate"]["metric"] != "epsilon_lower"]  # a claim is anywhere
    points = list(dict.fromkeys(place(v) for v in limited or judged))
    where = ", ".join(points[:4]) + (f" and {len(points) - 4} more" if len(points) > 4 else "")
    text = found
    if asked:
        every = families(summary)
        of = [f for f in every if any(n.split("(")[0] in f["members"] for n in names)]
        text += (
            f" for {_count(len(names), 'attack')} of {len(of)} of {len(every)} families, at {where}"
        )
    else:
        text += f" for the main task, at {where}"
    if found == "FAIL":
        text += _questions(judged, summary)
    bare = deployed(summary) if found != "FAIL" else []
    text += f"; no gate limits {parts(bare)} there" if bare else ""
    least = [(x, v) for v in asked for x in (v.get("detectable") or {}).values()]
    warned = [v for v in asked if v.get("warning")]
    if warned and found == "PASS":
        text += f"; but {clean(warned[0]['warning'])}"
        text += f" (and so at {len(warned) - 1} more)" if len(warned) > 1 else ""
    elif least and found != "FAIL":
        most, v = max(least, key=lambda of: of[0])
        asked_for = v["gate"].get("detect") or v["threshold"]
        text += f"; would have found {beside(most, asked_for, '.2g')}"
        text += " at worst" if len({round(x, 3) for x, _ in least}) > 1 else ""
    return f"{text}. {how}"


def _questions(judged: Iterable[Mapping[str, Any]], summary: Mapping[str, Any]) -> str:
    """Which questions about a quantity fail a gate, in words, or ''."""
    of = {p["attack"]: p.get("of_label", "") for p in summary["points"]}
    failing = (of.get(v["attack"], "") for v in judged if v["verdict"] == "FAIL")
    told = [asked_of(q) for q in dict.fromkeys(failing) if q in QUESTIONS]
    return f"; it is told whether a value is {' and '.join(told)}" if told else ""


def attacks_of(v: Mapping[str, Any], summary: Mapping[str, Any]) -> list[str]:
    """Labels of the attacks that a verdict speaks of."""
    known = list(v.get("detectable") or {})
    if known or not v["attack"]:
        return known
    return sorted({p["attack"] for p in weighed(v, summary["points"]) if p["status"] == "ok"})


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'s' if n != 1 else ''}"


def cheapest(summary: Mapping[str, Any]) -> list[str]:
    """For each training the least costly point of the grid that meets every gate, in a sentence."""
    out = []
    rows = summary.get("grid") or []
    for dataset, algorithm in dict.fromkeys((r["dataset"], r["algorithm"]) for r in rows):
        here = [r for r in rows if (r["dataset"], r["algorithm"]) == (dataset, algorithm)]
        where = _where(dataset, algorithm, rows)
        best = next((r for r in here if r["cheapest"]), None)
        several = f"all {here[0]['gates']} gates" if here[0]["gates"] > 1 else "the gate"
        if here[0]["gates"] == 2:
            several = "both gates"
        if best is None:
            good = [r for r in here if r["passed"] == r["gates"]]
            if not good and all(is_undefended(r) for r in here):
                fails = "do not all pass" if here[0]["gates"] > 1 else "does not pass"
                gates = "the gates" if here[0]["gates"] > 1 else "the gate"
                out.append(f"{where}: {gates} {fails}, and no defense was tried.")
            elif not good:
                out.append(f"{where}: no strength of the grid ({_points(here)}) passes {several}.")
            else:
                out.append(f"{where}: {_points(good)} passes {several}; the cost was not measured.")
        elif is_undefended(best):
            out.append(f"{where}: {several} pass{_es(several)} without a defense.")
        else:
            out.append(f"{where}: {place(best)} already passes {several}, costs {_price(best)}.")
    return [*out, *unstopped(summary)]


def _price(r: Mapping[str, Any]) -> str:
    """``0.002 [-0.007, 0.012] of utility``; a loss that may be none is said to be none shown."""
    low, high = r["utility_drop_low"], r["utility_drop_high"]
    text = number(r["utility_drop"])
    text += "" if low is None or high is None else f" [{number(low, limit=0.0)}, {number(high)}]"
    none = low is not None and low <= 0
    return f"no utility that is shown ({text})" if none else f"{text} of utility"


def _where(dataset: str, algorithm: str, rows: Iterable[Mapping[str, Any]]) -> str:
    """The data set, and what trains on it where several do."""
    several = len({r["algorithm"] for r in rows if r["dataset"] == dataset}) > 1
    return f"{clean(dataset)} trained by {clean(algorithm)}" if several else clean(dataset)


def _es(what: str) -> str:
    return "" if what.endswith("s") else "es"


def _points(rows: Iterable[Mapping[str, Any]]) -> str:
    return ", ".join(place(r) for r in rows)


def work(summary: Mapping[str, Any]) -> str:
    """Trainings, processor time and wall time, told apart."""
    cells, cost = summary["cells"], summary["cost"]
    if not summary["scenario"] and not summary["scenario_file"]:
        return f"{len(summary['data'])} recordings, of which nothing was trained"
    text = f"{cells['finished']} of {cells['planned']} trainings on {clean(summary['device'])}"
    cpu, wall = cost.get("cpu_seconds"), cost.get("run_seconds")
    if cpu is None:
        text += f", {cost['training_seconds']:.1f} s of work"
    else:
        text += f", {cpu:.1f} s of processor time"
    return text + ("" if wall is None else f"; the last run took {wall:.1f} s by the clock")


def command(summary: Mapping[str, Any], verb: str, *more: str) -> str:
    """A command about this audit that works when it is pasted; '' where it was no file.

    Args:
        summary: of the audit.
        verb: ``audit`` or ``tune`` name the scenario, any other the results directory.
        more: further words.
    """
    about = summary.get("command") or {}
    folder, scenario = about.get("folder", ""), about.get("scenario", "")
    if verb in ("audit", "tune"):
        if not scenario:
            return ""
        last: dict[str, str] = {}
        for text in about.get("set", ()):  # the last of a key stands, in its place
            last.pop(key := text.partition("=")[0].strip(), None)
            last[key] = text
        given = [x for s in last.values() for x in ("--set", s)]
        given = [] if verb == "tune" else given
        out = ["--out", folder] if verb == "audit" else []
        words = ["vflsec", verb, scenario, *out, *given, *more]
    else:
        if not folder:
            return ""
        words = ["vflsec", verb, folder, *more]
    return clean(shlex.join(words))


def next_steps(summary: Mapping[str, Any]) -> list[Step]:
    """What to do now, most urgent first."""
    found, _ = headline(summary)
    if found == "NO GATE" and not summary["attacks"]:
        return [
            Step("Nothing was attacked: add an [[attack]] to see what leaks, and a [[gate]] with a "
                 "limit.", "vflsec list attacks")
        ]  # fmt: skip
    if found == "NO GATE":
        return [
            Step('Set a threshold: add [[gate]] with metric = "advantage" and max = 0.1; or try '
                 "one.", command(summary, "gate", "--max", "0.1"))
        ]  # fmt: skip
    if found == "UNFINISHED":
        return [
            Step("Run the same audit again: it goes on from what is stored, and tries again what "
                 "failed.", command(summary, "audit"))
        ]  # fmt: skip
    out = []
    verdicts = summary["gates"]
    for dataset in dict.fromkeys(v["dataset"] for v in verdicts if v["verdict"] == "FAIL"):
        out.append(_cure(dataset, summary))
    open_ = [v for v in verdicts if v["verdict"] == "INCONCLUSIVE"]
    silent = " ".join(v["reason"] for v in open_ if v["reason"].startswith("Not shown to be alive"))
    dead = sorted(k for k, a in summary["alive"].items() if not a["alive"] and _attack(k) in silent)
    unseen = [k for k in dead if "never measured without" in summary["alive"][k]["evidence"]]
    if unseen and not command(summary, "audit"):
        out.append(
            Step("Record the system without a defense too (run={'defense': 'none'}), as often, and "
                 "give those traces to the same audit: only beside them anything can pass.")
        )  # fmt: skip
    elif dead:
        out.append(
            Step(f"Not shown to work, so their silence proves nothing: {clean(', '.join(dead))}. "
                 "Check their settings, grant more (known_rows, or aux_rows for columns), or name "
                 "in a gate those that count.", shlex.join(["vflsec", "show", _attack(dead[0])]))
        )  # fmt: skip
    if any(v.get("more_seeds") or "would decide it" in v["reason"] for v in open_):
        more = max((v.get("more_seeds") or 0 for v in open_), default=0)
        budget = str(max((v["n"] for v in open_), default=5) + max(more, 5))
        out.append(
            Step("Decide what is open with more seeds; what is stored is not trained again.",
                 command(summary, "audit", "--until-decided", budget))
            if command(summary, "audit") else
            Step("Decide what is open with more seeds: give records of further runs, which differ "
                 "in the seed only, to one audit.")
        )  # fmt: skip
    stuck = [v for v in open_ if re.search("no number of seeds|would not decide it", v["reason"])]
    if stuck:
        out.append(
            Step(f"Seeds do not decide '{clean(stuck[0]['label'])}'. More labelled rows "
                 "(known_rows) for the attack and its controls may, or another strength or limit.",
                 "vflsec show attack")
        )  # fmt: skip
    blind = [v for v in verdicts if "would" in (v.get("warning") or "")]
    if blind:
        more = max(v["more_seeds"] or 0 for v in blind)
        seeds = ["--seeds", str(max(v["n"] for v in blind) + more)] if more else []
        out.append(
            Step("A leak above a gate's limit may have gone unfound. Add seeds; with detect in "
                 "a [[gate]] only an audit passes that would have found so much.",
                 command(summary, "audit", *seeds) if more else "vflsec show gate")
        )  # fmt: skip
    out += _limits(summary)
    if found == "PASS":
        out.append(
            Step("Keep these results as the baseline, so that a later rise fails.",
                 command(summary, "gate", "--baseline", "baseline.json", "--update-baseline"))
        )  # fmt: skip
    gaps = uncovered(summary) if summary.get("scenario") else []  # a trace was asked for all
    if gaps:
        out.append(
            Step("Of families that were not run these read what crossed: "
                 f"{', '.join(gaps)}. Add an [[attack]] for each that a partner could make "
                 "(`vflsec check` says which apply); what one needs:",
                 shlex.join(["vflsec", "show", gaps[0]]))
        )  # fmt: skip
    return out


def _limits(summary: Mapping[str, Any]) -> list[Step]:
    """What leaks where the system is judged and no gate limits: a gate, and what may stop it."""
    found = deployed(summary)
    if not found:
        return []
    p = found[0]
    kinds = reads((summary["attacks"].get(p["attack_key"]) or {}).get("needs", ()))
    treats = [n for k in kinds for n in (summary.get("treats") or {}).get(k, ())]
    text = (
        f"No gate limits {parts(found)} at {place(p)}. If that must not be told, add a [[gate]] "
        f'with target = "{clean(p["target"])}"'
    )
    if not treats:
        return [Step(f"{text}, and look for a defense.", "vflsec list defenses")]
    asked = _sought(p["dataset"], summary)
    asked = [w for w in asked if w.startswith("--") and w != "--target"]
    words = ["--defense", treats[0], *asked, "--target", clean(p["target"])]
    return [
        Step(f"{text}, and a defense of what is read ({' and '.join(sorted(kinds))}) beside the "
             "others. How strong it has to be:", command(summary, "tune", *words))
    ]  # fmt: skip


def _attack(title: str) -> str:
    """The registered name in a title such as ``norm(steps=3) by shop``."""
    return clean(title).split("(")[0].split(" ")[0]


def _limit(gate: Mapping[str, Any]) -> list[str]:
    """A gate's metric, limit and attacks as options of `vflsec gate`."""
    out = ["--metric", gate["metric"]]
    for key in ("max", "min", "detect"):
        out += [f"--{key}={gate[key]:g}"] if gate.get(key) is not None else []
    for key in ("of", "attack", "adversary", "split", "target"):
        out += [f"--{key}", gate[key]] if gate.get(key, "") not in ("*", "") else []
    return out


def _sought(dataset: str, summary: Mapping[str, Any]) -> list[str]:
    """What the gates ask on a data set as options of `vflsec tune`, which has defaults."""
    asked = [v["gate"] for v in summary["gates"] if v["dataset"] == dataset]
    asked = [g for g in asked if g["max"] is not None]
    leaks = [g for g in asked if g["metric"] == "advantage"]
    drops = [g["max"] for g in asked if g["metric"] == "utility_drop"]
    out = [f"--leak={min(g['max'] for g in leaks):g}"] if leaks else []
    out += [f"--drop={min(drops):g}"] if drops else []
    targets = {g["target"] for g in leaks}
    one = len(targets) == 1 and targets != {"*"}
    return [*out, "--target", *targets] if one else out


def _cure(dataset: str, summary: Mapping[str, Any]) -> Step:
    """The point that passes where the deployed one does not, or how to look for one."""
    rows = [r for r in summary.get("grid") or [] if r["dataset"] == dataset]
    best = min((r for r in rows if r["cheapest"]), key=lambda r: r["utility_drop"], default=None)
    where = clean(dataset) or "the data"
    if best is not None and best["defense"] != "none" and best["strength"]:
        failed = (v for v in summary["gates"] if v["verdict"] == "FAIL")
        asked = next(v["gate"] for v in failed if v["dataset"] == dataset)
        more = ["--dataset", dataset, "--defense", best["defense"],
                "--strength", f"{best['strength']:g}", *_limit(asked)]  # fmt: skip
        return Step(
            f"On {where} use {place(best)} with {clean(best['algorithm'])}: it passes every gate "
            f"and costs {_price(best)}. Judge it alone, or set its strength in the scenario.",
            command(summary, "gate", *more),
        )
    good = [r for r in rows if r["passed"] == r["gates"]]
    if good:
        if not command(summary, "audit"):
            return Step(
                f"On {where} every gate passes at {_points(good)}. If that is deployed, let the "
                "gate say so: --defense defended leaves the others as a reference."
            )
        return Step(
            f"On {where} every gate passes at {_points(good)}, so set the strength that you deploy "
            "to one of these in the scenario and its gates, and judge again.",
            command(summary, "audit"),
        )
    swept: dict[str, float] = {}
    for r in rows:
        if r["defense"] != "none" and r["strength"]:
            swept[r["defense"]] = max(swept.get(r["defense"], 0.0), r["strength"])
    text = f"On {where} no point that was tried passes every gate."
    single = [d for d in swept if d.isidentifier()]
    if not command(summary, "audit"):
        return Step(
            f"{text} Share less, or protect what leaks, and give recordings of that "
            "(run={'defense': NAME, 'strength': S, 'seed': ...}) to the same audit beside these."
        )
    if not single:
        return Step(f"{text} Add a [[defense]], or share less.", "vflsec list defenses")
    name = single[0]
    high = f"{max(10 * swept[name], 100.0):g}"
    found = command(summary, "tune", "--defense", name, "--high", high, *_sought(dataset, summary))
    return Step(
        f"{text} Look for a strength that does, try another defense, or share less.",
        found or "vflsec list defenses",
    )
