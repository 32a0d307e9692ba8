"""When does it help? The gain of algorithms over what a party could have without them, on a grid of
the passive party's share of the signal, of aligned rows and of labels. Writes
docs/evidence/when_it_helps.md and its figure.

Run ``python benchmarks/when_it_helps.py`` from the root, beside ``VFLSEC_TEST_DATA`` or
../shared/data. Every trial is an ordinary audit of one table divided by ``[data] divide``; its
figures go to docs/evidence/when_it_helps.csv as soon as it has ended, and what stands there is not
run again: an interrupted run goes on where it was. ``--data WORD`` and ``--algorithm NAME`` say
which, ``--minutes M`` stops before a trial once M minutes of processor time are used, and
``--only-page`` writes the page of what there is.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

import pandas as pd
from evidence_pages import opening
from evidence_pages import table as lay_table
from kept_figures import Kept, make_parser
from seeds.run import DATA, ROOT, folder, train

from vflsec.audit.intervals import t_interval

PAGE = ROOT / "docs" / "evidence" / "when_it_helps.md"
FIGURE = PAGE.with_suffix(".svg")
CELL = ["table", "share", "aligned", "labels"]
FIELDS = (*CELL, "algorithm", "seed", "metric", "value", "seconds")
KEPT = Kept(PAGE.with_suffix(".csv"), FIELDS)
SEEDS = range(5)
SHARES, ALIGNED, LABELS = (0.1, 0.3, 0.6), (200, 500, 1500), (100, 300)
ALL = 0
"""Stands for: every own row has its label."""

TABLES: dict[str, tuple[str, dict[str, Any]]] = {
    "credit_default": ("fate", {"test": 0.8, "validation": 0.05}),
    "adult": ("employer_vs_registry", {"test": 0.87, "validation": 0.03}),
}
"""By table the split whose columns are divided, and about 4,500 rows for training."""

ALGORITHMS: dict[str, tuple[str, dict[str, Any]]] = {
    "Local": ("local", {"own_labels": True}),
    "VFL": ("splitnn", {}),
    "VFLHLP": ("vflhlp", {}),
    "One-shot": ("oneshot", {}),
    "JPL": ("jpl", {}),
    "FedHSSL": ("fedhssl", {"pretrain_iterations": 10}),
}
"""At their defaults, but for the length of FedHSSL's pre-training; Local has all own labels."""


@dataclass(frozen=True)
class Map:
    """One algorithm beside one baseline, with all own labels or with few."""

    better: str
    worse: str
    few: bool = False

    @property
    def title(self) -> str:
        """The pair in words."""
        return f"{self.better} over {self.worse}"


MAPS = (
    Map("VFL", "Local"), Map("VFLHLP", "VFL"), Map("VFLHLP", "Local"), Map("One-shot", "VFL"),
    Map("One-shot", "Local"), Map("JPL", "Local"), Map("FedHSSL", "VFL", True),
    Map("FedHSSL", "Local", True),
)  # fmt: skip

METHOD = (
    """`python benchmarks/when_it_helps.py`, from `when_it_helps.csv`: test AUC, seeds 0 to 4, every
    algorithm at its defaults but FedHSSL (10 global iterations, not 40, for time). Columns are
    divided by `divide = { importance = SHARE }` ([how](../howto/own_tables.md#one-table-divided)),
    one draw for all; the share is that of the variance of the label that the columns explain one
    by one.""",
    """A cell is *gain* where the 95 % t interval of the difference, paired by seed, lies above 0,
    *loss* where it lies below, and undecided else; it is not corrected for the number of cells.
    Seeds choose the rows, not the division: another division of the same share may differ.""",
    """Local has the active party's columns alone and the labels of all its training rows, some
    4,500; VFL (FedSplitNN) has those of the aligned rows. JPL predicts without the partner. For
    FedHSSL 100 or 300 labels are all there are, for Local and for VFL, too.""",
    """One-shot was below VFL in three cells (-0.059, -0.020 and -0.011) until two of its defaults
    were changed, on validation rows of credit_default, adult, diabetes130 and covtype_20k. Its
    temporary labels were no cause: clusters had a purity of 1.00, and true labels did no better.
    With 200 aligned rows the classifier made 60 updates (30 epochs), too few: ten times as many
    give +0.051 on credit_default (0.3). And clients kept their best epoch by 40 rows held out,
    anything from 6 to 500 updates, where some 100 are best, and trained on 160 rows. Now half are
    held out to find how many passes are best, and these are made anew on all (adult, 0.3: +0.020).
    Since then its classifier has a hidden layer, VFL's none ([defaults](defaults.md)).""",
)


