"""Results while they are made: the cells of an audit and what attacks measured on them.

A cell is committed in one transaction. What is finished, a (cell, attack) pair, is never recomputed
and never overwritten; an attack that ended in an error is not finished and may be tried again.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from vflsec.audit.record import AuditRecord, read_record, write_record
from vflsec.errors import AUDIT_AGAIN, ConfigError
from vflsec.runtime.typed_values import read_as, write_plain
from vflsec.specs import (
    TURNED,
    AttackSpec,
    CellFacts,
    CellResult,
    CellSpec,
    Claim,
    DefenseSpec,
    LedgerRow,
    Measure,
)
from vflsec.storage.sqlite_file import STORE_NAME, SealedFile, dump_json

__all__ = ["STORE_NAME", "Store"]

MAIN = ""  # the attack key of main-task measures

_TABLES = """
create table if not exists cells (
    key text primary key, spec text not null, status text not null, seconds real not null,
    device text not null, ledger text not null, guarantees text not null, facts text not null);
create table if not exists done (
    cell text not null, attack_key text not null, status text not null,
    primary key (cell, attack_key));
create table if not exists measures (
    cell text not null, attack_key text not null, phase text not null, split text not null,
    metric text not null, target text not null, adversary text not null, attack text not null,
    victim text not null,
    value real, low real, high real, n integer not null, chance real, controls text not null,
    status text not null, reason text not null, notes text not null,
    primary key (cell, attack_key, phase, split, metric, target, adversary));
