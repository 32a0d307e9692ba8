"""Would it train? The first step of every phase of a plan, so that what is refused is said early.

A party number that an algorithm cannot take, rows it needs and does not get, a defense that it
cannot keep: all of these are raised where they are found out, by ``build`` or by a step. Instead of
saying them a second time, a trial goes there: one seed, the strongest defenses, no epochs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from vflsec.errors import VflsecError

if TYPE_CHECKING:
    from vflsec.engine.plan import Group, Plan

__all__ = ["refusals"]


def refusals(plan: Plan) -> list[str]:
    """Why trainings of a plan cannot be made, one sentence each; empty if all can be started."""
    from vflsec.engine.executor import default_backend

    backend, found, seen = default_backend(), {}, set()
    tasks: dict[tuple[str, int], Any] = {}
    for group in plan.groups:
        key = group.data.name, group.cells[0].cohort
        if group.role != "audit" or key in seen:
            continue
        seen.add(key)
        seed = group.cells[0].seed
        try:
            if (group.data.name, seed) not in tasks:
                source = backend.load_source(group.data.source, seed, plan.base)
                tasks[group.data.name, seed] = backend.make_task(source, seed, **group.data.split)
            _start(group, tasks[group.data.name, seed])
        except VflsecError as why:
            defenses = " + ".join(d.name for d in group.cells[0].defenses)
            where = f"{group.title} on {group.data.name}"
            found[f"{where} with {defenses}: {why}" if defenses else f"{where}: {why}"] = None
    return list(found)


def _start(group: Group, task: Any) -> None:
    """Build a cohort of one cell and take the first step of each phase."""
    from vflsec.engine.cohort import started
    from vflsec.engine.stages import staged

    strongest = max(group.cells, key=lambda c: [d.strength or 0.0 for d in c.defenses])
    algorithm, fed = started(strongest, task)
    if staged(fed) is not None or any(d.params.get("mode") == "real" for d in strongest.defenses):
        return  # labels are held back at first; a real ciphertext takes its time
    for phase in algorithm.phases(fed):
        fed.phase, fed.epoch, fed.steps = phase.name, 0, 0
        if phase.before is not None:
            phase.before()
        if phase.epochs:
            for walk in phase.walks():
                _step(walk.step, fed.batches(walk), fed)


def _step(step: Callable[[Any], None], batches: Iterator[Any], fed: Any) -> None:
    fed.batch = next(batches, None)
    if fed.batch is not None:
        step(fed.batch)
    fed.batch = None
