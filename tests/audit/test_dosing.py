"""A planted leak of known size: what it lays over a view, how large it is, what is found of it."""

from __future__ import annotations

from dataclasses import fields, replace
from types import MappingProxyType

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.metrics import roc_auc_score
from torch import nn

from vflsec.audit.controls import Against, Leakage
from vflsec.audit.dosing import (
    MARK,
    Dose,
    _chance,
    build_curve,
    compute_planted_gain,
    find_least_dose,
)
from vflsec.audit.leakage import complete_rows, list_rows, summarise
from vflsec.audit.planted_leak import plant_leak
from vflsec.core.guess import Truth
from vflsec.core.view import Facts, Known, Schema, Table, View
from vflsec.engine.cohort import run_cohort
from vflsec.specs import AttackSpec, CellSpec, DefenseSpec
from vflsec.testing import small_task

N, D = 400, 6


def view(top: bool = True, width: int = D) -> tuple[View, Truth]:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(N, D, generator=g)
    y = (torch.rand(N, generator=g) < 0.3).long()
    rows = torch.arange(N)
    table = Table(torch.randn(N, width, generator=g), rows, rows * 0, rows * 0)
    torch.manual_seed(1)
    seen = View(
        adversary=("p",),
        columns=MappingProxyType({"p": x}),
        present=MappingProxyType({"p": torch.ones(N, dtype=torch.bool)}),
        schema=MappingProxyType({"p": Schema(tuple("abcdef"), (0,) * D, (D,))}),
        tables=MappingProxyType({("received", "gradient", "mean", "p"): table}),
        models=MappingProxyType({"p": {"bottom": nn.Linear(D, 4)}}),
        facts=Facts("splitnn", "train", "a", ("a", "p"), 2, top=top),
        targets=MappingProxyType({"train": rows[20:300], "test": rows[300:]}),
        known=Known(rows[:20], y[:20]),
    )
    return seen, Truth("label", rows.numpy(), y.numpy())


def laid(seen: View, truth: Truth, share: float) -> View:
    return plant_leak(seen, truth, [0.7, 0.3], share, torch.Generator().manual_seed(7))


def changed(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a != b).any(1).nonzero().squeeze(1)


def test_a_share_of_the_rows_carries_its_label_and_the_others_are_as_they_were() -> None:
    seen, truth = view()
    rows = torch.arange(N)
    before, z = seen.received("gradient").tensor.clone(), seen.embed(rows)
    more = laid(seen, truth, 0.2)
    gradient, embedding = more.received("gradient").tensor, more.embed(rows)
    hit = changed(before, gradient)
    assert len(hit) == 80
    assert torch.equal(hit, changed(z, embedding))
    assert torch.equal(seen.received("gradient").tensor, before)  # a copy, the view is as it was
    y = torch.as_tensor(truth.values)
    for x in (gradient, embedding):
        kinds = x[hit].unique(dim=0)
        assert len(kinds) == 2  # one for each class and nothing else
        assert all(len(y[hit][(x[hit] == k).all(1)].unique()) == 1 for k in kinds)
    norm = gradient[hit].norm(dim=1)
    assert norm[y[hit] == 1].min() > 2 * norm[y[hit] == 0].max()  # as |p - y| at a share of 0.3
    some = changed(before, laid(seen, truth, 0.05).received("gradient").tensor)
    assert set(some.tolist()) < set(hit.tolist())
    assert torch.equal(more.embed(rows[50:60]), embedding[50:60])
    assert {f.name for f in fields(more)} - {f.name for f in fields(seen)} == {"overlay"}


def test_gradients_of_logits_carry_it_where_direct_reads_it() -> None:
    seen, truth = view(top=False, width=2)
    before = seen.received("gradient").tensor
    after = laid(seen, truth, 0.3).received("gradient").tensor
    hit = changed(before, after)
    assert torch.equal(after[hit].argmin(1), torch.as_tensor(truth.values)[hit])


