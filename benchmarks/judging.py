"""What judging costs for each point: synthetic cells, 100 to 10^4 of them.

Of each size, from records to points (``vflsec.audit.leakage``): microseconds of processor time for
each row of the results and for each point, which should not grow. Cells are 5 seeds of one
training each, with the main task's figure and two attacks in two metrics beside six controls.

    python benchmarks/judging.py [--cells 100 1000 10000]
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Iterator, Mapping

import numpy as np

from vflsec.audit.leakage import read_records, summarise

SEEDS, CONTROLS = 5, 6
CHANCES = {"auc": 0.5, "accuracy": 0.5}


def records(cells: int) -> Iterator[Mapping[str, object]]:
    """Measures of this many trainings."""
    g = np.random.default_rng(0)
    for k in range(cells):
        point, seed = divmod(k, SEEDS)
        cell = {"cell": f"{k:08x}", "dataset": "d", "algorithm": "splitnn", "phase": "train",
                "defense": "iso", "strength": float(point), "seed": seed, "n": 1000,
                "split": "test", "bytes": 1e6, "messages": 100}  # fmt: skip
        yield {**cell, "metric": "auc", "value": g.uniform(0.5, 1), "chance": 0.5}
        for attack in ("norm", "direction"):
            for metric, chance in CHANCES.items():
                told = {f"c{i}": {"value": g.uniform(0.4, 0.7), "cv": 0.5} for i in range(CONTROLS)}
                yield {**cell, "attack": attack, "attack_key": attack, "adversary": "passive",
                       "target": "label", "known_rows": 20, "metric": metric, "chance": chance,
                       "value": g.uniform(0.4, 1), "controls": told}  # fmt: skip


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cells", type=int, nargs="+", default=[100, 1000, 10_000])
    print("cells, points: us a row of read_records, us a point of summarise; MB at most")
    for cells in parser.parse_args().cells:
        made = list(records(cells))
        start = time.process_time()
        rows = read_records(made)
        framed = time.process_time()
        points = summarise(rows)
        done = time.process_time()
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"{cells:6d}, {len(points):5d}: {(framed - start) / len(made) * 1e6:6.0f}, "
              f"{(done - framed) / len(points) * 1e6:6.0f}; {most:5.0f}")  # fmt: skip


if __name__ == "__main__":
    main()
