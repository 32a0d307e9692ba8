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
from typing import Any

import pandas as pd
from defaults_of.page import page
from defaults_of.trials import ALGORITHMS, TABLES, Trial, trials
from seeds.run import ROOT, folder, section

from vflsec.engine.run import run_audit
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
    world = TABLES[trial.table]
    made: dict[str, Any] = {
        "data": [section(world, plenty=False)],
        "algorithm": [{"name": trial.algorithm, **trial.params}],
        "audit": {"seeds": seeds, "references": [], "positive_control": False, "canaries": False},
    }
    names = [trial.table, trial.algorithm, trial.setting, "_".join(map(str, seeds))]
    to = ROOT.joinpath("build", "evidence", "defaults", *map(folder, names))
    to.mkdir(parents=True, exist_ok=True)
    started = time.process_time()
    try:
        some = run_audit(made, to, device="cpu", jobs=1).results
    except VflsecError as why:  # JPL on seven classes
        print(f"{', '.join(names[:3])}: cannot be trained: {why}", flush=True)
        return pd.DataFrame()
    seconds = (time.process_time() - started) / len(seeds)
    some = some[(some.role == "audit") & (some.status == "ok") & (some.attack == "")]
    some = some[(some.split == "validation") & (some.metric == some.primary)]
    some = some[some.phase == some.phase.iloc[-1]]
    print(f"{', '.join(names[:3])}: {some.value.mean():.4f}, {seconds:.1f} s a seed", flush=True)
    said = {"table": trial.table, "algorithm": trial.algorithm, "setting": trial.setting}
    return some.assign(**said, seconds=round(seconds, 1))[[*FIELDS]].round(5)


if __name__ == "__main__":
    main()