def test_the_size_of_a_dose_is_what_the_best_attacker_gains() -> None:
    rng = np.random.default_rng(0)
    n, share = 20_000, 0.2
    y = rng.random(n) < 0.3
    control = y + rng.normal(0, 1.4, n)
    hit = rng.random(n) < share
    best = np.where(hit, np.where(y, 99.0, -99.0), control)
    a, b = roc_auc_score(y, control), roc_auc_score(y, best)
    assert b - a == pytest.approx(compute_planted_gain("auc", share, float(a)), abs=0.005)
    assert compute_planted_gain("accuracy", 0.2, 0.4) == pytest.approx(0.12)


def test_the_chance_is_the_power_of_the_test() -> None:
    rng = np.random.default_rng(1)
    leak = Leakage((Against("a", 0.6, 0.04, 0.03, 5),), "a")
    draws = rng.normal(0.04, 0.03, (20_000, 5))
    hits = stats.ttest_1samp(draws, 0, axis=1, alternative="greater").pvalue < 0.05
    assert _chance(leak, 0.05) == pytest.approx(hits.mean(), abs=0.01)


def test_the_chance_is_that_of_the_bound_with_chance_in_place_of_a_failing_control() -> None:
    failing = Leakage((Against("a", 0.6, 0.05, 0.2, 5, floored=(0.04, 0.03, 1)),), "a")
    bar, away = stats.t.isf(0.05, 3), 0.04 * np.sqrt(5) / 0.03
    assert _chance(failing, 0.05) == pytest.approx(stats.nct.sf(bar, 3, away))
    never = Leakage((Against("a", 0.4, 0.15, 0.1, 5, floored=(0.05, 0.0, 1)),), "a")
    assert _chance(never, 0.05) == 1.0


def test_between_two_doses_the_least_is_interpolated_and_below_the_first_nothing_claimed() -> None:
    rows = [
        Dose("toy", "splitnn", "none", 0.0, metric="auc", share=0.1, planted=p, chance=c)
        for p, c in ((0.1, 1.0), (0.02, 0.2), (0.05, 0.7))
    ]  # fmt: skip
    ((_, least),) = find_least_dose(rows).items()
    assert least == pytest.approx(0.05 + 0.05 / 3)
    assert list(find_least_dose(rows[:1]).values()) == [0.1]
    assert list(find_least_dose([replace(r, chance=0.5) for r in rows]).values()) == [None]


def test_trained_worlds_find_a_large_dose_and_not_a_small_one() -> None:
    """Gradients drowned in noise: direction finds nothing, until a third of the rows carry it."""
    tasks = {s: small_task(s, n=400, widths=(3, 5)) for s in range(5)}
    iso = (DefenseSpec("iso", strength=200.0),)
    cells = [CellSpec({"name": "s"}, "splitnn", {"epochs": 2, "cut": 4}, iso, s) for s in tasks]
    attacks = [
        AttackSpec("direction", {"positives": 5}, ("passive1",), dosing=(0.01, 0.6)),
    ]
    results = run_cohort(cells, attacks, tasks, device="cpu")
    made = [row for result in results for row in list_rows(result)]
    doses = [r for r in complete_rows(made) if MARK in r.phase]
    assert {r.phase for r in doses} == {"train@dose=0.01", "train@dose=0.6"}
    assert all(r.advantage is not None for r in doses)
    small, large = build_curve(summarise(doses))
    assert (small.share, large.share) == (0.01, 0.6)
    assert not small.found
    assert large.found
    gain, little = large.advantage, small.advantage
    assert gain is not None
    assert little is not None
    assert gain > little + 0.1
    points = summarise([r for r in doses if r.metric == r.primary])
    (own,) = [
        p.control_value.mean for p in points if p.phase == large.phase + MARK + "0.6"
    ]  # fmt: skip
    assert large.planted == pytest.approx((1 - 0.4**2) * (1 - own))
    assert 0.3 < gain / large.planted < 1.05  # it cannot gain more than there is


def test_specs_without_doses_keep_their_key() -> None:
    plain = AttackSpec("norm", adversary=("p",))
    assert plain.key == AttackSpec("norm", adversary=("p",), dosing=()).key
    assert plain.key != AttackSpec("norm", adversary=("p",), dosing=(0.1,)).key
