"""What attacks find in small trainings, by one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vflsec.core.task import Task
from vflsec.engine.cohort import run_cohort
from vflsec.specs import AttackSpec, CellResult, CellSpec, DefenseSpec
from vflsec.testing import small_task


def cohort(
    attacks: AttackSpec | Sequence[AttackSpec],
    tasks: Mapping[int, Task] | Sequence[int] = (0,),
    defenses: Sequence[DefenseSpec] = (),
    *,
    algorithm: str = "splitnn",
    main: bool = False,
    **training: Any,
) -> list[CellResult]:
    """Of a training for each task, by seed; for seeds alone on small tasks."""
    made = tasks if isinstance(tasks, Mapping) else {s: small_task(s) for s in tasks}
    cells = [CellSpec({"name": "s"}, algorithm, training, tuple(defenses), s) for s in made]
    asked = [attacks] if isinstance(attacks, AttackSpec) else attacks
    return run_cohort(cells, asked, dict(made), device="cpu", main=main)
