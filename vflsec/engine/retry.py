"""Work done by workers: in processes, on a cluster; with retry rounds when one dies.

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
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from vflsec.engine.audit_record import versions
from vflsec.engine.executor import Backend, Done, Tasks, commit, default_backend, do_work, run_work
from vflsec.engine.shard import LEAST
from vflsec.engine.worker_pools import Pool
from vflsec.errors import ConfigError, VflsecError
from vflsec.plan.cells import code_of
from vflsec.plan.estimate import compute_weight
from vflsec.plan.values import Work
from vflsec.plugins import registry
from vflsec.plugins.loading import allow_imports
from vflsec.specs import AttackSpec, CellSpec
from vflsec.storage.store import Store

if TYPE_CHECKING:
    from vflsec.train.view_writer import Keep

_ROUNDS = 3  # of workers dying without any progress in between
_PATIENCE = 5.0  # seconds in which nothing ends, after which a pool is asked whether it waits


@dataclass(frozen=True)
class _Order:
    """What a worker is told; it travels to it."""

    works: Sequence[Work]
    base: Path
    device: str
    backend: Backend | None
    versions: Mapping[str, str]
    folder: Path | None = None
    controls: Path | None = None
    keep: Keep | None = None
    turn: int = 0


def _work(order: _Order) -> list[Done]:
    """Do the work; refuse to where this machine would not give the figures of the one that asks.

    Raises:
        ConfigError: versions, tables or the source of plug-ins differ; of a process beside the one
            that asks, the source alone can, where a file was edited before it was imported.
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


def _find_tasks(order: _Order) -> Tasks:
    """The tasks of this worker, which it need not make anew for every piece of work."""
    if order.backend is not None:
        return Tasks(order.backend, order.base)
    key = (order.base, order.controls, os.getpid())
    if key not in _here:
        _here.clear()
        _here[key] = Tasks(default_backend(), order.base, order.controls)
    return _here[key]


def _check_versions(order: _Order) -> None:
    mine = versions()
    where = f"worker {socket.gethostname()}"
    for name, asked in order.versions.items():
        if name != "python" and mine[name] != asked:
            raise ConfigError(
                f"{where}: has {name} {mine[name]}, the audit runs with {asked}. Install the same "
                "on every machine: results of different versions are not those of one audit."
            )


_seen: set[tuple[str, str]] = set()  # what runs and its source, as this process has imported it


def _check_code(order: _Order) -> None:
    """Of a process on this machine once: what it has imported it keeps, whatever is edited then."""
    for work in order.works:
        asked: list[tuple[str, str, Callable[[], str]]] = [
            (work.title, c.code, partial(_hash_code, work, c)) for c in work.cells[:1]
        ]
        asked += [(a.label, a.code, partial(_code_of_attack, a)) for a in work.attacks]
        for what, code, here in asked:
            if order.folder is not None and (what, code) in _seen:
                continue
            if here() != code:
                raise _refuse_code(what, order.folder is None)
            _seen.add((what, code))


def _refuse_code(what: str, remote: bool) -> ConfigError:
    if not remote:
        return ConfigError(
            f"the source that {what} runs was changed after the audit began, before a worker had "
            "read it. Run the same command again: what is finished is kept."
        )
    return ConfigError(
        f"worker {socket.gethostname()}: the source that {what} runs differs from that of the "
        "audit. Install the same plug-ins, and lay the scenario's modules, on every machine, and "
        "have vflsec in a checkout on all of them or on none."
    )


def _hash_code(work: Work, cell: CellSpec) -> str:
    return code_of(work.data.section, cell.algorithm, cell.params, cell.defenses)


def _code_of_attack(attack: AttackSpec) -> str:
    return registry.attacks.entry(attack.name).code


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


