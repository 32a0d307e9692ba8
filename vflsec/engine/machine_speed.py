"""How fast this machine is beside the one that the estimates were made on; kept between runs."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

from vflsec._version import __version__
from vflsec.plan.estimate import Machine
from vflsec.runtime.atomic_files import write_atomic

_REFERENCE = 0.020  # processor seconds of `_work` on the machine of the estimates


def place() -> Path:
    """The file in ``$VFLSEC_CACHE``, else in the user's cache, as the system has it."""
    if os.environ.get("VFLSEC_CACHE"):
        return Path(os.environ["VFLSEC_CACHE"]) / "machine.json"
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA", "")
    else:
        base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base else Path.home() / ".cache") / "vflsec" / "machine.json"


def machine(work: Callable[[], None] | None = None) -> Machine:
    """This machine, from what was kept, or by a calibration of a tenth of a second.

    Nothing depends on it but the estimates of `vflsec check`; where nothing can be kept it is
    measured each time.

    Args:
        work: what is timed, for tests.
    """
    if work is None:
        return _this()
    with suppress(OSError, ValueError, RuntimeError, RecursionError):
        found = json.loads(place().read_text(encoding="utf-8"))
        if isinstance(found, dict) and found.get("version") == __version__:
            slowness = found.get("slowness")
            if isinstance(slowness, float) and 0.01 < slowness < 100:
                return Machine(slowness)
    times = []
    for _ in range(3):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    slowness = min(100.0, max(0.01, min(times) / _REFERENCE))
    with suppress(Exception):
        place().parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"version": __version__, "slowness": slowness})
        write_atomic(place(), lambda p: p.write_text(text, encoding="utf-8"))
    return Machine(slowness)


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
