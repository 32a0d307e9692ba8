"""Memory that is free again goes back to the system between two cohorts.

The C library of most Linux systems keeps freed blocks that lie below one in use. Cohorts of large
tables leave hundreds of megabytes of them, and as the next one does not fit exactly into what the
last one left, the process would grow with the number of trainings.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import Any

__all__ = ["give_back"]


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
