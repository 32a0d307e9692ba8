"""What messages of rows share is taken away: of a batch, and of a place in batches."""

from __future__ import annotations

import pytest
import torch
from attack_views import PARTY, rng, tables, with_shared_noise
from torch import Tensor

from vflsec.centring import Centring, shared
from vflsec.channel import Recorder
from vflsec.message import Message

ROWS, BATCH, WIDTH = 320, 32, 5


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=rng(seed), dtype=torch.float64)


def shuffled(epochs: int, seed: int) -> list[Tensor]:
    """Ids (R = 1, b) of the batches of all epochs, in an order drawn for each."""
    g = rng(seed)
    orders = [torch.randperm(ROWS, generator=g) for _ in range(epochs)]
    return [part.unsqueeze(0) for order in orders for part in order.split(BATCH)]


def likeness(a: Tensor, b: Tensor) -> float:
    """Correlation of two tables (n, d), columns centred."""
    a, b = a - a.mean(0), b - b.mean(0)
    return float((a * b).sum() / (a.norm() * b.norm()))


def test_of_one_pass_the_mean_of_each_batch_is_gone_exactly() -> None:
    plain, kept = normal(ROWS, WIDTH), Centring(1, ROWS)
    wanted = torch.empty_like(plain)
    for k, rows in enumerate(shuffled(1, 1)):
        kept.add(plain[rows] + 100 * normal(1, 1, WIDTH, seed=k), rows)
        wanted[rows[0]] = plain[rows[0]] - plain[rows[0]].mean(0)
    value, came = kept.of(0)
    assert bool(came.all())
    assert torch.allclose(value, wanted, atol=1e-12)


def test_noise_that_begins_anew_with_every_batch_is_learned_at_each_place() -> None:
    """Also where it grows with the messages; the mean over epochs is all noise."""
    plain, noise, kept = normal(ROWS, WIDTH), normal(BATCH, WIDTH, seed=9), Centring(1, ROWS)
    mean = torch.zeros_like(plain)
    for k, rows in enumerate(shuffled(8, 2)):
        x = plain[rows] + (5 + k) * noise
        mean[rows[0]] += x[0] / 8
        kept.add(x, rows)
    value, _ = kept.of(0)
    assert likeness(mean, plain) < 0.1
    assert likeness(value, plain) > 0.95
    assert shared(mean, value)


@pytest.mark.parametrize(("whose", "told"), [("batch", True), ("place", True), ("row", False)])
def test_what_is_shared_is_told_from_what_is_not(whose: str, told: bool) -> None:
    held = tables(with_shared_noise(normal(640, WIDTH), whose), "embedding", shuffled=True)
    mean, left = (held["received", "embedding", f, PARTY].tensor for f in ("mean", "centred"))
    assert shared(mean, left) is told


def test_rows_without_noise_share_nothing() -> None:
    held = tables([normal(640, WIDTH)] * 3, "embedding", shuffled=True)
    mean, left = (held["received", "embedding", f, PARTY].tensor for f in ("mean", "centred"))
    assert not shared(mean, left)
    assert likeness(mean, left) > 0.98


def test_a_replica_is_what_it_is_alone_and_stops_when_it_stops() -> None:
    """Bit for bit, in both precisions; folded from a whole recording too."""
    for dtype in (torch.float64, torch.float32):
        plain = torch.stack([normal(ROWS, WIDTH, seed=r) for r in range(3)]).to(dtype)
        ids = [torch.cat(r) for r in zip(*(shuffled(4, 5 + r) for r in range(3)), strict=True)]
        alone = Centring(1, ROWS)
        wanted = [(PARTY, "received", "gradient", f) for f in ("centred", "all")]
        recorder = Recorder(wanted, 3, ROWS)
        for k, rows in enumerate(ids):
            noise = 9 * normal(3, 1, WIDTH, seed=100 + k).to(dtype)
            x = plain.gather(1, rows.unsqueeze(2).expand(-1, -1, WIDTH)) + noise
            alive = None if k < 20 else torch.tensor([True, k < 25, True])
            at = {"phase": "train", "epoch": k // 10, "step": k}
            message = Message("gradient", "active", PARTY, x, rows=rows, **at)
            recorder.add(message, alive)
            if k < 25:
                alone.add(x[1:2], rows[1:2])
        held = recorder.tables(1, [PARTY], "train")
        table = held["received", "gradient", "centred", PARTY]
        whole = held["received", "gradient", "all", PARTY]
        value, came = alone.of(0)
        assert torch.equal(table.rows, came.nonzero().squeeze(1))
        assert torch.equal(table.tensor, value[table.rows])
        assert torch.equal(table.tensor, whole.folded("centred").tensor)
        assert int(table.step.max()) == 24
