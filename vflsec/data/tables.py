"""The user's own tables as a Source: one file per party joined on ids, or one file for all."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
import pandas as pd
import pyarrow.compute as pc
from numpy.typing import NDArray

from vflsec.core import check
from vflsec.data.classes import READERS, Relabel
from vflsec.data.divide import Division
from vflsec.data.features import Features, read_features, read_ids
from vflsec.data.id_spelling import Respelled, describe_respelled, find_respelled, match_ids
from vflsec.data.layout import (
    assign_columns,
    check_parties,
    check_roles,
    common_table,
    declare_kinds,
    read_table,
    separate_tables,
)
from vflsec.data.names import find_unshowable, label_rule, party_names
from vflsec.data.odd_values import describe_odd_values, leave_empty
from vflsec.data.profile import (
    Described,
    count_holders,
    count_overlaps,
    describe_tables,
)
from vflsec.data.read_table import (
    Frame,
    as_texts,
    change_tables,
    format_list,
    refuse_ambiguous,
    refuse_doubtful,
    split_by_party,
)
from vflsec.data.repeated_rows import join_rows
from vflsec.data.source import PartyData, Source
from vflsec.data.table_facts import Noticed, UserTables
from vflsec.data.table_spec import TableSpec, name_tables
from vflsec.errors import data_error
from vflsec.label import TaskName, make_named_label
from vflsec.runtime.plain_values import Plain, Table
from vflsec.specs import QUESTIONS

READING = 3
"""Counts the rules by which tables are read; part of a data set's identity."""


def load_tables(files: Mapping[str, str | Path] | str | Path, spec: TableSpec) -> Source:
    """Read CSV (also ``.csv.gz``) or Parquet tables.

    Args:
        files: either the table of each party, joined on ids (a party may lack rows), or one table
            for all parties, whose columns `spec.columns` distributes (each party holds every row)
            or `spec.divide` does.
        spec: what its columns are.

    Raises:
        DataError: a table or the way it is described is not usable; one message says where,
            what is allowed, what was found, and how to mend it.
    """
    if spec.divide is not None:
        return _load_divided(files, spec, spec.divide)
    _check_label(spec)
    check_roles(spec)
    change = Relabel(spec.merge_classes or {}, spec.drop_classes, spec.label_edges)
    if spec.task != "classification" and change:  # its label is predicted as it is
        rule = "stand without merge_classes, drop_classes and label_edges"
        raise data_error("data", "task", rule, repr(spec.task))
    asked = _describe_spec(spec, change)
    if single := not isinstance(files, Mapping):
        frames, active = common_table(files, spec)
    else:
        frames, active = separate_tables(files, spec)
    frames = _join_repeated(leave_empty(frames, spec.missing), spec)
    check_parties(list(frames), active, spec.columns)
    name = spec.name or name_tables(files)
    if why := find_unshowable(name):
        raise data_error("data", "name", why, repr(name), 'Add name = "..." under [data].')
    used = assign_columns(frames, spec, active=active, single=single)
    declared = declare_kinds(frames, used, spec)
    joined = _join(frames, spec, active)
    found = _read_label(frames[active], spec, change, joined.rows[active], joined.size)
    made = {p: read_features(frames[p], used[p], *declared[p]) for p in joined.order}
    refuse_ambiguous((frames[p].path, c, a) for p in made for c, a in made[p].ambiguous.items())
    refuse_doubtful((frames[p].path, c, d) for p in made for c, d in made[p].unsure.items())
    described = Described(used, made, spec, active, found.kind, found.doubt)
    return Source(
        name=name,
        parties={
            p: PartyData(of.values, joined.rows[p], tuple(used[p]), of.categories)
            for p, of in made.items()
        },
        active=active,
        y=found.y,
        class_names=found.names,
        ids=tuple(joined.ids.tolist()),
        split=joined.read_split(spec.split) if spec.split else None,
        digest=_hash_tables(asked, frames, made),
        group=joined.read_group(spec.group) if spec.group else None,
        values=found.values,
        labels=spec.several,
        task=spec.task,
        facts=_describe(joined, described, found.y),
    )


