"""What boosted trees tell of the labels, by attack, profile and defense: docs/evidence/trees.md.

Run ``python benchmarks/evidence_trees.py`` from the root. The real tables lie in the folder that
VFLSEC_TEST_DATA names, or in ../shared/data beside the repository. It is one ordinary audit in
build/evidence/trees, so an interrupted run goes on where it was; ``--fresh`` makes it again. Data,
defenses and attacks below were fixed before it was run.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Any

from evidence_pages import known, opening, table
from seeds.claims import World
from seeds.run import ROOT, section

from vflsec.audit.intervals import mean_of, t_interval
from vflsec.audit.result import Audit
from vflsec.audit.result_row import ResultRow
from vflsec.engine.run import run_audit
from vflsec.runtime.grouping import group_by

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
    {"name": "leaf_weight", "known_rows": 0}, {"name": "leaf_counts", "known_rows": 0},
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
    above, counted = count_above(audit.rows)
    least = min(above, key=above.__getitem__)
    answer = (
        "Do boosted trees tell a host labels beyond what its own columns tell, and which defense "
        f"stops it? Without a defense some attack does so in {above['none']} of {counted} places "
        "(a table under a profile; corrected for all attacks there). The fewest are left by "
        f"{least}: {above[least]}."
    )
    head = opening("Boosted trees: who learns the labels", answer, method)
    cost = compute_cost(audit.rows)
    short = table(
        ("defense and strength", f"places of {counted} above the baseline", "change of utility"),
        [(name, str(n), f"{cost[name]:+.3f}") for name, n in sorted(above.items(), key=_count)],
    )
    columns = ("table", "profile", "defense", "utility", "attack", "AUC or R²", "baseline",
               "above baseline", "change")  # fmt: skip
    every = table(columns, list_lines(audit.rows))
    return "\n".join([*head, "## By defense", "", *short, "## By attack", "", *every])


def count_above(rows: Sequence[ResultRow]) -> tuple[dict[str, int], int]:
    """By defense the places where an attack on labels is above its baseline beyond the interval.

    Any attack counts, at a level divided by their number there; the second figure is of places.
    """
    of = [r for r in _guessed(rows) if r.target == "label"]
    above: dict[str, int] = {}
    for (defense, strength), some in sorted(group_by(of, _defense).items()):
        name = _name(defense, strength)
        above.setdefault(name, 0)
        for place in group_by(some, _place).values():
            by_attack = group_by(place, lambda r: r.attack).values()
            gains = [known(r.advantage for r in mine) for mine in by_attack]
            level = 1 - 0.05 / len(gains)
            lows = known(t_interval(g, level).low for g in gains)
            if strength or defense == DEFENSES[0]["name"]:
                above[name] += any(low > 0 for low in lows)
    return above, len({_place(r) for r in of})


def compute_cost(rows: Sequence[ResultRow]) -> dict[str, float]:
    """By defense the mean change of the system's AUC over places and seeds."""
    of = [(r, r.value) for r in _utility(rows) if r.value is not None]
    off = {(*_place(r), r.seed): value for r, value in of if not r.strength}
    change: dict[str, list[float]] = {}
    for r, value in of:
        if (at := (*_place(r), r.seed)) in off:
            change.setdefault(_name(*_defense(r)), []).append(value - off[at])
    return {name: mean_of(values) for name, values in change.items()}


def _count(of: tuple[str, int]) -> int:
    return of[1]


def _name(defense: str, strength: float) -> str:
    return f"{defense} {strength:g}" if strength else "none"


def _place(r: ResultRow) -> tuple[str, str]:
    return r.dataset, r.algorithm


def _defense(r: ResultRow) -> tuple[str, float]:
    return r.defense, r.strength or 0.0


def _utility(rows: Sequence[ResultRow]) -> list[ResultRow]:
    """AUC of the systems on test rows."""
    of = [r for r in rows if r.role == "audit" and r.status == "ok" and not r.attack]
    return [r for r in of if r.metric == "auc" and r.split == "test"]


def _guessed(rows: Sequence[ResultRow]) -> list[ResultRow]:
    """Figures of attacks on training rows."""
    of = [r for r in rows if r.role == "audit" and r.algorithm.startswith("secureboost")]
    of = [r for r in of if r.metric in ("auc", "r2") and r.status == "ok"]
    return [r for r in of if r.attack and r.split == "train"]


def list_lines(rows: Sequence[ResultRow]) -> Iterator[tuple[str, ...]]:
    """One line for each profile, defense with strength, and attack."""
    utility = group_by(_utility(rows), lambda r: (_place(r), _defense(r)))
    guessed = _guessed(rows)
    undefended = {(_place(r), r.attack, r.seed): r.value for r in guessed if not r.strength}
    groups = group_by(guessed, lambda r: (_place(r), _defense(r), r.attack))
    for (place, defense, attack), of in sorted(groups.items()):
        both = ((r.value, undefended.get((place, attack, r.seed))) for r in of if r.strength)
        change = [v - off for v, off in both if v is not None and off is not None]
        auc, control, main = (
            f"{mean_of(known(values)):.3f}"
            for values in (
                (r.value for r in of), (r.control_value for r in of),
                (r.value for r in utility[place, defense]),
            )
        )  # fmt: skip
        yield (
            place[0], place[1].partition("profile=")[2].strip(")") or "fate-2", _name(*defense),
            main, attack, auc, control, describe(known(r.advantage for r in of)),
            describe(change) if change else "",
        )  # fmt: skip


def describe(differences: Sequence[float]) -> str:
    """A mean over seeds with its interval, which one seed does not give."""
    mean, (low, high) = mean_of(differences), t_interval(differences)
    if low is None or high is None:
        return f"{mean:+.3f} (one seed)"
    return f"{mean:+.3f} [{low:+.3f}, {high:+.3f}]"


if __name__ == "__main__":
    main()
