"""Streams one observer's messages to disk: after every message all before it can be read."""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vflsec.core import check
from vflsec.errors import ConfigError
from vflsec.trace.claims import Claim
from vflsec.trace.columns import Stored
from vflsec.trace.limits import NAME
from vflsec.trace.manifest import Manifest, ObserverInfo, dump, load
from vflsec.trace.segment_writer import Segment

__all__ = ["Plan", "Writer", "begin"]

_STORE = {"e": "f2", "f": "f4"}
_TYPE = {"e": "float16", "f": "float32", "d": "float64"}
_PLANS = 256  # of which the common fields are kept
_JSON = json.JSONEncoder(separators=(",", ":"), check_circular=False)


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


def _null(value: float | None) -> Any:
    return "null" if value is None else value


class Plan(NamedTuple):
    """Messages of one kind and shape: rows, the shape that is stored, bytes, the common fields."""

    kind: str
    stored: Stored
    n: int | None
    flat: tuple[int, int]
    size: int
    text: str


def _planned(
    kind: str, sender: str, receiver: str, form: tuple[tuple[int, ...], str] | None,
    shape: tuple[int, ...] | None, phase: str, name: str, wire_dtype: str,
    wire_bytes: int | None, loss_reduction: str, protection: str, row_wise: bool,
) -> Plan:  # fmt: skip
    whole, char = ((shape or ()), "f") if form is None else form
    n = whole[0] if row_wise and whole else None
    if form is None:
        flat, stored = (0, 1), Stored(1, "f4")
    else:
        flat = (1, math.prod(whole)) if n is None else (n, math.prod(whole[1:]))
        stored = Stored(max(1, flat[1]), _STORE.get(char, "f8"))
    held = math.prod(flat) * np.dtype(char).itemsize
    text = _JSON.encode({
        "phase": phase, "kind": kind, "name": name, "sender": sender, "receiver": receiver,
        "n_rows": n, "shape": list(whole), "wire_dtype": wire_dtype or _TYPE.get(char, "other"),
        "wire_bytes": held if wire_bytes is None else wire_bytes,
        "loss_reduction": loss_reduction, "protection": protection,
        "has_values": form is not None, "store": str(stored), "status": "complete",
    })  # fmt: skip
    return Plan(kind, stored, n, flat, held + 24 * flat[0], f"{text[:-1]},")


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
        self._streams: dict[Stored, Segment] = {}
        self._plans: dict[tuple[Any, ...], Plan] = {}
        if (self.folder / "messages.parquet").exists():
            raise ConfigError(f"{self.folder}: is sealed; record into another folder.")
        self._claim = Claim(self.folder)
        if not (self.folder / "observer.json").exists():
            self.describe(ObserverInfo(party=observer))

    @property
    def mine(self) -> bool:
        """Whether this process may write: the one that opened it, not a fork of it."""
        return self._claim.process == os.getpid()

    def info(self) -> ObserverInfo:
        """What ``observer.json`` says now."""
        path = self.folder / "observer.json"
        return load(path.read_bytes(), ObserverInfo, str(path))

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
        form = None if payload is None else (payload.shape, payload.dtype.char)
        plan = self.plan(
            kind, sender, receiver, form, shape=shape, phase=phase, name=name,
            wire_dtype=wire_dtype, wire_bytes=wire_bytes, loss_reduction=loss_reduction,
            protection=protection, row_wise=row_wise,
        )  # fmt: skip
        return self.put(plan, payload, rows, epoch, step, micro, grad_scale, pair)

    def plan(
        self,
        kind: str,
        sender: str,
        receiver: str,
        form: tuple[tuple[int, ...], str] | None,
        *,
        shape: Sequence[int] | None = None,
        phase: str = "train",
        name: str = "",
        wire_dtype: str = "",
        wire_bytes: int | None = None,
        loss_reduction: str = "unknown",
        protection: str = "unknown",
        row_wise: bool = True,
    ) -> Plan:
        """What messages of one kind and shape have in common; for :meth:`put`.

        Args:
            form: shape of the payload and character of its number type, as NumPy has it; None if
                there is only its size.
        """
        like = (
            kind, sender, receiver, form, None if shape is None else tuple(shape), phase, name,
            wire_dtype, wire_bytes, loss_reduction, protection, row_wise,
        )  # fmt: skip
        plan = self._plans.get(like)
        if plan is None:
            plan = _planned(*like)
            if len(self._plans) >= _PLANS:
                self._plans.clear()
            self._plans[like] = plan
        return plan

    def put(
        self, plan: Plan, payload: NDArray[Any] | None, rows: NDArray[np.int64] | None,
        epoch: int | None, step: int | None, micro: int | None, grad_scale: float | None,
        pair: int | None, now: int | None = None,
    ) -> int:  # fmt: skip
        """Append one message of which the plan is known; as :meth:`message`.

        Args:
            now: when it passed, nanoseconds since 1970; the present if None.
        """
        self.refuse(plan, rows)
        if grad_scale is not None:
            grad_scale = float(grad_scale)
        flat = np.empty(plan.flat, np.float32) if payload is None else payload.reshape(plan.flat)
        ids = rows if payload is not None and plan.n is not None else None
        with self._lock:
            if self.full or (
                self.max_bytes is not None and self.bytes + plan.size > self.max_bytes
            ):
                self.full = True
                return -1
            number = self.count
            text = (
                f'{plan.text}"msg":{number},"t":{now or time.time_ns()},"epoch":{_null(epoch)},'
                f'"step":{_null(step)},"micro":{_null(micro)},"pair":{_null(pair)},'
                f'"grad_scale":{_null(grad_scale)}}}'
            )
            self._stream(plan.stored).append(flat, ids, number, text.encode())
            self.count, self.bytes = number + 1, self.bytes + plan.size
        return number

    def refuse(self, plan: Plan, rows: NDArray[np.int64] | None) -> None:
        """Raise what :meth:`put` would raise of these rows, or of a fork.

        Raises:
            ConfigError: not one id for each row, or another process opened this writer.
        """
        if rows is not None and plan.n is not None and len(rows) != plan.n:
            raise ConfigError(
                f"record: {plan.kind} has {plan.n} rows and {len(rows)} ids; give one id for each "
                "row."
            )
        if self._claim.process != os.getpid():
            raise ConfigError(
                "record: this process was forked from the one that records. Open a recording of "
                "its own in each process; they may share a folder."
            )

    def _stream(self, stored: Stored) -> Segment:
        found = self._streams.get(stored)
        if found is None:
            path = self.folder / f"raw-{self._claim.number:04d}-{stored}.arrows"
            found = self._streams[stored] = Segment(path, stored)
        return found

    def close(self) -> None:
        """End the segments; what was written stays as it is.

        Raises:
            OSError: there was no room for the end mark; all that was written can be read.
        """
        with self._lock:
            streams, self._streams, self.full = self._streams, {}, True
            self.release()
        for stream in streams.values():
            stream.close(mark=self.mine)

    def release(self) -> None:
        """Say that this process records no longer."""
        self._claim.release()

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
