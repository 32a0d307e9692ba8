"""Marvell: the solver against published vectors, optimality and scale; the hook; its limits."""

from __future__ import annotations

import math

import pytest
import torch
from bench import message, owner, rows_of_gradients
from sampled import sampled

from vflsec.core.federation import Federation
from vflsec.defenses.marvell import least_power, solve
from vflsec.errors import ConfigError, PolicyError
from vflsec.plugins import registry
from vflsec.testing import small_stack

MARVELL = registry.defenses.create("marvell")

# u, v, d, g, p, P -> sumKL before, after, lam10, lam20, lam11, lam21
VECTORS = [
    ((1, 2, 10, 4, 0.25, 8), 5.5, 0.974424, 3.72544, 0.642849, 3.466755, 0),
    ((2, 1, 10, 4, 0.25, 8), 5.5, 0.521246, 5.439321, 0, 7.255276, 0.936307),
    ((1, 1, 10, 4, 0.5, 8), 4, 0.444444, 8, 0, 8, 0),
    ((0.01, 0.02, 128, 1, 0.25, 4), 107, 0.323768, 2.998232, 0.009969, 3.207261, 0),
    ((0.5, 0.5, 4, 2, 0.1, 1), 4, 1.245696, 0.943243, 0, 1.510814, 0),
    ((0, 0, 7, 1, 0.25, 0.5), math.inf, 1.93649, 0.46609, 0, 0.60172, 0),
    ((0, 0, 7, 1, 0.25, 1), math.inf, 0.97902, 0.95620, 0, 1.13139, 0),
    ((0, 0, 7, 1, 0.25, 4), math.inf, 0.24826, 3.94362, 0, 4.16915, 0),
]


def kl(s: object, u: float, v: float, d: int, g: float) -> float:
    """sumKL from its definition."""
    l10, l20, l11, l21 = (getattr(s, n) for n in ("lam10", "lam20", "lam11", "lam21"))
    across = (d - 1) * ((l20 + u) / (l21 + v) + (l21 + v) / (l20 + u)) if u + v else 2 * (d - 1)
    along = (l10 + u + g) / (l11 + v) + (l11 + v + g) / (l10 + u)
    return 0.5 * (across + along) - d


def spent(s: object, d: int, p: float) -> float:
    l10, l20, l11, l21 = (getattr(s, n) for n in ("lam10", "lam20", "lam11", "lam21"))
    return p * (l11 + (d - 1) * l21) + (1 - p) * (l10 + (d - 1) * l20)


@pytest.mark.parametrize(("given", "before", "after", "l10", "l20", "l11", "l21"), VECTORS)
def test_vectors(
    given: tuple[float, ...], before: float, after: float, l10: float, l20: float, l11: float,
    l21: float,
) -> None:  # fmt: skip
    found = solve(*given)  # type: ignore[arg-type]
    assert found.sum_kl == pytest.approx(after, abs=1e-5)
    assert (found.lam10, found.lam20, found.lam11, found.lam21) == pytest.approx(
        (l10, l20, l11, l21), abs=1e-5
    )
    assert solve(*given[:5], 0.0).sum_kl == pytest.approx(before)  # type: ignore[arg-type]


@pytest.mark.parametrize("c", sampled((10.0**k for k in range(-12, 13, 3)), every=4))
@pytest.mark.parametrize("row", VECTORS)
def test_the_same_problem_in_other_units(row: tuple, c: float) -> None:
    u, v, d, g, p, power = row[0]
    one, other = solve(u, v, d, g, p, power), solve(c * u, c * v, d, c * g, p, c * power)
    assert other.sum_kl == pytest.approx(one.sum_kl, rel=1e-8)
    for name in ("lam10", "lam20", "lam11", "lam21"):
        assert getattr(other, name) == pytest.approx(c * getattr(one, name), rel=1e-5, abs=1e-6 * c)