def _load_divided(
    files: Mapping[str, str | Path] | str | Path, spec: TableSpec, division: Division
) -> Source:
    """One table read with all columns at one party, and again with those of each."""
    if isinstance(files, Mapping) or spec.columns is not None or spec.active is not None:
        rule = "stand with `file` and without `files`, `columns` and `active`"
        raise data_error("data", "divide", rule, "one of them")
    names = party_names(division.parties)
    frames = leave_empty(dict.fromkeys(names, read_table(spec, files)), spec.missing)
    frame, taken = _join_repeated(frames, spec)[names[0]], spec.taken(names[0])
    spec = replace(spec, divide=None)
    every = [c for c in frame.columns if c not in taken and c not in spec.drop]
    whole = load_tables(files, replace(spec, columns={names[0]: [], names[1]: every}))
    rows = whole.y >= 0
    if whole.split is not None:
        rows &= whole.split == "train"
    if not rows.any():
        raise data_error("data", "divide", "have labelled rows for training", "none")
    data = whole.parties[names[1]]
    targets = np.eye(whole.classes)[whole.y[rows]] if whole.values is None else whole.values[rows]
    whose, rated = division.assign(
        data.values[rows],
        [len(c or ()) for c in data.categories],
        targets.reshape(len(targets), -1),
    )
    columns = {
        p: [c for c, k in zip(every, whose, strict=True) if k == i] for i, p in enumerate(names)
    }
    made = load_tables(files, replace(spec, columns=columns))
    shares = zip(names, division.sum_shares(whose, rated), strict=True)
    said = ", ".join(f"{p} {len(columns[p])} columns with {share:.3f}" for p, share in shares)
    note = f"columns divided (share of the importance): {said}."
    return replace(made, facts=replace(made.facts, notes=[*made.facts.notes, note]))


class _Label(NamedTuple):
    """A label over the union of rows: classes (N,), a quantity (N,) or several labels (N, L).

    `kind` is what a column of such labels holds, `doubt` what of a quantity can hardly be meant, in
    words.
    """

    y: NDArray[np.int64]
    names: tuple[str, ...]
    values: NDArray[np.float64] | None
    kind: str
    doubt: str


def _check_label(spec: TableSpec) -> None:
    """Refuse a label that does not fit the task, or that reports cannot name."""
    check.one_of("data: task", spec.task, get_args(TaskName))
    if rule := label_rule(spec.label, spec.task):
        raise data_error("data", "label", rule, format_list(spec.labels) or "none")
    for column in spec.several:  # they stand in the names of attacks
        why = find_unshowable(column)
        if column in QUESTIONS:
            why = "not be called like a question"
        if why:
            raise data_error("data", "label", why, repr(column), "Rename the column.")


def _join_repeated(frames: Mapping[str, Frame], spec: TableSpec) -> dict[str, Frame]:
    """The tables with one row for each id, where that was asked for."""
    of_party = split_by_party("aggregate", spec.aggregate, frames)

    def change(frame: Frame, parties: Sequence[str]) -> Frame:
        aggregate = {c: way for p in parties for c, way in of_party.get(p, {}).items()}
        for p in parties:
            if spec.id_of(p) and (aggregate or spec.duplicates):
                return join_rows(frame, spec.id_of(p), [*spec.taken(p)], aggregate)
        return frame

    return change_tables(frames, change)


def _read_label(
    frame: Frame, spec: TableSpec, change: Relabel, rows: NDArray[np.int64], size: int
) -> _Label:
    """The label of the active party's rows, over the `size` rows of the union."""
    y, values, doubt = np.full(size, -1, dtype=np.int64), None, ""
    y[rows], names, found = READERS[spec.task](frame, spec.labels, change)
    if found is not None:
        values = np.full((size, *found.shape[1:]), np.nan)
        values[rows] = found
    label = make_named_label(spec.task, len(names), spec.several)
    if found is not None and label.numeric:
        doubt = describe_odd_values(spec.labels[0], found)
    return _Label(y, names, values, label.column, doubt)


