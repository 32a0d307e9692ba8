"""Every defense against every kind of attack, with utility: writes docs/evidence/defenses.md.

Run ``python benchmarks/evidence_defenses.py --data ../shared/data`` from the root (about half an
hour on one free core). Five seeds; strengths are chosen per defense so that the grid runs from weak
to strong; the undefended run (strength 0) is in every grid. Figures are kept in
docs/evidence/defenses.csv as they come; what is there is not trained again (``--fresh`` starts
anew), so an interrupted run goes on. Without ``--data`` the real table is left out. What the
figures mean where they differ from what is published stands in evidence_defenses_comments.md.
"""

from __future__ import annotations

import argparse
import itertools
import math
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from vflsec.audit import leakage
from vflsec.audit.tradeoff_curves import curves as privacy
from vflsec.core.rng import generator
from vflsec.core.task import Task
from vflsec.data.load import load_source
from vflsec.data.prepare import make_task
from vflsec.engine.cohort import run_cohort
from vflsec.errors import VflsecError
from vflsec.measure.control_cache import SharedControls
from vflsec.plugins import registry
from vflsec.specs import AttackSpec, CellSpec, DefenseSpec

SEEDS = range(5)
EPOCHS = 10
DROPS = (0.03, 0.1)
COMMENTS = Path(__file__).with_name("evidence_defenses_comments.md")
GRID: dict[str, tuple[str, dict[str, Any], Sequence[float]]] = {
    "iso": ("iso", {}, (1, 5, 25, 100)),
    "marvell": ("marvell", {}, (0.25, 1, 4, 25)),
    "max_norm": ("max_norm", {}, (0.25, 0.5, 1, 2)),
    "laplace": ("noise", {}, (1e-4, 2.5e-4, 2.5e-3, 2.5e-2)),
    "clipped gaussian": ("noise", {"clip": 1.0, "distribution": "gaussian"}, (0.25, 1, 4, 16)),
    "compression": ("compression", {}, (1 / 3, 1, 3, 9)),
    "discrete": ("discrete", {}, (1 / 24, 1 / 12, 1 / 6, 1 / 2)),
    "ppdl": ("ppdl", {"limit": 1.0, "threshold": 0.01}, (1e-5, 1e-4, 1e-3, 0.1)),
    "gradient_average": ("gradient_average", {}, (0.5, 0.9, 0.99, 1.0)),
    "label_dp": ("label_dp", {}, (1 / 4, 1 / 2, 1, 2)),
    "rr_prior": ("rr_prior", {}, (1 / 4, 1 / 2, 1, 2)),
    "lp_mst": ("lp_mst", {}, (1 / 4, 1 / 2, 1, 2)),
    "alibi": ("alibi", {}, (1 / 4, 1 / 2, 1, 2)),
    "gradperturb": ("gradperturb", {}, (1 / 4, 1, 4, 16)),
    "coae": ("coae", {"steps": 150}, (1e-9, 0.1, 0.5, 1)),
    "dcor": ("dcor", {}, (0.01, 0.1, 1, 10)),
    "mid": ("mid", {}, (1e-12, 1e-3, 0.1, 10)),
    "embedding_noise": ("embedding_noise", {}, (0.25, 1, 4, 16)),
    "mixup": ("mixup", {}, (0.1, 0.2, 0.35, 0.5)),
    "dpsgd": ("dpsgd", {"clip_norm": 1.0}, (0.5, 1, 4, 16)),
    "dpsgd, clip 1, hardly any noise": ("dpsgd", {"clip_norm": 1.0}, (1e-6,)),
    "dpsgd, clip 10": ("dpsgd", {"clip_norm": 10.0}, (1e-6, 0.5, 4, 16)),
    "he_embedding": ("he_embedding", {}, (1,)),
    "he_gradient": ("he_gradient", {}, (1,)),
}
SPLIT: dict[str, Any] = {
    "epochs": EPOCHS, "patience": 0, "hidden": [32], "cut": 16, "batch_size": 128,
}  # fmt: skip
KINDS: dict[str, dict[str, Any]] = {
    "top": SPLIT,
    "sum": {**SPLIT, "top": [], "linear_top": False, "aggregation": "sum"},
}
FREE: dict[str, tuple[str, dict[str, Any]]] = {
    "as above": ("top", {}),
    "2 epochs": ("top", {"epochs": 2}),
    "5 epochs": ("top", {"epochs": 5}),
    "30 epochs": ("top", {"epochs": 30}),
    "30 epochs, patience 3": ("top", {"epochs": 30, "patience": 3}),
    "cut 2": ("top", {"cut": 2}),
    "cut 64": ("top", {"cut": 64}),
    "linear bottoms": ("top", {"hidden": []}),
    "bottoms 64-64": ("top", {"hidden": [64, 64]}),
    "dropout 0.25": ("top", {"dropout": 0.25}),
    "dropout 0.5": ("top", {"dropout": 0.5}),
    "weight decay 0.01": ("top", {"weight_decay": 0.01}),
}


