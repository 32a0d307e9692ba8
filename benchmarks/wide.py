"""Decoders of many columns from few rows: one output each, and coordinates of the rows.

Worlds of eight factors behind 800 columns and 16 numbers of embedding, 50 rows known, eight seeds;
R^2 on the 550 others and processor time, both forms in turn. Run ``python benchmarks/wide.py``.
"""

from __future__ import annotations

import sys
import time

import torch
from torch import Tensor

from vflsec.audit.intervals import t_interval
from vflsec.core.rng import generator
from vflsec.inference import ridge_regression

COLUMNS, KNOWN, SEEDS = 800, 50, 8


def world(seed: int) -> tuple[Tensor, Tensor]:
    """Embeddings (600, 16) and columns (600, 800)."""
    g = generator(seed, "w")
    z, mix = torch.randn(600, 8, generator=g), torch.randn(8, COLUMNS, generator=g)
    x = torch.tanh(z @ mix * 0.5) + 0.1 * torch.randn(600, COLUMNS, generator=g)
    return torch.tanh(z @ torch.randn(8, 16, generator=g) * 0.7), x


def fitted(worlds: list[tuple[Tensor, Tensor]], wide: int) -> tuple[Tensor, float]:
    """R^2 of each world, and processor seconds of all, with ``ridge_regression.WIDE`` as given."""
    before, ridge_regression.WIDE = ridge_regression.WIDE, wide
    start = time.process_time()
    fits = ridge_regression.fit_regressors(
        "network", [e[:KNOWN] for e, _ in worlds], [x[:KNOWN] for _, x in worlds],
        [e[KNOWN:] for e, _ in worlds], [generator(s, "fit") for s in range(len(worlds))],
    )  # fmt: skip
    took, ridge_regression.WIDE = time.process_time() - start, before
    found = [
        ridge_regression.r_squared(f.values, x[KNOWN:].double())
        for f, (_, x) in zip(fits, worlds, strict=True)
    ]
    return torch.tensor(found), took


def main() -> None:
    """Fit both ways and print."""
    torch.set_num_threads(1)
    worlds = [world(s) for s in range(SEEDS)]
    (plain, slow), (turned, fast) = (
        fitted(worlds, sys.maxsize),
        fitted(worlds, ridge_regression.WIDE),
    )
    gain = (turned - plain).numpy()
    low, high = t_interval(gain)
    print(f"{COLUMNS} columns from {KNOWN} rows, {SEEDS} seeds: R^2 {plain.mean():.3f} with an "
          f"output each, {turned.mean():.3f} in coordinates (difference {gain.mean():+.3f} "
          f"[{low:+.3f}, {high:+.3f}]), {slow / fast:.1f} times faster")  # fmt: skip


if __name__ == "__main__":
    main()
