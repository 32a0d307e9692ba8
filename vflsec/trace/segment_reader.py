"""Reads what a recorder streamed, to the last whole message, trusting no byte of it.

A segment is an Arrow IPC stream. Its framing is read here, and of each message the few numbers that
say how much memory it will take, before Arrow decodes anything: compressed batches are refused, and
a length that the file does not have is where a killed recorder stopped.
"""

from __future__ import annotations

import heapq
import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from vflsec.errors import TraceError
from vflsec.trace.claims import RAW
from vflsec.trace.columns import Stored, build_tensor_schema
from vflsec.trace.limits import Limits, open_file
from vflsec.trace.segment_writer import META

__all__ = ["Torn", "read_segments"]

_SCHEMA, _BATCH = 1, 3


@dataclass
class Torn:
    """What of segments is not whole, in words; filled while they are read.

    Attributes:
        notes: all of it.
        unended: of these, segments that hold whole messages and only lack an end mark: their
            process was stopped, after its last message or before.
    """

    notes: list[str] = field(default_factory=list)
    unended: list[str] = field(default_factory=list)


def read_segments(
    folder: Path, names: list[str], limits: Limits, torn: Torn
) -> Iterator[tuple[dict[str, Any], pa.RecordBatch]]:
    """Messages in the order in which they were written: (fields, rows of the payload).

    `names` are paths of segments below `folder`. A segment that ends early gives what is whole; of
    the messages of one process nothing is given beyond the first that is not there. Several
    processes that wrote at the same time are merged by their clock, and numbered anew.

    Raises:
        TraceError: bytes that no recorder writes.
    """
    by_process: dict[int, list[str]] = {}
    for name in names:
        match = RAW.fullmatch(name.rpartition("/")[2])
        if match is None:
            raise TraceError(f"{name}: is no segment.")
        by_process.setdefault(int(match[1]), []).append(name)
    if len(names) > limits.segments:
        raise TraceError(
            f"{names[0]}: is one of {len(names)} segments; at most {limits.segments} are read. "
            "Raise Limits.segments if you trust them."
        )
    streams = [
        _read_process(folder, process, sorted(by_process[process]), limits, torn)
        for process in sorted(by_process)
    ]
    numbers: list[dict[int, int]] = [{} for _ in streams]
    merged = heapq.merge(*(_stamp(i, s) for i, s in enumerate(streams)), key=lambda found: found[0])
    for count, (_, i, meta, batch) in enumerate(merged):
        if len(streams) == 1:
            yield meta, batch
            continue
        numbers[i][meta["msg"]] = count
        pair = meta.get("pair")
        pair = pair if pair is None else numbers[i].get(pair, pair)
        yield {**meta, "msg": count, "pair": pair}, batch


Found = tuple[dict[str, Any], pa.RecordBatch]


def _stamp(
    i: int, stream: Iterator[Found]
) -> Iterator[tuple[tuple[int, int], int, dict[str, Any], pa.RecordBatch]]:
    """Messages of process `i` with when they passed, which never runs backwards within it."""
    last = 0
    for meta, batch in stream:
        t = meta.get("t")
        last = max(last, t) if isinstance(t, int) else last
        yield (last, i), i, meta, batch


def _read_process(
    folder: Path, process: int, names: list[str], limits: Limits, torn: Torn
) -> Iterator[Found]:
    streams = [_read_segment(folder, n, limits, torn) for n in names]
    merged = heapq.merge(*streams, key=lambda pair: pair[0]["msg"])
    for expected, (meta, batch) in enumerate(merged):
        if meta["msg"] != expected:
            torn.notes.append(
                f"message {expected} of segment {process:04d} is missing; what follows it is "
                "left out."
            )
            return
        yield meta, batch


def _read_segment(
    folder: Path, name: str, limits: Limits, torn: Torn
) -> Iterator[tuple[dict[str, Any], pa.RecordBatch]]:
    match = RAW.fullmatch(name.rpartition("/")[2])
    stored = Stored.parse(match[2]) if match else None
    if stored is None or stored.width > limits.width:
        raise TraceError(f"{name}: rows are wider than the {limits.width} numbers that are read.")
    schema, head = build_tensor_schema(stored), b""
    with open_file(folder, name) as file:
        size = file.seek(0, 2)
        file.seek(0)
        while True:
            frame = _read_frame(file, size, name, limits)
            if frame is None:
                within = file.tell() < size
                if within or not _has_ended(file, size):
                    torn.notes.append(f"{name}: ends within a message or without an end mark.")
                    torn.unended += torn.notes[-1:] if not within else []
                return
            kind, raw = frame
            if kind == _SCHEMA and not head:
                head = raw
                try:
                    found = pa.ipc.read_schema(pa.py_buffer(raw))
                except (pa.ArrowException, OSError, ValueError) as why:
                    raise TraceError(f"{name}: is damaged ({str(why)[:120]}).") from None
                if not found.equals(schema):
                    raise TraceError(
                        f"{name}: has the columns {', '.join(found.names[:8])} of other types than "
                        f"its name says; {', '.join(schema.names)} of {stored} are read."
                    )
                continue
            if kind != _BATCH or not head:
                raise TraceError(f"{name}: holds something that no recorder writes.")
            yield _decode_batch(head + raw, name, stored, limits)


def _has_ended(file: BinaryIO, size: int) -> bool:
    """True if a stream's end mark stands at the end of the file."""
    file.seek(max(0, size - 8))
    return file.read(8) == b"\xff\xff\xff\xff\x00\x00\x00\x00"


def _read_frame(file: BinaryIO, size: int, name: str, limits: Limits) -> tuple[int, bytes] | None:
    """The next encapsulated message: (its type, its bytes); None at the end or a torn one."""
    start = file.tell()
    head = file.read(8)
    if len(head) < 8:
        file.seek(start)
        return None
    mark, length = struct.unpack("<Ii", head)
    if mark != 0xFFFFFFFF or length < 0 or length > limits.header_bytes:
        raise TraceError(f"{name}: is damaged at byte {start} (no message begins there).")
    if length == 0:
        return None
    meta = file.read(length)
    if len(meta) < length:
        file.seek(start)
        return None
    try:
        kind, body, rows, compressed = _read_header(meta)
    except (struct.error, IndexError, ValueError):
        raise TraceError(f"{name}: is damaged at byte {start} (its metadata is none).") from None
    if compressed:
        raise TraceError(
            f"{name}: is compressed; a trace is not: a small file must not become a large one."
        )
    if not 0 <= rows <= limits.batch_rows or not 0 <= body <= limits.batch_bytes:
        raise TraceError(
            f"{name}: a message of {rows} rows and {body} bytes; at most {limits.batch_rows} rows "
            f"and {limits.batch_bytes} bytes are read. Raise the limits if you trust it."
        )
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
        text = str(why).splitlines()[0][:120] if str(why) else type(why).__name__
        raise TraceError(f"{name}: is damaged ({text}).") from None
    if len(batch) * stored.row_bytes > limits.batch_bytes:
        raise TraceError(f"{name}: a message decodes to more than {limits.batch_bytes} bytes.")
    return meta, batch
