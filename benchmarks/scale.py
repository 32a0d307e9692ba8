"""Time, memory and open files of one audit, by its size.

A small two-party network on a table of Gaussian columns is audited over a grid of strengths and
seeds, each size in a process of its own. Memory is the largest resident set, files are the most
descriptors that were open at once. Run ``python benchmarks/scale.py``; ``--markdown`` prints the
table of docs/limits.md, ``--rows`` and ``--cells`` choose sizes, ``--steps`` prints what is in use
after each cohort while it runs.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

SIZES = ((15_000, 100), (150_000, 40), (150_000, 200), (150_000, 400))
SEEDS = 10
SCENARIO = """
[data]
file = "table.parquet"
label = "y"
id = "id"
active = "bank"
[data.columns]
bank = ["a0", "a1", "a2"]
shop = ["b0", "b1", "b2", "b3"]
[algorithm]
name = "splitnn"
epochs = 1
batch_size = 4096
hidden = [8]
cut = 4
[[defense]]
name = "iso"
strength = {strengths}
[[attack]]
name = "norm"
known_rows = 0
[audit]
seeds = {seeds}
references = []
positive_control = false
[[gate]]
max = 0.49
"""


def table(rows: int) -> pd.DataFrame:
    """Gaussian columns of which the label depends on the sum of both parties'."""
    g = np.random.default_rng(0)
    x = g.normal(size=(rows, 7)).astype(np.float32)
    y = (x.sum(1) + g.normal(size=rows) > 1.5).astype(int)
    names = ["a0", "a1", "a2", "b0", "b1", "b2", "b3"]
    return pd.DataFrame({"id": np.arange(rows), **dict(zip(names, x.T)), "y": y})


def _steps() -> Any:
    """A reporter that prints to stderr what the process uses after each cohort."""
    from vflsec.runtime.progress_protocol import Reporter

    class Steps(Reporter):
        cells = 0

        def finish(self, work: Any) -> None:
            self.cells += len(work.cells)
            status = Path("/proc/self/status").read_text().splitlines()
            used = {line.split(":")[0]: line.split()[1] for line in status if "kB" in line}
            most, now = (round(int(used[k]) / 1024) for k in ("VmHWM", "VmRSS"))
            files = len(list(Path("/proc/self/fd").iterdir()))
            cpu = round(time.process_time())
            line = {"cells": self.cells, "most": most, "now": now, "files": files, "cpu": cpu}
            print(json.dumps(line), file=sys.stderr, flush=True)

    return Steps()


def audit(folder: Path, rows: int, cells: int, replicas: int) -> dict[str, Any]:
    """Audit in this process; figures of the process afterwards."""
    import vflsec

    table(rows).to_parquet(folder / "table.parquet")
    strengths = [float(s) for s in range(cells // SEEDS)]
    path = folder / "case.toml"
    path.write_text(SCENARIO.format(strengths=strengths, seeds=SEEDS))
    most, over = 0, threading.Event()

    def count() -> None:
        nonlocal most
        while not over.wait(0.05):
            most = max(most, len(list(Path("/proc/self/fd").iterdir())))

    watcher = threading.Thread(target=count, daemon=True)  # ends also where the audit fails
    watcher.start()
    start = time.perf_counter()
    found = vflsec.run_audit(
        path, folder / "out", replicas=replicas, device="cpu", progress=_steps()
    )
    seconds = time.perf_counter() - start
    over.set()
    watcher.join()
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "rows": rows,
        "cells": found.summary["cells"]["finished"],
        "replicas": replicas,
        "seconds": round(seconds),
        "cpu": round(used.ru_utime + used.ru_stime),
        "megabytes": round(used.ru_maxrss / 1024),
        "files": most,
        "store": round((folder / "out" / "results.sqlite").stat().st_size / 1e6, 1),
        "exit": found.exit_code,
    }


def measured(rows: int, cells: int, replicas: int, steps: bool) -> dict[str, Any]:
    """The figures of :func:`audit` in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--one", folder, str(rows), str(cells), str(replicas)]
        beside = None if steps else subprocess.DEVNULL
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=beside, text=True)
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=0)
    parser.add_argument("--cells", type=int, default=0)
    parser.add_argument("--replicas", type=int, default=20)
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--steps", action="store_true")
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(audit(Path(args.one[0]), *map(int, args.one[1:]))))
        return
    sizes = ((args.rows, args.cells),) if args.rows else SIZES
    if args.markdown:
        print("| rows | trainings | CPU s | memory, MB | open files | store, MB |")
        print("|---:|---:|---:|---:|---:|---:|")
    for rows, cells in sizes:
        f = measured(rows, cells, args.replicas, args.steps)
        if args.markdown:
            print(
                f"| {f['rows']:,} | {f['cells']} | {f['cpu']} | {f['megabytes']} "
                f"| {f['files']} | {f['store']} |",
                flush=True,
            )
        else:
            print(json.dumps(f), flush=True)


if __name__ == "__main__":
    main()
