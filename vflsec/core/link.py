"""The way between a passive party and the active one: how embeddings go up and gradients come back.

A policy of the passive party may put a protocol of its own in the place of the two plain messages
(:meth:`vflsec.core.policy.Policy.link`), for example an encrypted interactive layer. An algorithm
that trains through :meth:`vflsec.core.federation.Federation.link` supports every such protocol
without naming one; what an algorithm sends past a link that promised to replace it is refused by
the federation.
"""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

from torch import Tensor

Parties = TypeVar("Parties")
"""What a link sends through: a :class:`vflsec.core.federation.Federation`."""


class WayBack(NamedTuple):
    """What comes back in a step, and what a party goes on with.

    Attributes:
        z: the embedding (R, b, d) with its graph at the passive party.
        gradient: of the summed replica losses with respect to what `up` returned.
        penalty: the passive party's own penalty (R,), or None.
        rows: sample ids (R, b).
        y, logits: what the active party's policies may look at; None where no label is in it.
        x: the passive party's input rows (R, b, ...), of which `z` was made.
    """

    z: Tensor
    gradient: Tensor
    penalty: Tensor | None
    rows: Tensor
    y: Tensor | None
    logits: Tensor | None
    x: Tensor


class Link(Generic[Parties]):
    """A protocol between one passive party and the active one.

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

    def build(self, fed: Parties, cut: int) -> None:
        """Make what the link itself trains; called once, after the bottoms are built."""

    def up(self, fed: Parties, z: Tensor, rows: Tensor, *, phase: str = "") -> Tensor:
        """Embedding (R, b, d) of sample ids (R, b) -> what the active party computes with."""
        raise NotImplementedError("abstract")

    def down(self, fed: Parties, way: WayBack) -> Tensor | None:
        """Bring the loss gradient back and update the passive party; returns what it got by row."""
        raise NotImplementedError("abstract")
