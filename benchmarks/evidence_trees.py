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
from evidence_pages import opening, table
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
    "algorithm": [{"name": "secureboost", "profile": p, "trees": 10} for p in PROFILES],
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
METHOD = (
    """`python benchmarks/evidence_trees.py` ({cells} trainings, {seeds} seeds, which split the rows
    anew). The tables: UCI's default of credit card clients, whole (30,000 rows, 22 % positive), cut
    as FATE's example cuts it (13 columns with the label, 10 at the host); UCI's adult, whole
    (48,842 rows, 24 % positive), cut between an employer with the label and a registry; and
    `two_views`, drawn. SecureBoost grows 10 trees of depth 3 with rate 0.3 and 32 bins.""",
    """*AUC* is that of the attack on the training rows whose labels the host was not given, the
    mean over seeds. *Above baseline* is the AUC over the best that the host reaches by its own
    columns with the same known rows; *change* is the AUC over that without a defense in the same
    profile. Both are paired by seed, with a 95 % t interval. *Utility* is the AUC of the system on
    test rows.""",
    """`leaf_vote` knows the labels of 20 rows, 10 of each class; the other attacks on labels know
    none. `leaf_columns` and `bin_sums` are the bank's, on the host's columns, of which it knows 40
    rows: R² stands in the place of the AUC, and `bin_sums` reads tables of numbers alone.""",
    """Behind a defense stands its strength: of `local_trees` the trees that the bank grows alone,
    of `label_dp`, `grafting` and `id_lmid` the inverse of epsilon and xi. Under `label_dp` the
    baseline may also learn from the randomised labels of all rows, which its epsilon allows.""",
    """`secretflow` shows row sets as `paper` does. A line is missing where the profile does not
    send what the attack reads, or where the defense shows no row set at all; one seed says that on
    the others none was shown.""",
)


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
    method = [m.format(cells=audit.summary["cells"]["finished"], seeds=SEEDS) for m in METHOD]
    above, counted = count_above(audit.results)
    least = min(above, key=above.__getitem__)
    answer = (
        "Do boosted trees tell a host labels beyond what its own columns tell, and which defense "
        f"stops it? Without a defense the strongest attack does so in {above['none']} of "
        f"{counted} places (a table under a profile). The fewest are left by {least}: "
        f"{above[least]}."
    )
    head = opening("Boosted trees: who learns the labels", answer, method)
    cost = compute_cost(audit.results)
    short = table(
        ("defense and strength", f"places of {counted} above the baseline", "change of utility"),
        [(name, str(n), f"{cost[name]:+.3f}") for name, n in sorted(above.items(), key=_count)],
    )
    columns = ("table", "profile", "defense", "utility", "attack", "AUC or R²", "baseline",
               "above baseline", "change")  # fmt: skip
    every = table(columns, list_lines(audit.results))
    return "\n".join([*head, "## By defense", "", *short, "## By attack", "", *every])


def count_above(results: pd.DataFrame) -> tuple[dict[str, int], int]:
    """By defense the places where an attack on labels is above its baseline beyond the interval.

    The strongest of each place counts, at the level of one test; the second figure is of places.
    """
    of = _guessed(results)
    of = of[of.target == "label"]
    above: dict[str, int] = {}
    for (defense, strength), some in of.groupby(["defense", "strength"]):
        for _, place in some.groupby(KEYS[:2]):
            rows = max((r for _, r in place.groupby("attack")), key=lambda r: r.advantage.mean())
            sure = len(rows) > 1 and t_interval(rows.advantage.to_numpy(float))[0] > 0
            name = _name(defense, strength)
            above[name] = max(above.get(name, 0), 0)
            if strength or defense == DEFENSES[0]["name"]:
                above[name] += sure
    return above, of[KEYS[:2]].drop_duplicates().shape[0]


def compute_cost(results: pd.DataFrame) -> dict[str, float]:
    """By defense the mean change of the system's AUC over places and seeds."""
    of = _utility(results)
    off = of[of.strength == 0].drop_duplicates([*KEYS[:2], "seed"])
    both = of.merge(off, on=[*KEYS[:2], "seed"], suffixes=("", "_off"))
    change = (both.value - both.value_off).groupby([both.defense, both.strength]).mean()
    return {_name(*at): float(mean) for at, mean in change.items()}


def _count(of: tuple[str, int]) -> int:
    return of[1]


def _name(defense: str, strength: float) -> str:
    return f"{defense} {strength:g}" if strength else "none"


def _utility(results: pd.DataFrame) -> pd.DataFrame:
    """AUC of the systems on test rows."""
    of = results[(results.attack == "") & (results.metric == "auc") & (results.split == "test")]
    return of[(of.role == "audit") & (of.status == "ok")]


def _guessed(results: pd.DataFrame) -> pd.DataFrame:
    """Figures of attacks on training rows."""
    of = results[results.algorithm.str.startswith("secureboost") & (results.role == "audit")]
    of = of[of.metric.isin(["auc", "r2"]) & (of.status == "ok")]
    return of[(of.attack != "") & (of.split == "train")]


def list_lines(results: pd.DataFrame) -> Iterator[tuple[str, ...]]:
    """One line for each profile, defense with strength, and attack."""
    utility = _utility(results).groupby(KEYS).value.mean()
    guessed = _guessed(results)
    undefended = (
        guessed[guessed.strength == 0].set_index([*KEYS[:2], "attack", "seed"]).value.sort_index()
    )
    for (name, algorithm, defense, strength, attack), rows in guessed.groupby([*KEYS, "attack"]):
        auc, change = rows.set_index("seed").value, ""
        if strength and (name, algorithm, attack) in undefended:
            change = describe((auc - undefended[name, algorithm, attack]).dropna())
        yield (
            name, algorithm.partition("profile=")[2].strip(")") or "fate-2",
            _name(defense, strength),
            f"{utility[name, algorithm, defense, strength]:.3f}", attack, f"{auc.mean():.3f}",
            f"{rows.control_value.mean():.3f}", describe(rows.advantage), change,
        )  # fmt: skip


def describe(differences: pd.Series) -> str:
    """A mean over seeds with its interval, which one seed does not give."""
    if len(differences) < 2:
        return f"{differences.mean():+.3f} (one seed)"
    low, high = t_interval(differences.to_numpy(float))
    return f"{differences.mean():+.3f} [{low:+.3f}, {high:+.3f}]"


if __name__ == "__main__":
    main()
