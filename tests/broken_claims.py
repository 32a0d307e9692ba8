"""Claims that are false, each in a way in which claims have been false, to be found out by audits.

Beside them the worst case of a defense that one party runs alone (:func:`one_row`), which no audit
of many rows shows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar
from unittest import mock

import torch
from torch import Tensor

from vflsec.audit.intervals import clopper_pearson
from vflsec.core import accountants
from vflsec.core.federation import Federation
from vflsec.core.policy import OFF, Guarantee, Own, Policy, find_no_claim
from vflsec.core.privacy_usage import RunFacts
from vflsec.core.rng import generator
from vflsec.core.task import Stack, Task
from vflsec.defenses.dpsgd import DPSGD
from vflsec.defenses.embedding_noise import EmbeddingNoise
from vflsec.defenses.label_dp import keep_probability
from vflsec.defenses.learned_prior import LearnedPrior
from vflsec.epsilon import canary_bounds
from vflsec.plugins import registry
from vflsec.train.loop import predict, run_phases


@dataclass(frozen=True)
class BrokenClaim(Policy):
    """Claims epsilon 1 / strength for whatever was counted."""

    name: ClassVar[str] = "broken"
    strengths: ClassVar[str] = "1 / epsilon"
    counted = "labels"

    def guarantee(self, strength: float, facts: RunFacts) -> Guarantee:
        uses = facts.uses
        none = find_no_claim(uses, self.counted)
        if strength <= 0 or none is not None:
            return none or OFF
        return Guarantee(
            "label", 1 / strength, 0.0, "a closed form", uses.most, "a label", "change", "all"
        )


class HalfFlips(BrokenClaim):
    """Randomised response that flips half as often as it should."""

    def labels(self, y: Tensor, own: Own) -> Tensor:
        keep = (1 + keep_probability(1 / own.strength, own.classes).unsqueeze(1)) / 2
        coin = own.rng.uniform(y.shape[1:], dtype=torch.float64)
        return torch.where((coin < keep) | (y < 0), y, 1 - y)


class KeepsLabels(BrokenClaim):
    """Labels of any kind as they are."""

    quantities: ClassVar[bool] = True

    def labels(self, y: Tensor, own: Own) -> Tensor:
        return y.clone()


class KeepsRows(KeepsLabels):
    """The same, said to protect whole rows."""

    def guarantee(self, strength: float, facts: RunFacts) -> Guarantee:
        return replace(super().guarantee(strength, facts), protects="row")


class ThirdPaid(LearnedPrior):
    """A learned prior whose answers and statistic cost three times what it claims."""

    name: ClassVar[str] = "broken"

    def labels(self, y: Tensor, own: Own) -> Tensor:
        return super().labels(y, replace(own, strength=own.strength / 3))


class LongEmbeddings(EmbeddingNoise):
    """Noise for rows of length C on rows that nobody shortened."""

    name: ClassVar[str] = "broken"

    def outgoing(self, message: Any, own: Own) -> Tensor:
        noise = own.rng.laplace(message.tensor.shape[1:])
        sent: Tensor = message.tensor + own.column(message.tensor) * noise
        return sent


class FlipsAgain(BrokenClaim):
    """Randomised response that forgets what it answered, and flips again in every epoch."""

    def labels(self, y: Tensor, own: Own) -> Tensor:
        return y.clone()

    def loss(self, logits: Tensor, y: Tensor, own: Own) -> Tensor | None:
        keep = keep_probability(1 / own.strength, own.classes).unsqueeze(1)
        coin = own.rng.uniform(y.shape[1:], dtype=torch.float64)
        used = torch.where(coin < keep, y, 1 - y)
        return -torch.log_softmax(logits, -1).gather(2, used.unsqueeze(2)).squeeze(2)


class NoiseBeforeClipping(BrokenClaim):
    """Noise of the clipped scale on rows that are only clipped afterwards."""

    counted = "outgoing"
    covers = frozenset({"gradient"})

    def outgoing(self, message: Any, own: Own) -> Tensor:
        scale = 1e-3 * own.column(message.tensor)
        noisy: Tensor = message.tensor + scale * own.rng.laplace(message.tensor.shape[1:])
        return noisy.clamp(-1e-3, 1e-3)


@dataclass(frozen=True)
class ForgetsNoise(DPSGD):
    """DP-SGD at every party that clips, claims, and adds a hundredth of its noise."""

    name: ClassVar[str] = "broken"

    def gradients(self, plain, rows, own: Own):  # type: ignore[no-untyped-def]
        return super().gradients(plain, rows, replace(own, strength=own.strength / 100))


@contextmanager
def registered(policy: Policy) -> Iterator[None]:
    """While it lasts, the defense ``broken`` is `policy`."""
    create = registry.defenses.create

    def made(name: str, params: Any = None) -> Any:
        return policy if name == "broken" else create(name, params or {})

    with mock.patch.object(registry.defenses, "create", made):
        yield


def one_row(
    task: Task, parties: Sequence[str], *, strength: float = 20.0, scale: float = 1e4,
    runs: int = 300, epochs: int = 4, seed: int = 0, signs: Tensor | None = None,
) -> canary_bounds.Measured:  # fmt: skip
    """What the active party's weights tell about one row's columns at the first passive party.

    `runs` trainings of splitnn side by side from the same weights, one for each coin: the row is
    `scale` in every column, with those `signs` for which the untrained model is most wrong, or 0.
    Both are one zeroing-out away from a training without the row, so the claim is that
    of half the noise, composed over the parties that have it.

    Args:
        task: two parties' learning problem.
        parties: who runs dpsgd; a claim of all if it is not all is what shall be found out.
        strength: noise multiplier.
        scale: of the row, the worst case that a guarantee is about.
        runs, epochs, seed: trainings, full batches of each, and of coins and noise.
        signs: to choose from, each of -1 and 1, (n, *columns); 16 are drawn if it is left out.
    """
    row, (victim, *_) = int(task.sets["labelled"][0]), task.passive
    if signs is None:
        draws = generator(seed, "signs")
        signs = torch.randint(2, (16, *task.x[victim].shape[1:]), generator=draws) * 2.0 - 1.0
    worlds = []
    for value in (torch.zeros_like(signs[0]), *(scale * signs)):
        x = task.x[victim].clone()
        x[row] = value
        worlds.append(replace(task, x={**task.x, victim: x}))
    coins = torch.randint(2, (runs,), generator=generator(seed, "coins"))
    on = torch.full((runs,), strength, dtype=torch.float64)
    policy = registry.defenses.create("dpsgd")
    seeds = list(range(seed * runs, (seed + 1) * runs))
    params = {
        "hidden": [], "cut": 2, "epochs": epochs, "patience": 0, "select": False,
        "batch_size": len(task.sets["labelled"]), "optimizer": "sgd", "lr": 0.1,
    }  # fmt: skip
    algorithm = registry.algorithms.create("splitnn", params)
    n = len(signs)
    loud = Federation.create(_stack(worlds, torch.arange(1, n + 1)), seeds[:1] * n)
    algorithm.build(loud)
    shares = torch.log_softmax(predict(algorithm, loud, torch.full((n, 1), row)), dim=2)
    worst = 1 + int(shares[:, 0, int(task.y[row])].argmin())
    stack = _stack([worlds[0], worlds[worst]], coins)
    fed = Federation.create(stack, seeds, {p: [(policy, on)] for p in parties})
    algorithm.build(fed)
    same = {
        p: {k: {n: v[:1].expand_as(v).clone() for n, v in m.items()} for k, m in parts.items()}
        for p, parts in fed.state().items()
    }
    fed.load(same, torch.arange(runs))
    for _ in run_phases(algorithm, fed):
        pass
    seen = [v.flatten(1) for m in fed.active.modules.values() for v in m.state().values()]
    claimed = accountants.gaussian(strength / 2, epochs * len(parties), 1e-5).epsilon
    found = torch.nan_to_num(torch.cat(seen, dim=1))
    return canary_bounds.audit(found, coins, claimed=claimed, delta=1e-5, confidence=0.99)


def _stack(worlds: Sequence[Task], of: Tensor) -> Stack:
    return Stack(worlds, of, torch.device("cpu"), torch.float64)


def epsilon_from_rates(
    true_positives: int,
    positives: int,
    false_positives: int,
    negatives: int,
    *,
    delta: float = 0.0,
    confidence: float = 0.95,
    looks: int = 1,
) -> float:
    """ln((TPR - delta) / FPR) or its mirror image, at Clopper-Pearson bounds of alpha / 2 each.

    Args:
        true_positives, positives: detected among those with the secret.
        false_positives, negatives: detected among those without.
        delta: of the claim.
        confidence: of the result.
        looks: thresholds that were tried; alpha is divided by them.

    Returns:
        0 where nothing is refuted.
    """
    each = 1 - (1 - confidence) / (2 * looks)
    tpr = clopper_pearson(true_positives, positives, each, "lower").low or 0.0
    fpr = clopper_pearson(false_positives, negatives, each, "upper").high
    fpr = 1.0 if fpr is None else fpr
    best = 0.0
    for up, down in ((tpr, fpr), (1 - fpr, 1 - tpr)):
        if up - delta > 0:
            best = max(best, math.log((up - delta) / down))
    return best
