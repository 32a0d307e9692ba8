"""Names that want to bend what a reader is shown: nothing is forged, hidden or run by them."""

from __future__ import annotations

import copy
import io
import json
import os
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from audited import LEAKY, SEALED, Planted, audited, gate
from printed import advice, html, metrics, print_summary, tags
from rich.console import Console

import vflsec
from vflsec.audit.summary import Summary
from vflsec.cli import main
from vflsec.data.names import find_unshowable
from vflsec.errors import ConfigError
from vflsec.report.exports import load_summary
from vflsec.report.progress import Lines
from vflsec.report.sanitize import clean, clean_tree, disarm
from vflsec.report.terminal import WIDTH
from vflsec.report.tree import Cell, StepKind
from vflsec.report.verdicts import judged_line
from vflsec.runtime.atomic_files import json_text
from vflsec.train.export import check_writable

ESCAPE = "\x1b[2J\x1b]0;x\x07"
FORGED = "PASS         advantage in accuracy of any attack <= 0.1"
HIDDEN = "\u202e\u200b\u2066\ufeff\u00ad\u3164\U000e0041"
LONG = "a limit on what each and every party may ever learn of the labels of others than itself "


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    called = f'"{LONG}::stop-commands::x ##[error]y ##vso[task.complete result=Succeeded;]z"'
    text = gate(max=0.1).replace("max", f"name = {called}\nmax")
    return audited(tmp_path_factory.mktemp("named"), Planted(LEAKY, SEALED), text).folder


@pytest.fixture
def summary(folder: Path) -> dict[str, Any]:
    return load_summary(folder)  # type: ignore[no-any-return]


def renamed(summary: dict[str, Any], old: str, new: str) -> dict[str, Any]:
    """The summary with one text in the place of another, wherever it stands."""
    text = json.dumps(summary).replace(json.dumps(old)[1:-1], json.dumps(new)[1:-1])
    return json.loads(text)  # type: ignore[no-any-return]


def verdicts(said: str) -> list[str]:
    """Of the lines that begin with one: those of the gates."""
    words = [line.partition(" ")[0] for line in said.splitlines()]
    return [word for word in words if word in ("PASS", "FAIL", "INCONCLUSIVE")]


@pytest.mark.parametrize("old", ["norm", "shop", "breast_cancer"])
def test_a_terminal_shows_a_name_on_its_line_and_runs_none(
    summary: dict[str, Any], old: str
) -> None:
    hostile = renamed(summary, old, f"{old}{ESCAPE}\n{FORGED}\r{HIDDEN}")
    for whole in (False, True):
        out = io.StringIO()
        print_summary(hostile, Console(file=out, width=WIDTH, markup=False), whole=whole)
        said = out.getvalue()
        assert old in said
        assert all(c.isprintable() or c in "\n\u2060" for c in said), repr(said[:2000])
        assert not any(mark in said for mark in HIDDEN)
        assert verdicts(said) == ["FAIL", "PASS"]


def test_progress_shows_no_escape_sequence() -> None:
    out = io.StringIO()
    Lines(Console(file=out, width=WIDTH, markup=False)).note(f"a{ESCAPE}\n{FORGED}")
    assert out.getvalue() == f"a[2J]0;x {FORGED}\n"


def commands(text: str) -> list[str]:
    """What GitHub's runner, Azure's agent or TeamCity would take for a command."""
    marks = ("##[", "##vso[", "##teamcity[")
    lines = text.splitlines()
    return [x for x in lines if x.strip().startswith("::") or any(m in x for m in marks)]


