"""Makes a trace of boosted trees from a table of three columns: tree, row, leaf.

That is what a party without labels learns in FATE, SecretFlow and XGBoost, and what it can write
down from its own logs or model file. Row k of the trace is the k-th row id in order (numbers by
size, text by letters). Leaves are named as anybody likes; an empty one or -1 is one that the party
was not told.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vflsec.core import check
from vflsec.data.read_table import Frame, as_texts, read_frame
from vflsec.errors import ConfigError
from vflsec.plugins import registry
from vflsec.trace.limits import check_new
from vflsec.trace.record_api import record
from vflsec.trace.truth import write_truth
from vflsec.trees.profiles import PROFILES

COLUMNS = ("tree", "row", "leaf")
UNKNOWN = ("", "-1")
"""Leaves that the party was not told."""
UNREGISTERED = ("none", "other")
"""What protected a run that no registered defense did: nothing, or something else."""

Texts = NDArray[np.str_]


class Beside(NamedTuple):
    """What else is known, each a CSV file or None.

    Attributes:
        known: columns row and label, of rows whose labels the party was given.
        columns: row and the party's own columns, numbers.
        truth: row and label, at the label owner's.
    """

    known: Path | None = None
    columns: Path | None = None
    truth: Path | None = None


def import_leaves(
    leaves: Path, out: Path, beside: Beside, *, party: str = "host", dataset: str = "",
    profile: str = "", defense: str = "none", seed: int = 0,
) -> Path:  # fmt: skip
    """Write a trace to `out`, with a truth if there is one; returns the trace's folder.

    Args:
        leaves: CSV with the columns tree, row and leaf, each row once in each tree.
        out: a new folder.
        beside: further files.
        party: the name of the party that saw the leaves.
        dataset, profile, defense, seed: what was trained, for reports; runs that differ in the seed
            only are repetitions. The profile is one of :data:`vflsec.trees.profiles.PROFILES`, or
            ""; the defense ``NAME`` or ``NAME=STRENGTH`` of one that is registered, or one of
            :data:`UNREGISTERED`.

    Raises:
        DataError: a file is no table with these columns.
        ConfigError: a row is missing or doubled, or is no number; names file, row and tree. Or
            there is no such profile or defense, or it has no such strength.
    """
    check_new(out)
    check.one_of("--profile", profile, ("", *PROFILES))
    name, strength = _read_defense(defense)
    tree, row, leaf = read_texts(leaves, COLUMNS)
    ids, at = _order(row)
    trees, of = _order(tree)
    codes = _fill(str(leaves), (trees, ids), (of, at), leaf)
    known, truth, classes = _read_labels(beside, ids)
    share = None if truth is None else np.bincount(truth[1], minlength=classes) / len(truth[1])
    with record(
        out, party=party, role="passive", rows=len(ids),
        peer="guest" if party != "guest" else "label_owner",
        classes=classes, known=known,
        columns=None if beside.columns is None else _read_columns(beside.columns, ids),
        prior=None if share is None else share.tolist(),
        run={"dataset": dataset, "algorithm": name_trees(profile),
             "defense": name, "strength": strength, "seed": seed},
    ) as recording:  # fmt: skip
        for t in range(len(trees)):
            told = np.flatnonzero(codes[t])
            if len(told):
                recording.tell(
                    "partition", codes[t][told].astype(np.float32), told, sent=False, epoch=t,
                    step=t,
                )  # fmt: skip
    if truth is not None:
        write_truth(out, *truth)
    return out


def name_trees(profile: str) -> str:
    """What a trace of leaves calls its algorithm, "" for a profile that is not known."""
    return f"trees {profile}".strip()


def _read_defense(text: str) -> tuple[str, float | None]:
    """The registered name of a defense, or one of :data:`UNREGISTERED`, and its strength."""
    name, _, number = text.partition("=")
    if text in UNREGISTERED:
        return name, None
    try:
        made = registry.defenses.create(name)
    except ConfigError as why:
        raise ConfigError(f"--defense: {why} Write 'other' for none of them.") from None
    if not number:
        return str(made.name), None
    try:
        strength = float(number)
    except ValueError:
        raise check.fail("--defense: strength", "a number", number) from None
    if not made.strengths:
        raise check.fail("--defense", f"{made.name} (without strength)", text)
    made.check_strength(strength)
    return str(made.name), strength


def read_texts(path: Path, columns: Sequence[str]) -> list[Texts]:
    """These columns of a table as texts without spaces around them, '' where there is none.

    Raises:
        DataError: the file cannot be read, or lacks a column or every row.
    """
    return _list_texts(read_frame(path), columns)


def _list_texts(frame: Frame, columns: Sequence[str]) -> list[Texts]:
    arrays = [as_texts(frame.column(c, "a")).fill_null("") for c in columns]
    return [np.array(array.to_pylist(), dtype=np.str_) for array in arrays]


def _order(texts: Texts) -> tuple[Texts, NDArray[np.int64]]:
    """Distinct texts in order, whole numbers by size, and the place of each."""
    values, at = np.unique(texts, return_inverse=True)
    if np.char.isdecimal(values).all() and max(map(len, values), default=0) < 19:
        order = np.argsort(values.astype(np.int64), kind="stable")
        values, at = values[order], np.argsort(order)[at]
    return values, at.reshape(-1)


def _fill(
    where: str, names: tuple[Texts, Texts], at: tuple[NDArray[np.int64], NDArray[np.int64]],
    leaf: Texts,
) -> NDArray[np.int64]:  # fmt: skip
    """The leaf of each row in each tree, (T, N), numbered from 1; 0 for one that was not told."""
    (trees, ids), (of, row) = names, at
    counts = np.bincount(of * len(ids) + row, minlength=len(trees) * len(ids))
    wrong = counts != 1
    if wrong.any():
        t, i = divmod(int(np.flatnonzero(wrong)[0]), len(ids))
        got = f"{counts[t * len(ids) + i]} ({int(wrong.sum())} in all are wrong)"
        what = f"{where}: lines of row {ids[i]} in tree {trees[t]}"
        raise ConfigError.must(what, "be 1", got, "Write one, with -1 if its leaf is not known.")
    out = np.zeros((len(trees), len(ids)), dtype=np.int64)
    _, code = np.unique(leaf, return_inverse=True)
    out[of, row] = np.where(np.isin(leaf, UNKNOWN), 0, code.reshape(-1) + 1)
    return out


def _find(path: Path, row: Texts, ids: Texts) -> NDArray[np.int64]:
    """Places of row ids."""
    places = {name: k for k, name in enumerate(ids)}
    unknown = next((r for r in row if r not in places), None)
    if unknown is not None:
        raise ConfigError(f"{path}: row {unknown} is in no tree of the leaves.")
    values, count = np.unique(row, return_counts=True)
    if (count > 1).any():
        raise ConfigError.must(path, "name each row once", f"{values[count > 1][0]} twice")
    return np.array([places[r] for r in row], dtype=np.int64)


Labels = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Places of rows and their class numbers from 0."""


