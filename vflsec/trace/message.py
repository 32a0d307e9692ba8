"""One recorded message as it is read, checked field by field."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, cast

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from pydantic import Field, StringConstraints, ValidationError

from vflsec.core import check
from vflsec.core.message import Message
from vflsec.core.message_kinds import KINDS, Kind
from vflsec.errors import TraceError
from vflsec.trace.limits import Limits
from vflsec.trace.manifest import Count, Name, Route, Strict, describe_invalid
from vflsec.trace.tables import Stored, check_rows

Short = Annotated[str, StringConstraints(max_length=80)]


class Fields(Strict):
    """What is recorded of a message: a row of ``messages`` (``docs/trace_format.md``)."""

    msg: int
    t: Count | None
    phase: Name
    epoch: Count | None
    step: Count | None
    micro: Count | None
    kind: Short
    name: Short
    sender: str
    receiver: str
    n_rows: Count | None
    shape: Annotated[list[Count], Field(max_length=8)]
    wire_dtype: str | None = None
    wire_bytes: Count | None
    loss_reduction: Short
    grad_scale: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None
    pair: Count | None
    protection: Short
    has_values: bool
    store: Annotated[str, StringConstraints(pattern=Stored.pattern)]
    status: Short

    @property
    def route(self) -> Route:
        """Which messages this one belongs to."""
        return Route(self.kind, self.sender, self.receiver, self.phase)

    @property
    def stored(self) -> Stored:
        """Width and number type of its rows."""
        return Stored.parse(self.store) or Stored(1, "f4")


Found = tuple[Fields, pa.RecordBatch | None]
"""What is recorded of a message, and the rows of its payload."""


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


def read_fields(
    meta: Mapping[str, object], parties: tuple[str, ...], observer: str, limits: Limits, where: str
) -> Fields:
    """The fields of a message as it is written in a file.

    Raises:
        TraceError: they contradict the format or each other; says which field, what it must be and
            what it is.
    """
    where = f"{where}: message {meta.get('msg')!r:.20}"
    try:
        found = Fields.model_validate(meta)
    except ValidationError as why:
        raise TraceError(f"{where}: {describe_invalid(why)}") from None
    for end, party in (("sender", found.sender), ("receiver", found.receiver)):
        if party not in parties:
            raise check.unknown(f"{where}: {end}", party[:40], parties, TraceError)
    if observer not in (found.sender, found.receiver) or found.sender == found.receiver:
        got = f"{found.sender} to {found.receiver}"
        raise TraceError.must(where, f"pass between {observer} and another party", got)
    limits.hold(where, "epochs", found.epoch or 0)
    _check_shape(found, limits, where)
    return found


def _check_shape(found: Fields, limits: Limits, where: str) -> None:
    shape, n, stored = found.shape, found.n_rows, found.stored
    if n is not None and (not shape or shape[0] != n):
        raise TraceError.must(f"{where}: n_rows", "fit shape", f"{n} and {shape}")
    limits.hold(where, "batch_rows", n or 0)
    if not found.has_values:
        return
    limits.hold(where, "width", stored.width)
    width = math.prod(shape if n is None else shape[1:])
    if width != stored.width:
        raise TraceError.must(f"{where}: shape", f"fit {stored}", shape)


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
        raise TraceError.must(where, f"have {expected} rows", there)
    if not found.has_values or batch is None:
        return None, None
    pos = batch.column("pos")
    if pos.null_count or not np.array_equal(pos.to_numpy(), np.arange(there)):
        raise TraceError.must(where, "count pos from 0", "other numbers")
    column = batch.column("value")
    if column.null_count or column.flatten().null_count:
        raise TraceError.must(where, "hold values", "nulls")
    flat = column.flatten().to_numpy(zero_copy_only=False)
    x = flat.astype(found.stored.numpy, copy=False).reshape(found.shape)
    ids = batch.column("row")
    if n is None or ids.null_count == there:
        return x, None
    if ids.null_count:
        raise TraceError.must(where, "give all row ids or none", f"{ids.null_count} without")
    row = ids.to_numpy()
    check_rows(where, row, rows)
    return x, row.astype(np.int64)


def pair_gradients(stream: Iterable[Found]) -> Iterator[Found]:
    """Messages as they come; gradients without a pair get it by phase, ends, step and micro step.

    A recorder on a wire often sees a gradient in another process, or after the next embedding has
    left: the step that both messages say tells, the last embedding that was sent does not. Row ids
    of the embedding are then those of its gradient, if that came without and has as many rows. A
    step that was used for two embeddings tells nothing: such gradients stay without.
    """
    sent: dict[tuple[object, ...], tuple[int | None, NDArray[np.int64] | None]] = {}
    for f, batch in stream:
        if f.step is not None and f.kind == "embedding":
            key = (f.phase, f.sender, f.receiver, f.step, f.micro, f.name)
            rows = _named_rows(batch)
            if key in sent:
                before = sent[key][1]
                same = rows is not None and before is not None and np.array_equal(rows, before)
                sent[key] = (None, rows if same else None)
            else:
                sent[key] = (f.msg, rows)
        elif f.step is not None and f.kind == "gradient" and f.pair is None:
            key = (f.phase, f.receiver, f.sender, f.step, f.micro, f.name)
            number, rows = sent.get(key, (None, None))
            f = f.model_copy(update={"pair": number})
            if (
                batch is not None and rows is not None
                and len(rows) == len(batch) and _named_rows(batch) is None
            ):  # fmt: skip
                at = batch.schema.get_field_index("row")
                batch = batch.set_column(at, batch.schema.field(at), pa.array(rows, pa.int64()))
        yield f, batch


def _named_rows(batch: pa.RecordBatch | None) -> NDArray[np.int64] | None:
    """Row ids, copied; None if one is not known."""
    ids = None if batch is None else batch.column("row")
    return None if ids is None or ids.null_count or not len(ids) else ids.to_numpy().copy()
