"""Do the defaults hold? Every algorithm at its defaults and at one alternative per knob, on
validation rows of real and of drawn tables. Writes docs/evidence/defaults.md.

Run ``python benchmarks/defaults.py`` from the root, beside ``VFLSEC_TEST_DATA`` or ../shared/data.
Every trial is an ordinary audit, its figures go to docs/evidence/defaults.csv as soon as it has
ended, and what stands there is not run again: an interrupted run goes on where it was. To run it in
parts, ``--data WORD``, ``--algorithm NAME`` and ``--seeds N`` say which, ``--minutes M`` stops
before a trial once M minutes of processor time are used, and ``--only-page`` writes the page of
what there is. Tables, algorithms and alternatives are in defaults_of/trials.py.

The rule: a default that is worse than its alternative, beyond the interval, on more tables than it
is better is changed.
"""

from __future__ import annotations

import argparse
import time

import pandas as pd
from defaults_of.page import page
from defaults_of.trials import ALGORITHMS, TABLES, Trial, trials
from seeds.run import ROOT, folder, section, train

from vflsec.errors import VflsecError

FIELDS = ("table", "algorithm", "setting", "seed", "metric", "value", "seconds")


def main() -> None:
    """Run what is missing and write the figures and the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", default="")
    parser.add_argument("--algorithm", choices=ALGORITHMS, action="append")
    parser.add_argument("--knob", default="")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--only-page", action="store_true")
    args = parser.parse_args()
    out = ROOT / "docs" / "evidence"
    kept = out / "defaults.csv"
    found = pd.read_csv(kept, keep_default_na=False) if kept.exists() else pd.DataFrame()
    for trial in [] if args.only_page else trials(args.data, args.algorithm, args.knob):
        done = set() if found.empty else set(_of(found, trial).seed)
        seeds = [s for s in range(args.seeds) if s not in done]
        if seeds and time.process_time() < 60 * args.minutes:
            found = pd.concat([found, run(trial, seeds)], ignore_index=True)
            found.to_csv(kept, index=False, lineterminator="\n")
    out.joinpath("defaults.md").write_text(page(found), encoding="utf-8")


def _of(found: pd.DataFrame, trial: Trial) -> pd.DataFrame:
    same = (found.table == trial.table) & (found.algorithm == trial.algorithm)
    return found[same & (found.setting == trial.setting)]


def run(trial: Trial, seeds: list[int]) -> pd.DataFrame:
    """The main task on validation rows by seed, :data:`FIELDS`; nothing is attacked."""
    names = [trial.table, trial.algorithm, trial.setting, "_".join(map(str, seeds))]
    to = ROOT.joinpath("build", "evidence", "defaults", *map(folder, names))
    data, algorithm = section(TABLES[trial.table]), {"name": trial.algorithm, **trial.params}
    try:
        some = train(data, algorithm, seeds, to, split="validation")
    except VflsecError as why:  # JPL on seven classes
        print(f"{', '.join(names[:3])}: cannot be trained: {why}", flush=True)
        return pd.DataFrame()
    said = {"table": trial.table, "algorithm": trial.algorithm, "setting": trial.setting}
    return some.assign(**said)[[*FIELDS]].round(5)


if __name__ == "__main__":
    main()
