"""Limits of time in a thread, where no signal arrives: none is left behind, none gets lost."""

from __future__ import annotations

import subprocess
import sys

CODE = '''
import sys, threading, time
from vflsec.plugins.loading import attempt_call

def short():
    return 1

def endless():
    while True:
        time.sleep(0.01)

def late():
    """Ends just as its time does."""
    end = time.monotonic() + {limit}
    while time.monotonic() < end:
        pass
    return 2

out = []

def run():
    for what in {calls}:
        out.append(attempt_call(what, "it", {limit}))
    seen = []
    sys.setprofile(lambda *_: seen.append(1))
    short()  # a call looks for what was thrown
    sys.setprofile(None)
    out.append(len(seen) > 1)

one = threading.Thread(target=run)
one.start()
one.join()
print(out)
'''


def said(calls: str, limit: float) -> str:
    """What is left after these calls in a thread, under a profiler in the end."""
    code = CODE.format(calls=calls, limit=limit)
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    return ran.stdout.strip()


def test_a_call_within_its_time_leaves_nothing_behind() -> None:
    """A limit that was taken back by throwing None stopped everything under a profiler."""
    assert said("[short, short]", 50.0) == "[(1, ''), (1, ''), True]"


def test_what_runs_out_is_stopped_and_the_next_call_is_not() -> None:
    found = said("[endless, short, late, late, short]", 1.2)
    assert found.startswith("[(None, 'it took longer than its timeout of 1.2 s.'), (1, ''), ")
    assert found.endswith(", (1, ''), True]")
