"""The control of attacks from elsewhere: the same attack on messages dealt out anew."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import Install
from vflsec.core.rng import generator
from vflsec.core.task import Task
from vflsec.core.view import Table, deal_out
from vflsec.engine.cohort import run_cohort
from vflsec.specs import AttackSpec, CellSpec, Measure
from vflsec.testing import small_task

SEEDS = range(4)

ATTACK = '''
"""{doc}.

Source: nobody, 2026.
"""
from dataclasses import dataclass

import torch

from vflsec.core.attack import Attack
from vflsec.core.guess import Guess
from vflsec.plugins import registry


@registry.attack
@dataclass(frozen=True)
class Outside(Attack):
    name = "{name}"
    needs = frozenset({{"gradient:mean", "known_rows"}})

    def infer(self, view, rng):
        known, rows = view.require_known(), view.target_rows
        {body}
        return Guess("label", rows, scores)
'''

SPREAD = """
        every = torch.cat([known.rows, rows])
        x = view.design(every).double()
        near = torch.cdist(x, x).topk(9, largest=False).indices
        y = torch.zeros(len(x), dtype=torch.float64)
        fixed = known.labels.double() * 2 - 1
        for _ in range(300):
            y[: len(known)] = fixed
            y = y[near].mean(1)
        scores = y[len(known):]
"""
"""Labels spread over neighbours by own columns, without a look at any message."""

READ = """
        table = view.received("gradient", "mean")
        x, seen = table.of_rows(rows).flatten(1), table.of_rows(known.rows).flatten(1)
        way = seen[known.labels == 1].mean(0) - seen[known.labels == 0].mean(0)
        scores = x @ way
"""
"""The direction of gradients that the known rows show."""


def spirals(seed: int, n: int = 400) -> Task:
    """Labels that the passive party's columns give away to who follows two spirals, and only so."""
    task, g = small_task(seed, n=n, widths=(2, 2)), generator(seed, "spirals")
    y = torch.arange(n) % 2
    turn = 0.5 + 1.5 * torch.rand(n, generator=g)  # of a circle; the further, the further out
    angle = 2 * math.pi * turn + math.pi * y
    x = turn.unsqueeze(1) * torch.stack([angle.cos(), angle.sin()], 1)
    x = x + 0.03 * torch.randn(n, 2, generator=g)
    return replace(task, x={**task.x, "passive1": x}, y=y)


def attacked(*names: str, known_rows: int = 12) -> dict[str, list[Measure]]:
    """The AUC on training rows of each seed, by attack."""
    tasks = {s: spirals(s) for s in SEEDS}
    params = {"epochs": 2, "cut": 4}
    cells = [CellSpec({"name": "spirals"}, "splitnn", params, seed=s) for s in SEEDS]
    attacks = [AttackSpec(n, adversary=("passive1",), known_rows=known_rows) for n in names]
    found: dict[str, list[Measure]] = {n: [] for n in names}
    for result in run_cohort(cells, attacks, tasks, device="cpu"):
        for m in result.measures:
            if m.attack and m.metric == "auc" and m.split == "train":
                found[m.attack].append(m)
    return found


@pytest.fixture
def outside(install: Install) -> Path:
    return install(
        {"vflsec.attacks": {"spread_labels": "spread_labels", "read_gradients": "read_gradients"}},
        spread_labels=ATTACK.format(doc="Spread", name="spread_labels", body=SPREAD.strip()),
        read_gradients=ATTACK.format(doc="Read", name="read_gradients", body=READ.strip()),
    )


def controls(measure: Measure) -> dict[str, float]:
    return {k: v for k, c in measure.controls.items() if (v := c["value"]) is not None}


def test_a_better_learner_of_own_columns_stands_beside_itself(outside: Path) -> None:
    for m in attacked("spread_labels")["spread_labels"]:
        others = controls(m)
        alike = others.pop("shuffled")
        assert m.value is not None
        assert m.value > max(others.values()) + 0.1  # alone, they would accuse
        assert alike == m.value


def test_what_messages_add_is_not_in_the_control(outside: Path) -> None:
    for m in attacked("read_gradients")["read_gradients"]:
        assert m.value is not None
        assert m.value > 0.99
        assert 0.35 < controls(m)["shuffled"] < 0.65


def test_our_own_attacks_have_no_such_control() -> None:
    assert all("shuffled" not in m.controls for m in attacked("direction")["direction"])


@given(st.integers(0, 1000), st.integers(1, 12), st.integers(0, 6))
def test_messages_keep_their_batch_and_rows_trade_all_that_they_have(
    seed: int, both: int, first_only: int
) -> None:
    g, n = generator(seed, "tables"), both + first_only
    ids = torch.randperm(3 * n, generator=g)[:n]  # those of the first table; some in both
    twice = torch.cat([ids, ids])
    first = Table(twice.double(), twice, torch.arange(2 * n) // n, torch.arange(2 * n) // 3)
    second = Table(ids[:both].sort().values.double(), ids[:both].sort().values,
                   torch.zeros(both), torch.zeros(both))  # fmt: skip
    batch = Table(torch.ones(2), torch.tensor([-1, -1]), torch.zeros(2), torch.zeros(2))
    tables = {("received", k, "all", "p"): t for k, t in zip("abc", (first, second, batch))}
    dealt = deal_out(tables, generator(seed, "deal"))
    a, b, c = (dealt["received", k, "all", "p"] for k in "abc")
    assert len(c) == 0  # of no row
    came = dict(zip(a.rows.tolist(), a.tensor.tolist(), strict=True))
    assert sorted(came) == sorted(ids.tolist()) == sorted(came.values())
    assert torch.equal(a.step, first.step)
    assert torch.equal(a.tensor, first.tensor)
    assert torch.equal(a.rows[:n], a.rows[n:])  # in every epoch of the same row
    assert torch.equal(b.rows, second.rows)  # as ascending as before
    assert [came[r] for r in b.rows.tolist()] == b.tensor.tolist()  # and in every table
