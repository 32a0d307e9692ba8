"""One audit with an earlier revision of this repository and with what is here, in turn.

    python benchmarks/against.py REVISION [SCENARIO] [--rounds N] [--epochs N]

Both sides run on one thread, each in a process of its own, from the same environment; the earlier
one from a checkout that is thrown away. Compared is processor time of the whole command, imports
and report included. Without a scenario a drawn CSV of 150,000 rows is audited: 5 + 5 columns, four
strengths of noise, two seeds, three attacks, two epochs (`--epochs`) in batches of 512, the
references. With `--drafted ROWS` each side audits what its own `vflsec init` drafts of a drawn
table of 5 + 5 columns (`--columns` in all), with two strengths and two seeds. With `--most RATIO`
it is an error if this side takes more than so many times as long.
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


def drawn_table(rows: int, columns: int = 10) -> pd.DataFrame:
    """Columns and a label of their sum and noise."""
    g = np.random.default_rng(0)
    names = [f"{p}{k}" for p in "ab" for k in range(columns // 2)]
    made = pd.DataFrame(g.standard_normal((rows, len(names))), columns=names).round(4)
    noise = 2 * (columns / 10) ** 0.5 * g.standard_normal(rows)
    made["y"] = (made.sum(axis=1) + noise > 0).astype(int)
    return made


def large(folder: Path, epochs: int = 2) -> Path:
    """The drawn table and its scenario."""
    drawn_table(ROWS).to_csv(folder / "table.csv", index_label="id")
    path = folder / "large.toml"
    path.write_text(LARGE.replace("{epochs}", str(epochs)), encoding="utf-8")
    return path


def drafted(code: Path, folder: Path, rows: int, columns: int = 10) -> Path:
    """What the code in a folder drafts of a drawn table, with two strengths and two seeds."""
    drawn_table(rows, columns).to_csv(folder / "table.csv", index_label="id")
    path, ask = folder / f"{code.name}.toml", ("--label", "y", "--id", "id", "--out")
    spent("-m", "vflsec", "init", str(folder / "table.csv"), *ask, str(path), code=code)
    text = path.read_text(encoding="utf-8")
    for long, short in (("[0, 1, 5, 25]", "[0, 5]"), ("seeds = 5", "seeds = 2")):
        if long not in text:
            raise SystemExit(f"{path}: no {long}")
        text = text.replace(long, short)
    path.write_text(text, encoding="utf-8")
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
    parser.add_argument("--drafted", type=int, metavar="ROWS", default=0)
    parser.add_argument("--columns", type=int, default=10, help="of what is drafted")
    parser.add_argument("--most", type=float, metavar="RATIO")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        old, scenario = folder / "old", given.scenario
        if not scenario and not given.drafted:
            scenario = str(large(folder, given.epochs))
        if Path(scenario).is_file():
            scenario = str(Path(scenario).resolve())
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(old), given.revision], check=True)
        sides, pairs = {"old": old, "new": ROOT}, []
        try:
            asked = dict.fromkeys(sides, scenario)
            if given.drafted:
                size = given.drafted, given.columns
                asked = {s: str(drafted(c, folder, *size)) for s, c in sides.items()}
            for k in range(given.rounds):
                pairs.append([seconds(c, asked[s], folder / f"{s}{k}") for s, c in sides.items()])
        finally:
            subprocess.run([*git, "remove", "--force", str(old)], check=True)
    ratios = [a / b for a, b in pairs]
    a, b = (statistics.median(side) for side in zip(*pairs, strict=True))
    print(f"{given.revision}: {a:.1f} CPU s, here: {b:.1f}; {statistics.median(ratios):.2f} times "
          f"({min(ratios):.2f} to {max(ratios):.2f}), {given.rounds} rounds")  # fmt: skip
    if given.most and 1 / statistics.median(ratios) > given.most:
        raise SystemExit(f"more than {given.most:g} times as long")


if __name__ == "__main__":
    main()
