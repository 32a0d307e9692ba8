"""Every attack against four kinds of training: writes docs/evidence/attacks.md.

Run ``python benchmarks/evidence_attacks.py``. Worlds: control_gaussian, balanced and with 15 %
positives, and 6,000 rows of credit_default (the FATE split), which lies in the folder that
VFLSEC_TEST_DATA names, or in ../shared/data beside the repository; without it that world is left
out. ``--only NAME`` prints one world without writing.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vflsec import registry
from vflsec.audit.intervals import t_interval
from vflsec.data.load import load_source
from vflsec.data.prepare import make_task
from vflsec.data.source import Source
from vflsec.engine.cohort import run_cohort
from vflsec.engine.spec import AttackSpec, CellResult, CellSpec, DefenseSpec

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = (os.environ.get("VFLSEC_TEST_DATA", ""), "../shared/data", "../../shared/data")
SEEDS = range(5)
PARTS = ROOT / "build" / "evidence" / "attacks"
TARGET = ROOT / "docs" / "evidence" / "attacks.md"
COLUMNS: dict[str, tuple[DefenseSpec, ...]] = {
    "undefended": (DefenseSpec("iso", strength=0.0),),
    "iso 1": (DefenseSpec("iso", strength=1.0),),
    "iso 25": (DefenseSpec("iso", strength=25.0),),
    "label-DP ε=1": (DefenseSpec("label_dp", strength=1.0),),
}
FAMILIES = (("undefended", "iso 1", "iso 25"), ("label-DP ε=1",))
TOP: dict[str, Any] = {"epochs": 20, "batch_size": 256, "cut": 16, "hidden": [64], "top": [32]}
LINEAR: dict[str, Any] = {**TOP, "top": []}
SUM: dict[str, Any] = {**TOP, "top": [], "linear_top": False, "aggregation": "sum"}


@dataclass(frozen=True)
class Row:
    """One line of the matrix: an attack, and the kind of top model it is made behind."""

    attack: str
    params: dict[str, Any] = field(default_factory=dict)
    algorithm: str = "top"
    adversary: str = "passive"
    grants: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        inner = ", ".join(f"{k}={v}" for k, v in self.params.items())
        return f"{self.attack}({inner})" if inner else self.attack


ALGORITHMS = {"top": TOP, "linear": LINEAR, "sum": SUM}
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
    Row("exploit", {"steps": 100, "starts": 1}),
    Row("unsplit", algorithm="linear"),
    Row("batch_inference", {"steps": 50, "starts": 2}, algorithm="sum"),
    Row("spectral"),
    Row("similarity", {"on": "embedding"}),
    Row("model_completion"),
    Row("model_completion", {"variants": ("mixmatch_frozen",), "mixmatch": {"epochs": 2}}),
    Row("active_completion"),
    Row("output"),
    Row("embedding_inversion", {"variants": ("linear",)}, adversary="active",
        grants={"aux_rows": 60}),
    Row("attribute", adversary="active", grants={"aux_rows": 60}),
)  # fmt: skip


def credit() -> Source | None:
    """6,000 rows of credit_default drawn once, in the split of FATE's example; None without it."""
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
        "categorical": [c for c in meta["categorical"] if c in kept], "name": "credit_default",
    }  # fmt: skip
    return load_source(section, 0, ROOT)


def worlds() -> dict[str, dict[str, Any]]:
    """Name -> parameters of the data set (None for the table)."""
    return {
        "control_gaussian": {},
        "control_gaussian, 15 % positives": {"positive_rate": 0.15},
        "credit_default, 6,000 rows": {"table": True},
    }


def matrix(name: str, params: dict[str, Any]) -> tuple[list[str], float] | None:
    """The lines of one world's table, and the seconds it took."""
    started = time.perf_counter()
    if params.get("table"):
        source = credit()
        if source is None:
            return None
        tasks = {s: make_task(source, s) for s in SEEDS}
    else:
        made = registry.datasets.create("control_gaussian", params)
        tasks = {s: make_task(made.load(s), s) for s in SEEDS}
    task = tasks[0]
    cells: dict[tuple[str, str], dict[str, str]] = {}
    utility: dict[tuple[str, str], str] = {}
    for kind, settings in ALGORITHMS.items():
        rows = [r for r in ROWS if r.algorithm == kind]
        known: dict[tuple[Any, ...], Any] = {}
        for group in groups(rows):
            settings = {**settings, "returns_predictions": any(r.attack == "output" for r in group)}
            specs = [
                AttackSpec(
                    r.attack, r.params,
                    (task.active if r.adversary == "active" else task.passive[0],), **r.grants,
                )
                for r in group
            ]  # fmt: skip
            for family in FAMILIES:
                since = time.perf_counter()
                grid = [
                    CellSpec({"name": name}, "splitnn", settings, COLUMNS[c], seed=s)
                    for c in family
                    for s in SEEDS
                ]
                results = run_cohort(grid, specs, tasks, device="cpu", known_controls=known)
                names = ", ".join(r.attack for r in group)
                print(f"  {kind}: {names}: {time.perf_counter() - since:.0f} s", flush=True)
                for i, column in enumerate(family):
                    mine = results[i * len(SEEDS) : (i + 1) * len(SEEDS)]
                    utility.setdefault((kind, column), main_task(mine))
                    for r, spec in zip(group, specs, strict=True):
                        cells.setdefault((r.name, kind), {})[column] = advantage(mine, spec)
    lines = [
        "| attack | behind | " + " | ".join(COLUMNS) + " |",
        "|---|---|" + "---|" * len(COLUMNS),
    ]
    for r in ROWS:
        figures = " | ".join(cells[r.name, r.algorithm][c] for c in COLUMNS)
        lines.append(f"| {r.name} | {r.algorithm} | {figures} |")
    for kind in ALGORITHMS:
        figures = " | ".join(utility[kind, c] for c in COLUMNS)
        lines.append(f"| *main task, test AUC* | {kind} | {figures} |")
    return lines, time.perf_counter() - started


