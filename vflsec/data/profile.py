"""What is in tables, as plain values: every column with its kind, and which rows parties share."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from vflsec.data.features import Features
from vflsec.data.read_table import Frame
from vflsec.runtime.plain_values import Table

if TYPE_CHECKING:
    from vflsec.data.layout import Roles

RESPELLED = 0.05
"""Of the rows of the smaller table: from this share on it is said that ids look alike."""


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
        "the common rows are validated, tested and trained on together; the others serve "
        "algorithms that train on rows without a partner, and nothing else."
    )


def find_respelled(index: Mapping[str, pd.Index], order: Sequence[str]) -> str:
    """What ids that are in one table only would match if they were written alike; '' if nothing.

    Alike but for case, leading zeros, blanks within, marks that are not shown, and how letters are
    encoded; blanks around an id are taken off when it is read. Nothing is joined by it: two persons
    may have such ids.

    Args:
        index: ids by party, each once.
        order: the parties; each is compared with the first.
    """
    first, said = index[order[0]], []
    for p in (p for p in order[1:] if index[p] is not first):
        alone = [
            one.difference(other, sort=False)
            for one, other in ((first, index[p]), (index[p], first))
        ]
        mine, its = (_folded(ids) for ids in alone)
        both = mine.index.intersection(its.index, sort=False)
        if len(both) and len(both) >= RESPELLED * min(len(first), len(index[p])):
            pairs = zip(mine[both], its[both], strict=True)
            first_pair = mine[both[0]], its[both[0]]
            hidden = next((pair for pair in pairs if len({*map(_plainly, pair)}) > 1), None)
            how = "case or leading zeros"
            if hidden:
                how = "case, leading zeros, blanks, hidden marks or how letters are encoded"
            a, b = (ascii(_masked(text)) for text in hidden or first_pair)
            said.append(
                f"{len(both)} ids of {order[0]} and {p} differ only in {how}, as {a} and {b} would "
                "(9 and x are any digits and letters); they are not the same. If they are of the "
                "same rows, write them alike in both tables, as text: spreadsheets drop zeros."
            )
    return " ".join(said)


def _masked(text: str) -> str:
    """An id with leading zeros and case only, for reports that others read."""
    zeros = text[: len(text) - len(text.lstrip("0"))] if text.strip("0") else ""
    rest = text[len(zeros) :]
    return zeros + "".join(
        "9" if c.isdigit() else "X" if c.isupper() else "x" if c.isalpha() else c for c in rest
    )


def _folded(ids: pd.Index) -> pd.Series:
    """Ids by what they are but for how they are written, where that is of one alone."""
    found = pd.Series(ids.to_numpy(), dtype=object)
    found.index = pd.Index([_plainly(_visible(text)) for text in ids])
    return found[~found.index.duplicated(keep=False)]


def _plainly(text: str) -> str:
    """An id without case and leading zeros."""
    return text.casefold().lstrip("0") or text[-1:]


def _visible(text: str) -> str:
    """An id by its letters: of each the one code, without blanks and marks that are not shown."""
    if text.isascii() and text.isalnum():
        return text
    text = unicodedata.normalize("NFKC", text)
    return "".join(c for c in text if not c.isspace() and unicodedata.category(c) != "Cf")


@dataclass(frozen=True)
class Described:
    """What is known of the columns of tables.

    Attributes:
        used: feature columns by party.
        made: how these were read.
        roles: columns that are no features.
        drop: columns that are left out.
        active: the party with the labels.
        label_kind: what a column of labels holds.
    """

    used: Mapping[str, Sequence[str]]
    made: Mapping[str, Features]
    roles: Roles
    drop: Sequence[str]
    active: str
    label_kind: str

    def describe_column(self, name: str, array: pa.Array, parties: Sequence[str]) -> Table:
        """A column of the table of these parties."""
        owners = [p for p in parties if name in self.used[p]]
        party = owners[-1] if owners else parties[0] if len(parties) == 1 else ""
        role = "feature" if owners else self.roles.taken(parties[0]).get(name, "")
        if role == "label" and self.active not in parties:
            role = ""
        role = role or ("dropped" if name in self.drop else "unused")
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
            "read_as": frame.dialect.said if not frame.typed else "Parquet",
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
