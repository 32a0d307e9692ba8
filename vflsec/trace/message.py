"""One recorded message as it is read, checked field by field."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from vflsec.core.message import Message
from vflsec.core.message_kinds import KINDS
from vflsec.errors import TraceError
from vflsec.trace.columns import Stored
from vflsec.trace.limits import NAME, Limits

__all__ = ["Recorded", "check_fields", "from_batch"]

_CHOICES = {
    "loss_reduction": ("mean", "sum", "none", "unknown"),
    "protection": ("none", "noise", "compressed", "he", "mpc", "unknown"),
    "status": ("complete", "partial"),
}
_COUNTS = ("epoch", "step", "micro", "n_rows", "wire_bytes", "pair", "t")


@dataclass(frozen=True)
class Recorded:
    """One message of a trace.

    Attributes:
        fields: the columns of ``messages``, see ``docs/traces.md``.
        values: payload of the recorded shape, or None if only its size was recorded.
        rows: (n,) trace row ids, or None where the message has none or they are not known.
    """

    fields: Mapping[str, Any]
    values: NDArray[Any] | None
    rows: NDArray[np.int64] | None

    def __getattr__(self, name: str) -> Any:
        try:
            return self.fields[name]
        except KeyError:
            raise AttributeError(name) from None

    @property
    def scale(self) -> float:
        """What makes rows of different batches compare: batch size of a mean loss, AMP undone."""
        if self.fields["kind"] != "gradient":
            return 1.0
        n = self.fields["n_rows"]
        factor = float(n) if self.fields["loss_reduction"] == "mean" and n else 1.0
        grad_scale = self.fields["grad_scale"]
        return factor if grad_scale in (None, 1.0) else factor / grad_scale

    def message(self) -> Message | None:
        """As a message of a live channel with one replica; None if it has no use there."""
        f = self.fields
        if f["kind"] not in KINDS or f["status"] != "complete":
            return None
        if self.values is None:
            if not KINDS[f["kind"]].is_encrypted:
                return None
            tensor = torch.zeros(()).expand(1, *f["shape"])  # its size is all there is
        else:
            wide = np.float32 if self.values.dtype == np.float16 else self.values.dtype
            tensor = torch.from_numpy(np.array(self.values, dtype=wide, order="C")).unsqueeze(0)
        if f["n_rows"] is not None and self.rows is None and self.values is not None:
            return None  # rows that nobody can name are of no use to an attack
        rows = None if self.rows is None else torch.from_numpy(self.rows).unsqueeze(0)
        answers = (f["kind"], f["phase"]) == ("prediction", "eval")
        return Message(
            f["kind"], f["sender"], f["receiver"], tensor, rows,
            "predict" if answers else f["phase"], f["epoch"] or 0,
            f["step"] or 0, f["name"], self.scale,
        )  # fmt: skip


def check_fields(
    fields: Mapping[str, Any], parties: tuple[str, ...], observer: str, limits: Limits, where: str
) -> None:
    """Refuse a message whose fields contradict the format or each other.

    Raises:
        TraceError: says which field, what it must be and what it is.
    """
    where = f"{where}: message {fields.get('msg')}"
    for name in (*_COUNTS, "phase", "kind", "name", "sender", "receiver", "shape", "has_values",
                 "grad_scale", "store", *_CHOICES):  # fmt: skip
        if name not in fields:
            raise TraceError(f"{where}: the field {name!r} is missing.")
    for name in _COUNTS:
        value = fields[name]
        if value is not None and (not isinstance(value, int) or value < 0):
            raise TraceError(f"{where}: {name} must be a whole number >= 0, got {value!r}.")
    for name, allowed in _CHOICES.items():
        if not isinstance(fields[name], str) or len(fields[name]) > 80:
            raise TraceError(f"{where}: {name} must be one of {', '.join(allowed)}.")
    if not isinstance(fields["phase"], str) or not NAME.fullmatch(fields["phase"]):
        raise TraceError(f"{where}: phase must be a name, got {str(fields['phase'])[:40]!r}.")
    for name in ("kind", "name"):
        if not isinstance(fields[name], str) or len(fields[name]) > 80:
            raise TraceError(f"{where}: {name} must be a text of at most 80 characters.")
    for end in ("sender", "receiver"):
        if fields[end] not in parties:
            raise TraceError(
                f"{where}: {end} {str(fields[end])[:40]!r} is no party of this trace; they are "
                f"{', '.join(parties)}."
            )
    if observer not in (fields["sender"], fields["receiver"]):
        raise TraceError(
            f"{where}: goes from {fields['sender']} to {fields['receiver']}; the folder of "
            f"{observer} holds only what {observer} sent or received."
        )
    if fields["sender"] == fields["receiver"]:
        raise TraceError(f"{where}: sender and receiver are both {observer}.")
    if (fields["epoch"] or 0) > limits.epochs:
        raise TraceError(f"{where}: epoch {fields['epoch']}; at most {limits.epochs} are read.")
    scale = fields["grad_scale"]
    if scale is not None and not (
        isinstance(scale, int | float) and math.isfinite(scale) and scale > 0
    ):
        raise TraceError(f"{where}: grad_scale must be a finite number > 0 or null, got {scale!r}.")
    _shape(fields, limits, where)


def _shape(fields: Mapping[str, Any], limits: Limits, where: str) -> None:
    shape, n = fields["shape"], fields["n_rows"]
    if (
        not isinstance(shape, list) or len(shape) > 8
        or any(not isinstance(s, int) or s < 0 for s in shape)
    ):  # fmt: skip
        raise TraceError(f"{where}: shape must be at most 8 whole numbers >= 0, got {shape!r:.60}.")
    if n is not None and (not shape or shape[0] != n):
        raise TraceError(f"{where}: n_rows {n} does not match shape {shape}.")
    if n is not None and n > limits.batch_rows:
        raise TraceError(f"{where}: {n} rows; at most {limits.batch_rows} are read.")
    stored = Stored.parse(str(fields["store"]))
    if stored is None:
        raise TraceError(
            f"{where}: store must be like 'd64-f4', got {str(fields['store'])[:40]!r}."
        )
    if not isinstance(fields["has_values"], bool):
        raise TraceError(f"{where}: has_values must be true or false.")
    if not fields["has_values"]:
        return
    if stored.width > limits.width:
        raise TraceError(f"{where}: {stored.width} numbers a row; at most {limits.width} are read.")
    width = math.prod(shape[1:] if n is not None else shape)
    if width != stored.width:
        raise TraceError(
            f"{where}: shape {shape} has {width} numbers a row and {stored} has {stored.width}."
        )


def from_batch(
    fields: Mapping[str, Any], batch: pa.RecordBatch | None, rows: int, where: str
) -> tuple[NDArray[Any] | None, NDArray[np.int64] | None]:
    """(payload of the recorded shape, its row ids) from the rows of a tensor table.

    Args:
        fields: checked.
        batch: its rows, in order; None or empty without payload.
        rows: number of row ids of the trace.

    Raises:
        TraceError: rows are missing, doubled, null in part, or outside the trace.
    """
    where = f"{where}: message {fields['msg']}"
    found = 0 if batch is None else len(batch)
    n = fields["n_rows"]
    expected = (n if n is not None else 1) if fields["has_values"] else 0
    if found != expected:
        raise TraceError(f"{where}: {found} rows of its payload are there; it says {expected}.")
    if not fields["has_values"] or batch is None:
        return None, None
    stored = Stored.parse(fields["store"])
    assert stored is not None
    pos = batch.column("pos")
    if pos.null_count or not np.array_equal(pos.to_numpy(), np.arange(found)):
        raise TraceError(f"{where}: pos must count 0, 1, ... within a message.")
    column = batch.column("value")
    if column.null_count or column.flatten().null_count:
        raise TraceError(f"{where}: values must not be null.")
    flat = column.flatten().to_numpy(zero_copy_only=False)
    x = flat.astype(stored.numpy, copy=False).reshape(fields["shape"])
    ids = batch.column("row")
    if n is None or ids.null_count == found:
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
