"""Self-supervised parts against closed forms and one-row-at-a-time references."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from vflsec.core.rng import Streams, generator
from vflsec.nn.replicas import Replicas
from vflsec.nn.ssl import (
    Queue,
    byol_distance,
    ema,
    info_nce,
    negative_cosine,
    nt_xent,
    predictor,
    projector,
)


def pair(r: int = 3, b: int = 5, d: int = 4) -> tuple[Tensor, Tensor]:
    g = generator(0, "ssl")
    return tuple(torch.randn(r, b, d, dtype=torch.float64, generator=g) for _ in range(2))  # type: ignore[return-value]


def cos(a: Tensor, b: Tensor) -> float:
    return float(a @ b / (a.norm() * b.norm()))


def test_negative_cosine_is_the_mean_over_rows() -> None:
    p, z = pair()
    want = [-sum(cos(p[r, i], z[r, i]) for i in range(5)) / 5 for r in range(3)]
    torch.testing.assert_close(negative_cosine(p, z), torch.tensor(want, dtype=torch.float64))
    assert negative_cosine(p, 3 * p).allclose(torch.tensor(-1.0, dtype=torch.float64), atol=1e-15)


def test_byol_distance_is_two_plus_twice_simsiam() -> None:
    p, z = pair()
    gap = byol_distance(p, z) - (2 + 2 * negative_cosine(p, z))
    assert float(gap.abs().max()) < 1e-12


@pytest.mark.parametrize("loss", [negative_cosine, byol_distance, nt_xent])
def test_the_second_argument_is_a_constant(loss: object) -> None:
    p, z = pair()
    p.requires_grad_()
    z.requires_grad_()
    got = loss(p, z).sum()  # type: ignore[operator]
    assert torch.autograd.grad(got, z, retain_graph=True, allow_unused=True) == (None,)
    assert float(torch.autograd.grad(got, p)[0].abs().sum()) > 0


def test_info_nce_against_a_loop_and_empty_queue() -> None:
    q, k = pair()
    negatives = torch.randn(3, 7, 4, dtype=torch.float64, generator=generator(1, "queue"))
    want = []
    for r in range(3):
        rows = []
        for i in range(5):
            up = math.exp(cos(q[r, i], k[r, i]) / 0.5)
            down = sum(math.exp(cos(q[r, i], n) / 0.5) for n in negatives[r])
            rows.append(-math.log(up / (up + down)))
        want.append(sum(rows) / 5)
    got = info_nce(q, k, negatives, 0.5)
    torch.testing.assert_close(got, torch.tensor(want, dtype=torch.float64))
    assert torch.equal(info_nce(q, k, negatives[:, :0]), torch.zeros(3, dtype=torch.float64))


def test_info_nce_stops_gradients_of_keys_and_queue() -> None:
    q, k = pair()
    queue = torch.randn(3, 7, 4, dtype=torch.float64, generator=generator(1, "queue"))
    for t in (q, k, queue):
        t.requires_grad_()
    got = info_nce(q, k, queue).sum()
    grads = torch.autograd.grad(got, [q, k, queue], allow_unused=True)
    assert float(grads[0].abs().sum()) > 0
    assert grads[1] is None
    assert grads[2] is None


def test_nt_xent_against_a_loop() -> None:
    own, other = pair(r=2, b=3)
    want = []
    for r in range(2):
        rows = torch.cat([own[r], other[r]])
        total = 0.0
        for i in range(6):
            partner = (i + 3) % 6
            up = math.exp(cos(rows[i], rows[partner]) / 0.5)
            down = sum(math.exp(cos(rows[i], rows[j]) / 0.5) for j in range(6) if j != i)
            total -= math.log(up / down)
        want.append(total / 6)
    torch.testing.assert_close(nt_xent(own, other), torch.tensor(want, dtype=torch.float64))


def test_losses_of_a_replica_ignore_its_company() -> None:
    p, z = pair()
    for loss in (negative_cosine, byol_distance, nt_xent):
        for r in range(3):
            alone = loss(p[[r, r]], z[[r, r]])
            assert torch.equal(alone[0], loss(p, z)[r])


@pytest.mark.parametrize("momentum", [0.0, 0.9, 1.0])
def test_ema_moves_parameters_and_no_buffer(momentum: float) -> None:
    online, target = (
        Replicas([nn.Sequential(nn.Linear(3, 16), nn.BatchNorm1d(16)) for _ in range(2)])
        for _ in range(2)
    )
    before = {k: v.clone() for k, v in target.params.items()}
    target.buffers["1.running_mean"] += 5
    ema(target, online, momentum)
    for k, v in target.params.items():
        if momentum == 0:
            assert torch.equal(v, online.params[k])
        elif momentum == 1:
            assert torch.equal(v, before[k])
        else:
            want = 0.9 * before[k] + (1 - 0.9) * online.params[k]
            torch.testing.assert_close(v, want)
    assert torch.equal(target.buffers["1.running_mean"], torch.full((2, 16), 5.0))


def test_queue_is_first_in_first_out_and_wraps() -> None:
    queue = Queue(8, 3, Streams([0, 1], "q", dtype=torch.float64))
    start = queue.keys.clone()
    assert torch.allclose(start.norm(dim=2), torch.ones(2, 8, dtype=torch.float64))
    batches = [torch.randn(2, 2, 3, dtype=torch.float64, generator=generator(i)) for i in range(5)]
    for i, b in enumerate(batches[:4]):
        queue.push(b)
        assert torch.equal(queue.keys[:, 2 * i + 2 :], start[:, 2 * i + 2 :])
    queue.push(batches[4])  # 4 pushes of 2 fill 8: the fifth replaces the first
    want = [nn.functional.normalize(batches[i], dim=-1) for i in (4, 1, 2, 3)]
    assert torch.equal(queue.keys, torch.cat(want, dim=1))


def test_published_parameter_counts() -> None:
    def count(m: nn.Module) -> int:
        return sum(p.numel() for p in m.parameters())

    assert count(projector(512, 512, 512)) == 790_016
    assert count(projector(512, 512, 128)) == 592_256
    assert count(predictor(512, 128)) == 131_840
