"""Processes that begin as forks of this one: a new Python imports torch for two seconds."""

from __future__ import annotations

import io
import multiprocessing
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from types import SimpleNamespace

import pytest

CONTEXT = multiprocessing.get_context("fork")
"""For processes that talk with the one that asked for them."""


def run_forked(do: Callable[[], object], given: str = "") -> subprocess.CompletedProcess[str]:
    """What `subprocess.run` returns of a process that reads `given` and does `do`."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                sys.stdin, sys.stdout, sys.stderr = io.StringIO(given), out, err
                os.dup2(err.fileno(), 2)  # where a library says why it aborts
                do()
                code = 0
            except BaseException:
                traceback.print_exc(file=err)
            finally:
                out.flush()
                err.flush()
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess([], code, out.read(), err.read())


def read_apart_in_forks(patch: pytest.MonkeyPatch) -> None:
    """Let traces be read apart in a fork; that a new process does as well: test_validate."""
    from vflsec.trace import validate

    def run(command: list[str], *, input: str, **_: object) -> subprocess.CompletedProcess[str]:
        assert command == [sys.executable, "-m", validate.__name__]
        return run_forked(validate._main, input)

    held = SimpleNamespace(run=run, TimeoutExpired=subprocess.TimeoutExpired)
    patch.setattr(validate, "subprocess", held)
