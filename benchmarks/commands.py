"""Whole commands, imports and reports included: a small audit, the same again, and two processes or
a cluster of two workers against one process.

* small: the breast-cancer table, 4 strengths of noise x 5 seeds x 3 attacks with controls and the
  report, in processor time over that of ``import torch``, each in a process of its own, in turn;
  and the same command again, which has nothing to do;
* cluster: the quickstart with 20 seeds, ``--cluster local:2`` and one process in turn, in processor
  time with that of workers; it needs ``vflsec[cluster]``;
* jobs: 20,000 drawn rows (``--rows``), four architectures of 10 trainings of 12 epochs
  (``--epochs``), ``--jobs 1`` and
  ``--jobs 2`` in turn, by the clock: of the whole command, and of its work alone. Beside them what
  the machine gives two processes that share nothing: ``--jobs 1`` twice at a time. It needs two
  cores that nothing else uses.

Run ``python benchmarks/commands.py``; ``--only small``, ``jobs`` or ``cluster`` for one of them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from timed import ONE, spent

BARE = "[audit]\nseeds = 5\nreferences = []\npositive_control = false\ncanaries = false\n"
SMALL = (
    '[data]\nname = "breast_cancer"\n[algorithm]\nname = "splitnn"\n'
    '[[defense]]\nname = "iso"\nstrength = [0, 1, 5, 25]\n[[attack]]\nname = "norm"\n'
    '[[attack]]\nname = "direction"\nknown_rows = 20\n'
    '[[attack]]\nname = "model_completion"\nknown_rows = 20\n' + BARE
)
LARGE = (
    '[data]\nname = "control_gaussian"\nparams = { rows = ROWS }\n'
    + "".join(
        f'[[algorithm]]\nname = "splitnn"\nhidden = [{h}]\nepochs = EPOCHS\n'
        for h in (64, 72, 80, 88)
    )
    + '[[defense]]\nname = "iso"\nstrength = [0, 5]\n[[attack]]\nname = "norm"\n'
    + BARE
)


def small(rounds: int, folder: Path) -> None:
    """The small table beside the import of torch."""
    (folder / "small.toml").write_text(SMALL, encoding="utf-8")
    found: dict[str, list[tuple[float, float]]] = {"small": [], "small again": []}
    for k in range(rounds + 1):  # the first fills the caches
        alone = spent("-c", "import torch")[1]
        for name in found:
            took = spent("-m", "vflsec", "audit", str(folder / "small.toml"), "--out",
                         str(folder / f"small{k}"), "--device", "cpu")[1]  # fmt: skip
            found[name].append((took, took / alone))
    for name, every in found.items():
        seconds, ratios = zip(*every[1:], strict=True)
        print(f"{name}: {statistics.median(seconds):.1f} CPU s, "
              f"{statistics.median(ratios):.2f} times the import of torch "
              f"({min(ratios):.2f} to {max(ratios):.2f}), {rounds} rounds")  # fmt: skip


def cluster(rounds: int, folder: Path) -> None:
    """Two workers of a local cluster and one process, in turn."""
    audit = ("-m", "vflsec", "audit", "quickstart", "--seeds", "20", "--device", "cpu", "--out")
    ratios = []
    for k in range(rounds):
        one = spent(*audit, str(folder / f"one{k}"))[1]
        two = spent(*audit, str(folder / f"two{k}"), "--cluster", "local:2")[1]
        ratios.append(two / one)
        same = [(folder / f"{n}{k}" / "results.csv").read_bytes() for n in ("one", "two")]
        if same[0] != same[1]:
            raise SystemExit("cluster: other results than in one process")
    print(f"cluster: {statistics.median(ratios):.2f} times the processor time of one process "
          f"({min(ratios):.2f} to {max(ratios):.2f}), {rounds} rounds, equal results")  # fmt: skip


def jobs(rounds: int, rows: int, epochs: int, folder: Path) -> None:
    """One process and two, in turn."""
    text = LARGE.replace("ROWS", str(rows)).replace("EPOCHS", str(epochs))
    (folder / "large.toml").write_text(text, encoding="utf-8")
    whole, work, machine, alone = [], [], [], []
    for k in range(rounds):
        found = [_clock(folder, f"{k}-{many}", many) for many in (1, 2)]
        with ThreadPoolExecutor(2) as pool:
            both = list(pool.map(lambda side: _clock(folder, side, 1), (f"{k}-a", f"{k}-b")))
        whole.append(found[0][0] / found[1][0])
        alone.append(found[0][0])
        work.append(found[0][1] / found[1][1])
        machine.append(2 * found[0][1] / max(took for _, took in both))
    for name, ratios in (
        ("whole command", whole), ("its work", work), ("two audits that share nothing", machine),
    ):  # fmt: skip
        print(f"jobs: {name} {statistics.median(ratios):.2f} times faster with two processes "
              f"({min(ratios):.2f} to {max(ratios):.2f}), {rounds} rounds")  # fmt: skip
    print(f"jobs: one process takes {statistics.median(alone):.0f} s")


def _clock(folder: Path, name: str, many: int) -> tuple[float, float]:
    """Seconds by the clock of the command and of the run within it."""
    out = folder / f"large{name}"
    command = [sys.executable, "-m", "vflsec", "audit", str(folder / "large.toml"), "--out",
               str(out), "--device", "cpu", "--jobs", str(many)]  # fmt: skip
    start = time.perf_counter()
    subprocess.run(
        command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env={**os.environ, **ONE},
    )  # fmt: skip
    whole = time.perf_counter() - start
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    return whole, float(summary["cost"]["run_seconds"])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=20_000, help="of the table of jobs")
    parser.add_argument("--epochs", type=int, default=12, help="of the trainings of jobs")
    parser.add_argument("--only", choices=("small", "jobs", "cluster"))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        if given.only in (None, "small"):
            small(given.rounds, Path(name))
        if given.only in (None, "jobs"):
            jobs(given.rounds, given.rows, given.epochs, Path(name))
        if given.only in (None, "cluster"):
            cluster(given.rounds, Path(name))


if __name__ == "__main__":
    main()
