"""Do the papers' orderings hold at defaults, on tables that no paper used? Writes
docs/evidence/at_defaults.md.

Run ``python benchmarks/evidence_at_defaults.py`` from the root, beside ``VFLSEC_TEST_DATA`` or
../shared/data. Every trial is an ordinary audit; its figures go to docs/evidence/at_defaults.csv
as soon as it has ended, and what stands there is not run again. ``--data WORD`` and
``--system NAME`` say which, ``--minutes M`` stops before a trial once M minutes of processor time
are used, and ``--only-page`` writes the page of what there is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pandas as pd
from defaults_of.trials import TABLES as TRIED
from defaults_of.trials import cut
from evidence_pages import opening, table
from kept_figures import Kept, make_parser
from seeds.claims import World
from seeds.run import ROOT, folder, section, train

from vflsec.audit.intervals import t_interval

PAGE = ROOT / "docs" / "evidence" / "at_defaults.md"
FIELDS = ("table", "short", "system", "seed", "metric", "value", "seconds")
KEPT = Kept(PAGE.with_suffix(".csv"), FIELDS)
SEEDS = range(5)

TABLES: dict[str, World] = {
    **{n: w for n, w in TRIED.items() if w.table is not None},
    "criteo_dac_10k": World("", "", cut(0.5, 0.1), ("criteo_dac_10k", "numeric_vs_categorical")),
    "wikipedia": World(
        "", "", cut(0.3, 0.1), ("wikipedia_text_image", "image_sift128 and text_lda10")
    ),
}

MANY = ("covtype_20k", "wikipedia")
"""Tables of more than two classes, which JPL does not take."""

SHORT: dict[str, Mapping[str, Any]] = {
    "200 aligned": {"aligned": 200},
    "1,000 aligned": {"aligned": 1000},
    "200 labels": {"aligned": 0.4, "labelled": 200},
}
"""What is short, as keys of ``[data]``."""

SYSTEMS: dict[str, tuple[str, Mapping[str, Any]]] = {
    "VFL": ("splitnn", {}),
    "VFL, longer": ("splitnn", {"epochs": 1000, "patience": 50}),
    "Local": ("local", {"own_labels": True}),
    "VFLHLP": ("vflhlp", {}),
    "One-shot": ("oneshot", {}),
    "Few-shot": ("fewshot", {}),
    "FPD": ("fpd", {}),
    "JPL": ("jpl", {}),
    "FedSplitNN": ("fedcssl", {"pretrain_iterations": 0}),
    "FedLocalSSL": ("fedlocal_ssl", {}),
    "FedHSSL": ("fedhssl", {}),
}
"""At their defaults, but for one. Local has the labels of all own rows, FedSplitNN the encoder of
FedHSSL, from scratch."""


class Pair(NamedTuple):
    """What the papers put above what, and what is short there."""

    better: str
    worse: str
    short: str


PAIRS = (
    Pair("VFLHLP", "VFL", "200 aligned"), Pair("VFLHLP", "Local", "200 aligned"),
    Pair("VFLHLP", "VFL, longer", "200 aligned"), Pair("One-shot", "VFL, longer", "200 aligned"),
    Pair("One-shot", "VFL, longer", "1,000 aligned"),
    Pair("FedHSSL", "FedSplitNN", "200 labels"), Pair("FedHSSL", "FedLocalSSL", "200 labels"),
    Pair("One-shot", "VFL", "200 aligned"), Pair("One-shot", "VFL", "1,000 aligned"),
    Pair("Few-shot", "One-shot", "1,000 aligned"), Pair("FPD", "Local", "1,000 aligned"),
    Pair("JPL", "FPD", "1,000 aligned"),
)  # fmt: skip

METHOD = (
    """`python benchmarks/evidence_at_defaults.py`, from `at_defaults.csv`: seeds 0 to 4, every
    algorithm at its defaults, about 4,000 to 6,000 rows for training, 5,000 to 95,000 test rows
    (wikipedia: 1,700 and 860). Values are those of **test** rows (AUC; balanced accuracy of
    covtype's seven classes and wikipedia's ten). Nothing was chosen on them. Of an article in
    wikipedia the active party has the picture (128 numbers) and the label, its partner the text
    (10 numbers), which holds most of the signal.""",
    """Differences are paired by seed, with the 95 % t interval over seeds; **bold** where it leaves
    0 out. There is no correction for the number of cells.""",
    """*200 labels* are all there are, of 40 % aligned rows; elsewhere every aligned row has its
    label. *Local* has the active party's columns alone and the labels of all its rows. *FedSplitNN*
    is the encoder of FedHSSL from scratch. *VFL, longer* is VFL with 1,000 epochs and a patience of
    50 instead of 100 and 5: with 200 aligned rows its default makes 200 updates at most, and
    one-shot's classifier, which costs no message, 600. FPD and JPL predict without the partner. JPL
    is for two classes. An empty cell was not run.""",
    """Some defaults of split training, one-shot, FPD, JPL and FedHSSL were chosen on validation
    rows of the first four tables ([defaults](defaults.md)), none on the others. One-shot's
    classifier has a hidden layer, VFL's none; one of 32 units changes VFL on none of the four. The
    same claims with settings chosen by validation rows: [the papers' claims](seeds.md).""",
)


