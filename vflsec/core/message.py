"""What crosses a party boundary. Nothing else does: id lists and stop signals are messages too."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from vflsec.core import check
from vflsec.core.message_kinds import KINDS, Kind
from vflsec.errors import ShapeError


@dataclass(frozen=True, slots=True)
class Message:
    """One tensor on its way from one party to another.

    Attributes:
        kind: what it is; see :data:`vflsec.core.message_kinds.KINDS`.
        sender: name of the party that sends.
        receiver: name of the party that receives.
        tensor: the payload with a leading replica axis, (R, ...); row-wise kinds are (R, b, ...).
        rows: sample ids of the payload's rows, (R, b) int64, or None where rows have no meaning.
        phase: the training phase, or ``"predict"``.
        epoch: epoch within the phase, from 0.
        step: step within the phase, from 0.
        name: tells messages of one kind apart (for example ``"cross"``), usually empty.
        scale: a public factor the receiver may multiply by to compare rows of different batches
            (the batch size, for gradients of a mean loss).
        policies: names of the policies that touched the payload, in order.
        repeated: whether a row may come several times in it.
    """

    kind: Kind
    sender: str
    receiver: str
    tensor: Tensor
    rows: Tensor | None = None
    phase: str = "train"
    epoch: int = 0
    step: int = 0
    name: str = ""
    scale: float = 1.0
    policies: tuple[str, ...] = ()
    repeated: bool = False

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise check.unknown("message kind", self.kind, KINDS, ShapeError)
        if self.sender == self.receiver:
            raise ShapeError(f"{self.sender!r} sends a message to itself.")
        if self.rows is not None and self.rows.shape != self.tensor.shape[:2]:
            got = f"{tuple(self.rows.shape)} and {tuple(self.tensor.shape)}"
            what = f"{self.kind} from {self.sender}: rows and payload"
            raise ShapeError.must(what, "both start with (replicas, batch)", got)

    def with_tensor(self, tensor: Tensor, policy: str) -> Message:
        """The same message with another payload, stamped with the policy that changed it."""
        return Message(
            self.kind, self.sender, self.receiver, tensor, self.rows, self.phase, self.epoch,
            self.step, self.name, self.scale, (*self.policies, policy), self.repeated,
        )  # fmt: skip
