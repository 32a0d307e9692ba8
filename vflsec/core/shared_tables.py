"""Tables that several attacks of one adversary are given, one attack after the other."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import Generic, TypeVar
from zlib import crc32

import torch
from torch import Tensor

from vflsec.core.view import Table

Key = TypeVar("Key")


class SharedTables(Generic[Key]):
    """The tables by replica of whoever was asked for last.

    Each attack gets tables of its own with the same numbers, and what it works out of them
    (:attr:`vflsec.core.view.Table.by_row`) stays with it. Where an attack changed a number in
    place, the numbers are not given again.
    """

    def __init__(self) -> None:
        self._who: Hashable = None
        self._kept: dict[int, tuple[Mapping[Key, Table], list[int]]] = {}

    def get(self, who: Hashable, r: int) -> Mapping[Key, Table] | None:
        """What was put for replica `r` of `who`, as it was then; else None."""
        tables, told = self._kept.get(r, ({}, []))
        same = who == self._who and told and told == _sums(tables)
        if not same:
            return None
        own = {id(t): replace(t) for t in tables.values()}
        return {key: own[id(t)] for key, t in tables.items()}

    def put(self, who: Hashable, r: int, tables: Mapping[Key, Table]) -> None:
        """Keep tables; those of anybody else go."""
        if who != self._who:
            self.clear()
        self._who, self._kept[r] = who, (tables, _sums(tables))

    def clear(self) -> None:
        """Keep none."""
        self._kept.clear()


def _sums(tables: Mapping[Key, Table]) -> list[int]:
    """A sum of every table's bytes; those of one that stands there twice are summed once."""
    every = {id(t): t for t in tables.values()}.values()
    return [
        crc32(as_bytes(x.cpu()).numpy().data)
        for t in every for x in (t.tensor, t.rows, t.epoch, t.step)
    ]  # fmt: skip


def as_bytes(x: Tensor) -> Tensor:
    """The bytes of a tensor's numbers in their order, (n,); not a copy where they lie so."""
    flat = x.detach().contiguous().flatten()
    if flat.stride(0) != 1:  # a single number that was expanded from one
        flat = flat.clone(memory_format=torch.contiguous_format)
    return flat.view(torch.uint8)
