"""Randomised response on the training labels: pure epsilon label differential privacy, memoised.

Each label is kept with probability q = e^eps / (e^eps + C - 1) and otherwise replaced by one of the
other C - 1 classes, uniformly. The flip is drawn once for every sample of a run and reused in all
epochs, so a run is one release of each label; validation labels are randomised too, because early
stopping on true labels would leak them. With ``correct = true`` the loss is corrected forward: the
model's class shares are passed through the flip matrix before cross entropy with the noisy label.

The swept strength is 1 / epsilon, so that 0 means no protection (epsilon infinite) and stronger is
larger, as for every defense: strength 1 is epsilon 1, strength 2 is epsilon 0.5.

Hook: labels (and loss, if corrected). Owner: the active party.
Guarantee: epsilon-label-DP of everything computed from the labels, for each sample, under
replacement of its label. Does not stop: inference of what the features themselves predict; it
bounds the advantage over that (Wu et al. 2023: at most tanh(eps / 2) for two classes).

Source: Warner, "Randomized response", JASA 60 (1965); Ghazi, Golowich, Kumar, Manurangsi, Zhang,
"Deep learning with label differential privacy", NeurIPS 2021, arXiv:2102.06062; forward correction:
Patrini et al., "Making deep neural networks robust to label noise", CVPR 2017, eq. 5;
Wu, Zhou, Weinberger, Guo, "Does label differential privacy prevent label inference attacks?",
AISTATS 2023, arXiv:2202.12968.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from vflsec.core.accountants import Account
from vflsec.core.policy import AGAIN, OFF, SPLIT, find_no_claim
from vflsec.core.privacy_usage import Uses
from vflsec.errors import format_count
from vflsec.nn.loss import cross_entropy
from vflsec.plugin import Guarantee, Own, Policy, RunFacts, registry

ALIASES = ("rr", "randomised_response", "randomized_response")


def keep_probability(epsilon: Tensor | float, classes: int) -> Tensor:
    """q = e^eps / (e^eps + C - 1), stable for large epsilon (Ghazi et al. 2021, section 2)."""
    eps = torch.as_tensor(epsilon, dtype=torch.float64)
    return 1.0 / (1.0 + (classes - 1) * torch.exp(-eps))


class Released(Policy):
    """A policy that answers once for every label, and remembers its answer.

    Class attributes:
        accountant: who computed the epsilon of an answer.
    """

    strengths: ClassVar[str] = "1 / epsilon"
    natural: ClassVar[Mapping[str, Callable[[float], float]]] = {"epsilon": lambda e: 1.0 / e}
    counted = "labels"
    accountant: ClassVar[str]

    def guarantee(self, strength: float, facts: RunFacts) -> Guarantee:
        return released(strength, facts, self.accountant)


@registry.defense
@dataclass(frozen=True)
class LabelDP(Released):
    """Hyper-parameters.

    Attributes:
        correct: correct the loss forward for the known flip probabilities.
    """

    correct: bool = False
    accountant = "randomised response"
    by_row = True

    def labels(self, y: Tensor, own: Own) -> Tensor:
        self.check_classes(y)
        n, c = y.shape[1], own.classes
        on = own.strength > 0
        epsilon = torch.where(on, 1.0 / own.strength.clamp_min(1e-12), torch.inf)
        keep = keep_probability(epsilon, c).to(y.device).unsqueeze(1)  # (R, 1)
        coin = own.rng.uniform((n,), dtype=torch.float64)
        shift = own.rng.integers(c - 1, (n,)) + 1
        flipped = torch.where(coin < keep, y, (y + shift) % c)
        own.memory["keep"] = keep
        return torch.where((y >= 0) & on.to(y.device).unsqueeze(1), flipped, y)

    def loss(self, logits: Tensor, y: Tensor, own: Own) -> Tensor | None:
        if not self.correct or y.dim() != 2:
            return None
        p = torch.softmax(logits, dim=-1).gather(2, y.unsqueeze(2)).squeeze(2)
        keep = own.memory["keep"].to(p)
        other = (1 - keep) / (own.classes - 1)
        corrected = -torch.log((other + (keep - other) * p).clamp_min(torch.finfo(p.dtype).tiny))
        plain = cross_entropy(logits, y)
        on = (own.strength > 0).to(p.device).unsqueeze(1)
        return torch.where(on, corrected, plain)

    def guarantee(self, strength: float, facts: RunFacts) -> Guarantee:
        gain = math.tanh(0.5 / strength) if strength > 0 else 1.0
        return released(
            strength, facts, self.accountant,
            leaves=f"{PREDICTED} (a binary guess gains at most {gain:.3f}), features, labels "
            "outside the run",
        )  # fmt: skip


PREDICTED = "what the features predict about the label"


def released(
    strength: float, facts: RunFacts, accountant: str, *, delta: float = 0.0,
    given: str = "", leaves: str = PREDICTED,
) -> Guarantee:  # fmt: skip
    """The claim of a policy that answers once for every label and remembers its answer.

    Args:
        strength: 1 / epsilon of one answer; at 0 it is switched off.
        facts: with what was counted.
        accountant: who computed epsilon.
        delta: of one answer.
        given, leaves: as in :class:`vflsec.core.policy.Guarantee`, beside what every label needs.
    """
    if strength <= 0:
        return OFF
    uses, epsilon = facts.uses, 1.0 / strength
    none = find_no_claim(uses, "labels", epsilon)
    if none is not None:
        return none
    made = Account(epsilon * uses.most, delta * uses.most, accountant)
    over = f"{format_count(uses.most, 'remembered answer')} for each label"
    return claim_label(
        made, uses, over, "whoever sees anything computed from labels", given, leaves
    )


def claim_label(
    made: Account, uses: Uses, over: str, against: str, given: str = "", leaves: str = PREDICTED
) -> Guarantee:
    """The claim of a policy that replaces labels by themselves."""
    return Guarantee.claim(
        made, uses.most, protects="label", what="the label of a training or validation row",
        neighbours="its replacement by another class", against=against, over=over,
        given=f"{SPLIT} and {given}" if given else SPLIT.rstrip(","), leaves=f"{leaves}, {AGAIN}",
    )  # fmt: skip
