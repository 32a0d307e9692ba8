"""Which table, and which of its columns, belongs to which party; every contradiction is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vflsec import check
from vflsec.data.reading import Frame, data_error, listed, read_frame

__all__ = [
    "Roles",
    "assign_columns",
    "check_parties",
    "check_roles",
    "common_table",
    "declared_kinds",
    "separate_tables",
]


@dataclass(frozen=True)
class Roles:
    """Columns that are no features, by role; '' = there is none."""

    id: str
    label: str
    split: str
    group: str

    @property
    def taken(self) -> dict[str, str]:
        """Role of each such column."""
        pairs = [("id", self.id), ("label", self.label), ("split", self.split),
                 ("group", self.group)]  # fmt: skip
        return {column: role for role, column in pairs if column}


def separate_tables(
    files: Mapping[str, str | Path], roles: Roles, active: str | None
) -> tuple[dict[str, Frame], str]:
    """Read the table of each party; also the name of the party whose table has the label."""
    if len(files) < 2:
        raise data_error(
            "data", "files", "name the tables of at least two parties", listed(files) or "none",
            "For one table with the columns of all parties use `file` and `columns`.",
        )  # fmt: skip
    if not roles.id:
        raise data_error(
            "data", "id", "name the column that joins the tables", "none",
            "Add id = \"COLUMN\".",
        )  # fmt: skip
    frames = {p: read_frame(path) for p, path in files.items()}
    holders = [p for p, f in frames.items() if roles.label in f.columns]
    if not holders:
        have = "; ".join(f"{f.path}: {listed(f.columns)}" for f in frames.values())
        names = [c for f in frames.values() for c in f.columns]
        raise data_error(
            "data", f"label column {roles.label!r}", "be in one of the tables", have,
            check.nearest(roles.label, names),
        )  # fmt: skip
    if len(holders) > 1:
        raise data_error(
            "data",
            f"label column {roles.label!r}",
            "be in one table only",
            " and ".join(str(frames[p].path) for p in holders),
            "Only the active party holds labels: remove the column from the other tables.",
        )
    if active is not None and active != holders[0]:
        raise data_error(
            "data", "active", f"be {holders[0]!r}, whose table has the label column "
            f"{roles.label!r}", repr(active), "Correct it or leave it out.",
        )  # fmt: skip
    return frames, holders[0]


def common_table(
    file: str | Path, columns: Mapping[str, Sequence[str]] | None, active: str | None
) -> tuple[dict[str, Frame], str]:
    """Read the one table that all parties share; also the name of the active party."""
    frame = read_frame(file)
    if columns is None or len(columns) < 2:
        raise data_error(
            frame.path, "columns", "list the feature columns of at least two parties",
            listed(columns or ()) or "none", f"The table has {listed(frame.columns)}.",
        )  # fmt: skip
    if active is None:
        active = "active" if "active" in columns else next(iter(columns))
    if active not in columns:
        raise data_error(
            frame.path, "active", f"be one of {listed(columns)}", repr(active),
            check.nearest(active, list(columns)),
        )  # fmt: skip
    return dict.fromkeys(columns, frame), active


def check_roles(roles: Roles) -> None:
    """Refuse one column in two roles."""
    named = [c for c in (roles.id, roles.label, roles.split, roles.group) if c]
    twice = [c for c in named if named.count(c) > 1]
    if twice:
        raise data_error(
            "data", "id, label, split and group", "name different columns", f"{twice[0]!r} twice",
            "Correct one of them.",
        )  # fmt: skip


def check_parties(parties: list[str], columns: Mapping[str, Sequence[str]] | None) -> None:
    """Refuse party names that would clash with how coalitions and row sets are written."""
    for p in parties:
        if not p or set(p) & set("+:/. "):
            raise data_error(
                "data", "party name", "be a word without '+', ':', '/', '.' or spaces", repr(p)
            )
    for p in columns or ():
        if p not in parties:
            raise data_error(
                "data", "columns", f"name parties among {listed(parties)}", repr(p),
                check.nearest(p, parties),
            )  # fmt: skip


def assign_columns(
    frames: Mapping[str, Frame],
    roles: Roles,
    columns: Mapping[str, Sequence[str]] | None,
    drop: Sequence[str],
    *,
    single: bool,
) -> dict[str, list[str]]:
    """Feature columns of each party, in file order or as listed."""
    everything = [c for f in frames.values() for c in f.columns]
    for c in drop:
        if c not in everything:
            raise data_error(
                next(iter(frames.values())).path if single else "data",
                "drop", f"name columns among {listed(dict.fromkeys(everything))}", repr(c),
                check.nearest(c, everything),
            )  # fmt: skip
    used: dict[str, list[str]] = {}
    owner: dict[str, str] = {}
    for p, frame in frames.items():
        if columns is not None and p in columns:
            mine = [c for c in columns[p] if c not in drop]
        else:
            mine = [c for c in frame.columns if c not in roles.taken and c not in drop]
        for c in mine:
            frame.column(c, f"columns of party {p!r}:")
            if c in roles.taken:
                raise data_error(
                    frame.path,
                    f"columns of party {p!r}",
                    "be features",
                    f"{c!r}, which is the {roles.taken[c]} column",
                    "Remove it from the list.",
                )
            key = c if single else f"{p}\x1f{c}"
            if key in owner:
                whose = "listed twice" if owner[key] == p else f"also a column of {owner[key]!r}"
                raise data_error(
                    frame.path, f"column {c!r} of party {p!r}", "belong to one party, once", whose,
                    "Remove one mention.",
                )  # fmt: skip
            owner[key] = p
        if not mine:
            raise data_error(
                frame.path, f"party {p!r}", "have at least one feature column", "none",
                f"The table has {listed(frame.columns)}.",
            )  # fmt: skip
        used[p] = mine
    return used


def declared_kinds(
    frames: Mapping[str, Frame],
    used: Mapping[str, Sequence[str]],
    categorical: Sequence[str],
    numeric: Sequence[str],
) -> dict[str, tuple[set[str], set[str]]]:
    """Columns of each party that are declared categorical, and numeric."""
    out: dict[str, tuple[set[str], set[str]]] = {p: (set(), set()) for p in frames}
    known = [*(c for p in used for c in used[p]), *(f"{p}.{c}" for p in used for c in used[p])]
    for place, (kind, names) in enumerate((("categorical", categorical), ("numeric", numeric))):
        for n in names:
            hits = [(p, c) for p in used for c in used[p] if n in (c, f"{p}.{c}")]
            if not hits:
                raise data_error(
                    "data", kind, "name feature columns of some party", repr(n),
                    check.nearest(n, known)
                    or f"Feature columns: {listed(known[: len(known) // 2])}.",
                )  # fmt: skip
            for p, c in hits:
                out[p][place].add(c)
    for p, (cat, num) in out.items():
        if cat & num:
            raise data_error(
                frames[p].path, f"column {min(cat & num)!r}", "be categorical or numeric",
                "both", "Remove it from one list.",
            )  # fmt: skip
    return out
