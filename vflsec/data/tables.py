"""The user's own tables as a Source: one file per party joined on ids, or one file for all."""

from __future__ import annotations

import builtins
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
import pandas as pd
import pyarrow.compute as pc
from numpy.typing import NDArray

from vflsec.core import check
from vflsec.data.classes import READERS, Relabel
from vflsec.data.features import Features, read_features, read_ids
from vflsec.data.layout import (
    Reader,
    Roles,
    assign_columns,
    check_parties,
    check_roles,
    common_table,
    declared_kinds,
    separate_tables,
)
from vflsec.data.limits import Limits
from vflsec.data.names import label_rule, unshowable
from vflsec.data.profile import count_holders, count_overlaps, describe_tables, find_respelled
from vflsec.data.read_table import Frame, as_texts, data_error, format_list, refuse_ambiguous
from vflsec.data.source import PartyData, Source
from vflsec.data.table_spec import TableSpec
from vflsec.label import TaskName, make_named_label
from vflsec.specs import QUESTIONS, WHICHEVER

__all__ = ["load_tables"]

READING = 3
"""Counts the rules by which tables are read; part of a data set's identity."""


def load_tables(files: Mapping[str, str | Path] | str | Path, spec: TableSpec) -> Source:
    """Read CSV (also ``.csv.gz``) or Parquet tables.

    Args:
        files: either the table of each party, joined on ids (a party may lack rows), or one table
            for all parties, whose columns `spec.columns` distributes (each party holds every row).
        spec: what its columns are.

    Raises:
        DataError: a table or the way it is described is not usable; one message says where,
            what is allowed, what was found, and how to mend it.
    """
    _check_label(spec)
    roles = Roles(spec.id or "", spec.labels, spec.split or "", spec.group or "")
    check_roles(roles)
    change = Relabel(spec.merge_classes or {}, spec.drop_classes, spec.label_edges)
    _check_change(spec, change)
    asked = _describe_spec(spec, change)
    frames, active = _read_frames(files, spec, roles)
    check_parties(list(frames), active, spec.columns)
    name = spec.name or frames[active].path.name.split(".")[0]
    if why := unshowable(name):
        raise data_error("data", "name", why, repr(name), 'Add name = "..." under [data].')
    order = [active, *(p for p in frames if p != active)]
    used = assign_columns(
        frames, roles, spec.columns, spec.drop, active=active, single=not isinstance(files, Mapping)
    )
    _check_names(frames, used, order)
    declared = declared_kinds(frames, used, spec.categorical, spec.numeric)

    index = _read_ids(frames, roles, order)
    union, rows = _join_ids(index, order)
    _check_overlap(frames, index, rows, order)

    found = _read_label(frames[active], spec, change, rows[active], len(union))
    made = {p: read_features(frames[p], used[p], *declared[p]) for p in order}
    refuse_ambiguous((frames[p].path, c, a) for p in order for c, a in made[p].ambiguous.items())
    parties = {
        p: PartyData(made[p].values, rows[p], tuple(used[p]), made[p].categories) for p in order
    }
    return Source(
        name=name,
        parties=parties,
        active=active,
        y=found.y,
        class_names=found.names,
        ids=tuple(union.tolist()),
        split=_read_split(frames, order, rows, roles.split, len(union)) if spec.split else None,
        digest=_hash_tables(asked, frames, made, order),
        group=_read_group(frames, order, rows, roles.group, len(union)) if spec.group else None,
        values=found.values,
        labels=_several(spec),
        task=spec.task,
        facts=_describe(
            frames, used, made, rows, found.y, roles, spec.drop,
            (active, make_named_label(spec.task, len(found.names), _several(spec)).column),
        )
        | {"respelled": find_respelled(index, order)},
    )  # fmt: skip


class _Label(NamedTuple):
    """A label over the union of rows: classes (N,), a quantity (N,) or several labels (N, L)."""

    y: NDArray[np.int64]
    names: tuple[str, ...]
    values: NDArray[np.float64] | None = None


def _check_label(spec: TableSpec) -> None:
    """Refuse a label that does not fit the task, or that reports cannot name."""
    check.one_of("data: task", spec.task, get_args(TaskName))
    if rule := label_rule(spec.label, spec.task):
        raise data_error("data", "label", rule, format_list(spec.labels) or "none")
    for column in _several(spec):  # they stand in the names of attacks
        why = unshowable(column) or "not be called like a question" * (column in QUESTIONS)
        if why:
            raise data_error("data", "label", why, repr(column), "Rename the column.")


def _several(spec: TableSpec) -> tuple[str, ...]:
    """Names of several labels, empty where there is one."""
    return () if isinstance(spec.label, str) else spec.labels


