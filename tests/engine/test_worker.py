"""One worker: whatever its threads, it does one task at a time."""

from __future__ import annotations

import threading
import time
import tomllib
from pathlib import Path
from typing import Any

from engine_fakes import SCENARIO, Trainer, backend, source

import vflsec
from vflsec.engine import executor
from vflsec.engine.dry_run import make_plan
from vflsec.plan.values import Work


def test_a_worker_with_two_threads_does_one_task_at_a_time(tmp_path: Path) -> None:
    """As those of Dask have, unless they are started with one."""
    plan = make_plan(vflsec.load_scenario(tomllib.loads(SCENARIO)), try_out=False, load=source)
    group = plan.groups[0]
    work = Work(group.data, group.cells, group.attacks, main=True)
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
    order = executor.Order([work], tmp_path, "cpu", made, executor.list_versions(), folder=tmp_path)
    threads = [threading.Thread(target=executor.do_order, args=(order,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1, 1, 1]
