"""A pool whose workers are not there: the audit says what it waits for, and waits."""

from __future__ import annotations

import logging
import threading
import time
import tomllib
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from engine_fakes import SCENARIO, Notes, Trainer, backend

import vflsec
from vflsec.engine import executor, run, worker_pools
from vflsec.errors import VflsecError


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
