"""Progress without a terminal: a line for each piece of work, and one a minute in between."""

from __future__ import annotations

import io
import re
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from vflsec.cli.output import ProgressLines
from vflsec.plan.values import Price
from vflsec.report.progress import (
    Lines,
    Terminal,
    pick_reporter,
    reporter_for,
    show_steps,
    warn_of_memory,
)
from vflsec.runtime.progress_protocol import NOTE, Reporter

WORK: Any = SimpleNamespace(title="splitnn, iso 5", cells=[1, 2], attacks=[1])
PLAN: Any = SimpleNamespace(cells={"a": "", "b": "", "c": "", "d": ""}, cost=Price())


def keyed() -> list[Any]:
    cells = [SimpleNamespace(key=k) for k in "abcd"]
    return [
        SimpleNamespace(title=t, cells=c, attacks=[1], kept=False)
        for t, c in (("one", cells[:2]), ("two", cells[2:]))
    ]


def test_a_long_piece_of_work_is_not_silent() -> None:
    out = io.StringIO()
    lines = Lines(Console(file=out, width=200), pause=0.1)
    one, two = keyed()
    lines.open()
    time.sleep(0.3)
    assert 1 <= len(out.getvalue().splitlines()) <= 2
    lines.plan(PLAN, Path("out"), [one, two])
    lines.begin(one)
    lines.step(one, "epoch 3", 0.5)
    time.sleep(1.2)
    said = [x for x in out.getvalue().splitlines() if "to go" in x]
    assert 1 <= len(said) <= 3
    assert said[0].startswith("[0/2] running for 0 s; about ")
    assert said[0].endswith("to go, at one: epoch 3")
    lines.finish(one)
    last = out.getvalue().splitlines()[-1]
    assert last.startswith("[1/2] one: 2 trainings, 1 attack (")
    assert "; about " in last
    lines.finish(two)
    assert "to go" not in out.getvalue().splitlines()[-1]
    lines.close()
    time.sleep(0.15)
    before = out.getvalue()
    time.sleep(0.3)
    assert out.getvalue() == before


def test_too_little_memory_is_said_beforehand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vflsec.report.progress.count_memory", lambda: 8_000_000_000)
    assert not warn_of_memory(Price(memory_bytes=8_000_000_000))
    said = warn_of_memory(Price(memory_bytes=9_500_000_000))
    assert "9.5 GB" in said
    assert "8.0 GB" in said
    assert {"sample", "--replicas"} <= set(re.findall(r"[\w-]+", said))


def test_a_search_before_the_audit_is_announced_and_counted_by_itself() -> None:
    out = io.StringIO()
    lines = Lines(Console(file=out, width=200))
    one, two = keyed()
    search: Any = SimpleNamespace(cells={"a": "tuning", "b": "tuning"})
    lines.plan(search, Path("out"), [one])
    lines.finish(one)
    lines.plan(PLAN, Path("out"), [one, two])
    lines.finish(two)
    said = out.getvalue().splitlines()
    assert said[0] == "First 2 trainings on drawn worlds."
    assert said[1].startswith("[1/1] one")
    assert said[2] == "4 trainings into out."
    assert said[3].startswith("[1/2] two")
    lines.close()


def test_what_remains_follows_the_share_done() -> None:
    lines = Lines(Console(file=io.StringIO()))
    lines.all, lines.cells, lines.start = 10, 2.0, time.monotonic() - 100
    assert lines._remains() == "; about 7 min to go"
    lines.now = (WORK, "epoch", 0.5)  # one more of its two cells
    assert lines._remains() == "; about 4 min to go"
    lines.cells = 0.0
    lines.now = None
    assert lines._remains() == ""


def test_a_terminal_gets_bars() -> None:
    assert isinstance(reporter_for(Console(file=io.StringIO(), force_terminal=True)), Terminal)
    assert type(reporter_for(Console(file=io.StringIO()))) is Lines


def test_a_script_is_told_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Console(file=io.StringIO(), force_terminal=True)
    given = Reporter()
    for console, asked, kind in (
        (seen, None, Terminal), (seen, True, Terminal), (seen, False, Reporter),
        (Console(file=io.StringIO()), None, Reporter), (Console(file=io.StringIO()), True, Lines),
    ):  # fmt: skip
        monkeypatch.setattr("vflsec.report.progress.console_for", lambda c=console: c)
        assert type(pick_reporter(asked)) is kind
    assert pick_reporter(given) is given


def test_a_command_says_how_far_it_is_and_notes_at_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    told = ProgressLines(pause=60)
    told("t0: norm by bank", 0.25)
    told("A note.", NOTE)
    assert capsys.readouterr().err == "A note.\n"
    told.start, told.pause = told.start - 30, 0
    told("t0: norm by bank", 0.25)
    told("t1: norm by bank", 0.5)
    first, second = capsys.readouterr().err.splitlines()
    assert first == "[25%] t0: norm by bank (30 s; about 2 min to go)"
    assert second.startswith("[50%] t1: norm by bank (30 s; about 30 s")


@pytest.mark.parametrize(
    ("terminal", "asked", "shown"),
    [(True, None, True), (True, False, False), (False, None, False), (False, True, True)],
)
def test_one_piece_of_work_has_a_bar_where_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, asked: bool | None, shown: bool
) -> None:
    console = Console(file=(out := io.StringIO()), force_terminal=terminal)
    monkeypatch.setattr("vflsec.report.progress.console_for", lambda: console)
    with show_steps(asked) as tell:
        tell("train: epoch 1/4", 0.25)
    assert ("epoch 1/4" in out.getvalue()) == shown
