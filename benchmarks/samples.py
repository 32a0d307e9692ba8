"""Time and memory of an audit of a sample of rows, by whose messages attacks are given.

Two Parquet tables of five Gaussian columns each are joined by id, trained on for one epoch under
two strengths and two seeds, and attacked by their gradients and embeddings, in this process. Run
``python benchmarks/samples.py --rows 1000000 --messages sample``; it prints one line of the table
in docs/performance.md. ``--lost`` prints the other table there instead: what attacks find that
learn from the messages of all rows, and what they find by those of 5,000.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

SAMPLE = 20_000
LEARN: list[dict[str, Any]] = [
    {"name": "direction"},
    {"name": "similarity", "known_rows": 20},
    {"name": "cluster", "known_rows": 20},
    {"name": "spectral", "on": "gradient", "known_rows": 20},
    {"name": "gradient_completion", "epochs": "mean", "known_rows": 20},
    {"name": "embedding_inversion", "aux_rows": 60},
    {"name": "attribute", "column": "*", "aux_rows": 60},
    {"name": "property", "column": "b0", "aux_rows": 60},
]


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


def compare(files: dict[str, str], base: Path) -> None:
    """Print the figure of each attack that learns, by the messages of all rows and of a sample."""
    import vflsec

    found: dict[str, dict[tuple[str, str], dict[int, float]]] = {}
    for messages in ("all", "sample"):
        sections = describe(files, messages)
        sections["algorithm"] = [{"name": "splitnn", "epochs": 3, "batch_size": 1024}]
        sections["defense"][0]["strength"] = 5
        sections |= {"attack": LEARN, "audit": {**sections["audit"], "seeds": 5, "sample": 5000}}
        scenario = vflsec.load_scenario(sections, base=base)
        audit = vflsec.run_audit(scenario, base / messages, device="cpu")
        for row in audit.rows:
            if row.attack and row.is_main and row.split != "test" and row.value is not None:
                of = found.setdefault(messages, {}).setdefault((row.attack, row.metric), {})
                of[row.seed] = row.value
    for key, every in found["all"].items():
        lost = [found["sample"][key][seed] - value for seed, value in every.items()]
        two = [statistics.mean(found[m][key].values()) for m in ("all", "sample")]
        print(f"| {' | '.join(key)} | {two[0]:.3f} | {two[1]:.3f} | {statistics.mean(lost):+.4f}, "
              f"{statistics.stdev(lost):.4f} |")  # fmt: skip


def main() -> None:
    """Print rows, whose messages, processor seconds and the largest resident set."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--messages", choices=("all", "sample"), default="sample")
    parser.add_argument("--lost", action="store_true", help="what a small sample costs attacks")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        if given.lost:
            compare(write_tables(Path(name), given.rows), Path(name))
            return
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
