"""Segments: what recorders stream, one Arrow IPC file for each process, width and number type.

Writing: Arrow frames the first message of a shape; in those that follow only the number, row ids,
fields and payload are filled in. Reading goes to the last whole message and trusts no byte: the few
numbers that say how much memory a message takes are read before Arrow decodes it, compressed
batches are refused, and a length that the file does not have is where a killed recorder stopped.
"""

from __future__ import annotations

import heapq
import json
import os
import re
import struct
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from vflsec.errors import TraceError
from vflsec.trace.limits import UNCOMPRESSED, Limits, open_file, refuse_file
from vflsec.trace.manifest import Manifest
from vflsec.trace.tables import Fields, Found, Stored, build_tensor_schema, read_fields

RAW = re.compile(r"raw-([0-9]{4})-(d[0-9]+-f[248])\.arrows")
"""Names of segments: number of the process that wrote it, width and number type."""

META = b"vflsec.core.message"
"""Key of a record batch's metadata under which its message stands, as JSON."""

_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_SLOT = 256  # JSON is filled up with spaces to a multiple of this
_FRAMES = 8  # shapes whose framing is kept
_MSG, _ROW = 0x7B7B5AA5, 0x5AA57B7B


class _Frame:
    """The framing of messages of one shape, with places to fill in."""

    def __init__(self, stored: Stored, n: int, named: bool, slot: int) -> None:
        flat = np.full((n, stored.width), 1.5, stored.numpy)
        rows = np.full(n, _ROW, np.int64) if named else None
        mark = b"#" * slot
        data = _framed(stored, flat, rows, _MSG, mark)
        start = data.rindex(flat.tobytes())
        self.tail = data[start + flat.nbytes :]
        self.head = bytearray(data[:start])
        at = data.index(mark)
        self.text = memoryview(self.head)[at : at + slot]
        self.msg = self._column(data, _MSG, n)
        self.row = self._column(data, _ROW, n) if named else None

    def _column(self, data: bytes, probe: int, n: int) -> NDArray[np.int64]:
        at = data.index(np.full(n, probe, np.int64).tobytes())
        return np.frombuffer(self.head, np.int64, n, at)

    def parts(
        self, flat: NDArray[Any], rows: NDArray[np.int64] | None, number: int, text: bytes
    ) -> list[Any]:
        """What is to be written for one message."""
        self.text[:] = text
        self.msg[:] = number
        if self.row is not None and rows is not None:
            self.row[:] = rows
        return [self.head, flat.data.cast("B"), self.tail]


def _framed(
    stored: Stored, flat: NDArray[Any], rows: NDArray[np.int64] | None, number: int, text: bytes
) -> bytes:
    """One message as Arrow frames it."""
    n, schema = len(flat), build_tensor_schema(stored)
    kind = schema.field("value").type
    columns = [
        _array(np.full(n, number, np.int64)),
        _array(np.arange(n, dtype=np.int32)),
        pa.nulls(n, pa.int64()) if rows is None else _array(rows),
        pa.Array.from_buffers(kind, n, [None], children=[_array(flat.reshape(-1))]),
    ]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as out:
        start = sink.tell()
        batch = pa.RecordBatch.from_arrays(columns, schema=schema)
        out.write_batch(batch, custom_metadata={META: text})
    return bytes(sink.getvalue()[max(start, len(_opening(stored))) : -len(_END)])


def _array(x: NDArray[Any]) -> pa.Array:
    kind = pa.from_numpy_dtype(x.dtype)
    return pa.Array.from_buffers(kind, len(x), [None, pa.py_buffer(np.ascontiguousarray(x))])


