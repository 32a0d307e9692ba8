"""Every damaged or hostile trace is refused with one clear error, and a good one is not."""

from __future__ import annotations

import re
import resource
from functools import partial
from pathlib import Path

import pytest
from forked import run_forked
from hostile import HOSTILE, record
from sampled import sampled

from vflsec.errors import TraceError, VflsecError
from vflsec.trace.limits import Limits
from vflsec.trace.validate import validate, validate_in_subprocess


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return record(tmp_path / "trace")


def test_a_good_trace_is_valid(good: Path) -> None:
    report = validate(good)
    assert report.messages == {"bank": 10}
    assert report.last_step == {"bank": ("train", 0, 4)}
    assert report.notes == []


def test_there_are_at_least_forty() -> None:
    assert len(HOSTILE) >= 40


@pytest.mark.parametrize("name", HOSTILE)
def test_one_clear_error(name: str, good: Path) -> None:
    change, words = HOSTILE[name]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    change(good)
    made = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(VflsecError) as found:
        validate(good, Limits(files=40, batch_bytes=64 << 20))
    text = str(found.value)
    assert re.search(re.escape(words), text), text
    assert text.count("\n") == 0
    assert 20 < len(text) < 500
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert after - max(before, made) < 200_000  # kilobytes: nothing was blown up


def _flip(trace: Path, path: Path, whole: bytes, start: int, step: int, mask: int) -> None:
    for at in range(start, len(whole), step):
        print(at, flush=True)  # noqa: T201
        changed = bytearray(whole)
        changed[at] ^= mask
        path.write_bytes(bytes(changed))
        try:
            validate(trace)
        except TraceError:
            print("refused", flush=True)  # noqa: T201


def _flip_all(trace: Path, path: Path, step: int, mask: int) -> tuple[int, list[int]]:
    """Damage every `step`-th byte in turn: (how often it was refused, where a process died)."""
    whole = path.read_bytes()
    refused, died, start = 0, [], 0
    while True:
        done = run_forked(partial(_flip, trace, path, whole, start, step, mask))
        lines = done.stdout.split()
        refused += lines.count("refused")
        if done.returncode == 0:
            path.write_bytes(whole)
            return refused, died
        assert done.returncode < 0, done.stderr[-2000:]  # a signal, and no exception of Python's
        died.append(int([x for x in lines if x != "refused"][-1]))
        start = died[-1] + step
        assert len(died) < 8


@pytest.mark.slow
def test_random_damage_without_a_seal_is_refused_or_harmless(good: Path) -> None:
    (good / "seal.json").unlink()
    path = good / "view/bank/tensors-d4-f4.parquet"
    refused, died = _flip_all(good, path, 29, 0x55)
    assert refused > 20
    data = path.read_bytes()
    for at in died[:2]:  # what kills a reader is one clear error from the outside
        changed = bytearray(data)
        changed[at] ^= 0x55
        path.write_bytes(bytes(changed))
        with pytest.raises(TraceError, match="exit code"):
            validate_in_subprocess(good)


@pytest.mark.parametrize(("step", "least"), sampled([(83, 12), (37, 30), (11, 100)]))
def test_random_damage_to_a_segment_is_refused_or_harmless(
    step: int, least: int, tmp_path: Path
) -> None:
    record(tmp_path / "trace", sealed=False)
    path = tmp_path / "trace/view/bank/raw-0000-d4-f4.arrows"
    refused, died = _flip_all(tmp_path / "trace", path, step, 0x81)
    assert refused > least
    assert died == []


@pytest.mark.slow
def test_apart_says_the_same(good: Path) -> None:
    assert validate_in_subprocess(good).messages == {"bank": 10}


@pytest.mark.usefixtures("read_in_forks")
def test_apart_refuses_the_same(good: Path) -> None:
    HOSTILE["a row outside"][0](good)
    with pytest.raises(TraceError, match=r"be 0 to 39"):
        validate_in_subprocess(good)
