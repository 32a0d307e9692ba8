"""Measured epsilon: lower bounds from canaries, beside the epsilon that an accountant claims.

A canary is a row whose secret is one of two candidates, chosen by a fair coin; an attacker that
sees what the mechanism releases guesses the coin. How often it is right bounds epsilon from below.
**Only a contradiction means something**: a bound above the claim proves the claim wrong (at the
stated confidence), a bound below it proves nothing, neither that the claim is right nor that it is
tight. With r guesses no more than about ln(r / 3) can be certified.

The audits here look at the mechanism as it is wired into training, through the policy's own hooks:
:func:`audit_labels` reads the class weights that every epoch's loss uses, :func:`audit_rows` the
noised rows or parameter gradients that every epoch releases.

Source: Steinke, Nasr, Jagielski, "Privacy auditing with one (1) training run", NeurIPS 2023,
arXiv:2305.08846, theorem 5.2 and algorithm 1; Malek et al., NeurIPS 2021, arXiv:2106.03408, section
5 (label canaries); Jagielski, Ullman, Oprea, "Auditing differentially private machine learning",
NeurIPS 2020, arXiv:2006.07709 (true and false positive rates).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vflsec.audit.rounding import show_both
from vflsec.core import check
from vflsec.core.message import Message
from vflsec.core.policy import Own, Policy
from vflsec.core.privacy_usage import RunFacts, Uses
from vflsec.core.rng import Streams, generator
from vflsec.epsilon.one_run_bound import Looks, best_bound


@dataclass(frozen=True)
class Measured:
    """What an audit found.

    Attributes:
        epsilon: lower bound, at `confidence`, corrected for the number of looks.
        guesses, right: of the look that gave it.
        canaries: in the audit.
        confidence: of the bound.
        claimed: the accountant's epsilon, None if none is claimed.
        delta: at which both hold.
        looks: guesses and right ones at every share that was tried.
    """

    epsilon: float
    guesses: int
    right: int
    canaries: int
    confidence: float
    claimed: float | None
    delta: float = 0.0
    looks: Looks = ()

    @property
    def contradicts(self) -> bool:
        """True if the claim is disproved. False proves nothing."""
        return self.claimed is not None and self.epsilon > self.claimed

    def sentence(self) -> str:
        """The finding in words."""
        limit = self.epsilon if self.claimed is None else self.claimed
        measured, claimed = show_both(self.epsilon, limit, ".3g", ".4g")
        bound = f"measured epsilon >= {measured} at {100 * self.confidence:g}% confidence"
        if self.claimed is None:
            return f"{bound}; no epsilon is claimed."
        if self.contradicts:
            return f"{bound}: contradicts the claimed epsilon {claimed}."
        return f"{bound}; does not contradict the claimed {claimed}."


def summarise_looks(looks: Sequence[Tensor], coins: Tensor, pairs: Tensor) -> Tensor:
    """One feature for each look (m, d): along the difference of its candidates' means, (m, k).

    The means are those of the first half of the canaries, from which the attacker learns; for
    isotropic noise of one scale this is the best linear test.

    Args:
        looks: what there is to see of the canaries.
        coins: (m,) 0 or 1.
        pairs: (m, 2) the candidates of each.
    """
    half = len(coins) // 2
    carried = pairs.gather(1, coins.unsqueeze(1)).squeeze(1)[:half]
    one_of = torch.nn.functional.one_hot(carried, int(pairs.max()) + 1).double()
    share = one_of / one_of.sum(0).clamp_min(1.0)
    out = []
    for look in looks:
        x = look.double()
        spread = x[:half].std(0) if half > 1 else x.new_tensor(math.nan)  # of one there is none
        x = torch.nan_to_num((x - x[:half].mean(0)) / spread.clamp_min(1e-12))
        likely = (x @ (share.T @ x[:half]).T).gather(1, pairs)
        out.append(torch.nan_to_num(likely[:, 1] - likely[:, 0]))
    return torch.stack(out, dim=1)


def audit(
    seen: Tensor, coins: Tensor, *, claimed: float | None, delta: float = 0.0,
    confidence: float = 0.95,
) -> Measured:  # fmt: skip
    """Learn on half of the canaries how releases depend on the coin, guess the other half.

    The attacker is a logistic regression; it guesses its surest canaries, in several shares tried
    at once, each at a confidence corrected for their number (Bonferroni).

    Args:
        seen: what each canary's releases look like, (m, f).
        coins: (m,) 0 or 1.
        claimed: the accountant's epsilon, or None.
        delta: of the claim.
        confidence: of the bound.
    """
    from sklearn.linear_model import LogisticRegression

    x, y = seen.double().cpu().numpy(), coins.cpu().numpy()
    half = len(y) // 2
    centre, spread = x[:half].mean(0), x[:half].std(0)
    x = (x - centre) / np.where(spread > 0, spread, 1.0)
    fitted = LogisticRegression(C=10.0, max_iter=500).fit(x[:half], y[:half])
    score = fitted.decision_function(x[half:])
    found = bound_epsilon(
        torch.from_numpy(score), coins[half:].cpu(), claimed=claimed, delta=delta,
        confidence=confidence,
    )  # fmt: skip
    return replace(found, canaries=len(y))


def bound_epsilon(
    score: Tensor, coins: Tensor, *, claimed: float | None, delta: float = 0.0,
    confidence: float = 0.95,
) -> Measured:  # fmt: skip
    """The bound of an attacker that guesses each coin by the sign of a score (m,).

    It dares the scores farthest from 0, in several shares tried at once as in :func:`audit`, whose
    other arguments these are. Nothing of it may have been learned from these coins.
    """
    lead, y = score.double().cpu().numpy(), coins.cpu().numpy()
    bound, guesses, right, looks = best_bound(lead, (lead > 0) == (y == 1), delta, confidence)
    return Measured(bound, guesses, right, len(y), confidence, claimed, delta, looks)


def _own(policy: Policy, strength: float, seed: int, classes: int, facts: RunFacts) -> Own:
    return Own(
        party="active",
        strength=torch.tensor([strength], dtype=torch.float64),
        rng=Streams([seed], "canary", policy.name, dtype=torch.float64),
        classes=classes,
        prior=torch.full((1, classes), 1 / classes, dtype=torch.float64),
        facts=facts,
    )


class LabelWorld(NamedTuple):
    """What labels canaries may have.

    Attributes:
        classes: C.
        candidates: the two classes a canary may have.
        prior: class shares the policy is told; uniform by default.
    """

    classes: int = 2
    candidates: tuple[int, int] = (0, 1)
    prior: Sequence[float] | None = None


def audit_labels(
    policy: Policy,
    strength: float,
    labels: LabelWorld | None = None,
    *,
    canaries: int = 4000,
    epochs: int = 10,
    seed: int = 0,
    confidence: float = 0.95,
    delta: float = 0.0,
) -> Measured:
    """Measure a label policy: canaries carry one of two classes, epochs use them as training does.

    The attacker sees, summed over epochs, the class weights with which each canary enters the loss,
    read off the loss's gradient at equal logits. Policies that release in stages are measured on
    their first stage.

    Args:
        policy: with a `labels` or `loss` hook.
        strength: at which to measure; the claim is its guarantee's epsilon.
        labels: of the canaries; two classes by default.
        canaries: rows in the audit; half of them train the attacker.
        epochs: releases, if the policy draws afresh in each.
        seed: of coins and policy.
        confidence: of the bound.
        delta: of the claim.
    """
    check.integer("canary: canaries", canaries, low=20)
    classes, candidates, prior = labels or LabelWorld()
    counted = epochs if policy.counted == "loss" else 1
    facts = RunFacts(classes, uses=Uses(counted=counted))
    own = _own(policy, strength, seed, classes, facts)
    if prior is not None:
        own.prior = torch.tensor([list(prior)], dtype=torch.float64)
    coins = (torch.rand(canaries, generator=generator(seed, "canary", "coins")) < 0.5).long()
    truth = torch.where(coins == 1, candidates[1], candidates[0]).unsqueeze(0)
    y = policy.labels(truth, own)
    known = (y >= 0)[0] if y.dim() == 2 else torch.ones(canaries, dtype=torch.bool)
    total = torch.zeros(canaries, classes, dtype=torch.float64)
    for _ in range(epochs):
        logits = torch.zeros(1, canaries, classes, dtype=torch.float64, requires_grad=True)
        own.context = {"train": True}
        used = y.clamp_min(0) if y.dim() == 2 else y
        loss = policy.loss(logits, used, own)
        if loss is None:
            from vflsec.nn.loss import cross_entropy

            loss = cross_entropy(logits, used)
        (slope,) = torch.autograd.grad(loss.sum(), logits)
        total -= slope[0]
    claimed = policy.guarantee(strength, facts).epsilon
    return audit(total[known], coins[known], claimed=claimed, delta=delta, confidence=confidence)


def audit_rows(
    policy: Policy,
    strength: float,
    *,
    canaries: int = 1000,
    epochs: int = 10,
    seed: int = 0,
    confidence: float = 0.95,
    claimed: float | None = None,
    rate: float = 1.0,
) -> Measured:
    """Measure a policy that clips and noises rows, or parameter gradients of rows.

    Rows that are sent (hook `outgoing`): each canary is one of two opposite rows far outside the
    clipping length, sent once an epoch; the attacker projects the sum on their difference.
    Parameter gradients (hook `gradients`): each canary adds a large number in a parameter of its
    own if its coin says so, and the attacker reads that parameter's sum. `claimed` is the epsilon
    to compare with; the policy's own for so many `epochs` if None. With a `rate` below 1 every
    release is one of a Poisson sample of the canaries, as the policy is told.
    """
    facts = RunFacts(uses=Uses(counted=epochs))
    own = _own(policy, strength, seed, 2, facts)
    made = policy.guarantee(strength, facts)
    coins = (torch.rand(canaries, generator=generator(seed, "canary", "coins")) < 0.5).long()
    total = torch.zeros(canaries, dtype=torch.float64)
    if policy.overrides("gradients"):
        ids = torch.arange(canaries)
        parts = torch.zeros(1, canaries, canaries, dtype=torch.float64)
        parts[0, ids, ids] = 1e6 * coins.double()
        draws = generator(seed, "canary", "draws")
        for _ in range(epochs):
            if rate < 1:
                mask = torch.rand(1, canaries, generator=draws, dtype=torch.float64) < rate
                own.sample = (mask, max(1, round(rate * canaries)))
            (out,) = policy.gradients([parts.sum(1)], lambda: [parts], own)
            assert out is not None
            total += out[0]
    else:
        kind = sorted(policy.covers)[0]
        x = torch.zeros(1, canaries, 4, dtype=torch.float64)
        x[0, :, 0] = 1e6 * (2.0 * coins - 1)
        rows = torch.arange(canaries).unsqueeze(0)
        for epoch in range(epochs):
            sent = Message(kind, "active", "passive", x, rows, epoch=epoch)  # type: ignore[arg-type]
            own.labels = coins.unsqueeze(0)
            total += policy.outgoing(sent, own)[0, :, 0]
    promised = made.epsilon if claimed is None else claimed
    return audit(
        total.unsqueeze(1), coins, claimed=promised, delta=made.delta, confidence=confidence
    )
