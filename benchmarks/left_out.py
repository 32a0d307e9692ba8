"""Membership where the data say which rows are tested on: what the control `left out` leaves of it.

    python benchmarks/left_out.py [--only N]

Tables of two numbers for each of two parties are drawn, with a split of their own. For each kind of
table: the mean AUC of ``membership``, what it is above that of the same attack on systems without
the rows, with its standard error over tables, and on how many tables a t test over seeds puts that
above 0.01. The table of docs/statistics.md ("Where the data say which rows are tested on").
"""

from __future__ import annotations

import argparse
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from vflsec.data.prepare import make_task
from vflsec.data.source import PartyData, Source
from vflsec.engine.cohort import run_cohort
from vflsec.specs import LEFT_OUT, AttackSpec, CellSpec


class Kind(NamedTuple):
    """Tables of one kind, and how they are trained on and asked about."""

    text: str
    tables: int
    first: int
    rows: int
    tested: int
    world: str
    epochs: int
    references: int = 0
    seeds: int = 5
    more: dict[str, Any] = {}


KINDS = (
    Kind("4,200 training rows, test rows harder, 2 epochs", 40, 1000, 6000, 1800, "harder", 2),
    Kind("the same with 4 references", 24, 700, 6000, 1800, "harder", 2, 4),
    Kind("4,200 training rows, test rows alike, 2 epochs", 40, 400, 6000, 1800, "alike", 2),
    Kind("280 training rows, alike, 2 epochs, 4 references", 60, 500, 400, 120, "alike", 2, 4),
    Kind("280 training rows, alike, 30 epochs", 40, 600, 400, 120, "alike", 30),
    Kind(
        "350 training rows, wrong labels kept by heart, test rows easier", 8, 0, 600, 250,
        "easier", 110, seeds=4,
        more={"hidden": [64], "patience": 0, "select": False, "lr": 0.004},
    ),
)  # fmt: skip


def draw_table(kind: Kind, number: int) -> Source:
    """Columns of two parties, and which rows are tested on; these are of another kind if asked."""
    rng = np.random.default_rng(5000 + number)
    n, test = kind.rows, np.arange(kind.rows) >= kind.rows - kind.tested
    if kind.world == "easier":  # training labels are wrong for three in ten, test rows lie far off
        z = rng.normal(size=(n, 20))
        told = [0, 1, 10, 11]
        score = z[:, told].sum(1)
        z[:, told] += np.where(test, 0.7 * np.sign(score), 0.0)[:, None]
        y = (score > 0) ^ (rng.random(n) < np.where(test, 0.0, 0.3))
        bank, shop = z[:, :10], z[:, 10:]
    else:  # of harder rows the label goes with a column the other way round
        z = rng.normal(size=(n, 4))
        usual, other = 2 * (z[:, 0] + z[:, 1]), 2 * (z[:, 2] - z[:, 0])
        score = np.where(test & (kind.world == "harder"), other, usual)
        y = score + rng.logistic(size=n) > 0
        bank, shop = z[:, [0, 3]], z[:, [1, 2]]
    parties = {
        name: PartyData(x, np.arange(n), tuple(f"{name}{k}" for k in range(x.shape[1])),
                        (None,) * x.shape[1])
        for name, x in (("bank", bank), ("shop", shop))
    }  # fmt: skip
    split = np.where(test, "test", "train")
    return Source("drawn", parties, "bank", y.astype(int), ("0", "1"), split=split,
                  digest=f"{kind.text} {number}")  # fmt: skip


def measure(kind: Kind, number: int) -> tuple[np.ndarray, np.ndarray]:
    """AUC of the attack and of the same on systems without the rows, by seed."""
    source = draw_table(kind, number)
    seeds = range(100 * number, 100 * number + kind.seeds)
    tasks = {seed: make_task(source, seed) for seed in seeds}
    params = {"epochs": kind.epochs, "returns_predictions": True, **kind.more}
    cells = [CellSpec({"name": "drawn"}, "splitnn", params, (), seed) for seed in seeds]
    asked = AttackSpec("membership", {"references": kind.references}, adversary=("shop",))
    pairs = [
        (m.value, m.controls[LEFT_OUT]["value"])
        for result in run_cohort(cells, [asked], tasks, device="cpu")
        for m in result.measures if m.attack and m.metric == "auc"
    ]  # fmt: skip
    found = np.array(pairs, dtype=float)
    return found[:, 0], found[:, 1]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", type=int, metavar="N", help="the Nth kind of table, from 0")
    only = parser.parse_args().only
    print("| tables | AUC | gain | above 0.01 |\n|---|---|---|---|")
    for kind in KINDS if only is None else KINDS[only : only + 1]:
        of = [measure(kind, kind.first + k) for k in range(kind.tables)]
        auc = np.array([mine for mine, _ in of])
        gain = np.array([mine - left for mine, left in of])
        mean, error = gain.mean(1), np.maximum(gain.std(1, ddof=1) / kind.seeds**0.5, 1e-12)
        above = (mean - 0.01) / error > stats.t.ppf(0.95, kind.seeds - 1)
        spread = mean.std(ddof=1) / kind.tables**0.5
        print(f"| {kind.text} | {auc.mean():.3f} | {mean.mean():+.4f} ± {spread:.4f} | "
              f"{above.sum()} of {kind.tables} |", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
