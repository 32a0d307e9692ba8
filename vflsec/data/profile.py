"""What is in tables: every column with its kind, and which rows parties share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from vflsec.data.features import Features
from vflsec.data.read_table import Frame
from vflsec.data.table_facts import ColumnFacts, Overlap, UserTable
from vflsec.data.table_spec import TableSpec


def count_holders(rows: Mapping[str, NDArray[np.int64]]) -> NDArray[np.int64]:
    """How many parties hold each row of the union, (N,)."""
    size = 1 + max((int(r.max()) for r in rows.values() if len(r)), default=-1)
    held = np.zeros(size, dtype=np.int64)
    for r in rows.values():
        held[r] += 1
    return held


def count_overlaps(
    rows: Mapping[str, NDArray[np.int64]], y: NDArray[np.int64]
) -> dict[str, Overlap]:
    """Which rows each party shares; `y` is -1 for those without a label."""
    held = count_holders(rows)
    return {
        p: Overlap(
            rows=len(r),
            common=int((held[r] == len(rows)).sum()),
            labelled=int(((held[r] == len(rows)) & (y[r] >= 0)).sum()),
            only_here=int((held[r] == 1).sum()),
        )
        for p, r in rows.items()
    }


def overlap_sentence(overlap: Mapping[str, Overlap]) -> str:
    """What became of rows that not all parties hold; '' if all hold all."""
    lacking = [(p, f) for p, f in overlap.items() if f.rows > f.common]
    if not lacking:
        return ""
    common = lacking[0][1].common
    parts = ", ".join(f"{p} {f.rows - common} of {f.rows}" for p, f in lacking)
    return (
        f"{common} rows are held by all parties; rows that another party lacks: {parts}. Only "
        "algorithms that train on such rows use them."
    )


@dataclass(frozen=True)
class Described:
    """What is known of the columns of tables.

    Attributes:
        used: feature columns by party.
        made: how these were read.
        spec: what is said of them.
        active: the party with the labels.
        label_kind: what a column of labels holds.
        label_doubt: what of it can hardly be meant, in words.
    """

    used: Mapping[str, Sequence[str]]
    made: Mapping[str, Features]
    spec: TableSpec
    active: str
    label_kind: str
    label_doubt: str = ""

    def describe_column(self, name: str, array: pa.Array, parties: Sequence[str]) -> ColumnFacts:
        """A column of the table of these parties."""
        owners = [p for p in parties if name in self.used[p]]
        party = owners[-1] if owners else parties[0] if len(parties) == 1 else ""
        role = "feature" if owners else self.spec.taken(parties[0]).get(name, "")
        if role == "label" and self.active not in parties:
            role = ""
        role = role or ("dropped" if name in self.spec.drop else "unused")
        kind = "text" if pa.types.is_string(array.type) else "number"
        unit = warning = ""
        if role == "feature":
            made = self.made[party]
            kind, warning = made.kinds[name], made.doubtful.get(name, "")
            unit = made.written[name].unit if name in made.written else ""
        elif role == "label":
            party, kind, warning = self.active, self.label_kind, self.label_doubt
        known = role == "id"  # which were read as ids: each row has another one
        counts = len(array) if known else count_values(array), array.null_count
        return ColumnFacts(name, party, role, kind, *counts, unit, warning)


def describe_tables(frames: Mapping[str, Frame], described: Described) -> tuple[UserTable, ...]:
    """One entry for each file."""
    files: dict[int, tuple[Frame, list[str]]] = {}
    for p, frame in frames.items():
        files.setdefault(id(frame), (frame, []))[1].append(p)
    return tuple(
        UserTable(
            frame.path.name, tuple(parties), frame.rows, frame.read_as,
            tuple(described.describe_column(name, array, parties)
                  for name, array in frame.columns.items()),
        )
        for frame, parties in files.values()
    )  # fmt: skip


def count_values(array: pa.Array) -> int:
    """Number of different values."""
    return int(pc.count_distinct(array, mode="only_valid").as_py())
