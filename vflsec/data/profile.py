"""What is in tables, as plain values: every column with its kind, and which rows parties share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from vflsec.data.features import Features
from vflsec.data.read_table import Frame
from vflsec.data.table_spec import TableSpec
from vflsec.runtime.plain_values import Table


def count_holders(rows: Mapping[str, NDArray[np.int64]]) -> NDArray[np.int64]:
    """How many parties hold each row of the union, (N,)."""
    size = 1 + max((int(r.max()) for r in rows.values() if len(r)), default=-1)
    held = np.zeros(size, dtype=np.int64)
    for r in rows.values():
        held[r] += 1
    return held


def count_overlaps(
    rows: Mapping[str, NDArray[np.int64]], y: NDArray[np.int64]
) -> dict[str, dict[str, int]]:
    """{party: rows, rows in common with all parties, of these with a label, rows only here}."""
    held = count_holders(rows)
    return {
        p: {
            "rows": len(r),
            "common": int((held[r] == len(rows)).sum()),
            "labelled": int(((held[r] == len(rows)) & (y[r] >= 0)).sum()),
            "only_here": int((held[r] == 1).sum()),
        }
        for p, r in rows.items()
    }


def overlap_sentence(facts: Mapping[str, Mapping[str, int]]) -> str:
    """What became of rows that not all parties hold; '' if all hold all."""
    common = next(iter(facts.values()))["common"]
    lacking = {p: f["rows"] - common for p, f in facts.items() if f["rows"] > common}
    if not lacking:
        return ""
    parts = ", ".join(f"{p} {k} of {facts[p]['rows']}" for p, k in lacking.items())
    return (
        f"{common} rows are held by all parties; rows without a partner everywhere: {parts}. Only "
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
    """

    used: Mapping[str, Sequence[str]]
    made: Mapping[str, Features]
    spec: TableSpec
    active: str
    label_kind: str

    def describe_column(self, name: str, array: pa.Array, parties: Sequence[str]) -> Table:
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
            party, kind = self.active, self.label_kind
        return {
            "name": name, "party": party, "role": role, "kind": kind, "unit": unit,
            "distinct": count_values(array), "missing": array.null_count, "warning": warning,
        }  # fmt: skip


def describe_tables(frames: Mapping[str, Frame], described: Described) -> list[Table]:
    """One entry for each file: how it was read, and every column.

    A column has ``name``, ``party``, ``role`` (feature, id, label, split, group, dropped, unused),
    ``kind`` (number, date, category; for a label its own), ``unit`` of its numbers, ``distinct``,
    ``missing`` and ``warning``.
    """
    files: dict[int, tuple[Frame, list[str]]] = {}
    for p, frame in frames.items():
        files.setdefault(id(frame), (frame, []))[1].append(p)
    return [
        {
            "file": frame.path.name,
            "parties": parties,
            "rows": frame.rows,
            "read_as": frame.read_as,
            "columns": [
                described.describe_column(name, array, parties)
                for name, array in frame.columns.items()
            ],
        }
        for frame, parties in files.values()
    ]


def count_values(array: pa.Array) -> int:
    """Number of different values."""
    return int(pc.count_distinct(array, mode="only_valid").as_py())
