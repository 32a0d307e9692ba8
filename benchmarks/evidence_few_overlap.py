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
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from evidence_pages import opening
from few_overlap import words
from few_overlap.parts import PARTS, STUDENTS, Part
from few_overlap.run import Found, Store, leaks
from few_overlap.worlds import ROOT, tasks_of

from vflsec.report.figures import cost_utility_leakage

PAGE = ROOT / "docs" / "evidence" / "few_overlap.md"
FIGURE = PAGE.with_suffix(".svg")
QUICK: dict[str, Any] = {"epochs": 6}
TITLE = "Few aligned rows, few exchanges"
METHOD = (
    """`python benchmarks/evidence_few_overlap.py`; seeds 0 to 4. "±" is the half width of the 95 %
    t interval over seeds. Tables are reduced: compare orderings with the papers', not values.""",
    """6,000 rows of each table, without categorical columns of more than 500 values, and the digits
    of scikit-learn. Only the aligned rows are known to match. Bottoms 64 -> 32, linear head,
    `embedding = 0`, Adam at rate 0.003, at most 60 epochs, patience 10, best epoch by validation
    loss unless said otherwise. MB and messages are those of training until each seed stopped: ids,
    signals, embeddings, gradients. *Data messages* are the last two.""",
    """The attacker is the passive party with 20 labelled rows, its target the labels of the aligned
    training rows, unless said otherwise. Values are those after the last phase; `cluster` is taken
    after the first phase that sends gradients. The advantage is over the strongest baseline with
    the same labelled rows and own columns, chosen once for all rows of a data set.""",
    """An ordering is *confirmed* where the whole 95 % t interval of the paired difference in test
    utility is above 0, and *refuted* where it is below; no correction for the number of
    comparisons. "Reaches" is confirmed where the interval lies within 0.02 of 0.""",
)
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
    store, seeds = Store(given.fresh), range(2 if given.quick else 5)
    parts = [cut(p, given) for p in PARTS if given.part in p.key]
    made = [(p, results(p, store, seeds)) for p in parts if p.worlds and p.rows]
    text = page(made, seeds)
    seconds = sum(f.seconds for _, r in made for found in r.values() for f in found.values())
    print(text, f"\n{seconds / 60:.1f} minutes of CPU for all rows")
    if not (given.only or given.quick or given.data or given.part):
        PAGE.parent.mkdir(parents=True, exist_ok=True)
        PAGE.write_text(text, encoding="utf-8")


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


def results(part: Part, store: Store, seeds: range) -> dict[str, dict[str, Found]]:
    """What the rows of a part came to, by world; draws the figure of its world."""
    made = {}
    for world in part.worlds:
        found = {row.title: store.found(part, world, row, seeds) for row in part.rows}
        points = leaks(part, world, found)
        made[world.key] = found
        if world.key == part.drawn and len(found) == len(part.rows) and len(seeds) > 2:
            draw(points, world.key)
    return made


def page(made: Sequence[tuple[Part, words.Results]], seeds: range) -> str:
    """The whole page."""
    method = [*METHOD, *(f"*{part.title}.* {part.words}" for part, _ in made)]
    text = opening(TITLE, answer(made), method)
    for part, found in made:
        text += [f"## {part.title}", "", *words.table(part, found)]
        text += words.claims(words.judged(part, found))
        if any(w.key == part.drawn for w in part.worlds):
            title = f"Cost, utility and leakage on {part.drawn} aligned rows"
            text += [f"![{title}]({FIGURE.name})", ""]
        text += words.costs(found, PUBLISHED)
        if part.key == STUDENTS.key:
            text += [*words.after_the_teacher(found), *words.selection(found)]
    sizes = {
        world.key: (world, {k: len(v) for k, v in tasks_of(world, seeds)[0].sets.items()})
        for part, _ in made
        for world in part.worlds
    }
    return "\n".join([*text, "## Data sets", "", *words.sizes(sizes)]).rstrip("\n") + "\n"


def answer(made: Sequence[tuple[Part, words.Results]]) -> str:
    """The first paragraph: the orderings counted, and what the single download costs and leaks."""
    every = [word for part, found in made for claim, by in words.judged(part, found).items()
             if claim.source for _, word in by.values()]  # fmt: skip
    once = [found for _, found in made if "One-shot" in next(iter(found.values()))]
    text = f"""Do algorithms for few aligned rows keep what their papers promise, and do they leak
        less? Of {len(every)} trials of a published ordering, {every.count("confirmed")} confirm it,
        {every.count("refuted")} refute it, and the others decide nothing."""
    if once:
        ratios = [r for found in once for r in words.ratios(found, "One-shot")]
        leaks = [at["One-shot"].leaks["cluster"][0] for found in once for at in found.values()]
        text += f""" One-shot training sends {words.span(ratios, 2)} times the bytes of FedSplitNN.
            `cluster` reads the labels of the aligned rows off its single download all the same
            (AUC or accuracy {words.span([float(np.mean(v)) for v in leaks])})."""
    return text


def draw(points: pd.DataFrame, key: str) -> None:
    """Write the figure of one world."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"svg.hashsalt": "vflsec"}):
        ax = cost_utility_leakage(points)
        ax.set_title(key, fontsize="medium", loc="left")
        none = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        assert isinstance(ax.figure, Figure)
        ax.figure.savefig(FIGURE, format="svg", metadata=none)


if __name__ == "__main__":
    main()
