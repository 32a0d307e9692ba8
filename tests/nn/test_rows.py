"""Rows as a table: columns' means and spreads, whole or in pieces, and sums by group."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vflsec.core.recorder_stores import _in_order
from vflsec.core.rng import generator
from vflsec.nn.rows import scale_blocks, scale_columns, spread, sums


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(1, 3), (7, 1), (5000, 4)])
def test_is_what_torch_says(shape: tuple[int, int], dtype: torch.dtype) -> None:
    x = 5 + 3 * torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=dtype)
    bound = 1e-6 if dtype == torch.float32 else 1e-14
    for mine, theirs in zip(spread(x), torch.std_mean(x, dim=0, correction=0), strict=True):
        assert mine.shape == (shape[1],)
        assert (mine - theirs).abs().max() <= bound * 8


@pytest.mark.parametrize("value", [0.1, -1e6, 3e-7, 0.0])
def test_a_constant_column_has_no_spread(value: float) -> None:
    """A mean of many equal numbers is rounded; divided by that error, a constant would be ones."""
    x = torch.full((10_007, 2), value)
    x[:, 1] += torch.arange(10_007)
    sd, mean = spread(x)
    assert float(sd[0]) == 0.0
    assert float(mean[0]) == float(x[0, 0])
    assert float(sd[1]) == pytest.approx(2888.77, rel=1e-3)


def test_large_offsets_do_not_drown_small_spreads() -> None:
    x = 1e4 + torch.randn((4000, 1), generator=torch.Generator().manual_seed(1)) / 16
    exact = x.double().std(0, correction=0)
    assert float(spread(x)[0]) == pytest.approx(float(exact), rel=1e-5)


def test_of_no_rows_nothing_is_known() -> None:
    assert all(torch.isnan(v).all() for v in spread(torch.empty((0, 3))))


def test_parts_are_one_table() -> None:
    x = torch.randn((5000, 3), generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    for mine, whole in zip(spread(x[:30], x[30:]), spread(x), strict=True):
        assert (mine - whole).abs().max() < 1e-14


def test_scaled_columns_have_mean_0_and_spread_1_whole_and_in_pieces() -> None:
    x = 3 + 2 * torch.randn((5000, 3), generator=torch.Generator().manual_seed(3))
    scaled = scale_columns(x)
    whole = scaled.take(slice(None))
    assert np.abs(whole.mean(0)).max() < 1e-5
    assert whole.std(0) == pytest.approx(1, abs=1e-5)
    pieces = list(scaled.pieces(40))
    assert len(pieces) > 1
    assert np.array_equal(np.concatenate(pieces), whole[40:])
    assert np.array_equal(scaled.take(slice(40, None), [2]), whole[40:, [2]])


def test_no_block_drowns_another() -> None:
    g = torch.Generator().manual_seed(4)
    blocks = [torch.randn((3000, k), generator=g).double() * 10**k for k in (1, 4)]
    whole = scale_blocks(blocks).take(torch.arange(3000))
    assert whole[:, :1].var() == pytest.approx(1)
    assert whole[:, 1:].var(0).sum() == pytest.approx(1)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_sums_are_those_of_rows_one_after_the_other(device: str) -> None:
    g = generator(0, "sums")
    value = torch.randn(500, 3, generator=g, dtype=torch.float64) * torch.logspace(-8, 8, 3)
    place = torch.randint(7, (500,), generator=g)
    want = torch.zeros(9, 3, dtype=torch.float64)
    for at, x in zip(place.tolist(), value, strict=True):
        want[at] += x
    found = [sums(value.to(device), place.to(device), 9).cpu() for _ in range(5)]
    if device == "cpu":
        assert torch.equal(found[0], want)
        sorted_first = torch.zeros_like(want).index_put_((place,), value, accumulate=True)
        assert torch.equal(sorted_first, want)  # what a GPU is asked for
    torch.testing.assert_close(found[0], want, rtol=1e-13, atol=0)
    assert all(torch.equal(found[0], again) for again in found)
    assert sums(value[:, 0], place, 9).shape == (9,)
    assert sums(value[:0], place[:0], 2).tolist() == [[0.0] * 3] * 2


def test_rows_that_come_again_are_written_alike_in_any_order() -> None:
    g = generator(1, "sums")
    x, rows = torch.randn(2, 9, 3, generator=g), torch.randint(4, (2, 9), generator=g)
    once, last = _in_order(x, rows, adds=True), _in_order(x, rows, adds=False)
    for r in range(2):
        for row in rows[r].unique():
            at = (rows[r] == row).nonzero().squeeze(1)
            torch.testing.assert_close(once[r, at].sum(0), x[r, at].sum(0))
            assert int((once[r, at] != 0).any(1).sum()) == 1
            assert torch.equal(last[r, at], x[r, at[-1:]].expand(len(at), -1))
    whole = torch.ones(2, 9, dtype=torch.int64)
    assert torch.equal(_in_order(whole, rows, adds=True), whole)
