"""Looks while seeds are added: each has its share of the error, all together no more than one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from vflsec.audit.looks import Looks, join_looks
from vflsec.errors import ConfigError


@pytest.mark.parametrize(
    ("before", "first", "most", "plan"),
    [
        ((), 5, 5, [5]), ((), 5, 6, [5, 6]), ((), 5, 40, [5, 10, 20, 40]), ((), 3, 10, [3, 6, 10]),
        ((5, 10), 5, 40, [10, 20, 40]), ((5, 10), 5, 10, [10]), ((5, 12), 5, 10, [10]),
        ((5, 10), 20, 40, [20, 40]),
    ],
)  # fmt: skip
def test_a_plan_begins_where_the_last_look_was(
    before: tuple[int, ...], first: int, most: int, plan: list[int]
) -> None:
    looks = Looks(tuple(tuple(range(n)) for n in before))
    assert looks.plan(first, most) == plan


def test_shares_halve_and_never_reach_the_whole() -> None:
    looks, spent = Looks(), 0.0
    assert (looks.share, looks.narrow(0.9)) == (1.0, 0.9)
    for k in range(1, 12):
        looks = looks.add(range(5 * k))
        spent += looks.share
        assert looks.narrow(0.95) == pytest.approx(1 - 0.05 / 2**k)
        assert spent == pytest.approx(1 - 2**-k)
    assert looks.add(range(55)) == looks
    again = looks.add(range(10))
    assert (again.seeds, again.now, again.share) == (looks.seeds, tuple(range(10)), 1 / 4)
    assert looks.add(range(3)).share == looks.add(range(5, 10)).share == looks.share / 2


def _judge(effect: float, looks: list[tuple[int, float]]) -> float:
    """Independent reference: how many of 20,000 drawn audits a t test accuses at any of some looks.

    Each look is a number of seeds and its share of 5 %.
    """
    values = np.random.default_rng(3).standard_normal((20_000, 40)) + effect
    accused = np.zeros(len(values), dtype=bool)
    for n, share in looks:
        some = values[:, :n]
        t = some.mean(1) / (some.std(1, ddof=1) / n**0.5)
        accused |= t > stats.t.ppf(1 - 0.05 * share, n - 1)
    return float(accused.mean())


@pytest.mark.parametrize("budgets", [(40,), (10, 40), (10, 20, 40)])
def test_however_the_budget_grows_no_more_audits_err_than_one_look_may(budgets: Any) -> None:
    """The figures of docs/statistics.md."""
    looks, made = Looks(), []
    for most in budgets:
        for n in looks.plan(5, most):
            looks = looks.add(range(n))
            made.append((n, looks.share))
    assert [len(of) for of in looks.seeds] == [5, 10, 20, 40]
    found = [_judge(effect, made) for effect in (0.0, 0.5, 1.0)]
    assert found == pytest.approx([0.037, 0.678, 0.9997], abs=5e-4)
    even = [(n, 1 / 4) for n in (5, 10, 20, 40)]
    assert _judge(0.5, even) == pytest.approx(0.820, abs=5e-4)
    anew = [(5, 1 / 2), (10, 1 / 2), (5, 1 / 3), (10, 1 / 3), (20, 1 / 3), *even]
    assert _judge(0.0, anew) == pytest.approx(0.059, abs=5e-4)  # as if each run were the first


@pytest.mark.parametrize(
    ("plain", "most", "err", "uncounted"),
    [((5, 10, 20, 40), 0, 0.059, 0.135), ((5,), 40, 0.060, 0.060), ((10,), 40, 0.058, 0.068),
     ((3, 5, 10), 40, 0.057, 0.1105)],
)  # fmt: skip
def test_looks_that_nobody_planned_err_little_more_often_than_one(
    plain: tuple[int, ...], most: int, err: float, uncounted: float
) -> None:
    """The first has the whole error; the others were judged at it, too, or were not counted."""
    looks, made = Looks(planned=False), []
    for n in plain:
        looks = looks.add(range(n))
        made.append((n, looks.share))
    assert made[0][1] == 1.0
    anew = Looks()
    before = [(n, 1.0) for n in plain]
    for n in looks.plan(5, most) if most else ():
        looks = looks.add(range(n))
        made.append((n, looks.share))
    for n in anew.plan(5, most) if most else ():
        anew = anew.add(range(n))
        before.append((n, anew.share))
    assert sum(dict(made).values()) <= 1.5
    assert (_judge(0.0, made), _judge(0.0, before)) == pytest.approx((err, uncounted), abs=2e-3)


@pytest.mark.parametrize("seeds", [((),), ((0, 1), (0, 1)), ((0,), ())])
def test_looks_that_cannot_have_been_are_refused(seeds: Any) -> None:
    with pytest.raises(ConfigError):
        Looks(seeds)


@pytest.mark.parametrize("after", [-1, 2])
def test_a_share_is_never_more_than_that_of_the_first(after: int) -> None:
    with pytest.raises(ConfigError):
        Looks(((0, 1), (0, 1, 2)), after=after)


def test_looks_at_parts_are_looks_at_the_whole() -> None:
    first, other = (Looks(planned=False).add(range(n)).add(range(8)) for n in (3, 5))
    every = join_looks([Looks(), first, other])
    assert (every.seeds, every.planned) == ((*first.seeds, other.seeds[0]), False)
    assert (every.now, every.share) == (tuple(range(8)), 0.25)
    assert join_looks([Looks().add([0])]).planned
