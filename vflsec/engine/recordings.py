"""Records simulations: the trainings of a scenario, each with what its parties saw as a trace."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vflsec.audit.leakage import defense_point
from vflsec.config.scenario import Scenario, load_scenario
from vflsec.core import check
from vflsec.engine.dry_run import make_plan
from vflsec.engine.work import Tasks, default_backend, in_halves
from vflsec.errors import ConfigError
from vflsec.measure.prepared import prepare
from vflsec.plan.values import Group, Work
from vflsec.plugins.loading import allow_imports, contain
from vflsec.runtime.out_of_memory import out_of_memory
from vflsec.runtime.progress_protocol import NOTE
from vflsec.specs import AttackSpec, CellSpec
from vflsec.trace.manifest import Run
from vflsec.train.cohort import Training
from vflsec.train.demand import Demand
from vflsec.train.device import asks_graphs, pick_device
from vflsec.train.export import Export


def record_scenario(
    scenario: str | Path | Mapping[str, Any] | Scenario,
    out: str | Path,
    *,
    party: str = "",
    set: Sequence[str] = (),
    device: str = "auto",
    known_rows: int = 20,
    max_bytes: int | None = None,
    progress: Callable[[str, float], None] = lambda *_: None,
) -> list[Path]:
    """Train what a scenario audits and write one sealed trace for each training.

    Args:
        scenario: path, packaged name, or the sections as a dictionary.
        out: a folder for the traces; each has a folder of its own in it, with the truth.
        party: only what this party saw; every party by default.
        set: overrides ``a.b=value``.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``, the last two perhaps with ``+graphs``.
        known_rows: labelled rows that are granted to each observer at least.
        max_bytes: of each observer's messages.
        progress: called with (what is being done, share done), and with what the user should know
            and `vflsec.runtime.progress_protocol.NOTE`.

    Returns:
        the folders of the traces.

    Raises:
        VflsecError: the scenario cannot be trained, or a folder is in use.
    """
    loaded = load_scenario(scenario, list(set))
    plan = make_plan(loaded)
    allow_imports(plan.base)
    pick_device(device)
    made: list[Path] = []
    groups = [g for g in plan.groups if g.role == "audit"]
    passive = [g for g in groups if not any(p.attack.policy() for p in prepare(g.attacks))]
    if not passive:
        raise ConfigError(f"{loaded.name}: needs a training without an active attacker.")
    for i, group in enumerate(passive):
        if party:
            check.one_of("--party", party, group.data.parties)
        observers = [party] if party else list(group.data.parties)
        progress(f"{group.data.name}: {group.title}", i / len(passive))
        made += _record(
            group, plan.base, Path(out), observers, device, known_rows, max_bytes,
            lambda text: progress(text, NOTE),
        )  # fmt: skip
    return made


def _record(
    group: Group, base: Path, out: Path, observers: Sequence[str], device: str, known: int,
    max_bytes: int | None, note: Callable[[str], None],
) -> list[Path]:  # fmt: skip
    if group.data.label.floating:
        what = f"{group.data.name}: {group.data.label.sentence}"
        raise ConfigError(f"{what}; traces are recorded of one label's classes only.")
    work = Work(group.data, group.cells, (), main=True)
    tasks = Tasks(default_backend(), base).of(work)
    mine = [a for a in group.attacks if all(p in observers for p in a.adversary)]
    most = max([known, *(a.known_rows for a in mine)])
    labelled = min(len(t.sets["labelled"]) for t in tasks.values())
    grants = min(most, labelled // 2)
    specs = [replace(a, known_rows=grants) for a in mine]
    specs += [AttackSpec("", adversary=(p,), known_rows=grants) for p in observers]
    demands = [Demand.of(p.spec, p.attack) for p in prepare(mine)]

    def trained(of: Sequence[CellSpec]) -> list[Path]:
        training = Training(of, demands, tasks, pick_device(device), graphs=asks_graphs(device))
        exports: list[Export] = []
        for r, cell in enumerate(of):
            run = _run(group, cell)
            export = Export(
                out / _name(run), tasks[cell.seed], specs, r=r, run=run,
                max_bytes=max_bytes, servers=training.algorithm.servers,
            )  # fmt: skip
            training.taps.append(export)
            exports.append(export)
        try:
            with contain(f"the training of {group.title}", passing=out_of_memory):
                _whole(training, exports)
        except Exception as error:
            for export in exports if out_of_memory(error) else ():
                export.drop()
            raise
        return [e.folder for e in exports]

    return in_halves(group.cells, trained, group.title, note)


def _whole(training: Training, exports: Sequence[Export]) -> None:
    """Train, and write down all of it."""
    for moment in training.run(predictions=True):
        if moment.phase.audited:
            for export in exports:
                export.moment(training.algorithm, training.fed, training.initial)
    for export in exports:
        export.close()


def _run(group: Group, cell: CellSpec) -> Run:
    defense, strength = defense_point(cell.defenses)
    return Run(
        dataset=group.data.name[:200], algorithm=(group.title or cell.algorithm)[:200],
        defense=defense[:200], strength=strength, seed=cell.seed,
    )  # fmt: skip


def _name(run: Run) -> str:
    """A folder's name for a run."""
    strength = "" if run.defense == "none" or run.strength is None else f"-{run.strength:g}"
    text = f"{run.dataset}-{run.algorithm}-{run.defense}{strength}-seed{run.seed}"
    return re.sub(r"[^A-Za-z0-9._+-]+", "_", text)
