"""What every data set gives: raw columns by party and labels, from which Tasks are made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vflsec.data.table_facts import Noticed
from vflsec.label import Label, make_label, make_named_label


@dataclass(frozen=True)
class PartyData:
    """One party's own table, before any fitting.

    Attributes:
        values: (N_k, d) float64 columns (NaN = missing); categorical columns hold codes >= 1
            of `categories`, or NaN. Images are (N_k, c, h, w) float32.
        rows: (N_k,) int64 positions of its rows in the union 0..N-1 of all parties' rows.
        names: d column names (empty for images).
        categories: for each column None if numeric, else the category names (code i+1 is name i).
    """

    values: NDArray[Any]
    rows: NDArray[np.int64]
    names: tuple[str, ...] = ()
    categories: tuple[tuple[str, ...] | None, ...] = ()


@dataclass(frozen=True)
class Source:
    """A data set in memory, without a split.

    Attributes:
        name: the name used in reports.
        parties: table of each party by name.
        active: the party that holds the labels.
        y: (N,) int64 class index over the union of rows, -1 where the active party has no label.
        class_names: C names, in class-index order; one name for a quantity and for several labels.
        values: (N,) float64 the label where it is a quantity, (N, L) several labels that are 0 or
            1, NaN for none (`y` is then 0 or -1); else None.
        labels: L names where a row has several labels at once, else empty.
        task: name of the kind of label (:data:`vflsec.label.TaskName`); '' where `labels` and the
            number of `class_names` tell it.
        ids: (N,) the users' own ids as strings, or empty.
        split: (N,) fixed split as 'train' / 'validation' / 'test' strings ('validation' may be
            missing: then it is carved from train), or None for splits by seed.
        drawn: whether all rows are drawn alike, as those of a world, whatever `split` says.
        digest: a hash of the content; part of every cell's identity.
        group: (N,) int64 or None: rows of one group (for example a person) stay on one side.
        facts: what a reader should know of how it was read.
    """

    name: str
    parties: Mapping[str, PartyData]
    active: str
    y: NDArray[np.int64]
    class_names: tuple[str, ...]
    ids: Sequence[str] = ()
    split: NDArray[Any] | None = None
    drawn: bool = False
    digest: str = ""
    group: NDArray[np.int64] | None = None
    values: NDArray[np.float64] | None = None
    labels: tuple[str, ...] = ()
    task: str = ""
    facts: Noticed = field(default_factory=Noticed)

    @property
    def fixed(self) -> frozenset[str]:
        """Row sets that `split` fills, of rows that may be of another kind than the others."""
        if self.split is None or self.drawn:
            return frozenset()
        return frozenset(np.unique(np.char.strip(self.split.astype(str))).tolist()) - {"train"}

    @property
    def label(self) -> Label:
        """What kind of label it is."""
        if self.task:
            return make_named_label(self.task, len(self.class_names), tuple(self.labels))
        return make_label(0 if self.labels else len(self.class_names), tuple(self.labels))

    @property
    def classes(self) -> int:
        """The code of the kind of label: C classes, 1 for a quantity, 0 for several labels."""
        return self.label.code

    @property
    def largest_group(self) -> int:
        """Rows of the largest group; 1 where rows are in none."""
        return 1 if self.group is None else int(np.bincount(self.group).max(initial=1))

    @property
    def label_holder(self) -> bool:
        """Whether the active party holds labels only: a table without a column."""
        return self.parties[self.active].values.shape[1:] == (0,)