def problems(n: int) -> list[tuple[float, float, int, float, float, float]]:
    g = torch.Generator().manual_seed(0)
    out = []
    for _ in range(n):
        u, v, gap, power = (10.0 ** (torch.rand(4, generator=g).double() * 8 - 4)).tolist()
        d = int(torch.randint(1, 200, (1,), generator=g))
        p = float(torch.rand(1, generator=g)) * 0.96 + 0.02
        out.append((u, v, d, gap, p, power))
    return out


@pytest.mark.parametrize("given", sampled([(given,) for given in problems(40)], every=2))
def test_budget_order_value_and_optimality(given: tuple) -> None:
    """The budget is spent to 1e-9, lam1 >= lam2 >= 0, sumKL is what the definition says, and no
    random point of the same budget is better."""
    u, v, d, g, p, power = given
    s = solve(*given)
    assert spent(s, d, p) == pytest.approx(power, rel=1e-9)
    assert s.lam10 >= s.lam20 - 1e-12 * power
    assert s.lam11 >= s.lam21 - 1e-12 * power
    assert min(s.lam20, s.lam21) == 0
    value = kl(s, u, v, d, g)
    assert s.sum_kl == pytest.approx(value, rel=1e-6, abs=1e-7 * d)
    draws = torch.Generator().manual_seed(1)
    for _ in range(200):
        share = torch.rand(4, generator=draws).double() ** 4
        l10, l20, l11, l21 = share.tolist()
        l20, l21 = (x if d > 1 else 0.0 for x in (l20 * l10, l21 * l11))
        scale = power / (p * (l11 + (d - 1) * l21) + (1 - p) * (l10 + (d - 1) * l20))
        point = type(s)(l10 * scale, l20 * scale, l11 * scale, l21 * scale, 0.0)
        assert kl(point, u, v, d, g) >= value - 1e-7 * abs(value) - 1e-9 * d


def test_more_power_never_hurts() -> None:
    for u, v, d, g, p, _ in problems(20):
        power = g * torch.logspace(-6, 6, 60, dtype=torch.float64)
        values = torch.as_tensor(solve(u, v, d, g, p, power).sum_kl)
        assert bool((values.diff() <= 1e-9 * values[:-1]).all())


def test_tensors_give_what_numbers_give() -> None:
    rows = [VECTORS[0][0], VECTORS[1][0], VECTORS[2][0]]
    u, v, _, g, p, power = (torch.tensor(x, dtype=torch.float64) for x in zip(*rows, strict=True))
    both = solve(u, v, 10, g, p, power)
    alone = [solve(*row).sum_kl for row in rows]  # type: ignore[arg-type]
    assert torch.equal(torch.as_tensor(both.sum_kl), torch.tensor(alone, dtype=torch.float64))


def test_least_power_reaches_the_target_and_not_less_does() -> None:
    u, v, g, p = (torch.tensor([x, 2 * x], dtype=torch.float64) for x in (0.3, 0.2, 1.0, 0.2))
    for target in (2.0, 0.64, 0.01):
        goal = torch.full_like(u, target)
        power = least_power(u, v, 16, g, p, goal)
        assert torch.allclose(torch.as_tensor(solve(u, v, 16, g, p, power).sum_kl), goal, rtol=1e-6)
        less = torch.as_tensor(solve(u, v, 16, g, p, power * 0.99).sum_kl)
        assert bool((less > goal).all())


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"u": -1}, "u"), ({"v": math.nan}, "v"), ({"g": 0}, "g"), ({"p": 0}, "p"),
        ({"p": 1.0}, "p"), ({"power": -0.1}, "power"), ({"d": 0}, "d"),
    ],
)  # fmt: skip
def test_bad_numbers(change: dict[str, float], named: str) -> None:
    good = {"u": 1, "v": 1, "d": 4, "g": 1, "p": 0.5, "power": 1}
    with pytest.raises(ConfigError, match=rf"marvell.solve: {named} must be"):
        solve(**{**good, **change})  # type: ignore[arg-type]


