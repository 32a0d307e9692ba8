"""Every notebook is a Python file with its .ipynb pair: the same cells, without outputs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

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


def test_the_list_names_every_notebook(root: Path) -> None:
    listed = re.findall(r"\]\((\w+\.py)\)", (root / "notebooks" / "README.md").read_text("utf-8"))
    assert listed == [p.name for p in NOTEBOOKS]
