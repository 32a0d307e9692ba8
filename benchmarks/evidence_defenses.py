"""Every defense against label attacks, with utility: writes docs/evidence/defenses.md.

Run ``python benchmarks/evidence_defenses.py --data ../shared/data`` from the root (about 20 minutes
on one free core). Five seeds; strengths are chosen per defense so that the grid runs from weak to
strong; the undefended run (strength 0) is in every grid. Figures are kept in
docs/evidence/defenses.csv as they come; what is there is not trained again (delete the file to
start afresh), so an interrupted run goes on. Without ``--data`` the real table is left out.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from vflsec import registry
from vflsec.audit import leakage
from vflsec.data.load import load_source
from vflsec.data.prepare import make_task
from vflsec.engine.cohort import run_cohort
from vflsec.engine.spec import AttackSpec, CellSpec, DefenseSpec
from vflsec.rng import generator
from vflsec.task import Task

SEEDS = range(5)
EPOCHS = 10
DROPS = (0.03, 0.1)
GRID: dict[str, tuple[dict[str, Any], Sequence[float]]] = {
    "iso": ({}, (1, 5, 25, 100)),
    "marvell": ({}, (0.25, 1, 4, 25)),
    "max_norm": ({}, (0.25, 0.5, 1, 2)),
    "noise": ({"clip": 1.0, "distribution": "gaussian"}, (0.25, 1, 4, 16)),
    "compression": ({}, (1 / 3, 1, 3, 9)),
    "discrete": ({}, (1 / 24, 1 / 12, 1 / 6, 1 / 2)),
    "ppdl": ({"limit": 1.0, "threshold": 0.01}, (1e-5, 1e-4, 1e-3, 0.1)),
    "gradient_average": ({}, (0.5, 0.9, 0.99, 1.0)),
    "label_dp": ({}, (1 / 4, 1 / 2, 1, 2)),
    "rr_prior": ({}, (1 / 4, 1 / 2, 1, 2)),
    "lp_mst": ({}, (1 / 4, 1 / 2, 1, 2)),
    "alibi": ({}, (1 / 4, 1 / 2, 1, 2)),
    "gradperturb": ({}, (1 / 4, 1, 4, 16)),
    "coae": ({"steps": 150}, (1e-9, 0.1, 0.5, 1)),
    "dcor": ({}, (0.01, 0.1, 1, 10)),
    "mid": ({}, (1e-12, 1e-3, 0.1, 10)),
    "embedding_noise": ({}, (0.25, 1, 4, 16)),
    "mixup": ({}, (0.1, 0.2, 0.35, 0.5)),
    "dpsgd": ({"clip_norm": 1.0}, (0.5, 1, 4, 16)),
}
ATTACKS = {
    "model_completion": {},
    "norm": {},
    "direction": {"positives": 5},
    "spectral": {},
    "similarity": {},
}
# What the literature's mechanisms lead one to expect: S stops, P partly or at a price, N does not.
EXPECTED = {
    "iso": ("P", "S", "P", "P", "P"), "marvell": ("N", "S", "S", "P", "P"),
    "max_norm": ("N", "P", "N", "N", "N"), "noise": ("N", "P", "N", "N", "N"),
    "compression": ("N", "N", "N", "N", "N"), "discrete": ("N", "P", "N", "N", "N"),
    "ppdl": ("P", "P", "P", "P", "P"), "gradient_average": ("P", "S", "S", "S", "S"),
    "label_dp": ("P", "P", "P", "P", "P"), "rr_prior": ("P", "P", "P", "P", "P"),
    "lp_mst": ("P", "P", "P", "P", "P"), "alibi": ("P", "P", "P", "P", "P"),
    "gradperturb": ("P", "S", "S", "P", "P"), "coae": ("N", "N", "N", "N", "N"),
    "dcor": ("P", "P", "P", "P", "P"), "mid": ("P", "P", "P", "P", "P"),
}  # fmt: skip


def worlds(folder: Path | None) -> dict[str, dict[int, Task]]:
    """Tasks by seed of every data set."""
    out = {}
    for name, rate in (("control, 15 % positive", 0.15), ("control, balanced", 0.5)):
        size = {"rows": 1500, "validation_rows": 300, "test_rows": 700}
        section = {"name": "control_gaussian", "params": {"positive_rate": rate, **size}}
        out[name] = {s: make_task(load_source(section, s, Path()), s) for s in SEEDS}
    if folder is not None and (folder / "credit_default").is_dir():
        from vflsec.data.tables import load_tables

        here = folder / "credit_default"
        source = load_tables(
            {
                "bank": here / "fate_default_credit_hetero_guest.csv.gz",
                "bureau": here / "fate_default_credit_hetero_host.csv.gz",
            },
            id="id", label="y", active="bank",
        )  # fmt: skip
        out["credit_default, 6000 rows"] = {s: _fewer(make_task(source, s), s) for s in SEEDS}
    return out


def _fewer(task: Task, seed: int) -> Task:
    """The task on 4000 training, 1000 validation and 1000 test rows drawn by seed."""
    g = generator(seed, "evidence")
    sets = {}
    for name, size in (("labelled", 4000), ("validation", 1000), ("test", 1000)):
        ids = task.sets[name]
        sets[name] = ids[torch.randperm(len(ids), generator=g)[:size]].sort().values
    same = dict.fromkeys((k for k in task.sets if k not in sets), sets["labelled"])
    return replace(task, sets=same | sets, active_labelled=sets["labelled"])


def run(
    data: str, tasks: dict[int, Task], defense: str, controls: dict[Any, Any]
) -> list[dict[str, Any]]:
    """All cells of one defense on one data set as records."""
    params, grid = GRID[defense]
    party = tasks[0].passive[0]
    attacks = [
        AttackSpec(name, p, (party,))
        for name, p in ATTACKS.items()
        if name in registry.attacks.names()
    ]
    settings = {"epochs": EPOCHS, "patience": 0, "hidden": [32], "cut": 16, "batch_size": 128}
    cells = [
        CellSpec(
            {"name": data}, "splitnn", settings,
            (DefenseSpec(defense, params, strength=float(s)),), seed,
        )
        for s in (0.0, *grid)
        for seed in SEEDS
    ]  # fmt: skip
    results = run_cohort(cells, attacks, tasks, device="cpu", known_controls=controls)
    return [r | {"known_rows": 20} for result in results for r in leakage.records(result)]


def figures(
    data: str, defense: str, points: pd.DataFrame, curves: pd.DataFrame
) -> list[dict[str, Any]]:
    """One row for each strength and attack: utility, advantage with its interval, CAP."""
    of = points[(points["split"] == "train") & (points["metric"] == points["primary"])]
    caps = curves[(curves["split"] == "train") & curves["cap"].notna()]
    cap = dict(zip(caps["attack"].str.split("(").str[0], caps["cap"], strict=True))
    return [
        {
            "data": data, "defense": defense, "strength": r["strength"],
            "attack": r["attack"].split("(")[0], "utility": round(r["utility"], 4),
            "advantage": round(r["advantage"], 3), "low": round(r["advantage_low"], 3),
            "high": round(r["advantage_high"], 3),
            "cap": round(cap.get(r["attack"].split("(")[0], float("nan")), 4),
        }
        for r in of[of["attack"] != ""].to_dict("records")
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=None)
    parser.add_argument("--only", nargs="*", default=None, help="only these defenses")
    parser.add_argument("--world", default="", help="only data whose name contains this")
    parser.add_argument("--out", type=Path, default=Path("docs/evidence/defenses.md"))
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    store = args.out.with_suffix(".csv")
    found = pd.read_csv(store) if store.exists() else pd.DataFrame()
    for data, tasks in worlds(args.data).items():
        controls: dict[Any, Any] = {}
        for defense in args.only or GRID:
            there = len(found) and bool(
                ((found["data"] == data) & (found["defense"] == defense)).any()
            )
            if args.world not in data or there:
                continue
            begin = time.perf_counter()
            points = leakage.summarise(
                leakage.results_frame(run(data, tasks, defense, controls)), 0.95
            )
            rows = figures(data, defense, points, leakage.curves(points))
            found = pd.concat([found, pd.DataFrame(rows)], ignore_index=True)
            found.to_csv(store, index=False)
            print(data, defense, f"{time.perf_counter() - begin:.0f} s", flush=True)
    args.out.write_text(page(found), encoding="utf-8")


def page(found: pd.DataFrame) -> str:
    """The evidence as Markdown."""
    parts = [
        "# What each defense stops, and what it costs\n",
        "Regenerate with `python benchmarks/evidence_defenses.py --data FOLDER`. FedSplitNN with "
        f"bottoms 32-16 and top 32, {EPOCHS} epochs, best epoch by validation loss, five seeds "
        "(0 to 4); the adversary is the passive party with 20 known rows and the class prior.\n",
        "Figures are the attack's AUC on unknown **training** rows minus that of the strongest "
        "control (the same attacker without the federation), mean over seeds with a 95 % t "
        "interval; 0 or less means nothing leaked. Strength 0 is the undefended run. The scale "
        "of a strength is the defense's own; see [defenses.md](../defenses.md).\n",
    ]
    for data, of in found.groupby("data", sort=False):
        lost = [d for d in GRID if d not in set(of["defense"])]
        parts.append(f"\n## {data}\n")
        if lost:
            parts.append(f"Not run yet on these data: {', '.join(lost)}.\n")
        parts += _table(of)
        parts += ["\n### Rankings\n", *_ranking(of), "\n### Expected and found\n"]
        parts += _comparison(of)
    parts.append(
        "\n# How to read the last two tables\n\n"
        "Rankings: the largest advantage over all attacks at the best strength whose utility drop "
        f"is at most {DROPS[0]} or {DROPS[1]} (strength 0 = the undefended run was best), and CAP, "
        "the mean of utility x (1 - attack) over the grid, of the attack where it is smallest. "
        "CAP depends on the grid and is no basis for a choice.\n\n"
        "Expected and found: the letter that the mechanism leads one to expect, then what was "
        f"measured. S: at a utility drop of at most {DROPS[0]} some strength brings the upper "
        "bound of the advantage to at most 0.05. P: some strength takes more than 20 % of the "
        "undefended advantage, or all of it, but only at a higher price. N: no strength does. "
        "`-`: the undefended run leaks less than 0.05, so there is nothing to stop. `?`: no "
        "expectation was written down.\n"
    )
    return "\n".join(parts)


def _table(of: pd.DataFrame) -> list[str]:
    lines = [f"| defense | strength | test AUC | {' | '.join(ATTACKS)} |",
             "|" + "---|" * (3 + len(ATTACKS))]  # fmt: skip
    for (defense, strength), rows in of.groupby(["defense", "strength"], sort=False):
        by = {r["attack"]: r for r in rows.to_dict("records")}
        cells = [str(defense), f"{strength:.3g}", f"{rows['utility'].iloc[0]:.3f}"]
        for name in ATTACKS:
            r = by.get(name)
            interval = f"{r['advantage']:+.2f} [{r['low']:+.2f}, {r['high']:+.2f}]" if r else "n/a"
            cells.append(interval)
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _dropped(of: pd.DataFrame) -> pd.DataFrame:
    bare = float(of[of["strength"] == 0]["utility"].iloc[0])
    return of.assign(drop=bare - of["utility"])


def _ranking(of: pd.DataFrame) -> list[str]:
    rows = []
    for defense, each in of.groupby("defense", sort=False):
        each = _dropped(each)
        found: list[Any] = [defense]
        for drop in DROPS:
            worst = each[each["drop"] <= drop].groupby("strength")["advantage"].max()
            found += [float(worst.min()), float(worst.idxmin())]
        rows.append((*found, float(each["cap"].min())))
    by_cap = {d: i + 1 for i, (d, *_) in enumerate(sorted(rows, key=lambda r: -r[5]))}
    rows.sort(key=lambda r: (r[3], r[1]))
    lines = [
        f"| rank by advantage | defense | worst advantage at drop <= {DROPS[1]} | strength | "
        f"at drop <= {DROPS[0]} | strength | CAP | rank by CAP |", "|" + "---|" * 8,
    ]  # fmt: skip
    for i, (defense, tight, s, loose, t, cap) in enumerate(rows):
        lines.append(
            f"| {i + 1} | {defense} | {loose:+.3f} | {t:.3g} | {tight:+.3f} | {s:.3g} | "
            f"{cap:.3f} | {by_cap[defense]} |"
        )
    return lines


def _comparison(of: pd.DataFrame) -> list[str]:
    lines = ["| defense | " + " | ".join(ATTACKS) + " |", "|" + "---|" * (1 + len(ATTACKS))]
    for defense, each in of.groupby("defense", sort=False):
        cells = [str(defense)]
        for i, name in enumerate(ATTACKS):
            rows = _dropped(each)
            letter = _letter(rows[rows["attack"] == name])
            wanted = EXPECTED.get(str(defense), "?????")[i]
            mark = "" if letter == "-" or wanted in ("?", letter) else " (differs)"
            cells.append(f"{wanted} → {letter}{mark}")
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _letter(rows: pd.DataFrame) -> str:
    bare, on = rows[rows["strength"] == 0], rows[rows["strength"] > 0]
    if bare.empty or float(bare["advantage"].iloc[0]) < 0.05:
        return "-"
    if bool((on[on["drop"] <= DROPS[0]]["high"] <= 0.05).any()):
        return "S"
    return "N" if on["advantage"].min() >= 0.8 * float(bare["advantage"].iloc[0]) else "P"


if __name__ == "__main__":
    main()
