"""Controls shared by cohorts: the same figures, made once; never where anything differs."""

from __future__ import annotations

import os
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from attack_views import PARTY, make_view
from torch import nn

from vflsec.audit import scoring
from vflsec.audit.truth import Goal
from vflsec.core.guess import Guess, Truth
from vflsec.core.view import Known, View
from vflsec.data.prepare import make_task
from vflsec.engine.cohort import run_cohort
from vflsec.measure import control_maker, controls
from vflsec.measure.control_cache import SharedControls, hash_view
from vflsec.measure.control_maker import ControlMaker
from vflsec.measure.controls import Control
from vflsec.plugins import registry
from vflsec.specs import AttackSpec, CellSpec, DefenseSpec, Measure


def cells(defense: str, seeds: range) -> list[CellSpec]:
    of = (DefenseSpec(defense, strength=1.0),)
    return [CellSpec({"name": "breast_cancer"}, "splitnn", {"epochs": 1}, of, s) for s in seeds]


def figures(results: Any) -> list[list[Measure]]:
    return [r.measures for r in results]


def test_a_second_cohort_makes_no_controls_and_finds_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[int] = []
    real = controls.controls_for

    def counted(attack: Any, views: Any, *rest: Any) -> Any:
        made.append(len(views))
        return real(attack, views, *rest)

    monkeypatch.setattr(control_maker, "controls_for", counted)
    source = registry.datasets.create("breast_cancer").load(0)
    tasks = {s: make_task(source, s) for s in range(2)}
    attacks = [AttackSpec("norm", adversary=("passive",), known_rows=10)]
    shared = SharedControls()
    run_cohort(cells("iso", range(1)), attacks, tasks, device="cpu", shared=shared)
    assert made == [1]
    with_ = run_cohort(cells("noise", range(2)), attacks, tasks, device="cpu", shared=shared)
    assert made == [1, 1]  # the seed that the first cohort did not have
    without = run_cohort(cells("noise", range(2)), attacks, tasks, device="cpu")
    assert figures(with_) == figures(without)


@pytest.mark.slow
def test_controls_that_are_made_anew_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of labels, an attribute and columns, and where the tests' own process keeps none."""
    source = registry.datasets.create("breast_cancer").load(0)
    tasks = {s: make_task(source, s, aligned=0.5) for s in range(2)}
    attacks = [
        AttackSpec("norm", adversary=("passive",), known_rows=10),
        AttackSpec("attribute", adversary=("active",), aux_rows=60),
        AttackSpec("embedding_inversion", adversary=("active",), aux_rows=60),
    ]
    found = []
    for make in (control_maker.controls_for, controls.controls_for):
        monkeypatch.setattr(control_maker, "controls_for", make)
        found.append(figures(run_cohort(cells("iso", range(2)), attacks, tasks, device="cpu")))
    assert found[0] == found[1]
    assert {m.status for of in found[0] for m in of if m.attack} == {"ok"}


def test_what_no_later_attack_asks_for_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """After each attack of the last phase; figures are those of keeping all."""
    tasks = {0: make_task(registry.datasets.create("breast_cancer").load(0), 0)}
    attacks = [
        AttackSpec("norm", adversary=("passive",), known_rows=10),
        AttackSpec("direction", adversary=("passive",), known_rows=10),
        AttackSpec("norm", adversary=("passive",), known_rows=20),
    ]
    held: list[int] = []
    real = ControlMaker.forget

    def forget(self: ControlMaker, later: Any) -> None:
        real(self, later)
        held.append(len({grants[1] for _, grants, _ in self._made}))

    kept = figures(run_cohort(cells("iso", range(1)), attacks, tasks, device="cpu"))
    monkeypatch.setattr(ControlMaker, "forget", lambda *_: None)
    assert figures(run_cohort(cells("iso", range(1)), attacks, tasks, device="cpu")) == kept
    monkeypatch.setattr(ControlMaker, "forget", forget)
    run_cohort(cells("iso", range(1)), attacks, tasks, device="cpu")
    assert held == [1, 0, 0]  # the first two ask for the same


def strengths(*values: float) -> list[CellSpec]:
    data, epochs = {"name": "breast_cancer"}, {"epochs": 1}
    of = [(DefenseSpec("iso", strength=s),) for s in values]
    return [CellSpec(data, "splitnn", epochs, d, 0) for d in of]


