"""Streams one observer's messages to disk: after every message all before it can be read."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from vflsec import check
from vflsec.errors import ConfigError
from vflsec.trace.columns import Stored, tensors, values
from vflsec.trace.limits import NAME
from vflsec.trace.manifest import Manifest, ObserverInfo, dump, load

__all__ = ["META", "RAW", "Writer", "begin"]

META = b"vflsec.message"
"""Key of a record batch's metadata under which its message stands, as JSON."""
RAW = re.compile(r"raw-([0-9]{4})-(d[0-9]+-f[248])\.arrows")

_STORE = {"e": "f2", "f": "f4"}
_TYPE = {"e": "float16", "f": "float32", "d": "float64"}


@lru_cache(maxsize=16)
def _positions(n: int) -> pa.Array:
    return pa.array(np.arange(n, dtype=np.int32))


def begin(folder: Path, manifest: Manifest) -> None:
    """Make a trace's folder and its manifest; one that describes the same run is left as it is.

    Raises:
        ConfigError: something else is there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "manifest.json"
    if path.exists():
        there = load(path.read_bytes(), Manifest, str(path))
        if (there.parties, there.rows, there.run) != (
            manifest.parties,
            manifest.rows,
            manifest.run,
        ):
            raise ConfigError(
                f"{folder}: holds the trace of another run. Give an empty folder for each run."
            )
        if (folder / "seal.json").exists():
            raise ConfigError(f"{folder}: is sealed; record into another folder.")
        return
    if any(not p.name.endswith(".tmp") for p in folder.iterdir()):
        if path.exists():  # another process of the same run was faster
            return begin(folder, manifest)
        raise ConfigError(f"{folder}: is not empty and holds no trace. Give an empty folder.")
    _replace(path, dump(manifest))


def _replace(path: Path, data: bytes) -> None:
    """Write so that other processes see the old file or the whole new one."""
    new = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    new.write_bytes(data)
    new.replace(path)


class Writer:
    """Appends the messages of one observer to segments of the trace in `folder`.

    Every process start makes its own segments, and several processes may write at once. Safe to
    call from several threads.

    Args:
        folder: of a trace that :func:`begin` made.
        observer: name of the party whose messages these are.
        max_bytes: stop recording beyond, and say so in the trace; None = no limit.
    """

    def __init__(self, folder: Path, observer: str, *, max_bytes: int | None = None) -> None:
        if not NAME.fullmatch(observer):
            raise check.fail("record: party", "of letters, digits, '.', '_', '+', '-'", observer)
        self.folder = folder / "view" / observer
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.observer = observer
        self.max_bytes, self.bytes, self.count, self.full = max_bytes, 0, 0, False
        self._lock = threading.Lock()
        self._streams: dict[Stored, tuple[Any, Any]] = {}
        self.segment = self._claim()
        if not (self.folder / "observer.json").exists():
            self.describe(ObserverInfo(party=observer))

    def _claim(self) -> int:
        """A number of segments that no other process has; sealing removes the mark it leaves."""
        if (self.folder / "messages.parquet").exists():
            raise ConfigError(f"{self.folder}: is sealed; record into another folder.")
        found = [RAW.fullmatch(p.name) for p in self.folder.iterdir()]
        number = max((int(m[1]) for m in found if m), default=-1) + 1
        while True:
            try:
                (self.folder / f"raw-{number:04d}.tmp").touch(exist_ok=False)
            except FileExistsError:
                number += 1
            else:
                return number

    def describe(self, info: ObserverInfo) -> None:
        """Write ``observer.json`` anew."""
        _replace(self.folder / "observer.json", dump(info))

    def message(
        self,
        kind: str,
        sender: str,
        receiver: str,
        payload: NDArray[Any] | None,
        rows: NDArray[np.int64] | None,
        *,
        shape: Sequence[int] | None = None,
        phase: str = "train",
        epoch: int | None = None,
        step: int | None = None,
        micro: int | None = None,
        name: str = "",
        wire_dtype: str = "",
        wire_bytes: int | None = None,
        loss_reduction: str = "unknown",
        grad_scale: float | None = None,
        pair: int | None = None,
        protection: str = "unknown",
        row_wise: bool = True,
    ) -> int:
        """Append one message; returns its number, or -1 if `max_bytes` is reached.

        Args:
            payload: (n, ...) numbers with a row for each sample if `row_wise`, else any shape; None
                if there is only its size (a ciphertext). It is copied before this returns.
            rows: (n,) trace row ids, or None if they are not known.
            shape: of a message without payload.
        """
        whole = tuple(payload.shape) if payload is not None else tuple(shape or ())
        n = whole[0] if row_wise and whole else None
        if payload is None:
            stored, flat = Stored(1, "f4"), np.empty((0, 1), np.float32)
        else:
            flat = payload.reshape(n if n is not None else 1, -1) if payload.size else payload
            flat = flat.reshape(len(flat), -1)
            store = _STORE.get(payload.dtype.char, "f8")
            stored = Stored(max(1, flat.shape[1]), store)
        if rows is not None and n is not None and len(rows) != n:
            raise ConfigError(
                f"record: {kind} has {n} rows and {len(rows)} ids; give one id for each row."
            )
        size = flat.nbytes + 24 * len(flat)
        meta = {
            "t": time.time_ns(), "phase": phase, "epoch": epoch, "step": step, "micro": micro,
            "kind": kind, "name": name, "sender": sender, "receiver": receiver, "n_rows": n,
            "shape": list(whole), "wire_dtype": wire_dtype or _TYPE.get(flat.dtype.char, "other"),
            "wire_bytes": wire_bytes if wire_bytes is not None else int(flat.nbytes),
            "loss_reduction": loss_reduction, "grad_scale": grad_scale, "pair": pair,
            "protection": protection, "has_values": payload is not None, "store": str(stored),
            "status": "complete",
        }  # fmt: skip
        ids = rows if payload is not None and n is not None else None
        with self._lock:
            if self.full or (self.max_bytes is not None and self.bytes + size > self.max_bytes):
                self.full = True
                return -1
            number = self.count
            meta["msg"] = number
            self._append(stored, flat, ids, number, meta)
            self.count, self.bytes = number + 1, self.bytes + size
        return number

    def _append(
        self, stored: Stored, flat: NDArray[Any], ids: NDArray[np.int64] | None, number: int,
        meta: dict[str, Any],
    ) -> None:  # fmt: skip
        schema, n = tensors(stored), len(flat)
        row = pa.nulls(n, pa.int64()) if ids is None else pa.array(ids, pa.int64())
        batch = pa.RecordBatch.from_arrays(
            [pa.array(np.full(n, number, np.int64)), _positions(n), row, values(flat, stored)],
            schema=schema,
        )  # fmt: skip
        if stored not in self._streams:
            path = self.folder / f"raw-{self.segment:04d}-{stored}.arrows"
            file = pa.OSFile(str(path), "wb")
            self._streams[stored] = (file, pa.ipc.new_stream(file, schema))
        text = json.dumps(meta, separators=(",", ":"))
        self._streams[stored][1].write_batch(batch, custom_metadata={META: text.encode()})

    def close(self) -> None:
        """End the segments; what was written stays as it is."""
        with self._lock:
            for file, stream in self._streams.values():
                stream.close()
                file.close()
            self._streams = {}
            self.full = True

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
