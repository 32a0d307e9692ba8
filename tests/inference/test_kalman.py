"""What is learned of rows from sums over batches, against what is known of normal numbers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from vflsec.core.rng import generator
from vflsec.inference.kalman_filter import QUIET, Rows


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=generator(seed, "kalman"), dtype=torch.float64)


def see(rows: Rows, at: Tensor, a: Tensor, j: Tensor, noise: float | None = None) -> None:
    rows.see(at, a @ a.T, a @ j, float(j @ j), len(j), prior=1.0, noise=noise)


def test_a_batch_without_rows_noise_is_learned_as_bayes_says() -> None:
    """Too little was told for any noise of rows, so r is least; means and variances by hand."""
    a, at = drawn(5, 3), torch.arange(5)
    rows = Rows.unknown(5, 1, 1.0, a)
    j = 0.1 * drawn(3, seed=1)
    see(rows, at, a, j, noise=0.3)
    told = (1 + QUIET) * a.T @ a + 0.3 * torch.eye(3, dtype=torch.float64)
    gain = a @ torch.linalg.inv(told)
    assert rows.mean.flatten() == pytest.approx(gain @ j)
    assert rows.variance == pytest.approx(1 - (gain @ a.T).diagonal())


def test_what_equations_determine_is_found_over_many_batches() -> None:
    """40 rows of two entries, 30 batches of 20 with six equations each: 180 for 80 numbers."""
    x = drawn(40, 2)
    rows = Rows.unknown(40, 2, 1.0, x)
    for t in range(30):
        at = torch.randperm(40, generator=generator(t, "at"))[:20]
        a = drawn(40, 6, seed=t + 1)
        see(rows, at, a, a.T @ x[at].flatten(), noise=0.0)
    assert float((rows.mean - x).square().mean()) < 0.15
    assert float(rows.variance.mean()) < 0.15


def test_fresh_noise_averages_out_and_a_loud_batch_counts_for_little() -> None:
    x, at = drawn(30, 1), torch.arange(30)
    rows = Rows.unknown(30, 1, 1.0, x)
    off = []
    for t, loud in enumerate([1.0] * 20 + [100.0] * 20):
        a = drawn(30, 60, seed=t + 1)
        see(rows, at, a, a.T @ (x + loud * drawn(30, 1, seed=t + 100)).flatten(), noise=0.0)
        off.append(float((rows.mean - x).square().mean()))
    assert off[0] > 0.3
    assert off[19] < 0.1
    assert off[39] < 1.2 * off[19]


def test_nothing_is_learned_of_what_no_equation_is_about() -> None:
    rows = Rows.unknown(4, 2, 0.5, drawn(1))
    zero = torch.zeros(8, 8, dtype=torch.float64)
    rows.see(torch.arange(4), zero, zero[0], 1.0, 3, prior=0.5)
    assert float(rows.mean.abs().max()) == 0.0
    assert rows.variance.tolist() == [0.5] * 4


def test_a_row_that_stands_twice_in_a_batch_is_written_once() -> None:
    rows = Rows.unknown(3, 1, 1.0, drawn(1))
    a = torch.eye(3, dtype=torch.float64)
    see(rows, torch.tensor([0, 0, 2]), a, torch.tensor([0.2, 0.4, 0.1], dtype=torch.float64), 0.0)
    told = rows.mean.flatten().tolist()
    assert told[0] == pytest.approx(3 * told[2], rel=1e-6)
    assert told[1] == 0.0