@dataclass(frozen=True)
class Column:
    """One attack of the matrix, and behind which kind of top model it is made."""

    attack: str
    params: dict[str, Any] = field(default_factory=dict)
    kind: str = "top"
    adversary: str = "passive"
    grants: dict[str, Any] = field(default_factory=dict)

    def spec(self, task: Task) -> AttackSpec:
        party = task.active if self.adversary == "active" else task.passive[0]
        return AttackSpec(self.attack, self.params, (party,), **self.grants)


COLUMNS = {
    "direct": Column("direct", kind="sum"),
    "norm": Column("norm"),
    "direction": Column("direction", {"positives": 5}),
    "spectral, gradients": Column("spectral", {"on": "gradient"}),
    "spectral, embeddings": Column("spectral"),
    "similarity": Column("similarity"),
    "lea": Column("lea"),
    "zero_pattern": Column("zero_pattern"),
    "gradient_completion": Column("gradient_completion"),
    "model_completion": Column("model_completion"),
    "batch_inference": Column("batch_inference", {"steps": 50, "starts": 2}, kind="sum"),
    "exploit": Column("exploit", {"steps": 50, "starts": 1}),
    "embedding_inversion": Column(
        "embedding_inversion", {"variants": ("linear",)}, adversary="active",
        grants={"aux_rows": 60},
    ),
}  # fmt: skip
LABEL = [name for name, column in COLUMNS.items() if column.adversary == "passive"]
NEWER = ("lea", "zero_pattern", "gradient_completion")
MORE = 0.02
# The published or derived expectation: S stops, P partly, N does not, S/P either; "" none stated.
PLACES = (
    "direct", "norm", "direction", "spectral, gradients", "spectral, embeddings",
    "model_completion", "batch_inference", "exploit", "embedding_inversion",
)  # fmt: skip
EXPECTED: dict[tuple[str, float], str] = {
    ("iso", 1): "P N N N N N P P N",
    ("iso", 25): "S S P P P P S S N",
    ("max_norm", 1): "N S/P N N N N P N N",
    ("marvell", 4): "- S S P N N - P N",
    ("laplace", 2.5e-4): "N P N N N N P P N",
    ("compression", 9): "N N N N N N P P N",
    ("ppdl", 0.1): "P P P P P P P P N",
    ("discrete", 1 / 2): "P P N N N N P P N",
    ("label_dp", 1): "P P P P P P P P N",
    ("gradperturb", 1): "S S S P P P S P N",
    ("coae", 1e-9): "S/N N N N N N S/N P N",
    ("dcor", 10): "P P P P S/P P P P N",
    ("mid", 10): "P P P P P P S P P",
    ("gradient_average", 1): "S S S S P P S S N",
    ("he_embedding", 1): "N N N N N N N N P",
    ("he_gradient", 1): "S S S S N N N S P",
}


