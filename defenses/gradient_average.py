"""Every gradient row of a batch moved towards, or replaced by, the mean row of the batch.

Row g_i becomes (1 - s) g_i + s mean_j g_j; at strength s = 1, the published form, all rows are
equal and a batch says no more than its mean.

Hook: outgoing, on gradients. Owner: the active party.
Guarantee: none. Does not stop: completion of the trained bottom, which still learns; the share of
classes in each batch, which stays in the mean row, and with it averaging a row's batches over
epochs; below strength 1 nothing but the scale of what tells rows apart changes. It slows the
bottom's training, the more the larger the batch.

Source: the GradientAverage defense of SecretFlow's split learning (Apache-2.0), "Defense methods"
in https://www.secretflow.org.cn/docs/secretflow; no paper is known to us.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from vflsec.core.policy import read_batch
from vflsec.plugin import Message, Own, Policy, registry


@registry.defense
@dataclass(frozen=True)
class GradientAverage(Policy):
    """No hyper-parameters."""

    quantities: ClassVar[bool] = True
    strengths: ClassVar[str] = "share of the batch mean in each row, 0 to 1"
    largest: ClassVar[float] = 1.0
    covers = frozenset({"gradient"})

    def outgoing(self, message: Message, own: Own) -> Tensor:
        g = read_batch(self, message)  # (R, b, m)
        means = [one.mean(0, keepdim=True) for one in g]  # replica by replica: same bits alone
        mixed = [
            one.lerp(mean.expand_as(one), min(s, 1.0))
            for one, mean, s in zip(g, means, own.strength.tolist(), strict=True)
        ]
        return own.choose(torch.stack(mixed).reshape(message.tensor.shape), message.tensor)
