"""Values of dataclasses as plain values of JSON, and back: one writer and one reader for all.

A field is called in the file as in the class, or as ``key`` of its metadata says. A class with
methods ``write`` and ``read`` does both itself. Keys that a file of an earlier version lacks leave
fields at their defaults; keys that are no fields are not read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from types import UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")


def write_plain(value: Any) -> Any:
    """Nested values as JSON knows them; numbers that are not finite become None."""
    if value is None or type(value) in (str, bool, int):  # most are
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(k): write_plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [write_plain(v) for v in value]
    if hasattr(value, "write"):
        return write_plain(value.write())
    if is_dataclass(value):
        return {
            key: write_plain(getattr(value, name))
            for name, key in _keys(cast("Any", type(value))).items()
        }
    if hasattr(value, "tolist"):
        return write_plain(value.tolist())
    return value if isinstance(value, int) else str(value)


@cache
def _keys(kind: Any) -> dict[str, str]:
    """What each field of a dataclass is called in a file."""
    return {f.name: f.metadata.get("key", f.name) for f in fields(kind)}


def read_as(kind: type[T], value: Any) -> T:
    """A plain value as `kind`: dataclasses, enums, tuples and mappings of them, or what it is.

    An object that is None or empty is one with its defaults; a code that no longer exists stays a
    text.
    """
    read: Callable[[Any], T] = _reader(cast("Any", kind))
    return read(value)


@cache
def _reader(kind: Any) -> Callable[[Any], Any]:
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        some = _reader(next(k for k in inner if k is not type(None)))
        return lambda value: None if value is None else some(value)
    if origin is tuple and inner[1:] == (Ellipsis,):
        each = _reader(inner[0])
        return lambda value: tuple(map(each, value))
    if origin is tuple:
        return tuple
    if origin is not None and issubclass(origin, Mapping):
        each = _reader(inner[1])
        return lambda value: {k: each(v) for k, v in value.items()}
    if hasattr(kind, "read"):
        read: Callable[[Any], Any] = kind.read
        return read
    if is_dataclass(kind):
        return _object_reader(kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        codes = {member.value: member for member in kind}
        return lambda value: codes.get(value, value)
    return lambda value: value


def _object_reader(kind: Any) -> Callable[[Any], Any]:
    hints = get_type_hints(kind)
    readers = [(name, key, _reader(hints[name])) for name, key in _keys(kind).items()]

    def read(row: Mapping[str, object] | None) -> Any:
        given = row or {}
        return kind(**{name: of(given[key]) for name, key, of in readers if key in given})

    return read
