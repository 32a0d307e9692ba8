"""`vflsec audit --watch`: audits again after a change, with a clock that a test turns."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from vflsec.cli import main
from vflsec.cli.watch import watch_files
from vflsec.config.problems import ScenarioError
from vflsec.config.scenario import list_files, load_scenario
from vflsec.errors import ConfigError

SCENARIO = """[data]
file = "people.csv"
label = "sick"
columns = { clinic = ["age"], shop = ["basket"] }
active = "clinic"
[algorithm]
name = "splitnn"
[[attack]]
name = "norm"
"""
Steps = list[Callable[[], object]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("own.toml").write_text(SCENARIO)
    Path("people.csv").write_text("age,basket,sick\n")
    return tmp_path


def touch(name: str, at: int) -> Callable[[], None]:
    return lambda: os.utime(name, (at, at))


def nothing() -> None:
    pass


def clock(steps: Steps) -> Callable[[float], None]:
    """Each pause does the next step; the last one is Ctrl-C."""

    def sleep(_: float) -> None:
        if not steps:
            raise KeyboardInterrupt
        steps.pop(0)()

    return sleep


def count(steps: Steps, audit: Callable[[], object] = nothing) -> int:
    """How often it audited until the steps ended."""
    rounds: list[int] = []

    def audited() -> None:
        rounds.append(1)
        audit()

    with pytest.raises(KeyboardInterrupt):
        watch_files(partial(list_files, "own.toml", ()), audited, sleep=clock(steps))
    return len(rounds)


def test_it_audits_once_while_nothing_changes(folder: Path) -> None:
    assert count([nothing, nothing]) == 1


@pytest.mark.parametrize("name", ["own.toml", "people.csv", "base.toml"])
def test_a_changed_scenario_or_table_is_audited_again(folder: Path, name: str) -> None:
    Path("own.toml").rename("base.toml")
    Path("own.toml").write_text('extends = "base.toml"\n')
    assert count([touch(name, 5), nothing, nothing]) == 2


def test_a_file_that_is_still_written_is_waited_for(folder: Path) -> None:
    steps: Steps = [touch("people.csv", i) for i in range(5, 9)]
    assert count(steps) == 1
    assert count([*(touch("people.csv", i) for i in range(9, 12)), nothing, nothing]) == 2


def test_a_change_during_an_audit_starts_the_next(folder: Path) -> None:
    changes: Steps = [touch("people.csv", 5)]
    assert count([nothing, nothing], lambda: changes and changes.pop()()) == 2


def test_an_error_is_said_and_the_mended_file_audited(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steps: Steps = [lambda: Path("own.toml").write_text("[dat]\n"), nothing, nothing,
                    lambda: Path("own.toml").write_text(SCENARIO), nothing, nothing]  # fmt: skip
    assert count(steps, lambda: load_scenario("own.toml", components=False)) == 3
    assert "own.toml:1" in capsys.readouterr().err

    def refuse() -> None:
        raise ConfigError("people.csv: empty")

    assert count([touch("people.csv", 5), nothing], refuse) == 2
    assert capsys.readouterr().err.count("people.csv: empty") == 2


def test_a_misspelt_scenario_ends_it(folder: Path) -> None:
    with pytest.raises(ScenarioError):
        watch_files(partial(list_files, "owm.toml", ()), nothing, sleep=clock([]))


def test_a_scenario_that_is_gone_for_a_moment_is_waited_for(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steps: Steps = [lambda: Path("own.toml").rename("else.toml"), nothing, nothing,
                    lambda: Path("else.toml").rename("own.toml"), nothing, nothing]  # fmt: skip
    assert count(steps, lambda: load_scenario("own.toml", components=False)) == 3
    assert capsys.readouterr().err.count("error: ") == 1


def test_the_option_watches_and_ctrl_c_ends(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("vflsec.cli.watch.watch_files.__kwdefaults__", {"sleep": clock([])})
    assert main.main(["audit", "own.toml", "--watch", "--quiet"]) == 130
    said = capsys.readouterr()
    assert "people.csv" in said.err  # it has no rows
    assert "Watching own.toml, people.csv." in said.out
