"""The control of attacks from elsewhere: the same attack on messages dealt out anew."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vflsec.core.rng import generator
from vflsec.core.task import Task
from vflsec.core.view import Table, deal_out
from vflsec.engine.cohort import run_cohort
from vflsec.specs import AttackSpec, CellSpec, Measure
from vflsec.testing import small_task

SEEDS = range(4)

Install = Callable[..., Path]

ATTACK = '''
"""From elsewhere.

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
        known, rows = view.require_known(), view.targets["train"]
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

REFUSE = READ.replace(
    "scores = x @ way",
    """
        said = seen @ way
        if said[known.labels == 1].min() < said[known.labels == 0].max():
            raise RuntimeError("known rows contradict each other")
        scores = x @ way""",
)
"""The same, but fails where the known rows are not of one mind."""


def spirals(seed: int, n: int = 400) -> Task:
    """Labels that the passive party's columns give away to who follows two spirals, and only so."""
    task, g = small_task(seed, n=n, widths=(2, 2)), generator(seed, "spirals")
    y = torch.arange(n) % 2
    turn = 0.5 + 1.5 * torch.rand(n, generator=g)  # of a circle; the further, the further out
    angle = 2 * math.pi * turn + math.pi * y
    x = turn.unsqueeze(1) * torch.stack([angle.cos(), angle.sin()], 1)
    x = x + 0.03 * torch.randn(n, 2, generator=g)
    return replace(task, x={**task.x, "passive1": x}, y=y)


def attacked(*names: str, metric: str = "auc") -> dict[str, list[Measure]]:
    """Its figures on training rows of each seed, by attack; what has none has no metric."""
    tasks = {s: spirals(s) for s in SEEDS}
    params = {"epochs": 2, "cut": 4}
    cells = [CellSpec({"name": "spirals"}, "splitnn", params, seed=s) for s in SEEDS]
    attacks = [AttackSpec(n, adversary=("passive1",), known_rows=12) for n in names]
    found: dict[str, list[Measure]] = {n: [] for n in names}
    for result in run_cohort(cells, attacks, tasks, device="cpu"):
        for m in result.measures:
            if m.attack and m.metric == metric and m.split in ("train", ""):
                found[m.attack].append(m)
    assert {len(of) for of in found.values()} == {len(SEEDS)}
    return found


BODIES = {"spread_labels": SPREAD, "read_gradients": READ, "refuses": REFUSE, "silent": SPREAD}


@pytest.fixture
def outside(install: Install) -> Path:
    modules = {k: ATTACK.format(name=k, body=body.strip()) for k, body in BODIES.items()}
    modules["silent"] = modules["silent"].replace('"gradient:mean", ', "")
    return install({"vflsec.attacks": {k: k for k in BODIES}}, **modules)


def controls(measure: Measure) -> dict[str, float]:
    return {k: v for k, c in measure.controls.items() if (v := c["value"]) is not None}


@pytest.mark.parametrize("name", ["spread_labels", "silent"])
def test_a_better_learner_of_own_columns_stands_beside_itself(outside: Path, name: str) -> None:
    """Whether it needs messages that it does not read, or none."""
    for m in attacked(name)[name]:
        others = controls(m)
        alike = others.pop("shuffled")
        assert m.value is not None
        assert m.value > max(others.values()) + 0.05  # alone, they would accuse
        assert alike == m.value


def test_what_messages_add_is_not_in_the_control(outside: Path) -> None:
    for m in attacked("read_gradients")["read_gradients"]:
        assert m.value is not None
        assert m.value > 0.99
        assert 0.35 < controls(m)["shuffled"] < 0.65


def test_an_attack_that_fails_as_its_own_control_has_no_figure(outside: Path) -> None:
    """It would accuse where it learns from own columns."""
    measures = attacked("refuses", metric="")["refuses"]
    assert {m.status for m in measures} == {"error"}
    assert {("shuffled" in m.reason, "contradict" in m.reason) for m in measures} == {(True, True)}


