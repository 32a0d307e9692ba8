"""First screens as approved texts, and what a reader must be able to answer after each, by codes.

``UPDATE_SCREENS=1`` writes the texts anew; read the difference before committing it.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest
from generated import expose, make_point, make_summary
from rich.console import Console

from vflsec.audit.evaluation import DatasetFacts
from vflsec.audit.gate import Gate
from vflsec.audit.leakage_claims import format_secret
from vflsec.audit.point import Training
from vflsec.report.build import build_report
from vflsec.report.console import WIDTH, print_blocks, print_last
from vflsec.report.html import render_statement
from vflsec.report.summary import Summary
from vflsec.report.tree import Report, View

SCREENS = Path(__file__).parent / "screens"
NONE, ISO = Training("loans", "splitnn", "none"), Training("loans", "splitnn", "iso", 5.0)
OFF = replace(ISO, strength=0.0)
LIMIT = Gate(max=0.1)


@dataclass(frozen=True)
class Answer:
    """What a reader must know: the verdict, the rules behind it, who learns what where."""

    verdict: str
    rules: tuple[str, ...]
    leaks: tuple[str, ...] = ()
    tone: str = ""


def passes_at_a_strength() -> Summary:
    bare = make_point(OFF, "norm", "label", 0.3)
    points = [bare, expose(bare, 235.0), make_point(ISO, "norm", "label", 0.01)]
    return make_summary(points, [Gate(max=0.1, strength=5.0)])


def passes_undefended() -> Summary:
    return make_summary([make_point(NONE, "norm", "label", 0.01)], [LIMIT])


def fails() -> Summary:
    points = [make_point(NONE, "norm", "label", 0.3), make_point(NONE, "cluster", "label", 0.1)]
    return make_summary(points, [LIMIT])


def is_undecided() -> Summary:
    return make_summary([make_point(NONE, "norm", "label", 0.08, 0.06)], [LIMIT])


def has_one_seed() -> Summary:
    return make_summary([make_point(NONE, "norm", "label", 0.3, seeds=1)], [LIMIT])


def is_not_validated() -> Summary:
    return make_summary([make_point(NONE, "norm", "label", 0.01)], [LIMIT], validated=False)


def ranks_in_reverse() -> Summary:
    return make_summary([make_point(NONE, "norm", "label", -0.5)], [LIMIT])


def gives_an_error() -> Summary:
    failed = make_point(NONE, "norm", "label", 0.0)
    failed = replace(failed, status="error", leakage=None, failed=5, reason="it ran out of memory")
    return make_summary([failed], [LIMIT])


def has_several_parties() -> Summary:
    points = [
        make_point(NONE, "norm", "label", 0.3),
        make_point(NONE, "norm", "label", 0.02, 0.05, adversary="telco"),
        make_point(NONE, "grn", "feature", 0.4, metric="r2", adversary="bank", victim="telco"),
        make_point(NONE, "norm", "label", 0.35, adversary="shop+telco"),
    ]
    facts = DatasetFacts(("bank", "shop", "telco"), 2, seeds=(0, 1, 2, 3, 4))
    return make_summary(points, [Gate(max=0.1, target="label")], parties={"loans": facts})


def has_trees() -> Summary:
    at = Training("loans", "secureboost", "none")
    points = [make_point(at, "leaf_labels", "label", 0.25)]
    return make_summary(points, [LIMIT])


def is_a_trace() -> Summary:
    points = [make_point(NONE, "norm", "label", 0.01)]
    return make_summary(points, [LIMIT], scenario="", scenario_file="", data={"run 1": "ab12"})


LABELS, OPEN = (f"{where}: labels of bank to shop" for where in ("none", "iso 0"))
CASES: dict[Callable[[], Summary], Answer] = {
    passes_at_a_strength: Answer("PASS", ("within",), (OPEN, f"{OPEN}, single people"), "warning"),
    passes_undefended: Answer("PASS", ("within",), tone="good"),
    fails: Answer("FAIL", ("exceeded",), (LABELS,), "leak"),
    is_undecided: Answer("INCONCLUSIVE", ("undecided",), (LABELS,), "warning"),
    has_one_seed: Answer("INCONCLUSIVE", ("single_seed",), tone="warning"),
    is_not_validated: Answer("INCONCLUSIVE", ("not_validated",), tone="warning"),
    ranks_in_reverse: Answer("INCONCLUSIVE", ("reversed_ranking",),
                             (f"{LABELS}, labels flipped",), "warning"),
    gives_an_error: Answer("INCONCLUSIVE", ("nothing_measured",), tone="warning"),
    has_several_parties: Answer("FAIL", ("exceeded",), (
        LABELS, "none: labels of bank to shop+telco", "none: columns of telco to bank"), "leak"),
    has_trees: Answer("FAIL", ("exceeded",), (LABELS,), "leak"),
    is_a_trace: Answer("PASS", ("within",), tone="good"),
}  # fmt: skip
_ALSO = {"leakage": "", "exposed": ", single people", "reversed": ", labels flipped"}


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
    facts = {view: [b for s in of for inner in s.blocks for b in getattr(inner, "blocks", ())
                    if b.kind == "facts"] for view, of in first.items()}  # fmt: skip
    (verdict,) = (s for s in report.seen_by(View.PAGE) if s.key == "verdict")
    (page,) = (b for b in verdict.blocks if getattr(b, "key", "") == "answers")
    shown = [b for inner in page.blocks for b in getattr(inner, "blocks", ()) if b.kind == "facts"]
    assert all(of == shown != [] for of in facts.values())


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
