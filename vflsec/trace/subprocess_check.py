"""Checks a trace in a process of its own: what makes a decoder crash or eat memory ends there.

The libraries that decode tables are written in C++ and were seen to abort on damaged files whose
hashes somebody made right again. A trace from outside is read here first.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vflsec.errors import TraceError
from vflsec.trace.limits import Limits

__all__ = ["validate_in_subprocess"]

_ROOM = 4 << 30


def validate_in_subprocess(
    folder: str | Path,
    limits: Limits | None = None,
    *,
    nonfinite: str = "refuse",
    seconds: float = 3600,
) -> dict[str, Any]:
    """:func:`vflsec.trace.validate.validate` in a child process with bounded memory and time.

    Returns:
        ``messages`` and ``last_step`` by observer, ``notes``.

    Raises:
        TraceError: what is wrong, also if the child died of it.
    """
    asked = {"folder": str(folder), "limits": asdict(limits or Limits()), "nonfinite": nonfinite}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "vflsec.trace.subprocess_check"],
            input=json.dumps(asked),
            capture_output=True,
            text=True,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        raise TraceError(f"{folder}: was not read within {seconds:g} seconds.") from None
    try:
        found = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        raise TraceError(
            f"{folder}: is damaged in a way that ends the process that reads it (exit code "
            f"{done.returncode}). Do not read it; ask for another copy."
        ) from None
    if "error" in found:
        raise TraceError(found["error"])
    report: dict[str, Any] = found["report"]
    return report


def _bounded(limits: Limits) -> None:
    try:
        import resource
    except ImportError:  # not on this system
        return
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    room = now + _ROOM + 2 * limits.batch_bytes
    if most == resource.RLIM_INFINITY or room < most:
        resource.setrlimit(resource.RLIMIT_AS, (room, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _main() -> None:
    from vflsec.trace.validate import validate

    asked = json.loads(sys.stdin.read())
    limits = Limits(**asked["limits"])
    if sys.platform == "linux":
        _bounded(limits)
    try:
        found = validate(asked["folder"], limits, nonfinite=asked["nonfinite"])
        out: dict[str, Any] = {
            "report": {
                "messages": found.messages, "last_step": found.last_step, "notes": found.notes,
            }
        }  # fmt: skip
    except TraceError as why:
        out = {"error": str(why)}
    except MemoryError:
        out = {"error": f"{asked['folder']}: takes more memory to read than a trace may."}
    sys.stdout.write(json.dumps(out) + "\n")


if __name__ == "__main__":
    _main()
