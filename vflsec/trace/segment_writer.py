"""One segment of a trace while it is written: Arrow IPC messages, one write for each.

Arrow frames the first message of a shape. Those that follow differ in a few places only, which are
filled in here: the message's number, its row ids, its fields, and the payload, which is not copied.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from vflsec.trace.columns import Stored, build_tensor_schema

__all__ = ["META", "Segment"]

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
