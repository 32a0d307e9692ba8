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

MAY: dict[str, set[str]] = {
    "--help": set(),
    "--version": set(),
    "list": set(),
    "show": set(),
    "report": {"scipy"},
    "gate": {"scipy"},
    "check": {"scipy", "pandas", "torch"},
    "audit": HEAVY - {"distributed", "opacus", "ray", "tenseal", "torch._dynamo"},
}
_RUN = """
import json, sys
from vflsec.cli import main as cli
out = {}
for line in sys.argv[1:]:
    command = json.loads(line)
    try:
        code = cli.main(command)
    except SystemExit as stop:
        code = stop.code
    out[command[0]] = [code, sorted(sys.modules)]
print(json.dumps(out), file=sys.stderr)
"""


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A scenario of two small tables and a bundled one, and the results of another audit."""
    base = tmp_path_factory.mktemp("startup")
    lines = [(i, (i * 7) % 5, (i * 11) % 13, i % 2) for i in range(80)]
    (base / "a.csv").write_text("id,x,y\n" + "\n".join(f"{i},{x},{y}" for i, x, _, y in lines))
    (base / "b.csv").write_text("id,z\n" + "\n".join(f"{i},{z}" for i, _, z, _ in lines))
    (base / "s.toml").write_text(
        """
[[data]]
files = { active = "a.csv", passive = "b.csv" }
id = "id"
label = "y"
active = "active"
[[data]]
name = "breast_cancer"
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
seeds = 2
references = ["logistic", "boosting"]
positive_control = false
[[gate]]
metric = "utility"
min = 0.01
""",
        encoding="utf-8",
    )
    text = (base / "s.toml").read_text(encoding="utf-8")
    (base / "bundled.toml").write_text(text[text.rindex("[[data]]") :], encoding="utf-8")
    gate = {"metric": "utility", "min": 0.01, "algorithm": "splitnn"}
    vflsec.run_audit(
        tomllib.loads(SCENARIO) | {"gate": [gate]}, base / "out", device="cpu",
        backend=backend(Trainer()),
    )  # fmt: skip
    files = {"scenario": "s.toml", "bundled": "bundled.toml", "results": "out", "new": "new"}
    return {name: base / file for name, file in files.items()}


def imported(root: Path, *commands: list[str]) -> dict[str, tuple[int, set[str]]]:
    """Exit code and heavy modules after each command, all in one fresh process."""
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")]),
    }
    done = subprocess.run(
        [sys.executable, "-c", _RUN, *map(json.dumps, commands)], env=env, text=True,
        capture_output=True, timeout=300, check=True,
    )  # fmt: skip
    out = json.loads(done.stderr.splitlines()[-1])
    return {name: (code, HEAVY & set(modules)) for name, (code, modules) in out.items()}


def test_a_command_imports_no_more_than_it_uses(places: dict[str, Path], root: Path) -> None:
    """In the order of what they may import, so that one process serves them all."""
    scenario, results = str(places["scenario"]), str(places["results"])
    found = imported(
        root, ["--help"], ["--version"], ["list", "attacks"], ["list", "scenarios"],
        ["show", "splitnn"], ["show", "model_completion"], ["show", "data"], ["report", results],
        ["gate", results], ["check", scenario],
    )  # fmt: skip
    assert list(found) == ["--help", "--version", "list", "show", "report", "gate", "check"]
    for command, (code, heavy) in found.items():
        assert code in (0, 1, 3), command
        assert heavy <= MAY[command], command


@pytest.mark.slow
def test_an_audit_imports_no_more_than_it_uses(places: dict[str, Path], root: Path) -> None:
    """What stands already is planned and read back: no table, no figure, no model of sklearn."""
    command = ["audit", str(places["bundled"]), "--out", str(places["new"]), "--device", "cpu"]
    code, heavy = imported(root, command)["audit"]
    assert code == 0
    assert heavy <= MAY["audit"]
    assert imported(root, command)["audit"] == (0, {"scipy", "torch"})


def test_what_was_imported_is_not_searched_for_garbage() -> None:
    """Frozen once, by the process that imports it first; another import changes nothing."""
    script = """
import gc
from vflsec.runtime.lazy_imports import importing
with importing():
    assert not gc.isenabled()
    import torch
first = gc.get_freeze_count()
with importing():
    assert gc.isenabled()
    made = [[] for _ in range(50_000)]
print(first, gc.get_freeze_count(), gc.isenabled())
"""
    done = subprocess.run(
        [sys.executable, "-c", script], text=True, capture_output=True, timeout=300, check=True
    )
    first, then, on = done.stdout.split()
    assert int(first) > 100_000
    assert (then, on) == (first, "True")


def test_only_a_command_of_its_own_process_collects_garbage_seldom() -> None:
    """A caller of `main` keeps the rhythm of its process; so does whoever switched it off."""
    script = """
import gc, sys
from vflsec.cli.main import main
before, frozen = gc.get_threshold(), gc.get_freeze_count()
main(["--version"])
kept = gc.get_threshold() == before and gc.get_freeze_count() == frozen
sys.argv = ["vflsec", "--version"]
gc.disable()
main()
off = gc.get_threshold() == before and gc.get_freeze_count() == frozen
gc.enable()
main()
print(kept, off, gc.get_threshold()[0], len(gc.get_objects()) < 1000)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], text=True, capture_output=True, timeout=300, check=True
    )
    assert done.stdout.splitlines()[-1] == "True True 200000 True"  # nothing left to search
