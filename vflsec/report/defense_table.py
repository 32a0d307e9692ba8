"""The page of all defenses, from the registry: ``python -m vflsec.report.defense_table FILE``."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from typing import Any

from vflsec.core.policy import Policy
from vflsec.core.privacy_usage import RunFacts, Uses
from vflsec.plugins import registry

NO_HOOKS = ("carries", "check_strength", "guarantee", "overrides", "refuse")
HOOKS = [
    k for k, v in vars(Policy).items()
    if inspect.isfunction(v) and k not in NO_HOOKS and not k.startswith("_")
]  # fmt: skip

HEAD = """# Defenses

Written from the registry by `python -m vflsec.report.defense_table docs/defenses.md`; do not edit.

Every defense is a policy on what its owner owns; strength 0 switches it off, bit for bit. Where a
*natural parameter* is named, a scenario may sweep it instead of the strength (for example
`epsilon = [8, 2, 1]`). An epsilon is stated only where an accountant computes one; everything else
is noise. What attacks find is in [evidence/defenses.md](evidence/defenses.md), what canaries
measure of every claim in [evidence/claims.md](evidence/claims.md).

**An epsilon is a property of an execution.** The accountant gets what was counted: how often the
label or the messages of the most used row went through the defense, in training, validation and
inference (an early stop counts as if it had not been). `vflsec check` predicts the count from the
phases' plans; a run that exceeds the prediction withdraws the claim. Nothing is claimed, and the
reason is given, where the hook was never called (which also fails the audit), where it gives back a
row of a message, or of a parameter's gradient, as it was, where labels are used past it (by the
algorithm, or by another defense that reads them or mixes labels of rows), where a policy before it
or a penalty may carry a row into other rows' messages, where a party that trains has no DP-SGD
beside one that has, or where one use would cost more than epsilon 36: coins and noise are drawn in
53 bits, which know no smaller chance. Nor is anything claimed at a delta of one in as many rows as
are labelled, which allows that one of them is published in full. Normal numbers of 53 bits end at
8.57 standard deviations; what lies beyond is added to delta, and claims end where it is more. The
engine holds every policy to this, a plug-in's too: one that names no hook in `counted`, that is
switched off, or whose `releases` are fewer than the uses that were counted claims nothing. For each
strength reports show the claim that all seeds keep: their largest epsilon, and none where one seed
has none. Every claim says what it protects, under which change, against whom, composed over what,
and under which conditions; the report prints it as one sentence and `summary.json` holds the parts.
Beside it stands what canaries measure: training rows whose label (or columns) a coin decides go
through a copy of the training and are guessed from what the adversary sees. A claim of all that is
computed from labels is held to predictions, too. One of messages takes the models as known: what
predictions tell beyond it does not contradict it, and is said beside it. For DP-SGD a coin decides
whether a row is there or zeroed out, and all parties' weights after every step are seen (where
these do not fit into 2 GB, the hook alone is measured, and the result says so). Only a
contradiction means something. Where nothing is found, the same canaries are trained without the
defense: if nothing is found there either, the verdict is inconclusive. `[audit] canaries = false`
leaves the copies out, and the claim is said to be untested.

A defense does not work under every algorithm: `dcor` treats embeddings that the active party gets
in a step, of which `oneshot` has none. One none of whose hooks changed anything is named in the
findings and marked `idle`; figures beside it are those without it.

**What is released besides.** Claims about labels are given the split of the rows, which is
stratified by label: whoever knows all other labels reads the last one off it. They are claims of
one training; further ones with the same labels, more seeds and tuning too, cost again, and figures
scored with true labels (accuracies, this tool's own report) are not covered. Claims about rows are
of one training as well, and are given the prepared columns: means and codes were fitted with the
row. Amplification by Poisson batches holds against those alone who do not see which rows a batch
has.

Baselines without a file of their own are parameters of the algorithm. A scenario with several
`[[algorithm]]` entries compares them: the cut width (`cut`), layers in the bottoms (`hidden`),
`dropout`, `weight_decay`, early stopping (`patience`, `epochs`). Leakage grows with epochs, so a
run that stops early is the defense to beat. CoAE with discrete gradients (DCAE) is `coae` and
`discrete` listed one after the other.

| defense | owner | hooks | strength | natural parameter | epsilon |
|---|---|---|---|---|---|
"""


def page() -> str:
    """The whole page as Markdown: a table, then a section for each defense."""
    lines, sections = [], []
    for name, entry in registry.defenses.entries().items():
        cls: Any = entry.load()
        policy = cls()
        hooks = ", ".join(h for h in HOOKS if policy.overrides(h))
        natural = ", ".join(f"`{n}`" for n in cls.natural) or "-"
        lines.append(
            f"| [{name}](#{name}) | {policy.owner} | {hooks} | {cls.strengths or 'none'} | "
            f"{natural} | {_epsilon(policy)} |"
        )
        sections.append(section(name))
    return HEAD + "\n".join(lines) + "\n\n" + "\n".join(sections)


def _epsilon(policy: Policy) -> str:
    found = policy.guarantee(1.0, RunFacts(uses=Uses(counted=1)))
    if found.epsilon is None:
        return "none"
    return f"{found.protects}; {found.accountant}"


def section(name: str) -> str:
    """Docstring and hyper-parameters of one defense."""
    entry = registry.defenses.entry(name)
    rows = [
        f"- `{key}` = `{parameter.default!r}`"
        for key, parameter in registry.list_parameters(entry.load()).items()
    ]
    doc = re.sub(r"``([^`]+)``", r"`\1`", entry.doc.strip())
    doc = "\n".join(
        f"    {line.strip()}" if line.startswith("  ") else line for line in doc.split("\n")
    )
    parts = [f"## {name}\n", doc]
    if entry.aliases:
        parts.append("\nAlso called " + ", ".join(f"`{a}`" for a in entry.aliases) + ".")
    if rows:
        parts.append("\nParameters: \n\n" + "\n".join(rows))
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
