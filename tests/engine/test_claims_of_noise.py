"""Gaussian noise that is less than its claim says: epsilon at a small delta lies where no canary
reaches, and how often coins are guessed at all does not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy import special

from vflsec.core.message import Message
from vflsec.core.policy import Guarantee, Policy
from vflsec.core.privacy_usage import RunFacts, Uses
from vflsec.defenses.embedding_noise import EmbeddingNoise
from vflsec.defenses.noise import Noise
from vflsec.engine.cohort import run_cohort
from vflsec.engine.run import run_audit
from vflsec.epsilon import one_run_bound as coins
from vflsec.epsilon.canaries import CoinDifference, Planted
from vflsec.specs import CellSpec, DefenseSpec
from vflsec.testing import small_task
from vflsec.train.mechanism_counts import check_guarantee

GAUSSIAN: dict[str, Any] = {"clip": 0.05, "distribution": "gaussian"}
SHAPE = {"epochs": 3, "patience": 0, "lr": 0.01, "hidden": [8], "cut": 4}


def quieten(monkeypatch: pytest.MonkeyPatch, defense: type[Policy], times: float) -> None:
    """Let `defense` add so many times less noise than it says."""
    plain = defense.outgoing

    def outgoing(self: Any, message: Any, own: Any) -> Any:
        return plain(self, message, replace(own, strength=own.strength / times))

    monkeypatch.setattr(defense, "outgoing", outgoing)


def p_values(name: str, params: dict[str, Any], widths: tuple[int, ...]) -> tuple[float, float]:
    """Of 5 seeds together: p of epsilon at its delta, and of how often coins are guessed."""
    tasks = {s: small_task(s, n=2400, widths=widths) for s in range(5)}
    made = (DefenseSpec(name, params, "", 3.0),)
    cells = [CellSpec({"name": "w"}, "splitnn", SHAPE, made, s) for s in tasks]
    results = run_cohort(cells, [], tasks, device="cpu")
    (claim,) = {(g["epsilon"], g["delta"], g["chance"], g["releases"]) for r in results
                for g in r.guarantees}  # fmt: skip
    epsilon, delta, chance, releases = claim
    assert chance == pytest.approx(special.ndtr(math.sqrt(releases) / 3))
    looks = [
        m.notes["looks"] for r in results for m in r.measures
        if m.metric == "epsilon_lower" and m.target == f"claim of {name}"
    ][:5]  # fmt: skip
    return coins.refuted(looks, epsilon, delta), coins.too_often(looks, chance, 0.99)[0]


@pytest.mark.parametrize("widths", [(4, 4), (4, 4, 3)])
@pytest.mark.parametrize(
    ("defense", "params", "times"), [(Noise, GAUSSIAN, 1.5), (EmbeddingNoise, {}, 3.0)]
)
def test_too_little_noise_is_found_and_enough_is_not(
    monkeypatch: pytest.MonkeyPatch,
    defense: type[Policy],
    params: dict[str, Any],
    times: float,
    widths: tuple[int, ...],
) -> None:
    """Embeddings of loud rows lie half to nine tenths as far apart as they may."""
    name = defense.name
    assert min(p_values(name, params, widths)) > 0.01
    quieten(monkeypatch, defense, times)
    by_epsilon, by_chance = p_values(name, params, widths)
    assert by_epsilon > 0.1
    assert by_chance < 1e-4


@pytest.mark.parametrize(("times", "verdict"), [(1.0, "PASS"), (2.0, "FAIL")])
def test_the_audit_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, times: float, verdict: str
) -> None:
    quieten(monkeypatch, Noise, times)
    made = run_audit(
        {
            "data": {"name": "leaky"},
            "algorithm": {"name": "splitnn", "epochs": 3},
            "defense": [{"name": "noise", "strength": [2.0], **GAUSSIAN}],
            "attack": [{"name": "norm", "known_rows": 0}],
            "audit": {"seeds": 3, "references": [], "positive_control": False},
        },
        tmp_path,
    )
    (found,) = [v for v in made.verdicts if v.gate.metric == "epsilon_lower"]
    assert found.verdict == verdict
    assert found.value is not None
    assert found.value < 8.385  # what is claimed
    assert ("its noise lets 80.7 %" in found.reason) == (verdict == "FAIL")


def test_how_often_is_a_binomial_tail() -> None:
    """All guesses of all trainings count, those that dared little with the rest."""
    looks = [((60, 48), (30, 30)), ((40, 33), (20, 20))]
    p, least = coins.too_often(looks, 0.7, 0.95)
    exact = sum(math.comb(100, k) * 0.7**k * 0.3 ** (100 - k) for k in range(81, 101))
    assert p == pytest.approx(exact, rel=1e-9)
    above = sum(math.comb(100, k) * least**k * (1 - least) ** (100 - k) for k in range(81, 101))
    assert above == pytest.approx(0.05, rel=1e-6)


@pytest.mark.parametrize("chance", [0.49, 1.01, math.nan])
def test_a_chance_that_is_none_claims_nothing(chance: float) -> None:
    @dataclass(frozen=True)
    class Odd(Noise):
        def guarantee(self, strength: float, facts: RunFacts) -> Guarantee:
            return replace(super().guarantee(strength, facts), chance=chance)

    facts = RunFacts(uses=Uses(counted=3), labelled=100)
    made = check_guarantee(Odd(**GAUSSIAN), 2.0, facts)
    assert made.epsilon is None
    assert "to guess a fair coin" in made.reason
    assert check_guarantee(Noise(**GAUSSIAN), 2.0, facts).epsilon == pytest.approx(8.385, abs=1e-3)


def test_messages_differ_along_what_the_known_coins_tell() -> None:
    """Of half the canaries, whose coins the guesser knows: the difference of their means, summed
    over the messages of a phase and before any noise.
    """
    g = torch.Generator().manual_seed(1)
    rows, coins = torch.tensor([[4, 1, 2, 0, 3, 5]]), torch.tensor([1, 0, 1, 0, 1, 1])
    apart = CoinDifference([Planted(rows[0], coins)], 7, torch.device("cpu"), ("embedding",))
    x = torch.randn(2, 1, 7, 3, generator=g, dtype=torch.float64)
    for kind, phase, step in (("embedding", "train", 0), ("embedding", "train", 1),
                              ("embedding", "later", 0), ("gradient", "train", 0)):  # fmt: skip
        every = torch.arange(7).flip(0).unsqueeze(0)
        sent = x[step][:, every[0]]
        apart(Message(kind, "passive", "active", sent, every, phase=phase))  # type: ignore[arg-type]
    first = (x[:, 0, 4] + x[:, 0, 2]) / 2 - x[:, 0, 1]  # coins 1, 1 and 0; row 3 is not known
    table = torch.randn(6, 3, generator=g, dtype=torch.float64)
    of = ("embedding", "active")
    assert torch.allclose(apart.along(table, 0, "train", *of)[:, 0], table @ first.sum(0))
    assert torch.allclose(apart.along(table, 0, "later", *of)[:, 0], table @ first[0])
    assert apart.along(table, 0, "train", "gradient", "active") is table


def test_messages_of_several_senders_stand_side_by_side_and_those_of_others_tell_nothing() -> None:
    """As in the tables; a row that a coin decides shows in its owner's messages."""
    rows, coins = torch.arange(4), torch.tensor([1, 0, 0, 1])
    x = torch.arange(8.0, dtype=torch.float64).reshape(1, 4, 2) ** 2
    table = torch.tensor([[1.0, 10.0, 100.0, 1000.0]], dtype=torch.float64)
    for sender, told in (("", (-4, -8, -8, -16)), ("b", (0, 0, -8, -16))):
        apart = CoinDifference(
            [Planted(rows, coins)], 4, torch.device("cpu"), ("embedding",), sender
        )
        for who, times in (("a", 1.0), ("b", 2.0)):
            apart(Message("embedding", who, "c", times * x, rows.unsqueeze(0)))
        along = apart.along(table, 0, "train", "embedding", "c")
        assert along.tolist() == [[float(table[0] @ torch.tensor(told, dtype=torch.float64))]]
    apart(Message("embedding", "b", "c", 3 * x, rows.unsqueeze(0), name="more"))
    every = apart.along(torch.ones(1, 6).double(), 0, "train", "embedding", "c")
    first = apart.along(torch.ones(1, 4).double(), 0, "train", "embedding", "c")
    assert (float(every), float(first)) == (-24 - 12 - 24, -24)
