"""Work done: in this process, by worker processes, on a cluster; again where a worker died.

Workers return what they found, and this process alone writes it into the store: they may be on
machines that do not see it.
"""

from __future__ import annotations

import math
import os
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from vflsec.engine.audit_record import list_versions
from vflsec.engine.shard import LEAST
from vflsec.engine.work import Backend, Done, Progress, Tasks, default_backend, run_work
from vflsec.engine.worker_pools import Pool
from vflsec.errors import AGAIN, ConfigError, VflsecError
from vflsec.plan.cells import hash_code
from vflsec.plan.estimate import compute_weight
from vflsec.plan.values import Work
from vflsec.plugins import registry
from vflsec.plugins.loading import allow_imports
from vflsec.storage.store import Store

if TYPE_CHECKING:
    from vflsec.train.view_writer import Keep

_ROUNDS = 3  # of workers dying without any progress in between
_PATIENCE = 5.0  # seconds in which nothing ends, after which a pool is asked whether it waits


@dataclass(frozen=True)
class Order:
    """What is to be done and how; it travels to a worker.

    Attributes:
        works: what is done.
        base: of relative paths.
        device: where to train.
        backend: makes tasks and trains them; the package's own if None.
        versions: of the packages with which the audit runs.
        folder: the results directory, where the worker sees it.
        controls: a folder that all workers see, in which they share controls.
        keep: where views are kept, if they are.
        turn: number of the task, by which several devices take turns.
    """

    works: Sequence[Work]
    base: Path
    device: str
    backend: Backend | None
    versions: Mapping[str, str]
    folder: Path | None = None
    controls: Path | None = None
    keep: Keep | None = None
    turn: int = 0


@dataclass
class Listener:
    """Who is told what happens in an audit.

    Attributes:
        finished: called after each piece of work.
        note: told what the user should know.
        watch: gives what is told of the progress of a piece of work that is done in this process.
    """

    finished: Callable[[Work], None]
    note: Callable[[str], None]
    watch: Callable[[Work], Progress | None]


def execute(
    works: Sequence[Work],
    left: Callable[[], Sequence[Work]],
    store: Store,
    pool: Pool | None,
    order: Order,
    here: Tasks,
    listener: Listener,
) -> None:
    """Do all work, and again what is not in the store when a worker died.

    Args:
        works: what is to be done.
        left: what of it is not finished, asked when a worker died; errors count as finished.
        store: for the results.
        pool: of workers; None does all of it in this process.
        order: what every worker is told, without work.
        here: tasks and trainer of this process.
        listener: told what happens, in this process.

    Raises:
        VflsecError: workers died in three rounds in a row without finishing anything.
    """
    fruitless = 0
    while works:
        done, lost = _do_round(works, store, pool, order, here, listener)
        fruitless = fruitless + 1 if lost and not done else 0
        if fruitless >= _ROUNDS:
            raise VflsecError(
                f"workers died {_ROUNDS} times in a row, most often for lack of memory. Use a "
                "smaller --replicas or --jobs."
            )
        works = left() if lost else ()


def _do_round(
    works: Sequence[Work], store: Store, pool: Pool | None, order: Order, here: Tasks,
    listener: Listener,
) -> tuple[int, bool]:  # fmt: skip
    """Every piece of work once, as far as workers live.

    Returns how many pieces workers finished, and whether one was lost.
    """
    if pool is None:
        _work_here(works, store, here, order, listener)
        return 0, False
    local = [w for w in works if w.kept and pool.remote]  # kept views lie on this machine
    shared = [w for w in works if not (w.kept and pool.remote)]
    done, lost = 0, False
    try:
        executor, futures = pool.executor(), {}
        for turn, of in enumerate(batch_works(shared, pool.workers)):
            futures[executor.submit(do_order, replace(order, works=of, turn=turn))] = of
        _work_here(local, store, here, order, listener)
        for future in _wait_each(futures, pool, listener.note):
            try:
                results = future.result()
            except pool.lost:
                lost = True
                continue
            for work, found in zip(futures[future], results, strict=True):
                _take_in(store, work, found, listener)
                done += 1
    except pool.lost:
        lost = True
    except BaseException:
        pool.stop()
        raise
    return done, lost


def _work_here(
    works: Sequence[Work], store: Store, here: Tasks, order: Order, listener: Listener
) -> None:
    for work in works:
        progress = listener.watch(work)
        found = run_work(work, here, order.device, progress, store.folder, order.keep)
        _take_in(store, work, found, listener)


