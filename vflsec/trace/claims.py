"""Who records into a folder now: each process its own segments, and none is sealed meanwhile."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from vflsec.runtime.file_locks import LOCKS, lock, unlock

__all__ = ["RAW", "Claim", "lock_folder", "recording"]

RAW = re.compile(r"raw-([0-9]{4})-(d[0-9]+-f[248])\.arrows")
"""Names of segments: number of the process that wrote it, width and number type."""
_HERE: set[Path] = set()  # claims of this process
_CLAIM = re.compile(r"process-([0-9]{4})\.tmp")


class Claim:
    """The number of one process among those that record into an observer's folder.

    Attributes:
        number: of its segments; each start of a process has its own.
        process: id of the process that may write them; its forks may not.
    """

    def __init__(self, folder: Path) -> None:
        self.process = os.getpid()
        names = [p.name for p in folder.iterdir()]
        found = [m for n in names for r in (RAW, _CLAIM) if (m := r.fullmatch(n))]
        self.number = max((int(m[1]) for m in found), default=-1) + 1
        while True:
            self.path = folder / f"process-{self.number:04d}.tmp"
            try:
                self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            except FileExistsError:
                self.number += 1
                continue
            if not any(folder.glob(f"raw-{self.number:04d}-*")):
                break
            os.close(self._file)  # one that came and went since the names were read
            self.path.unlink()
            self.number += 1
        lock(self._file)
        _HERE.add(self.path.absolute())

    def release(self) -> None:
        """No longer record; may be called again."""
        file, self._file = self._file, -1
        if file < 0 or self.process != os.getpid():
            return
        self.path.unlink(missing_ok=True)
        _HERE.discard(self.path.absolute())
        unlock(file)
        os.close(file)


def recording(folder: Path, *, here: bool = True) -> bool:
    """Whether a living process records into an observer's folder; forgets those that died.

    Args:
        folder: of the observer.
        here: count this process too.
    """
    alive = False
    for path in folder.iterdir():
        if path.absolute() in _HERE:
            alive |= here
        elif _CLAIM.fullmatch(path.name) and LOCKS:  # else a living one is not noticed
            try:
                file = os.open(path, os.O_RDWR)
            except FileNotFoundError:
                continue
            try:
                lock(file, wait=False)
                path.unlink(missing_ok=True)
            except BlockingIOError:
                alive = True
            finally:
                os.close(file)
    return alive


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
