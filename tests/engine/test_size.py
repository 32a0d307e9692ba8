"""Memory and open files do not grow with the number of trainings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from vflsec.runtime import malloc_trim
from vflsec.runtime.malloc_trim import give_back

BLOCK = 60_000  # bytes; small enough to lie in the heap
LARGE = """
import resource, sys
from vflsec.runtime.malloc_trim import hold

def pages():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

held = sys.argv[1] == "hold" and hold()
size = 40_000_000
b"x" * size
before = pages()
for _ in range(10):
    b"x" * size
print(int(held), (pages() - before) * resource.getpagesize() / size)
"""


def resident() -> float:
    """Megabytes of this process that are no file's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(li.split()[1]) for li in lines if li.startswith("RssAnon")) / 1024


@pytest.mark.skipif(not give_back(), reason="a C library that has no malloc_trim")
def test_what_one_block_keeps_from_the_system_is_given_back() -> None:
    blocks = [np.ones(BLOCK, np.uint8) for _ in range(3000)]
    pins = blocks[::50]
    full = resident()
    del blocks
    assert give_back()
    assert resident() < full - 0.8 * 3000 * BLOCK / 2**20
    assert all(p[0] == 1 for p in pins)


def asked(how: str, **environment: str) -> tuple[int, float]:
    """Whether memory was held, and how many of ten equal blocks of memory were asked for."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_"))}
    done = subprocess.run(
        [sys.executable, "-c", LARGE, how], check=True, capture_output=True, text=True,
        env=env | environment,
    )  # fmt: skip
    held, blocks = done.stdout.split()
    return int(held), float(blocks)


@pytest.mark.skipif(not give_back(), reason="a C library that has no malloc_trim")
def test_large_blocks_stay_at_hand() -> None:
    held, blocks = asked("free")
    assert (held, blocks > 9) == (0, True)
    held, blocks = asked("hold")
    assert (held, blocks < 1.5) == (1, True)
    assert asked("hold", MALLOC_TRIM_THRESHOLD_="131072")[0] == 0


@pytest.mark.parametrize(("threshold", "of_dask"), [(65536, True), (131072, False)])
def test_what_dask_sets_for_a_worker_is_no_users_choice(
    monkeypatch: pytest.MonkeyPatch, threshold: int, of_dask: bool
) -> None:
    own = {"MALLOC_TRIM_THRESHOLD_": 65536}
    dask = SimpleNamespace(config=SimpleNamespace(get=lambda _name, _default: own))
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", str(threshold))
    assert not malloc_trim._is_of_dask("MALLOC_TRIM_THRESHOLD_")
    monkeypatch.setitem(sys.modules, "distributed", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "dask", dask)
    assert malloc_trim._is_of_dask("MALLOC_TRIM_THRESHOLD_") is of_dask


@pytest.mark.slow
@pytest.mark.long
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
