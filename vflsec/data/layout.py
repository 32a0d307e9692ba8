"""Which table, and which of its columns, belongs to which party; every contradiction is refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from vflsec.core import check
from vflsec.data.dialect import Dialect
from vflsec.data.limits import Limits
from vflsec.data.names import find_unshowable
from vflsec.data.read_table import Frame, read_frame
from vflsec.data.table_spec import ONE_TABLE, TableSpec
from vflsec.errors import DataError, data_error, format_list
from vflsec.specs import WHICHEVER


def read_table(spec: TableSpec, path: str | Path, party: str = "") -> Frame:
    """The table of a party, by its dialect and the limits; of all parties without one."""
    given = {k: v if isinstance(v, str) else v.get(party, "") for k, v in spec.dialects.items()}
    most = {"bytes": spec.max_bytes, "cells": spec.max_cells, "columns": spec.max_columns}
    limits = Limits(**{key: value for key, value in most.items() if value is not None})
    return read_frame(path, Dialect(**given), limits)


def check_known(key: str, name: str, known: Iterable[str]) -> None:
    """Refuse a name in a key of ``[data]`` that is none of the `known`."""
    if name not in (names := list(known)):
        raise check.unknown(f"data: {key}", name, names, DataError)


def separate_tables(
    files: Mapping[str, str | Path], spec: TableSpec
) -> tuple[dict[str, Frame], str]:
    """Read the table of each party; also the name of the party whose table has the label."""
    if len(files) < 2:
        rule, got = "name the tables of at least two parties", format_list(files) or "none"
        raise data_error("data", "files", rule, got, ONE_TABLE)
    if not spec.id:
        remedy = 'Add id = "COLUMN", or id = { PARTY = "COLUMN", ... }.'
        raise data_error("data", "id", "name the column that joins the tables", "none", remedy)
    if not isinstance(spec.id, str):
        for p in [*spec.id, *files]:
            check_known("id", p, files)
            if not spec.id.get(p):
                rule = f"name a column for {p!r}"
                raise data_error("data", "id", rule, "none", f'Add {p} = "COLUMN".')
    for key, value in spec.dialects.items():
        for p in value if isinstance(value, Mapping) else ():
            check_known(key, p, files)
    frames = {p: read_table(spec, path, p) for p, path in files.items()}
    holders = [_holder(frames, label) for label in spec.labels]
    for label, holder in zip(spec.labels, holders, strict=True):
        if holder != holders[0]:
            got = f"{spec.labels[0]!r} of {holders[0]} and {label!r} of {holder}"
            raise data_error("data", "label", "name columns of one table", got)
        if spec.active is not None and spec.active != holder:
            rule = f"be {holder!r}, whose table has the label column {label!r}"
            raise data_error("data", "active", rule, repr(spec.active))
    return frames, holders[0]


def _holder(frames: Mapping[str, Frame], label: str) -> str:
    """The party whose table has a label column."""
    holders, what = [p for p, f in frames.items() if label in f.columns], f"label column {label!r}"
    if not holders:
        have = "; ".join(f"{f.path}: {format_list(f.columns)}" for f in frames.values())
        names = [c for f in frames.values() for c in f.columns]
        raise data_error("data", what, "be in a table", have, check.nearest(label, names))
    if len(holders) > 1:
        got = " and ".join(str(frames[p].path) for p in holders)
        raise data_error("data", what, "be in one table only", got)
    return holders[0]


def common_table(file: str | Path, spec: TableSpec) -> tuple[dict[str, Frame], str]:
    """Read the one table that all parties share; also the name of the active party."""
    for key, value in {"id": spec.id or "", **spec.dialects}.items():
        if not isinstance(value, str):
            raise data_error("data", key, "be one text with `file`", repr(dict(value)))
    frame, columns, active = read_table(spec, file), spec.columns, spec.active
    if columns is None or len(columns) < 2:
        rule, got = "list features of at least two parties", format_list(columns or ()) or "none"
        raise frame.refuse("columns", rule, got, f"It holds {format_list(frame.columns)}.")
    if active is None:
        active = "active" if "active" in columns else next(iter(columns))
    if active not in columns:
        raise frame.unknown("active", active, columns)
    return dict.fromkeys(columns, frame), active


def check_roles(spec: TableSpec) -> None:
    """Refuse one column in two roles."""
    ids = dict.fromkeys(spec.id.values()) if isinstance(spec.id, Mapping) else [spec.id]
    named = [c for c in (*ids, *spec.labels, spec.split, spec.group) if c]
    twice = [c for c in named if named.count(c) > 1]
    if twice:
        what, rule = "id, label, split and group", "name different columns"
        raise data_error("data", what, rule, f"{twice[0]!r} twice")


def check_parties(
    parties: list[str], active: str, columns: Mapping[str, Sequence[str]] | None
) -> None:
    """Refuse party names that would clash with how coalitions, roles and row sets are written."""
    for p in parties:
        if not p or set(p) & set("+:/. *") or find_unshowable(p):
            rule = "be a word without '+', ':', '/', '.', '*' or spaces"
            raise data_error("data", "party name", rule, repr(p))
        role = "active" if p == active else "passive"
        several = p == "passive" and len(parties) > 2
        if p == "all" or (p in ("active", "passive") and p != role) or several:
            rule = "not be one that names others in a scenario"
            raise data_error("data", "party name", rule, f"{p!r} for a party of the role {role}")
    for p in columns or ():
        check_known("columns", p, parties)


def assign_columns(
    frames: Mapping[str, Frame], spec: TableSpec, *, active: str, single: bool
) -> dict[str, list[str]]:
    """Feature columns of each party, in file order or as listed; `active` may have none."""
    everything = list(dict.fromkeys(c for f in frames.values() for c in (*f.columns, *f.left_out)))
    for c in spec.drop:
        check_known("drop", c, everything)
    used: dict[str, list[str]] = {}
    owner: dict[str, str] = {}
    for p, frame in frames.items():
        taken = spec.taken(p)
        there = list((spec.columns or {}).get(p, [c for c in frame.columns if c not in taken]))
        used[p] = [c for c in there if c not in spec.drop]
        for c in used[p]:
            _check_feature(frame, p, c, taken)
            key = c if single else f"{p}\x1f{c}"
            if key in owner:
                whose = "twice" if owner[key] == p else f"also in {owner[key]!r}"
                raise frame.refuse(f"column {c!r} of {p}", "belong to one party, once", whose)
            owner[key] = p
        if not used[p] and (there or p != active):
            got = f"only {format_list(frame.columns)}"
            cure = "An id or a label is no feature: add a column, or leave the party out."
            raise frame.refuse(f"party {p!r}", "have a feature column", got, cure)
    return used


def _check_feature(frame: Frame, party: str, column: str, taken: Mapping[str, str]) -> None:
    """Refuse a column that is not there, has another role, or is called like any column."""
    frame.column(column, f"{party}'s")
    if column in taken:
        what = f"{party}'s column {column!r}"
        raise frame.refuse(what, "be a feature", f"the {taken[column]} column")
    if column == WHICHEVER:
        got = "one that means any column"
        raise frame.refuse(f"column {column!r}", "have another name", got, "Rename or drop it.")


def declare_kinds(
    frames: Mapping[str, Frame], used: Mapping[str, Sequence[str]], spec: TableSpec
) -> dict[str, tuple[set[str], set[str]]]:
    """Columns of each party that are declared categorical, and numeric."""
    pairs = [(p, c) for p in used for c in used[p]]
    known = [c for _, c in pairs] + [f"{p}.{c}" for p, c in pairs]
    out: dict[str, tuple[set[str], set[str]]] = {p: (set(), set()) for p in frames}
    for place, kind in enumerate(("categorical", "numeric")):
        for n in getattr(spec, kind):
            hits = [(p, c) for p, c in pairs if n in (c, f"{p}.{c}")]
            if not hits:
                raise check.unknown(f"data: {kind}", n, known, DataError)
            for p, c in hits:
                out[p][place].add(c)
    for p, (cat, num) in out.items():
        if cat & num:
            what = f"column {min(cat & num)!r}"
            raise frames[p].refuse(what, "be categorical or numeric", "both")
    return out
