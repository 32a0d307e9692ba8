"""Weights of a trace: safetensors within the limits of a trace."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from vflsec.errors import TraceError
from vflsec.nn.weights import parse, write_weights
from vflsec.trace.limits import Limits, open_file

__all__ = ["read_weights", "write_weights"]


def read_weights(folder: Path, name: str, limits: Limits) -> dict[str, Tensor]:
    """Tensors by name.

    Raises:
        TraceError: not such a file, or numbers overlap, leave gaps, or are not finite.
    """
    with open_file(folder, name) as file:
        return parse(file, name, limits.header_bytes, limits.batch_bytes, TraceError)