def test_hook_adds_noise_of_the_solved_covariance() -> None:
    """Variances along and across the mean difference, for each class, within sampling error."""
    x, y = rows_of_gradients(b=40_000, m=5)
    own = owner(MARVELL, [2.0])
    own.labels = y
    noise = (MARVELL.outgoing(message(x), own) - x)[0]
    rows = x[0]
    means = [rows[y[0] == c].mean(0) for c in (0, 1)]
    delta = means[1] - means[0]
    g = float(delta.square().sum())
    u, v = (float(rows[y[0] == c].var(0, correction=0).mean()) for c in (0, 1))
    s = solve(u, v, 5, g, float(y.double().mean()), 2.0 * g)
    along = noise @ (delta / delta.norm())
    for c, lam1, lam2 in ((0, s.lam10, s.lam20), (1, s.lam11, s.lam21)):
        of = y[0] == c
        assert along[of].var().item() == pytest.approx(lam1, rel=0.05)
        total = noise[of].square().sum(1).mean().item()
        assert total == pytest.approx(lam1 + 4 * lam2, rel=0.05)


def test_sum_kl_mode_meets_its_target_in_the_batch() -> None:
    made = registry.defenses.create("marvell", {"mode": "sum_kl"})
    assert made.from_natural("sum_kl", 0.5) == 2.0
    x, y = rows_of_gradients(b=60_000, m=2)
    own = owner(made, [2.0])
    own.labels = y
    out = made.outgoing(message(x), own)[0]
    means = [out[y[0] == c].mean(0) for c in (0, 1)]
    covariances = [torch.cov(out[y[0] == c].T) for c in (0, 1)]
    delta = means[1] - means[0]
    inverse = [torch.linalg.inv(s) for s in covariances]
    found = (
        0.5
        * (
            torch.trace(inverse[1] @ covariances[0] + inverse[0] @ covariances[1])
            + delta @ (inverse[0] + inverse[1]) @ delta
        )
        - 2
    )
    assert found.item() == pytest.approx(0.5, abs=0.04)


def test_a_batch_of_one_class_gets_isotropic_noise_of_the_same_strength() -> None:
    x = torch.zeros(1, 20_000, 4, dtype=torch.float64)
    x[0, 3] = 1.0  # the longest row: norm 2
    own = owner(MARVELL, [0.25])
    own.labels = torch.zeros(1, 20_000, dtype=torch.int64)
    noise = MARVELL.outgoing(message(x), own) - x
    assert noise.square().sum(2).mean().item() == pytest.approx(0.25 * 4.0, rel=0.03)


def test_refuses_ten_classes_before_training_and_shares() -> None:
    own = owner(MARVELL, [1.0], classes=10)
    with pytest.raises(ConfigError, match="two classes, got 10"):
        MARVELL.check_task(10)
    policies = {"active": [(MARVELL, torch.ones(1, dtype=torch.float64))]}
    three = small_stack([0], classes=3)
    with pytest.raises(ConfigError, match="two classes, got 3"):
        Federation.create(three, [0], policies)
    x, y = rows_of_gradients()
    with pytest.raises(PolicyError, match="two classes"):
        MARVELL.outgoing(message(x), own)
    own = owner(MARVELL, [1.0])
    own.labels = torch.nn.functional.one_hot(y, 2).double()
    with pytest.raises(PolicyError, match="shares are no class"):
        MARVELL.outgoing(message(x), own)


def test_stops_one_release_but_not_sixty_of_them() -> None:
    """At P = 4 g the mean direction separates one release badly, and sixty averaged ones well."""
    from by_hand import rank_rows

    x, y = rows_of_gradients(b=300, m=16)
    own = owner(MARVELL, [4.0])
    direction = torch.ones(16, dtype=torch.float64)

    def release() -> torch.Tensor:
        own.labels = y
        return MARVELL.outgoing(message(x), own)[0] @ direction

    once = rank_rows(release().numpy(), y[0].numpy() == 1)
    often = sum(release() for _ in range(60))
    assert once < 0.75
    assert rank_rows(often.numpy(), y[0].numpy() == 1) > 0.98  # type: ignore[union-attr]