def _opening(stored: Stored) -> bytes:
    """What a stream begins with."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, build_tensor_schema(stored)):
        pass
    return bytes(sink.getvalue()[: -len(_END)])


class Segment:
    """An Arrow IPC stream of one width and number type, open for appending.

    Raises:
        FileExistsError: it is there already.
    """

    def __init__(self, path: Path, stored: Stored) -> None:
        self.stored, self._kind = stored, np.dtype(stored.numpy)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        self.file = os.open(path, flags, 0o600)
        self._frames: OrderedDict[tuple[int, bool, int], _Frame | None] = OrderedDict()
        self.size = 0
        self._write([_opening(stored)])

    def append(
        self, flat: NDArray[Any], rows: NDArray[np.int64] | None, number: int, text: bytes
    ) -> None:
        """Write one message.

        Args:
            flat: (n, width) payload.
            rows: (n,) row ids, or None.
            number: of the message.
            text: its fields, JSON.

        Raises:
            OSError: it could not be written whole; what was written of it is taken back.
        """
        text += b" " * (-len(text) % _SLOT)
        if flat.dtype != self._kind or not flat.flags.c_contiguous:
            flat = np.ascontiguousarray(flat, self._kind)
        key = (len(flat), rows is not None, len(text))
        frame = self._frames.get(key)
        if frame is None and len(flat):
            # a shape that does not come again is not worth the framing
            frame = _Frame(self.stored, *key) if key in self._frames else None
            self._frames[key] = frame
            if len(self._frames) > _FRAMES:
                self._frames.popitem(last=False)
        if frame is None:
            self._write([_framed(self.stored, flat, rows, number, text)])
        else:
            self._write(frame.parts(flat, rows, number, text))

    def _write(self, parts: Sequence[Any]) -> None:
        whole = sum(len(p) for p in parts)
        try:
            done = os.writev(self.file, parts) if hasattr(os, "writev") else 0
            if done < whole:
                rest = memoryview(b"".join(parts))
                while done < whole:
                    done += os.write(self.file, rest[done:])
        except OSError:
            os.ftruncate(self.file, self.size)
            os.lseek(self.file, self.size, os.SEEK_SET)
            raise
        self.size += whole

    def close(self, *, mark: bool = True) -> None:
        """End the stream, with its end mark; what was written stays as it is.

        Raises:
            OSError: there was no room for the mark, without which all can be read as well.
        """
        try:
            if mark:
                self._write([_END])
        finally:
            os.close(self.file)


_SCHEMA, _BATCH = 1, 3


@dataclass
class Torn:
    """What of segments is not whole, in words; filled while they are read.

    Attributes:
        notes: all of it.
        unended: of these, what a process leaves that was stopped between two messages, or before
            its first: segments without an end mark, or none.
    """

    notes: list[str] = field(default_factory=list)
    unended: list[str] = field(default_factory=list)

    def add(self, note: str, *, unended: bool) -> None:
        """Note one."""
        self.notes.append(note)
        self.unended += [note] if unended else []


def find_segments(files: Iterable[str], observer: str) -> list[str]:
    """The segments of an observer among a trace's files."""
    start = f"view/{observer}/"
    return [f for f in files if f.startswith(start) and RAW.fullmatch(f[len(start) :])]


def read_segments(
    folder: Path, files: Iterable[str], manifest: Manifest, observer: str, limits: Limits,
    torn: Torn,
) -> Iterator[Found]:  # fmt: skip
    """Messages of an observer in the order in which they were written, gradients with their pair.

    A segment that ends early gives what is whole; of the messages of one process nothing is given
    beyond the first that is not there. Several processes that wrote at the same time are merged by
    their clock, and numbered anew.

    Raises:
        TraceError: bytes that no recorder writes.
    """
    read = partial(_read_segment, folder, manifest, observer, limits, torn)
    by_process: dict[str, list[str]] = {}
    for name in sorted(found := find_segments(files, observer)):
        by_process.setdefault(name.rpartition("/")[2][:8], []).append(name)
    limits.hold(f"view/{observer}", "segments", len(found))
    streams = [_read_process(p, map(read, of), torn) for p, of in sorted(by_process.items())]
    return pair_gradients(streams[0] if len(streams) == 1 else _merge(streams))


def _merge(streams: Sequence[Iterator[Found]]) -> Iterator[Found]:
    """Messages of several processes by their clock, numbered anew."""
    numbers: list[dict[int, int]] = [{} for _ in streams]
    merged = heapq.merge(*(_stamp(i, s) for i, s in enumerate(streams)), key=lambda found: found[0])
    for count, ((_, i), fields, batch) in enumerate(merged):
        numbers[i][fields.msg] = count
        pair = None if fields.pair is None else numbers[i].get(fields.pair, fields.pair)
        yield fields.model_copy(update={"msg": count, "pair": pair}), batch


def _stamp(
    i: int, stream: Iterator[Found]
) -> Iterator[tuple[tuple[int, int], Fields, pa.RecordBatch | None]]:
    """Messages of process `i` with when they passed, which never runs backwards within it."""
    last = 0
    for fields, batch in stream:
        last = max(last, fields.t or 0)
        yield (last, i), fields, batch


def _read_process(process: str, streams: Iterable[Iterator[Found]], torn: Torn) -> Iterator[Found]:
    merged = heapq.merge(*streams, key=lambda found: found[0].msg)
    for expected, (fields, batch) in enumerate(merged):
        if fields.msg != expected:
            text = f"message {expected} of {process[4:]} is missing; what follows is left out."
            torn.notes.append(text)
            return
        yield fields, batch


