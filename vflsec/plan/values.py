"""A plan as values: data sets, groups of cells with their attacks, refusals, pieces of work."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from vflsec.audit.exposure import Protocol
from vflsec.data.load import SPLIT_KEYS
from vflsec.data.table_facts import UserTables
from vflsec.label import Label, make_label
from vflsec.runtime.plain_values import Table
from vflsec.runtime.typed_values import write_plain
from vflsec.specs import AttackSpec, CellSpec

TUNING = "tuning"
"""Role of the groups whose trainings are on drawn worlds; no result of an audit."""

_SHOWN = ("name", "parties", "classes", "rows", "missing")


@dataclass(frozen=True)
class DataInfo:
    """What planning needs to know of a data set.

    Attributes:
        name: shown in reports; different for every data section of an audit.
        section: the ``[data]`` section: what is not default.
        parties: names, the active party first.
        classes, rows: sizes; 1 class for a quantity and 0 for several labels.
        labels: their names where a row has several at once.
        labelled: training rows with a label, at least one fewer than which may be granted; 0 if
            that cannot be told before training.
        rarest: those of the rarest class, of any label; 0 likewise, and for a quantity.
        spare: rows that can stand in for training rows that membership leaves out; None where seeds
            draw the test rows, so that it need not.
        digest: of the content.
        missing: {party: {column: rows without a value}}.
        tables: of the user, see :mod:`vflsec.data.table_facts`.
        label_holder: whether the active party has labels and no column.
        width: numbers of a prepared row of the party that has most, categories one by one.
    """

    name: str
    section: Table
    parties: tuple[str, ...]
    classes: int
    rows: int
    digest: str
    missing: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    labelled: int = 0
    rarest: int = 0
    spare: int | None = None
    tables: UserTables = field(default_factory=UserTables)
    label_holder: bool = False
    labels: tuple[str, ...] = ()
    width: int = 0

    @property
    def label(self) -> Label:
        """What kind of label it is."""
        return make_label(self.classes, self.labels)

    @property
    def source(self) -> Table:
        """What `load_source` gets: the section without the options of the split."""
        return {k: v for k, v in self.section.items() if k not in SPLIT_KEYS}

    @property
    def split(self) -> dict[str, Any]:
        """What `make_task` gets beside the source and the seed."""
        return {k: v for k, v in self.section.items() if k in SPLIT_KEYS}

    @property
    def active(self) -> str:
        """The party that holds the labels."""
        return self.parties[0]

    @property
    def passive(self) -> tuple[str, ...]:
        """The other parties."""
        return self.parties[1:]


@dataclass(frozen=True)
class Group:
    """Cells of one cohort with the attacks that are made on each of them.

    Attributes:
        role: ``audit``, ``reference``, ``control``, or ``tuning``: on a drawn world of the shape of
            the data, to find settings for a strong attacker.
        data: the data set.
        cells: differ in seed and strengths only.
        attacks: those that can run.
        main: False if an active attacker changes the training, so that its main-task figures are
            not those of the cell.
        title: of the algorithm in results; tells sections apart that share its name.
    """

    role: str
    data: DataInfo
    cells: tuple[CellSpec, ...]
    attacks: tuple[AttackSpec, ...] = ()
    main: bool = True
    title: str = ""


@dataclass(frozen=True)
class Refused:
    """An attack that cannot run on some cells.

    Attributes:
        status: ``not-observable`` or ``not-applicable``.
        reason: in words, naming both sides.
        target: what the attack would have guessed.
        victims: parties whose data that is.
        cells: keys of the cells concerned.
    """

    role: str
    dataset: str
    algorithm: str
    attack: AttackSpec
    status: str
    reason: str
    target: str
    victims: tuple[str, ...]
    cells: tuple[str, ...]


@dataclass(frozen=True)
class Setting:
    """One setting of an attack that a strong attacker tries on drawn worlds.

    Attributes:
        dataset, algorithm: whose shape the worlds have; title of the algorithm.
        section: number of the attack's section in the scenario.
        written: whether this is the setting that stands there.
        spec: the attack.
        cells: keys of the trainings that it is tried on, all of one cohort.
    """

    dataset: str
    algorithm: str
    section: int
    written: bool
    spec: AttackSpec
    cells: tuple[str, ...]


@dataclass(frozen=True)
class Encryption:
    """What a defense of a group costs on top.

    Attributes:
        dataset, algorithm, defense: where.
        computed: whether ciphertexts are made, or only counted.
        seconds: by operation, of one batch.
        bytes: of ciphertexts of one batch.
        per_epoch, in_all: batches of an epoch, and of all trainings.
    """

    dataset: str
    algorithm: str
    defense: str
    computed: bool
    seconds: Mapping[str, float]
    bytes: int
    per_epoch: int
    in_all: int


@dataclass(frozen=True)
class Price:
    """About what a plan costs, see `vflsec.plan.estimate`.

    Attributes:
        trainings, attacks: how many.
        steps: of optimisers.
        seconds: of one CPU thread; of it training, controls and encryption.
        ciphertext_bytes: sent in all.
        encryption: what it costs, group by group.
        views_bytes: what ``--keep-views`` would keep, 0 where it is refused.
        memory_bytes: about what is needed at once.
    """

    trainings: int = 0
    steps: int = 0
    attacks: int = 0
    seconds: float = 0.0
    training_seconds: float = 0.0
    control_seconds: float = 0.0
    encryption_seconds: float = 0.0
    ciphertext_bytes: int = 0
    encryption: tuple[Encryption, ...] = ()
    views_bytes: int = 0
    memory_bytes: int = 0


@dataclass(frozen=True)
class Plan:
    """What an audit will do.

    Attributes:
        name, scenario_hash, confidence: of the scenario.
        groups: in the order they run.
        refused: attacks that cannot run.
        notes: anything else a reader should know before starting.
        cost: an estimate.
        base: folder that relative paths start from.
        visibility: what stays visible under each stack of defenses, see `vflsec.plan.planner`.
        tried: settings that are tried beforehand, in the groups of role ``tuning``.
    """

    name: str
    scenario_hash: str
    confidence: float
    groups: tuple[Group, ...]
    refused: tuple[Refused, ...]
    notes: tuple[str, ...] = ()
    cost: Price = field(default_factory=Price)
    base: Path = field(default_factory=Path)
    visibility: tuple[Protocol, ...] = ()
    tried: tuple[Setting, ...] = ()

    @property
    def cells(self) -> dict[str, str]:
        """Role of every cell, by key."""
        return {c.key: g.role for g in self.groups for c in g.cells}

    def to_json(self) -> dict[str, Any]:
        """The plan as plain values."""
        return {
            "name": self.name,
            "scenario_hash": self.scenario_hash,
            "confidence": self.confidence,
            "data": [
                {k: getattr(d, k) for k in _SHOWN} | write_plain(d.tables)
                for d in {g.data.name: g.data for g in self.groups if g.role == "audit"}.values()
            ],
            "groups": [
                {
                    "role": g.role,
                    "dataset": g.data.name,
                    "algorithm": g.title,
                    "params": dict(g.cells[0].params),
                    "defenses": [asdict(d) | {"strength": None} for d in g.cells[0].defenses],
                    "strengths": sorted(
                        {
                            tuple(d.strength for d in c.defenses if d.strength is not None)
                            for c in g.cells
                        }
                    ),
                    "seeds": sorted({c.seed for c in g.cells}),
                    "cells": [c.key for c in g.cells],
                    "attacks": [asdict(a) | {"key": a.key} for a in g.attacks],
                    "main": g.main,
                }
                for g in self.groups
            ],
            "refused": [asdict(r) for r in self.refused],
            "notes": list(self.notes),
            "cost": write_plain(self.cost),
            "visibility": write_plain(self.visibility),
        }


@dataclass(frozen=True)
class Work:
    """One call of the trainer: cells that share a cohort and the attacks they lack.

    Attributes:
        data, cells, attacks: which.
        main: as in :class:`Group`.
        role: of the group.
        kept: the attacks are made on kept views, without training.
        why: labels of attacks that could have been, and why not.
    """

    data: DataInfo
    cells: tuple[CellSpec, ...]
    attacks: tuple[AttackSpec, ...]
    main: bool
    role: str = "audit"
    kept: bool = False
    why: tuple[tuple[str, str], ...] = ()

    @property
    def title(self) -> str:
        """What a progress bar shows."""
        cell = self.cells[0]
        defenses = "+".join(d.name for d in cell.defenses) or "no defense"
        where = f"worlds like {self.data.name}" if self.role == TUNING else self.data.name
        return f"{where} · {cell.algorithm} · {defenses}"


def split_chunks(cells: Sequence[CellSpec], size: int) -> list[tuple[CellSpec, ...]]:
    """Cells in runs of at most `size`, of nearly equal length.

    Of several runs each has all cells of its seeds, as far as it goes: controls are of a seed.
    """
    count = max(1, math.ceil(len(cells) / size))
    if count > 1:
        turn = {seed: i for i, seed in enumerate(dict.fromkeys(c.seed for c in cells))}
        cells = sorted(cells, key=lambda c: turn[c.seed])
    edges = [round(i * len(cells) / count) for i in range(count + 1)]
    return [tuple(cells[a:b]) for a, b in itertools.pairwise(edges) if b > a]
