"""What messages of rows share is taken away: of a batch, and of a place in batches."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from attack_views import PARTY, normal, rng, tables, with_shared_noise
from torch import Tensor

from vflsec.core.batch_centring import FIRST, Centring, is_shared
from vflsec.core.channel import Recorder
from vflsec.core.message import Message

ROWS, BATCH, WIDTH = 320, 32, 5


def shuffled(epochs: int, seed: int) -> list[Tensor]:
    """Ids (R = 1, b) of the batches of all epochs, in an order drawn for each."""
    g = rng(seed)
    orders = [torch.randperm(ROWS, generator=g) for _ in range(epochs)]
    return [part.unsqueeze(0) for order in orders for part in order.split(BATCH)]


def likeness(a: Tensor, b: Tensor) -> float:
    """Correlation of two tables (n, d), columns centred."""
    a, b = a - a.mean(0), b - b.mean(0)
    return float((a * b).sum() / (a.norm() * b.norm()))


def freed(batches: list[tuple[Tensor, Tensor]]) -> Tensor:
    """The mean (n, d) of what is left of batches (1, b, d) of rows (1, b)."""
    kept, total, often = Centring(), torch.zeros(ROWS, WIDTH).double(), torch.zeros(ROWS, 1)
    kept.begin([(x, None) for x, _ in batches[:FIRST]])
    for k, (x, rows) in enumerate(batches):
        total[rows[0]] += kept.freed(x, learn=k >= FIRST)[0]
        often[rows[0]] += 1
    return total / often


def test_of_one_pass_the_mean_of_each_batch_is_gone_exactly() -> None:
    plain = normal(ROWS, WIDTH)
    wanted, passed = torch.empty_like(plain), []
    for k, rows in enumerate(shuffled(1, 1)):
        passed.append((plain[rows] + 100 * normal(1, 1, WIDTH, seed=k), rows))
        wanted[rows[0]] = plain[rows[0]] - plain[rows[0]].mean(0)
    assert torch.allclose(freed(passed), wanted, atol=1e-12)


def test_noise_that_begins_anew_with_every_batch_is_learned_at_each_place() -> None:
    """Also where it grows with the messages; the mean over epochs is all noise."""
    plain, noise, passed = normal(ROWS, WIDTH), normal(BATCH, WIDTH, seed=9), []
    mean = torch.zeros_like(plain)
    for k, rows in enumerate(shuffled(8, 2)):
        x = plain[rows] + (5 + k) * noise
        mean[rows[0]] += x[0] / 8
        passed.append((x, rows))
    value = freed(passed)
    assert likeness(mean, plain) < 0.1
    assert likeness(value, plain) > 0.95
    assert is_shared(mean, value)


@pytest.mark.parametrize(("whose", "told"), [("batch", True), ("place", True), ("row", False)])
def test_what_is_shared_is_told_from_what_is_not(whose: str, told: bool) -> None:
    held = tables(with_shared_noise(normal(640, WIDTH), whose), "embedding", shuffled=True)
    mean, left = (held["received", "embedding", f, PARTY].tensor for f in ("mean", "centred"))
    assert is_shared(mean, left) is told


def test_rows_without_noise_share_nothing() -> None:
    held = tables([normal(640, WIDTH)] * 3, "embedding", shuffled=True)
    mean, left = (held["received", "embedding", f, PARTY].tensor for f in ("mean", "centred"))
    assert not is_shared(mean, left)
    assert torch.equal(mean, left)


@pytest.mark.parametrize("whose", ["batch", "place", "row"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_replica_is_what_it_is_alone_and_stops_when_it_stops(
    dtype: torch.dtype, whose: str
) -> None:
    """Bit for bit, whatever the others share; folded from a whole recording too."""
    plain = torch.stack([normal(ROWS, WIDTH, seed=r) for r in range(3)]).to(dtype)
    ids = [torch.cat(r) for r in zip(*(shuffled(4, 5 + r) for r in range(3)), strict=True)]
    wanted = [(PARTY, "received", "gradient", f) for f in ("centred", "all")]
    several, alone = Recorder(wanted, 3, ROWS), Recorder(wanted, 1, ROWS)
    for k, rows in enumerate(ids):
        x = plain.gather(1, rows.unsqueeze(2).expand(-1, -1, WIDTH))
        for r, how in enumerate(("place", whose, "batch")):
            shape, seed = {"place": ((BATCH, WIDTH), 7), "batch": ((1, WIDTH), 50 + k),
                           "row": ((BATCH, WIDTH), 50 + k)}[how]  # fmt: skip
            x[r] += 9 * normal(*shape, seed=seed).to(dtype)
        alive = None if k < 20 else torch.tensor([True, k < 25, True])
        at: Any = {"phase": "train", "epoch": k // 10, "step": k}
        several.add(Message("gradient", "active", PARTY, x, rows=rows, **at), alive)
        if k < 25:
            alone.add(Message("gradient", "active", PARTY, x[1:2], rows=rows[1:2], **at), None)
    held, single = several.tables(1, [PARTY], "train"), alone.tables(0, [PARTY], "train")
    table = held["received", "gradient", "centred", PARTY]
    assert torch.equal(table.tensor, single["received", "gradient", "centred", PARTY].tensor)
    whole = held["received", "gradient", "all", PARTY]
    assert torch.equal(table.tensor, whole.folded("centred").tensor)
    assert torch.equal(table.rows, torch.arange(ROWS))
    assert int(table.step.max()) == 24
    assert (likeness(table.tensor, plain[1]) > 0.9) is (whose != "row")
