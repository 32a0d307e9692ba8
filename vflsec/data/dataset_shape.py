"""The shape of a data set: sizes and kinds, without a value, a row's label, or a column's name.

What a partner can be taken to know beforehand, and all that a world of the same shape is made of.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from vflsec.data.source import PartyData, Source
from vflsec.data.split import present_rows


def describe_shape(source: Source) -> dict[str, Any]:
    """Plain values that the data set ``alike`` takes for parameters.

    Args:
        source: whose shape.

    Returns:
        ``columns``: by party, the active one first, runs [categories, columns] with 0 categories
        for numbers; ``images``: by party [channels, height, width]; ``rows``: for each standing
        [rows, parties that hold them, side of a fixed split or '', labelled or not]; ``classes``:
        labelled rows of each class, one number where the label is a quantity. Rows that must stay
        together (groups) are not told.
    """
    order = (source.active, *(p for p in source.parties if p != source.active))
    images = {p: d for p, d in source.parties.items() if d.values.ndim > 2}
    labelled = source.y >= 0
    return {
        "columns": {p: [] if p in images else _runs(source.parties[p]) for p in order},
        "images": {p: [int(k) for k in d.values.shape[1:]] for p, d in images.items()},
        "rows": list(_standing(source, order)),
        "classes": np.bincount(source.y[labelled], minlength=len(source.class_names)).tolist(),
    }


def _runs(data: PartyData) -> list[list[int]]:
    """Columns in their order, neighbours of one kind together: [categories, columns]."""
    sizes = (0 if c is None else len(c) for c in data.categories)
    return [[size, len(list(of))] for size, of in itertools.groupby(sizes)]


def _standing(source: Source, order: tuple[str, ...]) -> Iterator[list[Any]]:
    n, present = len(source.y), present_rows(source)
    split = np.full(n, "") if source.split is None else np.char.strip(source.split.astype(str))
    names, side = np.unique(split, return_inverse=True)
    facts = np.stack([*(present[p] for p in order), source.y >= 0, side], axis=1).astype(np.int64)
    for found, count in zip(*np.unique(facts, axis=0, return_counts=True), strict=True):
        *there, labelled, at = found.tolist()
        holders = [p for p, held in zip(order, there, strict=True) if held]
        yield [int(count), holders, str(names[at]), bool(labelled)]
