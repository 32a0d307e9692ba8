"""The hook that holds commit messages to the rule of CONTRIBUTING."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

HOOK = Path(__file__).resolve().parents[1] / ".githooks/commit-msg"
pytestmark = pytest.mark.skipif(not HOOK.is_file(), reason="an installed copy has no hooks")


def check(message: str, folder: Path) -> int:
    file = folder / "COMMIT_EDITMSG"
    file.write_text(message)
    return subprocess.run(["bash", str(HOOK), str(file)], capture_output=True).returncode


@pytest.mark.parametrize(
    "message",
    [
        "Name the rule that decided\n\nA reader could not tell why.\n",
        f"{'A' * 72}\n\nWhy.\n",
        "Embed rows\n\nWhy.\n\nSigned-off-by: A\n",
        "Merge branch 'main' into other\n",
        "fixup! Name the rule\n",
        "Name it\n\nWhy.\n# a comment of git\n# ---------- >8 ----------\nx\n",
    ],
)
def test_passes(message: str, tmp_path: Path) -> None:
    assert check(message, tmp_path) == 0


@pytest.mark.parametrize(
    "message",
    [
        f"{'A' * 73}\n\nWhy.\n",
        "Name the rule\n",
        "Name the rule\nWhy.\n",
        "Name the rule\n\nSigned-off-by: A\n",
        "Name the rule\n\n# only a comment\n",
        "Named the rule\n\nWhy.\n",
        "Naming the rule\n\nWhy.\n",
        "name the rule\n\nWhy.\n",
        "Name the rule.\n\nWhy.\n",
    ],
)
def test_is_refused(message: str, tmp_path: Path) -> None:
    assert check(message, tmp_path) == 1
