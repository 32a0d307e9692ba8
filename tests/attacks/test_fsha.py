"""FSHA: what hijacked bottoms give away, what is sent to them, and what it costs the task."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, partial
from statistics import mean
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from attack_views import PARTY, feature_view, made, r2, rng
from cohorts import cohort
from sampled import sampled

from vflsec.core.attack import Attack
from vflsec.core.message import Message
from vflsec.core.policy import Own
from vflsec.core.rng import Streams
from vflsec.core.task import Stack, Task
from vflsec.core.view import View
from vflsec.errors import ThreatModelError
from vflsec.label import MultiLabel, Quantity
from vflsec.measure.controls import feature_controls
from vflsec.plugins import registry
from vflsec.specs import AttackSpec, DefenseSpec
from vflsec.testing import small_task
from vflsec.testing.worlds import train
from vflsec.train.demand import Demand
from vflsec.train.loop import predict
from vflsec.train.views import build_grants, make_view

fsha = partial(made, "fsha")

SEEDS = (0, 1, 2)
EMBEDDINGS = ("received", "embedding", "last", "active")


def world(kind: str, seed: int, columns: int) -> Task:
    """A task whose label is the sign of a sum or product of the victim's columns, or a coin.

    ``skewed``: the first column is exponential, the second a coin of 0.7, and the sum is told.
    """
    task = small_task(seed, n=600, widths=(2, columns), signal=0.0)
    x, own = task.x[PARTY], task.x["active"][:, 0]
    if kind == "skewed":
        u = torch.distributions.Normal(0.0, 1.0).cdf(x)
        x[:, 0] = -u[:, 0].clamp_min(1e-6).log() - 1
        x[:, 1] = (u[:, 1] < 0.7) / 0.458 - 0.7 / 0.458
    told = {"product": x[:, 0] * x[:, 1], "coin": torch.zeros(len(x))}.get(kind, x[:, :2].sum(1))
    noise = torch.randn(len(x), generator=rng(seed)) if kind == "coin" else 0.3 * own
    task.y.copy_((told + noise > 0).long())
    return task


@dataclass(frozen=True)
class Found:
    """Of each seed: view, task, R^2 of the answer, and accuracy of the system on test rows."""

    views: list[View]
    tasks: list[Task]
    r2: list[float]
    accuracy: float


@cache
def hijacked(
    kind: str, columns: int, use: str = "pairs", *, on: bool = True, aux: int = 100,
    mixed: bool = False, **spec: Any,
) -> Found:  # fmt: skip
    """Systems trained under the attack (`on`) or honestly; `mixed` grants columns of other rows."""
    attack = fsha(use=use)
    asked = AttackSpec("fsha", {"use": use}, ("active",), aux_rows=aux)
    tasks = {s: world(kind, s, columns) for s in SEEDS}
    stack = Stack.build(tasks, SEEDS)
    granted = [build_grants(tasks[s], s, Demand.of(asked, attack))["aux"] for s in SEEDS]
    if mixed:
        granted = [(ids, {p: x.roll(1, 0) for p, x in by.items()}, y) for ids, by, y in granted]
    policy = attack.policy()
    assert policy is not None
    settings = {"epochs": 40, "lr": 5e-3, "hidden": (32,), "cut": 4, "batch_size": 32,
                "patience": 0, "select": False, **spec}  # fmt: skip
    made = train(
        registry.algorithms.create("splitnn", settings), stack, list(SEEDS),
        {"active": [(policy, torch.full((3,), float(on)))]},
        [("active", "received", "embedding", "last")], aux=granted,
    )  # fmt: skip
    views = [make_view(made.algorithm, made.fed, made.initial, asked, r) for r in range(3)]
    views = [replace(v, labels=t.y) for v, t in zip(views, tasks.values(), strict=True)]
    if mixed:
        of = zip(views, granted, strict=True)
        views = [replace(v, aux={PARTY: (g[0], g[1][PARTY])}) for v, g in of]
    rows = stack.rows("test")
    truth = torch.stack([t.y[at] for t, at in zip(tasks.values(), rows, strict=True)])
    right = predict(made.algorithm, made.fed, rows).argmax(-1) == truth
    found = [figure(attack, v, t) for v, t in zip(views, tasks.values(), strict=True)]
    return Found(views, list(tasks.values()), found, float(right.double().mean()))


def figure(attack: Attack, view: View, task: Task) -> float:
    return r2(attack.infer(view, rng()), task.x[PARTY])


def controls(found: Found) -> list[float]:
    return [
        max(r2(c.guess, t.x[PARTY]) for c in feature_controls([v], [rng()])[0])
        for v, t in zip(found.views, found.tasks, strict=True)
    ]


def shuffled(view: View) -> View:
    """The same embeddings under other ids."""
    t = view.tables[EMBEDDINGS]
    moved = replace(t, tensor=t.tensor[torch.randperm(len(t), generator=rng(9))])
    return replace(view, tables=MappingProxyType({EMBEDDINGS: moved}))


@pytest.mark.slow
@pytest.mark.long
def test_the_critic_finds_skewed_columns_behind_a_hidden_layer() -> None:
    """R^2 .89, .97, .94, where own columns and labels tell a third."""
    found = hijacked("skewed", 2, "critic")
    assert max(controls(found)) < 0.4
    assert min(found.r2) > 0.8


@pytest.mark.slow
@pytest.mark.long
def test_under_the_critic_embeddings_of_other_rows_tell_nothing() -> None:
    found = hijacked("skewed", 2, "critic")
    told = [
        figure(fsha(use="critic"), shuffled(v), t)
        for v, t in zip(found.views, found.tasks, strict=True)
    ]
    assert max(told) < 0.0


@pytest.mark.slow
@pytest.mark.long
def test_the_critic_finds_nothing_where_any_rotation_passes() -> None:
    """Four normal columns and a label that tells none of them: R^2 of a rotation is about -1."""
    found = hijacked("coin", 4, "critic", epochs=15)
    assert max(found.r2) < 0.0
    assert mean(found.r2) == pytest.approx(-1.0, abs=0.6)


@pytest.mark.slow
def test_pairs_open_what_honest_training_closes() -> None:
    """Eight normal columns behind three hidden layers, 60 auxiliary rows."""
    deep: dict[str, Any] = {"hidden": (32, 32, 32), "cut": 8, "aux": 60}
    honest, attacked = (hijacked("sum", 8, on=on, **deep) for on in (False, True))
    assert max(honest.r2) < 0.2
    assert max(controls(attacked)) < 0.2
    assert min(attacked.r2) > 0.85


def test_columns_of_other_rows_teach_nothing() -> None:
    assert max(hijacked("sum", 4, mixed=True).r2) < 0.05


@pytest.mark.slow
def test_embeddings_under_other_ids_tell_nothing() -> None:
    found = hijacked("sum", 4)
    told = [figure(fsha(), shuffled(v), t) for v, t in zip(found.views, found.tasks, strict=True)]
    gains = [mine - alone for mine, alone in zip(told, controls(found), strict=True)]
    assert max(gains) < 0.05


@pytest.mark.slow
def test_half_as_many_numbers_hold_half_of_the_columns() -> None:
    """The case it cannot do: two principal components of four alike columns are half of them."""
    found = hijacked("sum", 4, cut=2)
    blind = [figure(fsha(), replace(v, labels=None), t)
             for v, t in zip(found.views, found.tasks, strict=True)]  # fmt: skip
    assert blind == pytest.approx([0.5] * 3, abs=0.08)
    assert max(found.r2) < 0.7  # own labels tell something of a third direction


@pytest.mark.slow
def test_what_it_costs_the_task() -> None:
    """A linear top reads a sum off the columns, and goes on; a product it cannot."""
    honest, attacked = (hijacked("sum", 4, on=on).accuracy for on in (False, True))
    assert honest > 0.95
    assert attacked > 0.92
    honest, attacked = (hijacked("product", 4, on=on).accuracy for on in (False, True))
    assert honest > 0.9
    assert attacked < 0.7
    assert min(hijacked("product", 4).r2) > 0.98


def own(strength: float = 1.0, **params: Any) -> tuple[Any, Own]:
    policy = fsha(**params).policy()
    assert policy is not None
    x = torch.tensor([[1.0, 0.0], [3.0, 4.0], [2.0, 8.0]])
    aux = (torch.tensor([7, 3, 9]), {PARTY: x}, torch.tensor([0, 1, 1]))
    return policy, Own(
        "active", torch.tensor([strength]), Streams([0], "x"), classes=2, memory={"aux": [aux]}
    )


def sent(policy: Any, mine: Own, z: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    policy.incoming(Message("embedding", PARTY, "active", z, rows), mine)
    g = torch.full_like(z, 5.0)
    return policy.outgoing(Message("gradient", "active", PARTY, g, rows), mine)


def test_pairs_send_the_way_to_the_pilot_and_nothing_for_other_rows() -> None:
    """f~ is 0, 2 sd and 1 sd from the least: (x - mean) / sd, and zeros beyond the columns."""
    policy, mine = own()
    z = torch.randn(1, 4, 3, generator=rng())
    out = sent(policy, mine, z, torch.tensor([[3, 5, 7, 6]]))
    sd = (2 / 3) ** 0.5, (32 / 3) ** 0.5
    goal = {0: (1 / sd[0], 0.0, 0.0), 2: (-1 / sd[0], -4 / sd[1], 0.0)}
    for i in range(4):
        want = z[0, i] - torch.tensor(goal[i]) if i in goal else torch.zeros(3)
        assert torch.allclose(out[0, i], want, atol=1e-6)
    assert torch.equal(sent(policy, mine, z, torch.tensor([[1, 2, 4, 5]])), torch.zeros_like(z))


def test_a_linear_critic_sends_its_weights_to_all_alike() -> None:
    """d mean D / dz of D = w z + c is w / b, and the penalty is that of the whole row's length."""
    policy, mine = own(use="critic", labelled=False, hidden=())
    z = torch.randn(1, 4, 3, generator=rng())
    out = sent(policy, mine, z, torch.tensor([[3, 5, 7, 6]]))
    (critic,) = mine.memory["critics"].values()
    (w,) = (p for p in critic.net.parameters() if p.dim() == 3)
    w = w.flatten().detach()
    assert torch.allclose(out, w.expand(1, 4, 3) / 4, atol=1e-7)
    steep = critic._steepness(z).detach()
    assert torch.allclose(steep, (w.norm() - 1).square().reshape(1), atol=1e-5)


