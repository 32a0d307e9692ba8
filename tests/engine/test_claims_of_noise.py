"""Noise that is not what its claim says: epsilon at a small delta lies where no canary reaches, and
the noise itself does not.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from audited import quick
from sampled import sampled
from scipy import stats
from torch import Tensor

from vflsec.audit.gate import Rule
from vflsec.core.message import Message
from vflsec.core.policy import Own, Policy
from vflsec.core.policy_binding import Binding
from vflsec.core.rng import Streams
from vflsec.defenses.embedding_noise import EmbeddingNoise
from vflsec.defenses.noise import Noise
from vflsec.engine.cohort import run_cohort
from vflsec.engine.run import run_audit
from vflsec.epsilon import one_run_bound as coins
from vflsec.epsilon.named_noise import NoiseWitness
from vflsec.epsilon.one_run_bound import Fault, Heard, combine, find_least_noise
from vflsec.specs import CellSpec, DefenseSpec
from vflsec.testing import small_task

pytestmark = pytest.mark.usefixtures("no_reports")

GAUSSIAN: dict[str, Any] = {"clip": 0.05, "distribution": "gaussian"}
SHAPE = {"epochs": 3, "patience": 0, "lr": 0.01, "hidden": [8], "cut": 4}


def quieten(monkeypatch: pytest.MonkeyPatch, defense: type[Policy], times: float) -> None:
    """Let `defense` add so many times less noise than it says."""
    plain = defense.outgoing

    def outgoing(self: Any, message: Any, own: Any) -> Any:
        return plain(self, message, replace(own, strength=own.strength / times))

    monkeypatch.setattr(defense, "outgoing", outgoing)


def p_values(name: str, params: dict[str, Any], widths: tuple[int, ...]) -> dict[Fault, float]:
    """Of each fault of the noise, of 3 seeds together."""
    tasks = {s: small_task(s, n=300, widths=widths) for s in range(3)}
    made = (DefenseSpec(name, params, "", 3.0),)
    cells = [CellSpec({"name": "w"}, "splitnn", SHAPE, made, s) for s in tasks]
    found = [m for r in run_cohort(cells, [], tasks, device="cpu") for m in r.measures]
    heard = [Heard.read(m.notes["noise"]) for m in found if m.target == f"claim of {name}"]
    assert len(heard) == 3
    assert all(h == Heard.read(h.fields()) for h in heard)
    return combine(heard)


@pytest.mark.parametrize("widths", sampled([((4, 4, 3),), ((4, 4),)]))
@pytest.mark.parametrize("defense", [Noise, EmbeddingNoise])
def test_a_tenth_less_noise_is_found_and_enough_is_not(
    monkeypatch: pytest.MonkeyPatch, defense: type[Policy], widths: tuple[int, ...]
) -> None:
    params = GAUSSIAN if defense is Noise else {}
    assert min(p_values(defense.name, params, widths).values()) > 0.001
    quieten(monkeypatch, defense, 1 / 0.9)
    p = p_values(defense.name, params, widths)
    assert p[Fault.LESS] < 1e-6
    assert min(p[Fault.REPEATED], p[Fault.TOO_FAR], p[Fault.COUPLED]) == 1.0


@pytest.mark.parametrize(("times", "verdict"), [(1.0, "PASS"), (2.0, "FAIL")])
def test_the_audit_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, times: float, verdict: str
) -> None:
    quieten(monkeypatch, Noise, times)
    made = run_audit(quick({"name": "noise", "strength": [2.0], **GAUSSIAN}), tmp_path)
    (found,) = [v for v in made.verdicts if v.gate.metric == "epsilon_lower"]
    assert found.verdict == verdict
    assert found.value is not None
    assert found.value < 8.385  # what is claimed
    assert found.noise_found is not None
    assert 0.9 < found.noise_found < 1
    failed = verdict == "FAIL"
    assert (found.rule == Rule.TOO_LITTLE_NOISE, found.detail == Fault.LESS) == (failed, failed)


class Broken(Noise):
    """Noise whose numbers (R, b, m) and rows a test changes."""

    def outgoing(self, message: Message, own: Own) -> Tensor:
        g = message.tensor.double()
        noise = own.rng.normal(g.shape[1:], active=own.active, dtype=torch.float64)
        clipped, noise = self.change(g, noise)  # type: ignore[attr-defined]
        return clipped + own.column(g) * noise


def clipped(g: Tensor) -> Tensor:
    """Rows of a norm of 1 at most."""
    return g / torch.linalg.vector_norm(g, dim=2, keepdim=True).clamp_min(1.0)


def batch_clipped(g: Tensor) -> Tensor:
    """Rows that share the length of the longest."""
    return g / torch.linalg.vector_norm(g, dim=2, keepdim=True).amax(1, keepdim=True).clamp_min(1)


def spared(noise: Tensor) -> Tensor:
    out = noise.clone()
    out[:, 3] = 0.0
    return out


FIXED = torch.randn(1, 8, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def witnessed(policy: Policy, steps: int, shape: tuple[int, ...] = (4,), seeds: int = 1) -> Heard:
    """What is found in so many messages of 8 rows of four numbers, in the first replica."""
    each = [*range(5, 5 + seeds)]
    witness = NoiseWitness(each)
    strength = torch.full((seeds,), 2.0, dtype=torch.float64)
    own = Own("active", strength, Streams(each, "test", dtype=torch.float64))
    binding = Binding(policy, own, witness=witness)
    draws = torch.Generator().manual_seed(1)
    for step in range(steps):
        x = 0.3 * torch.randn(seeds, 8, *shape, generator=draws, dtype=torch.float64)
        rows = torch.arange(8).expand(seeds, 8)
        binding.call("outgoing", Message("gradient", "active", "passive", x, rows, step=step))
    heard = witness.find(policy, 0)
    assert heard is not None
    assert heard.numbers == steps * 8 * 4
    return heard


@pytest.mark.parametrize(
    ("fault", "change"),
    [
        (None, lambda g, n: (clipped(g), n)),
        (Fault.LESS, lambda g, n: (clipped(g), 0.5 * n)),
        (Fault.SHARED, lambda g, n: (clipped(g), n[:, :1].expand_as(n))),
        (Fault.SHARED, lambda g, n: (clipped(g), n[:, :, :1].expand_as(n))),
        (Fault.MISSING, lambda g, n: (clipped(g), spared(n))),
        (Fault.REPEATED, lambda g, n: (clipped(g), FIXED)),
        (Fault.TOO_FAR, lambda g, n: (g, n)),
        (Fault.TOO_FAR, lambda g, n: (torch.cat([clipped(g[:, :6]), g[:, 6:]], dim=1), n)),
        (Fault.LAW, lambda g, n: (clipped(g), 12**0.5 * (torch.special.ndtr(n) - 0.5))),
        (Fault.COUPLED, lambda g, n: (batch_clipped(g), n)),
    ],
)
def test_each_fault_is_told_from_intact_noise(fault: Fault | None, change: Any) -> None:
    policy = Broken(clip=1.0, distribution="gaussian")
    object.__setattr__(policy, "change", change)
    heard = witnessed(policy, 60)
    found = {f for f, p in heard.p.items() if p < 1e-5}
    assert found if fault else not found
    assert fault is None or fault in found
    certain = {Fault.REPEATED, Fault.TOO_FAR, Fault.COUPLED}
    assert found & certain == {fault} & certain


@pytest.mark.parametrize("shape", [(4,), (2, 2), (1, 2, 2)])
def test_rows_of_any_shape_are_made_loud(shape: tuple[int, ...]) -> None:
    found = witnessed(Noise(clip=1.0, distribution="gaussian"), 6, shape, seeds=2)
    assert min(found.p.values()) > 1e-3
    assert found.p[Fault.TOO_FAR] == 1.0


class Alternating(Noise):
    """Gaussian noise of the claimed scale, which every second call takes back."""

    def outgoing(self, message: Message, own: Own) -> Tensor:
        g, step = message.tensor, int(message.step or 0) + self.first  # type: ignore[attr-defined]
        draws = torch.Generator().manual_seed(step // 2)
        noise = torch.randn(g.shape[1:], generator=draws, dtype=torch.float64)
        return clipped(g) + own.column(g) * noise * (-1) ** step


@pytest.mark.parametrize("first", [0, 1])
def test_noise_that_calls_take_back_is_shared(first: int) -> None:
    policy = Alternating(clip=1.0, distribution="gaussian")
    object.__setattr__(policy, "first", first)
    heard = witnessed(policy, 60)
    found = {f for f, p in heard.p.items() if p < 1e-5}
    assert found == {Fault.SHARED}


def test_what_would_have_been_found_is_found_with_a_chance_of_eight_in_ten() -> None:
    for numbers, alpha in ((10, 1e-3), (1000, 1e-5)):
        share = find_least_noise(numbers, alpha)
        critical = stats.chi2.ppf(alpha, numbers)
        assert stats.chi2.cdf(critical / share**2, numbers) == pytest.approx(0.8, abs=1e-9)
    share = coins.find_least(1000, 2.0, 0.0, 1e-3)
    chance = 1 / (1 + math.exp(-2.0 / share))
    needed = next(
        v for v in range(1001) if stats.binom.sf(v - 1, 1000, 1 / (1 + math.exp(-2))) <= 1e-3
    )
    assert stats.binom.sf(needed - 1, 1000, chance) == pytest.approx(0.8, abs=1e-9)
    assert coins.find_least(100, 10.0, 0.0, 1e-3) == 0.0  # all right is no contradiction
    many = [coins.find_least(n, 1.0, 1e-5, 1e-3) for n in (100, 1000, 10_000)]
    assert many == sorted(many)


def test_trainings_together_are_fishers_combination() -> None:
    p = [0.3, 0.02, 0.6]
    made = combine([Heard(10, {Fault.LESS: x}) for x in p])
    assert made == {Fault.LESS: pytest.approx(stats.combine_pvalues(p).pvalue, rel=1e-9)}
    assert combine([Heard(10, {Fault.LESS: 0.0})])[Fault.LESS] < 1e-290