def _read_segment(
    folder: Path, manifest: Manifest, observer: str, limits: Limits, torn: Torn, name: str
) -> Iterator[Found]:
    match = RAW.fullmatch(name.rpartition("/")[2])
    stored = Stored.parse(match[2]) if match else None
    if stored is None:
        raise refuse_file(name)
    limits.hold(name, "width", stored.width)
    schema, head = build_tensor_schema(stored), b""
    with open_file(folder, name) as file:
        size = file.seek(0, 2)
        file.seek(0)
        while (frame := _read_frame(file, size, name, limits)) is not None:
            kind, raw = frame
            if kind == _SCHEMA and not head:
                head = raw
                _check_columns(raw, schema, stored, name)
                continue
            if kind != _BATCH or not head:
                raise TraceError.damaged(name, "no recorder writes this")
            meta, batch = _decode_batch(head + raw, name, stored, limits)
            where = f"view/{observer}"
            yield read_fields(meta, manifest.ends, observer, limits, where), batch
        within = file.tell() < size
        if within or not _has_ended(file, size):
            text = f"{name}: ends within a message or without an end mark."
            torn.add(text, unended=not within)


def _check_columns(raw: bytes, schema: pa.Schema, stored: Stored, name: str) -> None:
    try:
        found = pa.ipc.read_schema(pa.py_buffer(raw))
    except (pa.ArrowException, OSError, ValueError) as why:
        raise TraceError.damaged(name, why) from None
    if not found.equals(schema):
        raise TraceError.must(name, f"have columns {schema.names}", found.names)


def _has_ended(file: BinaryIO, size: int) -> bool:
    """True if a stream's end mark stands at the end of the file."""
    file.seek(max(0, size - 8))
    return file.read(8) == _END


def _read_frame(file: BinaryIO, size: int, name: str, limits: Limits) -> tuple[int, bytes] | None:
    """The next encapsulated message: (its type, its bytes); None at the end or a torn one."""
    start = file.tell()
    head = file.read(8)
    if len(head) < 8:
        file.seek(start)
        return None
    mark, length = struct.unpack("<Ii", head)
    if mark != 0xFFFFFFFF or length < 0 or length > limits.header_bytes:
        raise TraceError.damaged(name, f"no message at byte {start}")
    if length == 0:
        return None
    meta = file.read(length)
    if len(meta) < length:
        file.seek(start)
        return None
    try:
        kind, body, rows, compressed = _read_header(meta)
    except (struct.error, IndexError, ValueError):
        raise TraceError.damaged(name, f"no metadata at byte {start}") from None
    if compressed:
        raise TraceError.must(name, UNCOMPRESSED, "another way")
    if rows < 0 or body < 0:
        raise TraceError.damaged(name, f"a message of {rows} rows and {body} bytes")
    limits.hold(name, "batch_rows", rows)
    limits.hold(name, "batch_bytes", body)
    if file.tell() + body > size:
        file.seek(start)
        return None
    return kind, head + meta + file.read(body)


def _read_header(meta: bytes) -> tuple[int, int, int, bool]:
    """(type, bytes of the body, rows, whether compressed) of a flatbuffer Message.

    Fields by position: Message (version, header_type, header, bodyLength, custom_metadata);
    RecordBatch (length, nodes, buffers, compression). Apache Arrow format, Message.fbs.
    """
    (root,) = struct.unpack_from("<I", meta, 0)
    kind_at, header_at, body_at = (_find_field(meta, root, i) for i in (1, 2, 3))
    kind = meta[kind_at] if kind_at else 0
    body = struct.unpack_from("<q", meta, body_at)[0] if body_at else 0
    if kind != _BATCH or not header_at:
        return kind, body, 0, False
    batch = header_at + struct.unpack_from("<I", meta, header_at)[0]
    length_at, compression_at = _find_field(meta, batch, 0), _find_field(meta, batch, 3)
    rows = struct.unpack_from("<q", meta, length_at)[0] if length_at else 0
    return kind, body, rows, bool(compression_at)


def _find_field(meta: bytes, table: int, index: int) -> int:
    """Where a field of a flatbuffer table stands; 0 if it is left out."""
    vtable = table - struct.unpack_from("<i", meta, table)[0]
    if vtable < 0:
        raise ValueError("outside")
    (size,) = struct.unpack_from("<H", meta, vtable)
    place = 4 + 2 * index
    if place + 2 > size:
        return 0
    (offset,) = struct.unpack_from("<H", meta, vtable + place)
    return table + offset if offset else 0


def _decode_batch(
    data: bytes, name: str, stored: Stored, limits: Limits
) -> tuple[dict[str, Any], pa.RecordBatch]:
    try:
        with pa.ipc.open_stream(pa.BufferReader(data)) as stream:
            batch, custom = stream.read_next_batch_with_custom_metadata()
        batch.validate(full=True)
        meta = json.loads((custom or {})[META])
        if not isinstance(meta, dict) or not isinstance(meta.get("msg"), int):
            raise ValueError("a message without a number")
    except (pa.ArrowException, OSError, ValueError, KeyError, MemoryError, RecursionError) as why:
        raise TraceError.damaged(name, why) from None
    limits.hold(name, "batch_bytes", len(batch) * stored.row_bytes)
    return meta, batch


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