"""
_MEASURE = [f.name for f in fields(Measure)]
_CELL = "select * from cells where key = ?"
_JSON = ("controls", "notes")
_FLOATS = ("value", "low", "high", "chance")


class Store(SealedFile):
    """Open, or make, the store in a results directory; arguments as of :class:`SealedFile`.

    Raises:
        ConfigError: the directory or the file cannot be used.
    """

    TABLES = _TABLES

    def record(self) -> AuditRecord:
        """What :meth:`keep` kept about the audit.

        Raises:
            ConfigError: no audit was started here, or the record is damaged.
        """
        found = self.meta("audit")
        if found is None:
            raise ConfigError(f"{self.folder}: holds no plan. {AUDIT_AGAIN}")
        try:
            return read_record(found)
        except ValueError as lacks:
            raise self.damaged(f"its record does not have the {lacks} of this version") from None

    def keep(self, record: AuditRecord) -> None:
        """Keep what judging the results later needs."""
        self.set_meta("audit", write_record(record))

    def missing(
        self, cells: Sequence[CellSpec], attacks: Sequence[AttackSpec], *, main: bool = True,
        retry: bool = True,
    ) -> list[tuple[CellSpec, tuple[AttackSpec, ...]]]:  # fmt: skip
        """Cells that must be trained, each with the attacks that are not finished on it.

        Args:
            main: whether the main task counts as missing too.
            retry: whether what ended in an error counts as missing.
        """
        out, trained = [], self._trained()
        for cell in cells:
            done = self._done(cell.key, errors=not retry)
            left = tuple(a for a in attacks if a.key not in done)
            if left or (main and not (MAIN in done and cell.key in trained)):
                out.append((cell, left))
        return out

    def _trained(self) -> set[str]:
        return {str(row[0]) for row in self._rows("select key from cells")}

    def _done(self, cell: str, *, errors: bool = False) -> set[str]:
        query = "select attack_key, status from done where cell = ?"
        rows = self._rows(query, (cell,))
        return {key for key, status in rows if errors or status != "error"}

    def commit(
        self, result: CellResult, attacks: Sequence[AttackSpec], *, main: bool = True
    ) -> None:
        """Keep a finished cell: one transaction, and nothing that was finished changes.

        Args:
            result: what the cell left behind.
            attacks: those it was asked for; one without any measure is kept as an error.
            main: whether its main-task measures are those of the cell.
        """
        by_attack: dict[str, list[Measure]] = {MAIN: [], **{a.key: [] for a in attacks}}
        for measure in result.measures:
            by_attack.setdefault(measure.attack_key, []).append(measure)
        if not main:
            by_attack.pop(MAIN, None)
        for attack in attacks:
            if not by_attack[attack.key]:
                by_attack[attack.key] = [Measure.missing(attack, "error", "no measure came back")]
        with self.transaction():
            self._put_cell(result, replace=main and MAIN not in self._done(result.key))
            done = self._done(result.key)
            for key, measures in by_attack.items():
                if key not in done:
                    self._put_measures(result.key, key, measures)

    def take(
        self, others: Iterable[Store], wanted: Mapping[str, Iterable[str]], record: AuditRecord
    ) -> None:
        """Keep what other stores have finished and this one has not, as it is there, and the record
        of the audit: all of it, or nothing.

        Args:
            others: stores of the same audit.
            wanted: attack keys by cell key.
            record: what judging the results later needs.

        Raises:
            ConfigError: two have finished the same, with other figures.
        """
        with self.transaction():
            for other in others:
                for result in other.results(wanted):
                    self._take(other, result, {MAIN, *wanted[result.key]})
            self.keep(record)

    def _take(self, other: Store, result: CellResult, asked: set[str]) -> None:
        theirs = other._done(result.key) & asked
        tried = other._done(result.key, errors=True) & asked
        ours = self._done(result.key)
        self._put_cell(result, replace=MAIN in theirs and MAIN not in ours)
        for key in tried:
            measures = [m for m in result.measures if m.attack_key == key]
            if key not in ours:
                if key in theirs or key not in self._done(result.key, errors=True):
                    self._put_measures(result.key, key, measures)
            elif key in theirs:
                here = [m for m in self._measures(result.key) if m.attack_key == key]
                if _figures(here) != _figures(measures):
                    raise _differ(self.path, other.path, result, key, measures)

    def refuse(self, cells: Iterable[CellSpec], measure: Measure) -> None:
        """Keep, for each cell, why an attack did not run; an attack that ran stays as it is."""
        with self.transaction():
            for cell in cells:
                if measure.attack_key not in self._done(cell.key):
                    self._put_measures(cell.key, measure.attack_key, [measure])

    def _put_cell(self, result: CellResult, *, replace: bool) -> None:
        verb = "replace" if replace else "ignore"
        made = self._insert(
            verb, "cells",
            (
                result.key, dump_json(asdict(result.spec)), "done", result.seconds, result.device,
                dump_json([asdict(r) for r in result.ledger]),
                dump_json(write_plain(result.guarantees)),
                dump_json(write_plain(result.facts)),
            ),
        )  # fmt: skip
        if made.rowcount > 0:
            self._seal(f"cell {result.key}", self._rows(_CELL, (result.key,)))

    def _put_measures(self, cell: str, attack_key: str, measures: Sequence[Measure]) -> None:
        self._db.execute(
            "delete from measures where cell = ? and attack_key = ?", (cell, attack_key)
        )
        rows = [_row(m) for m in measures]
        columns, marks = ", ".join(_MEASURE), ", ?" * len(_MEASURE)
        query = f"insert into measures (cell, {columns}) values (?{marks})"
        try:
            self._db.executemany(query, [[cell, *row] for row in rows])
        except sqlite3.IntegrityError:
            labels = sorted({m.attack or "main task" for m in measures})
            raise ValueError(f"{', '.join(labels)}: two measures have one identity") from None
        worst = "error" if any(m.status == "error" for m in measures) else "done"
        self._insert("replace", "done", (cell, attack_key, worst))
        self._seal(f"done {cell} {attack_key}", _lasting(map(tuple, rows)))

    def results(self, wanted: Mapping[str, Iterable[str]]) -> list[CellResult]:
        """Finished cells with the measures of the wanted attacks and the main task.

        Args:
            wanted: attack keys by cell key; cells that are not finished are left out.
        """
        out = []
        for key, attacks in wanted.items():
            row = self._cell(key)
            if row is None:
                continue
            measures = self._measures(key, (MAIN, *attacks))
            spec, ledger, guarantees, facts = (json.loads(row[i]) for i in (1, 5, 6, 7))
            out.append(
                CellResult(
                    key, _spec(spec), measures, [LedgerRow(**r) for r in ledger],
                    [read_as(Claim, g) for g in guarantees], read_as(CellFacts, facts),
                    row[3], row[4],
                )
            )  # fmt: skip
        return out

    def _cell(self, key: str) -> tuple[Any, ...] | None:
        """The row of a cell, if it is finished and what vflsec wrote."""
        rows = self._rows(_CELL, (key,))
        if rows:
            self._check_seal(f"cell {key}", rows)
        return rows[0] if rows else None

    def _measures(self, cell: str, wanted: Iterable[str] | None = None) -> list[Measure]:
        query = f"select {', '.join(_MEASURE)} from measures where cell = ? order by rowid"
        of: dict[str, list[tuple[Any, ...]]] = {key: [] for key in wanted or ()}
        for row in self._rows(query, (cell,)):
            key = row[_MEASURE.index("attack_key")]
            if wanted is None or key in of:
                of.setdefault(key, []).append(row)
        done = self._done(cell, errors=True)
        for key, found in of.items():
            if found or key in done:
                self._check_seal(f"done {cell} {key}", _lasting(found))
        return [_measure(row) for found in of.values() for row in found]

    def made_with(self, cells: Iterable[str]) -> list[dict[str, str]]:
        """The versions that these cells were trained with, of those that are finished."""
        facts = [json.loads(row[7]) for row in map(self._cell, cells) if row is not None]
        return [f["versions"] for f in facts if f.get("versions")]

    def unfinished(self, wanted: Mapping[str, Iterable[str]]) -> int:
        """How many wanted (cell, attack) pairs, the main task counted as one, are missing."""
        trained = self._trained()
        return sum(
            len({MAIN, *attacks} - self._done(cell, errors=True)) + (cell not in trained)
            for cell, attacks in wanted.items()
        )

    def count(self, cells: Iterable[str]) -> int:
        """How many of these cells are finished."""
        return sum(MAIN in self._done(c) for c in cells)


_FIGURES = (
    "phase", "split", "metric", "target", "adversary", "status", "value", "low", "high", "n",
)  # fmt: skip


def _figures(measures: Iterable[Measure]) -> set[tuple[Any, ...]]:
    """What tells results apart: the controls too, for the advantage is what is left over them."""
    return {
        (*(getattr(m, name) for name in _FIGURES), dump_json(m.controls), m.notes.get(TURNED))
        for m in measures
    }


def _differ(
    here: Path, there: Path, cell: CellResult, key: str, measures: Sequence[Measure]
) -> ConfigError:
    what = next((m.attack for m in measures if m.attack), "the main task")
    return ConfigError(
        f"{there}: has other figures for {what} of cell {cell.key} (seed {cell.spec.seed}) than "
        f"{here.parent}: altered, or of another kind of machine. Leave one out."
    )


def _row(measure: Measure) -> list[Any]:
    values = {name: getattr(measure, name) for name in _MEASURE}
    for name in _JSON:
        values[name] = dump_json(values[name])
    for name in _FLOATS:
        number = values[name]
        values[name] = None if number is None or not math.isfinite(number) else float(number) + 0.0
    values["n"] = int(values["n"])
    plain = (*_JSON, *_FLOATS, "n")
    return [v if k in plain else str(v) for k, v in values.items()]


def _measure(row: tuple[Any, ...]) -> Measure:
    values = dict(zip(_MEASURE, row, strict=True))
    return Measure(**values | {name: json.loads(values[name]) for name in _JSON})


def _lasting(rows: Iterable[tuple[Any, ...]]) -> list[dict[str, Any]]:
    """Rows without what is empty, so that a column which a later version adds changes no seal."""
    named = (zip(_MEASURE, row, strict=True) for row in rows)
    return [{k: v for k, v in row if v not in (None, "")} for row in named]


def _spec(values: Any) -> CellSpec:
    defenses = tuple(DefenseSpec(**d) for d in values.pop("defenses"))
    return CellSpec(**values, defenses=defenses)
