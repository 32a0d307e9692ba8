"""Memory and open files do not grow with the number of trainings."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_memory_and_files_are_bounded(root: Path) -> None:
    """Five times the trainings, in cohorts of ten: the largest resident set stays what it is."""
    found = []
    for cells in (20, 100):
        command = [
            sys.executable, str(root / "benchmarks" / "scale.py"), "--rows", "20000",
            "--cells", str(cells), "--replicas", "10",
        ]  # fmt: skip
        done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=root)
        found.append(json.loads(done.stdout))
    few, many = found
    assert (few["cells"], many["cells"]) == (20, 100)
    assert many["megabytes"] < few["megabytes"] + 60
    assert many["files"] <= few["files"] + 4
    assert many["store"] < 10
