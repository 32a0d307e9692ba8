"""Streams one observer's messages to disk: after every message all before it can be read."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import threading
import time
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vflsec.errors import ConfigError
from vflsec.runtime.file_locks import LOCKS, lock, unlock
from vflsec.trace.limits import check_name
from vflsec.trace.manifest import Manifest, ObserverInfo, Route, load, write_json
from vflsec.trace.segments import RAW, Segment
from vflsec.trace.tables import Stored

EMPTY = "Name an empty folder for each run."
_STORE = {"e": "f2", "f": "f4"}
_TYPE = {"e": "float16", "f": "float32", "d": "float64"}
_JSON = json.JSONEncoder(separators=(",", ":"), check_circular=False)


_HERE: set[tuple[Path, str]] = set()  # folders and numbers of this process
_CLAIM = re.compile(r"process-([0-9]{4})((?:-[a-z]+)*)\.tmp")
STOPS, SKIPS, WAITS = "stopped", "skipped", "waiting"
"""Words of a process that records less than passes: from some moment on, of some epochs only, or if
it is killed while messages wait to be written."""


class ProcessNumber:
    """The number of one process among those that record into an observer's folder.

    Attributes:
        number: of its segments, as text; each start of a process has its own.
        process: id of the process that may write them; its forks may not.
    """

    def __init__(self, folder: Path) -> None:
        self.process, self._words = os.getpid(), frozenset[str]()
        names = [p.name for p in folder.iterdir()]
        found = [m for n in names for r in (RAW, _CLAIM) if (m := r.fullmatch(n))]
        number = max((int(m[1]) for m in found), default=-1) + 1
        while True:
            self.number = f"{number:04d}"
            self.path = folder / f"process-{self.number}.tmp"
            number += 1
            try:
                self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            except FileExistsError:
                continue
            if not any(folder.glob(f"raw-{self.number}-*")):
                break
            os.close(self._file)  # one that came and went since the names were read
            self.path.unlink()
        lock(self._file)
        self._here = (folder.absolute(), self.number)
        _HERE.add(self._here)

    def say(self, word: str, holds: bool = True) -> None:
        """Leave word, or take it back: in a name, for which a full disk has room."""
        words = self._words | {word} if holds else self._words - {word}
        if words == self._words or self._file < 0 or self.process != os.getpid():
            return
        new = self.path.with_name(f"process-{'-'.join([self.number, *sorted(words)])}.tmp")
        with contextlib.suppress(OSError):
            self.path.rename(new)
            self.path, self._words = new, words

    def release(self) -> None:
        """No longer record; may be called again."""
        file, self._file = self._file, -1
        if file < 0 or self.process != os.getpid():
            return
        if not self._words:
            self.path.unlink(missing_ok=True)
        _HERE.discard(self._here)
        unlock(file)
        os.close(file)


def is_recording(folder: Path, *, here: bool = True) -> bool:
    """Whether a living process records into an observer's folder.

    Args:
        folder: of the observer.
        here: count this process too.
    """
    alive = False
    for path in folder.iterdir():
        if (found := _CLAIM.fullmatch(path.name)) is None:
            continue
        if (folder.absolute(), found[1]) in _HERE:
            alive |= here
        elif LOCKS:  # else a living one is not noticed
            try:
                file = os.open(path, os.O_RDWR)
            except FileNotFoundError:  # it has ended, or has another name now
                return is_recording(folder, here=here)
            try:
                lock(file, wait=False)
            except BlockingIOError:
                alive = True
            finally:
                os.close(file)
    return alive


def find_left(folder: Path) -> list[tuple[str, set[str]]]:
    """Numbers of processes that recorded less than passed, and the words that they left of it.

    Those without a word were killed before their first message.
    """
    names = sorted(p.name for p in folder.iterdir())
    wrote = {m[1] for n in names if (m := RAW.fullmatch(n))}
    claims = [m for n in names if (m := _CLAIM.fullmatch(n))]
    return [(m[1], {*m[2].split("-")} - {""}) for m in claims if m[2] or m[1] not in wrote]


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """One process at a time, for what several of one trace write at their ends."""
    file = os.open(folder, os.O_RDONLY) if LOCKS else -1
    try:
        if file >= 0:
            lock(file)
        yield
    finally:
        if file >= 0:
            os.close(file)


class AnotherNode(ConfigError):
    """The folder holds what another node recorded, as the same party."""


def begin(folder: Path, manifest: Manifest) -> None:
    """Make a trace's folder and its manifest; one that describes the same run is left as it is.

    Raises:
        AnotherNode: it is of another node of the run.
        ConfigError: something else is there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "manifest.json"
    if path.exists():
        there = load(path.read_bytes(), Manifest, str(path))
        if there.node != manifest.node:
            raise AnotherNode.taken(folder, "another node's trace")
        if (there.parties, there.rows, there.run) != (
            manifest.parties,
            manifest.rows,
            manifest.run,
        ):
            raise ConfigError.taken(folder, "another run", EMPTY)
        if (folder / "seal.json").exists():
            raise ConfigError.taken(folder, "a seal", EMPTY)
        return
    if any(not p.name.endswith(".tmp") for p in folder.iterdir()):
        if path.exists():  # another process of the same run was faster
            return begin(folder, manifest)
        raise ConfigError.taken(folder, "other files", EMPTY)
    write_json(path, manifest)


