"""A plan divided over machines that share nothing: which cells are whose.

The division depends on the plan and on the number of shards alone, never on a machine, a store or
an option, so that every node finds the same one by itself. Every cohort is cut into nearly equal
pieces, one for each shard where it has cells enough, and the dearest piece goes to the shard that
has least so far (Graham 1969, longest processing time first: at most 4/3 of the best division).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from vflsec.errors import ConfigError
from vflsec.plan.estimate import compute_weight
from vflsec.plan.values import Group, split_chunks

LEAST = 4
"""Cells that are not torn apart: as one batched model they cost little more than one of them."""


@dataclass(frozen=True)
class Shard:
    """One of several parts of an audit.

    Attributes:
        index: which, from 1.
        of: how many there are.
    """

    index: int
    of: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """From ``i/n``.

        Raises:
            ConfigError: it is none.
        """
        found = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", text.strip())
        if found is None or not 1 <= int(found[1]) <= int(found[2]):
            raise ConfigError.must("--shard", "be I/N with 1 <= I <= N, as in 2/8", repr(text))
        return cls(int(found[1]), int(found[2]))

    def __str__(self) -> str:
        return f"{self.index}/{self.of}"


def divide_groups(groups: Sequence[Group], of: int) -> list[tuple[Group, ...]]:
    """The groups of a plan as `of` parts, which together hold every cell of every group once.

    Args:
        groups: of a plan, in its order.
        of: number of parts; some are empty where there is not enough to do.
    """
    pieces = [
        replace(group, cells=cells)
        for group in groups
        for cells in split_chunks(group.cells, max(LEAST, math.ceil(len(group.cells) / of)))
    ]
    load, whose = [0.0] * of, [0] * len(pieces)
    for i in sorted(range(len(pieces)), key=lambda i: -compute_weight(pieces[i])):
        whose[i] = load.index(min(load))
        load[whose[i]] += compute_weight(pieces[i])
    return [tuple(p for p, w in zip(pieces, whose, strict=True) if w == k) for k in range(of)]
