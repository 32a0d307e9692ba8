"""Max-norm, noise, compression, discrete, PPDL and gradient averaging: what each does to a
batch, what it promises, and what it does not stop."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from bench import make, message, owner, rows_of_gradients
from by_hand import rank_rows
from torch import Tensor

from vflsec.core.privacy_usage import RunFacts, Uses
from vflsec.defenses.ppdl import accepted
from vflsec.errors import ConfigError, PolicyError


def send(policy: Any, strengths: list[float], x: Tensor, **rest: Any) -> Tensor:
    own = owner(policy, strengths)
    return policy.outgoing(message(x, **rest), own)


def auc(scores: Tensor, y: Tensor) -> float:
    return rank_rows(scores.numpy(), y.numpy() == 1)


ALL = ["max_norm", "noise", "compression", "discrete", "ppdl", "gradient_average"]


@pytest.mark.parametrize("name", ALL)
def test_refuses_a_payload_without_rows(name: str) -> None:
    with pytest.raises(PolicyError, match="cannot treat gradient"):
        make(name).outgoing(message(torch.ones(1, 4)), owner(make(name), [1.0]))


@pytest.mark.parametrize(
    "name",
    ["max_norm", "compression", "discrete", "gradient_average", "iso", "marvell", "coae", "mixup",
     "dcor", "mid"],
)  # fmt: skip
def test_no_guarantee(name: str) -> None:
    found = make(name).guarantee(1.0, RunFacts(epochs=5))
    assert (found.epsilon, found.protects) == (None, "none")


# max_norm


def test_max_norm_gives_all_rows_the_same_expected_length() -> None:
    x = torch.tensor([[3.0, 0.0], [0.1, 0.2], [1.0, -1.0]], dtype=torch.float64)
    many = x.repeat(20_000, 1).unsqueeze(0)
    out = send(make("max_norm"), [1.0], many)[0].reshape(20_000, 3, 2)
    second = out.square().sum(2).mean(0) / 9.0
    assert second[0].item() == pytest.approx(1.0, abs=1e-12)
    assert all(0.97 < s < 1.03 for s in second.tolist())
    assert torch.equal(out[:, 0], x[0].expand(20_000, 2))  # the longest row is unchanged


@pytest.mark.parametrize("ratio", [0.05, 0.5])
def test_max_norm_does_not_stop_norms(ratio: float) -> None:
    """Squares are equal on average and lengths are not: it was said that they tell nothing."""
    y = torch.arange(4000) % 2
    x = torch.where(y == 1, 1.0, ratio).double().reshape(1, -1, 1) * torch.eye(2)[y].double()
    own, policy = owner(make("max_norm"), [1.0]), make("max_norm")
    lengths = torch.stack([policy.outgoing(message(x), own)[0].norm(dim=1) for _ in range(30)])
    assert lengths[0][y == 0].mean().item() == pytest.approx(0.79, abs=0.02)
    assert auc(lengths[0], y) == pytest.approx(0.68, abs=0.02)
    assert auc(lengths.mean(0), y) == pytest.approx(0.955, abs=0.015)


def test_max_norm_keeps_every_row_on_its_line() -> None:
    x, _ = rows_of_gradients()
    out = send(make("max_norm"), [1.0], x)
    cos = torch.cosine_similarity(out, x, dim=2).abs()
    assert torch.allclose(cos, torch.ones_like(cos), atol=1e-12)


@pytest.mark.parametrize(
    ("ratio", "flips"), [(0.05, 0.48), (0.1, 0.46), (0.2, 0.419), (0.5, 0.282), (0.9, 0.019)]
)
def test_max_norm_flips_short_rows_only(ratio: float, flips: float) -> None:
    x = torch.full((1, 40_000, 1), ratio, dtype=torch.float64)
    x[0, 0] = 1.0
    out = send(make("max_norm"), [1.0], x)[0, 1:, 0]
    assert (out < 0).double().mean().item() == pytest.approx(flips, abs=0.01)


def test_max_norm_leaves_zero_rows_and_does_not_stop_directions() -> None:
    x, y = rows_of_gradients(b=400)
    x[0, 5] = 0.0
    out = send(make("max_norm"), [1.0], x)[0]
    assert torch.equal(out[5], x[0, 5])
    assert auc(x[0].norm(dim=1), y[0]) > 0.98
    assert auc(out.norm(dim=1), y[0]) < 0.8
    assert auc(out.sum(1), y[0]) > 0.85


# noise


@pytest.mark.parametrize(("kind", "sd"), [("gaussian", 0.5), ("laplace", 0.5 * math.sqrt(2))])
def test_noise_has_the_stated_scale(kind: str, sd: float) -> None:
    x = torch.zeros(1, 30_000, 2, dtype=torch.float64)
    out = send(make("noise", distribution=kind), [0.5], x)
    assert out.std().item() == pytest.approx(sd, rel=0.03)


@pytest.mark.parametrize(("kind", "order"), [("gaussian", 2), ("laplace", 1)])
def test_clipped_noise_shortens_rows_in_units_of_their_own_loss(kind: str, order: int) -> None:
    """A mean loss over b rows makes rows 1/b as long; the clipping length means the row's own."""
    x, _ = rows_of_gradients(b=64)
    x[0, 0] *= 100
    x[0, 1] *= 1e-3
    policy = make("noise", distribution=kind, clip=0.5)
    out = send(policy, [1e-9], x / 64, scale=64.0)[0] * 64
    norms = torch.linalg.vector_norm(out, ord=order, dim=1)
    assert norms.max().item() == pytest.approx(0.5, rel=1e-6)
    assert torch.allclose(out[1], x[0, 1], atol=1e-7)
    loud = send(policy, [3.0], torch.zeros(1, 30_000, 2).double(), scale=64.0) * 64
    assert loud.std().item() == pytest.approx(1.5 * (1 if order == 2 else math.sqrt(2)), rel=0.03)


