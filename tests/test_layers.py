"""The folder tree is the pipeline, and a tool holds it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import grimp
import pytest


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph("vflsec", exclude_type_checking_imports=True, cache_dir=None)


def test_no_circle_among_files(graph: grimp.ImportGraph) -> None:
    """Repeatedly taking away files that import nothing which is left must leave nothing."""
    left = {m: set(graph.find_modules_directly_imported_by(m)) for m in graph.modules}
    assert len(left) > 200
    while free := {m for m, needs in left.items() if not needs & left.keys()}:
        left = {m: needs for m, needs in left.items() if m not in free}
    assert not left, f"these files import each other in circles: {sorted(left)}"


def _lint(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()",
         "--no-cache"],
        cwd=folder, capture_output=True, text=True, env={"PYTHONPATH": str(folder), "PATH": ""},
    )  # fmt: skip


@pytest.fixture
def copy(root: Path, tmp_path: Path) -> Path:
    """The package alone, where something can be planted."""
    ignore = shutil.ignore_patterns("__pycache__")
    for name in ("vflsec", "attacks", "defenses", "scenarios"):
        shutil.copytree(root / name, tmp_path / name, symlinks=True, ignore=ignore)
    shutil.copy(root / "pyproject.toml", tmp_path)
    return tmp_path


def test_the_contracts_hold(copy: Path) -> None:
    done = _lint(copy)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout


@pytest.mark.parametrize(
    ("file", "line", "broken"),
    [
        ("vflsec/measure/attack.py", "from vflsec.train import loop", "measure takes Views"),
        ("vflsec/report/html.py", "from vflsec.engine import run", "A report reads"),
        ("vflsec/report/html.py", "from vflsec.audit import matrix", "A renderer lays out"),
        ("vflsec/audit/gate.py", "from vflsec.report import text", "audit judges"),
        ("vflsec/view.py", "from vflsec.measure import attack", "The tree is the pipeline"),
        ("attacks/norm.py", "from vflsec.audit.goals import goal_of", "An attack sees a View"),
    ],
)
def test_a_planted_upward_import_is_found(copy: Path, file: str, line: str, broken: str) -> None:
    target = copy / file
    start = "from __future__ import annotations\n"
    text = target.read_text(encoding="utf-8")
    assert start in text
    target.write_text(text.replace(start, f"{start}\n{line}\n", 1), encoding="utf-8")
    done = _lint(copy)
    assert done.returncode == 1, done.stdout + done.stderr
    assert any(broken in row and "BROKEN" in row for row in done.stdout.splitlines())


@pytest.mark.parametrize("page", ["architecture.md", "journey.md"])
def test_the_files_that_a_page_names_are_there(root: Path, page: str) -> None:
    text = (root / "docs" / page).read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:[a-z_]+/)*[a-z_]+\.py)`", text))
    assert len(named) >= 5
    lost = [n for n in named if not any((root / at / n).exists() for at in (".", "vflsec"))]
    assert not lost, f"docs/{page} names files that are not there: {lost}"
