"""What workers and their parent do before and beside the work."""

from __future__ import annotations

import gc

from vflsec.engine import worker_pools


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
