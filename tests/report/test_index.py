"""One page over several audits, its script, and pages as PDF."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from pathlib import Path

import pytest
from audited import LEAKY, SEALED, Planted, audited, gate
from first_screens import LIMIT, NONE, fails, has_several_parties, is_a_trace, passes_undefended
from generated import expose, make_point, make_summary

from vflsec.cli import main
from vflsec.report import pdf
from vflsec.report.html import render_page, render_statement
from vflsec.report.index import Audited, build_index
from vflsec.report.tree import Cell, Report, Table, View


def tables(report: Report) -> dict[str, list[Table]]:
    return {s.key: [b for b in s.blocks if isinstance(b, Table)] for s in report.seen_by(View.PAGE)}


def test_it_says_by_gate_what_changed_since_the_last() -> None:
    """Of one scenario, audited three times: the last two, and changed gates first."""
    old, new = fails(), passes_undefended()
    kept = replace(has_several_parties().gates[0], label="kept")
    runs = [has_several_parties(), replace(old, gates=(kept, *old.gates)),
            replace(new, gates=(kept, *new.gates))]  # fmt: skip
    report = build_index([Audited(s, f"run{i}", "x.html") for i, s in enumerate(runs)])
    (table,) = tables(report)["changes"]
    states = [tuple(c.text if isinstance(c, Cell) else c for c in row[2:4]) for row in table.rows]
    assert states == [("FAIL", "PASS"), ("FAIL", "FAIL")]
    assert table.rows[1][0] == "kept"
    (every,) = tables(report)["audits"]
    assert [row[3].text for row in every.rows] == ["FAIL"] * 3  # type: ignore[union-attr]


def test_leaks_stand_side_by_side() -> None:
    several = has_several_parties()
    (table,) = tables(build_index([Audited(several, "a", ""), Audited(fails(), "b", "")]))["beside"]
    gains = {str(row[1]): [getattr(c, "text", c) for c in row[2:]] for row in table.rows}
    assert gains["labels of bank to shop"] == ["+0.30*", "+0.30*"]
    assert gains["labels of bank to telco"] == ["+0.02", "–"]
    alone = tables(build_index([Audited(is_a_trace(), "a", "")]))
    assert alone["changes"] == []


def test_an_audit_that_names_single_people_has_a_leak() -> None:
    low = make_point(NONE, "norm", "label", 0.01)
    said = [
        tables(build_index([Audited(make_summary(points, [LIMIT]), "a", "")]))["audits"][0].rows[0]
        for points in ([low], [low, expose(low, 235.0)])
    ]
    assert said[0][-1] != said[1][-1]


def test_the_command_writes_a_page_that_links_to_every_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, planted in (("a", Planted(LEAKY)), ("b", Planted(LEAKY, SEALED))):
        audited(tmp_path / name, planted, gate(max=0.1))
    assert main.main(["report", str(tmp_path), "--index"]) == 0
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    links = re.findall(r'<th scope="row"><a href="([^"]+)">', page)
    assert len(links) == 2
    assert all((tmp_path / link).is_file() for link in links)
    assert main.main(["report", str(tmp_path / "a"), str(tmp_path / "b")]) == 2
    assert "--index" in capsys.readouterr().err
    (tmp_path / "index.html").write_text("my page")
    assert main.main(["report", str(tmp_path), "--index"]) == 2
    assert (tmp_path / "index.html").read_text() == "my page"
    (tmp_path / "none").mkdir()
    assert main.main(["report", str(tmp_path / "none"), "--index"]) == 2


def test_a_page_allows_its_own_script_alone() -> None:
    report = build_index([Audited(fails(), "a", "x.html")])
    page = render_page(report)
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    seal = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert (
        f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{seal}'"
        in page
    )
    signed = replace(report, sections={View.STATEMENT: report.sections[View.PAGE]})
    assert "script" not in render_statement(signed)


def test_a_browser_prints_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    browser = tmp_path / "bin" / pdf.BROWSERS[0]
    browser.parent.mkdir()
    browser.write_text(
        '#!/bin/sh\nfor w; do case "$w" in --print-to-pdf=*) : >"${w#*=}";; esac; done\n'
    )
    browser.chmod(0o755)
    page = tmp_path / "report.html"
    page.write_text("x")
    monkeypatch.setenv("PATH", str(browser.parent))
    assert pdf.print_pages([page]) == [tmp_path / "report.pdf"]
    browser.write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(pdf.VflsecError):
        pdf.print_pages([page])
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(pdf.MissingDependencyError):
        pdf.print_pages([page])
