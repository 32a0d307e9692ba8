"""One recorded message as it is read, checked field by field."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, cast

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from vflsec.core.message import Message
from vflsec.core.message_kinds import KINDS, Kind
from vflsec.errors import TraceError
from vflsec.trace.columns import Stored
from vflsec.trace.limits import NAME, Limits

__all__ = ["Fields", "Recorded", "Route", "from_batch", "read_fields"]


class Route(NamedTuple):
    """Messages of one kind that go one way in one phase."""

    kind: str
    sender: str
    receiver: str
    phase: str


@dataclass(frozen=True, slots=True)
class Fields:
    """What is recorded of a message beside its payload: a row of ``messages`` (docs/traces.md)."""

    msg: int
    t: int | None
    phase: str
    epoch: int | None
    step: int | None
    micro: int | None
    kind: str
    name: str
    sender: str
    receiver: str
    n_rows: int | None
    shape: list[int]
    wire_dtype: str | None
    wire_bytes: int | None
    loss_reduction: str
    grad_scale: float | None
    pair: int | None
    protection: str
    has_values: bool
    store: str
    status: str

    @property
    def route(self) -> Route:
        """Which messages this one belongs to."""
        return Route(self.kind, self.sender, self.receiver, self.phase)


@dataclass(frozen=True)
class Recorded:
    """One message of a trace.

    Attributes:
        fields: what is recorded beside the payload; also attributes of the message itself.
        values: payload of the recorded shape, or None if only its size was recorded.
        rows: (n,) trace row ids, or None where the message has none or they are not known.
    """

    fields: Fields
    values: NDArray[Any] | None
    rows: NDArray[np.int64] | None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.fields, name)

    @property
    def scale(self) -> float:
        """What makes rows of different batches compare: batch size of a mean loss, AMP undone."""
        f = self.fields
        if f.kind != "gradient":
            return 1.0
        factor = float(f.n_rows) if f.loss_reduction == "mean" and f.n_rows else 1.0
        return factor if f.grad_scale in (None, 1.0) else factor / f.grad_scale

    def message(self) -> Message | None:
        """As a message of a live channel with one replica; None if it has no use there."""
        f = self.fields
        if f.kind not in KINDS or f.status != "complete":
            return None
        if self.values is None:
            if not KINDS[f.kind].is_encrypted:
                return None
            tensor = torch.zeros(()).expand(1, *f.shape)  # its size is all there is
        else:
            wide = np.float32 if self.values.dtype == np.float16 else self.values.dtype
            tensor = torch.from_numpy(np.array(self.values, dtype=wide, order="C")).unsqueeze(0)
        if f.n_rows is not None and self.rows is None and self.values is not None:
            return None  # rows that nobody can name are of no use to an attack
        rows = None if self.rows is None else torch.from_numpy(self.rows).unsqueeze(0)
        answers = (f.kind, f.phase) == ("prediction", "eval")
        return Message(
            cast(Kind, f.kind), f.sender, f.receiver, tensor, rows,
            "predict" if answers else f.phase, f.epoch or 0,
            f.step or 0, f.name, self.scale,
        )  # fmt: skip


Rule = tuple[str, Callable[[Any], bool], Callable[[Any], str]]
"""A field, whether a value of it will do, and what to say of one that does not."""


def _is_count(value: Any) -> bool:
    return value is None or (isinstance(value, int) and value >= 0)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= 80


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and NAME.fullmatch(value) is not None


def _is_shape(value: Any) -> bool:
    whole = isinstance(value, list) and len(value) <= 8
    return whole and all(isinstance(s, int) and s >= 0 for s in value)


def _is_scale(value: Any) -> bool:
    number = isinstance(value, int | float)
    return value is None or (number and math.isfinite(value) and value > 0)


def _say_choice(allowed: Sequence[str]) -> Callable[[Any], str]:
    return lambda value: f"must be one of {', '.join(allowed)}."


_COUNTS = ("epoch", "step", "micro", "n_rows", "wire_bytes", "pair", "t")
_CHOICES = {
    "loss_reduction": ("mean", "sum", "none", "unknown"),
    "protection": ("none", "noise", "compressed", "he", "mpc", "unknown"),
    "status": ("complete", "partial"),
}
_RULES: tuple[Rule, ...] = (
    *((f, _is_count, lambda v: f"must be a whole number >= 0, got {v!r}.") for f in _COUNTS),
    *((f, _is_text, _say_choice(allowed)) for f, allowed in _CHOICES.items()),
    ("phase", _is_name, lambda v: f"must be a name, got {str(v)[:40]!r}."),
    ("kind", _is_text, lambda v: "must be a text of at most 80 characters."),
    ("name", _is_text, lambda v: "must be a text of at most 80 characters."),
)
"""What each field must be by itself, in the order in which they are looked at."""
_ALL = (
    *_COUNTS, "phase", "kind", "name", "sender", "receiver", "shape", "has_values", "grad_scale",
    "store", *_CHOICES,
)  # fmt: skip
_NAMES = tuple(f.name for f in fields(Fields))


def read_fields(
    meta: Mapping[str, Any], parties: tuple[str, ...], observer: str, limits: Limits, where: str
) -> Fields:
    """The fields of a message as it is written in a file.

    Raises:
        TraceError: they contradict the format or each other; says which field, what it must be and
            what it is.
    """
    where = f"{where}: message {meta.get('msg')}"
    for name in _ALL:
        if name not in meta:
            raise TraceError(f"{where}: the field {name!r} is missing.")
    for name, is_right, say in _RULES:
        if not is_right(meta[name]):
            raise TraceError(f"{where}: {name} {say(meta[name])}")
    found = Fields(**{name: meta.get(name) for name in _NAMES})  # type: ignore[arg-type]
    _check_ends(found, parties, observer, where)
    if (found.epoch or 0) > limits.epochs:
        raise TraceError(f"{where}: epoch {found.epoch}; at most {limits.epochs} are read.")
    scale = found.grad_scale
    if not _is_scale(scale):
        raise TraceError(f"{where}: grad_scale must be a finite number > 0 or null, got {scale!r}.")
    _check_shape(found, limits, where)
    _check_payload(found, limits, where)
    return found


def _check_ends(found: Fields, parties: tuple[str, ...], observer: str, where: str) -> None:
    for end, party in (("sender", found.sender), ("receiver", found.receiver)):
        if party not in parties:
            raise TraceError(
                f"{where}: {end} {str(party)[:40]!r} is no party of this trace; they are "
                f"{', '.join(parties)}."
            )
    if observer not in (found.sender, found.receiver):
        raise TraceError(
            f"{where}: goes from {found.sender} to {found.receiver}; the folder of "
            f"{observer} holds only what {observer} sent or received."
        )
    if found.sender == found.receiver:
        raise TraceError(f"{where}: sender and receiver are both {observer}.")


def _check_shape(found: Fields, limits: Limits, where: str) -> None:
    shape, n = found.shape, found.n_rows
    if not _is_shape(shape):
        raise TraceError(f"{where}: shape must be at most 8 whole numbers >= 0, got {shape!r:.60}.")
    if n is not None and (not shape or shape[0] != n):
        raise TraceError(f"{where}: n_rows {n} does not match shape {shape}.")
    if n is not None and n > limits.batch_rows:
        raise TraceError(f"{where}: {n} rows; at most {limits.batch_rows} are read.")


def _check_payload(found: Fields, limits: Limits, where: str) -> None:
    stored = Stored.parse(str(found.store))
    if stored is None:
        raise TraceError(f"{where}: store must be like 'd64-f4', got {str(found.store)[:40]!r}.")
    if not isinstance(found.has_values, bool):
        raise TraceError(f"{where}: has_values must be true or false.")
    if not found.has_values:
        return
    if stored.width > limits.width:
        raise TraceError(f"{where}: {stored.width} numbers a row; at most {limits.width} are read.")
    width = math.prod(found.shape[1:] if found.n_rows is not None else found.shape)
    if width != stored.width:
        raise TraceError(
            f"{where}: shape {found.shape} has {width} numbers a row and {stored} has "
            f"{stored.width}."
        )


def from_batch(
    found: Fields, batch: pa.RecordBatch | None, rows: int, where: str
) -> tuple[NDArray[Any] | None, NDArray[np.int64] | None]:
    """(payload of the recorded shape, its row ids) from the rows of a tensor table.

    Args:
        found: what is recorded beside the payload.
        batch: its rows, in order; None or empty without payload.
        rows: number of row ids of the trace.

    Raises:
        TraceError: rows are missing, doubled, null in part, or outside the trace.
    """
    where = f"{where}: message {found.msg}"
    there = 0 if batch is None else len(batch)
    n = found.n_rows
    expected = (n if n is not None else 1) if found.has_values else 0
    if there != expected:
        raise TraceError(f"{where}: {there} rows of its payload are there; it says {expected}.")
    if not found.has_values or batch is None:
        return None, None
    stored = Stored.parse(found.store)
    assert stored is not None
    pos = batch.column("pos")
    if pos.null_count or not np.array_equal(pos.to_numpy(), np.arange(there)):
        raise TraceError(f"{where}: pos must count 0, 1, ... within a message.")
    column = batch.column("value")
    if column.null_count or column.flatten().null_count:
        raise TraceError(f"{where}: values must not be null.")
    flat = column.flatten().to_numpy(zero_copy_only=False)
    x = flat.astype(stored.numpy, copy=False).reshape(found.shape)
    ids = batch.column("row")
    if n is None or ids.null_count == there:
        return x, None
    if ids.null_count:
        raise TraceError(f"{where}: row is null in part; give all row ids of a message or none.")
    row = ids.to_numpy()
    if len(row) and (row.min() < 0 or row.max() >= rows):
        raise TraceError(
            f"{where}: row ids go from {row.min()} to {row.max()}; this trace has rows "
            f"0..{rows - 1}."
        )
    return x, row.astype(np.int64)
