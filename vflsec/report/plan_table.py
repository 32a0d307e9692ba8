"""What `vflsec check` prints: tables, what will run, what cannot and why, and what it costs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from vflsec.audit.defense_label import called
from vflsec.core.visibility import HEADS, Line, cells, claim
from vflsec.report.rich_items import item
from vflsec.report.sanitize import shown
from vflsec.report.tables import print_tables

__all__ = ["attacks_of", "print_plan", "print_visibility"]


def print_plan(plan: Mapping[str, Any], console: Console) -> None:
    """What is in the tables, what will run, what cannot and why, and the estimate."""
    plan = shown(plan)
    for data in plan["data"]:
        print_tables(data, console, brief=True)
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("what for", "data", "algorithm", "defenses"):
        table.add_column(name, overflow="fold")
    table.add_column("trainings", justify="right")
    for group in plan["groups"]:
        defenses = _stack(group["defenses"])
        strengths = [", ".join(f"{s:g}" for s in point) for point in group["strengths"] if point]
        if strengths:
            defenses += f" at {'; '.join(strengths)}"
        table.add_row(
            group["role"], group["dataset"], group["algorithm"], defenses,
            str(len(group["cells"])),
        )  # fmt: skip
    console.print(table)
    roles = dict.fromkeys(g["role"] for g in plan["groups"])
    for line in [*attacks_of(plan["groups"]), *(_ROLES[r] for r in roles if r in _ROLES)]:
        console.print(item("  ", Text(line)))
    under = {c: _stack(g["defenses"]) for g in plan["groups"] for c in g["cells"]}
    for refused in plan["refused"]:
        where = dict.fromkeys(under[c] for c in refused["cells"] if c in under)
        console.print(
            Text.assemble(
                (f"{refused['status']}: ", "yellow"),
                f"{refused['attack']['name']} on {refused['dataset']} ({refused['role']}; "
                f"{', '.join(where)}): {refused['reason']}",
            )
        )
    print_visibility(plan["visibility"], console)
    for note in plan["notes"]:
        console.print(Text(f"note: {note}", style="dim"))
    cost = plan["cost"]
    console.print(
        f"\n{cost['trainings']:,.0f} trainings, {cost['attacks']:,.0f} attacks, about "
        f"{cost['steps']:,.0f} steps: roughly {_duration(cost['seconds'])} on one CPU thread, "
        f"{_duration(cost['control_seconds'])} of it for controls, in about "
        f"{_size(cost['memory_bytes'])} of memory (an estimate)."
    )
    if cost.get("views_bytes"):
        console.print(
            f"With --keep-views, about {_size(cost['views_bytes'])} of views are kept "
            "(an estimate; --views-mb bounds them).", highlight=False,
        )  # fmt: skip
    if cost.get("ciphertext_bytes"):
        _encryption(cost["encryption"], console)
        steps = max(cost["steps"], 1)
        sealed = cost["encryption_seconds"]
        spent = f"{sealed / steps:.2g} s a step and {_duration(sealed)} in all"
        console.print(
            f"Encryption: about {cost['ciphertext_bytes'] / steps / 1e6:.3g} MB of ciphertexts a "
            f"step (mean over all trainings), {cost['ciphertext_bytes'] / 1e9:.3g} GB in all; "
            f"{spent if sealed else 'emulated, so they are counted and not computed'}."
        )


def print_visibility(entries: Sequence[Mapping[str, Any]], console: Console) -> None:
    """Who sees what, for every protocol that hides something, and what that buys."""
    shown: list[Any] = []
    for entry in entries:
        same = entry["defense"], entry["lines"], entry["hides"], entry["leaves"]
        if same in shown and "sentences" not in entry:
            continue  # another algorithm, the same protocol
        shown.append(same)
        console.print(Text(f"\nWhat stays visible: {entry['defense']}", style="bold"))
        table = Table(box=None, pad_edge=False, header_style="dim")
        for name in HEADS:
            table.add_column(name, overflow="fold")
        for line in entry["lines"]:
            table.add_row(*map(Text, cells(Line(**line))))
        console.print(table)
        said = [text for _, text in entry.get("sentences", [])]
        for text in said or [claim("It", entry["hides"], entry["leaves"])]:
            console.print(Text(text))


def _encryption(entries: Sequence[Mapping[str, Any]], console: Console) -> None:
    """Seconds by operation and bytes of one batch, an epoch and the whole run."""
    console.print(Text("\nWhat encryption costs, by estimate", style="bold"))
    for e in entries:
        seconds = sum(e["seconds"].values())
        parts = ", ".join(f"{k} {v:.2g} s" for k, v in e["seconds"].items())
        more = [
            f"{what} {_duration(seconds * e[n])} and {_size(e['bytes'] * e[n])}"
            for what, n in (("an epoch", "per_epoch"), ("the whole run", "in_all"))
        ]
        body = f"{e['algorithm']} with {e['defense']} on {e['dataset']}" + (
            "" if e["computed"] else ", if it were real"
        )
        body += f": a batch {seconds:.2g} s ({parts}) and {_size(e['bytes'])}; {'; '.join(more)}."
        console.print(item("- ", Text(body)))


def _size(count: float) -> str:
    return f"{count / 1e6:.3g} MB" if count < 1e9 else f"{count / 1e9:.3g} GB"


def _stack(defenses: Sequence[Mapping[str, Any]]) -> str:
    """Names and parameters, without strengths."""
    return " + ".join(called(d["name"], d["params"]) for d in defenses) or "none"


_ROLES = {
    "reference": "reference: what is reached without the federation, or with all columns in one "
    "place; nobody attacks it.",
    "control": "control: a leak that is planted, on which each attack has to show that it works.",
    "tuning": "tuning: drawn worlds on which settings of a strong attacker are tried.",
}


def attacks_of(groups: Sequence[Mapping[str, Any]]) -> list[str]:
    """Which attacks are made on what, each list once."""
    made: dict[str, list[Mapping[str, Any]]] = {}
    for g in groups:
        if g["attacks"]:
            made.setdefault(_names(g["attacks"]), []).append(g)
    out = []
    for names, of in made.items():
        others = [g for other, theirs in made.items() if other != names for g in theirs]
        told = dict.fromkeys(_told_from(g, others) for g in of)
        where = f" ({', '.join(told)})" if others else ""
        out.append(f"attacks{where}: {names}")
    return out or ["attacks: none"]


def _told_from(group: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> str:
    """A group in words that do not fit the others: its role, then its data and algorithm."""
    role = str(group["role"])
    if all(o["role"] != role for o in others):
        return role
    return f"{role} of {group['dataset']} by {group['algorithm']}"


def _names(attacks: Iterable[Mapping[str, Any]]) -> str:
    return ", ".join(dict.fromkeys(a["name"] for a in attacks))


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
