"""What to do next, each step with the command that does it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from vflsec.audit.gate_selection import bare
from vflsec.audit.rounding import exact
from vflsec.report.attack_families import reads
from vflsec.report.coverage import uncovered
from vflsec.report.first_screen import price, spots
from vflsec.report.sanitize import clean
from vflsec.report.ungated_leaks import deployed, parts
from vflsec.report.verdicts import headline, place

__all__ = ["Step", "command", "next_steps"]


class Step(NamedTuple):
    """What to do now, and the command that does it ('' if none does)."""

    text: str
    command: str = ""


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
    silent = [place for v in open_ for place in v.get("dead", ())]
    dead = sorted(k for k, a in summary["alive"].items() if a.get("place") in silent)
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
    out += _failed(open_, summary)
    out += _reversed(open_, summary)
    if any(v.get("more_seeds") for v in open_):
        more = max((v.get("more_seeds") or 0 for v in open_), default=0)
        budget = str(max((v["n"] for v in open_), default=5) + max(more, 5))
        out.append(
            Step("Decide what is open with more seeds; what is stored is not trained again.",
                 command(summary, "audit", "--until-decided", budget))
            if command(summary, "audit") else
            Step("Decide what is open with more seeds: give records of further runs, which differ "
                 "in the seed only, to one audit.")
        )  # fmt: skip
    stuck = [v for v in open_ if v.get("stuck")]
    if stuck:
        out.append(
            Step(f"Seeds do not decide '{clean(stuck[0]['label'])}'. More labelled rows "
                 "(known_rows) for the attack and its controls may, or another strength or limit.",
                 "vflsec show attack")
        )  # fmt: skip
    if open_ and not out:
        v = open_[0]
        out.append(
            Step(f"What keeps '{clean(v['label'])}' open: {clean(v['reason'])}", "vflsec show gate")
        )
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


def _failed(open_: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]) -> list[Step]:
    """What to do where a training or an attack has failed, or gave no figure."""
    starts = ("Cannot pass: ", "Nothing to judge: ")
    stuck = [v for v in open_ if v["reason"].startswith(starts)]
    if not stuck:
        return []
    why = clean(stuck[0]["reason"].partition(": ")[2])
    text = f"'{clean(stuck[0]['label'])}' stays open whatever the others find: {why}"
    if any(p["failed"] for p in summary["points"]):
        return [
            Step(f"{text} Mend that, and run the same audit again, which tries what failed again.",
                 command(summary, "audit"))
        ]  # fmt: skip
    return [
        Step(f"{text} Take an attack that can be made, or leave it out.", "vflsec list attacks")
    ]


def _reversed(open_: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]) -> list[Step]:
    """What to do where a ranking in reverse keeps a gate open and seeds do not close it."""
    found = [v for v in open_ if "ranks in reverse" in v["reason"] and not v.get("more_seeds")]
    if not found:
        return []
    v = found[0]
    text = (
        f"{clean(v['attack'])} ranks in reverse at {place(v)}: take it for a leak to whoever knows "
        "which way round it is. Grant known rows (known_rows), by which an attack tells that, and "
        "look for a strength that leaves nothing either way."
    )
    tune = _search(v["dataset"], summary)
    return [Step(text, tune or shlex.join(["vflsec", "show", _attack(v["attack"])]))]


def _attack(title: str) -> str:
    """The registered name in a title such as ``norm(steps=3) by shop``."""
    return clean(bare(title).partition(" ")[0])


def _limit(gate: Mapping[str, Any]) -> list[str]:
    """A gate's metric, limit and attacks as options of `vflsec gate`."""
    out = ["--metric", gate["metric"]]
    for key in ("max", "min", "detect"):
        out += [f"--{key}={exact(gate[key])}"] if gate.get(key) is not None else []
    for key in ("of", "attack", "adversary", "split", "target"):
        out += [f"--{key}", gate[key]] if gate.get(key, "") not in ("*", "") else []
    return out


def _sought(dataset: str, summary: Mapping[str, Any]) -> list[str]:
    """What the gates ask on a data set as options of `vflsec tune`, which has defaults."""
    asked = [v["gate"] for v in summary["gates"] if v["dataset"] == dataset]
    asked = [g for g in asked if g["max"] is not None]
    leaks = [g for g in asked if g["metric"] == "advantage"]
    drops = [g["max"] for g in asked if g["metric"] == "utility_drop"]
    out = [f"--leak={exact(min(g['max'] for g in leaks))}"] if leaks else []
    out += [f"--drop={exact(min(drops))}"] if drops else []
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
                "--strength", exact(best["strength"]), *_limit(asked)]  # fmt: skip
        return Step(
            f"On {where} use {_to_write(best)} with {clean(best['algorithm'])}: it passes every "
            f"gate and costs {price(best)}. Judge it alone, or set its strength in the scenario.",
            command(summary, "gate", *more),
        )
    good = [r for r in rows if r["passed"] == r["gates"]]
    if good:
        if not command(summary, "audit"):
            return Step(
                f"On {where} every gate passes at {spots(good)}. If that is deployed, let the "
                "gate say so: --defense defended leaves the others as a reference."
            )
        return Step(
            f"On {where} every gate passes at {', '.join(map(_to_write, good))}, so set the "
            "strength that you deploy to one of these in the scenario and its gates, and judge "
            "again.",
            command(summary, "audit"),
        )
    text = f"On {where} no point that was tried passes every gate."
    if not command(summary, "audit"):
        return Step(
            f"{text} Share less, or protect what leaks, and give recordings of that "
            "(run={'defense': NAME, 'strength': S, 'seed': ...}) to the same audit beside these."
        )
    found = _search(dataset, summary)
    if not found:
        return Step(f"{text} Add a [[defense]], or share less.", "vflsec list defenses")
    return Step(f"{text} Look for a strength that does, try another defense, or share less.", found)


def _to_write(r: Mapping[str, Any]) -> str:
    """A point of the grid with the strength that a scenario has to name."""
    shown = place(r)
    if r["defense"] == "none" or not r["strength"]:
        return shown
    return clean(f"{r['defense']} {exact(r['strength'])}")


def _search(dataset: str, summary: Mapping[str, Any]) -> str:
    """The command that looks for a strength of a swept defense beyond the grid; '' if none is."""
    swept: dict[str, float] = {}
    for r in summary.get("grid") or []:
        if r["dataset"] == dataset and r["defense"].isidentifier() and r["defense"] != "none":
            swept[r["defense"]] = max(swept.get(r["defense"], 0.0), r["strength"] or 0.0)
    name = next((d for d, most in swept.items() if most), "")
    if not name:
        return ""
    high = exact(max(10 * swept[name], 100.0))
    return command(summary, "tune", "--defense", name, "--high", high, *_sought(dataset, summary))
