"""Noise on the mixture of per-class gradients: label-DP of everything a step computes (TPSL).

With g^c_i the gradient of row i's loss if its class were c, row i's gradient g^(y_i)_i becomes
g^(y_i)_i + sum_c u_c g^c_i, u_c ~ Laplace(2 / eps) i.i.d. This is the gradient of the loss with
class weights w = one-hot(y_i) + u, and it is computed as such: embeddings' gradients and the top
model's own gradients come from the same noised weights, so neither depends on the label by another
way. It is unbiased: E w = one-hot(y). The L1 sensitivity of one-hot labels is 2, so one use costs
eps; the noise is drawn afresh in every loss, and T uses of a label, as counted, add up. The swept
strength is 1 / eps of one use. Validation labels are weighed with noise too.

Hook: loss. Owner: the active party.
Guarantee: label-DP over all uses, T eps or, at `delta` > 0, what the privacy loss of Laplace noise
adds up to. None where labels are used beside the loss, which is found out: early stopping by AUC
(``select_by = "auc"``), fedcvt's attention over labels, jpl's ranking loss. Does not stop:
inference of what features predict, and at a small eps per step the many epochs still add up; the
weights may be negative, which makes training unstable.

Source: Yang, Sun, Yao, Xie, Wang (2022), "Differentially private label protection in split
learning", arXiv:2203.02073 (transcript privacy, TPSL); Doroshenko et al., "Connect the dots", PETS
2022, arXiv:2207.04380.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from vflsec.core import accountants
from vflsec.core.policy import OFF, find_no_claim
from vflsec.defenses.alibi import one_hot
from vflsec.defenses.label_dp import claim_label
from vflsec.nn.loss import cross_entropy
from vflsec.plugin import Guarantee, NamedNoise, Own, Policy, RunFacts, check, registry

ALIASES = ("tpsl",)


@registry.defense
@dataclass(frozen=True)
class GradPerturb(Policy):
    """Hyper-parameters.

    Attributes:
        delta: at which the sum over epochs is stated; 0 = pure composition.
    """

    delta: float = 0.0
    strengths: ClassVar[str] = "1 / epsilon of one step"
    natural: ClassVar[Mapping[str, Callable[[float], float]]] = {"epsilon": lambda e: 1.0 / e}
    counted = "loss"

    def __post_init__(self) -> None:
        super().__post_init__()
        if check.non_negative("gradperturb.delta", self.delta) != 0:
            accountants.check_delta("gradperturb.delta", self.delta)

    def loss(self, logits: Tensor, y: Tensor, own: Own) -> Tensor | None:
        hot = one_hot(y, logits.shape[2], logits.dtype) if y.dim() == 2 else y.to(logits)
        wide = hot.double()
        noise = own.rng.laplace(logits.shape[1:], active=own.active, dtype=torch.float64)
        noisy = accountants.round_to_grid(wide, noise.to(wide.device), 2.0 * own.column(wide))
        return cross_entropy(logits, own.choose(noisy.to(hot), hot))

    def noise(self, scale: float) -> NamedNoise:
        return NamedNoise("laplace", 2.0)

    def guarantee(self, strength: float, facts: RunFacts) -> Guarantee:
        if strength <= 0:
            return OFF
        uses = facts.uses
        none = find_no_claim(uses, "loss", 1 / strength)
        if none is not None:
            return none
        # replacing a label moves two coordinates by 1, at noise scale 2 x strength
        made = accountants.laplace(0.5 / strength, 2 * uses.most, self.delta)
        over = f"{uses.sentence('losses')}, epsilon {1 / strength:.4g} each"
        return claim_label(made, uses, over, "whoever sees messages or weights")
