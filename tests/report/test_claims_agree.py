"""No page contradicts itself, or another: what leaks is one claim, wherever it is printed."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from xml.etree import ElementTree

import pytest
from generated import draw_summary
from rich.console import Console

from vflsec.audit.findings import FindingKind, format_gain
from vflsec.audit.leakage_claims import LeakageClaim, Quantity, format_secret
from vflsec.audit.metrics import find_reach
from vflsec.audit.point import Training
from vflsec.audit.summary import Summary
from vflsec.report.build import build_report
from vflsec.report.console import print_report
from vflsec.report.first_screen import LEAKS, build_answer, describe_scope, list_codes
from vflsec.report.html import render_fragment, render_page, render_statement
from vflsec.report.junit import junit_xml
from vflsec.report.markdown import render_markdown
from vflsec.report.sarif import build_sarif
from vflsec.report.statement import build_receivers
from vflsec.report.tree import Figures, Report, Section, Table, View
from vflsec.report.ungated_leaks import find_ungated

COUNT = 20
LEAKING = {FindingKind.LEAK, FindingKind.NOT_STOPPED}


@pytest.fixture(scope="module")
def drawn() -> list[tuple[Summary, Report]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vflsec.report.build.build_first_figures", lambda *_: Figures(()))
        patch.setattr("vflsec.report.leakage_tables.build_figures", lambda *_: Figures(()))
        found = [draw_summary(seed) for seed in range(COUNT)]
        return [(summary, build_report(summary)) for summary in found]


def leaking(summary: Summary, *quantities: Quantity) -> set[tuple[Training, str]]:
    """(training, secret to attacker) of every claim that leaks, of these quantities or of all."""
    return {
        (c.training, _who(c)) for c in summary.claims
        if c.is_leak and (not quantities or c.quantity in quantities)
    }  # fmt: skip


def _who(c: LeakageClaim) -> str:
    return f"{format_secret(c)} to {c.adversary}"


def starred(summary: Summary) -> dict[str, list[bool]]:
    """By training whether each claim leaks, in the order of the columns."""
    at = dict.fromkeys(p.training for p in summary.points)
    leaks = leaking(summary, Quantity.LEAKAGE)
    names = dict.fromkeys(_who(c) for c in summary.claims)
    asked = {(c.training, _who(c)) for c in summary.claims}
    return {_point(t): [(t, n) in leaks for n in names if (t, n) in asked] for t in at}


def _point(t: Training) -> str:
    return "none" if t.is_undefended else f"iso {t.strength:g}"


def test_the_draws_hold_every_case(drawn: list[tuple[Summary, Report]]) -> None:
    seen = {(c.quantity, c.significance) for summary, _ in drawn for c in summary.claims}
    assert len(seen) >= 7
    assert {v.verdict for s, _ in drawn for v in s.gates} == {"PASS", "FAIL", "INCONCLUSIVE"}


def test_every_table_marks_the_same_leaks(drawn: list[tuple[Summary, Report]]) -> None:
    for summary, report in drawn:
        out = io.StringIO()
        print_report(report, Console(file=out, width=300))
        texts = {
            "console": (out.getvalue(), r"^{name}  (.*)$", r"[+-]\d\.\d\d(\*?)"),
            "markdown": (render_markdown(report), r"^\| {name} \|([^\[\n]*)$",
                         r"[+-]\d\.\d\d(\\\*)?"),
            **{kind: (made(report), r'<tr><th scope="row">{name}</th>(.*)</tr>',
                      r">[+-]\d\.\d\d(\*?)<")
               for kind, made in (("page", render_page), ("statement", render_statement),
                                  ("notebook", render_fragment))},
        }  # fmt: skip
        for kind, (text, row, cell) in texts.items():
            for name, leaks in starred(summary).items():
                table = text.split("Strongest advantage", 1)[1]
                cells = re.search(row.format(name=re.escape(name)), table, re.MULTILINE)
                assert cells is not None
                found = [bool(x) for x in re.findall(cell, cells[1])]
                assert found == leaks, (kind, name)


def test_sentences_and_codes_agree(drawn: list[tuple[Summary, Report]]) -> None:
    for summary, _ in drawn:
        said = {a.question: " ".join(a.lines) for a in build_answer(summary)["toy"]}
        leaks = leaking(summary, *Quantity)
        assert said[LEAKS].startswith("Yes") == bool(leaks)
        if "Without a defense, this system leaks" in describe_scope(summary):
            assert any(training.is_undefended for training, _ in leaks)
        exposed = {w for t, w in leaking(summary, Quantity.EXPOSED) if t.is_undefended}
        names = re.findall(
            r"Without a defense, (\w+) names .*?\((labels of \w+)", said.get("Who is exposed?", "")
        )
        assert {f"{secret} to {who}" for who, secret in names} == exposed


def test_the_page_to_sign_calls_the_same_targets_leaking(
    drawn: list[tuple[Summary, Report]],
) -> None:
    for summary, _ in drawn:
        (table, *_) = build_receivers(summary).blocks
        assert isinstance(table, Table)
        judged = {v.training for v in summary.gates if not v.is_undefended and v.defense}
        for who, what, *cells in table.rows:
            if what:
                here = {t for t, name in leaking(summary) if name == f"{what} to {who}"}
                found = [not isinstance(cell, str) for cell in cells]
                protected = [bool(here & judged)] if judged else []
                assert found == [any(t.is_undefended for t in here), *protected]


def test_findings_and_gates_agree_with_the_claims(drawn: list[tuple[Summary, Report]]) -> None:
    for summary, _ in drawn:
        leaks = {(t.strength, name.split(" of ")[0], name.split(" to ")[1])
                 for t, name in leaking(summary)}  # fmt: skip
        words = {"label": "labels", "feature": "columns"}
        found = {(f.place.strength, words[f.place.target], f.place.adversary)
                 for f in summary.findings if f.kind in LEAKING}  # fmt: skip
        assert found <= leaks
        mean = {(t.strength, n.split(" of ")[0], n.split(" to ")[1])
                for t, n in leaking(summary, Quantity.LEAKAGE) if t.is_undefended}  # fmt: skip
        assert mean <= found
        assert {(c.training, _who(c)) for c in find_ungated(summary)} <= leaking(summary)
        of = {(p.attack, p.adversary): words[p.target] for p in summary.points}
        for v in summary.gates:
            if v.verdict == "FAIL":
                assert (v.strength, of[v.attack, v.adversary], v.adversary) in leaks


def test_programs_read_the_same_codes(drawn: list[tuple[Summary, Report]]) -> None:
    for summary, _ in drawn:
        root = ElementTree.fromstring(junit_xml(summary).split("\n", 1)[1])
        pairs = {p.get("name"): p.get("value") for p in root.iter("property")}
        claims = build_sarif(summary)["runs"][0]["properties"]["claims"]
        assert claims == list_codes(summary) == {k: pairs[k] for k in list_codes(summary)}
        assert set(claims.values()) <= {"significant", "not_significant", "no_interval"}
        assert len(claims) == len(summary.claims)


def _texts(sections: tuple[Section, ...]) -> Iterator[str]:
    yield from re.findall(r"[+-]\d\.\d\d of [\w²]+ \[[^\]]*\]", repr(sections))


def test_one_number_has_one_interval(drawn: list[tuple[Summary, Report]]) -> None:
    """Every gain that any sentence prints is that of a point, with its one interval."""
    checked = 0
    for summary, report in drawn:
        known = {format_gain(p.metric, e.mean, e.low, e.high)
                 for p in summary.points for e in (p.advantage, p.mirrored)}  # fmt: skip
        for view in View:
            for text in _texts(report.seen_by(view)):
                assert text in known
                checked += 1
        for c in summary.claims:
            low, high = find_reach("advantage", c.metric)
            assert c.low is None or low <= c.low <= (c.high or 0.0) <= high
    assert checked > COUNT
