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

import pandas as pd
from defaults_of.page import page
from defaults_of.trials import ALGORITHMS, TABLES, Trial, trials
from kept_figures import Kept, make_parser
from seeds.run import ROOT, folder, section, train

from vflsec.errors import VflsecError

FIELDS = ("table", "algorithm", "setting", "seed", "metric", "value", "seconds")


def main() -> None:
    """Run what is missing and write the figures and the page."""
    parser = make_parser(__doc__)
    parser.add_argument("--algorithm", choices=ALGORITHMS, action="append")
    parser.add_argument("--knob", default="")
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    out = ROOT / "docs" / "evidence"
    kept = Kept(out / "defaults.csv", FIELDS)
    if not args.only_page:
        some = trials(args.data, args.algorithm, args.knob)
        kept.fill(
            some, range(args.seeds), args.minutes, lambda found, t: _of(found, t).seed, run
        )  # fmt: skip
    out.joinpath("defaults.md").write_text(page(kept.read()), encoding="utf-8")


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
