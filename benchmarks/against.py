"""One audit with an earlier revision of this repository and with what is here, in turn.

    python benchmarks/against.py REVISION [SCENARIO] [--rounds N] [--epochs N]

Both sides run on one thread, each in a process of its own, from the same environment; the earlier
one from a checkout that is thrown away. Compared is processor time of the whole command, imports
and report included. Without a scenario a drawn CSV of 150,000 rows is audited: 5 + 5 columns, four
strengths of noise, two seeds, three attacks, two epochs (`--epochs`) in batches of 512, the
references.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
from timed import spent

ROOT = Path(__file__).resolve().parents[1]
ROWS = 150_000
LARGE = """
[data]
file = "table.csv"
label = "y"
id = "id"
active = "bank"
[data.columns]
bank = ["a0", "a1", "a2", "a3", "a4"]
shop = ["b0", "b1", "b2", "b3", "b4"]
[algorithm]
name = "splitnn"
epochs = {epochs}
batch_size = 512
[[defense]]
name = "iso"
strength = [0, 1, 5, 25]
[[attack]]
name = "norm"
[[attack]]
name = "direction"
[[attack]]
name = "model_completion"
known_rows = 20
[audit]
seeds = 2
"""


def large(folder: Path, epochs: int = 2) -> Path:
    """The drawn table and its scenario."""
    g = np.random.default_rng(0)
    names = [f"{p}{k}" for p in "ab" for k in range(5)]
    made = pd.DataFrame(g.standard_normal((ROWS, 10)), columns=names).round(4)
    made["y"] = (made.sum(axis=1) + 2 * g.standard_normal(ROWS) > 0).astype(int)
    made.to_csv(folder / "table.csv", index_label="id")
    path = folder / "large.toml"
    path.write_text(LARGE.replace("{epochs}", str(epochs)), encoding="utf-8")
    return path


def seconds(code: Path, scenario: str, out: Path) -> float:
    """Processor seconds of the audit with the code in a folder."""
    command = ("-m", "vflsec", "audit", scenario, "--out", str(out), "--device", "cpu")
    return spent(*command, code=code)[1]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("revision")
    parser.add_argument("scenario", nargs="?", default="")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=2, help="of the drawn table's trainings")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        old, scenario = folder / "old", given.scenario or str(large(folder, given.epochs))
        if Path(scenario).is_file():
            scenario = str(Path(scenario).resolve())
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(old), given.revision], check=True)
        sides, pairs = {"old": old, "new": ROOT}, []
        try:
            for k in range(given.rounds):
                pairs.append([seconds(c, scenario, folder / f"{s}{k}") for s, c in sides.items()])
        finally:
            subprocess.run([*git, "remove", "--force", str(old)], check=True)
    ratios = [a / b for a, b in pairs]
    a, b = (statistics.median(side) for side in zip(*pairs, strict=True))
    print(f"{given.revision}: {a:.1f} CPU s, here: {b:.1f}; {statistics.median(ratios):.2f} times "
          f"({min(ratios):.2f} to {max(ratios):.2f}), {given.rounds} rounds")  # fmt: skip


if __name__ == "__main__":
    main()
