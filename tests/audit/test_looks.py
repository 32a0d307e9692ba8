"""Looks while seeds are added: each has its share of the error, all together no more than one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from vflsec.audit.looks import Looks
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
    assert looks.add(range(55)) == looks.add(range(5)) == looks
    assert looks.add(range(3)).share == looks.add(range(5, 10)).share == looks.share / 2


@pytest.mark.parametrize("budgets", [(40,), (10, 40), (10, 20, 40)])
def test_however_the_budget_grows_no_more_audits_err_than_one_look_may(budgets: Any) -> None:
    """Independent reference: drawn differences with mean 0, and a t test at each look."""
    values = np.random.default_rng(3).standard_normal((20_000, 40))
    accused = np.zeros(len(values), dtype=bool)
    looks = Looks()
    for most in budgets:
        for n in looks.plan(5, most):
            looks = looks.add(range(n))
            some = values[:, :n]
            t = some.mean(1) / (some.std(1, ddof=1) / n**0.5)
            accused |= t > stats.t.ppf(looks.narrow(0.95), n - 1)
    assert [len(of) for of in looks.seeds] == [5, 10, 20, 40]
    assert 0.03 < accused.mean() < 0.05


@pytest.mark.parametrize("seeds", [((),), ((0, 1), (0, 1)), ((0,), ())])
def test_looks_that_cannot_have_been_are_refused(seeds: Any) -> None:
    with pytest.raises(ConfigError):
        Looks(seeds)