def _wait_each(
    futures: Iterable[Future[list[Done]]], pool: Pool, note: Callable[[str], None]
) -> Iterator[Future[list[Done]]]:
    """Each as it ends; what they wait for is noted once, each time anew."""
    left, said = set(futures), ""
    while left:
        ended, left = wait(left, _PATIENCE, FIRST_COMPLETED)
        why = "" if ended else pool.waits()
        if why and why != said:
            note(why)
        said = why
        yield from ended


def _take_in(store: Store, work: Work, done: Done, listener: Listener) -> None:
    """Write what a piece of work gave."""
    for text in done.notes:
        listener.note(text)
    for result in done.results:
        store.commit(result, work.attacks, main=work.main)
    listener.finished(work)


def do_order(order: Order) -> list[Done]:
    """What each piece of work gave; a worker calls this.

    Raises:
        ConfigError: versions, tables or the source of plug-ins are not those of the process that
            asks.
    """
    import torch

    from vflsec.train.device import in_turn

    with _BUSY:
        torch.set_num_threads(1)
        allow_imports(order.base)
        if order.folder is None:
            _check_versions(order)
        _check_code(order)
        tasks, device = _find_tasks(order), in_turn(order.device, order.turn)
        return [
            run_work(work, tasks, device, None, order.folder, order.keep) for work in order.works
        ]


_BUSY = threading.Lock()
"""A worker does one task at a time, whatever its number of threads."""
_here: dict[tuple[Path, Path | None, int], Tasks] = {}


def _find_tasks(order: Order) -> Tasks:
    """The tasks of this worker, which it need not make anew for every piece of work."""
    if order.backend is not None:
        return Tasks(order.backend, order.base)
    key = (order.base, order.controls, os.getpid())
    if key not in _here:
        _here.clear()
        _here[key] = Tasks(default_backend(), order.base, order.controls)
    return _here[key]


_SAME = "Install the same on every machine, vflsec in a checkout on all or on none."


def _check_versions(order: Order) -> None:
    mine = list_versions()
    where = f"worker {socket.gethostname()}"
    for name, asked in order.versions.items():
        if name != "python" and mine[name] != asked:
            raise ConfigError.must(f"{where}: {name}", f"be {asked}", mine[name], _SAME)


_seen: set[tuple[str, str]] = set()  # what runs and its source, as this process has imported it


def _check_code(order: Order) -> None:
    """Of a process on this machine once: what it has imported it keeps, whatever is edited then."""
    for work in order.works:
        asked: list[tuple[str, str, Callable[[], str]]] = [
            (work.title, c.code,
             partial(hash_code, work.data.section, c.algorithm, c.params, c.defenses))
            for c in work.cells[:1]
        ]  # fmt: skip
        asked += [
            (a.label, a.code, partial(getattr, registry.attacks.entry(a.name), "code"))
            for a in work.attacks
        ]
        for what, code, here in asked:
            if order.folder is not None and (what, code) in _seen:
                continue
            if here() != code:
                raise _refuse_code(what, order.folder is None)
            _seen.add((what, code))


def _refuse_code(what: str, remote: bool) -> ConfigError:
    if not remote:
        return ConfigError(f"{what}: its source changed during the audit. {AGAIN}")
    where = f"worker {socket.gethostname()}"
    return ConfigError(f"{where}: the source of {what} differs from the audit's. {_SAME}")


def batch_works(works: Sequence[Work], workers: int) -> list[list[Work]]:
    """Pieces of work as tasks: the dearest first, small ones together.

    A task is at most an eighth of a worker's share, so that nobody waits long for the last one,
    and never holds more than one piece unless it stays below that.

    Args:
        works: what is to be done.
        workers: how many share it.
    """
    costs = {id(w): compute_weight(w) for w in works}
    most = sum(costs.values()) / (8 * workers)
    out: list[list[Work]] = []
    room = 0.0
    for work in sorted(works, key=lambda w: -costs[id(w)]):
        same = out and (out[-1][0].data, out[-1][0].kept) == (work.data, work.kept)
        if same and costs[id(work)] <= room:
            out[-1].append(work)
            room -= costs[id(work)]
        else:
            out.append([work])
            room = most - costs[id(work)]
    return out


def find_replicas(works: Sequence[Work], replicas: int, workers: int) -> int:
    """Most cells of one piece so that none costs more than a worker's share.

    At most `replicas`; parts of fewer than four cells are not made.
    """
    costs = [compute_weight(w) for w in works]
    share = sum(costs) / workers
    parts = [max(1, math.ceil(cost / share - 1e-9)) for cost in costs]
    split = [math.ceil(len(w.cells) / k) for w, k in zip(works, parts, strict=True) if k > 1]
    return min(replicas, max(LEAST, min(split, default=replicas)))
