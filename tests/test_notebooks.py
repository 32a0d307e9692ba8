"""Every notebook: a Python file with its .ipynb pair, public names, an exercise, its solution."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import vflsec

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.py"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_pair_has_the_same_code(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    body = text.split("# ---\n", 2)[2]
    cells = [c for c in re.split(r"^# %%", body, flags=re.M)[1:] if not c.startswith(" [markdown]")]
    wanted = [c.partition("\n")[2].strip() for c in cells]
    pair = json.loads(path.with_suffix(".ipynb").read_text(encoding="utf-8"))
    code = [c for c in pair["cells"] if c["cell_type"] == "code"]
    assert ["".join(c["source"]).strip() for c in code] == wanted
    assert all(c["outputs"] == [] for c in code)


PLACES = ("vflsec", "vflsec.audit", "vflsec.he", "vflsec.plugin")
PUBLIC = {name: import_module(name).__all__ for name in PLACES}
COMPONENTS = ("vflsec.attacks.", "vflsec.defenses.")


def private(text: str) -> Iterator[str]:
    """Names of vflsec that a notebook takes from elsewhere than the public places."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (
                a.name for a in node.names
                if a.name.startswith("vflsec.") and not a.name.startswith(COMPONENTS)
            )  # fmt: skip
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "vflsec":
            home = str(node.module)
            if home.startswith(COMPONENTS):
                continue
            allowed = PUBLIC.get(home, ())
            yield from (f"{home}.{a.name}" for a in node.names if a.name not in allowed)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id == "vflsec" and node.attr not in vflsec.__all__:
                yield f"vflsec.{node.attr}"
            if node.attr.startswith("_"):
                yield f"{node.value.id}.{node.attr}"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_uses_public_names_only(path: Path) -> None:
    assert list(private(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("from vflsec.engine.cohort import run_cohort", ["vflsec.engine.cohort.run_cohort"]),
        ("from vflsec.specs import AttackSpec", ["vflsec.specs.AttackSpec"]),
        ("import vflsec.core.federation", ["vflsec.core.federation"]),
        ("from vflsec.core import task", ["vflsec.core.task"]),
        ("from vflsec.audit import leakage", ["vflsec.audit.leakage"]),
        ("import vflsec; vflsec.rng.generator(0)", ["vflsec.rng"]),
        ("trained._moment", ["trained._moment"]),
        ("from vflsec.defenses.label_dp import LabelDP", []),
        ("from vflsec.audit import cap; import vflsec; vflsec.train", []),
    ],
)
def test_what_counts_as_public(text: str, found: list[str]) -> None:
    assert list(private(text)) == found


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_ends_with_an_exercise_and_its_solution(path: Path) -> None:
    heads = re.findall(r"^# ## (.+)$", path.read_text(encoding="utf-8"), flags=re.M)
    assert heads[-2:] == ["Exercise", "Solution"]


def test_the_list_names_every_notebook(root: Path) -> None:
    listed = re.findall(r"\]\((\w+\.py)\)", (root / "notebooks" / "README.md").read_text("utf-8"))
    assert listed == [p.name for p in NOTEBOOKS]
