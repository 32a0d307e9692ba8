"""Policies that claim and leave some of what they protect as it was: the claim ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from broken_claims import registered
from torch import Tensor

from vflsec.core.policy import Own, Policy
from vflsec.core.privacy_usage import Counter
from vflsec.defenses.dpsgd import DPSGD
from vflsec.defenses.embedding_noise import EmbeddingNoise
from vflsec.defenses.noise import Noise
from vflsec.defenses.ppdl import PPDL
from vflsec.specs import CellSpec, DefenseSpec
from vflsec.testing import small_task
from vflsec.train.cohort import Training

PARAMS = {"epochs": 2, "patience": 0, "batch_size": 32, "hidden": [4], "cut": 3, "lr": 0.01}


@dataclass(frozen=True)
class SkipsAParty(EmbeddingNoise):
    """Noise on the embeddings of all parties but one."""

    name: ClassVar[str] = "broken"
    left: str = ""

    def outgoing(self, message: Any, own: Own) -> Tensor:
        if own.party == self.left:
            return message.tensor.clone()  # type: ignore[no-any-return]
        return super().outgoing(message, own)


@dataclass(frozen=True)
class SkipsTheLast(Noise):
    """Noise on gradients but those of a batch of fewer rows than the first."""

    name: ClassVar[str] = "broken"

    def outgoing(self, message: Any, own: Own) -> Tensor:
        if message.tensor.shape[1] < PARAMS["batch_size"]:  # type: ignore[operator]
            return message.tensor.clone()  # type: ignore[no-any-return]
        return super().outgoing(message, own)


@dataclass(frozen=True)
class SkipsARow(EmbeddingNoise):
    """Noise on all rows of a batch but the first."""

    name: ClassVar[str] = "broken"

    def outgoing(self, message: Any, own: Own) -> Tensor:
        out = super().outgoing(message, own).clone()
        out[:, 0] = message.tensor[:, 0]
        return out


@dataclass(frozen=True)
class SkipsBiases(DPSGD):
    """Noise on the gradients of weights alone."""

    name: ClassVar[str] = "broken"

    def gradients(self, plain, rows, own: Own):  # type: ignore[no-untyped-def]
        made = super().gradients(plain, rows, own)
        return [g if g is not None and g.dim() == 2 else m for g, m in zip(plain, made)]


@dataclass(frozen=True)
class SkipsPrediction(EmbeddingNoise):
    """Noise in training alone."""

    name: ClassVar[str] = "broken"

    def outgoing(self, message: Any, own: Own) -> Tensor:
        if message.phase == "predict":
            return message.tensor.clone()  # type: ignore[no-any-return]
        return super().outgoing(message, own)


def claim(policy: Policy, party: str = "", name: str = "broken", strength: float = 4.0) -> Any:
    """Of replica 0; replica 1 has it switched off."""
    tasks = {s: small_task(s, widths=(4, 6, 6)) for s in (0, 1)}
    made = [(DefenseSpec(name, {}, party, x),) for x in (strength, 0.0)]
    cells = [CellSpec({"name": "w"}, "splitnn", PARAMS, d, s) for d, s in zip(made, tasks)]
    with registered(policy):
        training = Training(cells, (), tasks, torch.device("cpu"))
        for _ in training.run():
            pass
    return training.guarantee(training.defenses[0], strength, 0)


LEFT = {
    "a party": (SkipsAParty(left="passive2"), "passive", "embedding messages"),
    "a row": (SkipsARow(), "passive", "embedding messages"),
    "prediction": (SkipsPrediction(), "passive", "embedding messages"),
    "the last batch": (SkipsTheLast("gaussian", 0.1), "", "gradient messages"),
    "biases": (SkipsBiases(), "all", "own gradients"),
}


@pytest.mark.parametrize("what", LEFT)
def test_what_a_policy_leaves_as_it_was_ends_its_claim(what: str) -> None:
    """Canaries of one party, and of the few rows of a last batch, told nothing of it: of 3 parties
    one sent its embeddings bare, beside an epsilon of 2 that nothing contradicted on 6 seeds.
    """
    policy, party, left = LEFT[what]
    found = claim(policy, party)
    assert found.epsilon is None
    assert found.reason == f"its hook leaves {left} as they were"


@pytest.mark.parametrize(
    ("policy", "party"),
    [(SkipsAParty(), "passive"), (SkipsAParty(distribution="laplace"), "passive"),
     (Noise("gaussian", 0.1), ""), (Noise("laplace", 0.1), ""), (DPSGD(), "all"),
     (PPDL(share=1.0), "")],
)  # fmt: skip
def test_what_treats_all_rows_keeps_its_claim(policy: Policy, party: str) -> None:
    assert claim(policy, party, strength=4.0).epsilon is not None


def test_zeros_single_numbers_and_replicas_that_are_off_are_left() -> None:
    counter = Counter(3, 8)
    x = torch.randn(3, 8, 2)
    noisy = x + 1.0
    noisy[1] = x[1]  # this one is off
    x[2, 3] = noisy[2, 3] = 0.0
    counter.untouched("rows", x, noisy, torch.tensor([True, False, True]))
    single = torch.randn(3, 8, 1)
    half = torch.cat([single[:, :4], single[:, 4:] + 1.0], dim=1)
    counter.untouched("numbers", single, half, torch.ones(3, dtype=torch.bool))
    assert counter.past == []
    counter.alive = torch.tensor([True, True, False])
    counter.untouched("numbers", single, single.clone(), torch.tensor([True, False, True]))
    assert counter.past == ["its hook leaves numbers as they were"]
    assert [bool(counter.uses(r).past) for r in range(3)] == [True, False, False]
