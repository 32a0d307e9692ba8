"""The strong attacker: on which worlds, and with which settings, each attack is tried beforehand.

Nothing here reads an audited label or seed: a world has a seed of its own and the shape of the
data: sizes and kinds, without a value, a row's label, or a column's name. A partner can be taken
to know these beforehand.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from vflsec.core.rng import derive
from vflsec.data.source import PartyData, Source
from vflsec.data.split import present_rows, row_sets
from vflsec.data.table_facts import UserTables
from vflsec.errors import VflsecError
from vflsec.plan.values import DataInfo, Setting
from vflsec.plugins import registry
from vflsec.runtime.plain_values import Table
from vflsec.specs import Params, hash_value

STRONG = "strong"

WORLDS = 3
"""Worlds that every setting is tried on."""

_FIRST = 2**62 + 1  # above every seed that a scenario may name

SEEDS = tuple(_FIRST + derive(0, "attacker", i) % (2**62 - 1) for i in range(WORLDS))
"""Seeds of the worlds and of the trainings on them."""

Chosen = Mapping[tuple[str, str, int], Sequence[Params]]
"""Settings that join the one that is written: by data set, title of the algorithm and number of the
attack's section."""


def list_alternatives(name: str, written: Params) -> list[Params]:
    """Other settings of an attack than the one that is written, whose keys all of them keep.

    Args:
        name: registered.
        written: hyper-parameters of the scenario.
    """
    out: list[Params] = []
    seen = [_whole(name, written)]
    for tried in registry.attacks.get(name).tries:  # type: ignore[attr-defined]
        params = {**tried, **written}
        try:
            whole = _whole(name, params)
        except VflsecError:
            continue  # not together with what is written
        if whole not in seen:
            seen.append(whole)
            out.append(params)
    return out


def _whole(name: str, params: Params) -> str:
    """All hyper-parameters as text: what tells settings apart."""
    return json.dumps(registry.attacks.create(name, params).params(), sort_keys=True, default=str)


def make_world(
    info: DataInfo, source: Source, load: Callable[[Table, int, Path], Source],
    base: Path,
) -> tuple[DataInfo | None, str]:  # fmt: skip
    """A data set of worlds of the shape of `source`, divided like it; or None, and why not.

    Args:
        info, source: of the audited data.
        load: as of `vflsec.data.load.load_source`.
        base: folder that relative paths start from.
    """
    if source.labels:
        return None, "it has several labels."
    split = {k: v for k, v in info.split.items() if k != "shuffle_labels"}
    shape = describe_shape(source)
    bare = {**shape, "columns": dict.fromkeys(shape["columns"], ()), "images": {}}
    sizes: dict[str, Any] = {k: v for k, v in split.items() if k != "scale"}
    try:
        for seed in SEEDS:  # whether rows can be divided does not depend on the columns
            row_sets(load({"name": "alike", "params": bare}, seed, base), seed, **sizes)
    except VflsecError as error:
        return None, str(error)
    section = {"name": "alike", "params": shape, **split}
    return replace(
        info,
        section=section,
        digest=hash_value(shape),
        tables=UserTables(),
        missing={},
    ), ""


def note(tried: Sequence[Setting], trainings: int) -> str:
    """What a reader of the plan should know of it."""
    if not tried:
        return "attacker strong: no attack has other settings."
    names = dict.fromkeys(t.spec.name for t in tried)
    settings = {t.spec.label for t in tried}
    return (
        f"attacker strong: {len(settings)} settings of {', '.join(names)} are tried on {WORLDS} "
        f"drawn worlds ({trainings} trainings); better ones join."
    )


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