def _check_change(spec: TableSpec, change: Relabel) -> None:
    """Refuse to make classes of a label that is predicted as it is."""
    if spec.task != "classification" and change:
        raise data_error(
            "data", "task", "stand without merge_classes, drop_classes and label_edges",
            repr(spec.task), "They make classes of the label: leave out one or the other.",
        )  # fmt: skip


def _read_frames(
    files: Mapping[str, str | Path] | str | Path, spec: TableSpec, roles: Roles
) -> tuple[dict[str, Frame], str]:
    """The table of each party, and the name of the active one."""
    most = {"bytes": spec.max_bytes, "cells": spec.max_cells, "columns": spec.max_columns}
    limits = Limits(**{key: value for key, value in most.items() if value is not None})
    reader = Reader(spec.separator, spec.decimal, spec.encoding, limits)
    if isinstance(files, Mapping):
        return separate_tables(files, roles, spec.active, reader)
    return common_table(files, roles, spec.columns, spec.active, reader)


def _check_names(
    frames: Mapping[str, Frame], used: Mapping[str, Sequence[str]], order: Sequence[str]
) -> None:
    """Refuse a column that is called like the word for any column."""
    for p in order:
        if WHICHEVER in used[p]:
            raise data_error(
                frames[p].path, f"column {WHICHEVER!r}", "have another name",
                "one that stands for any column in scenarios", "Rename it, or leave it out (drop).",
            )  # fmt: skip


def _read_label(
    frame: Frame, spec: TableSpec, change: Relabel, rows: NDArray[np.int64], size: int
) -> _Label:
    """The label of the active party's rows, over the `size` rows of the union."""
    y, values = np.full(size, -1, dtype=np.int64), None
    y[rows], names, found = READERS[spec.task](frame, spec.labels, change)
    if found is not None:
        values = np.full((size, *found.shape[1:]), np.nan)
        values[rows] = found
    return _Label(y, names, values)


def _describe_spec(spec: TableSpec, change: Relabel) -> dict[str, Any]:
    """What of a spec decides how the same files are read, as plain values."""
    out: dict[str, Any] = {
        "reading": READING,
        "label": spec.label if isinstance(spec.label, str) else list(spec.labels),
        "id": dict(spec.id) if isinstance(spec.id, Mapping) else spec.id,
        "active": spec.active,
        "columns": None if spec.columns is None else {p: [*c] for p, c in spec.columns.items()},
        "categorical": sorted(spec.categorical),
        "numeric": sorted(spec.numeric),
        "drop": sorted(spec.drop),
        "split": spec.split,
        "group": spec.group,
    }
    if spec.task != "classification":
        out["task"] = spec.task
    if change:
        out["classes"] = [
            {k: list(v) for k, v in change.merge.items()}, list(change.drop), list(change.edges)
        ]  # fmt: skip
    return out


def _hash_tables(
    asked: dict[str, Any],
    frames: Mapping[str, Frame],
    made: Mapping[str, Features],
    order: Sequence[str],
) -> str:
    """Identity of a data set: how it was read, and the content of every table."""
    options = dict(asked)
    for p in order:
        options[f"dialect of {p}"] = [frames[p].dialect.separator, frames[p].dialect.decimal,
                                      frames[p].dialect.encoding]  # fmt: skip
        if made[p].written:
            options[f"numbers of {p}"] = {c: list(how) for c, how in made[p].written.items()}
    digest = hashlib.sha256(json.dumps(options, sort_keys=True).encode())
    for p in order:
        digest.update(f"\x1f{p}\x1f{frames[p].digest}".encode())
    return digest.hexdigest()


def _number_rows(frame: Frame) -> pd.Index:
    return pd.Index([str(i) for i in range(frame.rows)], dtype=object)


def _read_ids(
    frames: Mapping[str, Frame], roles: Roles, order: Sequence[str]
) -> dict[str, pd.Index]:
    """Sample ids by party; parties that share a table share the index."""
    made: dict[tuple[int, str], pd.Index] = {}
    out = {}
    for p in order:
        frame, column = frames[p], roles.id_of(p)
        key = (builtins.id(frame), column)
        if key not in made:
            made[key] = read_ids(frame, column) if column else _number_rows(frame)
        out[p] = made[key]
    return out


def _join_ids(
    index: Mapping[str, pd.Index], order: Sequence[str]
) -> tuple[pd.Index, dict[str, NDArray[np.int64]]]:
    """All ids, the active party's first, and where each party's rows are among them."""
    first = index[order[0]]
    if all(index[p] is first or index[p].equals(first) for p in order):
        return first, dict.fromkeys(order, np.arange(len(first), dtype=np.int64))
    union = first
    for p in order[1:]:
        union = union.append(index[p].difference(union, sort=False))
    return union, {p: union.get_indexer(index[p]).astype(np.int64) for p in order}


