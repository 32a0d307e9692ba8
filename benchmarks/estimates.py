"""How near `vflsec check` comes: its estimate beside the processor seconds that an audit took.

    python benchmarks/estimates.py [NAME ...]

Every packaged scenario, or those named (a file is a scenario too), is planned and then audited in a
process of its own on one thread, into a folder that is thrown away. Printed are the seconds of
both, their ratio, and the parts of the estimate. Ratios between a half and two are what `check`
promises; the script ends with 1 where one is outside. All of them take about an hour.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import vflsec

SCENARIOS = Path(vflsec.__file__).parent / "scenarios"
PROMISED = 2.0


def command(*arguments: str) -> tuple[str, float]:
    """Output and processor seconds of a command of vflsec.

    Raises:
        SystemExit: it ended with a code that is no verdict.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    one = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    done = subprocess.run(
        [sys.executable, "-m", "vflsec", *arguments],
        env=os.environ | one, capture_output=True, text=True,
    )  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode not in (0, 1, 3):
        raise SystemExit(f"vflsec {' '.join(arguments)}: exit {done.returncode}\n{done.stderr}")
    spent = [u.ru_utime + u.ru_stime for u in (before, after)]
    return done.stdout, spent[1] - spent[0]


def estimated(name: str) -> dict[str, Any]:
    """The cost in the plan of a scenario."""
    cost = json.loads(command("check", name, "--format", "json")[0])[0]["plan"]["cost"]
    assert isinstance(cost, dict)
    return cost


def main() -> int:
    names = sys.argv[1:] or sorted(p.stem for p in SCENARIOS.glob("*.toml"))
    print("| scenario | estimate, s | audit, CPU s | ratio | of the estimate: training, controls |")
    print("|---|---|---|---|---|")
    wrong = 0
    for name in names:
        cost = estimated(name)
        with tempfile.TemporaryDirectory() as out:
            took = command("audit", name, "--out", f"{out}/out", "--jobs", "1", "--quiet")[1]
        ratio = cost["seconds"] / took
        wrong += not 1 / PROMISED <= ratio <= PROMISED
        print(
            f"| {name} | {cost['seconds']:.0f} | {took:.0f} | {ratio:.2f} | "
            f"{cost['training_seconds']:.0f}, {cost['control_seconds']:.0f} |",
            flush=True,
        )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
