"""The backdoor by a trigger on embeddings: its trigger, its rows, its success and its cost."""

from __future__ import annotations

from statistics import mean
from typing import Any

import pytest
import torch
from cohorts import cohort
from sampled import sampled

from vflsec.attacks.villain import Poison, Villain
from vflsec.core.message import Message
from vflsec.core.policy import Own
from vflsec.core.rng import Streams, generator
from vflsec.core.task import Stack
from vflsec.core.view import Known
from vflsec.errors import ConfigError
from vflsec.plugins import registry
from vflsec.specs import AttackSpec, DefenseSpec
from vflsec.testing import small_task
from vflsec.testing.worlds import train
from vflsec.train.views import draw_known_rows

SEEDS = (0, 1, 2)


def run(name: str, *defenses: DefenseSpec, signal: float = 2.0, **params: Any) -> dict[str, float]:
    """Means over seeds of success, success without the attack, and clean accuracy."""
    tasks = {s: small_task(s, n=600, signal=signal) for s in SEEDS}
    attack = AttackSpec(name, params, ("passive1",))
    found: dict[str, list[float]] = {"success": [], "clean": [], "accuracy": []}
    for result in cohort(attack, tasks, defenses, epochs=12, batch_size=32):
        by = {m.metric: m for m in result.measures}
        found["success"].append(by["success_rate"].value)  # type: ignore[arg-type]
        found["clean"].append(by["success_rate"].controls["clean"]["value"])  # type: ignore[arg-type]
        found["accuracy"].append(by["clean_accuracy"].value)  # type: ignore[arg-type]
    return {k: mean(v) for k, v in found.items()}


def own() -> Own:
    known = Known(torch.tensor([0, 1]), torch.tensor([1, 0]))
    return Own("passive1", torch.ones(1), Streams([0], "x"), memory={"known": [known]})


def test_the_trigger_is_the_published_one_and_waits_for_inference() -> None:
    """+d, +d, -d, -d on the coordinates of largest deviation, times beta; nothing until then."""
    mine = own()
    attack = Villain(start=1, period=1, size=4, beta=0.4, signs="fixed", share=0.0)
    policy = attack.policy()
    rows = torch.arange(50).unsqueeze(0)
    sd = torch.tensor([1.0, 5.0, 0.1, 4.0, 3.0, 2.0])
    z = torch.randn(1, 50, 6, generator=generator(0, "z")) * sd

    def sent(epoch: int, phase: str = "train") -> torch.Tensor:
        m = Message("embedding", "passive1", "active", z, rows, phase, epoch, epoch)
        out = policy.outgoing(m, mine)
        back = Message("gradient", "active", "passive1", z, rows, phase, epoch, epoch)
        if phase == "train":
            policy.incoming(back, mine)
        return out

    for epoch in range(3):
        sent(epoch)
    mine.memory["attacking"] = True
    d = z[0].std(0, correction=0)[[1, 3, 4, 5]].mean() * 0.4
    expected = torch.zeros(6)
    expected[[1, 3, 4, 5]] = torch.stack([d, d, -d, -d])
    assert torch.allclose(sent(2, "predict") - z, expected.expand_as(z), atol=1e-5)
    mine.memory.pop("attacking")
    assert torch.equal(sent(2, "predict"), z)


@pytest.mark.parametrize("goal", [0, 1])
def test_rows_with_the_shortest_gradients_are_of_the_goal(goal: int) -> None:
    """The attacker chooses by its probes alone: 5 % of rows, three quarters not granted."""
    tasks = {s: small_task(s, n=600) for s in SEEDS}
    known = [draw_known_rows(tasks[s], s, 10) for s in SEEDS]
    policy = Villain(goal=goal, share=0.05).policy()
    assert isinstance(policy, Poison)
    algorithm = registry.algorithms.create("splitnn", {"epochs": 6, "batch_size": 32})
    stack = Stack.build(tasks, list(SEEDS))
    on = {"passive1": [(policy, torch.ones(len(SEEDS)))]}
    fed = train(algorithm, stack, list(SEEDS), on, known=known).fed
    for r, chosen in enumerate(fed.parties["passive1"].bindings[0].own.memory["chosen"]):
        assert len(chosen) == 18
        assert bool(torch.isin(chosen, tasks[r].sets["labelled"]).all())
        guessed = chosen[~torch.isin(chosen, known[r].rows)]
        assert len(guessed) == 13
        right = int((tasks[r].y[guessed] == goal).sum())
        assert right >= 11, "a coin gets as far once in ninety"


@pytest.mark.slow
def test_it_turns_predictions_and_costs_less_than_gradient_replacement() -> None:
    ours, theirs = run("villain"), run("gradient_replacement", value=6.0)
    assert ours["success"] > 0.9
    assert ours["clean"] < 0.15
    assert theirs["success"] > 0.9
    assert ours["accuracy"] > theirs["accuracy"] + 0.03


def test_a_trigger_of_strength_zero_turns_nothing() -> None:
    found = run("villain", beta=0.0)
    assert found["success"] == found["clean"]


@pytest.mark.slow
def test_the_published_signs_live_by_the_poison() -> None:
    """The null of the poison: no row is trained with the trigger, which then means nothing."""
    poisoned = run("villain", signs="fixed", share=0.1)
    clean = run("villain", signs="fixed", share=0.0)
    assert poisoned["success"] > clean["success"] + 0.25
    assert poisoned["accuracy"] > 0.9


@pytest.mark.parametrize(
    ("defense", "low", "high"),
    sampled(
        [
            (DefenseSpec("noise", {}, "", 1.0), 0.3, 0.8),
            (DefenseSpec("iso", {}, "", 5.0), 0.6, 1.0),
            (DefenseSpec("embedding_noise", {}, "", 1.0), 0.8, 1.0),
        ]
    ),
)
def test_success_under_a_defense(defense: DefenseSpec, low: float, high: float) -> None:
    """Noise on gradients far above them spoils signs and probes; the others leave the trigger."""
    assert low < run("villain", defense)["success"] <= high


def test_where_the_active_party_decides_it_does_little() -> None:
    found = run("villain", signal=0.0)
    assert found["success"] < 0.6


def test_without_a_known_row_of_the_goal_it_says_so() -> None:
    attack = AttackSpec("villain", {"goal": 1}, ("passive1",), known_rows=1)
    tasks = {0: small_task(0, n=600)}
    assert draw_known_rows(tasks[0], 0, 1).labels.tolist() == [0]
    (result,) = cohort(attack, tasks, epochs=6, batch_size=32)
    assert {m.status for m in result.measures} == {"error"}
    assert "no known row of the goal class" in result.measures[0].reason


def test_parameters_are_checked() -> None:
    with pytest.raises(ConfigError, match=r"villain\.shift"):
        registry.attacks.create("villain", {"shift": (1.2, 0.6)})
    with pytest.raises(ConfigError, match="carrier must be one of"):
        registry.attacks.create("villain", {"carrier": "nobody"})
