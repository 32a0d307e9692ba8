"""Ratios of one run, written below those of earlier runs; says which of them fell.

Seconds of different days tell nothing: machines differ, and a shared one differs from itself. Two
sides that are timed in one run, interleaved, give a ratio that holds. Kept are only ratios, larger
is better, with a description of the machine:

* engine / bare loop at batch 64 and 512 with 8 and 32 replicas (``benchmarks/throughput.py``);
* import of torch / ``vflsec check quickstart``, each in a process of its own.

``python benchmarks/history.py`` (``make bench``) appends a line to ``benchmarks/history.jsonl``
and warns of each ratio that is more than a fifth below the median of the last five lines of a
machine of the same description.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from timed import spent

FILE = Path(__file__).with_name("history.jsonl")
FELL = 0.2
"""Share of its usual value that a ratio may lose."""
LAST = 5

Line = Mapping[str, Any]


def machine() -> dict[str, Any]:
    """What the ratios depend on: processor, cores, memory in GB and versions; no names."""
    import numpy as np
    import torch

    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        models = [s for s in info.read_text().splitlines() if s.startswith("model name")]
        cpu = models[0].partition(":")[2].strip() if models else cpu
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    return {
        "cpu": cpu, "cores": os.cpu_count(), "memory_gb": round(memory),
        "vectors": torch.backends.cpu.get_cpu_capability(), "python": platform.python_version(),
        "torch": torch.__version__, "numpy": np.__version__,
    }  # fmt: skip


def read(file: Path) -> list[dict[str, Any]]:
    """The lines of a history, oldest first; none if there is no file.

    Raises:
        SystemExit: a line is not one of a history.
    """
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    out = []
    for i, text in enumerate(lines, 1):
        try:
            line = json.loads(text)
            usable = isinstance(line["machine"], dict) and all(
                isinstance(v, int | float) and v > 0 for v in line["ratios"].values()
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            usable = False
        if not usable:
            raise SystemExit(f"{file}:{i}: is not a line of a history, got {text!r}. Remove it.")
        out.append(line)
    return out


def usual(before: Iterable[Line], on: Mapping[str, Any]) -> dict[str, float]:
    """Median of each ratio over its last lines on a machine of this description."""
    seen: dict[str, list[float]] = {}
    for line in before:
        if line["machine"] == on:
            for name, ratio in line["ratios"].items():
                seen.setdefault(name, []).append(ratio)
    return {name: statistics.median(found[-LAST:]) for name, found in seen.items()}


def fallen(now: Mapping[str, float], before: Mapping[str, float]) -> list[str]:
    """A sentence for each ratio that lost more than a fifth of what is usual, or is gone."""
    out = []
    for name, was in before.items():
        if name not in now:
            out.append(f"{name}: is not measured any more, was {was:.2f}.")
        elif now[name] < (1 - FELL) * was:
            lost = 100 * (1 - now[name] / was)
            out.append(f"{name}: fell by {lost:.0f} %, from {was:.2f} to {now[name]:.2f}.")
    return out


def add(file: Path, ratios: Mapping[str, float], on: Mapping[str, Any], when: str) -> list[str]:
    """Append the ratios of a run; returns what is to be warned of.

    Args:
        file: the history; is made if there is none.
        ratios: by name, larger is better.
        on: the machine.
        when: the day.
    """
    found = fallen(ratios, usual(read(file), on))
    rounded = {name: round(r, 3) for name, r in ratios.items()}
    line = json.dumps({"when": when, "machine": dict(on), "ratios": rounded})
    with file.open("a", encoding="utf-8") as out:
        out.write(line + "\n")
    return found


def start(rounds: int) -> float:
    """Import of torch over ``check`` of the quickstart, each in turn: the median."""
    sides: list[float] = []
    for _ in range(rounds + 1):  # the first fills the caches
        alone = spent("-c", "import torch")[1]
        sides.append(alone / spent("-m", "vflsec", "check", "quickstart")[1])
    return statistics.median(sides[1:])


def measured(rounds: int, seconds: float) -> dict[str, float]:
    """All ratios of a run."""
    import torch
    from throughput import table

    torch.set_num_threads(1)
    out = {"import of torch / check of the quickstart": start(max(3, rounds // 3))}
    for row in table(rounds, seconds, replicas=(8, 32)):
        name = f"engine / bare loop, batch {row['batch']}, {row['replicas']} replicas"
        out[name] = row["ratio"]
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9, help="interleaved rounds (default 9)")
    parser.add_argument("--seconds", type=float, default=0.25, help="CPU seconds a measurement")
    parser.add_argument("--file", type=Path, default=FILE, help="the history")
    given = parser.parse_args()
    read(given.file)  # refuse before the work
    ratios = measured(given.rounds, given.seconds)
    warnings = add(given.file, ratios, machine(), f"{datetime.now(UTC):%Y-%m-%d}")
    for name, ratio in ratios.items():
        print(f"{ratio:6.2f}  {name}")
    for sentence in warnings:
        print(f"warning: {sentence}", file=sys.stderr)


if __name__ == "__main__":
    main()
