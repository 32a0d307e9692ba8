"""Planned work: what of it is missing, and how a piece of it is done.

Cells that do not fit the memory together are done again in halves: a cell's result does not depend
on the cells beside it.
"""

from __future__ import annotations

import gc
import socket
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from vflsec.errors import ConfigError, TraceError
from vflsec.plan.values import Group, Work, split_chunks
from vflsec.plugins.loading import allow_imports, contain
from vflsec.runtime.malloc_trim import give_back, hold
from vflsec.runtime.out_of_memory import out_of_memory
from vflsec.runtime.plain_values import Table
from vflsec.specs import AttackSpec, CellResult, CellSpec, Measure
from vflsec.storage.store import Store
from vflsec.storage.view_folder import KeptViews

if TYPE_CHECKING:
    from vflsec.measure.control_cache import SharedControls
    from vflsec.train.view_writer import Keep

Progress = Callable[[str, float], None]
T = TypeVar("T")


@dataclass(frozen=True)
class Backend:
    """The three functions that do the work; tests put fakes here.

    Attributes:
        load_source: (section, seed, base) -> Source.
        make_task: (source, seed, **split) -> Task.
        run_cohort: (cells, attacks, tasks, device=..., progress=..., main=...) -> results; also
            with keep=..., if views are kept.
        attack_kept: (cells, attacks, tasks, paths, device=..., progress=...) -> results.
        shares: whether `run_cohort` takes shared=..., controls of earlier cohorts.
    """

    load_source: Callable[[Table, int, Path], Any]
    make_task: Callable[..., Any]
    run_cohort: Callable[..., list[CellResult]]
    attack_kept: Callable[..., list[CellResult]] | None = None
    shares: bool = False


def default_backend() -> Backend:
    """The real data layer and trainer."""
    from vflsec.data.load import load_source
    from vflsec.data.prepare import make_task
    from vflsec.engine.cohort import attack_kept, run_cohort

    return Backend(load_source, make_task, run_cohort, attack_kept, shares=True)


def missing_work(store: Store, group: Group, replicas: int, *, retry: bool = True) -> list[Work]:
    """What of a group is not finished, in calls of at most `replicas` cells.

    With `retry`, what ended in an error in an earlier run is tried again. Attacks on finished
    trainings for which kept views suffice come first, and without training.
    """
    untrained = {c.key for c, _ in store.missing(group.cells, (), main=group.main, retry=retry)}
    missing = store.missing(group.cells, group.attacks, main=group.main, retry=retry)
    return divide_work(group, missing, untrained, KeptViews(store.folder), replicas)


def divide_work(
    group: Group, missing: Iterable[tuple[CellSpec, Sequence[AttackSpec]]],
    untrained: Collection[str], views: KeptViews, replicas: int,
) -> list[Work]:  # fmt: skip
    """What cells of a group lack, in calls: what kept views suffice for, and then trainings.

    Args:
        group: whose cells they are.
        missing: cells, and the attacks that each lacks.
        untrained: keys of cells that are not trained.
        views: what is kept.
        replicas: most cells of a call.
    """
    lacking: dict[tuple[bool, tuple[str, ...], tuple[tuple[str, str], ...]], list[CellSpec]] = {}
    by_key = {a.key: a for a in group.attacks}
    for cell, attacks in missing:
        train: dict[str, str] = dict.fromkeys((a.key for a in attacks), "")
        if views.any and cell.key not in untrained:
            train = {a.key: why for a in attacks if (why := views.lacking(cell, a))}
            kept = tuple(a.key for a in attacks if a.key not in train)
            if kept:
                lacking.setdefault((True, kept, ()), []).append(cell)
        if train or not attacks:
            said = tuple((by_key[k].label, why) for k, why in train.items() if why)
            lacking.setdefault((False, tuple(train), said), []).append(cell)
    return [
        Work(
            group.data, part, tuple(by_key[k] for k in keys), group.main and not kept, group.role,
            kept, why,
        )
        for (kept, keys, why), cells in sorted(lacking.items(), key=lambda of: not of[0][0])
        for part in split_chunks(cells, replicas)
    ]  # fmt: skip


class Tasks:
    """Tasks of the data set that is being worked on, made once for each seed.

    Args:
        backend, base: what makes them, of which relative paths.
        controls: a folder in which the workers of one audit share controls, if they do.
    """

    def __init__(self, backend: Backend, base: Path, controls: Path | None = None) -> None:
        self.backend, self.base, self.controls = backend, base, controls
        self._key: tuple[str, str] = ("", "")
        self._tasks: dict[int, Any] = {}
        self._shared: SharedControls | None = None

    def of(self, work: Work) -> dict[int, Any]:
        """Tasks by seed for the cells of `work`."""
        key = (work.data.digest, str(sorted(work.data.section.items(), key=str)))
        if key != self._key:
            self._key, self._tasks, self._shared = key, {}, None
        for seed in dict.fromkeys(c.seed for c in work.cells):
            if seed not in self._tasks:
                source = self.backend.load_source(work.data.source, seed, self.base)
                if work.data.tables.tables and source.digest != work.data.digest:
                    where = f"{work.data.name}: its tables on {socket.gethostname()}"
                    raise ConfigError(f"{where} changed. Use the same files on every machine.")
                self._tasks[seed] = self.backend.make_task(source, seed, **work.data.split)
        return {c.seed: self._tasks[c.seed] for c in work.cells}

    @property
    def shared(self) -> dict[str, SharedControls]:
        """Controls that the cohorts of this data set share, as an argument of `run_cohort`."""
        from vflsec.measure.control_cache import SharedControls, SharedFolder

        if not self.backend.shares:
            return {}
        if self._shared is None:
            self._shared = SharedFolder(self.controls) if self.controls else SharedControls()
        return {"shared": self._shared}


