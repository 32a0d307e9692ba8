"""What a reader should know about tables before training on them: what is missing or left out.

An empty cell, NaN and the other spellings of :data:`vflsec.data.read_table.MISSING` are a missing
value, never an error: a missing number becomes the mean of its column over the training rows, and a
missing category a code of its own (:mod:`vflsec.data.preprocess`). They are counted here, so that
nobody trains on gaps unawares. An infinite number has no such meaning and is an error.
"""

from __future__ import annotations

import itertools
import shlex
import unicodedata
from collections.abc import Sequence

import numpy as np

from vflsec.data.duplicates import count_duplicates
from vflsec.data.label_leakage import (
    find_groups,
    find_telling_columns,
    find_telling_ids,
    find_telling_rows,
)
from vflsec.data.number_formats import read_number
from vflsec.data.odd_values import find_constants
from vflsec.data.people import find_people
from vflsec.data.profile import overlap_sentence
from vflsec.data.source import Source
from vflsec.errors import add_option, write_drop, write_setting

_MOST = 12


def count_missing(source: Source) -> dict[str, dict[str, int]]:
    """{party: {column: rows without a value}} of the columns that miss some."""
    out = {}
    for party, data in source.parties.items():
        if data.names and data.values.ndim == 2:
            counts = np.isnan(data.values).sum(axis=0)
            found = {c: int(k) for c, k in zip(data.names, counts, strict=True) if k}
            if found:
                out[party] = found
    return out


def list_warnings(source: Source) -> list[str]:
    """One sentence for each thing that was read otherwise than a reader may expect."""
    out = []
    if source.label_holder:
        out.append(f"{source.active} holds labels only.")
    missing = [
        f"at {party}, of {len(source.parties[party].rows)} rows: "
        f"{_listed([f'{c} {k}' for c, k in counts.items()])}"
        for party, counts in count_missing(source).items()
    ]
    if missing:
        out.append(
            f"missing values {'; '.join(missing)}. Missing numbers are set to the column's mean "
            "(trees and scorecards learn from them as missing); missing categories are a category "
            "of their own."
        )
    out += find_weaknesses(source)
    facts = source.facts
    for table in facts.tables.tables:
        if table.read_as not in ("", "Parquet"):
            out.append(f"{table.file} is read as {table.read_as}.")
    out += filter(None, [overlap_sentence(facts.tables.overlap), *facts.respelled])
    out += facts.notes
    folded = [f"{c} {k}" for c, k in facts.folded.items()]
    if folded:
        out.append(f"rare categories folded into one, by column: {_listed(folded)}.")
    if facts.unused:
        out.append(f"columns that nobody uses: {_listed(facts.unused)}.")
    if facts.unlabelled:
        out.append(f"{facts.unlabelled} of {len(source.y)} rows have no label.")
    return out


def find_weaknesses(source: Source) -> list[str]:
    """What makes an audit say little: classes that are one, columns that tell the label alone."""
    alike: dict[str | float, list[str]] = {}
    for name in source.class_names:
        alike.setdefault(_folded(str(name)), []).append(repr(str(name)))
    out = [
        f"classes {_listed(names)} differ in spelling only: are they one? Use merge_classes."
        for names in alike.values()
        if len(names) > 1
    ]
    out += [*_find_constants(source), *_find_held_twice(source)]
    out += [
        f"{file}: columns that aggregate does not name are left out, and nothing is audited of "
        f"them: {_listed(names)}. Name them too: {add_option('--aggregate COLUMN=first')}."
        for file, names in source.facts.left_out.items()
    ]
    equal, rows = count_duplicates(source)
    if equal:
        out.append(
            f"{equal} of {rows} rows equal another one in every column: one person under two ids? "
            "Then figures are too high. Keep one row of each, or name the person's column "
            "(data.group)."
        )
    groups = find_groups(source)
    for (party, label), names in groups.items():
        what = label or "the label"
        out.append(
            f"Each value of {_listed(names)} of {party} goes with one value of {what} in several "
            "rows: rows of one person? Then figures are too high. Keep them together: "
            f"{write_setting('group', names[0], f'--group {shlex.quote(names[0])}')}."
        )
    for (party, label), people in find_people(source).items():
        for name, (a, b) in people.items():
            if name not in groups.get((party, label), ()):
                out.append(
                    f"Most values of {name} of {party} go with one value of {a} and one of {b} in "
                    f"several rows, which are alike in {label or 'the label'} too: rows of one "
                    "person? Then figures are too high. Keep them together: "
                    f"{write_setting('group', name, f'--group {shlex.quote(name)}')}."
                )
    for (party, label), found in find_telling_columns(source, groups).items():
        which = _listed([f"{c} (AUC {v:.3f})" for c, v in found.items()])
        what, of = (label, f"of {label} ") if label else ("the label", "")
        so = (
            "The model then hardly needs other parties"
            if party == source.active
            else f"Then no leak {of}to {party} can be found"
        )
        out.append(
            f"{which} of {party} reveal{'s' if len(found) == 1 else ''} {what} alone: a copy of "
            f"it, or known only after it? {so}. If it is no feature, leave it out: "
            f"{write_drop([*found])}."
        )
    return [*out, *_without_a_message(source)]


