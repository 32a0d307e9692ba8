"""The conda recipe says what `pyproject.toml` says."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from vflsec import __version__

ROOT = Path(__file__).resolve().parents[1]
CONDA = {"torch": "pytorch", "matplotlib": "matplotlib-base"}
"""Names that differ there."""
LEFT_OUT = {"tenseal"}


@pytest.fixture(scope="module")
def recipe() -> Any:
    return YAML(typ="safe").load((ROOT / "recipe" / "recipe.yaml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def project() -> Any:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_it_is_this_version_of_this_package(recipe: Any, project: Any) -> None:
    about = project["project"]
    assert recipe["context"]["version"] == __version__
    assert recipe["package"] == {"name": about["name"], "version": "${{ version }}"}
    assert recipe["about"]["summary"] == about["description"]
    assert recipe["about"]["license"] == about["license"]
    assert [recipe["about"]["license_file"]] == about["license-files"]


def test_it_needs_what_the_wheel_needs(recipe: Any, project: Any) -> None:
    needed = {f"python {project['project']['requires-python']}"}
    for text in project["project"]["dependencies"]:
        name, bound = re.fullmatch(r"([\w-]+)(>=[\d.]+)(?:;.*)?", text).groups()  # type: ignore[union-attr]
        if name not in LEFT_OUT:
            needed.add(f"{CONDA.get(name, name)} {bound}")
    assert set(recipe["requirements"]["run"]) == needed
    (backend,) = project["build-system"]["requires"]
    host = {f"python {project['project']['requires-python']}", "pip", backend.replace(">", " >")}
    assert set(recipe["requirements"]["host"]) == host


def test_it_installs_the_same_commands(recipe: Any, project: Any) -> None:
    commands = [f"{name} = {where}" for name, where in project["project"]["scripts"].items()]
    assert recipe["build"]["python"]["entry_points"] == commands
