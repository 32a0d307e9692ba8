"""What worker processes do before and beside the work, and one task at a time."""

from __future__ import annotations

import gc
import threading
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest
from engine_fakes import SCENARIO, Trainer, backend, source

import vflsec
from vflsec.engine import executor, worker_pools
from vflsec.engine.dry_run import make_plan
from vflsec.errors import ConfigError
from vflsec.plan.values import Work


def made_work() -> Work:
    """The first group of the scenario."""
    plan = make_plan(vflsec.load_scenario(tomllib.loads(SCENARIO)), try_out=False, load=source)
    group = plan.groups[0]
    return Work(group.data, group.cells, group.attacks, main=True)


def test_a_worker_with_two_threads_does_one_task_at_a_time(tmp_path: Path) -> None:
    """As those of Dask have, unless they are started with one."""
    busy: list[int] = []
    most: list[int] = []

    class Slow(Trainer):
        def __call__(self, *args: Any, **more: Any) -> Any:
            busy.append(1)
            most.append(len(busy))
            time.sleep(0.1)
            busy.pop()
            return super().__call__(*args, **more)

    made = backend(Slow())
    order = executor.Order(
        [made_work()], tmp_path, "cpu", made, executor.list_versions(), folder=tmp_path
    )
    threads = [threading.Thread(target=executor.do_order, args=(order,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1, 1, 1]


def test_a_process_beside_reads_the_source_that_was_planned_or_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that was edited between the plan and its import by a worker gave figures under the key
    of the source before. What is imported is kept, so a later edit stops nothing.
    """
    monkeypatch.setattr(executor, "_seen", set())
    real, asked = executor.hash_code, []

    def told(*args: Any) -> str:
        asked.append(args)
        return real(*args) if len(asked) > 1 else "edited"

    monkeypatch.setattr(executor, "hash_code", told)
    order = executor.Order([made_work()], tmp_path, "cpu", backend(Trainer()), {}, tmp_path)
    with pytest.raises(ConfigError, match=r"breast_cancer · .* its source changed"):
        executor.do_order(order)
    assert len(executor.do_order(order)) == 1
    monkeypatch.setattr(executor, "hash_code", lambda *_: "edited again")
    assert len(executor.do_order(order)) == 1


def test_a_worker_is_not_searched_for_garbage() -> None:
    """Its manager asks for a full search every second: through all that was imported."""
    workers = worker_pools.Processes(1)
    try:
        workers.warm()
        frozen, often = workers.executor().submit(_garbage).result()
    finally:
        workers.stop()
    assert frozen > 100_000
    assert often == 200_000


def _garbage() -> tuple[int, int]:
    return gc.get_freeze_count(), gc.get_threshold()[0]
