"""What commands import: nothing heavy that they do not use."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from engine_fakes import SCENARIO, Trainer, backend

import vflsec

HEAVY = {
    "distributed", "joblib", "matplotlib", "opacus", "pandas", "ray", "scipy", "scipy.optimize",
    "scipy.stats", "sklearn", "tenseal", "torch", "torch._dynamo",
}  # fmt: skip
"""Modules that take a tenth of a second or more to import."""

JUDGE = {"pandas", "scipy"}
MAY: dict[str, set[str]] = {
    "--help": set(),
    "list": set(),
    "report": JUDGE,
    "gate": JUDGE,
    "check": JUDGE | {"torch"},
    "audit": JUDGE | {"torch", "matplotlib", "sklearn", "joblib", "scipy.stats", "scipy.optimize"},
}
_RUN = """
import json, sys
from vflsec import cli
try:
    code = cli.main(sys.argv[1:])
except SystemExit as stop:
    code = stop.code
print(json.dumps([code, sorted(sys.modules)]), file=sys.stderr)
"""


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A scenario of two small tables, and the results of another audit."""
    base = tmp_path_factory.mktemp("startup")
    lines = [(i, (i * 7) % 5, (i * 11) % 13, i % 2) for i in range(80)]
    (base / "a.csv").write_text("id,x,y\n" + "\n".join(f"{i},{x},{y}" for i, x, _, y in lines))
    (base / "b.csv").write_text("id,z\n" + "\n".join(f"{i},{z}" for i, _, z, _ in lines))
    (base / "s.toml").write_text(
        """
[data]
files = { active = "a.csv", passive = "b.csv" }
id = "id"
label = "y"
active = "active"
[algorithm]
name = "splitnn"
epochs = 1
[[defense]]
name = "iso"
strength = [1]
[[attack]]
name = "norm"
[[attack]]
name = "model_completion"
known_rows = 10
[audit]
seeds = 1
references = ["logistic", "boosting"]
positive_control = false
[[gate]]
max = 0.5
""",
        encoding="utf-8",
    )
    gate = {"metric": "utility", "min": 0.01, "algorithm": "splitnn"}
    vflsec.run_audit(
        tomllib.loads(SCENARIO) | {"gate": [gate]}, base / "out", device="cpu",
        backend=backend(Trainer()),
    )  # fmt: skip
    return {"scenario": base / "s.toml", "results": base / "out", "new": base / "new"}


@pytest.mark.parametrize(
    "command",
    ["--help", "list", "report", "gate", "check", pytest.param("audit", marks=pytest.mark.slow)],
)
def test_a_command_imports_no_more_than_it_uses(
    command: str, places: dict[str, Path], root: Path
) -> None:
    rest = {
        "list": ["attacks"], "report": [str(places["results"])], "gate": [str(places["results"])],
        "check": [str(places["scenario"])],
        "audit": [str(places["scenario"]), "--out", str(places["new"]), "--device", "cpu"],
    }  # fmt: skip
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")]),
    }
    done = subprocess.run(
        [sys.executable, "-c", _RUN, command, *rest.get(command, [])], env=env, text=True,
        capture_output=True, timeout=300, check=True,
    )  # fmt: skip
    code, modules = json.loads(done.stderr.splitlines()[-1])
    assert code in (0, 1, 3), done.stderr
    assert HEAVY & set(modules) <= MAY[command]