def test_a_control_is_scored_once_beside_all_strengths(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its figures are those of scoring it anew each time."""
    tasks = {0: make_task(registry.datasets.create("breast_cancer").load(0), 0)}
    attacks = [AttackSpec(n, adversary=("passive",), known_rows=10) for n in ("norm", "similarity")]
    counted: list[int] = []
    real = scoring.score

    def score(*args: Any, **more: Any) -> Any:
        counted.append(1)
        return real(*args, **more)

    monkeypatch.setattr(scoring, "score", score)
    many: dict[str, tuple[int, Any]] = {}
    for how in ("kept", "anew"):
        counted.clear()
        if how == "anew":
            monkeypatch.setattr(scoring, "_asked", lambda *_: os.urandom(16))
        found = run_cohort(strengths(0.0, 1.0, 5.0), attacks, tasks, device="cpu")
        many[how] = len(counted), figures(found)
    measures = many["kept"][1][0]
    beside = {m.attack: len(m.controls) for m in measures if m.split and m.controls}
    splits = {m.split for m in measures if m.attack}
    main = 3 * len({m.split for m in measures if not m.attack})
    own = 3 * len(splits) * len(attacks)
    each = len(splits) * sum(beside.values())
    assert many["anew"][0] == main + own + 3 * each
    assert many["kept"][0] < main + own + each + 1
    assert many["kept"][1] == many["anew"][1]


def test_figures_are_kept_for_one_truth_alone() -> None:
    """Whatever a score depends on changes the key under which figures of a control are found."""
    rows, y, prior = np.arange(6), np.array([0, 1, 0, 1, 1, 0]), np.array([0.5, 0.5])
    goal = Goal(Truth("label", rows, y), 2, prior)
    others = [
        scoring._asked(Goal(Truth("label", rows, 1 - y), 2, prior), rows, ["auc"]),
        scoring._asked(Goal(Truth("label", rows[::-1].copy(), y), 2, prior), rows, ["auc"]),
        scoring._asked(Goal(Truth("label", rows, y), 3, prior), rows, ["auc"]),
        scoring._asked(Goal(Truth("label", rows, y), 2, prior[:1]), rows, ["auc"]),
        scoring._asked(goal, rows[:5], ["auc"]),
        scoring._asked(goal, rows, ["accuracy"]),
        scoring._asked(Goal(Truth("value", rows, y), 2, prior), rows, ["auc"]),
    ]
    keys = {scoring._asked(goal, rows, ["auc"]), *others}
    assert len(keys) == 1 + len(others)
    assert scoring._asked(Goal(Truth("label", rows, y.copy()), 2, prior), rows, ["auc"]) in keys
    control = Control("majority", Guess("label", rows, np.zeros(6)), 0.5)
    control.figures[b"key"] = {"auc": 0.5}
    assert replace(control, guess=Guess("label", rows, np.ones(6))).figures == {}


@pytest.fixture(scope="module")
def view() -> View:
    y = torch.arange(40) % 2
    columns = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    out = make_view(y, columns=columns, known=6, test=8)
    models = {PARTY: {"bottom": nn.Identity(), "initial": nn.Linear(3, 2)}}
    return replace(out, models=MappingProxyType(models))


def test_all_that_a_control_may_see_is_in_the_hash(view: View) -> None:
    assert view.known is not None
    assert view.prior is not None
    same = hash_view(view)
    bottom = {**view.models[PARTY], "bottom": nn.Linear(3, 2)}
    assert hash_view(replace(view, models=MappingProxyType({PARTY: bottom}))) == same  # as trained
    columns = view.columns[PARTY].clone()
    columns[3, 1] += 1e-6
    initial = {**view.models[PARTY], "initial": nn.Linear(3, 2)}
    present = view.present[PARTY].clone()
    present[5] = False
    labels = 1 - view.known.labels
    y = torch.arange(40) % 2
    others: dict[str, Any] = {
        "columns": MappingProxyType({PARTY: columns}),
        "models": MappingProxyType({PARTY: initial}),
        "present": MappingProxyType({PARTY: present}),
        "known": Known(view.known.rows, labels),
        "labels": y,
        "prior": view.prior.flip(0) + 0.01,
        "targets": MappingProxyType({"train": view.targets["train"][1:]}),
        "aux": {"active": (torch.arange(2), torch.zeros(2, 1))},
    }
    hashes = {hash_view(replace(view, **{k: v})) for k, v in others.items()}
    assert len(hashes | {same}) == len(others) + 1


def test_what_is_kept_is_bounded() -> None:
    def one(name: str) -> list[Control]:
        return [Control(name, Guess("label", np.arange(10), np.zeros((10, 2))), 0.5)]

    kept = SharedControls(most=600)  # 240 bytes each
    for name in "abc":
        kept.put(name, one(name))
        kept.get("a")
    assert kept.get("b") is None
    assert kept.get("a") is not None
    assert kept.size == 480
