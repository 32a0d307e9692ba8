"""The strong attacker: on which worlds, and with which settings, each attack is tried beforehand.

Nothing here reads an audited label or seed: a world has the shape of the data
(:mod:`vflsec.data.dataset_shape`) and a seed of its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vflsec.core.rng import derive
from vflsec.data.dataset_shape import describe_shape
from vflsec.data.source import Source
from vflsec.data.split import row_sets
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
