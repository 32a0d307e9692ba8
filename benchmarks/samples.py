"""Time and memory of an audit of a sample of rows, by whose messages attacks are given.

Two Parquet tables of five Gaussian columns each are joined by id, trained on for one epoch under
two strengths and two seeds, and attacked by their gradients and embeddings, in this process. Run
``python benchmarks/samples.py --rows 1000000 --messages sample``; it prints one line of the table
in docs/performance.md.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

SAMPLE = 20_000


def write_tables(folder: Path, rows: int) -> dict[str, str]:
    """A table of each party, of which the second one's rows stand in another order."""
    g = np.random.default_rng(0)
    x = g.standard_normal((rows, 10)).round(4)
    y = (x @ g.standard_normal(10) + 2 * g.standard_normal(rows) > 3).astype(int)
    order, files = g.permutation(rows), {"bank": "bank.parquet", "shop": "shop.parquet"}
    bank = {f"a{k}": x[:, k] for k in range(5)}
    shop = {f"b{k}": x[order, 5 + k] for k in range(5)}
    pd.DataFrame({"id": np.arange(rows), **bank, "y": y}).to_parquet(folder / files["bank"])
    pd.DataFrame({"id": order, **shop}).to_parquet(folder / files["shop"])
    return files


def describe(files: dict[str, str], messages: str) -> dict[str, Any]:
    """The scenario."""
    granted = {"aux_rows": 60}
    return {
        "name": "samples",
        "data": [{"name": "two", "files": files, "id": "id", "label": "y", "active": "bank"}],
        "algorithm": [{"name": "splitnn", "epochs": 1, "batch_size": 4096}],
        "defense": [{"name": "iso", "strength": [0, 5]}],
        "attack": [
            {"name": "model_completion", "known_rows": 20}, {"name": "norm"},
            {"name": "direction"}, {"name": "embedding_inversion", **granted},
            {"name": "attribute", "column": "*", **granted},
        ],
        "audit": {
            "seeds": 2, "sample": SAMPLE, "messages": messages, "references": [],
            "positive_control": False, "canaries": False,
        },
    }  # fmt: skip


def main() -> None:
    """Print rows, whose messages, processor seconds and the largest resident set."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--messages", choices=("all", "sample"), default="sample")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        files = write_tables(Path(name), given.rows)
        before = resource.getrusage(resource.RUSAGE_SELF)

        import vflsec

        scenario = vflsec.load_scenario(describe(files, given.messages), base=Path(name))
        vflsec.run_audit(scenario, Path(name) / "out", device="cpu")
        after = resource.getrusage(resource.RUSAGE_SELF)
    seconds = sum(after[k] - before[k] for k in (0, 1))
    print(
        f'| {given.rows:,} | `"{given.messages}"` | {seconds:.0f} | {after.ru_maxrss / 1e6:.1f} |'
    )


if __name__ == "__main__":
    main()
