"""A data layer and a trainer that take no time: figures are hashes of what identifies them."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vflsec.data.source import PartyData, Source
from vflsec.engine.work import Backend
from vflsec.runtime.progress_protocol import Reporter
from vflsec.specs import AttackSpec, CellResult, CellSpec, LedgerRow, Measure

SCENARIO = """
[data]
name = "breast_cancer"
[algorithm]
name = "splitnn"
[[defense]]
name = "iso"
strength = [0, 5]
[[attack]]
name = "norm"
[[attack]]
name = "model_completion"
known_rows = 20
[audit]
seeds = 3
references = ["local"]
positive_control = false
"""


def source(section: Mapping[str, Any], seed: int, base: Path) -> Source:
    """100 rows, an active and two passive parties, two classes."""
    rows = np.arange(100)
    parties = {
        name: PartyData(np.zeros((100, 2)), rows, ("a", "b"), (None, None))
        for name in ("passive1", "active", "passive2")
    }
    digest = hashlib.blake2b(repr(sorted(section.items())).encode(), digest_size=6).hexdigest()
    return Source(str(section["name"]), parties, "active", rows % 2, ("no", "yes"), digest=digest)


def figure(*names: object) -> float:
    """A number in [0.5, 1) that depends on the names alone."""
    digest = hashlib.blake2b("|".join(map(str, names)).encode(), digest_size=6).digest()
    return 0.5 + int.from_bytes(digest, "little") / 2**49


def result_of(cell: CellSpec, attacks: Sequence[AttackSpec], *, main: bool = True) -> CellResult:
    """What training `cell` gives; an edit of a source changes the keys, and not this."""
    result = CellResult(cell.key, cell, seconds=0.5)
    defenses = [(d.name, d.strength, d.params) for d in cell.defenses]
    of = (cell.undefended, defenses, cell.seed)
    if main:
        value = figure("main", *of)
        result.measures.append(Measure("train", "test", "auc", value, value - 0.1, value, 25, 0.5))
    for attack in attacks:
        value = figure(attack.stream, *of)
        controls = {"majority": {"value": 0.5, "cv": None}, "scratch": {"value": 0.55, "cv": 0.6}}
        result.measures.append(
            Measure(
                "train", "train", "auc", value, value - 0.1, value, 60, 0.5,
                adversary="+".join(attack.adversary), attack=attack.label,
                attack_key=attack.key, target="label", controls=controls,
            )
        )  # fmt: skip
    result.ledger.append(
        LedgerRow("train", "embedding", "", "passive1", "active", 10, 3200, 12800, 10)
    )
    return result


class Notes(Reporter):
    """Remembers what the user is told."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, text: str) -> None:
        self.said.append(text)


class Trainer:
    """A fake `run_cohort` that remembers its calls."""

    def __init__(
        self, before: Callable[[int], None] | None = None, wait: float = 0.0, log: str = ""
    ) -> None:
        self.calls: list[tuple[list[CellSpec], list[AttackSpec]]] = []
        self.before, self.wait, self.log = before, wait, log

    def __call__(
        self, cells: list[CellSpec], attacks: list[AttackSpec], tasks: Mapping[int, Any], *,
        device: str, progress: Callable[[str, float], None] | None, main: bool,
    ) -> list[CellResult]:  # fmt: skip
        assert set(tasks) == {c.seed for c in cells}
        if self.before is not None:
            self.before(len(self.calls))
        self.calls.append((cells, attacks))
        if self.log:
            with open(self.log, "a", encoding="utf-8") as file:
                file.writelines(f"{os.getpid()} {c.key}\n" for c in cells)
        if progress is not None:
            progress("train", 1.0)
        time.sleep(self.wait)
        return [result_of(c, attacks, main=main) for c in cells]

    @property
    def trained(self) -> list[str]:
        """Keys of all cells trained, in order."""
        return [c.key for cells, _ in self.calls for c in cells]


def task(source: Source, seed: int, **split: Any) -> tuple[str, int]:
    """In place of a Task: nothing in the engine looks inside."""
    return source.name, seed


def backend(trainer: Callable[..., list[CellResult]]) -> Backend:
    """The fake data layer with this trainer."""
    return Backend(source, task, trainer)
