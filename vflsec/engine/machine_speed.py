"""How fast this machine is beside the one that the estimates were made on."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache

from vflsec.plan.estimate import Machine

_REFERENCE = 0.020  # processor seconds of `_work` on the machine of the estimates


def machine(work: Callable[[], None] | None = None) -> Machine:
    """This machine, by a calibration of a tenth of a second.

    Nothing depends on it but the estimates of `vflsec check`.

    Args:
        work: what is timed, for tests.
    """
    if work is None:
        return _this()
    times = []
    for _ in range(3):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return Machine(min(100.0, max(0.01, min(times) / _REFERENCE)))


@cache
def _this() -> Machine:
    return machine(_work)


def _work() -> None:
    """Small products, as training makes them, and calls of Python between them."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    x = torch.ones(8, 64, 64)
    for _ in range(200):
        x = torch.bmm(x, x).mul_(1 / 64)
    torch.set_num_threads(before)
