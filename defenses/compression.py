"""Only the largest entries of an outgoing batch of gradients; the rest is zero.

Of all n numbers of the batch the k = max(1, round(keep n)) of largest magnitude stay, ties in order
of position. With ``residual = true`` what was not sent is remembered for each sample id and added
to that sample's next row, so nothing is lost over time; it is remembered by id, not by position in
the batch, since batches are shuffled. The swept strength is 1 / keep - 1, so that 0 keeps all.

Hook: outgoing, on gradients. Owner: the active party.
Guarantee: none; it is deterministic. Does not stop: the norm attack (large rows stay); the direct
attack, which loses little before keep < 1 / C and not all below it; completion of the trained
bottom.

Source: Aji and Heafield, "Sparse communication for distributed gradient descent", EMNLP 2017,
arXiv:1704.05021; as a defense: Fu et al., "Label inference attacks against vertical federated
learning", USENIX Security 2022, section 6.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from vflsec.core.policy import read_batch
from vflsec.plugin import Message, Own, Policy, check, registry

ALIASES = ("sparsification", "top_k")


def _strength(keep: float) -> float:
    return 1.0 / check.in_unit("compression: keep", keep, low_open=True) - 1.0


@registry.defense
@dataclass(frozen=True)
class Compression(Policy):
    """Hyper-parameters.

    Attributes:
        residual: add what was held back to the sample's next row.
    """

    residual: bool = False
    quantities: ClassVar[bool] = True
    strengths: ClassVar[str] = "1 / kept share - 1"
    natural: ClassVar[Mapping[str, Callable[[float], float]]] = {"keep": _strength}
    covers = frozenset({"gradient"})

    def outgoing(self, message: Message, own: Own) -> Tensor:
        g = read_batch(self, message)  # (R, b, m)
        held = self._held(message, own, g) if self.residual else None
        if held is not None:
            g = g + own.choose(self._take(held, message), torch.zeros_like(g))
        flat = g.reshape(len(g), -1)
        n = flat.shape[1]
        keep = [max(1, min(n, round(n / (1.0 + s)))) for s in own.strength.tolist()]
        order = flat.abs().argsort(dim=1, descending=True, stable=True)
        place = torch.empty_like(order).scatter_(
            1, order, torch.arange(n).to(order).expand_as(order)
        )
        stays = place < torch.tensor(keep, device=g.device).unsqueeze(1)
        out = torch.where(stays, flat, torch.zeros_like(flat)).reshape(g.shape)
        if held is not None:
            self._put(held, message, g - out)
        return own.choose(out.reshape(message.tensor.shape), message.tensor)

    def _held(self, message: Message, own: Own, g: Tensor) -> Tensor:
        """What is held back for each sample id so far, (R, N, m); grows with the ids seen."""
        if message.rows is None:
            raise self.refuse(message, "it has no ids for residuals.")
        key = f"{message.receiver}/{message.phase}/{message.name}"
        kept = own.memory.get(key)
        n = int(message.rows.max()) + 1
        if kept is None or kept.shape[1] < n:
            wider = torch.zeros(g.shape[0], n, g.shape[2], dtype=g.dtype, device=g.device)
            if kept is not None:
                wider[:, : kept.shape[1]] = kept
            kept = own.memory[key] = wider
        return kept

    @staticmethod
    def _take(held: Tensor, message: Message) -> Tensor:
        assert message.rows is not None
        return held.gather(1, message.rows.unsqueeze(2).expand(-1, -1, held.shape[2]))

    @staticmethod
    def _put(held: Tensor, message: Message, rest: Tensor) -> None:
        """Remember `rest` (R, b, m), in the units of one batch, by sample id."""
        assert message.rows is not None
        held.scatter_(1, message.rows.unsqueeze(2).expand(-1, -1, held.shape[2]), rest)
