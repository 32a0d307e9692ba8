"""Weights as safetensors: a JSON header and plain numbers; nothing in it can be executed.

Format: 8 bytes little-endian length of the header, the header
{name: {"dtype", "shape", "data_offsets": [begin, end]}}, then the numbers without gaps.
Source: https://github.com/huggingface/safetensors (format description, 2022).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vflsec.core import check
from vflsec.errors import ConfigError, VflsecError
from vflsec.plugins.loading import resolve_path
from vflsec.runtime.atomic_files import name_when_whole

_TYPES = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4",
    "I16": "<i2", "I8": "|i1", "U8": "|u1", "BOOL": "|b1",
}  # fmt: skip
_NAMES = {np.dtype(v).str: k for k, v in _TYPES.items() if k != "BF16"}
_HEADER, _BODY = 8 << 20, 16 << 30  # most bytes of weights that the user names
_SHOWN = 4
_PICKLED = (b"PK", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")


def list_files(params: Mapping[str, Any]) -> list[str]:
    """The user's files of weights that the settings `params` of a training name."""
    own = [p for p in params.get("parties", {}).values() if isinstance(p, Mapping)]
    return [str(w) for w in (*(p.get("weights") for p in own), params.get("top_weights")) if w]


def write_weights(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors; bfloat16 is widened to float32, which changes no number."""
    header: dict[str, Any] = {}
    arrays, at = [], 0
    for name, tensor in tensors.items():
        plain = tensor.detach().cpu()
        plain = plain.float() if plain.dtype == torch.bfloat16 else plain
        array = np.ascontiguousarray(plain.numpy())
        kind = _NAMES[array.dtype.newbyteorder("<").str if array.itemsize > 1 else array.dtype.str]
        header[name] = {
            "dtype": kind, "shape": list(plain.shape), "data_offsets": [at, at + array.nbytes],
        }  # fmt: skip
        arrays.append(array)
        at += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with name_when_whole(path) as new, new.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for array in arrays:
            file.write(array.data)


def parse(
    file: BinaryIO, name: str, header: int, body: int, error: type[VflsecError]
) -> dict[str, Tensor]:
    """Tensors by name; bfloat16 as float32.

    Args:
        file: open for reading.
        name: of the file, for messages.
        header, body: most bytes of its header, and of its numbers.
        error: made of what is wrong, and raised: no such file, or numbers overlap, leave gaps, or
            are not finite.
    """
    size = file.seek(0, 2)
    file.seek(0)
    head = file.read(8)
    length = int.from_bytes(head, "little") if len(head) == 8 else -1
    if not 2 <= length <= min(header, size - 8):
        if head[:2] in _PICKLED:  # which are lengths, too, of a header of 640 bytes say
            raise error.must(name, "be safetensors", "a pickle")
        raise error.at_most(f"{name}: bytes of its header", header, length)
    text = file.read(length)
    rest = size - 8 - length
    if rest > body:
        raise error.at_most(f"{name}: bytes of weights", body, rest)
    data = file.read(rest)
    try:
        found = json.loads(text)
        found.pop("__metadata__", None)
        entries = {str(k): _entry(v) for k, v in found.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as why:
        raise error.damaged(name, f"header: {why}") from None
    return _tensors(entries, data, name, error)


_Entry = tuple[str, list[int], int, int]


def _entry(value: Mapping[str, Any]) -> _Entry:
    begin, end = value["data_offsets"]
    shape, kind = value["shape"], value["dtype"]
    if not all(isinstance(s, int) and 0 <= s < 1 << 40 for s in (*shape, begin, end)):
        raise ValueError("not a size")
    check.one_of("dtype", str(kind)[:20], _TYPES)
    return kind, shape, begin, end


def _tensors(
    entries: Mapping[str, _Entry], data: bytes, name: str, error: type[VflsecError]
) -> dict[str, Tensor]:
    out, at = {}, 0
    for key, (kind, shape, begin, end) in sorted(entries.items(), key=lambda e: e[1][2:]):
        dtype, count = np.dtype(_TYPES[kind]), math.prod(shape)
        if begin != at or end - begin != count * dtype.itemsize or end > len(data):
            raise error.damaged(name, f"offsets of {key[:60]!r}")
        array: NDArray[Any] = np.frombuffer(data, dtype, count, begin)
        if kind == "BF16":  # the upper half of a float32
            array = (array.astype("<u4") << 16).view("<f4")
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise error.must(f"{name}: {key[:60]!r}", "be finite", "NaN or infinity")
        out[key] = torch.from_numpy(array.reshape(shape).copy())
        at = end
    if at != len(data):
        raise error.damaged(name, f"{len(data) - at} bytes too many")
    return {k: out[k] for k in entries}


def starting_at(path: str, what: str, make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """`make` with the weights of a safetensors file, which is read once.

    Args:
        path: of the file; a relative one starts from the scenario's folder.
        what: whose weights they are, for messages.
        make: the module.

    Raises:
        ConfigError: there is no such file; when called, its names or shapes are not the module's.
    """
    place = resolve_path(path)
    where = f"{what}: {path}"
    try:
        with place.open("rb") as file:
            given = parse(file, where, _HEADER, _BODY, ConfigError)
    except OSError as why:
        raise ConfigError.unreadable(f"{where} ({place})", why) from None

    def made() -> nn.Module:
        module = make()
        wanted = module.state_dict()
        for key in dict.fromkeys((*wanted, *given)):
            ours, theirs = (_form(of.get(key)) for of in (wanted, given))
            if ours != theirs:
                raise ConfigError.must(
                    f"{where}: {key[:60]}", f"be {ours} as in the module", theirs
                )
        if any(t.dtype == torch.float64 for t in given.values()):
            module = module.double()  # no number is rounded before the training's own type is set
        module.load_state_dict(given)
        return module

    return made


def _form(x: Tensor | None) -> str:
    if x is None:
        return "absent"
    return f"{'floats' if x.is_floating_point() else 'integers'} {tuple(x.shape)}"
