"""What the built-in data sets share: party names, column blocks, digests."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from vflsec.core import check
from vflsec.data.source import PartyData


class DataSet:
    """Base of the built-in data sets, which are frozen dataclasses of parameters."""

    name: ClassVar[str] = ""

    def __post_init__(self) -> None:
        check.fields(self)


def split_blocks(width: int, parties: int) -> list[slice]:
    """Consecutive blocks of equal width, the remainder left out at the end."""
    size = width // parties
    return [slice(i * size, (i + 1) * size) for i in range(parties)]


def numeric_table(values: NDArray[np.float64], names: Sequence[str]) -> PartyData:
    """A party's table of numeric columns that holds every row."""
    rows = np.arange(len(values), dtype=np.int64)
    return PartyData(np.asarray(values, dtype=np.float64), rows, tuple(names), (None,) * len(names))


def no_columns(n: int) -> PartyData:
    """The table of a party that knows `n` rows by their labels only."""
    return PartyData(np.zeros((n, 0)), np.arange(n, dtype=np.int64))


def hash_parts(parties: Mapping[str, PartyData], y: NDArray[np.int64]) -> str:
    """Hash of the content of a real data set."""
    found = hashlib.sha256(np.ascontiguousarray(y).tobytes())
    for name, data in parties.items():
        found.update(f"{name}{data.names}{data.values.shape}".encode())
        found.update(np.ascontiguousarray(data.values).tobytes())
    return found.hexdigest()


def world_digest(name: str, recipe: object) -> str:
    """Hash of how a world is drawn: the same for all seeds, so that they form one cohort."""
    return hashlib.sha256(f"{name} 1 {recipe!r}".encode()).hexdigest()
