"""Run planned work: in this process, or in worker processes with retry rounds when one dies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vflsec.cell import AttackSpec, CellResult, CellSpec, Measure
from vflsec.engine.store import Store
from vflsec.engine.views import KeptViews
from vflsec.errors import ConfigError, TraceError, VflsecError
from vflsec.plan.values import Group, Work, chunks
from vflsec.plugins import contained, importable
from vflsec.reporter import NOTE

if TYPE_CHECKING:
    from vflsec.train.keep import Keep

__all__ = ["Backend", "default_backend", "do_work", "missing_work", "run_parallel"]

Progress = Callable[[str, float], None]
_ROUNDS = 3  # of workers dying without any progress in between


@dataclass(frozen=True)
class Backend:
    """The three functions that do the work; tests put fakes here.

    Attributes:
        load_source: (section, seed, base) -> Source.
        make_task: (source, seed, **split) -> Task.
        run_cohort: (cells, attacks, tasks, device=..., progress=..., main=...) -> results; also
            with keep=..., if views are kept.
        attack_kept: (cells, attacks, tasks, paths, device=..., progress=...) -> results.
    """

    load_source: Callable[[Mapping[str, Any], int, Path], Any]
    make_task: Callable[..., Any]
    run_cohort: Callable[..., list[CellResult]]
    attack_kept: Callable[..., list[CellResult]] | None = None


def default_backend() -> Backend:
    """The real data layer and trainer."""
    from vflsec.data.load import load_source
    from vflsec.data.prepare import make_task
    from vflsec.engine.cohort import attack_kept, run_cohort

    return Backend(load_source, make_task, run_cohort, attack_kept)


def missing_work(store: Store, group: Group, replicas: int, *, retry: bool = True) -> list[Work]:
    """What of a group is not finished, in calls of at most `replicas` cells.

    With `retry`, what ended in an error in an earlier run is tried again. Attacks on finished
    trainings for which kept views suffice come first, and without training.
    """
    views = KeptViews(store.folder)
    untrained = {c.key for c, _ in store.missing(group.cells, (), main=group.main, retry=retry)}
    lacking: dict[tuple[bool, tuple[str, ...], tuple[str, ...]], list[CellSpec]] = {}
    by_key = {a.key: a for a in group.attacks}
    missing = store.missing(group.cells, group.attacks, main=group.main, retry=retry)
    for cell, attacks in missing:
        train: dict[str, str] = dict.fromkeys((a.key for a in attacks), "")
        if views.any and cell.key not in untrained:
            train = {a.key: why for a in attacks if (why := views.lacking(cell, a))}
            kept = tuple(a.key for a in attacks if a.key not in train)
            if kept:
                lacking.setdefault((True, kept, ()), []).append(cell)
        if train or not attacks:
            said = tuple(
                f"{by_key[k].label}: trained again for it, for {why}." for k, why in train.items()
                if why
            )  # fmt: skip
            lacking.setdefault((False, tuple(train), said), []).append(cell)
    return [
        Work(
            group.data, part, tuple(by_key[k] for k in keys), group.main and not kept, group.role,
            kept, why,
        )
        for (kept, keys, why), cells in sorted(lacking.items(), key=lambda of: not of[0][0])
        for part in chunks(cells, replicas)
    ]  # fmt: skip


class Tasks:
    """Tasks of the data set that is being worked on, made once for each seed."""

    def __init__(self, backend: Backend, base: Path) -> None:
        self.backend, self.base = backend, base
        self._key: tuple[str, str] = ("", "")
        self._tasks: dict[int, Any] = {}

    def of(self, work: Work) -> dict[int, Any]:
        """Tasks by seed for the cells of `work`."""
        key = (work.data.digest, str(sorted(work.data.section.items(), key=str)))
        if key != self._key:
            self._key, self._tasks = key, {}
        for seed in dict.fromkeys(c.seed for c in work.cells):
            if seed not in self._tasks:
                source = self.backend.load_source(work.data.source, seed, self.base)
                self._tasks[seed] = self.backend.make_task(source, seed, **work.data.split)
        return {c.seed: self._tasks[c.seed] for c in work.cells}


def do_work(
    work: Work, store: Store, tasks: Tasks, device: str, progress: Progress | None = None,
    keep: Keep | None = None,
) -> None:  # fmt: skip
    """Train, attack, and commit every cell of `work`; keep its views if `keep` says where.

    Where kept views turn out to be damaged, it is trained again.
    """
    importable(tasks.base)
    if work.kept and _did_kept(work, store, tasks, device, progress):
        return
    kept: dict[str, Any] = {}
    if keep and work.role != "reference" and work.main:
        kept = {"keep": keep}
    try:
        with contained(f"the training of {work.title}"):
            results = tasks.backend.run_cohort(
                list(work.cells), list(work.attacks), tasks.of(work), device=device,
                progress=progress, main=work.main, **kept,
            )  # fmt: skip
    except ConfigError as error:
        if work.main:
            raise
        results = [_failed(c, work.attacks, str(error)) for c in work.cells]
    for result in results:
        store.commit(result, work.attacks, main=work.main)


def _did_kept(
    work: Work, store: Store, tasks: Tasks, device: str, progress: Progress | None
) -> bool:
    """Attack kept views and commit; False if they cannot be read."""
    views = KeptViews(store.folder)
    assert tasks.backend.attack_kept is not None
    try:
        with contained(f"attacks on the kept views of {work.title}"):
            results = tasks.backend.attack_kept(
                list(work.cells), list(work.attacks), tasks.of(work),
                [views.path(c) for c in work.cells], device=device, progress=progress,
            )  # fmt: skip
    except TraceError as why:
        if progress is not None:
            progress(f"{work.title}: trained again, for kept views cannot be used: {why}", NOTE)
        return False
    for result in results:
        store.commit(result, work.attacks, main=False)
    return True


def _failed(cell: CellSpec, attacks: Sequence[AttackSpec], why: str) -> CellResult:
    """What is left of a cell whose active attacker broke its training."""
    out = CellResult(cell.key, cell)
    for spec in attacks:
        out.measures.append(
            Measure(
                phase="", split="", metric="", value=None, adversary="+".join(spec.adversary),
                attack=spec.label, attack_key=spec.key, status="error", reason=why,
            )
        )  # fmt: skip
    return out


def _in_worker(
    work: Work, folder: Path, base: Path, device: str, backend: Backend | None, keep: Keep | None
) -> None:
    import torch

    torch.set_num_threads(1)
    with Store(folder) as store:
        do_work(work, store, Tasks(backend or default_backend(), base), device, keep=keep)


def run_parallel(
    todo: Callable[[bool], Sequence[Work]],
    folder: Path,
    base: Path,
    *,
    device: str,
    jobs: int,
    backend: Backend | None = None,
    finished: Callable[[Work], None] | None = None,
    keep: Keep | None = None,
) -> None:
    """Do all work in `jobs` processes; when a worker dies, do again what is not in the store.

    Args:
        todo: the work that is not finished, asked before every round; its argument is whether
            errors count as not finished, which is so in the first round only.
        folder, base: of the results, and of relative paths.
        finished: called in this process after each piece.
        keep: where views are kept, if they are.

    Raises:
        VflsecError: workers died in three rounds in a row without finishing anything.
    """
    from concurrent.futures import as_completed
    from concurrent.futures.process import BrokenProcessPool

    from joblib.externals.loky import get_reusable_executor

    fruitless, first = 0, True
    while works := list(todo(first)):
        done, first = 0, False
        executor = get_reusable_executor(max_workers=jobs, timeout=30, kill_workers=True)
        futures = {
            executor.submit(_in_worker, w, folder, base, device, backend, keep): w for w in works
        }
        try:
            for future in as_completed(futures):
                future.result()
                done += 1
                if finished is not None:
                    finished(futures[future])
        except BrokenProcessPool:
            fruitless = 0 if done else fruitless + 1
            if fruitless >= _ROUNDS:
                raise VflsecError(
                    f"workers died {_ROUNDS} times in a row without finishing anything, most often "
                    "for lack of memory. Run the same command with a smaller --replicas or --jobs; "
                    "what is finished is kept."
                ) from None
        except BaseException:
            executor.shutdown(wait=False, kill_workers=True)
            raise
