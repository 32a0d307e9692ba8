"""A small cohort, attacked live while a trace of it is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from vflsec.core.channel import Recorder
from vflsec.core.federation import Federation
from vflsec.core.guess import Guess
from vflsec.core.privacy_usage import RunFacts
from vflsec.core.rng import generator
from vflsec.core.task import Stack
from vflsec.core.view import View, as_needs
from vflsec.errors import ThreatModelError
from vflsec.plugins import registry
from vflsec.specs import AttackSpec, DefenseSpec
from vflsec.testing.worlds import small_task
from vflsec.trace.manifest import Run
from vflsec.train.export import Export
from vflsec.train.loop import predict, run_phases
from vflsec.train.views import make_view


@dataclass
class Live:
    """What a live audit of replica 0 found: guesses and views by (attack index, phase)."""

    guesses: dict[tuple[int, str], Guess | str] = field(default_factory=dict)
    views: dict[tuple[int, str], View] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


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
    defenses: Sequence[tuple[DefenseSpec, str]] = (),
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    run: Run | None = None,
    **world: Any,
) -> Live:
    """Train two replicas of one seed, attack the first live, and write its trace."""
    task = small_task(seed, **world)
    stack = Stack.build({seed: task}, [seed, seed], dtype=dtype)
    method = registry.algorithms.create(algorithm, {"epochs": 3, **(params or {})})
    wanted = {
        key
        for s in specs
        for p in s.adversary
        for need in as_needs(attack_of(s).looks_at)
        if (key := Recorder.wants(p, need)) is not None
    }
    policies: dict[str, list[Any]] = {}
    for d, party in defenses:
        policy = registry.defenses.create(d.name, d.params)
        strength = torch.full((2,), d.strength or 0.0, dtype=torch.float64)
        policies.setdefault(party, []).append((policy, strength))
    recorder = Recorder(sorted(wanted), 2, len(task.y))
    fed = Federation.create(stack, [seed, seed], policies, recorder, RunFacts(epochs=3))
    method.build(fed)
    initial = {p.name: p.modules["bottom"].state() for p in fed.parties.values()}
    export = Export(folder, task, specs, run=run or Run(seed=seed))
    recorder.taps.append(export)
    live = Live()
    for phase in run_phases(method, fed):
        if phase.predicts:
            predict(method, fed, stack.rows("test"))
        if not phase.audited:
            continue
        export.moment(method, fed, initial)
        for i, spec in enumerate(specs):
            # a trace holds no labels, which a live view of the label party does
            view = replace(make_view(method, fed, initial, spec, 0), labels=None)
            live.views[i, phase.name] = view
            live.guesses[i, phase.name] = _live(spec, view, phase.name, seed)
    live.notes = export.close()
    return live
