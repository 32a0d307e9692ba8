"""What runs on an emulated device (`on_other_device`), in a process of its own.

torch counts devices at the first backward pass of a process; one that is added later has no queue.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from torch.utils import backend_registration

CASES = [Path(__file__).with_name(f"on_other_device{more}.py") for more in ("", "_kept")]


@pytest.mark.skipif(
    not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"),
    reason="this torch has no devices that are written in Python",
)
@pytest.mark.parametrize(
    ("marked", "least"),
    [
        ("not slow", 12),
        pytest.param("slow", 130, marks=[pytest.mark.slow, pytest.mark.long]),
    ],
)
def test_nothing_mixes_devices_or_waits(marked: str, least: int) -> None:
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", marked,
               *map(str, CASES)]  # fmt: skip
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout.rpartition(" passed")[0].split()[-1]) >= least
