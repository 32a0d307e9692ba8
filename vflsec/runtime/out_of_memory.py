"""How much memory there is, and what tells that an allocator found none."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

Passing = Callable[[BaseException], bool]
"""Whether an error goes on to a caller who deals with it."""

_SAID = (
    "can't allocate memory", "not enough memory",  # torch on a CPU
    "CUDA error: out of memory", "_ALLOC_FAILED",  # CUDA and its libraries, beside torch
)  # fmt: skip


def out_of_memory(error: BaseException) -> bool:
    """Whether an allocator found no room."""
    torch = sys.modules.get("torch")
    kinds = (MemoryError,) if torch is None else (MemoryError, torch.OutOfMemoryError)
    if isinstance(error, kinds):
        return True
    return isinstance(error, RuntimeError) and any(said in str(error) for said in _SAID)


def nothing(_: BaseException) -> bool:
    """No error goes on."""
    return False


def count_memory() -> int:
    """Bytes of memory that this process may use at most, as far as the system says."""
    found = [2**40]
    with suppress(AttributeError, OSError, ValueError):
        found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    with suppress(OSError, ValueError):
        found.append(int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return min(found)
