"""Pages of what is registered, made from module docstrings: python -m vflsec.report.docs_pages
KIND.

A page starts with a table (name, target, needs, what it does in a sentence) and repeats of every
module who the attacker is, its formula, where it fails and where it comes from, so that they are
written in one place. The page lies in ``docs``; a test compares it with what this module makes.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from vflsec.core import check
from vflsec.plugins import registry
from vflsec.plugins.registry import Entry

_HEADS = ("Attacker", "Needs", "Does not", "Known failure cases")
_TARGETS = {
    "label": "labels of the active party",
    "feature": "columns of another party",
    "attribute": "one column of another party",
    "embedding": "embeddings that were encrypted",
    "integrity": "predictions",
    "membership": "which rows were trained on",
    "property": "a share of rows at another party",
}


def sections(doc: str) -> dict[str, str]:
    """The parts of an attack's docstring: ``formula``, those of the fixed heads, and ``source``."""
    body = doc.strip().split("\n\n", 1)[1]
    body, _, source = body.partition("\nSource:")
    out: dict[str, list[str]] = {"formula": []}
    current = "formula"
    for line in body.splitlines():
        head = next((h for h in _HEADS if line.startswith(h)), None)
        if head is not None:
            current = head
            line = line.removeprefix(f"{head}:").strip() if line.startswith(f"{head}:") else line
        out.setdefault(current, []).append(line)
    found = {k: "\n".join(v).strip() for k, v in out.items()}
    found["source"] = " ".join(source.split())
    return found


def page() -> str:
    """The page of attacks, in Markdown."""
    entries = [e for e in registry.attacks.entries().values() if e.module.startswith("vflsec.")]
    lines = [
        "# Attacks",
        "",
        "Written by `python -m vflsec.report.docs_pages attacks` from the files in `attacks/`; "
        "edit those. What each of them finds is measured in "
        "[evidence/attacks.md](evidence/attacks.md), and beside independent implementations in "
        "[evidence/independent.md](evidence/independent.md).",
        "",
        "| attack | aims at | needs | deviates | CPU s | in one sentence |",
        "|---|---|---|---|---|---|",
        *(_row(e) for e in entries),
        "",
        "*Needs* are those of the default parameters: `KIND:FORM` is a message received (`sent.`: "
        "sent), kept as the mean over epochs, the first or the last of each row; `model` is the "
        "own trained model; `known_rows`, `prior`, `aux_rows` and `peer_model` are grants of the "
        "scenario. An attack that *deviates* changes what its party does in training or at "
        "inference, and one that *asks* questions the trained system: either gets a training of "
        "its own. *CPU s* is about what one answer costs beside the training: two classes, some "
        "thousand rows, one thread of a server of 2024.",
        "",
    ]
    for e in entries:
        lines += _section(e)
    return "\n".join(lines).rstrip() + "\n"


def _row(entry: Entry) -> str:
    attack = registry.attacks.create(entry.name)
    needs = ", ".join(f"`{n}`" for n in sorted(attack.needs))
    if attack.optional:
        needs += f"; of {', '.join(f'`{n}`' for n in sorted(attack.optional))} what comes"
    active = "yes" if attack.policy() else "asks" if attack.needs_own_training else "no"
    summary = entry.summary.replace("|", "\\|")
    name = f"[{entry.name}](#{entry.name})"
    target = _TARGETS.get(attack.target, attack.target)
    return f"| {name} | {target} | {needs} | {active} | {attack.seconds:g} | {summary} |"


def _section(entry: Entry) -> list[str]:
    parts = sections(entry.doc)
    attack = registry.attacks.create(entry.name)
    also = f" Also called {', '.join(f'`{a}`' for a in entry.aliases)}." if entry.aliases else ""
    classes = " Two classes only." if attack.binary_only else ""
    each = " Takes several labels one by one." if attack.labelwise else ""
    lines = [f"## {entry.name}", "", f"{entry.summary}{classes}{each}{also}", ""]
    if parts["formula"]:
        lines += ["```text", parts["formula"], "```", ""]
    for head, title in (
        ("Attacker", "Who"), ("Needs", "Needs"), ("Does not", "Where not"),
        ("Known failure cases", "Fails"),
    ):  # fmt: skip
        if head in parts:
            lines += [f"- **{title}.** {' '.join(parts[head].split())}"]
    return [*lines, f"- **Source.** {parts['source']}", ""]


def main(arguments: Sequence[str] | None = None) -> Path:
    """Write the page of a kind; returns its path.

    Raises:
        ConfigError: there is no page of that kind, or no docs folder to write to.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    kind = check.one_of("catalogue: KIND", given[0] if given else "", ("attacks",))
    docs = Path(__file__).resolve().parents[2] / "docs"
    if not docs.is_dir():
        raise check.fail("catalogue: docs", "a folder of the repository", str(docs))
    target = docs / f"{kind}.md"
    target.write_text(re.sub(r"\n{3,}", "\n\n", page()), encoding="utf-8")
    return target


if __name__ == "__main__":
    main()
