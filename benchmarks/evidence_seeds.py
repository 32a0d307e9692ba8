"""Do the claims of the five source papers hold here? Writes docs/evidence/seeds.md.

Run ``python benchmarks/evidence_seeds.py`` from the root. The tables lie in the folder that
VFLSEC_TEST_DATA names, or in ../shared/data beside the repository. Every trial is an ordinary
audit in build/evidence/seeds, so an interrupted run goes on where it was. First every setting of
every system is trained, and validation rows choose one of each; then the chosen ones are trained
undefended, under iso and under label-DP, and attacked. Figures by seed go to
docs/evidence/seeds.csv, and the page is made of those alone (``--only-page``).

``--data WORD`` runs the data sets whose name has the word, ``--family NAME`` those of one paper,
``--seeds N`` as many seeds, ``--utility`` leaves the attacks out, ``--heavy`` runs what wants an
accelerator too. Claims, data sets and settings are in seeds/claims.py, the rule of verdicts in
seeds/verdict.py.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from seeds.claims import HEAVY, SYSTEMS, WORLDS
from seeds.run import FIELDS, ROOT, chosen, figures, trials
from seeds.words import page

SEEDS = 8


def main(given: Sequence[str] | None = None) -> None:
    """Run what is missing and write the figures and the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--data", default="")
    parser.add_argument("--family", default="")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "evidence")
    for flag in ("--utility", "--heavy", "--only-page"):
        parser.add_argument(flag, action="store_true")
    args = parser.parse_args(given)
    kept = args.out / "seeds.csv"
    found = read(kept)
    if not args.only_page:
        names = [n for n, w in WORLDS.items() if args.data in n and args.family in w.family
                 and (args.heavy or n not in HEAVY)]  # fmt: skip
        how = {"device": args.device, "jobs": args.jobs}
        for name in names:
            for made in run(name, range(args.seeds), leakage=not args.utility, **how):
                found = merged(found, made)
                found.to_csv(kept, index=False, lineterminator="\n")
    args.out.joinpath("seeds.md").write_text(page(found, seeds_of(found)), encoding="utf-8")


def run(
    name: str, seeds: Sequence[int], *, leakage: bool, **options: Any
) -> Iterator[pd.DataFrame]:
    """The figures of one data set, trial by trial."""
    every = []
    for title, setting in trials(name):
        started = time.process_time()
        made = figures(name, title, setting, seeds, leakage=False, **options)
        print(f"{name}, {title} {setting}: {time.process_time() - started:.0f} s", flush=True)
        every.append(made)
        yield made
    found = pd.concat(every)
    for title, system in SYSTEMS[WORLDS[name].family].items():
        if leakage and system.audited:
            started = time.process_time()
            best = chosen(found, name, title)
            yield figures(name, title, best, seeds, leakage=True, **options)
            print(f"{name}, {title}, leakage: {time.process_time() - started:.0f} s", flush=True)


def read(path: Path) -> pd.DataFrame:
    """Figures that were written; none without the file."""
    if not path.exists():
        return pd.DataFrame(columns=[*FIELDS])
    numbers = dict.fromkeys(("strength", "value", "control_value", "advantage", "bytes"), "")
    return pd.read_csv(path, keep_default_na=False, na_values=numbers)


def merged(found: pd.DataFrame, made: pd.DataFrame) -> pd.DataFrame:
    """`found` with the trials of `made` in the place of their earlier figures.

    A system is attacked with one setting, so figures of attacks with another one go.
    """
    trial = ["world", "system", "setting", "stage"]

    def keys(of: pd.DataFrame) -> pd.Index:
        return of.assign(setting=of.setting.where(of.stage != "leakage", -1)).set_index(trial).index

    kept = found[~keys(found).isin(keys(made))] if len(found) else found
    return pd.concat([kept, made], ignore_index=True) if len(kept) else made.reset_index(drop=True)


def seeds_of(found: pd.DataFrame) -> int:
    """How many seeds there are figures of, on the data set with the fewest but for heavy ones."""
    some = found[~found.world.isin(HEAVY)]
    return int(some.groupby("world").seed.nunique().min()) if len(some) else 0


if __name__ == "__main__":
    main()