def worlds(folder: Path | None) -> dict[str, dict[int, Task]]:
    """Tasks by seed of every data set."""
    out = {}
    for name, rate in (("control, 15 % positive", 0.15), ("control, balanced", 0.5)):
        size = {"rows": 1500, "validation_rows": 300, "test_rows": 700}
        section = {"name": "control_gaussian", "params": {"positive_rate": rate, **size}}
        out[name] = {s: make_task(load_source(section, s, Path()), s) for s in SEEDS}
    if folder is not None and (folder / "credit_default").is_dir():
        from vflsec.data.table_spec import TableSpec
        from vflsec.data.tables import load_tables

        here = folder / "credit_default"
        source = load_tables(
            {
                "bank": here / "fate_default_credit_hetero_guest.csv.gz",
                "bureau": here / "fate_default_credit_hetero_host.csv.gz",
            },
            TableSpec(
                id="id",
                label="y",
                active="bank",
            ),
        )
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
    data: str, tasks: dict[int, Task], kind: str, change: dict[str, Any], name: str,
    controls: SharedControls,
) -> list[dict[str, Any]]:  # fmt: skip
    """All strengths of one defense (or none, "") behind one kind of top model: a row a figure."""
    defense, params, grid = GRID[name] if name else ("", {}, ())
    columns = {c: column.spec(tasks[0]) for c, column in COLUMNS.items() if column.kind == kind}
    swept = bool(name) and bool(registry.defenses.get(defense).strengths)
    cohorts: dict[str, list[tuple[float, CellSpec]]] = {}
    for strength, seed in itertools.product((0.0, *map(float, grid)), SEEDS):
        used: tuple[DefenseSpec, ...] = ()
        if swept:
            used = (DefenseSpec(defense, params, strength=strength),)
        elif strength:  # encryption is on or not there
            used = (DefenseSpec(defense, params),)
        cell = CellSpec({"name": data}, "splitnn", {**KINDS[kind], **change}, used, seed)
        cohorts.setdefault(cell.cohort, []).append((strength, cell))
    found = []
    for cohort in cohorts.values():
        cells = [cell for _, cell in cohort]
        results = run_cohort(cells, list(columns.values()), tasks, device="cpu", shared=controls)
        for (strength, _), result in zip(cohort, results, strict=True):
            for r in leakage.records(result):
                found.append(r | {"known_rows": 20, "defense": name, "strength": strength})
    points = leakage.summarise(leakage.read_records(found), 0.95)
    points = [p for p in points if p.split == "train" and p.metric == p.primary]
    caps = {c.attack: c.cap for c in privacy(points) if c.cap is not None}
    labels = {spec.label: c for c, spec in columns.items()}
    return [
        {
            "data": data, "kind": kind, "defense": name, "strength": p.strength,
            "attack": labels[p.attack], "utility": round(p.utility.mean, 4),
            "advantage": round(p.advantage.mean, 3), "low": round(p.advantage.low, 3),
            "high": round(p.advantage.high, 3), "cap": round(caps.get(p.attack, math.nan), 4),
        }
        for p in points
        if p.attack and p.advantage.mean
    ]  # fmt: skip


def jobs() -> list[tuple[str, str, dict[str, Any], str]]:
    """Title, kind of top model, changed settings and defense of everything that is trained."""
    free = [(title, kind, change, "") for title, (kind, change) in FREE.items()]
    return free + [(name, kind, {}, name) for name in GRID for kind in KINDS]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=None)
    parser.add_argument("--only", nargs="*", default=None, help="only these defenses")
    parser.add_argument("--world", default="", help="only data whose name contains this")
    parser.add_argument("--fresh", action="store_true", help="forget figures of earlier runs")
    parser.add_argument("--out", type=Path, default=Path("docs/evidence/defenses.md"))
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    store = args.out.with_suffix(".csv")
    there = store.exists() and not args.fresh
    found = pd.read_csv(store, keep_default_na=False, na_values=["nan"]) if there else None
    for data, tasks in worlds(args.data).items():
        controls = SharedControls()
        for title, kind, change, defense in jobs():
            known = found is not None and bool(
                (
                    (found["data"] == data) & (found["title"] == title) & (found["kind"] == kind)
                ).any()
            )
            if args.world not in data or known or (args.only and title not in args.only):
                continue
            begin = time.perf_counter()
            kept = controls if not change else SharedControls()
            try:
                rows = run(data, tasks, kind, change, defense, kept)
            except VflsecError as error:  # MID needs a top model, encryption one of its own
                print(f"{title} behind {kind} is left out: {error}")
                continue
            new = pd.DataFrame([{"title": title} | r for r in rows])
            found = new if found is None else pd.concat([found, new], ignore_index=True)
            found.to_csv(store, index=False, na_rep="nan")
            print(data, title, kind, f"{time.perf_counter() - begin:.0f} s", flush=True)
    if found is not None:
        args.out.write_text(page(found), encoding="utf-8")


