"""What an audit costs against its size: cells, rows, columns, parties, epochs, attacks.

One audit of Gaussian columns is the base; each curve changes one number of it. Every point runs in
a process of its own that begins with everything imported: neither start nor earlier points count.
Printed are processor seconds as a multiple of the base's, the exponent between the first and the
last point (1: in proportion, 0: no growth), and the largest resident memory.

    python benchmarks/curves.py [--rounds 3] [--only epochs]
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import resource
import statistics
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pandas as pd
import torch

import vflsec

BASE = {"cells": 10, "rows": 4000, "columns": 8, "parties": 2, "epochs": 3, "attacks": 1}
CURVES = {
    "cells": (5, 10, 40),
    "rows": (1000, 4000, 16000),
    "columns": (4, 8, 32),
    "parties": (2, 3, 5),
    "epochs": (1, 3, 12),
    "attacks": (1, 2, 4),
}
SEEDS = 5
ATTACKS = ("norm", "direction", "similarity", "model_completion")


def scenario(cells: int, columns: int, parties: int, epochs: int, attacks: int) -> str:
    """The text of an audit; the table is beside it."""
    names = ["active", *(f"passive{k}" for k in range(1, parties))]
    of = [f"{n} = {[f'{n}_{i}' for i in range(columns)]}" for n in names]
    lines = [
        "[data]", 'file = "table.parquet"', 'label = "y"', 'id = "id"', 'active = "active"',
        "[data.columns]", *of,
        "[algorithm]", 'name = "splitnn"', f"epochs = {epochs}", "batch_size = 256",
        "hidden = [32]", "cut = 16",
        "[[defense]]", 'name = "iso"', f"strength = {[float(s) for s in range(cells // SEEDS)]}",
    ]  # fmt: skip
    for name in ATTACKS[:attacks]:
        lines += ["[[attack]]", f'name = "{name}"', 'adversary = "passive1"', "known_rows = 20"]
    lines += ["[audit]", f"seeds = {SEEDS}", "references = []", "positive_control = false",
              "[[gate]]", "max = 0.49"]  # fmt: skip
    return "\n".join(lines).replace("'", '"')


def table(rows: int, columns: int, parties: int) -> pd.DataFrame:
    """Gaussian columns; the label depends on the sum of the first column of every party."""
    g = np.random.default_rng(0)
    x = g.normal(size=(rows, parties, columns)).astype(np.float32)
    names = ["active", *(f"passive{k}" for k in range(1, parties))]
    of = {f"{n}_{i}": x[:, k, i] for k, n in enumerate(names) for i in range(columns)}
    y = x[:, :, 0].sum(1) + g.normal(size=rows) > 0.5
    return pd.DataFrame({"id": np.arange(rows), **of, "y": y.astype(int)})


def _audit(folder: Path, size: dict[str, int], answer: Connection) -> None:
    rest = {k: v for k, v in size.items() if k != "rows"}
    (folder / "case.toml").write_text(scenario(**rest), encoding="utf-8")
    table(size["rows"], size["columns"], size["parties"]).to_parquet(folder / "table.parquet")
    start = time.process_time()
    found = vflsec.run_audit(folder / "case.toml", folder / "out", device="cpu")
    assert found.summary["cells"]["finished"] == size["cells"]
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    answer.send((time.process_time() - start, used))


def audit(size: dict[str, int]) -> tuple[float, float]:
    """Processor seconds and megabytes of one audit, in a process of its own."""
    ours, theirs = multiprocessing.Pipe()
    with tempfile.TemporaryDirectory() as folder:
        fork = multiprocessing.get_context("fork")
        child = fork.Process(target=_audit, args=(Path(folder), size, theirs))
        child.start()
        theirs.close()
        seconds, used = ours.recv()
        child.join()
    return seconds, used


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=1, help="audits of each size (default 1)")
    parser.add_argument("--only", choices=tuple(CURVES), help="one curve")
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:  # imports what audits import
        send, _ = multiprocessing.Pipe()
        _audit(Path(folder), {**BASE, "rows": 300, "cells": 5, "attacks": 4}, send)
    seen: dict[tuple[int, ...], tuple[float, float]] = {}

    def cost(size: dict[str, int]) -> tuple[float, float]:
        key = tuple(size.values())
        if key not in seen:
            runs = [audit(size) for _ in range(given.rounds)]
            seen[key] = statistics.median(s for s, _ in runs), max(m for _, m in runs)
        return seen[key]

    base, _ = cost(BASE)
    print(f"base: {base:.1f} CPU s; {', '.join(f'{v} {k}' for k, v in BASE.items())}\n")
    print("| number of | sizes | CPU time / base | exponent | memory, MB |")
    print("|---|---|---|---|---|")
    for name, sizes in CURVES.items():
        if given.only not in (None, name):
            continue
        found = [cost({**BASE, name: n}) for n in sizes]
        power = math.log(found[-1][0] / found[0][0]) / math.log(sizes[-1] / sizes[0])
        shown = (
            ", ".join(f"{n:,}" for n in sizes),
            ", ".join(f"{s / base:.2f}" for s, _ in found),
            f"{power:.2f}",
            ", ".join(f"{m:.0f}" for _, m in found),
        )
        print(f"| {name} | {' | '.join(shown)} |", flush=True)


if __name__ == "__main__":
    main()
