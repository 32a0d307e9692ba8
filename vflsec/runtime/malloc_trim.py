"""Memory that is free again stays at hand within a training or an attack, and goes back after it.

Large tensors come and go at every step. Each that the C library hands back to the system at once
has to be asked for anew, page by page; so blocks up to :data:`LARGEST` are kept until then.

Then all goes back. The C library of most Linux systems keeps freed blocks that lie below one in
use. Cohorts of large tables leave hundreds of megabytes of them, and as the next one does not fit
exactly into what the last one left, the process would grow with the number of trainings.
"""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache
from typing import Any

LARGEST = 1 << 28
"""Bytes of a block, and of what is free at the heap's end, that are kept."""
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
_SETTINGS = ("GLIBC_TUNABLES", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_")


def _is_of_dask(name: str) -> bool:
    """Whether a setting is the one with which Dask starts a worker, and not the user's."""
    if "distributed" not in sys.modules:
        return False
    from dask import config

    own = config.get("distributed.nanny.pre-spawn-environ", {})
    return str(own.get(name)) == os.environ.get(name)


@cache
def hold() -> bool:
    """Keep freed memory in this process until :func:`give_back`; whether that was asked for.

    It holds for the whole process. Nothing is changed where the environment sets it
    (``MALLOC_TRIM_THRESHOLD_`` and the like), but for what Dask sets for its workers, nor with
    another C library than glibc.
    """
    asked = [name for name in _SETTINGS if name in os.environ and not _is_of_dask(name)]
    if sys.platform != "linux" or asked:
        return False
    option = getattr(ctypes.CDLL(None), "mallopt", None)
    if option is None:
        return False
    return bool(option(_MMAP_THRESHOLD, LARGEST)) and bool(option(_TRIM_THRESHOLD, LARGEST))


@cache
def _trim() -> Any:
    """``malloc_trim`` of glibc, None with another C library."""
    return getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None


def give_back() -> bool:
    """Return freed memory to the system; whether this C library can be asked to."""
    trim = _trim()
    if trim is not None:
        trim(ctypes.c_size_t(0))
    return trim is not None