def main() -> None:
    """Run what is missing and write the page."""
    parser = make_parser(__doc__)
    parser.add_argument("--system", choices=SYSTEMS, action="append")
    args = parser.parse_args()
    if not args.only_page:
        some = [t for t in trials() if args.data in t[0] and t[2] in (args.system or SYSTEMS)]
        KEPT.fill(some, SEEDS, args.minutes, lambda found, t: values(found, *t).index, run)
    PAGE.write_text(page(KEPT.read()), encoding="utf-8")


def trials() -> Iterator[tuple[str, str, str]]:
    """Every training: the table, what is short, and the system."""
    wanted = dict.fromkeys((p.short, s) for p in PAIRS for s in (p.better, p.worse))
    for short, system in sorted(wanted, key=lambda w: [*SYSTEMS].index(w[1])):
        for name in TABLES:
            if system != "JPL" or name not in MANY:
                yield name, short, system


def run(trial: tuple[str, str, str], seeds: list[int]) -> pd.DataFrame:
    """The main task on test rows by seed."""
    name, short, system = trial
    algorithm, params = SYSTEMS[system]
    at = ROOT / "build" / "evidence" / "at_defaults" / folder(f"{name} {short} {system} {seeds}")
    data = {**section(TABLES[name]), **SHORT[short]}
    made = train(data, {"name": algorithm, **params}, seeds, at, split="test")
    return made.assign(table=name, short=short, system=system)[[*FIELDS]].round(5)


def values(found: pd.DataFrame, name: str, short: str, system: str) -> pd.Series:
    """The figures of one system on one table, by seed."""
    same = (found.table == name) & (found.short == short) & (found.system == system)
    return found[same].set_index("seed").value


def gains(found: pd.DataFrame, of: Pair) -> dict[str, tuple[float, float, float]]:
    """By table the mean of better minus worse, with its bounds."""
    out = {}
    for name in TABLES:
        better, worse = (values(found, name, of.short, s) for s in of[:2])
        diff = (better - worse).dropna()
        low, high = t_interval(diff.to_numpy()) if len(diff) > 1 else (None, None)
        if low is not None and high is not None:
            out[name] = float(diff.mean()), low, high
    return out


def page(found: pd.DataFrame) -> str:
    """The page as Markdown."""
    every = {of: gains(found, of) for of in PAIRS}
    said = [
        f"{of.better} over {of.worse}, {of.short}: above in {sum(g[1] > 0 for g in at.values())}, "
        f"below in {sum(g[2] < 0 for g in at.values())} of {len(at)}"
        for of, at in every.items()
    ]
    answer = f"On how many tables, beyond the interval? {'; '.join(said)}."
    text = opening("Do the papers' orderings hold at defaults?", answer, METHOD)
    rows = (_row(of, at) for of, at in every.items())
    text += table(("first and second", "where", *TABLES), rows)
    text += ["## Levels", ""]
    text += table(("system", "where", *TABLES), _levels(found))
    text.append(f"All trainings: {found.seconds.sum() / 60:.0f} minutes of processor time.")
    return "\n".join(text) + "\n"


def _row(of: Pair, at: Mapping[str, tuple[float, float, float]]) -> list[str]:
    return [f"{of.better} and {of.worse}", of.short, *(_show(at.get(t)) for t in TABLES)]


def _show(gain: tuple[float, float, float] | None) -> str:
    if gain is None:
        return ""
    mean, low, high = gain
    text = f"{mean:+.3f} [{low:+.3f}, {high:+.3f}]"
    return f"**{text}**" if low > 0 or high < 0 else text


def _levels(found: pd.DataFrame) -> Iterator[list[str]]:
    for short in SHORT:
        for system in SYSTEMS:
            every = [values(found, name, short, system) for name in TABLES]
            if any(len(v) for v in every):
                yield [system, short, *(f"{v.mean():.3f}" if len(v) else "" for v in every)]


if __name__ == "__main__":
    main()
