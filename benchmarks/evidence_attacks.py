"""Every attack against four kinds of training: writes docs/evidence/attacks.md.

Run ``python benchmarks/evidence_attacks.py``: one command writes the whole page. Worlds:
control_gaussian, balanced and with 15 % positives, and 6,000 rows of credit_default (the FATE
split), which lies in the folder that VFLSEC_TEST_DATA names, or in ../shared/data beside the
repository; without it that world is left out.

Finished trainings with their attacks are kept in build/evidence/attacks, so an interrupted run goes
on where it stopped; parts made with other settings or another version are made again.
``--fresh`` makes everything again: use it after a change of the code. ``--only NAME`` runs the
worlds whose name contains this and prints them; ``--quick`` runs two seeds and two epochs and
prints, to see that everything runs. Neither writes the page.

The script ends with an error if a cell disagrees with the published expectation and
benchmarks/evidence_attacks_comments.md does not say why.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from evidence_attacks_page import Cell, page

from vflsec import __version__
from vflsec.audit.compare import find_least
from vflsec.audit.result_row import ResultRow, read_advantages
from vflsec.core.task import Task
from vflsec.data.load import load_source
from vflsec.data.prepare import make_task
from vflsec.data.source import Source
from vflsec.engine.cohort import run_cohort
from vflsec.measure.control_cache import SharedControls
from vflsec.plugins import registry
from vflsec.specs import AttackSpec, CellResult, CellSpec, DefenseSpec, hash_value

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = (os.environ.get("VFLSEC_TEST_DATA", ""), "../shared/data", "../../shared/data")
PARTS = ROOT / "build" / "evidence" / "attacks"
TARGET = ROOT / "docs" / "evidence" / "attacks.md"
COMMENTS = Path(__file__).parent / "evidence_attacks_comments.md"
COLUMNS: dict[str, tuple[DefenseSpec, ...]] = {
    "undefended": (DefenseSpec("iso", strength=0.0),),
    "iso 1": (DefenseSpec("iso", strength=1.0),),
    "iso 25": (DefenseSpec("iso", strength=25.0),),
    "label-DP ε=1": (DefenseSpec("label_dp", strength=1.0),),
}
FAMILIES = (("undefended", "iso 1", "iso 25"), ("label-DP ε=1",))
TOP: dict[str, Any] = {
    "epochs": 20, "batch_size": 256, "cut": 16, "hidden": [64], "top": [32], "embedding": 0,
}  # fmt: skip
SUM: dict[str, Any] = {**TOP, "top": [], "linear_top": False, "aggregation": "sum"}
TOLD = ("output", "membership")
"""Attacks on systems that return predictions."""
NUMBERS = ("top, numbers", "linear model")
"""Kinds in which category codes are read as numbers."""
ALGORITHMS: dict[str, tuple[str, dict[str, Any]]] = {
    "top": ("splitnn", TOP),
    "linear": ("splitnn", {**TOP, "top": []}),
    "sum": ("splitnn", SUM),
    "U-shaped": ("ushaped", TOP),
    "top, numbers": ("splitnn", TOP),
    "linear model": ("splitnn", {**SUM, "hidden": [], "select": False, "patience": 0}),
}
METRICS = {
    "label": "auc", "attribute": "auc", "membership": "auc", "integrity": "success_rate",
    "property": "share_error",
}  # fmt: skip
"""Of each target; R² of all others."""


@dataclass(frozen=True)
class Row:
    """One line of the matrix: an attack, and the kind of training it is made behind."""

    attack: str
    params: dict[str, Any] = field(default_factory=dict)
    algorithm: str = "top"
    adversary: str = "passive"
    grants: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        inner = ", ".join(f"{k}={v}" for k, v in self.params.items())
        return f"{self.attack}({inner})" if inner else self.attack


AUX: dict[str, Any] = {"adversary": "active", "grants": {"aux_rows": 60}}
WHITE: dict[str, Any] = {"adversary": "active", "grants": {"peer_model": True}}
ROWS = (
    Row("direct", algorithm="sum"),
    Row("norm"),
    Row("norm", {"accumulate": False}),
    Row("direction", {"positives": 5}),
    Row("direction", {"positives": 5, "accumulate": False}),
    Row("hints"),
    Row("spectral", {"on": "gradient"}),
    Row("cluster"),
    Row("cluster", {"names": "known"}),
    Row("similarity"),
    Row("lea"),
    Row("zero_pattern"),
    Row("zero_pattern", algorithm="sum"),
    *(Row("gradient_completion", {"kind": k}) for k in ("head", "em", "average")),
    Row("joint_completion"),
    Row("exploit"),
    Row("swap_probe"),
    Row("unsplit", algorithm="linear"),
    Row("unsplit", algorithm="U-shaped"),
    Row("batch_inference", algorithm="sum"),
    Row("spectral"),
    Row("similarity", {"on": "embedding"}),
    Row("model_completion"),
    Row("model_completion", {"variants": ("mixmatch_frozen",), "mixmatch": {"epochs": 2}}),
    Row("active_completion"),
    Row("output"),
    Row("embedding_inversion", {"variants": ("linear",)}, **AUX),
    Row("grn", {"match": "embedding"}, algorithm="top, numbers", **WHITE),
    Row("equation_solving", {"equations": "embedding"}, algorithm="linear model", **WHITE),
    Row("sdar", **AUX),
    Row("fsha", **AUX),
    Row("fsha", {"use": "critic"}, **AUX),
    Row("unsplit_input", algorithm="top, numbers", **WHITE),
    Row("attribute", **AUX),
    Row("property", **AUX),
    Row("membership"),
    Row("membership", {"references": 8}),
    Row("gradient_replacement", {"value": 6.0}),
    Row("replay"),
    Row("villain"),
)


def credit(numbers: bool) -> Source | None:
    """6,000 rows of credit_default drawn once, in the split of FATE's example; None without it.

    With `numbers` the codes of categories are read as numbers.
    """
    import pandas as pd

    found = [ROOT / f / "credit_default" for f in FOLDERS if f]
    folder = next((f for f in found if f.is_dir()), None)
    if folder is None:
        return None
    meta = json.loads((folder / "meta.json").read_text())
    name = next(s for s in meta["splits"] if "fate" in s)
    parts = meta["splits"][name]
    columns = {"active": parts["label_party"], "passive": parts["passive"]}
    kept = [*columns["active"], *columns["passive"]]
    frame = pd.read_csv(folder / "credit_default.csv.gz").sample(6000, random_state=0)
    short = ROOT / "build" / "evidence" / "credit_default_6000.csv"
    short.parent.mkdir(parents=True, exist_ok=True)
    frame[[*kept, meta["label"]]].to_csv(short, index=False)
    section = {
        "file": str(short), "label": meta["label"], "active": "active", "columns": columns,
        "categorical": [c for c in meta["categorical"] if c in kept and not numbers],
        "name": "credit_default",
    }  # fmt: skip
    return load_source(section, 0, ROOT)


WORLDS: dict[str, dict[str, Any] | None] = {
    "control_gaussian": {},
    "control_gaussian, 15 % positives": {"positive_rate": 0.15},
    "credit_default, 6,000 rows": None,
}
"""Name -> parameters of the data set (None for the table)."""


def tasks_of(
    params: Mapping[str, Any] | None, seeds: Sequence[int], numbers: bool
) -> dict[int, Task] | None:
    """The task of each seed, None if the table is not there."""
    if params is None:
        source = credit(numbers)
        return None if source is None else {s: make_task(source, s) for s in seeds}
    made = registry.datasets.create("control_gaussian", params)
    return {s: make_task(made.load(s), s) for s in seeds}


def groups(rows: Sequence[Row]) -> list[list[Row]]:
    """Passive attacks share a training; one that acts, or asks, has a training of its own, and so
    have those on predictions that come back, which others would read too.
    """
    own = [r for r in rows if registry.attacks.create(r.attack, r.params).needs_own_training]
    told = [r for r in rows if r not in own and r.attack in TOLD]
    passive = [r for r in rows if r not in own and r not in told]
    return [g for g in (passive, told, *([r] for r in own)) if g]


def parts(
    world: str, params: Mapping[str, Any] | None, seeds: Sequence[int], quick: bool
) -> Iterator[dict[str, Any]]:
    """The parts of one world: kept ones at once, the others as they are made."""
    for kind, (algorithm, settings) in ALGORITHMS.items():
        tasks: dict[int, Task] | None = None
        known = SharedControls()
        for group in groups([r for r in ROWS if r.algorithm == kind]):
            told = {"returns_predictions": any(r.attack in TOLD for r in group)}
            settings = {**settings, **told, **({"epochs": 2} if quick else {})}
            for family in FAMILIES:
                what = {
                    "world": [world, params, kind in NUMBERS], "seeds": list(seeds),
                    "algorithm": algorithm, "settings": settings, "version": __version__,
                    "rows": [asdict(r) for r in group],
                    "defenses": {c: [asdict(d) for d in COLUMNS[c]] for c in family},
                }  # fmt: skip
                path = PARTS / f"{hash_value(what)}.json"
                if not path.is_file():
                    tasks = tasks or tasks_of(params, seeds, kind in NUMBERS)
                    if tasks is None:
                        return
                    made = one_part(group, family, algorithm, settings, tasks, world, known)
                    part = {"what": what, "kind": kind, **made}
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.with_suffix(".tmp").write_text(json.dumps(part), encoding="utf-8")
                    path.with_suffix(".tmp").replace(path)
                    names = ", ".join(r.attack for r in group)
                    print(f"  {kind}: {names}: {part['cpu']:.0f} s of CPU", flush=True)
                yield json.loads(path.read_text("utf-8"))


def one_part(
    group: Sequence[Row], family: Sequence[str], algorithm: str, settings: dict[str, Any],
    tasks: Mapping[int, Task], world: str, known: SharedControls,
) -> dict[str, Any]:  # fmt: skip
    """Train one cohort, make its attacks, and keep what the page needs."""
    since, seeds = time.process_time(), list(tasks)
    task = tasks[seeds[0]]
    party = {"active": task.active, "passive": task.passive[0]}
    specs = [AttackSpec(r.attack, r.params, (party[r.adversary],), **r.grants) for r in group]
    grid = [
        CellSpec({"name": world}, algorithm, settings, COLUMNS[c], seed=s)
        for c in family
        for s in seeds
    ]
    results = run_cohort(grid, specs, tasks, device="cpu", shared=known)
    cells, main = [], {}
    for i, column in enumerate(family):
        mine = results[i * len(seeds) : (i + 1) * len(seeds)]
        main[column] = {m: main_task(mine, m) for m in ("auc", "accuracy")}
        for row, spec in zip(group, specs, strict=True):
            cells.append(asdict(figures(mine, spec, row, column)))
    return {"cells": cells, "main": main, "cpu": time.process_time() - since}


def figures(results: Sequence[CellResult], spec: AttackSpec, row: Row, column: str) -> Cell:
    """Advantages by seed over the control that leaves the least of them, on one row set."""
    mine = [m for r in results for m in r.measures if m.attack_key == spec.key]
    reason = next((m.reason for m in mine if m.reason), "")
    target = mine[0].target if mine else ""
    metric = METRICS.get(target, "r2")
    there = [m for m in mine if m.metric == metric and m.value is not None]
    split = "test" if any(m.split == "test" for m in there) else "train"
    there = [m for m in there if m.split == split]
    gained = read_advantages([
        ResultRow("", "", "", None, metric=m.metric, seed=i, value=m.value, chance=m.chance,
                  controls=m.controls)
        for i, m in enumerate(there)
    ])[0]  # fmt: skip
    best = find_least(gained) if gained else ""
    return Cell(
        row.name, row.attack, row.algorithm, column, target, split, best, reason,
        list(gained.get(best, {}).values()),
        [float(m.value or 0.0) for m in there],
        [float(m.value or 0.0) for m in mine if m.metric == "clean_accuracy"],
    )  # fmt: skip


def main_task(results: Sequence[CellResult], metric: str) -> list[float]:
    """The main task's figure on test rows by seed."""
    return [
        float(m.value) for r in results for m in r.measures
        if not m.attack and m.split == "test" and m.metric == metric and m.value is not None
    ]  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="run and print worlds whose name contains this")
    parser.add_argument("--quick", action="store_true", help="two seeds, two epochs; print only")
    parser.add_argument("--fresh", action="store_true", help="make every part again")
    asked = parser.parse_args()
    if asked.fresh:
        shutil.rmtree(PARTS, ignore_errors=True)
    found: dict[str, list[dict[str, Any]]] = {}
    for world, params in WORLDS.items():
        if asked.only in world:
            print(world, flush=True)
            found[world] = list(parts(world, params, range(2 if asked.quick else 5), asked.quick))
    order = [(r.name, r.algorithm) for r in ROWS]
    text, unexplained = page(found, order, list(COLUMNS), COMMENTS.read_text("utf-8"))
    if asked.only or asked.quick:
        print(text)
        return 0
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    TARGET.write_text(text, encoding="utf-8")
    for cell in unexplained:
        print(f"{COMMENTS.name}: says nothing about {cell}", file=sys.stderr)
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
