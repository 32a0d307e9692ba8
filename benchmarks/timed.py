"""Processor time of a command: in a process of its own, on one thread."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

ONE = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
"""Environment of a process that works on one thread."""
VERDICTS = (0, 1, 3)
"""Exit codes of ``vflsec`` that are no error."""


def spent(
    *arguments: str, codes: Collection[int] = VERDICTS, code: Path | None = None
) -> tuple[str, float]:
    """Output of Python with these arguments, and its processor seconds.

    Args:
        arguments: of the interpreter, as ``-m vflsec check quickstart``.
        codes: exit codes that are no error.
        code: folder of the code to run; None for what is installed.

    Raises:
        SystemExit: it ended with another code.
    """
    env = {**os.environ, **ONE, **({"PYTHONPATH": str(code)} if code else {})}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # as for a user: modules are compiled once
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, *arguments], cwd=code, env=env, capture_output=True, text=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode not in codes:
        raise SystemExit(f"python {' '.join(arguments)}: exit {done.returncode}\n{done.stderr}")
    took = sum(getattr(after, k) - getattr(before, k) for k in ("ru_utime", "ru_stime"))
    return done.stdout, took
