"""Numbers as other libraries hold them, as NumPy arrays, with how they crossed the wire."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from vflsec.errors import ShapeError

__all__ = ["Numbers", "as_numbers"]


class Numbers(NamedTuple):
    """One array, and the number type and bytes in which it crossed."""

    array: NDArray[Any]
    wire_dtype: str
    wire_bytes: int


def as_numbers(x: Any) -> Numbers:
    """A tensor of PyTorch or TensorFlow, a NumPy array, or nested lists of numbers.

    bfloat16, which NumPy does not have, is widened to float32: that changes no number.

    Raises:
        ShapeError: it holds something else than numbers.
    """
    if isinstance(x, Tensor):
        plain = x.detach()
        wire = str(plain.dtype).removeprefix("torch.")
        wide = plain.float() if wire == "bfloat16" else plain
        array = wide.to("cpu").contiguous().numpy()
        return Numbers(array, wire, x.numel() * x.element_size())
    if hasattr(x, "numpy") and callable(x.numpy):
        x = x.numpy()
    if isinstance(x, Mapping):
        raise ShapeError("record: a payload is one array of numbers, got a mapping of several.")
    array = np.asarray(x)
    wire, size = str(array.dtype), int(array.nbytes)
    if wire == "bfloat16":  # a type of the package ml_dtypes, as TensorFlow and JAX return it
        array = array.astype(np.float32)
    if array.dtype.kind not in "fiub":
        raise ShapeError(f"record: a payload holds numbers, got an array of {array.dtype}.")
    return Numbers(np.ascontiguousarray(array), wire, size)
