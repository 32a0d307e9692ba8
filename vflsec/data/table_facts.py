"""What is known of users' tables: what plans, stores and reports share of them.

A field with a default may be missing in what an earlier version stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class ColumnFacts:
    """A column of a user's table.

    Attributes:
        party: whose feature or label it is; '' where several share the table and none uses it.
        role: feature, id, label, split, group, dropped or unused.
        kind: number, date or category; of a label its own.
        distinct, missing: how many different values, and rows without one.
        unit: of its numbers, '' for none.
        warning: what is doubtful about it, in words.
    """

    name: str = ""
    party: str = ""
    role: str = ""
    kind: str = ""
    distinct: int = 0
    missing: int = 0
    unit: str = ""
    warning: str = ""


@dataclass(frozen=True)
class UserTable:
    """A user's table; `read_as` says in which format, '' for plain text."""

    file: str = ""
    parties: tuple[str, ...] = ()
    rows: int = 0
    read_as: str = ""
    columns: tuple[ColumnFacts, ...] = ()


@dataclass(frozen=True)
class Overlap:
    """How many rows a party has, shares with all others, has labels of among these, has alone."""

    rows: int = 0
    common: int = 0
    labelled: int = 0
    only_here: int = 0


@dataclass(frozen=True)
class Ranked:
    """An AUC over n rows with its interval."""

    auc: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        return f"{self.auc:.2f} ({self.low:.2f} to {self.high:.2f})"


@dataclass(frozen=True)
class Matched:
    """What a party learns of another one when their rows are matched.

    Attributes:
        party, about: who learns of whom.
        rows, theirs, common: how many rows the two have, and share.
        columns: how well its own columns tell which of its rows the other has.
        control: the same of permuted membership.
        label: how well membership alone ranks the label; None of who has no label of two classes.
        says: all that in a sentence or a few.
    """

    party: str = ""
    about: str = ""
    rows: int = 0
    theirs: int = 0
    common: int = 0
    columns: Ranked | None = None
    control: Ranked | None = None
    label: Ranked | None = None
    says: str = ""


@dataclass(frozen=True)
class UserTables:
    """The tables of one data set, rows that parties share, and what matching the rows tells."""

    tables: tuple[UserTable, ...] = ()
    overlap: Mapping[str, Overlap] = field(default_factory=dict)
    alignment: tuple[Matched, ...] = ()


@dataclass(frozen=True)
class Noticed:
    """What a reader should know of how data were read.

    Attributes:
        tables: of the user; none of a data set that comes with the package.
        unlabelled: rows without a label.
        folded: rare categories that became one, by ``party.column``.
        unused: columns that nobody uses.
        left_out: columns that no way to aggregate was given for, by file.
        respelled: ids that do not match and look alike, in sentences.
        notes: further sentences.
    """

    tables: UserTables = UserTables()
    unlabelled: int = 0
    folded: Mapping[str, int] = field(default_factory=dict)
    unused: Sequence[str] = ()
    left_out: Mapping[str, Sequence[str]] = field(default_factory=dict)
    respelled: Sequence[str] = ()
    notes: Sequence[str] = ()
