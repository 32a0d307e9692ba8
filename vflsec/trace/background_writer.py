"""Writes messages in a thread of its own, so that a training step waits for one copy only."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vflsec.trace.writer import Plan, Timing, Writer

__all__ = ["Behind"]

_PAUSE = 0.02  # seconds between two looks; a burst is cheaper to write than one message at a time
_BYTES = 256 << 20  # most that waits
_KEPT = 16 << 20  # most memory of one shape that is used again

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
        self._free: dict[tuple[Any, str], list[NDArray[Any]]] = defaultdict(list)
        self._waits = self._bytes = 0
        self._next = writer.count
        self._done, self._enough = threading.Condition(), max(1, most // 2)
        self._wake = threading.Event()
        self._ends = False
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
        self.writer.refuse(plan, rows)
        if self.failed is not None:
            raise self.failed
        now = time.time_ns()
        with self._done:
            while self._waits >= self.most or (self._waits and self._bytes + plan.size > _BYTES):
                self._wake.set()
                self._done.wait()
            if self._ends:
                return -1
            free = self._free[plan.flat, payload.dtype.char]
            held = free.pop() if free else np.empty(plan.flat, payload.dtype)
            np.copyto(held, payload.reshape(plan.flat))
            number = self._next
            self._next = number + 1
            self._queue.append((plan, held, rows, timing, now))
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
                    free = self._free[plan.flat, payload.dtype.char]
                    if len(free) * plan.size < _KEPT:
                        free.append(payload)
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