def _null(value: float | None) -> Any:
    return "null" if value is None else value


class Heading(NamedTuple):
    """What messages of one kind and shape have in common.

    Attributes:
        kind, sender, receiver, phase, name: of the messages.
        form: shape of the payload and character of its number type, as NumPy has it; None if there
            is only its size.
        shape: of a message without payload.
        wire_dtype, wire_bytes: as it crossed; by default those of the payload.
        loss_reduction, protection: as far as known.
        row_wise: whether the payload has a row for each sample.
    """

    kind: str
    sender: str
    receiver: str
    form: tuple[tuple[int, ...], str] | None = None
    shape: tuple[int, ...] | None = None
    phase: str = "train"
    name: str = ""
    wire_dtype: str = ""
    wire_bytes: int | None = None
    loss_reduction: str = "unknown"
    protection: str = "unknown"
    row_wise: bool = True


class Timing(NamedTuple):
    """When a message passed, what its loss was multiplied by, and whose answer it is.

    Attributes:
        epoch, step, micro: of the phase, and which part of an accumulated step.
        grad_scale: factor of the loss.
        pair: number of the embedding's message that a gradient belongs to.
    """

    epoch: int | None = None
    step: int | None = None
    micro: int | None = None
    grad_scale: float | None = None
    pair: int | None = None


class Plan(NamedTuple):
    """Messages of one kind and shape: way, rows, shape that is stored, bytes, common fields."""

    route: Route
    stored: Stored
    n: int | None
    flat: tuple[int, int]
    size: int
    text: str


@lru_cache(256)
def plan_messages(h: Heading) -> Plan:
    """The plan of all messages under a heading; for :meth:`Writer.put`."""
    whole, char = (tuple(h.shape or ()), "f") if h.form is None else h.form
    n = whole[0] if h.row_wise and whole else None
    if h.form is None:
        flat, stored = (0, 1), Stored(1, "f4")
    else:
        flat = (1, math.prod(whole)) if n is None else (n, math.prod(whole[1:]))
        stored = Stored(max(1, flat[1]), _STORE.get(char, "f8"))
    held = math.prod(flat) * np.dtype(char).itemsize
    text = _JSON.encode({
        "phase": h.phase, "kind": h.kind, "name": h.name,
        "sender": h.sender, "receiver": h.receiver,
        "n_rows": n, "shape": list(whole), "wire_dtype": h.wire_dtype or _TYPE.get(char, "other"),
        "wire_bytes": held if h.wire_bytes is None else h.wire_bytes,
        "loss_reduction": h.loss_reduction, "protection": h.protection,
        "has_values": h.form is not None, "store": str(stored), "status": "complete",
    })  # fmt: skip
    route = Route(h.kind, h.sender, h.receiver, h.phase)
    return Plan(route, stored, n, flat, held + 24 * flat[0], f"{text[:-1]},")


