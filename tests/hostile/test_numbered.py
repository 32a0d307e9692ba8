"""Every hole of :mod:`numbered` stays shut."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from numbered import HANGS, NUMBERED, Numbered, World, summary_of
from sampled import sampled


def _id(of: Numbered) -> str:
    return f"{of.kind}: {of.what}"


@pytest.mark.parametrize("of", sampled(NUMBERED, of=lambda case: case.kind), ids=_id)
def test_what_was_found_is_shut(
    of: Numbered, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    world = World(tmp_path, monkeypatch, capsys)
    path = list(sys.path)
    try:
        code, said = of.act(world)
    finally:
        sys.path[:] = path
        sys.modules.pop("mine", None)
    assert code == of.now, said
    if of.kind == 8 or "an attack" in of.what:
        errors = [p for p in summary_of(world)["points"] if p["attack"] == "mine"]
        assert [p["status"] for p in errors] == ["error"]
        said = errors[0]["reason"]
    assert of.words in said
    assert "Traceback" not in said
    assert "internal error" not in said


def test_every_kind_is_there_and_changed() -> None:
    """The fourteenth, bounds of dependencies that are not true, is held by tests/test_packaging.py
    and `make test-lowest`.
    """
    assert {of.kind for of in NUMBERED} == set(range(1, 14))
    same = {of.what for of in NUMBERED if of.before == of.now}
    assert same == {"gate after an edit", "NO_COLOR", "a killed export left half a file"}
    assert {of.before for of in NUMBERED} == {HANGS, 0, 1, 2, 3, 4}
    assert len(NUMBERED) == len({_id(of) for of in NUMBERED}) >= 50
