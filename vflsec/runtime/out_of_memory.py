"""What tells that an allocator found no room, of the machine or of a GPU."""

from __future__ import annotations

import sys
from collections.abc import Callable

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
