"""A pool whose workers, or whose scheduler, are not there: the audit says so, and waits or ends."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import tomllib
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from engine_fakes import SCENARIO, Notes, Trainer, backend
from sound import AUDIT

import vflsec
from vflsec.engine import executor, run, worker_pools
from vflsec.errors import ConfigError, VflsecError


class Late(worker_pools.Pool):
    """A worker that comes when it was asked three times whether work waits, goes, and comes."""

    def __init__(self) -> None:
        self.asked, self.there = 0, threading.Event()

    def executor(self) -> Executor:
        pool = self

        class Waiting(ThreadPoolExecutor):
            def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
                def later() -> Any:
                    assert pool.there.wait(30)
                    return fn(*args, **kwargs)

                return super().submit(later)

        return Waiting(1)

    def waits(self) -> str:
        self.asked += 1
        if self.asked == 3:
            self.there.set()
        return "nobody is there." if self.asked <= 3 else ""


def test_work_that_nobody_does_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool, told, trainer = Late(), Notes(), Trainer()
    monkeypatch.setattr(run, "open_cluster", lambda _: pool)
    monkeypatch.setattr(executor, "_PATIENCE", 0.05)
    found = vflsec.run_audit(
        tomllib.loads(SCENARIO), tmp_path, device="cpu", backend=backend(trainer),
        cluster="local:2", progress=told,
    )  # fmt: skip
    assert told.said == ["nobody is there."]
    assert pool.asked >= 3
    assert sorted(trainer.trained) == sorted(set(found.results["cell"]))


@pytest.mark.slow
def test_a_scheduler_of_dask_without_workers_and_one_that_goes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is named with what starts a worker; gone, it is one error, and Dask prints nothing."""
    distributed = pytest.importorskip("distributed")
    level = logging.getLogger("distributed.client").level
    cluster = distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, dashboard_address=None, host="127.0.0.1",
        processes=False, protocol="tcp", silence_logs=50,
    )  # fmt: skip
    address = cluster.scheduler_address
    with worker_pools.open_cluster(f"dask://{address}") as pool:
        assert isinstance(pool, worker_pools.Dask)
        assert pool.waits() == ""
        pool._client.retire_workers()
        assert _until(pool.waits) == (
            f"--cluster: the audit waits for a worker. Start `dask worker {address} --nthreads 1`."
        )
        cluster.close()
        assert _until(lambda: pool._client.status != "running")
        with pytest.raises(VflsecError, match="the scheduler is gone"):
            pool.executor()
        assert pool.waits() == ""
    assert not [r for r in caplog.records if r.name == "distributed.client"]
    assert logging.getLogger("distributed.client").level == level


def _until(ask: Callable[[], Any]) -> Any:
    """What is answered once there is an answer, within half a minute."""
    for _ in range(300):
        if answer := ask():
            return answer
        time.sleep(0.1)
    raise AssertionError("nothing happens")


SCHEDULER = """
import asyncio
from distributed import Scheduler

async def main():
    scheduler = await Scheduler(host="127.0.0.1", port=0, dashboard=False)
    print(scheduler.address, flush=True)
    await scheduler.finished()

asyncio.run(main())
"""


@pytest.mark.slow
def test_no_scheduler_is_one_clear_error() -> None:
    pytest.importorskip("distributed")
    with pytest.raises(ConfigError, match="dask scheduler"):
        worker_pools.Dask("127.0.0.1:1")


@pytest.mark.slow
def test_a_scheduler_that_is_gone_is_one_clear_error(tmp_path: Path) -> None:
    """Dask printed three tracebacks of its own above it."""
    pytest.importorskip("distributed")
    (tmp_path / "case.toml").write_text('[data]\nname = "leaky"\n' + AUDIT)
    start = [sys.executable, "-c", textwrap.dedent(SCHEDULER)]
    with subprocess.Popen(start, stdout=subprocess.PIPE, text=True) as scheduler:
        assert scheduler.stdout is not None
        address = scheduler.stdout.readline().strip()
        told = tmp_path / "told.txt"
        command = [sys.executable, "-m", "vflsec", "audit", "case.toml", "--out", "out",
                   "--cluster", f"dask://{address.removeprefix('tcp://')}"]  # fmt: skip
        with told.open("w") as file:
            audit = subprocess.Popen(command, cwd=tmp_path, stdout=file, stderr=file)
        end = time.monotonic() + 120
        while "waits for a worker" not in told.read_text() and time.monotonic() < end:
            time.sleep(0.2)
        os.kill(scheduler.pid, signal.SIGKILL)
    assert audit.wait(120) == 2
    said = told.read_text()
    assert "Traceback" not in said
    assert "ERROR" not in said
    assert said.rstrip().endswith("again.")
    assert "the scheduler is gone" in said
