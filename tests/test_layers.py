"""The folder tree is the pipeline, and a tool holds it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from scripts import load


def _check(root: Path, script: str) -> Any:
    """A script of .ci as a module."""
    return load(root / ".ci" / f"{script}.py")


def test_no_circle_among_files(root: Path) -> None:
    """Type-only imports and those within functions count."""
    check = _check(root, "check_imports")
    assert len(check.find_modules(root)) > 400
    assert check.main(root) == 0


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("import vflsec.b", "from vflsec.a import x"),
        ("from vflsec import b", "def f():\n    from vflsec.a import x"),
        ("from . import b", "if TYPE_CHECKING:\n    from .a import X"),
    ],
)
def test_a_circle_is_found(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], first: str, second: str
) -> None:
    check = _check(root, "check_imports")
    for folder in check.FOLDERS:
        (tmp_path / folder).mkdir()
    for name, text in (("__init__", ""), ("a", first), ("b", second), ("c", "import vflsec.a")):
        (tmp_path / "vflsec" / f"{name}.py").write_text(text, encoding="utf-8")
    assert check.main(tmp_path) == 1
    assert capsys.readouterr().out.splitlines() == [
        "2 files import each other in a circle:",
        "  vflsec.a imports vflsec.b",
        "  vflsec.b imports vflsec.a",
    ]
    (tmp_path / "vflsec" / "b.py").write_text("import vflsec", encoding="utf-8")
    assert check.main(tmp_path) == 0


def test_what_is_too_complex_is_found(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Boolean operators and comprehensions count; an exception without need fails too."""
    pytest.importorskip("radon")
    check = _check(root, "check_complexity")
    for folder in check.FOLDERS:
        (tmp_path / folder).mkdir()
    rules = " or ".join(f"x == {i}" for i in range(21))
    source = (
        f"def simple(a, b, c, d, e, f, g, h, *rest, **more):\n    return 1\n"
        f"def knotted(x):\n    return {rules}\n"
        f"class Long:\n    def take(self, a, b, c, d, e, f, g, h, i):\n        return a\n"
    )
    (tmp_path / "vflsec" / "a.py").write_text(source, encoding="utf-8")
    listed = "[tool.vflsec.exceptions]\n"
    (tmp_path / "pyproject.toml").write_text(listed, encoding="utf-8")
    assert check.main(tmp_path) == 1
    assert capsys.readouterr().out.splitlines() == [
        "vflsec/a.py:3: knotted: complexity 21",
        "vflsec/a.py:6: Long.take: 9 arguments",
    ]
    listed += '"vflsec/a.py:knotted" = "why"\n"vflsec/a.py:Long.take" = "why"\n'
    (tmp_path / "pyproject.toml").write_text(listed, encoding="utf-8")
    assert check.main(tmp_path) == 0
    listed += '"vflsec/a.py:simple" = "why"\n'
    (tmp_path / "pyproject.toml").write_text(listed, encoding="utf-8")
    assert check.main(tmp_path) == 1
    assert "vflsec/a.py:simple: needs no exception" in capsys.readouterr().out


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
        ("vflsec/core/view.py", "from vflsec.measure import attack", "The tree is the pipeline"),
        ("attacks/norm.py", "from vflsec.audit.truth import goal_of", "An attack sees a View"),
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
