"""Writes what is registered into the pages of docs: python .ci/docs_pages.py

What people wrote stands above the mark in each page and stays; what comes below is made from module
docstrings and from the tags of families, so that it is written in one place. Tests compare.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from vflsec.core.policy import Policy
from vflsec.core.privacy_usage import RunFacts, Uses
from vflsec.plugins import registry
from vflsec.plugins.registry import Entry
from vflsec.report.taxonomies import FAMILIES, TAGS, TAXONOMIES

DOCS = Path(__file__).resolve().parents[1] / "docs"
MARK = "<!-- What follows is written by .ci/docs_pages.py: edit what it is made from. -->\n\n"

_TARGETS = {
    "label": "labels of the active party",
    "feature": "columns of another party",
    "attribute": "one column of another party",
    "embedding": "embeddings that were encrypted",
    "integrity": "predictions",
    "membership": "which rows were trained on",
    "property": "a share of rows at another party",
    "presence": "which rows the others have too",
}
_NO_HOOKS = ("carries", "check_strength", "guarantee", "noise", "overrides", "refuse")
_HOOKS = [
    k for k, v in vars(Policy).items()
    if inspect.isfunction(v) and k not in _NO_HOOKS and not k.startswith("_")
]  # fmt: skip


def _table(heads: str, rows: Iterable[str]) -> str:
    names = heads.split(" | ")
    return "\n".join([f"| {heads} |", "|---" * len(names) + "|", *(f"| {r} |" for r in rows)])


def write_attacks() -> str:
    """The table of attacks."""
    entries = [e for e in registry.attacks.entries().values() if e.module.startswith("vflsec.")]
    heads = "attack | aims at | needs | deviates | CPU s | in one sentence"
    return _table(heads, map(_attack_row, entries))


def _attack_row(entry: Entry) -> str:
    attack = registry.attacks.create(entry.name)
    needs = ", ".join(f"`{n}`" for n in sorted(attack.needs))
    if attack.optional:
        needs += f"; of {', '.join(f'`{n}`' for n in sorted(attack.optional))} what comes"
    active = "yes" if attack.policy() else "asks" if attack.needs_own_training else "no"
    target = _TARGETS.get(attack.target, attack.target)
    name, said = _link("attacks", entry), entry.summary.replace("|", "\\|")
    return f"{name} | {target} | {needs} | {active} | {attack.seconds:g} | {said}"


def _link(kind: str, entry: Entry) -> str:
    """The name of a component, with a link to all that is written of it."""
    return f"[{entry.name}](reference/{kind}.md#{entry.name})"


def write_defenses() -> str:
    """The table of defenses."""
    entries = registry.defenses.entries().values()
    heads = (
        "defense | owner | changes | strength (0 = off) | natural parameter | epsilon | in one "
        "sentence"
    )
    return _table(heads, map(_defense_row, entries))


def _defense_row(entry: Entry) -> str:
    cls: Any = entry.load()
    policy = cls()
    hooks = ", ".join(h for h in _HOOKS if policy.overrides(h))
    natural = ", ".join(f"`{n}`" for n in cls.natural) or "-"
    made = policy.guarantee(1.0, RunFacts(uses=Uses(counted=1)))
    epsilon = "none" if made.epsilon is None else f"{made.protects}; {made.accountant}"
    name, said = _link("defenses", entry), entry.summary.replace("|", "\\|")
    strengths = cls.strengths or "none"
    return f"{name} | {policy.owner} | {hooks} | {strengths} | {natural} | {epsilon} | {said}"


def write_taxonomies() -> str:
    """What was mapped, every entry, and the families of attacks with theirs."""
    by_id, by_key = {t.id: t for t in TAGS}, {t.key: t for t in TAXONOMIES}
    mapped = (f"[{t.name}]({t.url}) | {t.version} | {t.by}" for t in TAXONOMIES)
    entries = (f"{by_key[t.taxonomy].name} | {t.ref} | {t.name} | {t.fit} | {t.why}" for t in TAGS)
    families = []
    for f in FAMILIES:
        of = [by_id[i] for i in f.tags]
        cells = ("; ".join(f"{by_key[t.taxonomy].by}: {t.name}" for t in of if t.fit == fit)
                 for fit in ("exact", "related"))  # fmt: skip
        families.append(" | ".join([f.name, *(c or "none" for c in cells)]))
    return "\n\n".join([
        "## What was mapped", _table("taxonomy | version | publisher", mapped),
        "## Entries", _table("taxonomy | entry | called there | fit | where it ends", entries),
        "## Families of attacks", _table("family | exact | related", families),
    ])  # fmt: skip


PAGES: dict[str, Callable[[], str]] = {
    "attacks.md": write_attacks, "defenses.md": write_defenses, "taxonomies.md": write_taxonomies,
}  # fmt: skip


def make_page(name: str) -> str:
    """A page as it should be."""
    head, mark, _ = (DOCS / name).read_text(encoding="utf-8").partition(MARK)
    assert mark, f"docs/{name} has lost the line {MARK.strip()!r}"
    return f"{head}{mark}{PAGES[name]()}\n"


if __name__ == "__main__":
    for page in PAGES:
        (DOCS / page).write_text(make_page(page), encoding="utf-8")
