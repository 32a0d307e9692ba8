"""What products with fewer digits do to an audit's figures: the same audits at every ``dtype``.

Breast cancer and the ten digits, `splitnn`, undefended and with noise on the gradients, attacks on
labels and columns. Every figure is compared with that of the same seed in float32. On a CPU TF32 is
rounded by hand. Run ``python benchmarks/precision.py``; ``--device cuda`` compares on a GPU.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import pandas as pd

import vflsec
from vflsec.audit.intervals import t_interval

OTHERS = ("tf32", "bf16")
KEYS = ["dataset", "strength", "seed", "attack", "split", "metric"]


def scenario(dtype: str, seeds: int) -> dict[str, Any]:
    """The audit, trained with this precision."""
    return {
        "data": [{"name": "breast_cancer"}, {"name": "digits"}],
        "algorithm": [{"name": "splitnn", "epochs": 30}],
        "defense": [{"name": "iso", "strength": [0.0, 5.0]}],
        "attack": [
            {"name": "norm"},
            {"name": "direction", "known_rows": 40},
            {"name": "model_completion", "known_rows": 40},
            {"name": "embedding_inversion", "adversary": "active", "aux_rows": 40},
        ],
        "audit": {"seeds": seeds, "references": [], "positive_control": False, "canaries": False,
                  "dtype": dtype},
    }  # fmt: skip


def figures(dtype: str, seeds: int, folder: Path, device: str) -> pd.Series:
    """One figure for each data set, strength, seed, attack ('' is the main task) and metric."""
    found = vflsec.run_audit(scenario(dtype, seeds), folder / dtype, device=device).results
    found = found[(found.status == "ok") & (found.role == "audit") & (found.split != "validation")]
    found = found[found.metric == found.primary]
    return found[(found.attack != "") | (found.split == "test")].set_index(KEYS).value


def differences(full: pd.Series, other: pd.Series) -> pd.DataFrame:
    """By data set, attack and strength: mean, spread, mean difference with its 95 % interval, and
    the largest.
    """
    both = pd.DataFrame({"full": full, "other": other}).dropna().reset_index()
    assert len(both) == full.notna().sum()
    both["difference"] = both.other - both.full
    rows = []
    for (dataset, attack, split, strength, metric), of in both.groupby(
        ["dataset", "attack", "split", "strength", "metric"]
    ):
        low, high = t_interval(of.difference.to_numpy())
        gap, plain = of.difference, of.full
        rows.append((dataset, attack or "main task", split, strength, metric, plain.mean(),
                     plain.std(), gap.mean(), low, high, gap.abs().max()))  # fmt: skip
    columns = ["dataset", "figure", "split", "strength", "metric", "full", "sd", "mean", "low",
               "high", "most"]  # fmt: skip
    return pd.DataFrame(rows, columns=columns)


def main() -> None:
    """Audit at every precision and print the differences."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as held:
        full = figures("float32", args.seeds, Path(held), args.device)
        for dtype in OTHERS:
            found = differences(full, figures(dtype, args.seeds, Path(held), args.device))
            off = int(((found.low > 0) | (found.high < 0)).sum())
            most, one = found["mean"].abs().max(), found.most.max()
            print(f"{dtype}: {len(found)} figures, mean differences up to {most:.4f}, of one seed "
                  f"up to {one:.4f}; {off} with an interval off 0")  # fmt: skip
            print(found.round(4).to_string(index=False), flush=True)


if __name__ == "__main__":
    main()