def _check_overlap(
    frames: Mapping[str, Frame],
    index: Mapping[str, pd.Index],
    rows: Mapping[str, NDArray[np.int64]],
    order: Sequence[str],
) -> None:
    if count_holders(rows).max() != len(order):
        some = "; ".join(f"{frames[p].path}: {format_list(index[p][:3])}" for p in order)
        raise data_error(
            "data",
            "ids",
            "have values that all tables share",
            f"no common id ({some})",
            find_respelled(index, order)
            or "Check that the id column is the same and is written alike (leading zeros count).",
        )


def _find_tables(
    frames: Mapping[str, Frame], order: Sequence[str], name: str, role: str
) -> list[str]:
    found = [p for p in order if name in frames[p].columns]
    if not found:
        frames[order[0]].column(name, role)
    return found


def _read_role(
    frames: Mapping[str, Frame],
    order: Sequence[str],
    rows: Mapping[str, NDArray[np.int64]],
    name: str,
    role: str,
    size: int,
) -> NDArray[Any]:
    """The texts of a role column over the union, None where no table has a value."""
    out = np.full(size, None, dtype=object)
    for p in _find_tables(frames, order, name, role):
        found = as_texts(frames[p].columns[name])
        found = pc.utf8_lower(found) if role == "split" else found
        values = np.array(found.to_pylist(), dtype=object)
        before = out[rows[p]]
        clash = [a is not None and b is not None and a != b for a, b in zip(before, values)]
        if any(clash):
            i = clash.index(True)
            raise data_error(
                frames[p].path,
                f"{role} column {name!r}",
                "agree with the other table that has it",
                f"{values[i]!r} in {frames[p].row(i)} against {before[i]!r}",
                "Keep the column in one table.",
            )
        out[rows[p]] = np.where([v is None for v in values], before, values)
    return out


def _read_split(
    frames: Mapping[str, Frame],
    order: Sequence[str],
    rows: Mapping[str, NDArray[np.int64]],
    name: str,
    size: int,
) -> NDArray[np.str_]:
    """Side of each row of the union; rows of parties without the column are training rows."""
    sides = _read_role(frames, order, rows, name, "split", size)
    for p in _find_tables(frames, order, name, "split"):
        for i, side in enumerate(sides[rows[p]]):
            if side not in ("train", "validation", "test"):
                raise data_error(
                    frames[p].path,
                    f"split column {name!r}",
                    "hold 'train', 'validation' or 'test'",
                    f"{side!r} in {frames[p].row(i)}",
                    "Correct the value or leave out `split`.",
                )
    out = np.array(["train" if s is None else s for s in sides])
    if not (out == "test").any():
        raise data_error(
            frames[order[0]].path, f"split column {name!r}", "mark some rows 'test'", "none",
            "Mark them or leave out `split`.",
        )  # fmt: skip
    return out


def _read_group(
    frames: Mapping[str, Frame],
    order: Sequence[str],
    rows: Mapping[str, NDArray[np.int64]],
    name: str,
    size: int,
) -> NDArray[np.int64]:
    """Group number of each row of the union; a row without a value is a group of its own."""
    values = _read_role(frames, order, rows, name, "group", size)
    codes, known = pd.factorize(pd.Series(values, dtype=object), use_na_sentinel=True)
    alone = codes < 0
    codes = codes.astype(np.int64)
    codes[alone] = len(known) + np.arange(int(alone.sum()))
    return codes


def _describe(
    frames: Mapping[str, Frame],
    used: Mapping[str, Sequence[str]],
    made: Mapping[str, Features],
    rows: Mapping[str, NDArray[np.int64]],
    y: NDArray[np.int64],
    roles: Roles,
    drop: Sequence[str],
    labelled: tuple[str, str],
) -> dict[str, Any]:
    """What a reader of the report should know about the tables."""
    held = count_holders(rows)
    every = {c for cols in used.values() for c in cols} | set(drop)
    every |= {c for p in frames for c in roles.taken(p)}
    notes = [
        f"{frames[p].path.name}: column {c!r} is read as {made[p].kinds[c]}, but has {why}."
        for p in made
        for c, why in made[p].doubtful.items()
    ]
    return {
        "rows": {p: frames[p].rows for p in rows},
        "overlap": int((held == len(rows)).sum()),
        "unlabelled": int((y < 0).sum()),
        "missing": {p: int(np.isnan(made[p].values).sum()) for p in made},
        "folded_categories": {
            f"{p}.{c}": k for p in made for c, k in made[p].folded.items()
        },
        "unused_columns": sorted({c for f in frames.values() for c in f.columns} - every),
        "notes": notes,
        "parties": count_overlaps(rows, y),
        "tables": describe_tables(frames, used, made, roles, drop, *labelled),
    }  # fmt: skip
