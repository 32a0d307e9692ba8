"""What messages of one shape have in common, so that a step of a loop costs little."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor

from vflsec.core import check
from vflsec.errors import ShapeError
from vflsec.trace.arrays import as_numbers
from vflsec.trace.limits import NAME, Limits
from vflsec.trace.writer import Plan

__all__ = ["Lane", "as_array", "check_shape"]

_LIMITS = Limits()


def check_shape(phase: str, shape: Sequence[int]) -> None:
    """Refuse at once what no reader would take."""
    if phase and not NAME.fullmatch(phase):
        raise check.fail("record: phase", "a name of letters, digits, '.', '_', '-'", phase)
    if not shape or shape[0] > _LIMITS.batch_rows or math.prod(shape[1:]) > _LIMITS.width:
        raise ShapeError(
            f"record: a payload has a row for each sample, up to {_LIMITS.batch_rows} rows of "
            f"{_LIMITS.width} numbers; got the shape {tuple(shape)}."
        )


class Lane(NamedTuple):
    """What every cut of one shape has in common.

    Attributes:
        n: rows.
        counted: by what steps are counted.
        there, back: plans of the embedding and of its gradient.
        up, down: under which they are declared.
    """

    n: int
    counted: tuple[str, str, str]
    there: Plan
    back: Plan
    up: tuple[str, str, str, str]
    down: tuple[str, str, str, str]


def as_array(x: Tensor) -> NDArray[Any]:
    """The numbers of a tensor, in its own memory where that can be."""
    if x.is_cpu and x.dtype != torch.bfloat16 and x.layout is torch.strided:
        return x.detach().numpy()  # type: ignore[no-any-return]
    return as_numbers(x).array
