"""A policy at work at its owner: what its hooks may not do is refused here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor

from vflsec.core.message import Message
from vflsec.core.policy import Own, Policy
from vflsec.core.shared_tables import as_bytes
from vflsec.errors import PolicyError


@dataclass
class Binding:
    """A policy at work: the policy, what its owner has at hand, and whether it did anything.

    `witness` is shown every call of a hook: the binding, the hook, what it was given and gave.
    """

    policy: Policy
    own: Own
    seen_off: set[tuple[Any, ...]] = field(default_factory=set, repr=False)
    acted: bool = False
    changes: dict[tuple[str, str, bool], bool] = field(default_factory=dict, repr=False)
    witness: Callable[[Binding, str, tuple[Any, ...], Any], None] | None = None

    def call(self, hook: str, *given: Any) -> Any:
        """What a hook of the policy makes of `given`; a copy where that is sent in place of what
        the sender gave, for the policy may use the memory again.
        """
        if self.witness is not None and hook == "gradients":
            given = given[0], cache(given[1])
        made = getattr(self.policy, hook)(*given, self.own)
        if hook == "outgoing" and isinstance(made, Tensor) and made is not given[0].tensor:
            made = made.clone()
        if self.witness is not None:
            self.witness(self, hook, given, made)
        return made

    def treated(self, what: str, given: Tensor, change: Callable[[], Tensor], *when: Any) -> Tensor:
        """What a hook of the policy makes of a tensor that others still use.

        Args:
            what: it is.
            given: the tensor.
            change: calls the hook.
            when: see :meth:`check_off`.

        Raises:
            PolicyError: the hook changed `given` itself, or something at strength 0.
        """
        version = given._version
        looks = bool(self.policy.strengths) and (what, *when) not in self.seen_off
        before = given.clone() if looks else given
        changed = change()
        if given._version != version:
            text = f"{self.policy.name}: changes {what} in place. Return a new tensor."
            raise PolicyError(text)
        self.check_off(what, before, changed, *when)
        self.acted = self.acted or changed is not given
        return changed

    def note(self, message: Message, changed: Tensor) -> None:
        """Keep whether the policy changed any such message: of training, or of predicted rows."""
        key = message.kind, message.receiver, message.phase == "predict"
        if not self.changes.get(key) and any(self.own.active):
            same = changed is message.tensor or torch.equal(changed, message.tensor)
            self.changes[key] = not same

    def find_bare_predictions(self) -> list[tuple[str, str]]:
        """(kind, receiver) of messages that it changes in training but not of predicted rows."""
        return sorted(
            (kind, receiver)
            for (kind, receiver, late), changed in self.changes.items()
            if late and not changed and self.changes.get((kind, receiver, False))
        )

    def check_off(self, what: str, before: Tensor, after: Tensor, *when: Any) -> None:
        """Refuse a policy that does something in replicas where its strength is 0.

        Such replicas count as undefended, so every defense would look better than it is. Looked at
        once for each `what` and `when`.

        Args:
            what: was changed.
            before, after: (R, ...) each; of equal shapes, or nothing is said.

        Raises:
            PolicyError: a bit differs.
        """
        if not self.policy.strengths or (what, *when) in self.seen_off:
            return
        self.seen_off.add((what, *when))
        off = self.own.strength == 0
        if not bool(off.any()) or before.shape != after.shape or before.dtype != after.dtype:
            return
        off = off.to(before.device)
        if not torch.equal(*(as_bytes(x[off]) for x in (before, after))):
            raise PolicyError(
                f"{self.policy.name}: changes {what} at strength 0. Return it as given, as by "
                "own.choose(changed, original)."
            )