class Cell(NamedTuple):
    """One point of the grid."""

    table: str
    share: float
    aligned: int
    labels: int


def cells(data: str = "") -> Iterator[tuple[Cell, str]]:
    """Every training: where, and which algorithm; cheap ones first."""
    for name in ALGORITHMS:
        for table, share, aligned in product(TABLES, SHARES, ALIGNED):
            for labels in (ALL, *LABELS):
                few = labels != ALL
                wanted = {n for m in MAPS if m.few == few for n in (m.better, m.worse)}
                if data in table and name in wanted and labels < aligned:
                    yield Cell(table, share, aligned, labels), name


def main() -> None:
    """Run what is missing and write the page."""
    parser = make_parser(__doc__)
    parser.add_argument("--algorithm", choices=ALGORITHMS, action="append")
    args = parser.parse_args()
    if not args.only_page:
        some = [t for t in cells(args.data) if t[1] in (args.algorithm or ALGORITHMS)]
        KEPT.fill(
            some, SEEDS, args.minutes, lambda found, t: values(found, *t).index,
            lambda t, seeds: run(*t, seeds),
        )  # fmt: skip
    found = KEPT.read()
    PAGE.write_text(page(found), encoding="utf-8")
    draw(found)


def section(cell: Cell) -> dict[str, Any]:
    """The ``[data]`` section of a cell."""
    split, more = TABLES[cell.table]
    file = DATA / cell.table / f"{cell.table}.csv.gz"
    meta = json.loads((DATA / cell.table / "meta.json").read_text(encoding="utf-8"))
    used = {*meta["splits"][split]["label_party"], *meta["splits"][split]["passive"]}
    every = pd.read_csv(file, nrows=0).columns
    labels = {} if cell.labels == ALL else {"labelled": cell.labels}
    return {
        "name": cell.table, "file": str(file), "label": meta["label"],
        "categorical": [c for c in meta["categorical"] if c in used],
        "drop": [c for c in every if c not in used and c != meta["label"]],
        "divide": {"importance": cell.share}, "aligned": cell.aligned, "scale": "rank",
        **labels, **more,
    }  # fmt: skip


def run(cell: Cell, name: str, seeds: Sequence[int]) -> pd.DataFrame:
    """The main task on test rows by seed; nothing is attacked."""
    algorithm, params = ALGORITHMS[name]
    at = "_".join(folder(str(x)) for x in (*cell, name, *seeds))
    to = ROOT / "build" / "evidence" / "when_it_helps" / at
    some = train(section(cell), {"name": algorithm, **params}, seeds, to, split="test")
    return some.assign(**cell._asdict(), algorithm=name)[[*FIELDS]].round(5)


def values(found: pd.DataFrame, cell: Cell, name: str) -> pd.Series:
    """The figures of one algorithm in one cell, by seed."""
    same = found.algorithm == name
    for key, value in cell._asdict().items():
        same &= found[key] == value
    return found[same].set_index("seed").value


class Gain(NamedTuple):
    """A paired difference with its interval and what it decides."""

    mean: float
    low: float
    high: float

    @property
    def word(self) -> str:
        """Gain, loss or undecided."""
        return "gain" if self.low > 0 else "loss" if self.high < 0 else "undecided"


def find_gains(found: pd.DataFrame, of: Map) -> dict[Cell, Gain]:
    """What a map has, by cell."""
    out = {}
    grid = product(TABLES, SHARES, ALIGNED, LABELS if of.few else (ALL,))
    for cell in map(Cell._make, grid):
        diff = (values(found, cell, of.better) - values(found, cell, of.worse)).dropna()
        low, high = t_interval(diff.to_numpy()) if len(diff) > 1 else (None, None)
        if low is not None and high is not None:
            out[cell] = Gain(float(diff.mean()), low, high)
    return out


def page(found: pd.DataFrame) -> str:
    """The page as Markdown."""
    gains = {of: at for of in MAPS if (at := find_gains(found, of))}
    text = opening("When does it help?", answer(gains), METHOD)
    text += [f"![Regions of gain and loss]({FIGURE.name})", ""]
    text += lay_table(
        ("pair", "cells", "gain", "undecided", "loss", "mean by share", "mean by aligned rows"),
        (_count(of, at) for of, at in gains.items()),
    )
    for of, at in gains.items():
        text += [f"## {of.title}", ""]
        levels = [*(["labels"] if of.few else []), *(f"{a:,} aligned" for a in ALIGNED)]
        head = ("table", "share", *levels)
        text += lay_table(head, _rows(of, at))
    minutes = (found.seconds.sum()) / 60
    text += [f"All trainings: {minutes:.0f} minutes of processor time.", ""]
    return "\n".join(text).rstrip("\n") + "\n"


