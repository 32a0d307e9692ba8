"""What workers and their parent do before and beside the work."""

from __future__ import annotations

import gc
import tomllib
from pathlib import Path
from typing import Any

import pytest
from engine_fakes import SCENARIO, Trainer, backend
from test_parallel import Threads

import vflsec
from vflsec.engine import run, worker_pools
from vflsec.report import outputs
from vflsec.storage.store import Store


@pytest.mark.parametrize(("shard", "times"), [("", 1), ("1/2", 0)])
def test_reports_are_imported_while_the_last_worker_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shard: str, times: int
) -> None:
    """Two workers and several tasks: once, when fewer tasks are left than there are workers."""
    told: list[str] = []
    commit = Store.commit

    def kept(self: Store, *args: Any, **how: Any) -> None:
        told.append("kept")
        commit(self, *args, **how)

    monkeypatch.setattr(Store, "commit", kept)
    monkeypatch.setattr(run, "cluster", lambda _: Threads())
    monkeypatch.setattr(outputs, "prepare", lambda: told.append("prepare"))
    monkeypatch.setattr(outputs, "write_reports", lambda *_: told.append("report"))
    vflsec.run_audit(
        tomllib.loads(SCENARIO), tmp_path, device="cpu", backend=backend(Trainer()), replicas=1,
        cluster="local:2", shard=shard,
    )  # fmt: skip
    assert told.count("prepare") == times
    if times:
        at = told.index("prepare")
        assert told[at - 1] == told[at + 1] == "kept"
        assert set(told[at + 1 : -1]) == {"kept"}
        assert told[-1] == "report"


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