def test_noise_promises_only_what_it_clips() -> None:
    assert make("noise").guarantee(1.0, RunFacts(uses=Uses(3))).epsilon is None
    gauss = make("noise", distribution="gaussian", clip=1.0)
    one = gauss.guarantee(1.0, RunFacts(uses=Uses(1)))
    assert one.epsilon == pytest.approx(9.997, abs=1e-3)  # sensitivity 2 C, noise C
    assert gauss.guarantee(8.0, RunFacts(uses=Uses(100))).epsilon == pytest.approx(
        13.2067, abs=1e-3
    )
    laplace = make("noise", clip=1.0).guarantee(4.0, RunFacts(uses=Uses(10)))
    assert (laplace.epsilon, laplace.delta, laplace.releases) == (pytest.approx(5.0), 0.0, 10)
    assert "top model's weights" in laplace.sentence()


def test_noise_does_not_stop_averaging() -> None:
    x, y = rows_of_gradients(b=200)
    own = owner(make("noise"), [5.0])
    one = make("noise").outgoing(message(x), own)[0]
    many = sum(make("noise").outgoing(message(x), own)[0] for _ in range(100))
    assert auc(one.sum(1), y[0]) < 0.8
    assert auc(many.sum(1), y[0]) > 0.95


# compression


@pytest.mark.parametrize("keep", [0.75, 0.5, 0.25, 0.1, 0.001])
def test_compression_keeps_exactly_the_largest(keep: float) -> None:
    x, _ = rows_of_gradients(b=20, m=6)
    policy = make("compression")
    out = send(policy, [policy.from_natural("keep", keep)], x)[0].flatten()
    k = max(1, round(keep * 120))
    assert int((out != 0).sum()) == k
    assert out.abs()[out != 0].min() >= x[0].flatten().abs()[out == 0].max()
    again = send(policy, [policy.from_natural("keep", keep)], out.reshape(1, 20, 6))
    assert torch.equal(again[0].flatten(), out)


