"""Every training row mixed with another row of its batch, features and labels alike.

With share w, row i of a batch of b becomes (1 - w) x_i + w x_j with j = b - 1 - i, at every party
alike: the pairing follows from the order of the batch, which all parties know, so nothing is sent
for it. The loss is (1 - w) CE(y_i) + w CE(y_j). Categorical columns keep the row's own category.
Prediction uses rows as they are.

Hook: columns at every party, loss at the active one. Owner: all.
Guarantee: none. Does not stop: attacks at w well below 1/2, where a row's own label still dominates
its gradient; completion of the trained bottom, which sees unmixed rows.

Source: Zhang, Cisse, Dauphin, Lopez-Paz, "mixup: beyond empirical risk minimization", ICLR 2018,
arXiv:1710.09412; as a defense of split learning with a fixed pairing: SecretFlow (Apache-2.0).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from vflsec.nn.loss import cross_entropy
from vflsec.plugin import Own, Policy, registry


@registry.defense
@dataclass(frozen=True)
class Mixup(Policy):
    """No hyper-parameters."""

    strengths: ClassVar[str] = "share of the other row, 0 to 0.5"
    largest: ClassVar[float] = 0.5
    owner = "all"

    def columns(self, x: Tensor, own: Own) -> Tensor:
        share = own.column(x)
        mixed = (1 - share) * x + share * x.flip(1)
        schema = own.context.get("schema")
        if schema is not None and schema.categorical:
            own_category = torch.zeros(x.shape[2], dtype=torch.bool, device=x.device)
            own_category[list(schema.categorical)] = True
            mixed = torch.where(own_category, x, mixed)
        return own.choose(mixed, x)

    def loss(self, logits: Tensor, y: Tensor, own: Own) -> Tensor | None:
        if not own.context.get("train", True) or not own.classes:
            return None
        plain = cross_entropy(logits, y)
        share = own.column(plain)
        mixed = (1 - share) * plain + share * cross_entropy(logits, y.flip(1))
        return own.choose(mixed, plain)

    def carries(self, rows: Tensor) -> Tensor | None:
        return rows.flip(1).unsqueeze(2)
