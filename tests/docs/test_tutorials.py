"""Tutorials are what their script writes: at most three commands to a verdict, and they work."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from scripts import load

from vflsec.cli import main

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs" / "tutorials"


def fences(name: str) -> list[tuple[str, str]]:
    """Commands of a page with what it says they print."""
    text = (DOCS / f"{name}.md").read_text(encoding="utf-8")
    return re.findall(r"```console\n([^\n]+)\n```\n\n```text\n(.*?)```", text, re.S)


TUTORIALS = load(ROOT / ".ci" / "tutorials.py").TUTORIALS


def test_there_is_a_page_for_each_and_no_other() -> None:
    assert {p.stem for p in DOCS.glob("*.md")} == {
        *TUTORIALS,
        "frameworks",
    }  # tests/foreign/test_tutorial.py


@pytest.mark.parametrize("name", TUTORIALS)
def test_a_page_has_its_commands_and_ends_in_a_verdict(name: str) -> None:
    found = fences(name)
    assert [c for c, _ in found] == [command for _, command in TUTORIALS[name].steps]
    assert len(found) <= 3
    said = found[-1][1].rstrip().splitlines()
    verdict = (
        r"(PASS|FAIL|INCONCLUSIVE) with .+ Judged: \d+ attacks? (from|of) \d+ of \d+ families\."
    )
    assert re.match(verdict, said[-1])
    refused = [out for _, out in found if out.startswith("error:")]
    assert len(refused) <= 1
    for out in refused:
        assert "--" in out  # names the option that settles it


@pytest.mark.parametrize("name", TUTORIALS)
def test_init_prints_what_the_page_shows(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    load(DOCS / "make_tables.py").make(tmp_path)
    monkeypatch.chdir(tmp_path)
    for command, shown in fences(name):
        if not command.startswith("vflsec init"):
            continue
        code = main.main(shlex.split(command)[1:])
        said = capsys.readouterr()
        assert code == (2 if shown.startswith("error:") else 0)
        assert (said.out + said.err).split() == shown.split()


@pytest.mark.slow
@pytest.mark.long
def test_an_audit_prints_the_verdict_that_the_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    load(DOCS / "make_tables.py").make(tmp_path)
    monkeypatch.chdir(tmp_path)
    for command, _ in fences("vehicles"):
        assert main.main(shlex.split(command)[1:]) in (0, 1, 3)
    last = capsys.readouterr().out.rstrip().splitlines()[-1]
    shown = fences("vehicles")[-1][1].rstrip().splitlines()[-1]
    assert last.split(";")[0].split(". ")[0] == shown.split(";")[0].split(". ")[0]
