"""Builds as their runners make them: planted figures in other processes, YAML, and bash."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
PATHS = os.pathsep.join([str(HERE), str(HERE.parent)])
PLANTED = """
from audited import LEAKY, SEALED, Planted
from vflsec.engine import run
from vflsec.report import html

html.draw = lambda _: ""
run.default_backend = Planted(LEAKY, SEALED).backend
"""


def read_yaml(text: str) -> Any:
    ruamel = pytest.importorskip("ruamel.yaml")
    return ruamel.YAML(typ="safe", pure=True).load(text)


def list_rules(report: Path) -> set[str]:
    """The rules that decided the verdicts of a report, from its ``results.sarif``."""
    found = json.loads(report.read_text(encoding="utf-8"))
    return {r["properties"]["rule"] for run in found["runs"] for r in run["results"]}


def run_step(script: str, env: Mapping[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    """A step in bash as GitHub calls it."""
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
        cwd=folder, env=env, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
