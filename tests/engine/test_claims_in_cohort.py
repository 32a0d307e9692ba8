"""Canaries in the real cohort: true claims stand, broken ones are found, idle policies fail."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from vflsec import registry
from vflsec.cell import CellSpec, DefenseSpec
from vflsec.defenses.embedding_noise import EmbeddingNoise
from vflsec.defenses.label_dp import LabelDP, keep_probability
from vflsec.defenses.learned_prior import LearnedPrior
from vflsec.engine.cohort import run_cohort
from vflsec.message import Message
from vflsec.policy import Guarantee, Own, Policy
from vflsec.testing import small_task
from vflsec.train.planted import plant_labels, plant_rows

SEEDS = 20


@dataclass(frozen=True)
class Claims(Policy):
    """Claims epsilon 1 / strength for whatever was counted."""

    name: ClassVar[str] = "broken"
    counted = "labels"

    def guarantee(self, strength: float, facts: dict[str, Any]) -> Guarantee:
        if not facts["uses"].most or strength <= 0:
            return Guarantee()
        return Guarantee("label", 1.0 / strength, 0.0, "a closed form", 1, "a label", "change", "x")


class HalfFlips(Claims):
    """Randomised response that flips half as often as it should."""

    def labels(self, y: Tensor, own: Own) -> Tensor:
        keep = (1 + keep_probability(1 / own.strength, own.classes).unsqueeze(1)) / 2
        coin = own.rng.uniform(y.shape[1:], dtype=torch.float64)
        return torch.where((coin < keep) | (y < 0), y, 1 - y)


class ThirdPaid(LearnedPrior):
    """A learned prior whose answers and statistic cost three times what it claims."""

    name: ClassVar[str] = "broken"

    def labels(self, y: Tensor, own: Own) -> Tensor:
        own.strength, told = own.strength / 3, own.strength
        out = super().labels(y, own)
        own.strength = told
        return out


class LongEmbeddings(EmbeddingNoise):
    """Noise for rows of length C on rows that nobody shortened."""

    name: ClassVar[str] = "broken"

    def outgoing(self, message: Message, own: Own) -> Tensor:
        noise = own.rng.laplace(message.tensor.shape[1:])
        return message.tensor + own.column(message.tensor) * noise


class FlipsAgain(Claims):
    """Randomised response that forgets what it answered."""

    def labels(self, y: Tensor, own: Own) -> Tensor:
        return y.clone()

    def loss(self, logits: Tensor, y: Tensor, own: Own) -> Tensor | None:
        keep = keep_probability(1 / own.strength, own.classes).unsqueeze(1)
        coin = own.rng.uniform(y.shape[1:], dtype=torch.float64)
        used = torch.where(coin < keep, y, 1 - y)
        return -torch.log_softmax(logits, -1).gather(2, used.unsqueeze(2)).squeeze(2)


class NoiseBeforeClipping(Claims):
    """Noise of the clipped scale on rows that are only clipped afterwards."""

    counted = "outgoing"
    covers = frozenset({"gradient"})

    def outgoing(self, message: Message, own: Own) -> Tensor:
        scale = 1e-3 * own.column(message.tensor)
        noisy = message.tensor + scale * own.rng.laplace(message.tensor.shape[1:])
        return noisy.clamp(-1e-3, 1e-3)


def contradicted(
    monkeypatch: pytest.MonkeyPatch, policy: Policy, strength: float = 1.0, epochs: int = 6,
) -> list[bool]:  # fmt: skip
    """Whether each seed's canaries contradict the claim of `policy`."""
    create = registry.defenses.create
    monkeypatch.setattr(
        registry.defenses, "create",
        lambda name, params=None: policy if name == "broken" else create(name, params or {}),
    )  # fmt: skip
    tasks = {s: small_task(s, n=2400) for s in range(SEEDS)}
    params = {"epochs": epochs, "patience": 0, "lr": 0.01, "hidden": [8], "cut": 4}
    cells = [
        CellSpec({"name": "w"}, "splitnn", params, (DefenseSpec("broken", strength=strength),), s)
        for s in range(SEEDS)
    ]
    found = []
    for result in run_cohort(cells, [], tasks, device="cpu"):
        (row,) = [m for m in result.measures if m.metric == "epsilon_lower"]
        found.append(float(row.value or 0) > float(row.notes["claimed"]))
    return found


