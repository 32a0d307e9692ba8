"""Active model completion: a malicious local optimizer makes the top model rely on the own bottom.

In training the attacker enlarges its own steps coordinate by coordinate. With g_t what its
optimizer would step along (after momentum and weight decay; the step divided by the learning rate),
    r_t = clip(1 + gamma g_t / (g'_{t-1} + 1e-7), low, high),   g'_t = r_t g_t,
and r_1 = 1: coordinates that keep their sign are pushed on, others are left alone. A bottom that
learns faster than its peers ends up carrying more of the label. Afterwards the attack is passive
model completion, unchanged.

Attacker: a malicious passive party that alters nothing but its own optimizer; its messages keep to
the protocol. Needs what model completion needs.
The published code scales the momentum buffer itself, so that scaling compounds; that is
``compounding = true``. By default the buffers of the optimizer are left alone.
Known failure cases: the gain over the passive attack is small (about 0.05 accuracy on training rows
in the paper's CIFAR-10 run), so never judge one against the other with few seeds; adaptive
optimizers already equalise coordinates; high values can spoil the main task and give the attacker
away.

Source: Fu, Zhang, Ji, Chen, Wu, Guo, Zhou, Liu, Wang, "Label inference attacks against vertical
federated learning", USENIX Security 2022, section 5.2 and algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from vflsec.attacks.model_completion import ModelCompletion
from vflsec.plugin import Own, Policy, check, registry

ALIASES = ("amc", "active_model_completion", "malicious_optimizer")
FAMILY = "model_completion"
EPSILON = 1e-7
BUFFERS = ("momentum_buffer", "exp_avg")


@registry.attack
@dataclass(frozen=True)
class ActiveCompletion(ModelCompletion):
    """Hyper-parameters, beside those of ``model_completion``.

    Attributes:
        gamma: how strongly a step is enlarged by its ratio to the one before; 0 is an honest run.
        low, high: limits of the factor.
        compounding: scale the optimizer's momentum buffer too.
    """

    gamma: check.NonNegative = 1.0
    low: check.Positive = 1.0
    high: check.Positive = 5.0
    compounding: bool = False
    labelwise: ClassVar[bool] = False  # each label would take a training of its own

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.high < self.low:
            raise check.fail("active_completion.high", f"at least low ({self.low})", self.high)

    def policy(self) -> Policy:
        return FasterSteps(self)


@dataclass(frozen=True)
class FasterSteps(Policy):
    """The malicious optimizer as a policy of its own party; strength multiplies gamma."""

    attack: ActiveCompletion

    def optimizer(self, optimizer: Any, own: Own) -> Any:
        return Malicious(optimizer, self.attack, own)


class Malicious:
    """Wraps an optimizer: each step is taken by it and then enlarged."""

    def __init__(self, inner: Any, attack: ActiveCompletion, own: Own) -> None:
        self.inner, self.attack, self.own = inner, attack, own
        self.previous: dict[Tensor, Tensor] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    @torch.no_grad()
    def step(self) -> None:
        """One step of the wrapped optimizer, with every coordinate's step scaled by its factor."""
        moving = [
            (p, float(group["lr"]))
            for group in self.inner.param_groups
            for p in group["params"]
            if p.grad is not None
        ]
        before = [p.clone() for p, _ in moving]
        self.inner.step()
        for (p, lr), old in zip(moving, before, strict=True):
            g = (old - p) / lr
            r = torch.ones_like(g)
            if p in self.previous:
                gamma = self.attack.gamma * self.own.column(g)
                r = 1 + gamma * g / (self.previous[p] + EPSILON)
                r = r.clamp(self.attack.low, self.attack.high)
                # What is switched off must stay an honest step whatever the limits are.
                r = torch.where(gamma > 0, r, torch.ones_like(r))
            self.previous[p] = r * g
            p.add_((p - old) * (r - 1))
            if self.attack.compounding:
                for name in BUFFERS:
                    if name in self.inner.state.get(p, {}):
                        self.inner.state[p][name].mul_(r)