def page(found: pd.DataFrame) -> str:
    """The evidence as Markdown."""
    parts = [
        "# What each defense stops, and what it costs\n",
        "Made by `python benchmarks/evidence_defenses.py --data FOLDER`. FedSplitNN with bottoms "
        f"32-16 and top 32, batches of 128, {EPOCHS} epochs, best epoch by validation loss, five "
        "seeds (0 to 4); the adversary is the passive party with 20 known rows and the class "
        "prior. `direct` and `batch_inference` are made behind a plain sum of the parties' logits, "
        "where they apply; for `embedding_inversion` the adversary is the active party with 60 "
        "auxiliary rows.\n",
        "Figures are the attack's AUC on unknown **training** rows (R² for embedding_inversion) "
        "minus that of the control that leaves the least of it (the same attacker without the "
        "federation), mean over five seeds; 0 or less means nothing leaked. Of the 95 % t interval "
        "the lower end holds over all controls; the upper rests on the one that cross-validation "
        "named beforehand, which may be behind the best, so it can be far from the mean (see "
        "[statistics](../statistics.md)). Strength 0 is the undefended run. The scale of a "
        "strength is the defense's own; see "
        "[defenses.md](../defenses.md). `laplace` is `noise` in its published form, `clipped "
        "gaussian` is `noise` with rows clipped to length 1. `not there`: the attack found nothing "
        "to work on under this defense, or the defense cannot be used behind a plain sum.\n",
    ]
    for data, of in found.groupby("data", sort=False):
        defended, free = of[of["defense"] != ""], of[of["defense"] == ""]
        parts += [f"\n## {data}\n", *_table(defended)]
        parts += ["\n### Rankings\n", *_ranking(defended[defended["attack"].isin(LABEL)])]
        parts += ["\n### What the newer attacks add\n", *_added(defended)]
        parts += ["\n### For nothing: architecture and training\n", *_table(free)]
        parts += ["\n### Expected and found\n", *_comparison(defended)]
    parts.append(
        "\n## How to read the tables\n\n"
        "Rankings: the largest advantage over all label attacks at the strength where it is least "
        f"among those whose utility drop is at most {DROPS[0]} or {DROPS[1]} (strength 0 = the "
        "undefended run was best), and CAP, the mean of utility x (1 - attack) over the grid, of "
        "the attack where it is smallest. The strength is picked on the figures shown, so a "
        "ranking describes these runs; `vflsec tune` picks on other seeds than it judges. CAP "
        "depends on the grid and is no basis for a choice.\n\n"
        f"What the newer attacks add: where {', '.join(NEWER)} have a lower bound above 0 and more "
        f"than {MORE} beyond every other attack on labels.\n\n"
        "For nothing: no defense, other settings of the same training.\n\n"
        "Expected and found: the letter that the literature or the mechanism leads one to expect "
        "of the attack at this strength, then what was measured there. S: the upper bound of the "
        "advantage is at most 0.05. N: at least 80 % of the undefended advantage remains. P: in "
        f"between. `S!`: stopped, with a utility drop of more than {DROPS[0]}; where P is expected "
        "that agrees, as P means partly or at a price. `-`: the undefended run leaks less than "
        "0.05, so there is nothing to stop; `/`: either. Every disagreement is marked and "
        "explained below.\n\n" + COMMENTS.read_text("utf-8").strip() + "\n"
    )
    return "\n".join(parts)


