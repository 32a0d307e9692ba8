"""What algorithms for few aligned rows and few exchanges reach, send and leak.

Run ``python benchmarks/evidence_few_overlap.py``; it writes docs/evidence/few_overlap.md and its
figure. The tables lie in the folder that VFLSEC_TEST_DATA names, or in ../shared/data beside the
repository. Finished rows are kept in build/evidence/few_overlap.json, so an interrupted run goes on
and a new row alone is computed; ``--fresh`` starts anew. To try something without writing:
``--only WORD`` runs the rows whose title has the word, ``--part WORD`` and ``--data WORD`` the
parts and data whose name has it, ``--quick`` the first world of every part with two seeds and six
epochs.

Rows, attacks and published orderings are in few_overlap/parts.py.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

import pandas as pd
from few_overlap import words
from few_overlap.parts import CONVOLVED, EXCHANGES, PARTS, STUDENTS, Part
from few_overlap.run import Found, Store, leaks
from few_overlap.worlds import ROOT, tasks_of

from vflsec.report.figures import cost_utility_leakage

PAGE = ROOT / "docs" / "evidence" / "few_overlap.md"
FIGURE = PAGE.with_suffix(".svg")
QUICK: dict[str, Any] = {"epochs": 6}
PUBLISHED = {
    "FedBCD": "with Q = 5 a fifth, at a fixed number of updates",
    "FedCVT": "the same",
    "One-shot": "3 messages a client; on CIFAR-10 1/330 at 256 aligned rows",
    "Few-shot + finetune": "on CIFAR-10 1/5 at 256 aligned rows",
    "Few-shot": "5 messages a client; on CIFAR-10 1/10 at 256 aligned rows",
}


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--only", "--part", "--data"):
        parser.add_argument(name, default="")
    for name in ("--quick", "--fresh"):
        parser.add_argument(name, action="store_true")
    given = parser.parse_args()
    store, text, seconds = Store(given.fresh), [HEAD], 0.0
    for whole in (p for p in PARTS if given.part in p.key):
        part = cut(whole, given)
        if part.worlds and part.rows:
            lines, spent = written(part, store, range(2 if given.quick else 5))
            text, seconds = [*text, *lines], seconds + spent
    page = "\n".join(text).rstrip("\n") + "\n"
    print(page, f"\n{seconds / 60:.1f} minutes of CPU for all rows")
    if not (given.only or given.quick or given.data or given.part):
        PAGE.parent.mkdir(parents=True, exist_ok=True)
        PAGE.write_text(page, encoding="utf-8")


def cut(part: Part, given: argparse.Namespace) -> Part:
    """What the options leave of a part."""
    worlds = tuple(w for w in part.worlds if given.data in w.key)
    rows = tuple(r for r in part.rows if given.only in r.title)
    if not given.quick:
        return replace(part, worlds=worlds, rows=rows)
    rows = tuple(replace(r, sweep={k: v[:1] for k, v in r.sweep.items()}) for r in rows)
    rows = tuple(
        replace(r, params={k: min(v, 6) if "epochs" in k else v for k, v in r.params.items()})
        for r in rows
    )
    return replace(part, worlds=worlds[:1], rows=rows, shared={**part.shared, **QUICK})


def written(part: Part, store: Store, seeds: range) -> tuple[list[str], float]:
    """A part of the page, and the seconds of CPU behind it."""
    lines, results, seconds = [f"## {part.title}", "", part.words, ""], {}, 0.0
    for world in part.worlds:
        found: dict[str, Found] = {
            row.title: store.found(part, world, row, seeds) for row in part.rows
        }
        points = leaks(part, world, found)
        seconds += sum(f.seconds for f in found.values())
        results[world.key] = found
        sizes = {k: len(v) for k, v in tasks_of(world, seeds)[0].sets.items()}
        lines.append(words.table(part, world, found, sizes))
        if world.key == part.drawn and len(found) == len(part.rows) and len(seeds) > 2:
            lines += drawn(points, world.key)
    lines += words.claims(part, results)
    if part.key == STUDENTS.key:
        lines += words.selection(results)
    lines += ["### Cost and leakage in words", "",
              *words.costs(results, PUBLISHED), *words.leakage(part, results)]  # fmt: skip
    if part.key in (EXCHANGES.key, CONVOLVED.key):
        lines += words.downloads(results)
    if part.key == STUDENTS.key:
        lines += words.after_the_teacher(results)
    return [*lines, ""], seconds


def drawn(points: pd.DataFrame, key: str) -> list[str]:
    """Write the figure of one world, and the lines that show it."""
    from matplotlib import rc_context

    with rc_context({"svg.hashsalt": "vflsec"}):
        ax = cost_utility_leakage(points)
        ax.set_title(key, fontsize="medium", loc="left")
        none = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        ax.figure.savefig(FIGURE, format="svg", metadata=none)  # type: ignore[union-attr]
    return [f"![Cost, utility and leakage on {key} aligned rows]({FIGURE.name})", ""]


HEAD = """# Few aligned rows, few exchanges: utility, cost and leakage side by side

Made by `python benchmarks/evidence_few_overlap.py`; seeds 0 to 4; "±" is the half width of the 95 %
t interval over seeds. Every sentence about an outcome is written by that script from the numbers.
Reduced tables, so orderings are compared with the papers', not numbers.

Data: 6,000 rows of each table, without categorical columns of more than 500 values; the digits of
scikit-learn. Only the aligned rows are known to match; the others stay rows of each party. Bottoms
64 -> 32, linear head, Adam at rate 0.003, at most 60 epochs, patience 10, best epoch by validation
loss if nothing else is said, no more validation than aligned rows. MB and messages are those of
training, counted until each seed stopped: ids, signals, embeddings, gradients; "data messages" are
the last two.

Leakage is on the labels of the aligned training rows, by the passive party with 20 known rows, if
nothing else is said; the figure is that after the last phase, with `cluster` after the first in
which gradients pass. The advantage is over the strongest control with the same grants and own
columns, chosen once for all rows of a table.
"""

if __name__ == "__main__":
    main()