def answer(gains: Mapping[Map, Mapping[Cell, Gain]]) -> str:
    """The first paragraph."""
    first = gains[MAPS[0]]
    shares, rows = ([*_mean_by(first, key).items()] for key in ("share", "aligned"))
    said = [f"{of.title} in {_say(at)}" for of, at in gains.items()]
    return f"""What VFL gains over local training goes from {shares[0][1]:+.3f}, with
        {shares[0][0]:g} of the signal at the partner, to {shares[-1][1]:+.3f} with
        {shares[-1][0]:g}, and from {rows[0][1]:+.3f} with {rows[0][0]:,} aligned rows to
        {rows[-1][1]:+.3f} with {rows[-1][0]:,} (AUC, mean of cells). Cells of the grid with a gain
        beyond the interval: {"; ".join(said)}."""


def _mean_by(at: Mapping[Cell, Gain], key: str) -> dict[float, float]:
    """Mean gain of the cells of each share, or number of aligned rows."""
    found = pd.DataFrame([{"level": getattr(c, key), "mean": g.mean} for c, g in at.items()])
    return dict(found.groupby("level")["mean"].mean()) if len(found) else {}


def _say(at: Mapping[Cell, Gain]) -> str:
    words = Counter(g.word for g in at.values())
    lost = f" ({words['loss']} with a loss)" if words["loss"] else ""
    return f"{words['gain']} of {len(at)}{lost}"


def _count(of: Map, at: Mapping[Cell, Gain]) -> list[str]:
    words = Counter(g.word for g in at.values())
    counts = [str(words[w]) for w in ("gain", "undecided", "loss")]
    by = [", ".join(f"{v:,}: {m:+.3f}" for v, m in _mean_by(at, k).items()) for k in CELL[1:3]]
    return [of.title, str(len(at)), *counts, *by]


def _rows(of: Map, at: Mapping[Cell, Gain]) -> Iterator[list[str]]:
    for table, share, labels in product(TABLES, SHARES, LABELS if of.few else (ALL,)):
        row = [at.get(Cell(table, share, a, labels)) for a in ALIGNED]
        if any(row):
            few = [str(labels)] if of.few else []
            yield [table, f"{share:g}", *few, *map(_show, row)]


def _show(gain: Gain | None) -> str:
    if gain is None:
        return ""
    text = f"{gain.mean:+.3f} [{gain.low:+.3f}, {gain.high:+.3f}]"
    return text if gain.word == "undecided" else f"**{text}** {gain.word}"


COLOURS = {"gain": "#9ecae1", "undecided": "#eeeeee", "loss": "#fdae6b"}


def draw(found: pd.DataFrame) -> None:
    """Write the figure: one panel for each map and table."""
    from matplotlib import pyplot as plt
    from matplotlib import rc_context

    panels = [(of, t, n) for of in MAPS for t in TABLES for n in (LABELS if of.few else (ALL,))]
    across = 4
    with rc_context({"svg.hashsalt": "vflsec", "svg.fonttype": "none", "font.size": 7}):
        figure, axes = plt.subplots(
            -(-len(panels) // across), across, figsize=(9, 2 * -(-len(panels) // across)),
            layout="constrained", squeeze=False,
        )  # fmt: skip
        for ax in axes.flat[len(panels) :]:
            ax.set_visible(False)
        for ax, (of, table, labels) in zip(axes.flat, panels, strict=False):
            gains = find_gains(found, of)
            for (i, share), (j, aligned) in product(enumerate(SHARES), enumerate(ALIGNED)):
                gain = gains.get(Cell(table, share, aligned, labels))
                if gain is not None:
                    square = plt.Rectangle((j, i), 1, 1, fc=COLOURS[gain.word], ec="white")
                    ax.add_patch(square)
                    ax.text(j + 0.5, i + 0.5, f"{gain.mean:+.3f}", ha="center", va="center")
            few = f", {labels} labels" if of.few else ""
            ax.set(
                xlim=(0, len(ALIGNED)), ylim=(0, len(SHARES)), title=f"{of.title}\n{table}{few}",
                xlabel="aligned rows", ylabel="share of signal",
            )  # fmt: skip
            ax.set_xticks([j + 0.5 for j in range(len(ALIGNED))], [f"{a:,}" for a in ALIGNED])
            ax.set_yticks([i + 0.5 for i in range(len(SHARES))], [f"{s:g}" for s in SHARES])
        handles = [plt.Rectangle((0, 0), 1, 1, fc=c, label=w) for w, c in COLOURS.items()]
        figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
        none = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(FIGURE, format="svg", metadata=none)


if __name__ == "__main__":
    main()
