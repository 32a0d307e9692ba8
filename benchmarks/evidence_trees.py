"""What boosted trees tell of the labels, by attack, profile and defense: docs/evidence/trees.md.

Run ``python benchmarks/evidence_trees.py`` from the root. The real tables lie in the folder that
VFLSEC_TEST_DATA names, or in ../shared/data beside the repository. It is one ordinary audit in
build/evidence/trees, so an interrupted run goes on where it was; ``--fresh`` makes it again. Data,
defenses and attacks below were fixed before it was run.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import pandas as pd
from seeds.claims import World
from seeds.run import ROOT, section

from vflsec.audit.intervals import t_interval
from vflsec.audit.result import Audit
from vflsec.engine.run import run_audit

SEEDS = 5
PROFILES = ("paper", "fate-2", "xgboost-open")
DEFENSES: list[dict[str, Any]] = [
    {"name": "local_trees", "strength": [0, 1, 5], "choice": "protection"},
    {"name": "label_dp", "epsilon": [1], "choice": "protection"},
    {"name": "grafting", "epsilon": [1], "choice": "protection"},
    {"name": "id_lmid", "xi": [0.02, 0.005], "choice": "protection"},
    {"name": "purity_limit", "strength": [0.5], "choice": "protection"},
    {"name": "k_anonymous", "strength": [5], "choice": "protection"},
    {"name": "histogram_noise", "strength": [0.5], "choice": "protection"},
    {"name": "range_check", "strength": [2.0**-20, 2.0**-4], "choice": "protection"},
]
COLUMNS: list[dict[str, Any]] = [
    {"name": "leaf_columns"}, {"name": "bin_sums"}, {"name": "bin_sums", "marks": 50},
]  # fmt: skip
ATTACKS: list[dict[str, Any]] = [
    {"name": "leaf_vote", "known_rows": 20}, {"name": "leaf_vote", "by": "model", "known_rows": 20},
    {"name": "leaf_graph", "known_rows": 0}, {"name": "gradient_pair", "known_rows": 0},
    {"name": "leaf_weight", "known_rows": 0},
    *({"adversary": "active", "known_rows": 0, "aux_rows": 40, **attack} for attack in COLUMNS),
]  # fmt: skip
SCENARIO: dict[str, Any] = {
    "name": "trees",
    "algorithm": [{"name": "secureboost", "profile": p} for p in PROFILES],
    "defense": DEFENSES, "attack": ATTACKS,
    "audit": {"seeds": SEEDS, "references": ["local", "boosting"], "positive_control": False,
              "canaries": False},
}  # fmt: skip
TABLES = (
    World("", "", {}, ("credit_default", "fate")),
    World("", "", {}, ("adult", "employer_vs_registry")),
    World("", "", {"name": "two_views", "params": {"classes": 2, "columns": 10}}),
)
KEYS = ["dataset", "algorithm", "defense", "strength"]
HEAD = """# Boosted trees: who learns the labels

Written by `python benchmarks/evidence_trees.py` ({cells} trainings). The tables: UCI's default of
credit card clients, whole (30,000 rows, 22 % positive), cut as FATE's example cuts it (13 columns
with the label, 10 at the host); UCI's adult, whole (48,842 rows, 24 % positive), cut between an
employer with the label and a registry; and `two_views`, drawn. SecureBoost grows 10 trees of depth
3 with rate 0.3 and 32 bins. {seeds} seeds, which split the rows anew.

*AUC* is that of the attack on the training rows whose labels the host was not given, the mean over
seeds. *Above baseline* is the AUC over the best that the host reaches by its own columns with the
same known rows; *change* is the AUC over that without a defense in the same profile. Both are
paired by seed, with a 95 % t interval. *Utility* is the AUC of the system on test rows. `leaf_vote`
knows the labels of 20 rows, 10 of each class; the other attacks on labels know none. `leaf_columns`
and `bin_sums` are the bank's, on the host's columns, of which it knows 40 rows: R² stands in the
place of the AUC, and `bin_sums` reads tables of numbers alone. Behind a defense stands its
strength: of `local_trees` the trees that the bank grows alone, of `label_dp`, `grafting` and
`id_lmid` the inverse of epsilon and xi. Under `label_dp` the baseline may also learn from the
randomised labels of all rows, which its epsilon allows.

`secretflow` shows row sets as `paper` does. A line is missing where the profile does not send what
the attack reads, or where the defense shows no row set at all; one seed says that on the others
none was shown.
"""


def main() -> None:
    """Audit, and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--fresh", action="store_true")
    out = ROOT / "build" / "evidence" / "trees"
    out.parent.mkdir(parents=True, exist_ok=True)
    scenario = {**SCENARIO, "data": [section(table) for table in TABLES]}
    audit = run_audit(scenario, out, fresh=parser.parse_args().fresh, device="cpu")
    text = page(audit)
    print(text)
    (ROOT / "docs" / "evidence" / "trees.md").write_text(text, encoding="utf-8")


def page(audit: Audit) -> str:
    """The page as Markdown."""
    head = HEAD.format(cells=audit.summary["cells"]["finished"], seeds=SEEDS)
    columns = ("table", "profile", "defense", "utility", "attack", "AUC or R²", "baseline",
               "above baseline", "change")  # fmt: skip
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    return "\n".join([head, *lines, *list_lines(audit.results), ""])


def list_lines(results: pd.DataFrame) -> Iterator[str]:
    """One line for each profile, defense with strength, and attack."""
    of = results[results.algorithm.str.startswith("secureboost") & (results.role == "audit")]
    of = of[of.metric.isin(["auc", "r2"]) & (of.status == "ok")]
    utility = (
        of[(of.attack == "") & (of.metric == "auc") & (of.split == "test")]
        .groupby(KEYS)
        .value.mean()
    )
    guessed = of[(of.attack != "") & (of.split == "train")]
    undefended = guessed[guessed.strength == 0].set_index([*KEYS[:2], "attack", "seed"]).value
    for (table, algorithm, defense, strength, attack), rows in guessed.groupby([*KEYS, "attack"]):
        auc, change = rows.set_index("seed").value, ""
        if strength and (table, algorithm, attack) in undefended:
            change = describe((auc - undefended[table, algorithm, attack]).dropna())
        named = f"{defense} {strength:g}" if strength else "none"
        yield (
            f"| {table} | {algorithm.partition('profile=')[2].strip(')') or 'fate-2'} | {named} | "
            f"{utility[table, algorithm, defense, strength]:.3f} | {attack} | {auc.mean():.3f} | "
            f"{rows.control_value.mean():.3f} | {describe(rows.advantage)} | {change} |"
        )


def describe(differences: pd.Series) -> str:
    """A mean over seeds with its interval, which one seed does not give."""
    if len(differences) < 2:
        return f"{differences.mean():+.3f} (one seed)"
    low, high = t_interval(differences.to_numpy(float))
    return f"{differences.mean():+.3f} [{low:+.3f}, {high:+.3f}]"


if __name__ == "__main__":
    main()