def groups(rows: Sequence[Row]) -> list[list[Row]]:
    """Passive attacks share a training; an active one has a training of its own."""
    active = [r for r in rows if registry.attacks.create(r.attack, r.params).policy() is not None]
    passive = [r for r in rows if r not in active]
    return [passive, *([r] for r in active)]


def figure(values: Sequence[float]) -> str:
    low, high = t_interval(values)
    mean = sum(values) / len(values)
    return f"{mean:+.3f} ± {(high - low) / 2:.3f}"


def advantage(results: Sequence[CellResult], spec: AttackSpec) -> str:
    """Mean advantage over the control that is best by cross-validation, with its t interval."""
    values: dict[str, list[float]] = {}
    reason = ""
    for result in results:
        for m in result.measures:
            if m.attack_key != spec.key:
                continue
            reason = m.reason or reason
            wanted = "r2" if m.target == "feature" else "auc"
            if m.metric == wanted and m.value is not None:
                values.setdefault(m.split, []).append(m.value - _control(results, spec, m))
    split = "test" if "test" in values else "train"
    return figure(values[split]) if values.get(split) else f"({reason[:40]})"


def _control(results: Sequence[CellResult], spec: AttackSpec, measure: Any) -> float:
    """The value of the control whose mean cross-validated score over seeds is largest."""
    scores: dict[str, list[float]] = {}
    for result in results:
        for m in result.measures:
            if m.attack_key == spec.key and (m.split, m.metric) == (measure.split, measure.metric):
                for control, v in m.controls.items():
                    scores.setdefault(control, []).append(v["cv"] or 0.0)
    best = max(scores, key=lambda c: sum(scores[c]) / len(scores[c]))
    return float(measure.controls[best]["value"] or 0.5)


def main_task(results: Sequence[CellResult]) -> str:
    values = [
        m.value for r in results for m in r.measures
        if not m.attack and m.split == "test" and m.metric == "auc" and m.value is not None
    ]  # fmt: skip
    return f"{sum(values) / len(values):.3f}" if values else ""


INTRO = """# Attacks: what each finds, and what noise and label privacy do to it

Written by `python benchmarks/evidence_attacks.py`: FedSplitNN, five seeds (0 to 4), 20 known rows,
20 epochs of batches of 256, cut width 16, one active and one passive party. Cells are
**advantages**: AUC of the attack less AUC of its strongest control (the one with the best
cross-validated score on the known rows), mean over seeds and half width of the 95 % t interval; on
test rows where the attack can label them, else on training rows. For `embedding_inversion` the
figure is R² above regression on
own columns, with 60 auxiliary rows. "Behind" is what stands between the embeddings and the loss: a
top model with a hidden layer, one linear layer, or a plain sum. Attacks without a hyper-parameter
in parentheses run with their defaults, which average gradients over epochs.
"""

EXPECTED = """## Against the expectation from mechanism

Published and derived expectations, with what the tables above say. "Stops" means the interval of
the advantage touches zero or lies below it.

| attack | iso, strength up to 1 | iso, strength 25 and more | randomised labels, ε up to 1 |
|---|---|---|---|
| direct | partly | stops | bounded by tanh(ε/2) |
| norm | does not stop | stops | bounded |
| direction, hints | does not stop | partly (averaging) | bounded |
| spectral, cluster, similarity on gradients | does not stop | partly | bounded |
| spectral on embeddings | does not stop | partly (no training) | bounded |
| model_completion, active | does not stop | partly (kills the bottom) | bounded |
| batch_inference | partly | stops | bounded |
| exploit | partly | stops | bounded |
| embedding_inversion, attribute | does not stop | does not stop | does not stop |

{comments}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="run the worlds whose name contains this")
    only = parser.parse_args().only
    PARTS.mkdir(parents=True, exist_ok=True)
    text = [INTRO]
    for name, params in worlds().items():
        part = PARTS / f"{name.replace(' ', '_').replace('%', 'pct').replace(',', '')}.md"
        if only in name:
            found = matrix(name, params)
            lines = ["Not run: the table is not there."]
            if found is not None:
                lines = [*found[0], "", f"{found[1]:.0f} seconds of a shared machine."]
            part.write_text("\n".join(lines) + "\n", encoding="utf-8")
        body = part.read_text("utf-8") if part.is_file() else "Not run.\n"
        text.append(f"## {name}\n\n{body}")
    comments = (Path(__file__).parent / "evidence_attacks_comments.md").read_text("utf-8")
    text.append(EXPECTED.format(comments=comments.strip()))
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    TARGET.write_text("\n".join(text), encoding="utf-8")


if __name__ == "__main__":
    main()
