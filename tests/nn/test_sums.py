"""Sums by group: added in the order in which rows stand, by either of the kernels."""

from __future__ import annotations

import pytest
import torch

from vflsec.core.recorder_stores import _in_order
from vflsec.core.rng import generator
from vflsec.nn.rows import sums


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