def _read_labels(beside: Beside, ids: Texts) -> tuple[Labels | None, Labels | None, int]:
    """Known and true labels by their order over both, and how many classes there are at least."""
    rows: list[NDArray[np.int64]] = []
    labels: list[Texts] = []
    for path in filter(None, (beside.known, beside.truth)):
        row, label = read_texts(path, ("row", "label"))
        if (label == "").any():
            raise ConfigError.must(f"{path}: row {row[label == ''][0]}", "have a label", "none")
        rows.append(_find(path, row, ids))
        labels.append(label)
    if len(labels) > 1 and len(odd := np.setdiff1d(labels[0], labels[1])):
        what = f"{beside.known}: labels"
        raise check.fail(what, f"among those in {beside.truth}", str(odd[0]))
    names, codes = _order(np.concatenate([np.empty(0, np.str_), *labels]))
    found = iter(zip(rows, np.split(codes, np.cumsum([len(x) for x in labels[:-1]])), strict=False))
    known = None if beside.known is None else next(found)
    return known, None if beside.truth is None else next(found), max(len(names), 2)


def _read_columns(path: Path, ids: Texts) -> NDArray[np.float64]:
    """Own columns (N, d) in the order of the trace's rows."""
    frame = read_frame(path)
    names = [c for c in frame.columns if c != "row"]
    row, *columns = _list_texts(frame, ("row", *names))
    at = _find(path, row, ids)
    if len(at) < len(ids):
        lacking = np.setdiff1d(np.arange(len(ids)), at)[0]
        raise ConfigError.must(path, "name every row", f"no {ids[lacking]}")
    out = np.empty((len(ids), len(columns)))
    for j, texts in enumerate(columns):
        try:
            out[at, j] = texts.astype(np.float64)
        except ValueError:
            import pandas as pd

            odd = int(pd.to_numeric(pd.Series(texts), errors="coerce").isna().argmax())
            where = f"{path}: column {names[j]!r}, row {row[odd]}"
            remedy = "Number its categories and fill in what is missing, or leave the column out."
            raise check.fail(where, "a finite number", str(texts[odd])[:40], remedy) from None
    if not np.isfinite(out).all():
        i, j = np.argwhere(~np.isfinite(out))[0]
        raise check.fail(f"{path}: column {names[j]!r}, row {ids[i]}", "a finite number", out[i, j])
    mean, spread = out.mean(axis=0), out.std(axis=0)
    found: NDArray[np.float64] = (out - mean) / np.where(spread > 0, spread, 1.0)
    return found
