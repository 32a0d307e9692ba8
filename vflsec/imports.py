"""Heavy imports of a process, and the garbage collector."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["importing"]


@contextmanager
def importing() -> Iterator[None]:
    """Around the first import of torch in a process: its objects stay, and are never searched.

    They are some hundred thousand, which the collector would go through several times while they
    come, and at each full collection after. Where torch is there already nothing is changed.
    """
    if "torch" in sys.modules or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()
