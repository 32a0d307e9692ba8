"""How messages leave a party: at the current time, through the channel or a link."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from vflsec.channel import Channel
from vflsec.errors import PolicyError
from vflsec.link import Link
from vflsec.message import Kind, Message
from vflsec.party import Party

__all__ = ["Post"]


class Post:
    """The half of a :class:`vflsec.federation.Federation` that sends."""

    channel: Channel
    parties: dict[str, Party]
    phase: str
    epoch: int
    steps: int
    _links: dict[str, Link]

    @property
    def active(self) -> Party:
        """The party that holds the labels."""
        raise NotImplementedError("abstract")

    def send(
        self,
        kind: Kind,
        sender: str,
        receiver: str,
        tensor: Tensor,
        rows: Tensor | None = None,
        *,
        name: str = "",
        scale: float = 1.0,
        phase: str = "",
        repeated: bool = False,
        labels: Tensor | None = None,
        **context: Any,
    ) -> Tensor:
        """Send one message at the current time; see :meth:`vflsec.channel.Channel.send`.

        Raises:
            PolicyError: a link promised that such a message does not pass in the clear.
        """
        active = self.active.name
        for party in (sender, receiver):
            known = party != active and party in self.parties  # a server need not be a party
            if known and kind in self.link(party).replaces:
                raise PolicyError(
                    f"{party}: {kind} messages must pass encrypted, but the algorithm sends one in "
                    "the clear: it does not train through Federation.link. Use splitnn."
                )
        message = Message(
            kind, sender, receiver, tensor.detach(), rows, phase or self.phase, self.epoch,
            self.steps, name, scale, repeated=repeated,
        )  # fmt: skip
        return self.channel.send(message, labels, **context)

    def derive(
        self,
        kind: Kind,
        sender: str,
        receiver: str,
        tensor: Tensor,
        rows: Tensor | None = None,
        *,
        scale: float = 1.0,
        phase: str = "",
        own: bool = False,
    ) -> None:
        """Record what `receiver` works out by itself, for example by taking off its own mask.

        Nothing crosses, nothing is counted; `sender` is whose values these are. With `own` it is
        the sender who keeps what it sent encrypted.
        """
        self.channel.derive(
            Message(
                kind, sender, receiver, tensor.detach(), rows, phase or self.phase, self.epoch,
                self.steps, "", scale,
            ),
            own=own,
        )  # fmt: skip

    def treat(
        self, kind: Kind, sender: str, receiver: str, tensor: Tensor, rows: Tensor, phase: str = ""
    ) -> Tensor:
        """A payload after the sender's policies, for a link that sends it in another form."""
        message = Message(
            kind, sender, receiver, tensor, rows, phase or self.phase, self.epoch, self.steps
        )
        return self.channel.treat(message).tensor

    def link(self, party: str) -> Link:
        """The way between a passive party and the active one: plain, or what a policy puts there.

        Raises:
            PolicyError: two policies of the party want to replace it.
        """
        if party not in self._links:
            made = []
            for b in self.parties[party].bindings:
                link = b.policy.link(b.own) if b.policy.overrides("link") else None
                if link is not None:
                    b.acted = True
                    made.append((b.policy.name, link))
            if len(made) > 1:
                raise PolicyError(
                    f"{party}: one policy may replace the way of its embeddings, got "
                    f"{' and '.join(name for name, _ in made)}. Keep one of them."
                )
            self._links[party] = made[0][1] if made else Link(party)
        return self._links[party]
