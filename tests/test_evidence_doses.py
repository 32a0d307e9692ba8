"""The leak that is trained: the same share of rows goes out as it is, the rest tells nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from vflsec.core.message import Message
from vflsec.core.policy import Own
from vflsec.core.rng import Streams


@pytest.fixture
def script(benchmark_script: Callable[[str], Any]) -> Any:
    return benchmark_script("calibration_doses")


def test_the_same_rows_are_forgotten_in_every_message(script: Any) -> None:
    policy, n = script.Forgets(), 4000
    own = Own("active", torch.tensor([0.0, 0.8, 1.0], dtype=torch.float64), Streams([0, 1, 2]))
    rows = torch.arange(n).expand(3, n)
    d = torch.randn(3, n, 6, generator=torch.Generator().manual_seed(0))
    kept = []
    for order in (torch.arange(n), torch.arange(n).flip(0)):
        message = Message("gradient", "active", "passive1", d[:, order], rows[:, order])
        out = policy.outgoing(message, own)
        same = (out == message.tensor).all(2)
        kept.append(same[:, order.argsort()])
        hidden = out[2].flatten()
        assert float(hidden.square().mean() / d[2].square().mean()) == pytest.approx(1, abs=0.05)
        assert (
            abs(float(torch.corrcoef(torch.stack([hidden, message.tensor[2].flatten()]))[0, 1]))
            < 0.03
        )
    assert torch.equal(*kept)
    assert kept[0][0].all()
    assert float(kept[0][1].double().mean()) == pytest.approx(0.2, abs=0.01)
    assert not kept[0][2].any()


def test_audits_are_sorted_by_how_large_the_leak_is_for_them(script: Any) -> None:
    row = {"attack": "direction", "split": "train", "share": 0.2, "found": True}
    real = [row | {"advantage": a, "detectable": d} for a, d in ((0.1, 0.1), (0.3, 0.4))]
    assert [script._relative(r, real) for r in real] == pytest.approx([2.0, 0.5])
    (line,) = script.lines([], real)
    assert (line.planted[1], line.trained) == (0, (2, 2, pytest.approx(0.2)))
    page = script.text([line], real, 1.0)
    assert "| direction, train | 0.2 |  |  |  |  | 2 of 2 (16 to 100 %) | +0.200 |" in page
    assert "| 2 and more | 1 | 1 of 1 (3 to 100 %) |" in page
