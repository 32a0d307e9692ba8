"""The garbage collector around heavy imports and in a process of our own."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

SELDOM = (200_000, 10, 10)
"""How many objects come before the collector looks at the young ones; how many such looks before it
looks at older ones, and of these before it looks at all."""


def patient() -> None:
    """Let the collector look more seldom than every 700 objects, for the whole process.

    An audit makes millions (tables of results, figures, modules), of which next to none are garbage
    that needs to be searched for. Only for the command line, whose process is its own.
    """
    if gc.isenabled():
        gc.set_threshold(*SELDOM)


def leaving() -> None:
    """Nothing is searched for garbage any more: the process ends.

    The interpreter would do so twice while it takes everything apart. What refers to itself in a
    circle stays until the system takes back the memory. Only for the command line, too.
    """
    if gc.isenabled():
        gc.freeze()


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