def test_compression_keeps_all_at_keep_one_and_counts_ties() -> None:
    x = torch.ones(1, 10, 2, dtype=torch.float64)
    policy = make("compression")
    assert policy.from_natural("keep", 1) == 0.0
    assert int((send(policy, [1.0], x) != 0).sum()) == 10


def test_residuals_follow_sample_ids_and_lose_nothing() -> None:
    """Over shuffled batches: sum sent + what is held back = sum of the true rows, by id."""
    policy = make("compression", residual=True)
    own = owner(policy, [4.0])
    g = torch.Generator().manual_seed(0)
    truth, sent = torch.zeros(30, 3).double(), torch.zeros(30, 3).double()
    for _ in range(6):
        order = torch.randperm(30, generator=g)
        for ids in order.split(10):
            x = torch.randn(1, 10, 3, generator=g, dtype=torch.float64)
            out = policy.outgoing(message(x, rows=ids.unsqueeze(0)), own)
            truth[ids] += x[0]
            sent[ids] += out[0]
    (held,) = own.memory.values()
    assert torch.allclose(sent + held[0], truth, atol=1e-12)
    assert not torch.allclose(sent, truth, atol=0.1)


def test_compression_does_not_stop_the_norm() -> None:
    x, y = rows_of_gradients(b=200)
    out = send(make("compression"), [3.0], x)[0]
    assert auc(out.norm(dim=1), y[0]) > 0.95


# discrete


def test_discrete_levels_error_symmetry_and_repetition() -> None:
    x, _ = rows_of_gradients(b=200)
    policy = make("discrete", bound=1.0, clip=True)
    s = policy.from_natural("bins", 6)
    out = send(policy, [s], x)[0]
    inside = x[0].abs() <= 1.0
    assert (out - x[0]).abs()[inside].max().item() <= 1 / 6 + 1e-12  # half a step of 2 / 6
    assert out.unique().numel() <= 7
    assert out.abs().max().item() == pytest.approx(1.0)
    assert torch.allclose(send(policy, [s], out.unsqueeze(0))[0], out, atol=1e-12)
    assert torch.allclose(send(policy, [s], -x)[0], -out, atol=1e-12)


