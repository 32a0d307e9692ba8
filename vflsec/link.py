"""The way between a passive party and the active one: how embeddings go up and gradients come back.

The plain way is two messages. A policy of the passive party may put another protocol in its place
(:meth:`vflsec.policy.Policy.link`), for example an encrypted interactive layer. An algorithm that
trains through :meth:`vflsec.federation.Federation.link` supports every such protocol without naming
one; what an algorithm sends past a link that promised to replace it is refused by the federation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vflsec.nn import chain
from vflsec.nn.rowwise import alone, row_gradients

if TYPE_CHECKING:
    from vflsec.federation import Federation
    from vflsec.party import Party

__all__ = ["Link", "backward"]


class Link:
    """The plain way: the embedding is one message, its gradient another.

    Args:
        party: name of the passive party.

    Attributes:
        replaces: message kinds that must not pass between the two parties but by this link.
    """

    replaces: frozenset[str] = frozenset()

    def __init__(self, party: str) -> None:
        self.party = party

    def width(self, cut: int) -> int:
        """Width of what the active party gets, for an embedding of width `cut`."""
        return cut

    def build(self, fed: Federation, cut: int) -> None:
        """Make what the link itself trains; called once, after the bottoms are built."""

    def up(self, fed: Federation, z: Tensor, rows: Tensor, *, phase: str = "") -> Tensor:
        """Embedding (R, b, d) of sample ids (R, b) -> what the active party computes with."""
        return fed.send("embedding", self.party, fed.active.name, z, rows, phase=phase)

    def down(
        self,
        fed: Federation,
        z: Tensor,
        gradient: Tensor,
        penalty: Tensor | None,
        rows: Tensor,
        y: Tensor,
        logits: Tensor,
        x: Tensor,
    ) -> Tensor | None:
        """Bring the loss gradient back and update the passive party; returns what it got by row.

        Args:
            fed: the cohort.
            z: the embedding (R, b, d) with its graph at the passive party.
            gradient: of the summed replica losses with respect to what `up` returned.
            penalty: the passive party's own penalty (R,), or None.
            rows: sample ids (R, b).
            y, logits: what the active party's policies may look at.
            x: the passive party's input rows (R, b, ...), of which `z` was made.
        """
        delivered = fed.send(
            "gradient", fed.active.name, self.party, gradient, rows, scale=float(rows.shape[1]),
            labels=y, logits=logits,
        )  # fmt: skip
        backward(fed.parties[self.party], z, delivered, penalty, x=x, ids=rows)
        return delivered


def backward(
    party: Party,
    z: Tensor,
    gradient: Tensor,
    penalty: Tensor | None,
    change: Callable[[Sequence[Tensor]], Sequence[Tensor]] | None = None,
    x: Tensor | None = None,
    ids: Tensor | None = None,
) -> None:
    """Continue the backward pass of embedding `z` (R, b, d) at its own party, and update it.

    `change` is applied to the gradients of the party's parameters before the update. With the rows
    `x` (R, b, ...) that `z` was made of, policies may treat the gradients row by row; `ids`
    (R, b) says which they are.
    """
    params = party.parameters()
    if not params:
        return
    if penalty is None:
        grads = chain.slopes(z, params, gradient)
    else:
        grads = torch.autograd.grad((z * gradient).sum() + penalty.sum(), params)
    rows: Callable[[], list[Tensor]] | None = None
    if x is not None and penalty is None and change is None:
        inputs, slopes = alone(x), alone(gradient)
        rows = partial(
            row_gradients, party.modules, x.shape[1],
            lambda wide: (wide["bottom"](inputs) * slopes).sum(),
        )  # fmt: skip
    party.update(grads if change is None else change(grads), rows=rows, ids=ids)