@dataclass(frozen=True)
class Done:
    """What a piece of work gave: one result for each cell, and sentences for the user."""

    results: Sequence[CellResult]
    notes: Sequence[str] = ()


def run_work(
    work: Work, tasks: Tasks, device: str, progress: Progress | None = None,
    folder: Path | None = None, keep: Keep | None = None,
) -> Done:  # fmt: skip
    """Train and attack every cell of `work`, and write nothing but views.

    Args:
        folder: the results directory, where kept views are; needed for work on these.
        keep: where views are kept, if they are.
    """
    hold()
    try:
        return _run_cells(work, tasks, device, progress, folder, keep)
    finally:
        give_back()


def _run_cells(
    work: Work, tasks: Tasks, device: str, progress: Progress | None, folder: Path | None,
    keep: Keep | None,
) -> Done:  # fmt: skip
    allow_imports(tasks.base)
    notes: list[str] = []
    if work.kept and folder is not None and tasks.backend.attack_kept is not None:
        try:
            return Done(attack_views(work, folder, tasks, device, progress, notes.append), notes)
        except TraceError as why:
            notes.append(f"{work.title}: trained again, kept views cannot be used: {why}")
    kept: dict[str, Keep] = {}
    if keep and work.role != "reference" and work.main:
        kept = {"keep": keep}

    def train(cells: Sequence[CellSpec]) -> list[CellResult]:
        with contain(f"the training of {work.title}", passing=out_of_memory):
            return tasks.backend.run_cohort(
                list(cells), list(work.attacks), tasks.of(work), device=device,
                progress=progress, main=work.main, **kept, **tasks.shared,
            )  # fmt: skip

    try:
        results = in_halves(work.cells, train, work.title, notes.append)
    except ConfigError as error:
        if work.main:
            raise
        failed = [Measure.missing(a, "error", str(error)) for a in work.attacks]  # by an attacker
        results = [CellResult(c.key, c, [*failed]) for c in work.cells]
    return Done(results, notes)


def attack_views(
    work: Work, folder: Path, tasks: Tasks, device: str, progress: Progress | None,
    note: Callable[[str], None],
) -> list[CellResult]:  # fmt: skip
    """Attacks on the kept views of a results directory.

    Args:
        work: on cells whose views are kept.
        folder: the directory.
        tasks, device, progress: as for :func:`run_work`.
        note: told where they do not fit the memory together.

    Raises:
        TraceError: views cannot be read.
    """
    views, attack = KeptViews(folder), tasks.backend.attack_kept
    assert attack is not None
    what = f"attacks on the kept views of {work.title}"

    def attacked(cells: Sequence[CellSpec]) -> list[CellResult]:
        with contain(what, passing=out_of_memory):
            return attack(
                list(cells), list(work.attacks), tasks.of(work), [views.path(c) for c in cells],
                device=device, progress=progress,
            )  # fmt: skip

    return in_halves(work.cells, attacked, what, note)


def in_halves(
    cells: Sequence[CellSpec],
    do: Callable[[Sequence[CellSpec]], list[T]],
    what: str,
    note: Callable[[str], None],
) -> list[T]:
    """``do(cells)``; where these do not fit the memory together, the results of both halves.

    Args:
        cells: of one cohort.
        do: gives one result for each cell, and has written nothing when it finds no room.
        what: what the cells are, for sentences.
        note: told what was halved.

    Raises:
        ConfigError: one cell alone does not fit.
    """
    try:
        return do(cells)
    except Exception as error:
        if not out_of_memory(error):
            raise
        why = str(error).split("\n", 1)[0].split(". ", 1)[0] or type(error).__name__
    # from here on nothing holds the frames of the attempt, and what they had is free
    _free()
    many = len(cells)
    if many == 1:
        raise ConfigError(
            f"{what}: one training does not fit the memory ({why}). Take a smaller batch_size, "
            "model or --jobs, fewer rows, or --device cpu."
        )
    note(
        f"{what}: {many} trainings do not fit the memory and are done in halves; "
        f"--replicas {many // 2} saves the attempt."
    )
    half = many // 2
    return in_halves(cells[:half], do, what, note) + in_halves(cells[half:], do, what, note)


def _free() -> None:
    gc.collect()  # what a training holds may hold it
    give_back()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