@pytest.mark.parametrize("use", ["pairs", "critic"])
def test_it_leaves_alone_what_it_cannot_or_may_not_change(use: str) -> None:
    z, rows = torch.randn(1, 4, 3, generator=rng()), torch.tensor([[3, 5, 7, 6]])
    policy, mine = own(strength=0.0, use=use)
    assert torch.equal(sent(policy, mine, z, rows), torch.full_like(z, 5.0))
    policy, mine = own(use=use)
    other = Message("gradient", "active", "passive2", z, rows)
    policy.incoming(Message("embedding", "passive2", "active", z, rows), mine)
    assert torch.equal(policy.outgoing(other, mine), z), "nothing is known of passive2"


@pytest.mark.slow
def test_known_rows_are_not_scored_and_the_critic_does_not_ask_whose_they_are() -> None:
    """Embeddings of auxiliary rows may be anything, and no label of a test row is read."""
    found = hijacked("skewed", 2, "critic", epochs=2)
    view, t = found.views[0], found.views[0].tables[EMBEDDINGS]
    assert view.aux is not None
    aux = view.aux[PARTY][0]
    spoiled = replace(t, tensor=t.tensor.clone())
    spoiled.tensor[torch.isin(t.rows, aux)] = torch.nan
    labels = view.labels.clone()  # type: ignore[union-attr]
    labels[view.targets["test"]] = -1
    blind = replace(view, labels=labels, tables=MappingProxyType({EMBEDDINGS: spoiled}))
    guess, other = (fsha(use="critic").infer(v, rng()) for v in (view, blind))
    assert np.array_equal(guess.scores, other.scores)
    for use in ("pairs", "critic"):
        assert not np.isin(fsha(use=use).infer(view, rng()).rows, aux.numpy()).any()
        assert len(guess.rows) == 360 - 20 - 100


