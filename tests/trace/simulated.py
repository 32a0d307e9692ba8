"""A small cohort, attacked live while a trace of it is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from vflsec.core.guess import Guess
from vflsec.core.rng import generator
from vflsec.core.view import View
from vflsec.errors import ThreatModelError
from vflsec.plugins import registry
from vflsec.specs import AttackSpec, CellSpec, DefenseSpec
from vflsec.testing.worlds import small_task
from vflsec.trace.manifest import Run
from vflsec.train.cohort import Training
from vflsec.train.demand import Demand
from vflsec.train.export import Export


@dataclass
class Live:
    """What a live audit of replica 0 found: guesses and views by (attack index, phase)."""

    guesses: dict[tuple[int, str], Guess | str] = field(default_factory=dict)
    views: dict[tuple[int, str], View] = field(default_factory=dict)


def attack_of(spec: AttackSpec) -> Any:
    return registry.attacks.create(spec.name, spec.params)


def guess_of(spec: AttackSpec, view: View, phase: str, seed: int = 0) -> Guess:
    """By the generator that a live audit uses."""
    return attack_of(spec).infer(view, generator(seed, "attack", spec.key, phase))


def _live(spec: AttackSpec, view: View, phase: str, seed: int) -> Guess | str:
    """The guess, or why a live audit has none."""
    try:
        return guess_of(spec, view, phase, seed)
    except ThreatModelError as why:
        return str(why)


def simulate(
    folder: Path,
    specs: Sequence[AttackSpec],
    *,
    algorithm: str = "splitnn",
    params: Mapping[str, Any] | None = None,
    defenses: tuple[DefenseSpec, ...] = (),
    seed: int = 0,
    dtype: str = "float32",
    run: Run | None = None,
    **world: Any,
) -> Live:
    """Train two replicas of one seed, attack the first live, and write its trace."""
    task = small_task(seed, **world)
    cell = CellSpec({}, algorithm, {"epochs": 3, **(params or {})}, defenses, seed, dtype)
    demands = [Demand.of(s, attack_of(s)) for s in specs]
    training = Training([cell, cell], demands, {seed: task}, torch.device("cpu"))
    export, live = Export(folder, task, specs, run=run or Run(seed=seed)), Live()
    training.taps.append(export)
    for moment in training.run():
        phase = moment.phase.name
        if not moment.phase.audited:
            continue
        export.moment(training.algorithm, training.fed, training.initial)
        for i, spec in enumerate(specs):
            # a trace holds no labels, which a live view of the label party does
            view = replace(moment.view(spec, 0), labels=None)
            live.views[i, phase] = view
            live.guesses[i, phase] = _live(spec, view, phase, seed)
    export.close()
    return live
