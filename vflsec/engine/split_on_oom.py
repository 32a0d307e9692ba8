"""Cohorts that do not fit the memory: they are done again in halves.

A cell's result does not depend on the cells beside it, so halves give what the whole would have.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Sequence
from typing import TypeVar

from vflsec.errors import ConfigError
from vflsec.runtime.malloc_trim import give_back
from vflsec.runtime.out_of_memory import out_of_memory
from vflsec.specs import CellSpec

T = TypeVar("T")


def in_halves(
    cells: Sequence[CellSpec],
    do: Callable[[Sequence[CellSpec]], list[T]],
    what: str,
    note: Callable[[str], None],
) -> list[T]:
    """``do(cells)``; where these do not fit the memory together, the results of both halves.

    Args:
        cells: of one cohort.
        do: gives one result for each cell, and has written nothing when it finds no room.
        what: what the cells are, for sentences.
        note: told what was halved.

    Raises:
        ConfigError: one cell alone does not fit.
    """
    try:
        return do(cells)
    except Exception as error:
        if not out_of_memory(error):
            raise
        why = str(error).split("\n", 1)[0].split(". ", 1)[0] or type(error).__name__
    # from here on nothing holds the frames of the attempt, and what they had is free
    _free()
    many = len(cells)
    if many == 1:
        raise ConfigError(
            f"{what}: one training alone does not fit the memory ({why}). Take a smaller "
            "batch_size or model, fewer rows, fewer --jobs on one GPU, or --device cpu."
        )
    note(
        f"{what}: {many} trainings do not fit the memory together and are done in halves, with "
        f"the same results; --replicas {many // 2} saves the attempt."
    )
    half = many // 2
    return in_halves(cells[:half], do, what, note) + in_halves(cells[half:], do, what, note)


def _free() -> None:
    gc.collect()  # what a training holds may hold it
    give_back()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