@pytest.mark.slow
def test_noise_on_embeddings_stops_half_and_one_replica_is_as_good_as_two() -> None:
    """Through the engine: controls, scored rows, and figures that depend on no company."""
    tasks = {s: world("sum", s, 4) for s in (0, 1)}
    settings = {"epochs": 20, "lr": 5e-3, "cut": 4, "batch_size": 32}
    spec = AttackSpec("fsha", {}, ("active",), aux_rows=100)

    def run(seeds: tuple[int, ...], *defenses: DefenseSpec) -> list[Any]:
        found = cohort(spec, {s: tasks[s] for s in seeds}, defenses, **settings)
        best = [m for r in found for m in r.measures if m.metric == "r2_column"]
        assert [m.n for m in best] == [240] * len(seeds)
        return [m for r in found for m in r.measures if m.metric == "r2"]

    plain = run((0, 1))
    assert {(m.target, m.metric, m.split, m.n) for m in plain} == {("feature", "r2", "train", 240)}
    assert {"mean", "linear"} <= set(plain[0].controls)
    assert min(m.value for m in plain) > 0.95
    assert run((0,))[0].value == plain[0].value
    noisy = run((0, 1), DefenseSpec("embedding_noise", {}, "", 1.0))
    assert max(m.value for m in noisy) < 0.7


