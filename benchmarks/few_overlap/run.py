"""Trains and attacks one row in one world, and keeps what is finished."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from few_overlap.parts import KNOWN, Part, Probe, Row
from few_overlap.worlds import BUILD, World, tasks_of
from vflsec._version import __version__
from vflsec.audit.leakage import complete_rows, list_rows, summarise
from vflsec.audit.point import points_frame
from vflsec.audit.result_row import ResultRow, results_table
from vflsec.core.task import Task
from vflsec.engine.cohort import run_cohort
from vflsec.runtime.typed_values import read_as, write_plain
from vflsec.specs import AttackSpec, CellResult, CellSpec

STORE = BUILD / "few_overlap.json"


@dataclass
class Found:
    """What one row came to in one world.

    Attributes:
        utility: of the main task on test rows after the last phase, a value a seed.
        messages: embeddings and gradients in training, a value a seed.
        kept: epoch of the last phase that was kept, a value a seed.
        told: bytes that passive parties received in the last phase, a value a seed.
        chosen: swept parameters.
        made: rows of all measures on test and training rows.
        seconds: of CPU.
        leaks: {title of a probe: (values, advantages), a value a seed each}.
    """

    utility: list[float]
    messages: list[float] = field(default_factory=list)
    kept: list[float] = field(default_factory=list)
    told: list[float] = field(default_factory=list)
    chosen: str = ""
    made: tuple[ResultRow, ...] = ()
    seconds: float = 0.0
    leaks: dict[str, tuple[list[float], list[float]]] = field(default_factory=dict)

    @property
    def megabytes(self) -> list[float]:
        """All that was sent in training, a value a seed."""
        by_seed = {r.seed: (r.bytes or 0.0) / 1e6 for r in self.made}
        return [by_seed[s] for s in sorted(by_seed)]

    @property
    def silent(self) -> set[tuple[str, str]]:
        """(attack, phase) where there was nothing to look at."""
        return {(r.attack, r.phase) for r in self.made if r.status == "not-observable"}


def train(
    row: Row, params: Mapping[str, Any], tasks: Mapping[int, Task], attacks: Sequence[AttackSpec]
) -> list[CellResult]:
    name = next(iter(tasks.values())).name
    cells = [CellSpec({"name": name}, row.algorithm, params, seed=s) for s in tasks]
    return run_cohort(cells, attacks, tasks, device="cpu")


def utility(results: Sequence[CellResult], split: str, metric: str) -> list[float]:
    """The main task after the last phase, a value a seed."""
    out = []
    for r in results:
        main = [m for m in r.measures if not m.attack and (m.split, m.metric) == (split, metric)]
        assert main[-1].value is not None
        out.append(main[-1].value)
    return out


def spec_of(probe: Probe, task: Task) -> AttackSpec:
    who = task.passive if probe.by == "passive" else (task.active,)
    return AttackSpec(
        probe.attack, probe.params, who, known_rows=KNOWN, aux_rows=probe.aux_rows
    )  # fmt: skip


def run(part: Part, world: World, row: Row, tasks: Mapping[int, Task]) -> Found:
    """Sweep by the validation figure, then train the chosen settings with the attacks."""
    begun = time.process_time()
    first = tasks[min(tasks)]
    attacks = [] if row.alone else [spec_of(p, first) for p in part.probes]
    chosen, best = {**part.shared, **row.params}, -1.0
    base, keys = dict(chosen), list(row.sweep)
    options = list(product(*row.sweep.values()))
    for values in options:
        tried = {**base, **dict(zip(keys, values, strict=True))}
        if len(options) == 1:
            chosen = tried
            break
        score = float(np.mean(utility(train(row, tried, tasks, ()), "validation", world.metric)))
        if score > best:
            best, chosen = score, tried
    results = train(row, chosen, tasks, attacks)
    found = Found(utility(results, "test", world.metric))
    found.chosen = ", ".join(f"{k} = {chosen[k]}" for k in keys)
    for r in results:
        phases = [*r.facts.epochs]
        sent = [x for x in r.ledger if x.phase != "predict"]
        down = [x for x in sent if x.receiver != first.active and x.phase == phases[-1]]
        found.messages.append(sum(x.messages for x in sent if x.kind in ("embedding", "gradient")))
        found.told.append(sum(x.bytes for x in down))
        found.kept.append(float(r.facts.kept[phases[-1]]))
    found.made = tuple(
        replace(r, algorithm=row.title, known_rows=KNOWN, by_class=(), notes={})
        for result in results
        for r in list_rows(result)
        if r.split != "validation"
    )
    found.seconds = time.process_time() - begun
    return found


def leaks(part: Part, world: World, found: Mapping[str, Found]) -> pd.DataFrame:
    """Fill in every probe's value and advantage; the strongest control is chosen once for all rows.

    Returns:
        points, means over seeds, of everything that was measured.
    """
    rows = complete_rows(r for f in found.values() for r in f.made)
    frame = results_table(rows)
    for probe in part.probes:
        wanted = probe.metrics or (world.metric,)
        mine = frame[
            frame.attack.str.match(rf"{probe.attack}(\(|$)") & frame.metric.isin(wanted)
            & (frame.split == "train") & (frame.status == "ok")
        ]  # fmt: skip
        for title, of in mine.groupby("algorithm"):
            phases = list(dict.fromkeys(of.phase))
            chosen = of[of.phase == phases[0 if probe.first else -1]].sort_values("seed")
            assert chosen.seed.is_unique
            found[str(title)].leaks[probe.title] = (
                list(chosen.value), list(chosen.advantage),
            )  # fmt: skip
    return points_frame(summarise(rows))


class Store:
    """Finished rows by what they depend on, so that an interrupted run goes on."""

    def __init__(self, fresh: bool) -> None:
        self.kept: dict[str, Any] = {}
        if not fresh and STORE.exists():
            self.kept = json.loads(STORE.read_text(encoding="utf-8"))

    def found(self, part: Part, world: World, row: Row, seeds: range) -> Found:
        """A row from the store, or computed and stored."""
        shared, probes = sorted(part.shared.items()), part.probes
        key = f"{world.key} {row} {shared} {probes} {list(seeds)} {__version__}"
        if key not in self.kept:
            found = run(part, world, row, tasks_of(world, seeds))
            print(f"{part.key}: {world.key}: {row.title}: {found.seconds:.0f} s", flush=True)
            self.kept[key] = write_plain(found)
            STORE.parent.mkdir(parents=True, exist_ok=True)
            half = STORE.with_suffix(".part")
            half.write_text(json.dumps(self.kept), encoding="utf-8")
            half.replace(STORE)
        return read_as(Found, self.kept[key])
