"""`vflsec.plugin`: the one module that authors of plug-ins import from."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from vflsec import plugin
from vflsec.cli.templates import component_text
from vflsec.plugins import registry

ROOT = Path(__file__).parents[1]
EXAMPLE = sorted((ROOT / "tests/plugin_example/vflsec_example").glob("[!_]*.py"))
DOCS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def imported(text: str) -> Iterator[tuple[str, str]]:
    """Module and name of everything that a source imports from vflsec."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from ((a.name, "") for a in node.names if a.name.partition(".")[0] == "vflsec")
        elif isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] == "vflsec":
            yield from ((str(node.module), a.name) for a in node.names)


def assert_public(text: str) -> None:
    found = list(imported(text))
    assert found
    assert {module for module, _ in found} == {"vflsec.plugin"}
    assert {name for _, name in found} <= set(plugin.__all__)


@pytest.mark.parametrize("kind", ["attack", "defense"])
def test_a_template_imports_from_the_public_module_alone(kind: str) -> None:
    assert_public(component_text(kind, "tail_score"))


@pytest.mark.parametrize("path", EXAMPLE, ids=lambda p: p.stem)
def test_the_example_imports_from_the_public_module_alone(path: Path) -> None:
    assert_public(path.read_text(encoding="utf-8"))


HOMES = {name: home for home, name in imported(Path(plugin.__file__).read_text("utf-8"))}
HOMES.pop("lazy_names")


def test_its_names_are_what_they_are_called() -> None:
    assert sorted(HOMES) == sorted(plugin.__all__)
    assert plugin.registry is registry
    found = {name: getattr(plugin, name) for name in HOMES}
    homes = {n: f"{HOMES[n]}.{n}" if isinstance(x, ModuleType) else HOMES[n]
             for n, x in found.items()}  # fmt: skip
    where = {n: x.__name__ if isinstance(x, ModuleType) else x.__module__
             for n, x in found.items() if n not in ("Accumulate", "Plain")}  # fmt: skip
    assert where == {n: homes[n] for n in where}
    with pytest.raises(AttributeError, match="has no attribute 'Truth'"):
        _ = plugin.Truth


def test_packaged_attacks_and_defenses_use_its_names() -> None:
    """What the public module has is taken from there: its users are examples to copy."""
    homes = {(home, name) for name, home in HOMES.items()}
    for folder in ("attacks", "defenses"):
        for path in (ROOT / folder).glob("*.py"):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            top = ast.unparse(ast.Module([n for n in tree.body if _is_import(n)], []))
            assert not homes & set(imported(top)), path.name


def _is_import(node: ast.stmt) -> bool:
    return isinstance(node, ast.Import | ast.ImportFrom)


def test_an_attack_does_not_see_data_through_it() -> None:
    """What the public module has for algorithms and data sets is not for attacks."""
    names = {
        name
        for path in (ROOT / "attacks").glob("*.py")
        for home, name in imported(path.read_text(encoding="utf-8"))
        if home == "vflsec.plugin"
    }
    assert "View" in names
    assert not names & {"Algorithm", "PartyData", "Source"}


def test_importing_it_imports_no_more_than_is_asked_for() -> None:
    program = "import sys, vflsec.plugin; vflsec.plugin.check; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    modules = set(done.stdout.decode().split())
    assert "vflsec.core.check" in modules
    assert not modules & {"torch", "numpy", "vflsec.core.attack", "vflsec.data.source"}


def test_docs_show_its_names() -> None:
    """Every name that docs take from it is one that it has."""
    lines = [
        line.partition(" import ")[2].partition("#")[0]
        for path in DOCS
        for line in path.read_text(encoding="utf-8").splitlines()
        if line.startswith("from vflsec.plugin import ")
    ]
    names = {name.strip() for line in lines for name in line.split(",")}
    assert {"Attack", "Policy", "Source"} <= names <= set(plugin.__all__)
