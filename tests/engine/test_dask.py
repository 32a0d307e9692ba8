"""A Dask scheduler that does not answer, or goes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from sound import AUDIT

from vflsec.engine import worker_pools
from vflsec.errors import ConfigError

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
