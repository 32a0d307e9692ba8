"""Locks on open files, let go when the process ends, however it ends.

Where the system or the file system has none, everything counts as locked by oneself.
"""

from __future__ import annotations

try:
    from fcntl import LOCK_EX, LOCK_NB, LOCK_UN, flock
except ImportError:
    flock = None  # type: ignore[assignment]

LOCKS = flock is not None
"""Whether this system has them."""


def lock(file: int, *, wait: bool = True) -> None:
    """Lock an open file for this process alone.

    Args:
        file: its descriptor.
        wait: until another process lets it go.

    Raises:
        BlockingIOError: another process holds it, and it is not waited for.
    """
    if LOCKS:
        _do(file, LOCK_EX if wait else LOCK_EX | LOCK_NB)


def unlock(file: int) -> None:
    """Let it go, in all forks that hold the file, too."""
    if LOCKS:
        _do(file, LOCK_UN)


def _do(file: int, how: int) -> None:
    try:
        flock(file, how)
    except BlockingIOError:
        raise
    except OSError:  # some network file systems
        return