@pytest.mark.parametrize("broken", [HalfFlips(), FlipsAgain(), NoiseBeforeClipping(), ThirdPaid()])
def test_broken_policies_are_contradicted(monkeypatch: pytest.MonkeyPatch, broken: Policy) -> None:
    assert sum(contradicted(monkeypatch, broken)) >= 19


@pytest.mark.parametrize("strength", [1.0, 0.4])
def test_true_randomised_response_is_not(monkeypatch: pytest.MonkeyPatch, strength: float) -> None:
    """At 99 % more than two of twenty false alarms come once in a thousand times."""
    assert sum(contradicted(monkeypatch, LabelDP(), strength)) <= 2


def test_clipped_laplace_embeddings_stand_and_unclipped_ones_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Canaries are rows of the passive party, one of two loud ones."""
    for policy, least, most in (
        (EmbeddingNoise(distribution="laplace"), 0, 2), (LongEmbeddings(), 19, 20),
    ):  # fmt: skip
        with monkeypatch.context() as patch:
            assert least <= sum(contradicted(patch, policy, 8.0, epochs=2)) <= most


def test_nor_is_a_true_learned_prior(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sum(contradicted(monkeypatch, LearnedPrior(), 0.4)) <= 2


def test_canaries_replace_labels_or_rows_of_the_training_set_alone() -> None:
    task = small_task(0)
    changed, planted = plant_labels(task, 3)
    assert changed.given is not None
    assert torch.equal(changed.y, task.y)
    elsewhere = torch.ones(len(task.y), dtype=torch.bool)
    elsewhere[planted.rows] = False
    assert torch.equal(changed.given[elsewhere], task.y[elsewhere])
    assert set(planted.rows.tolist()) <= set(task.sets["labelled"].tolist())
    assert 0.3 < float(planted.coins.double().mean()) < 0.7
    again = plant_labels(task, 3)[1]
    assert torch.equal(again.rows, planted.rows)
    assert torch.equal(again.coins, planted.coins)
    assert not torch.equal(plant_labels(task, 4)[1].rows, planted.rows)
    other, rows = plant_rows(task, "passive1", 3)
    assert torch.equal(other.x["active"], task.x["active"])
    assert len(other.x["passive1"][rows.rows].unique(dim=0)) == 2
    assert torch.equal(other.y, task.y)


def test_the_audited_training_itself_has_no_canaries() -> None:
    """What the report shows of utility and attacks comes from labels as they are."""
    tasks = {0: small_task(0)}
    cells = [
        CellSpec({"name": "w"}, "splitnn", {"epochs": 2}, (DefenseSpec("label_dp", strength=s),), 0)
        for s in (0.0, 0.5)
    ]
    plain, both = (run_cohort(cells, [], tasks, device="cpu", main=m) for m in (True, True))
    assert [m.value for m in plain[0].measures] == [m.value for m in both[0].measures]
    assert not [m for m in plain[0].measures if m.metric == "epsilon_lower"]
    assert len([m for m in plain[1].measures if m.metric == "epsilon_lower"]) == 1


def test_an_idle_policy_fails(tmp_path: Any) -> None:
    """Noise on gradients where none is sent protects nothing, however it is configured."""
    from vflsec.engine.run import run_audit

    made = run_audit(
        {
            "data": {"name": "leaky"},
            "algorithm": {"name": "splitnn", "epochs": 1},
            "defense": [{"name": "embedding_noise", "strength": [1.0], "party": "active"}],
            "attack": [{"name": "norm"}],
            "audit": {"seeds": 1, "references": []},
        },
        tmp_path,
    )
    (mine,) = [v for v in made.verdicts if v.gate.metric == "epsilon_lower"]
    assert mine.verdict == "FAIL"
    assert "never called" in mine.reason