def test_what_it_needs_is_said() -> None:
    x = torch.randn(60, 2, generator=rng())
    view = feature_view(x, x, x, aux=20, facts={"widths": {PARTY: 2}})
    with pytest.raises(ThreatModelError, match="labels of its own"):
        fsha(use="critic").infer(view, rng())
    unclear = replace(view, facts=replace(view.facts, widths={PARTY: 3}))
    with pytest.raises(ThreatModelError):
        fsha(use="critic", labelled=False).infer(unclear, rng())
    quantity = replace(view.facts, classes=1)
    assert "labelled = false" in fsha(use="critic").pointless(quantity)
    assert not fsha(use="critic", labelled=False).pointless(quantity)
    assert not fsha().pointless(quantity)


@pytest.mark.slow
@pytest.mark.parametrize("made", sampled(["quantity", "several"]))
def test_it_needs_no_classes_where_it_looks_at_none(made: str) -> None:
    """Its policy was refused beside a quantity or several labels, as if it were a defense."""
    task = small_task(0, n=240)
    values = task.x[PARTY][:, :2].sum(1) + task.x["active"][:, 0]
    if made == "quantity":
        task = replace(task, label=Quantity(), y=torch.zeros_like(task.y), values=values)
    else:
        each = torch.stack([values > 0, task.x[PARTY][:, 2] > 0], dim=1).double()
        task = replace(task, label=MultiLabel(("a", "b")), values=each)
    asked = [
        AttackSpec("fsha", params, ("active",), aux_rows=60)
        for params in ({}, {"use": "critic", "labelled": False}, {"use": "critic"})
    ]
    found = {}
    for spec in asked:
        result = cohort(spec, {0: task}, epochs=6)[-1]
        found[spec.label] = next(m for m in result.measures if m.metric in ("r2", ""))
    assert found["fsha"].value is not None
    assert found["fsha"].value > 0.3
    assert found["fsha(labelled=False, use=critic)"].status == "ok"
    assert "fsha needs classes" in found["fsha(use=critic)"].reason


@pytest.mark.slow
def test_each_embedding_of_a_step_has_a_pilot_as_wide_as_it_is() -> None:
    """The pilot of the first width was taken for all: `fedcvt`, which sends blocks too, ended in an
    internal error, and so did critics of messages with and without labels.
    """
    task = small_task(0, n=160, unaligned=80)
    asked = [AttackSpec("fsha", p, ("active",), aux_rows=40) for p in ({}, {"use": "critic"})]
    for spec in asked:
        result = cohort(spec, {0: task}, algorithm="fedcvt", epochs=5, batch_size=32)[-1]
        found = next(m for m in result.measures if m.metric in ("r2", ""))
        assert found.status == "ok"
        assert found.value is not None
        assert spec.params or found.value > 0.3