COLUMNS = """
        model = view.models[view.victims[0]]["bottom"]  # granted, as it was trained
        table, (q, x) = view.received("embedding", "last"), view.require_aux()
        at = view.targets["train"]
        seen = torch.nn.functional.pad(table.tensor.flatten(1).double(), (0, 1), value=1)
        one = table.holding(seen).of_rows
        return Guess("feature", at, one(at) @ torch.linalg.lstsq(one(q), x.double()).solution)
"""


def test_granted_models_stay_in_the_control(install: Install) -> None:
    """Without its victim's model such an attack failed as its own control."""
    text = ATTACK.format(name="peers", body=COLUMNS.strip())
    text = text.replace('"gradient:mean", "known_rows"', '"embedding:last", "peer_model"')
    text = text.replace('known, rows = view.require_known(), view.targets["train"]', "")
    text = text.replace("    needs", '    target = "feature"\n    needs')
    install({"vflsec.attacks": {"peers": "peers"}}, peers=text)
    tasks = {s: small_task(s, n=300) for s in range(2)}
    cells = [CellSpec({"name": "toy"}, "splitnn", {"epochs": 2}, seed=s) for s in tasks]
    spec = AttackSpec("peers", adversary=("active",), aux_rows=60, peer_model=True)
    for result in run_cohort(cells, [spec], tasks, device="cpu"):
        (m,) = [m for m in result.measures if m.attack]
        assert (m.status, m.metric) == ("ok", "r2")
        assert m.value is not None
        assert m.value > 0.8
        assert controls(m)["shuffled"] < 0.2


def test_our_own_attacks_have_no_such_control() -> None:
    assert all("shuffled" not in m.controls for m in attacked("direction")["direction"])


@given(st.integers(0, 1000), st.integers(0, 8), st.integers(1, 8), st.integers(0, 3))
def test_messages_keep_their_batch_and_rows_trade_all_that_they_have(
    seed: int, never: int, came: int, others: int
) -> None:
    g, n = generator(seed, "tables"), never + came + others
    ids = torch.randperm(3 * n, generator=g)[:n]
    group, rest = ids[: never + came], ids[never + came :]
    once = ids[never:]
    twice = torch.cat([once, once])
    k = len(once)
    first = Table(twice.double(), twice, torch.arange(2 * k) // k, torch.arange(2 * k) // 3)
    some = once[: (k + 1) // 2].sort().values
    second = Table(some.double(), some, torch.zeros(len(some)), torch.zeros(len(some)))
    batch = Table(torch.ones(2), torch.tensor([-1, -1]), torch.zeros(2), torch.zeros(2))
    tables = {("received", c, "all", "p"): t for c, t in zip("abc", (first, second, batch))}
    dealt = deal_out(tables, [group], generator(seed, "deal"))
    a, b, c = (dealt["received", kind, "all", "p"] for kind in "abc")
    assert len(c) == 0  # of no row
    assert torch.equal(a.step, first.step)
    assert torch.equal(a.tensor, first.tensor)
    assert torch.equal(a.rows[:k], a.rows[k:])  # in every epoch of the same row
    told = dict(zip(a.tensor.tolist(), a.rows.tolist(), strict=True))
    assert len({*told.values()}) == k
    for x, row in told.items():  # within its group, to those of whom nothing came, too
        assert row in (group if int(x) in group else rest).tolist()
    assert [told[x] for x in b.tensor.tolist()] == b.rows.tolist()  # and in every table
    assert bool((b.rows.diff() > 0).all())  # as ascending as before


def test_that_nothing_came_of_a_row_is_dealt_out_too() -> None:
    """An attack that reads the absence finds none of it in its control."""
    ids, g = torch.arange(200), generator(0, "deal")
    table = Table(torch.ones(100, 1), ids[:100], torch.zeros(100), torch.zeros(100))
    tables = {("received", "gradient", "mean", "p"): table}
    (dealt,) = deal_out(tables, [ids], g).values()
    assert 30 < int((dealt.rows < 100).sum()) < 70
