"""Leading eigenvectors of how rows of one batch stand to each other."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from vflsec.core.rng import generator
from vflsec.inference import batch_relations


def visits(n: int, epochs: int, batch: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Rows, epochs and steps (v,) of `n` rows that come once an epoch, in new batches each."""
    g = generator(seed, "visits")
    place = torch.cat([torch.randperm(n, generator=g) for _ in range(epochs)])
    turn = torch.arange(n).repeat(epochs)
    epoch = torch.arange(epochs).repeat_interleave(n)
    return place, epoch, epoch * -(-n // batch) + turn // batch


def eigenvectors(*of: Tensor) -> Tensor:
    """Where there are any."""
    found = batch_relations.find_leading(*of)
    assert found is not None
    return found


def dense(g: Tensor, place: Tensor, step: Tensor, n: int) -> Tensor:
    """The symmetric form (n, n) of S, made as it is written."""
    s = torch.zeros(n, n, dtype=torch.float64)
    for t in step.unique():
        of = (step == t).nonzero().squeeze(1)
        h = torch.nn.functional.normalize(g[of] - g[of].mean(0), dim=1)
        for a, i in enumerate(place[of]):
            for b, j in enumerate(place[of]):
                s[i, j] += h[a] @ h[b]
    return s / torch.bincount(place).double().unsqueeze(1)


def test_it_finds_the_eigenvectors_of_the_matrix_that_it_does_not_make() -> None:
    n = 40
    place, epoch, step = visits(n, 6, 9)
    y = torch.arange(n) % 3
    g = torch.randn(len(place), 5, generator=generator(1, "g"), dtype=torch.float64)
    g += 4 * torch.eye(5, dtype=torch.float64)[y[place]]
    found = eigenvectors(g, place, epoch, step)
    assert found.shape == (n, batch_relations.KEPT)
    first = torch.linalg.eigh(dense(g, place, step, n)).eigenvectors.flip(1)[:, :2]
    off = found[:, :2] - first @ (first.T @ found[:, :2])
    assert float(off.norm() / found[:, :2].norm()) < 1e-3


def test_what_a_batch_is_turned_by_changes_nothing() -> None:
    place, epoch, step = visits(60, 5, 16)
    g = torch.randn(len(place), 4, generator=generator(2, "g"), dtype=torch.float64)
    g[:, 0] += 6 * (place % 2)
    plain = eigenvectors(g, place, epoch, step)
    drawn = torch.randn(int(step.max()) + 1, 4, 4, generator=generator(3, "q"), dtype=g.dtype)
    turned = (torch.linalg.qr(drawn).Q[step] @ g.unsqueeze(2)).squeeze(2)
    turned *= (10.0 ** (step % 7 - 3).double()).unsqueeze(1)
    found = eigenvectors(turned, place, epoch, step)
    assert torch.allclose(found, plain, atol=1e-4 * float(plain.abs().max()))
    shuffled = torch.randperm(len(place), generator=generator(4, "p"))
    again = eigenvectors(*(t[shuffled] for t in (g, place, epoch, step)))
    assert torch.equal(again, plain)


@pytest.mark.parametrize(("most", "read"), [(1 << 22, 10), (60 * 4 * 7, 7), (1, 4)])
def test_of_long_trainings_epochs_evenly_spread_are_read(
    monkeypatch: pytest.MonkeyPatch, most: int, read: int
) -> None:
    monkeypatch.setattr(batch_relations, "MOST", most)
    place, epoch, step = visits(60, 10, 16)
    g = torch.randn(len(place), 4, generator=generator(2, "g"), dtype=torch.float64)
    at = torch.linspace(0, 9, read).round().long()
    of = torch.isin(epoch, at)
    part = eigenvectors(g[of], place[of], epoch[of], step[of])
    assert torch.equal(eigenvectors(g, place, epoch, step), part)


def test_batches_of_the_same_rows_every_time_are_not_read() -> None:
    """Nor nearly the same: 60 rows in batches of 16 without an end of the epoch."""
    rows, epoch = torch.arange(60).repeat(10), torch.arange(10).repeat_interleave(60)
    g = torch.randn(600, 4, generator=generator(2, "g"), dtype=torch.float64)
    fixed = epoch * 4 + rows // 16
    assert batch_relations.find_leading(g, rows, epoch, fixed) is None
    for across in (7, 9, 16, 23):
        assert batch_relations.find_leading(g, rows, epoch, torch.arange(600) // across) is None
    assert batch_relations.find_leading(g[:60], rows[:60], epoch[:60], fixed[:60]) is None
    assert batch_relations.find_leading(g, rows, epoch, epoch) is not None  # one batch of all
    assert batch_relations.find_leading(g, *visits(60, 10, 30)) is not None
    assert batch_relations.find_leading(g, *visits(60, 10, 1)) is not None


def test_few_rows_equal_messages_and_batches_of_one_row_end_in_numbers() -> None:
    place, epoch, step = visits(3, 2, 2)
    g = torch.full((6, 2), 0.1, dtype=torch.float64)
    found = eigenvectors(g, place, epoch, step)
    assert found.shape == (3, 3)
    assert bool(torch.isfinite(found).all())
    assert float(found.abs().max()) == 0.0
    place, epoch, step = visits(50, 3, 7)
    same = torch.tensor([0.1, 0.7, 0.3], dtype=torch.float64).expand(len(place), 3)
    assert float(eigenvectors(same, place, epoch, step).abs().max()) == 0.0