def _table(of: pd.DataFrame) -> list[str]:
    free = bool((of["defense"] == "").all())
    shown = [c for c in COLUMNS if not free or COLUMNS[c].kind == "top"]
    first = "setting" if free else "defense | strength"
    lines = [f"| {first} | test AUC | {' | '.join(shown)} |",
             "|" + "---|" * (len(shown) + (2 if free else 3))]  # fmt: skip
    for (title, strength), rows in of.groupby(["title", "strength"], sort=False):
        by = {r["attack"]: r for r in leakage.rows_of(rows)}
        cells = [str(title)] if free else [str(title), f"{strength:.3g}"]
        cells.append(f"{rows[rows['kind'] == 'top']['utility'].iloc[0]:.3f}")
        for name in shown:
            r = by.get(name)
            interval = f"{r['advantage']:+.2f} [{r['low']:+.2f}, {r['high']:+.2f}]" if r else ""
            cells.append(interval or "not there")
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _added(of: pd.DataFrame) -> list[str]:
    """Where one of NEWER gains more than every other attack on labels, by more than MORE."""
    lines = ["| defense | strength | newer attack | advantage | best of the others | advantage |",
             "|" + "---|" * 6]  # fmt: skip
    labels = of[of["attack"].isin(LABEL) & (of["strength"] > 0)]
    for (title, strength), rows in labels.groupby(["title", "strength"], sort=False):
        newer = rows["attack"].isin(NEWER)
        if not newer.any() or newer.all():
            continue
        parts = (rows[newer], rows[~newer])
        best, other = (leakage.rows_of(p.nlargest(1, "advantage"))[0] for p in parts)
        if best["low"] > 0 and best["advantage"] > other["advantage"] + MORE:
            figures = [
                f"{r['attack']} | {r['advantage']:+.2f} [{r['low']:+.2f}, {r['high']:+.2f}]"
                for r in (best, other)
            ]
            lines.append(f"| {title} | {strength:.3g} | {' | '.join(figures)} |")
    return lines if len(lines) > 2 else ["Nothing beyond the others."]


def _dropped(of: pd.DataFrame) -> pd.DataFrame:
    """With the drop of utility against the undefended run behind the same kind of top model."""
    bare = of[of["strength"] == 0].groupby("kind")["utility"].first()
    return of.assign(drop=of["kind"].map(bare) - of["utility"])


def _ranking(of: pd.DataFrame) -> list[str]:
    rows = []
    for defense, each in of.groupby("defense", sort=False):
        each = _dropped(each)
        each = each[each["kind"] == "top"]
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
    lines = [
        "| defense | strength | " + " | ".join(PLACES) + " |",
        "|" + "---|" * (2 + len(PLACES)),
    ]
    for (defense, strength), letters in EXPECTED.items():
        each = _dropped(of[of["defense"] == defense])
        cells = [defense, f"{strength:.3g}"]
        for name, wanted in zip(PLACES, letters.split(), strict=True):
            rows = each[each["attack"] == name]
            letter = _letter(rows[rows["strength"] == 0], rows[rows["strength"] == strength])
            same = letter == "-" or wanted == "-" or letter.strip("!") in wanted.split("/")
            same = same or (letter == "S!" and "P" in wanted)
            cells.append(f"{wanted} → {letter}{'' if same else ' (differs)'}")
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _letter(bare: pd.DataFrame, on: pd.DataFrame) -> str:
    if bare.empty or float(bare["advantage"].iloc[0]) < 0.05:
        return "-"
    if on.empty:
        return "S"
    if float(on["high"].iloc[0]) <= 0.05:
        return "S!" if float(on["drop"].iloc[0]) > DROPS[0] else "S"
    return "N" if float(on["advantage"].iloc[0]) >= 0.8 * float(bare["advantage"].iloc[0]) else "P"


if __name__ == "__main__":
    main()
