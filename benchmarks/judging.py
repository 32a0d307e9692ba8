"""What judging costs for each point: synthetic cells, 100 to 10^4 of them.

Of each size, from rows to points (``vflsec.audit.leakage``): microseconds of processor time for
each row of the results and for each point, which should not grow. Cells are 5 seeds of one
training each, with the main task's figure and two attacks in two metrics beside six controls.

With ``--whole`` also a whole audit of as many stored trainings, judged by a gate and written:
points, verdicts, exports and reports, in processor seconds, and the largest files in MB.

    python benchmarks/judging.py [--cells 100 1000 10000] [--whole]
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from vflsec.audit.leakage import complete_rows, summarise
from vflsec.audit.looks import Looks
from vflsec.audit.result_row import ResultRow
from vflsec.config.scenario import load_scenario
from vflsec.engine.audit_record import make_record
from vflsec.engine.dry_run import make_plan
from vflsec.engine.evaluate_store import judge
from vflsec.specs import AttackSpec, CellFacts, CellResult, CellSpec, LedgerRow, Measure
from vflsec.storage.store import Store

SEEDS, CONTROLS = 5, 6
CHANCES = {"auc": 0.5, "accuracy": 0.5}
_BESIDE: dict[str, dict[str, float | None]] = {
    "majority": {"value": 0.5, "cv": None},
    "scratch": {"value": 0.55, "cv": 0.6},
}


def draw_rows(cells: int) -> Iterator[ResultRow]:
    """Measures of this many trainings."""
    g = np.random.default_rng(0)
    for k in range(cells):
        point, seed = divmod(k, SEEDS)
        cell = ResultRow(
            "d", "splitnn", "iso", float(point), "train", cell=f"{k:08x}", seed=seed, n=1000,
            split="test", metric="auc", value=g.uniform(0.5, 1), chance=0.5, bytes=1e6,
            messages=100,
        )  # fmt: skip
        yield cell
        for attack in ("norm", "direction"):
            for metric, chance in CHANCES.items():
                told = {f"c{i}": {"value": g.uniform(0.4, 0.7), "cv": 0.5} for i in range(CONTROLS)}
                yield replace(
                    cell, attack=attack, attack_key=attack, adversary="passive", target="label",
                    known_rows=20, metric=metric, chance=chance, value=g.uniform(0.4, 1),
                    controls=told,
                )  # fmt: skip


def scenario(strengths: int) -> dict[str, Any]:
    """An audit of so many strengths of one defense."""
    return {
        "name": "synthetic",
        "data": [{"name": "breast_cancer"}],
        "algorithm": [{"name": "splitnn"}],
        "defense": [{"name": "iso", "strength": [float(k) for k in range(strengths)]}],
        "attack": [{"name": "norm"}, {"name": "direction"}],
        "gate": [{"max": 0.4}],
        "audit": {"seeds": SEEDS, "references": []},
    }


def result(cell: CellSpec, attacks: tuple[AttackSpec, ...], g: np.random.Generator) -> CellResult:
    """What a training might have left."""
    made = CellResult(cell.key, cell, seconds=0.25)
    made.measures.append(Measure("train", "test", "auc", g.uniform(0.8, 0.9), n=250, chance=0.5))
    for a in attacks:
        made.measures.append(
            Measure("train", "train", "auc", g.uniform(0.7, 0.8), n=400, chance=0.5, target="label",
                    controls=_BESIDE, adversary="+".join(a.adversary), attack=a.label,
                    attack_key=a.key, victim="active")
        )  # fmt: skip
    made.ledger.append(LedgerRow("train", "gradient", "", "active", "passive", 10, 320, 1280, 10))
    made.facts = CellFacts(("active", "passive"), classes=2, rows={"test": 250})
    return made


def time_points(cells: int) -> tuple[int, float, float]:
    """How many points, microseconds of each row of the results, and of each point."""
    made = list(draw_rows(cells))
    start = time.process_time()
    rows = complete_rows(made)
    framed = time.process_time()
    points = summarise(rows)
    done = time.process_time()
    return len(points), (framed - start) / len(made) * 1e6, (done - framed) / len(points) * 1e6


def time_whole(cells: int) -> tuple[int, float, str]:
    """Stored trainings in all, processor seconds of judging and writing their audit, its files."""
    g = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as name:
        loaded = load_scenario(scenario(cells // SEEDS))
        plan = make_plan(loaded, try_out=False)
        with Store(Path(name)) as store:
            store.keep(make_record(loaded, plan, "cpu", Looks(), Path(name)))
            for group in plan.groups:
                for cell in group.cells:
                    store.commit(result(cell, group.attacks, g), group.attacks)
            start = time.process_time()
            judge(store)
            took = time.process_time() - start
        files = ("summary.json", "points.parquet", "report.html", "results.csv")
        sizes = ", ".join(f"{f} {(Path(name) / f).stat().st_size / 1e6:.1f}" for f in files)
        return len(plan.cells), took, sizes


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cells", type=int, nargs="+", default=[100, 1000, 10_000])
    parser.add_argument("--whole", action="store_true", help="also whole audits")
    given = parser.parse_args()
    print("cells, points: us a row of complete_rows, us a point of summarise; MB at most")
    for cells in given.cells:
        points, row, point = time_points(cells)
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"{cells:6d}, {points:5d}: {row:6.0f}, {point:6.0f}; {most:5.0f}")
    for cells in given.cells if given.whole else ():
        trainings, seconds, sizes = time_whole(cells)
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"{trainings:6d} trainings judged and written: {seconds:.1f} CPU s; {most:5.0f} MB")
        print(f"       files, MB: {sizes}")


if __name__ == "__main__":
    main()
