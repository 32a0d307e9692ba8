"""Every notebook: a Python file with its .ipynb pair, public names, an exercise, its solution."""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import vflsec

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / ".ci"))

import notebook_pages  # noqa: E402

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.py"))


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


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_the_page_of_a_notebook_is_made_from_its_source(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    page = (notebook_pages.PAGES / f"{path.stem}.md").read_text(encoding="utf-8")
    remedy = f"make notebooks-pages NOTEBOOKS=notebooks/{path.name}"
    assert page.startswith(notebook_pages.hash_cells(text) + "\n"), remedy
    assert page.count("\n```python\n") == sum(code for code, _ in notebook_pages.read_cells(text))
    shown = re.findall(r"!\[[^]]+\]\((\w+\.png)\)", page)
    assert shown == [f"{path.stem}_{i + 1}.png" for i in range(len(shown))]
    there = {p.name for p in notebook_pages.PAGES.glob(f"{path.stem}_*")}
    assert there == set(shown)
    assert not re.search(r"(?<![\w.])/(tmp|home|root|Users|var)/", page)


def test_the_pages_stay_small() -> None:
    sizes = [p.stat().st_size for p in notebook_pages.PAGES.iterdir()]
    assert sum(sizes) < 2_000_000


def executed(text: str, *outputs: dict[str, Any]) -> dict[str, Any]:
    """What a notebook of one code cell is after it ran."""
    (code,) = (content for is_code, content in notebook_pages.read_cells(text) if is_code)
    return {"cells": [{"cell_type": "code", "source": [code], "outputs": list(outputs)}]}


SMALL = "# ---\n# a: b\n# ---\n# %% [markdown]\n# # Title\n#\n# Words.\n# %%\nx = 1  # fmt: skip\n"


def test_a_page_holds_text_code_and_outputs() -> None:
    table = '<div>\n<style scoped>p {}</style>\n<table border="1" class="dataframe">\n<tr>\n<td>1'
    said = (("stdout", "a\n"), ("stderr", "10 %"), ("stdout", "\x1b[1mb"))
    printed = [{"output_type": "stream", "name": name, "text": [text]} for name, text in said]
    shown = {"output_type": "execute_result", "data": {"text/html": [table], "text/plain": "t"}}
    page, figures = notebook_pages.make_page("n", SMALL, executed(SMALL, *printed, shown))
    assert page.split("\n", 1)[1] == (
        "\n# Title\n\n*Executed from [`notebooks/n.py`](../../notebooks/n.py).*\n\nWords.\n\n"
        "```python\nx = 1\n```\n\n```text\na\nb\n```\n\n"
        '<div><table class="dataframe">\n<tr><td>1\n'
    )
    assert figures == {}


def test_a_page_is_not_made_of_another_source_or_with_a_path_of_this_machine() -> None:
    with pytest.raises(SystemExit, match="another source"):
        notebook_pages.make_page("n", SMALL.replace("x = 1", "x = 2"), executed(SMALL))
    said = {"output_type": "stream", "name": "stdout", "text": [f"{Path.home()}/out"]}
    with pytest.raises(SystemExit, match="a path of this machine"):
        notebook_pages.make_page("n", SMALL, executed(SMALL, said))


def test_the_list_names_every_notebook(root: Path) -> None:
    text = (root / "notebooks" / "README.md").read_text("utf-8")
    assert re.findall(r"\]\((\w+\.py)\)", text) == [p.name for p in NOTEBOOKS]
    pages = re.findall(r"\]\(\.\./docs/notebooks/(\w+)\.md\)", text)
    assert pages == [p.stem for p in NOTEBOOKS]
    site = (root / "mkdocs.yml").read_text("utf-8")
    assert re.findall(r": notebooks/(\w+)\.md$", site, flags=re.M) == [p.stem for p in NOTEBOOKS]