def _find_held_twice(source: Source) -> list[str]:
    """Columns that two parties hold under one name, equal in every row they share."""
    out = []
    for (a, one), (b, two) in itertools.combinations(source.parties.items(), 2):
        if one.values.ndim != 2 or two.values.ndim != 2:
            continue
        _, i, j = np.intersect1d(one.rows, two.rows, return_indices=True)
        held = []
        for name in dict.fromkeys(n for n in one.names if n in two.names):
            x, y = (t.values[at, t.names.index(name)] for t, at in ((one, i), (two, j)))
            if np.array_equal(x, y, equal_nan=True) and len(np.unique(x)) > 1:
                held.append(name)
        if held:
            out.append(
                f"{a} and {b} hold the same values of {_listed(held)}, so neither leaks these to "
                f"the other. Leave out what is an id or no feature: {write_drop(held)}."
            )
    return out


def _find_constants(source: Source) -> list[str]:
    """Parties whose columns, and columns of users' tables whose rows, are all alike."""
    out = []
    for party, data in source.parties.items():
        names = find_constants(data)
        if names and len(names) == data.values.shape[1]:
            out.append(f"No column of {party} has two different values. Check its table.")
        elif names and source.facts.tables.tables:
            out.append(
                f"{_listed(names)} of {party} ha{'s' if len(names) == 1 else 've'} one value, or "
                "none, in all rows: were values lost in the export? If not, set "
                f"{write_drop(names)}."
            )
    return out


def _without_a_message(source: Source) -> list[str]:
    """Ids, and orders of rows in users' tables, that tell the label: no attack reads these."""
    tables = source.facts.tables.tables
    out = []
    if any(c.role == "id" for t in tables for c in t.columns):
        for label in find_telling_ids(source):
            out.append(
                f"Sorted by id, rows of one class of {label or 'the label'} stand together: ids "
                "reveal labels without any message, and no attack reads them. Give rows ids "
                "without meaning."
            )
    if len(tables) > 1:
        files = {p: t.file for t in tables for p in t.parties}
        for party, label in find_telling_rows(source):
            out.append(
                f"Rows of one class of {label or 'the label'} stand together in "
                f"{files[party]}: their order reveals labels to {party} without any message, and "
                "no attack reads it. Shuffle what you give out."
            )
    return out


def _folded(name: str) -> str | float:
    """What a class is called but for case, blanks, invisible signs and ways to write a number."""
    shown = "".join(
        c for c in unicodedata.normalize("NFKC", name) if unicodedata.category(c) != "Cf"
    )
    number = read_number(shown.strip(), ".")
    return " ".join(shown.casefold().split()) if number is None else number


def _listed(parts: Sequence[str]) -> str:
    more = len(parts) - _MOST
    return ", ".join(parts[:_MOST]) + (f" and {more} more" if more > 0 else "")
