"""MixMatch: its pieces, and the completion variants built on it."""

from __future__ import annotations

import pytest
import torch
from attack_views import make_view, measure, rng
from sampled import sampled
from torch import Tensor, nn

from vflsec.core.view import Known
from vflsec.errors import ConfigError
from vflsec.inference import mixmatch as mm
from vflsec.plugins import registry


def test_sharpening() -> None:
    """Temperature 1 changes nothing; shares add up to one; the largest share grows."""
    p = torch.softmax(torch.randn(20, 5, generator=rng(), dtype=torch.float64), 1)
    assert mm.sharpen(p, 1.0) == pytest.approx(p)
    sharp = mm.sharpen(p, 0.8)
    assert sharp.sum(1) == pytest.approx(torch.ones(20, dtype=torch.float64))
    assert bool((sharp.amax(1) >= p.amax(1)).all())


def test_mixing_weights_favour_the_row_itself_and_mixed_shares_add_up() -> None:
    draws = mm._draw([rng(0), rng(1)], mm.MixMatch(epochs=1, iterations=500), 100)
    assert draws.weight.shape == (500, 2)
    assert float(draws.weight.min()) >= 0.5
    assert float(draws.weight.max()) <= 1.0
    assert not torch.equal(draws.weight[:, 0], draws.weight[:, 1])
    y = nn.functional.one_hot(torch.randint(3, (2, 32), generator=rng()), 3).double()
    at = draws.order[0] + torch.tensor([[0], [32]])
    mixed = mm.mix(y, at, draws.weight[0])
    assert mixed.sum(2) == pytest.approx(torch.ones(2, 32, dtype=torch.float64))
    assert mm.mix(y, at, torch.ones(2)) == pytest.approx(y)


def compute_losses(logits: Tensor, target: Tensor, labelled: int, weight: float) -> Tensor:
    """Loss (R,) of mixed rows (R, 2b, C) whose first `labelled` came from labelled ones."""
    log_p = torch.log_softmax(logits, dim=-1)
    known = -(target * log_p)[:, :labelled].sum(-1).mean(1)
    free = (log_p.exp() - target)[:, labelled:].square().mean((1, 2))
    return known + weight * free


def test_equal_shares_cost_nothing_and_labelled_rows_cost_cross_entropy() -> None:
    logits = torch.randn(1, 6, 3, generator=rng(), dtype=torch.float64)
    target = torch.softmax(logits, -1).clone()
    target[0, :2] = torch.eye(3, dtype=torch.float64)[:2]
    found = compute_losses(logits, target, 2, weight=50.0)
    expected = nn.functional.cross_entropy(logits[0, :2], torch.tensor([0, 1]))
    assert float(found) == pytest.approx(float(expected))


def test_without_averaging_the_last_weights_answer() -> None:
    """An average of decay 0 is the model; otherwise it starts near it and slows down."""
    now, average = torch.randn(50, generator=rng()), torch.randn(50, generator=rng(1))
    mm.follow(average, now, 0.0, 7)
    assert torch.equal(average, now)
    for t, keep in [(0, 0.1), (8, 0.5), (10**6, 0.99)]:
        average = torch.zeros(50)
        mm.follow(average, now, 0.99, t)
        assert average == pytest.approx((1 - keep) * now)


def test_settings_are_checked_and_published_ones_are_reachable() -> None:
    full = mm.MixMatch(epochs=25, iterations=1024)
    assert full.steps == 25600
    assert (full.temperature, full.alpha, full.weight, full.batch) == (0.8, 0.75, 50.0, 16)
    assert (full.lr, full.decay, full.shrink) == (2e-3, 0.999, 0.02)
    with pytest.raises(ConfigError, match="temperature"):
        mm.MixMatch(temperature=0.0)
    with pytest.raises(ConfigError, match="mixmatch: the key"):
        registry.attacks.create("model_completion", {"mixmatch": {"tempratur": 1.0}})


@pytest.mark.parametrize("variant", sampled(["mixmatch", "mixmatch_frozen"]))
def test_an_embedding_that_is_the_label_is_read(variant: str) -> None:
    y = torch.randint(3, (240,), generator=rng())
    z = 3.0 * nn.functional.one_hot(y, 3).float()
    torch.manual_seed(0)
    view = make_view(y, columns=z, bottom=nn.Linear(3, 3), known=12, test=60)
    before = [p.clone() for p in view.models[view.party]["bottom"].parameters()]
    params = {"variants": (variant,), "mixmatch": {"epochs": 3}}
    guess = registry.attacks.create("model_completion", params).infer(view, rng())
    assert measure(guess, y, "accuracy", rows=view.targets["test"]) > 0.98
    after = view.models[view.party]["bottom"].parameters()
    assert all(torch.equal(a, b) for a, b in zip(before, after))


def test_a_few_labels_name_clusters() -> None:
    """Two strips in two columns: one known row a class and 400 free ones."""
    y = torch.randint(2, (500,), generator=rng(4))
    x = torch.randn(500, 2, generator=rng(5))
    x[:, 0] = 1.7 * (2.0 * y - 1) + 0.35 * x[:, 0]
    view = make_view(y, columns=x, known=4, test=100)
    attack = registry.attacks.create("model_completion", {"variants": ("mixmatch_frozen",)})
    rows = view.targets["test"]
    assert measure(attack.infer(view, rng()), y, rows=rows) > 0.95


@pytest.mark.parametrize("classes", [2, 3, 10])
@pytest.mark.parametrize("weight", [0.0, 0.3, 38.5])
def test_slopes_are_what_the_graph_of_the_losses_gives(classes: int, weight: float) -> None:
    logits = (2 * torch.randn(7, 32, classes, generator=rng())).requires_grad_()
    target = torch.softmax(torch.randn(7, 32, classes, generator=rng(1)), -1)
    (graph,) = torch.autograd.grad(compute_losses(logits, target, 16, weight).sum(), logits)
    found = mm.compute_slopes(logits, target, 16, weight)
    assert found.is_contiguous()  # else products on it round otherwise
    assert (found - graph).abs().max() <= 1e-6 * graph.abs().max()


def test_a_batch_is_of_own_rows_outside_the_fold() -> None:
    """Every row tells its replica, its number and where it is from."""
    known = [torch.stack([torch.full((6,), r), torch.arange(6), torch.zeros(6)], 1).float()
             for r in range(2)]  # fmt: skip
    free = [torch.stack([torch.full((5,), r), torch.arange(5), torch.ones(5)], 1).float()
            for r in range(2)]  # fmt: skip
    fold = torch.tensor([0, 0, 1, 1, 2, 2])
    grants = [Known(torch.arange(6), torch.arange(6) % 2) for _ in range(2)]
    pool = mm._Pool.of(known, grants, free, [fold, fold], 4, 2)
    draws = mm._draw([rng(s) for s in range(2)], mm.MixMatch(batch=4, epochs=1, iterations=50), 5)
    seen: dict[int, set[int]] = {}
    for t in range(50):
        x, hot = pool.batch(draws, t)
        assert x.shape == (8, 8, 3)
        for c in range(8):
            assert (x[c, :, 0] == c // 4).all()
            assert x[c, :, 2].tolist() == [0.0] * 4 + [1.0] * 4
            rows = x[c, :4, 1].long()
            assert (fold[rows] != c % 4).all()
            assert hot[c].argmax(1).tolist() == (rows % 2).tolist()
            seen.setdefault(c, set()).update(rows.tolist())
    assert [len(seen[c]) for c in range(8)] == [4, 4, 4, 6] * 2
