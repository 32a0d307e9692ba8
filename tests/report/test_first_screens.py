"""First screens as approved texts, and what a reader must be able to answer after each, by codes.

``UPDATE_SCREENS=1`` writes the texts anew; read the difference before committing it.
"""

from __future__ import annotations

import io
import os
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import typer
from first_screens import CASES, ISO, OFF, rises_in_one_figure
from generated import make_point, make_summary
from rich.console import Console

from vflsec.audit.gate import Gate
from vflsec.audit.leakage_claims import format_secret
from vflsec.audit.record import Command
from vflsec.audit.summary import Summary
from vflsec.cli import main
from vflsec.report import first_screen
from vflsec.report.advice import next_steps
from vflsec.report.build import build_report
from vflsec.report.console import print_blocks, print_last
from vflsec.report.github import workflow_commands
from vflsec.report.html import render_page, render_statement
from vflsec.report.markdown import render_markdown
from vflsec.report.terminal import WIDTH
from vflsec.report.tree import Report, View

SCREENS = Path(__file__).parent / "screens"
_ALSO = {"leakage": "", "exposed": ", single rows", "reversed": ", labels flipped"}


@cache
def built(case: Callable[[], Summary]) -> tuple[Summary, Report]:
    summary = case()
    return summary, build_report(summary)


def show(report: Report) -> str:
    """The first screen on a terminal, and the verdict that ends it."""
    out = io.StringIO()
    console = Console(file=out, width=WIDTH)
    sections = report.seen_by(View.TERMINAL)
    print_blocks([s for s in sections if s.key in ("answers", "gates")], console)
    print_last(report, console)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_a_first_screen_is_the_approved_one(case: Callable[[], Summary]) -> None:
    text, path = show(built(case)[1]), SCREENS / f"{case.__name__}.txt"
    if os.environ.get("UPDATE_SCREENS"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_a_reader_can_answer(case: Callable[[], Summary]) -> None:
    (summary, report), answer = built(case), CASES[case]
    leaks = tuple(
        f"{'none' if c.defense == 'none' else f'{c.defense} {c.strength:g}'}: "
        f"{format_secret(c)} to {c.adversary}{_ALSO[c.quantity]}"
        for c in summary.claims if c.is_leak
    )  # fmt: skip
    assert (report.verdict, report.tone) == (answer.verdict, answer.tone)
    assert tuple(v.rule for v in summary.gates) == answer.rules
    assert set(leaks) == set(answer.leaks)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_every_medium_opens_with_the_same_answers(case: Callable[[], Summary]) -> None:
    _, report = built(case)
    first = {view: [s for s in report.seen_by(view) if s.key == "answers"]
             for view in (View.TERMINAL, View.SUMMARY, View.NOTEBOOK, View.STATEMENT)}  # fmt: skip
    said = {view: [b for s in of for inner in s.blocks for b in getattr(inner, "blocks", ())
                   if b.kind == "answers"] for view, of in first.items()}  # fmt: skip
    (verdict,) = (s for s in report.seen_by(View.PAGE) if s.key == "verdict")
    (page,) = (b for b in verdict.blocks if getattr(b, "key", "") == "answers")
    shown = [b for inner in page.blocks for b in getattr(inner, "blocks", ())
             if b.kind == "answers"]  # fmt: skip
    assert all(of == shown != [] for of in said.values())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_the_statement_is_for_who_signs(case: Callable[[], Summary]) -> None:
    """No attack, defense, metric or number with decimals above the appendix."""
    summary, report = built(case)
    page = render_statement(report)
    above = page.split("<main>")[1].split("Appendix A.")[0]
    names = {w for p in summary.points for w in (p.attack, p.defense, p.algorithm, p.metric)}
    words = set(above.replace("<", " ").replace(">", " ").replace(".", " ").split())
    assert words & (names - {"none", ""}) == set()
    assert not re.search(r"\d\.\d|%|±|\[", above)


def test_what_leaks_with_a_defense_alone_is_said_with_it() -> None:
    """The first answer was yes, and nothing below said what or how much."""
    points = [make_point(OFF, "norm", "label", 0.01), make_point(ISO, "norm", "label", 0.2)]
    found = {a.question: a.lines for a in first_screen.build_answer(
        make_summary(points, [Gate(max=0.1, strength=5.0)]))["loans"]}  # fmt: skip
    assert sum("+0.20" in line and "iso 5" in line for line in found[first_screen.MUCH]) == 1


def test_figures_that_did_not_rise_are_counted_and_listed_where_all_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Dozens of PASS lines stood beside a leak, one for each figure of a baseline."""
    summary, report = built(rises_in_one_figure)
    views = (View.TERMINAL, View.SUMMARY, View.NOTEBOOK, View.WHOLE, View.PAGE)
    gates = [[s for s in report.seen_by(view) if s.key == "gates"] for view in views]
    lines = [[len(b.lines) for b in s.blocks if b.kind == "gates"] for (s,) in gates]
    assert lines == [[1], [1], [1], [40], [40]]
    assert len(summary.gates) == 40
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    told = list(workflow_commands(summary))
    assert (sum(line.startswith("::error ") for line in told), len(told)) == (1, 3)
    for page in (render_page(report), render_markdown(report), show(report)):
        assert all(f"{n} " in page for n in ("39 of 40", 20))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_every_step_is_a_command_that_works_on_this_audit(case: Callable[[], Summary]) -> None:
    """A step was `vflsec compare --help`, and `vflsec tune` did not get the audit's `--set`."""
    asked = Command("s.toml", ("data.rows=50",), "out/s")
    for step in next_steps(replace(case(), command=asked)):
        words = shlex.split(step.command)[1:]
        parser = typer.main.get_command(main.app)
        while words and hasattr(parser, "commands"):
            parser, words = parser.commands[words[0]], words[1:]
        made = parser.make_context(parser.name, list(words))
        assert made.params
        if made.params.keys() & {"scenario"} and isinstance(made.params["scenario"], str):
            assert list(made.params["set_"]) == ["data.rows=50"]
