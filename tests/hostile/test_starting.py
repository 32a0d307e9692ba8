"""Audits that begin in one instant: each tries whether its folder can be made, and undoes it."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest

from vflsec.errors import ConfigError
from vflsec.runtime.atomic_files import make_folder
from vflsec.storage import results_folder as folders
from vflsec.storage.results_folder import LOCK_NAME, claim, probe


@pytest.mark.parametrize("begins", [probe, make_folder])
def test_a_folder_that_another_audit_takes_away_is_made_again(
    begins: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one's `probe` ends after this one found the folder made."""
    real, out = tempfile.mkstemp, tmp_path / "out" / "a"
    taken: list[Path] = []

    def late(*args: Any, **kwargs: Any) -> Any:
        if len(taken) < 2:
            taken.append(out)
            out.rmdir()
            out.parent.rmdir()
        return real(*args, **kwargs)

    monkeypatch.setattr(tempfile, "mkstemp", late)
    begins(out)
    assert len(taken) == 2
    assert out.exists() is (begins is make_folder)


def test_a_folder_is_claimed_that_another_audit_took_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, out = make_folder, tmp_path / "out"
    taken: list[Path] = []

    def made(folder: Path) -> None:
        real(folder)
        if not taken:
            taken.append(folder)
            folder.rmdir()

    monkeypatch.setattr(folders, "make_folder", made)
    with claim(out) as lock:
        probe(out)
        lock.held()
        assert (out / LOCK_NAME).exists()
    assert taken == [out]


def test_a_folder_that_cannot_be_made_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "gone" / "away")
    with pytest.raises(ConfigError, match=r"Choose another --out"):
        make_folder(tmp_path / "link" / "out")
