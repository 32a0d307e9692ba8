"""Weights as safetensors: a JSON header and plain numbers; nothing in it can be executed.

Format: 8 bytes little-endian length of the header, the header
{name: {"dtype", "shape", "data_offsets": [begin, end]}}, then the numbers without gaps.
Source: https://github.com/huggingface/safetensors (format description, 2022).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vflsec.errors import TraceError
from vflsec.trace.limits import Limits, open_file

__all__ = ["read_weights", "write_weights"]

_TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "U8": "|u1"}
_NAMES = {np.dtype(v).str: k for k, v in _TYPES.items()}


def write_weights(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors; bfloat16 is widened to float32, which changes no number."""
    header: dict[str, Any] = {}
    parts, at = [], 0
    for name, tensor in tensors.items():
        plain = tensor.detach().cpu()
        plain = plain.float() if plain.dtype == torch.bfloat16 else plain
        array = np.ascontiguousarray(plain.numpy())
        data = array.tobytes()
        kind = _NAMES[array.dtype.newbyteorder("<").str if array.itemsize > 1 else array.dtype.str]
        header[name] = {
            "dtype": kind, "shape": list(plain.shape), "data_offsets": [at, at + len(data)],
        }  # fmt: skip
        parts.append(data)
        at += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(parts))


def read_weights(folder: Path, name: str, limits: Limits) -> dict[str, Tensor]:
    """Tensors by name.

    Raises:
        TraceError: not such a file, or numbers overlap, leave gaps, or are not finite.
    """
    with open_file(folder, name) as file:
        size = file.seek(0, 2)
        file.seek(0)
        head = file.read(8)
        length = int.from_bytes(head, "little") if len(head) == 8 else -1
        if head[:2] in (b"PK", b"\x80\x02", b"\x80\x04"):
            raise TraceError(
                f"{name}: is a pickle, which can run code when it is read. Weights are safetensors."
            )
        if not 2 <= length <= min(limits.header_bytes, size - 8):
            raise TraceError(
                f"{name}: is no safetensors file with a header of at most {limits.header_bytes} "
                f"bytes (it says {length})."
            )
        text = file.read(length)
        body = size - 8 - length
        if body > limits.batch_bytes:
            raise TraceError(f"{name}: weights of {body} bytes; at most {limits.batch_bytes}.")
        data = file.read(body)
    try:
        header = json.loads(text)
        header.pop("__metadata__", None)
        entries = {str(k): _entry(v) for k, v in header.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise TraceError(f"{name}: its header is damaged.") from None
    return _tensors(entries, data, name)


def _entry(value: Mapping[str, Any]) -> tuple[np.dtype[Any], list[int], int, int]:
    begin, end = value["data_offsets"]
    shape = value["shape"]
    if not all(isinstance(s, int) and 0 <= s < 1 << 40 for s in (*shape, begin, end)):
        raise ValueError("not a size")
    return np.dtype(_TYPES[value["dtype"]]), shape, begin, end


def _tensors(
    entries: Mapping[str, tuple[np.dtype[Any], list[int], int, int]], data: bytes, name: str
) -> dict[str, Tensor]:
    out, at = {}, 0
    for key, (dtype, shape, begin, end) in sorted(entries.items(), key=lambda e: e[1][2:]):
        if begin != at or end - begin != math.prod(shape) * dtype.itemsize or end > len(data):
            raise TraceError(
                f"{name}: the numbers of {key[:60]!r} overlap, leave a gap or end early."
            )
        array = np.frombuffer(data, dtype, math.prod(shape), begin).reshape(shape)
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise TraceError(f"{name}: {key[:60]!r} holds numbers that are not finite.")
        out[key] = torch.from_numpy(array.copy())
        at = end
    if at != len(data):
        raise TraceError(f"{name}: has {len(data) - at} bytes that belong to nothing.")
    return {k: out[k] for k in entries}
