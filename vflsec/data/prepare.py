"""Make a Task from a Source for one seed: split, then fit what must be fitted on training rows."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vflsec.core import check
from vflsec.core.task import Task
from vflsec.core.view import Schema
from vflsec.data.odd_values import refuse_flattened
from vflsec.data.preprocess import SCALES, Scale, prepared_columns
from vflsec.data.source import PartyData, Source
from vflsec.data.split import present_rows, row_sets, shuffled_rows
from vflsec.errors import write_setting

_images: dict[tuple[int, int], Tensor] = {}


def make_task(
    source: Source, seed: int, *, validation: float = 0.15, test: float = 0.25,
    labelled: int | None = None, aligned: float | int | None = None, shuffle_labels: bool = False,
    scale: Scale = "zscore",
) -> Task:  # fmt: skip
    """The learning problem of one seed.

    Sizes of all row sets are the same for every seed, so tasks can be stacked. Only rows that all
    parties hold and that are labelled are validated or tested on. A fixed `source.split` decides
    the test rows (and the validation rows, if it names any); `source.group` keeps groups on one
    side (see :func:`vflsec.data.split.row_sets` for what is trimmed).

    Args:
        source: the data set.
        seed: of the split, the shuffled labels and the choice of labelled and aligned rows.
        validation: share of the eligible rows, in (0, 1); with `labelled` at most that many rows,
            but at least two a class.
        test: share of the eligible rows, in (0, 1); not used with a fixed split.
        labelled: how many training rows keep their label, stratified by class. Then the active
            party has no other labels: ``active_labelled`` equals ``sets["labelled"]``.
        aligned: share (float in (0, 1]) or number (int) of the overlapping training rows that
            count as aligned. The others stay in ``local:PARTY`` of every party, which hold them
            without knowing that they match, and keep their labels unless `labelled` is given.
            A smaller choice is a subset of a larger one.
        shuffle_labels: give the active party labels that are permuted over the labelled rows (the
            null world); the truth, against which everything is scored, stays as it is.
        scale: ``zscore`` or ``rank``, see :func:`vflsec.data.preprocess.prepared_columns`.

    Raises:
        ConfigError: an option is out of range.
        DataError: the data set cannot be split so.
    """
    check.one_of("data: scale", scale, SCALES)
    n, y, present = len(source.y), source.y, present_rows(source)
    rows = row_sets(
        source, seed, validation=validation, test=test, labelled=labelled, aligned=aligned
    )
    truth: NDArray[Any] = y.astype(np.int64)
    _refuse_flattened(source, scale)
    if source.values is not None:
        truth = source.label.prepare(source.values, rows.labelled)
    given = None
    if shuffle_labels:
        everyone = np.logical_and.reduce(list(present.values()))
        given = truth[shuffled_rows(source, everyone, seed)]
    parties = (source.active, *(p for p in source.parties if p != source.active))
    sets = {
        "labelled": rows.labelled,
        "aligned": rows.aligned,
        "validation": rows.validation,
        "test": rows.test,
    }
    for p in parties:
        sets[f"local:{p}"] = np.flatnonzero(rows.train & present[p])
    own = np.flatnonzero(rows.train & present[source.active] & (y >= 0))
    return Task(
        name=source.name, parties=parties,
        x={p: _inputs(source.parties[p], n, rows.train, scale) for p in parties},
        present={p: torch.from_numpy(present[p]) for p in parties},
        schema={p: build_schema(source.parties[p]) for p in parties},
        y=torch.from_numpy(y.astype(np.int64)), label=source.label,
        sets={k: torch.from_numpy(v.astype(np.int64)) for k, v in sets.items()},
        active_labelled=torch.from_numpy(own if labelled is None else rows.labelled),
        ids=source.ids, class_names=tuple(source.class_names),
        given=None if given is None else torch.from_numpy(given),
        values=None if source.values is None else torch.from_numpy(truth),
        people=None if source.group is None else torch.from_numpy(source.group),
        fixed=source.fixed,
        missing=_find_missing(source.parties, n),
    )  # fmt: skip


def _refuse_flattened(source: Source, scale: Scale) -> None:
    """Refuse numbers of which scaling leaves nothing, whichever rows a seed trains on.

    Raises:
        DataError: there are some.
    """
    if source.values is not None and source.label.scaled:
        name = source.class_names[0]
        refuse_flattened(name, source.values, f"label {name!r}")
    other = f"Or keep their order alone: {write_setting('scale', 'rank')}."
    for party, data in source.parties.items() if scale == "zscore" else ():
        for i, kind in enumerate(data.categories if data.values.ndim == 2 else ()):
            if kind is None:
                name = data.names[i] if data.names else str(i)
                what = f"column {name!r} of {party}"
                refuse_flattened(name, data.values[:, i], what, other)


def _inputs(data: PartyData, n: int, train: NDArray[np.bool_], scale: Scale) -> Tensor:
    """Rows of one party over the union, (N, ...) float32, zero where it lacks the row."""
    if data.values.ndim > 2:
        return _shared_images(data, n)
    x = np.zeros((n, data.values.shape[1]), dtype=np.float32)
    x[data.rows] = prepared_columns(data, train[data.rows], scale)
    return torch.from_numpy(x)


def _find_missing(parties: Mapping[str, PartyData], n: int) -> dict[str, Tensor]:
    """Which numbers are missing, (N, d) bool over the union, of parties that lack some."""
    out = {}
    for name, data in parties.items():
        numeric = [] if data.values.ndim > 2 else [c is None for c in data.categories]
        if any(numeric) and (gaps := np.isnan(data.values) & numeric).any():
            out[name] = torch.zeros(n, gaps.shape[1], dtype=torch.bool)
            out[name][torch.from_numpy(data.rows)] = torch.from_numpy(gaps)
    return out


def _shared_images(data: PartyData, n: int) -> Tensor:
    """Images over the union: one tensor for all seeds, for nothing is fitted on them."""
    key = (id(data.values), n)
    if key not in _images:
        x = np.zeros((n, *data.values.shape[1:]), dtype=np.float32)
        x[data.rows] = data.values
        _images[key] = torch.from_numpy(x)
        weakref.finalize(data.values, _images.pop, key, None)
    return _images[key]


def build_schema(data: PartyData) -> Schema:
    """The layout of a party's prepared rows."""
    if data.values.ndim > 2:
        return Schema((), (), tuple(data.values.shape[1:]))
    sizes = tuple(0 if c is None else len(c) + 1 for c in data.categories)
    return Schema(tuple(data.names), sizes, (data.values.shape[1],))