def _wait_each(
    futures: Iterable[Future[list[Done]]], pool: Pool, note: Callable[[str], None]
) -> Iterator[Future[list[Done]]]:
    """Each when it ends; what they wait for is noted once, and again if it happens again."""
    left, said = set(futures), ""
    while left:
        ended, left = wait(left, _PATIENCE, FIRST_COMPLETED)
        why = "" if ended else pool.waits()
        if why and why != said:
            note(why)
        said = why
        yield from ended


@dataclass(frozen=True)
class Shared:
    """What all work of an audit has in common.

    Attributes:
        base: of relative paths.
        device: where to train.
        backend: makes tasks and trains them; the package's own if None.
        keep: where views are kept, if they are.
        controls: a folder that all workers see, in which they share controls.
    """

    base: Path
    device: str
    backend: Backend | None = None
    keep: Keep | None = None
    controls: Path | None = None


@dataclass
class Listener:
    """Who is told what happens in an audit by several workers.

    Attributes:
        finished: called after each piece of work.
        note: told what the user should know.
        idle: called once when a worker has nothing left to do, and others work.
    """

    finished: Callable[[Work], None]
    note: Callable[[str], None]
    idle: Callable[[], None]
    busy: bool = True

    def tell_idle(self) -> None:
        """Say that a worker has nothing left to do, the first time."""
        if self.busy:
            self.busy = False
            self.idle()


def run_parallel(
    todo: Callable[[bool], Sequence[Work]],
    store: Store,
    pool: Pool,
    shared: Shared,
    listener: Listener,
) -> None:
    """Do all work by the workers of a pool; when one dies, do again what is not in the store.

    Args:
        todo: the work that is not finished, asked before every round; its argument is whether
            errors count as not finished, which is so in the first round only.
        store: for the results.
        pool: of workers.
        shared: what every worker is told.
        listener: told what happens, in this process.

    Raises:
        VflsecError: workers died in three rounds in a row without finishing anything.
    """
    folder = None if pool.remote else store.folder
    order = _Order(
        (), shared.base, shared.device, shared.backend, versions(), folder, shared.controls,
        shared.keep,
    )  # fmt: skip
    here = Tasks(shared.backend or default_backend(), shared.base)
    fruitless, first = 0, True
    while works := list(todo(first)):
        first = False
        found = _do_round(works, store, pool, order, here, listener)
        if found.lost:
            fruitless = 0 if found.done else fruitless + 1
            if fruitless >= _ROUNDS:
                raise VflsecError(
                    f"workers died {_ROUNDS} times in a row without finishing anything, most often "
                    "for lack of memory. Run the same command with a smaller --replicas or --jobs; "
                    "what is finished is kept."
                )


@dataclass
class _Round:
    """How many pieces a round finished, and whether a worker was lost in it."""

    done: int = 0
    lost: bool = False


def _do_round(
    works: Sequence[Work], store: Store, pool: Pool, order: _Order, here: Tasks, listener: Listener
) -> _Round:
    """Every piece of work once, as far as workers live."""
    out = _Round()
    executor = pool.executor()
    local = [w for w in works if w.kept and pool.remote]  # kept views lie on this machine
    tasks = batch_works([w for w in works if not (w.kept and pool.remote)], pool.workers)
    try:
        futures = {
            executor.submit(_work, replace(order, works=t, turn=k)): t for k, t in enumerate(tasks)
        }
        for work in local:
            do_work(work, store, here, order.device)
            listener.finished(work)
        for left, future in zip(
            count(len(futures) - 1, -1), _wait_each(futures, pool, listener.note), strict=False
        ):
            try:
                found = future.result()
            except pool.lost:
                out.lost = True
                continue
            for work, results in zip(futures[future], found, strict=True):
                _take_in(store, work, results, listener)
                out.done += 1
            if 0 < left < pool.workers:
                listener.tell_idle()
    except pool.lost:
        out.lost = True
    except BaseException:
        pool.stop()
        raise
    return out


def _take_in(store: Store, work: Work, results: Done, listener: Listener) -> None:
    """Write what a worker found."""
    for text in results.notes:
        listener.note(text)
    commit(store, work, results)
    listener.finished(work)
