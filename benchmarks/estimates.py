"""How near `vflsec check` comes: its estimate beside the processor seconds that an audit took.

    python benchmarks/estimates.py [NAME ...]

Every packaged scenario, or those named (a file is a scenario too, and `large` is the drawn table of
150,000 rows of `against.py`), is planned and then audited in a process of its own on one thread,
into a folder that is thrown away. Printed are the seconds of
both, their ratio, and the parts of the estimate. Ratios between a half and two are what `check`
promises; the script ends with 1 where one is outside. All of them take about an hour.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from against import large
from timed import spent

import vflsec

SCENARIOS = Path(vflsec.__file__).parent / "scenarios"
PROMISED = 2.0
LARGE = "large"


def estimated(name: str) -> dict[str, Any]:
    """The cost in the plan of a scenario."""
    told = spent("-m", "vflsec", "check", name, "--format", "json")[0]
    cost = json.loads(told)[0]["plan"]["cost"]
    assert isinstance(cost, dict)
    return cost


def main() -> int:
    names = sys.argv[1:] or sorted(p.stem for p in SCENARIOS.glob("*.toml"))
    print("| scenario | estimate, s | audit, CPU s | ratio | of the estimate: training, controls |")
    print("|---|---|---|---|---|")
    wrong = 0
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            wanted = str(large(Path(folder))) if name == LARGE else name
            cost = estimated(wanted)
            audit = ("audit", wanted, "--out", f"{folder}/out", "--jobs", "1", "--quiet")
            took = spent("-m", "vflsec", *audit)[1]
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