def _describe_spec(spec: TableSpec, change: Relabel) -> Table:
    """What of a spec decides how the same files are read, as plain values."""
    out: dict[str, Plain] = {
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
    once = {"id_match": sorted(spec.id_match), "duplicates": spec.duplicates,
            "aggregate": dict(spec.aggregate),
            "missing": {c: list(texts) for c, texts in spec.missing.items()}}  # fmt: skip
    out |= {key: value for key, value in once.items() if value}
    if change:
        out["classes"] = [
            {k: list(v) for k, v in change.merge.items()}, list(change.drop), list(change.edges)
        ]  # fmt: skip
    return out


def _hash_tables(asked: Table, frames: Mapping[str, Frame], made: Mapping[str, Features]) -> str:
    """Identity of a data set: how it was read, and the content of every table."""
    options = dict(asked)
    for p, of in made.items():
        options[f"dialect of {p}"] = astuple(frames[p].dialect)
        if of.written:
            options[f"numbers of {p}"] = of.written
    digest = hashlib.sha256(json.dumps(options, sort_keys=True).encode())
    for p in made:
        digest.update(f"\x1f{p}\x1f{frames[p].digest}".encode())
    return digest.hexdigest()


@dataclass(frozen=True)
class _Joined:
    """Tables whose rows are matched by their ids.

    Attributes:
        frames: by party; parties may share one.
        order: the parties, the active one first.
        index: ids by party.
        ids: all ids, the active party's first: the union of rows.
        rows: where each party's rows are in the union.
        respelled: ids that do not match and look alike.
    """

    frames: Mapping[str, Frame]
    order: Sequence[str]
    index: Mapping[str, pd.Index]
    ids: pd.Index
    rows: Mapping[str, NDArray[np.int64]]
    respelled: Sequence[Respelled] = ()

    @property
    def size(self) -> int:
        """Rows of the union."""
        return len(self.ids)

    def find_tables(self, name: str, role: str) -> list[str]:
        """The parties whose table has a column; at least one."""
        found = [p for p in self.order if name in self.frames[p].columns]
        if not found:
            self.frames[self.order[0]].column(name, role)
        return found

    def read_role(self, name: str, role: str) -> NDArray[Any]:
        """The texts of a role column over the union, None where no table has a value."""
        out = np.full(self.size, None, dtype=object)
        for p in self.find_tables(name, role):
            frame, rows = self.frames[p], self.rows[p]
            found = as_texts(frame.columns[name])
            found = pc.utf8_lower(found) if role == "split" else found
            values = np.array(found.to_pylist(), dtype=object)
            before = out[rows]
            clash = [a is not None and b is not None and a != b for a, b in zip(before, values)]
            if any(clash):
                i = clash.index(True)
                got = f"{values[i]!r} in {frame.row(i)} against {before[i]!r}"
                what = f"{role} column {name!r}"
                raise frame.refuse(what, "agree with the other table that has it", got)
            out[rows] = np.where([v is None for v in values], before, values)
        return out

    def read_split(self, name: str) -> NDArray[np.str_]:
        """Side of each row of the union; rows of parties without the column are training rows."""
        sides, what = self.read_role(name, "split"), f"split column {name!r}"
        for p in self.find_tables(name, "split"):
            for i, side in enumerate(sides[self.rows[p]]):
                if side not in ("train", "validation", "test"):
                    got = f"{side!r} in {self.frames[p].row(i)}"
                    rule = "hold 'train', 'validation' or 'test'"
                    raise self.frames[p].refuse(what, rule, got)
        out = np.array(["train" if s is None else s for s in sides])
        if not (out == "test").any():
            raise self.frames[self.order[0]].refuse(what, "mark some rows 'test'", "none")
        return out

    def read_group(self, name: str) -> NDArray[np.int64]:
        """Group number of each row of the union; a row without a value is a group of its own."""
        values = pd.Series(self.read_role(name, "group"), dtype=object)
        codes, known = pd.factorize(values, use_na_sentinel=True)
        alone = codes < 0
        codes = codes.astype(np.int64)
        codes[alone] = len(known) + np.arange(int(alone.sum()))
        return codes


def _join(frames: Mapping[str, Frame], spec: TableSpec, active: str) -> _Joined:
    """Match the rows of all tables by their ids; parties that share a table share the index."""
    order = [active, *(p for p in frames if p != active)]
    made: dict[tuple[int, str], pd.Index] = {}
    for p in order:
        frame, column = frames[p], spec.id_of(p)
        if (id(frame), column) not in made:
            made[id(frame), column] = _read_index(frame, column, spec.id_match)
    index = {p: made[id(frames[p]), spec.id_of(p)] for p in order}
    first = union = index[active]
    every = np.arange(len(first), dtype=np.int64)
    if all(own is first or own.equals(first) for own in index.values()):
        return _Joined(frames, order, index, first, dict.fromkeys(order, every))
    rows = {active: every}
    for p in order[1:]:
        rows[p] = union.get_indexer(index[p]).astype(np.int64)
        new = rows[p] < 0
        rows[p][new] = len(union) + np.arange(int(new.sum()))
        union = union.append(index[p][new]) if new.any() else union
    respelled = find_respelled(
        index, order, {p: int((of < len(first)).sum()) for p, of in rows.items()}
    )
    said = " ".join(describe_respelled(r) for r in respelled)
    if any(r.how == ("rounded",) for r in respelled):
        raise data_error("data", "ids", "have all digits", "rounded ids", said)
    if count_holders(rows).max() != len(order):
        some = "; ".join(f"{frames[p].path}: {format_list(index[p][:3])}" for p in order)
        got = f"no common id ({some})"
        raise data_error("data", "ids", "have values that all tables share", got, said)
    return _Joined(frames, order, index, union, rows, respelled)


def _read_index(frame: Frame, column: str, id_match: Sequence[str]) -> pd.Index:
    """The ids of a table, as they are matched; row numbers where there are none."""
    if not column:
        return pd.Index([str(i) for i in range(frame.rows)], dtype=object)
    ids = read_ids(frame, column)
    return match_ids(frame, column, ids, id_match) if id_match else ids


def _find_left_out(frames: Mapping[str, Frame], spec: TableSpec) -> dict[str, list[str]]:
    """Columns by table that aggregate left out and nobody dropped."""
    found = {f.path.name: [c for c in f.left_out if c not in spec.drop] for f in frames.values()}
    return {file: names for file, names in found.items() if names}


def _describe(joined: _Joined, described: Described, y: NDArray[np.int64]) -> Noticed:
    frames, made = joined.frames, described.made
    every = {c for cols in described.used.values() for c in cols} | set(described.spec.drop)
    every |= {c for p in frames for c in described.spec.taken(p)}
    read = [(p, c, of.kinds[c], why) for p, of in made.items() for c, why in of.doubtful.items()]
    if described.label_doubt:
        label = described.spec.labels[0], described.label_kind, described.label_doubt
        read.append((described.active, *label))
    notes = [f"{frames[p].path.name}: column {c!r} is read as {kind}, but has {why}."
             for p, c, kind, why in read]  # fmt: skip
    notes += [
        f"{of.path.name}: several rows of one id became one; {of.rows} are left."
        for of in {id(f): f for f in frames.values()}.values()
        if of.first_rows is not None
    ]
    return Noticed(
        tables=UserTables(describe_tables(frames, described), count_overlaps(joined.rows, y)),
        unlabelled=int((y < 0).sum()),
        folded={f"{p}.{c}": k for p, of in made.items() for c, k in of.folded.items()},
        unused=sorted({c for f in frames.values() for c in f.columns} - every),
        left_out=_find_left_out(frames, described.spec),
        respelled=[describe_respelled(r) for r in joined.respelled],
        notes=notes,
    )