@pytest.mark.parametrize("bins", [1, 2, 3, 5, 6, 7, 11, 12])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_discrete_stays_within_its_bound_whatever_the_bins(bins: int, dtype: torch.dtype) -> None:
    """Of 3, 7 and 11 bins the ends of the range were rounded outwards: 5, 9 and 13 levels."""
    x = rows_of_gradients(b=400)[0].to(dtype) * 2
    policy = make("discrete", bound=1.0, clip=True)
    out = send(policy, [policy.from_natural("bins", bins)], x)[0]
    assert out.abs().max().item() <= 1.0 + 1e-6
    assert out.unique().numel() == 2 * (bins // 2) + 1


def test_discrete_without_clipping_is_plain_rounding() -> None:
    x = torch.tensor([[[0.24, 0.26, 7.3, -0.9]]], dtype=torch.float64)
    out = send(make("discrete", bound=1.0), [0.25], x)  # step 0.5
    assert out[0, 0].tolist() == pytest.approx([0.0, 0.5, 7.5, -1.0])


def test_discrete_takes_its_bound_from_the_first_batch_and_keeps_it() -> None:
    x, _ = rows_of_gradients(b=200)
    policy = make("discrete")
    own = owner(policy, [0.25])
    first = policy.outgoing(message(x), own)[0]
    step = 4 * x[0].std().item() * 0.25
    ratio = first / step
    assert torch.allclose(ratio, ratio.round(), atol=1e-9)
    later = policy.outgoing(message(x / 3), own)[0] / step
    assert torch.allclose(later, later.round(), atol=1e-9)


def test_discrete_does_not_stop_directions() -> None:
    x, y = rows_of_gradients(b=200)
    assert auc(send(make("discrete"), [0.25], x)[0].sum(1), y[0]) > 0.95


# PPDL


def test_ppdl_scales_of_the_published_setting() -> None:
    policy = make("ppdl", share=0.5, sensitivity=1.0)
    assert policy.scales(320, 1.8) == pytest.approx((200, 400, 800))


@pytest.mark.parametrize("share", [0.75, 0.5, 0.25, 0.1])
def test_ppdl_sends_nothing_raw(share: float) -> None:
    """Every number sent is 0 or within the limit, at most c are sent, and none equals its input."""
    x, _ = rows_of_gradients(b=32, m=10)
    policy = make("ppdl", share=share, sensitivity=1.0)
    out = send(policy, [1 / 1.8], x / 32, scale=32.0)[0] * 32
    sent = out != 0
    assert out.abs().max().item() <= 1e-3 + 1e-12
    assert 0 < int(sent.sum()) <= int(share * 320)
    assert not bool(torch.isclose(out, x[0], rtol=1e-9, atol=0)[sent].any())


def test_ppdl_sequence_of_acceptances() -> None:
    """The bar moves on only after an acceptance; the visit ends at the most that may be sent."""
    import numpy as np

    query, bars = np.array([1.0, 3.0, 2.0, 5.0, 9.0]), np.array([2.0, 4.0, 0.0, 0.0, 0.0])
    assert accepted(query, bars, 5) == [1, 3, 4]
    assert accepted(query, bars, 2) == [1, 3]
    assert accepted(query, np.full(5, 10.0), 5) == []


def test_ppdl_with_no_noise_to_speak_of_sends_the_clipped_values() -> None:
    x = torch.tensor([[[0.5, -3.0], [0.0001, 2.0]]], dtype=torch.float64)
    policy = make("ppdl", share=1.0, limit=1.0, threshold=0.01)
    out = send(policy, [1e-9], x)[0]
    assert torch.allclose(out, torch.tensor([[0.5, -1.0], [0.0, 1.0]]).double(), atol=1e-6)


def test_ppdl_guarantee() -> None:
    found = make("ppdl").guarantee(0.5, RunFacts(uses=Uses(10)))
    assert (found.epsilon, found.releases) == (pytest.approx(20.0), 10)
    small = make("ppdl", sensitivity=1e-3)  # less than twice the limit
    assert small.guarantee(0.5, RunFacts(uses=Uses(10))).epsilon is None


def test_ppdl_does_not_stop_averaging_where_epsilon_is_large() -> None:
    x, y = rows_of_gradients(b=60)
    policy = make("ppdl", share=0.5, limit=1.0)
    own = owner(policy, [1e-4])
    many = sum(policy.outgoing(message(x), own)[0] for _ in range(30))
    assert auc(many.sum(1), y[0]) > 0.9


# gradient_average


def test_gradient_average_keeps_the_mean_and_nothing_else() -> None:
    x, _ = rows_of_gradients(b=50)
    out = send(make("gradient_average"), [1.0], x)[0]
    assert torch.allclose(out, x[0].mean(0).expand_as(out), atol=1e-15)
    half = send(make("gradient_average"), [0.5], x)[0]
    assert torch.allclose(half.mean(0), x[0].mean(0), atol=1e-15)
    with pytest.raises(ConfigError, match="strength must be a number in"):
        make("gradient_average").check_strength(1.5)


def test_gradient_average_does_not_stop_counting_classes_nor_half_of_it_ranking() -> None:
    """The mean row orders batches by their share of positives; partial averaging ranks rows."""
    rates, found = [], []
    for seed in range(30):
        x, y = rows_of_gradients(b=20, seed=seed, rate=0.1 + 0.02 * seed)
        rates.append(y.double().mean().item())
        found.append(send(make("gradient_average"), [1.0], x)[0, 0].sum().item())
    r = torch.corrcoef(torch.tensor([rates, found]))[0, 1].item()
    assert r > 0.95
    x, y = rows_of_gradients(b=200)
    assert auc(send(make("gradient_average"), [0.9], x)[0].sum(1), y[0]) > 0.98