def test_a_build_server_is_told_nothing_by_a_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A name that wraps begins a line; GitHub takes one with :: in front for a command."""
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    assert main.main(["report", str(folder)]) == 0
    said = capfd.readouterr().out
    assert "stop-commands" in said
    assert commands(said) == []
    assert main.main(["gate", str(folder)]) == 1
    told = commands(capfd.readouterr().out)
    assert [x.partition(" ")[0] for x in told] == ["::error"] * len(told)
    assert len(told) == 1
    assert main.main(["show", "##[error]x\n::error::y"]) == 2
    assert commands(capfd.readouterr().err) == []


def test_text_that_is_inert_reads_as_it_did() -> None:
    text = "a\n  ::error::b\n##[group]c ##vso[x]d ##teamcity[y]e\n## heading\nstd::vector\n::\n"
    assert disarm(text).replace("\u2060", "") == text
    assert commands(disarm(text)) == []
    assert commands(disarm("a\r::error::b\u2028 ::c")) == []
    assert disarm("## heading, std::vector") == "## heading, std::vector"
    assert clean(clean("x##[error]y")) == clean("x##[error]y")
    assert commands(clean("x##[error]y")) == []


@pytest.mark.figures
def test_names_that_look_the_same_are_two() -> None:
    texts = clean_tree(("a", "a\u200b", Cell("c\n", hint="\x1b"), {"e": 0.5}))
    assert texts == ("a", "a", Cell("c "), {"e": 0.5})
    facts = {"name": "n", "data": {"a": "1", "a\u200b": "2"}, "versions": {"vflsec": "0"}}
    page = html(facts)
    for code in "12":
        assert f"<dt>Data: a</dt><dd>hash <code>{code}</code></dd>" in page
    for mark in ("\u3164", "\u2800", "\u034f"):
        assert mark.isprintable()
        assert clean(f"a{mark}") == "a"
        assert find_unshowable(f"a{mark}") == "be printable"


def test_json_holds_the_names_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    from vflsec.cli.output import print_json, silence_broken_streams

    value = {"name": "##[error]x ## ### ::y"}
    with silence_broken_streams():
        print_json(value)
    out = capsys.readouterr().out
    assert commands(out) == []
    assert json.loads(out) == value


def test_only_what_keeps_a_gate_open_is_called_dead(summary: dict[str, Any]) -> None:
    """`norm` is part of many a word; a gate that is open because of another attack names that."""
    open_ = copy.deepcopy(summary)
    open_["alive"]["norm"]["alive"] = open_["alive"]["model_completion"]["alive"] = False
    open_["gates"] = open_["gates"][:1]
    open_["gates"][0] |= {
        "verdict": "INCONCLUSIVE", "more_seeds": None, "stuck": False,
        "dead": [open_["alive"]["model_completion"]["place"]],
        "rule": "not_validated", "reason": "model_completion(label=normal) (would not decide it).",
    }  # fmt: skip
    steps = advice.next_steps(open_)
    assert steps[0].command == "vflsec show model_completion"
    assert steps[0].kind is StepKind.NOT_VALIDATED
    assert not any(step.kind is StepKind.STUCK for step in steps)


def test_a_verdict_names_the_places_that_keep_it_open(tmp_path: Path) -> None:
    nothing = {"norm": 0.0, "model_completion": 0.2}
    found = audited(tmp_path, Planted(nothing, SEALED), gate(max=0.3, defense="defended")).summary
    (verdict,) = found["gates"]
    assert verdict["verdict"] == "INCONCLUSIVE"
    assert [place["attack"] for place in verdict["dead"]] == ["norm"]
    assert verdict["dead"] == [found["alive"]["norm"]["place"]]
    assert advice.next_steps(found)[0].command == "vflsec show norm"


def test_commands_name_a_folder_with_blanks_as_one_word(tmp_path: Path) -> None:
    folder, edited = tmp_path / "out; rm -rf x", tmp_path / "my case.toml"
    record = Summary(name="n", scenario_hash="0" * 8)
    line = judged_line(record, edited, folder)
    words = shlex.split(line.partition("To judge it: ")[2])
    assert words == ["vflsec", "gate", str(folder), "--scenario", str(edited)]
    bare = judged_line(replace(record, scenario_hash=""), None, folder)  # of a trace
    assert judged_line(record, None, folder).count("(") - bare.count("(") == 1


def test_no_figure_or_verdict_of_mlflow_stands_in_the_place_of_another(
    summary: dict[str, Any],
) -> None:
    """MLflow takes no ``<=``: a floor and a ceiling at one limit were one tag, the last one."""
    first = summary["gates"][0]
    summary["gates"] = [
        first | {"label": "utility >= 0.9", "verdict": "FAIL"},
        first | {"label": "utility <= 0.9", "verdict": "PASS"},
        first | {"label": "x" * 300 + "a", "verdict": "FAIL"},
        first | {"label": "x" * 300 + "b", "verdict": "PASS"},
    ]
    found = {k: v for k, v in tags(summary).items() if k.startswith("vflsec.gate")}
    assert list(found.values()) == ["FAIL", "PASS", "FAIL", "PASS"]
    assert all(len(name) <= 250 for name in found)
    before = len(metrics(summary))
    for p in summary["points"]:
        p["dataset"] = "d" * 300
    assert len(metrics(summary)) == before


def test_init_advises_a_command_that_can_be_pasted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = "".join(f"c{i},{i * 7 % 11},{i * 5 % 13},{i * 3 % 2}\n" for i in range(60))
    (tmp_path / "bank.csv").write_text("id,x,z,y\n" + rows)
    assert main.main(["init", "bank.csv", "--label", "y", "--out", "my $(touch x) case.toml"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    words = shlex.split(last.partition("Next: ")[2])
    assert words == ["vflsec", "check", "my $(touch x) case.toml"]
    assert main.main(words[1:]) == 0


def test_errors_show_no_escape_sequence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main.main(["audit", f"no{ESCAPE}{HIDDEN}.toml"]) == 2
    said = capsys.readouterr().err
    assert all(c.isprintable() or c == "\n" for c in said), repr(said)


@pytest.mark.usefixtures("read_in_forks")
def test_a_trace_from_elsewhere_runs_nothing_on_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    about = {"dataset": f"d{ESCAPE}\nbank: whole{HIDDEN}", "defense": "##[error]x"}
    of: dict[str, Any] = {"party": "bank", "role": "passive", "rows": 10, "classes": 2}
    with vflsec.record(tmp_path / "t", loss_reduction="mean", run=about, **of) as rec:
        z = rec.cut(torch.zeros(10, 2, requires_grad=True), range(10))
        z.backward(torch.ones(10, 2))  # type: ignore[no-untyped-call]
    for verb in ("info", "validate"):
        assert main.main(["trace", verb, str(tmp_path / "t")]) == 0
        said = capsys.readouterr().out
        assert all(c.isprintable() or c in "\n\u2060" for c in said), repr(said)
        assert commands(said) == []
        assert len([x for x in said.splitlines() if x.startswith("bank: whole")]) < 2


@pytest.mark.parametrize("name", ["Übersicht", "a)", "", ".x", "x" * 81, "a\nb"])
def test_a_party_that_no_folder_can_be_called_after(name: str, tmp_path: Path) -> None:
    """Views that were to be kept, and `trace record`, ended in an internal error."""
    with pytest.raises(ConfigError, match="a party's name must be at most 80 letters") as caught:
        vflsec.record(tmp_path / "t", party=name, role="passive", rows=10)
    assert "pydantic" not in str(caught.value)
    with pytest.raises(ConfigError, match="a party's name must be at most 80 letters"):
        check_writable(2, ["bank", name], "views")
    check_writable(2, ["bank", "a+b-c_d.e"], "views")


def test_views_are_not_kept_of_a_party_with_an_accent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = "".join(f"c{i},{i * 7 % 11},{i * 3 % 2}\n" for i in range(60))
    (tmp_path / "bank.csv").write_text("id,x,y\n" + rows)
    (tmp_path / "Übersicht.csv").write_text(
        "id,v\n" + "".join(f"c{i},{i % 5}\n" for i in range(60))
    )
    assert main.main(["init", "bank.csv", "Übersicht.csv", "--label", "y"]) == 0
    for args in (["audit", "--keep-views"], ["trace", "record"]):
        assert main.main([*args, "scenario.toml", "--out", "out"]) == 2
        assert "got 'Übersicht'" in capsys.readouterr().err
        assert not (tmp_path / "out").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names")
def test_folders_whose_names_are_no_utf8_hold_an_audit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All was trained, and then the exports ended in an internal error, with code 4."""
    folder = tmp_path / os.fsdecode(b"gr\xfc\xdfe")
    found = audited(folder, Planted(LEAKY, SEALED), gate(max=0.1))
    assert found.exit_code == 1
    assert main.main(["report", str(found.folder)]) == 0
    assert main.main(["gate", str(found.folder), "--max", "0.4"]) == 0
    said = capsys.readouterr().out
    assert "PASS" in said
    kept = load_summary(found.folder)
    assert kept["command"]["folder"] == str(found.folder)
    with (found.folder / "results.parquet").open("rb") as file:
        assert len(pd.read_parquet(file)) == len(found.results)
    assert "é" in json_text({"a": "é\udcff"})
    assert json.loads(json_text({"a": "é\udcff"})) == {"a": "é\udcff"}