class Writer:
    """Appends the messages of one observer to segments of the trace in `folder`.

    Every process start makes its own segments, and several processes may write at once. Safe to
    call from several threads.

    Args:
        folder: of a trace that :func:`begin` made.
        observer: name of the party whose messages these are.
        max_bytes: stop recording beyond, and say so in the trace; None = no limit.
    """

    def __init__(self, folder: Path, observer: str, max_bytes: int | None = None) -> None:
        check_name("record", observer)
        self.folder = folder / "view" / observer
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.observer = observer
        self.max_bytes, self.bytes, self.count, self.full = max_bytes, 0, 0, False
        self._lock = threading.Lock()
        self._streams: dict[Stored, Segment] = {}
        if (self.folder / "messages.parquet").exists():
            remedy = f"End that with 'vflsec trace seal {folder}', or name an empty folder."
            raise ConfigError.taken(self.folder, "messages of which a seal was begun", remedy)
        if not (self.folder / "observer.json").exists():
            self.describe(ObserverInfo(party=observer))
        self._claim = ProcessNumber(self.folder)

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
        write_json(self.folder / "observer.json", info)

    def put(
        self, plan: Plan, payload: NDArray[Any] | None, rows: NDArray[np.int64] | None,
        timing: Timing, now: int | None = None,
    ) -> int:  # fmt: skip
        """Append one message; returns its number, or -1 if `max_bytes` is reached.

        Args:
            plan: of messages of this form, by :func:`plan_messages`.
            payload: (n, ...) numbers with a row for each sample if `row_wise`, else any shape; None
                if there is only its size (a ciphertext). It is copied before this returns.
            rows: (n,) trace row ids, or None if they are not known.
            timing: of this message.
            now: when it passed, nanoseconds since 1970; the present if None.

        Raises:
            ConfigError: another process opened this writer.
        """
        epoch, step, micro, grad_scale, pair = timing
        self.refuse_fork()
        if grad_scale is not None:
            grad_scale = float(grad_scale)
        flat = np.empty(plan.flat, np.float32) if payload is None else payload.reshape(plan.flat)
        ids = rows if payload is not None and plan.n is not None else None
        with self._lock:
            most = self.max_bytes
            if not self.full and most is not None and self.bytes + plan.size > most:
                self.stop()
            if self.full:
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

    def refuse_fork(self) -> None:
        """Raise what :meth:`put` raises in another process than the one that opened this writer.

        Raises:
            ConfigError: it is another.
        """
        if not self.mine:
            raise ConfigError(
                "record: this process was forked from one that records. Open a recording in each; "
                "they may share a folder."
            )

    def _stream(self, stored: Stored) -> Segment:
        found = self._streams.get(stored)
        if found is None:
            path = self.folder / f"raw-{self._claim.number}-{stored}.arrows"
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

    def stop(self) -> None:
        """Write nothing more, although the run goes on: the trace is partial."""
        self.full = True
        self.say(STOPS)

    def say(self, word: str, holds: bool = True) -> None:
        """Leave word, or take it back, that less is recorded than passes."""
        self._claim.say(word, holds)

    def release(self) -> None:
        """Say that this process records no longer."""
        self._claim.release()


_PAUSE = 0.02  # seconds between two looks; a burst is cheaper to write than one message at a time
_BYTES = 256 << 20  # most that waits

_Waiting = tuple[Plan, NDArray[Any], "NDArray[np.int64] | None", Timing, int]


class Behind:
    """A queue before a writer, whose only user it must be from then on.

    Args:
        writer: that writes.
        most: messages that may wait; who brings one more waits for room. A process that is killed
            loses what waits.

    Attributes:
        failed: why nothing more is written, if that is so.
    """

    def __init__(self, writer: Writer, most: int) -> None:
        self.writer, self.most = writer, most
        self.failed: OSError | None = None
        self._queue: list[_Waiting] = []
        self._waits = self._bytes = 0
        self._next = writer.count
        self._done, self._enough = threading.Condition(), max(1, most // 2)
        self._wake = threading.Event()
        self._ends = False
        writer.say(WAITS)
        self._thread = threading.Thread(target=self._run, name="vflsec.record", daemon=True)
        self._thread.start()

    def put(
        self, plan: Plan, payload: NDArray[Any], rows: NDArray[np.int64] | None, timing: Timing
    ) -> int:
        """Copy one message and leave it to be written; arguments as for :meth:`Writer.put`.

        `rows` must be nobody else's memory.

        Raises:
            OSError: nothing more is written.
            ConfigError: as :meth:`Writer.put`.
        """
        self.writer.refuse_fork()
        if self.failed is not None:
            raise self.failed
        now = time.time_ns()
        with self._done:
            while self._waits >= self.most or (self._waits and self._bytes + plan.size > _BYTES):
                self._wake.set()
                self._done.wait()
            if self._ends:
                return -1
            number = self._next
            self._next = number + 1
            self._queue.append((plan, payload.reshape(plan.flat).copy(), rows, timing, now))
            self._waits, self._bytes = self._waits + 1, self._bytes + plan.size
            if self._waits == self._enough:
                self._wake.set()
        return number

    def _run(self) -> None:
        while not self._ends or self._queue:
            self._wake.wait(_PAUSE)
            self._wake.clear()
            with self._done:
                taken, self._queue = self._queue, []
            for plan, payload, rows, timing, now in taken:
                if self.failed is None:
                    try:
                        self.writer.put(plan, payload, rows, timing, now)
                    except OSError as why:
                        self.failed = why
                with self._done:
                    self._waits, self._bytes = self._waits - 1, self._bytes - plan.size
                    self._done.notify_all()

    def wait(self) -> None:
        """Until nothing waits."""
        with self._done:
            while self._waits:
                self._wake.set()
                self._done.wait()

    def close(self) -> None:
        """Write what waits, and end; in a fork there is nothing to wait for."""
        self._ends = True
        self._wake.set()
        if self.writer.mine:
            self._thread.join()
            self.writer.say(WAITS, holds=self.failed is not None)
