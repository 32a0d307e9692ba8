"""The planner with a trial: every audited training is built and takes its first steps."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from vflsec.config.problems import Problem
from vflsec.errors import VflsecError
from vflsec.nn.batch_invariance import find_warning
from vflsec.plan import planner
from vflsec.plan.estimate import Machine, Timed, Tried, estimate
from vflsec.plugins import registry
from vflsec.specs import number_repeats

if TYPE_CHECKING:
    from vflsec.config.scenario import Scenario
    from vflsec.core.task import Task
    from vflsec.data.source import Source
    from vflsec.plan.planner import Phases
    from vflsec.plan.values import Group, Plan
    from vflsec.specs import CellSpec

_REFERENCE = 0.020  # processor seconds of `_work` on the machine of the estimates

Trained = Callable[["CellSpec"], tuple[str, ...]]


def make_plan(
    scenario: Scenario, *, try_out: bool = True, trained: Trained = lambda _: (), **options: Any
) -> Plan:
    """Plan an audit; loads the data sets and tries out whether every training can begin.

    Args:
        scenario: a valid scenario.
        try_out: whether to set every training up and take its first step.
        trained: (cell) -> the phases after which it can be attacked, of one that was trained and
            whose views are kept, so that it need not be tried out; else ().
        options: further ones of :func:`vflsec.plan.planner.make_plan`.

    Raises:
        ScenarioError: a party is named that a data set does not have, a defense cannot protect a
            data set, or a training cannot begin.
        DataError: a table cannot be used.
    """
    notes: list[str] = []
    timed: Timed = {}
    began = time.process_time()
    trial = partial(find_obstacles, claims=notes, trained=trained, timed=timed)
    plan = planner.make_plan(scenario, trial=trial if try_out else None, **options)
    if try_out and (said := find_warning()):
        notes.append(said)
    on = calibrate() if try_out else None
    return replace(
        plan, notes=tuple(dict.fromkeys((*plan.notes, *notes))),
        cost=estimate(plan.groups, timed, on, time.process_time() - began),
    )  # fmt: skip


def find_obstacles(
    scenario: Scenario,
    groups: Sequence[Group],
    sources: Mapping[str, Source],
    phases: Phases,
    claims: list[str] | None = None,
    trained: Trained = lambda _: (),
    timed: Timed | None = None,
) -> Iterator[Problem]:
    """Audited groups whose training cannot begin.

    Args:
        scenario: what was planned.
        groups: of its plan.
        sources: the loaded data by `DataInfo.name`.
        phases: is filled in.
        trained: as in :func:`make_plan`; what claims an epsilon is tried out all the same.
        timed: is filled in: what was seen of each cohort.
        claims: gets a sentence for what each defense would claim, by the uses that are predicted,
            and for each module whose trainings run one after another.

    What only shows later than in the first step of a phase is not found. Cells under real
    encryption, whose setup starts processes and makes keys, are left out.
    """
    from vflsec.data.prepare import make_task

    tasks: dict[str, Task] = {}
    tried: set[str] = set()
    for group in groups:
        cell, name = group.cells[-1], group.data.name
        if group.role != "audit" or cell.cohort in tried or _encrypts(cell):
            continue
        tried.add(cell.cohort)  # groups of active attackers train the same
        before = () if _claims(cell) else trained(cell)
        if before:
            phases[cell.cohort] = before
            continue
        if name not in tasks:
            tasks[name] = make_task(sources[name], 0, **group.data.split)
        steps: list[tuple[float, float]] = []
        with _slow_modules() as slow:
            phases[cell.cohort], reason, promised = _obstacle(cell, tasks[name], steps)
        if timed is not None and steps:
            timed[cell.cohort] = Tried(steps, len(phases[cell.cohort]))
        if claims is not None:
            where = f"({group.title or cell.algorithm} on {name})"
            claims += [f"{said} {where}" for said in (*promised, *slow)]
        if reason:
            under = " with ".join([group.title, *(d.name for d in cell.defenses)])
            rule = f"cannot be trained ({under} on {name}): {reason}"
            i = [registry.algorithms.entry(a.name).name for a in scenario.root.algorithm].index(
                cell.algorithm
            )
            yield scenario.error(("algorithm", i), rule, group.title)


@contextmanager
def _slow_modules() -> Iterator[list[str]]:
    """What is said of modules that cannot be stacked, as notes instead of warnings."""
    from vflsec.nn.replicas import ReplicaFallbackWarning

    said: list[str] = []
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always", ReplicaFallbackWarning)
        yield said
    for w in heard:
        if issubclass(w.category, ReplicaFallbackWarning):
            said.append(str(w.message))
        else:
            warnings.warn_explicit(w.message, w.category, w.filename, w.lineno)


def _encrypts(cell: CellSpec) -> bool:
    """Whether training takes longer by its defenses, which encryption alone does."""
    policies = [registry.defenses.create(d.name, d.params) for d in cell.defenses]
    return any(p.step_cost(64, 2, cell.params).spent > 0 for p in policies)


def _claims(cell: CellSpec) -> bool:
    """Whether a defense at work would claim something of what is counted."""
    made = [(d.strength, registry.defenses.create(d.name, d.params)) for d in cell.defenses]
    return any(p.counted and strength for strength, p in made)


def _obstacle(
    cell: CellSpec, task: Task, timed: list[tuple[float, float]]
) -> tuple[tuple[str, ...], str, list[str]]:
    """Phases that are audited, why a cell cannot be trained or '', what would be claimed."""
    from vflsec.train.cohort import first_step

    try:
        phases, found = first_step(cell, task, timed)
    except VflsecError as error:
        return (), str(error), []
    names = number_repeats(d.name for d in cell.defenses)
    strengths = dict(zip(names, (d.strength for d in cell.defenses), strict=True))
    return (
        phases,
        "",
        [
            f"{name} at strength {strengths[name]:g}, by prediction: {made.sentence()}"
            for name, made in found
        ],
    )


def _work() -> None:
    """Small products, as training makes them, and calls of Python between them."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    x = torch.ones(8, 64, 64)
    for _ in range(200):
        x = torch.bmm(x, x).mul_(1 / 64)
    torch.set_num_threads(before)


@cache
def calibrate(work: Callable[[], None] = _work) -> Machine:
    """This machine, by a calibration of a tenth of a second.

    Nothing depends on it but the estimates of `vflsec check`.

    Args:
        work: what is timed.
    """
    times = []
    for _ in range(3):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return Machine(min(100.0, max(0.01, min(times) / _REFERENCE)))
