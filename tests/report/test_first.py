"""The first screen: answers, scope, the cheapest strength, gaps, commands that work."""

from __future__ import annotations

import copy
import io
import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from audited import LEAKY, SEALED, Planted, audited, gate
from printed import (
    above_appendix,
    advice,
    answers,
    bounds,
    claims,
    coverage,
    first_screen,
    html,
    junit_xml,
    markdown_summary,
    print_verdicts,
    sarif,
    statement,
    workflow_commands,
)
from rich.console import Console

from vflsec.audit.leakage_claims import LeakageClaim, Quantity
from vflsec.audit.result import Audit
from vflsec.cli import main
from vflsec.engine.audit_record import list_families as registered
from vflsec.plugins import registry
from vflsec.report.first_screen import _how_much as how_much
from vflsec.report.taxonomies import FAMILIES, group_members
from vflsec.report.terminal import WIDTH
from vflsec.report.tree import StepKind

ALL = len(FAMILIES)


@pytest.fixture(scope="module")
def audit(tmp_path_factory: pytest.TempPathFactory) -> Audit:
    gates = gate(max=0.1, strength=0) + gate(metric="utility_drop", max=0.1)
    return audited(tmp_path_factory.mktemp("first"), Planted(LEAKY, SEALED), gates)


def run(command: str) -> int:
    words = shlex.split(command)
    assert words[0] == "vflsec"
    return main.main(words[1:])


def test_it_says_whether_how_much_and_to_whom(summary: dict[str, Any]) -> None:
    worst = next(r for r in summary["leaks"] if r["attack"] == "norm")
    assert claims(summary)["leakage", "labels of bank to shop", 0.0] == "significant"
    said = answers(summary)["How much, to whom?"]
    gain = f"{worst['advantage']:+.2f} of AUC [{worst['low']:+.2f}, {worst['high']:+.2f}]"
    assert gain in said
    assert "labels of bank" in said
    assert 0.25 < worst["low"] < worst["advantage"] < worst["high"] < 0.35


def test_people_of_one_algorithm_are_not_said_to_be_those_of_another() -> None:
    """One sentence said that a party infers labels, the next that it is open, of one algorithm
    each.
    """
    weak = LeakageClaim("d", "splitnn", "none", 0.0, "train", "shop", "norm", metric="auc",
                        target="label", advantage=0.02, low=-0.01, high=0.05)  # fmt: skip
    both = [weak, replace(weak, algorithm="oneshot")]
    people = [replace(weak, quantity=Quantity.EXPOSED, advantage=0.05)]
    first, second = how_much(both, people)
    assert ("splitnn" in first, "oneshot" in second) == (True, True)
    assert not any("splitnn" in line for line in how_much([weak], people))


def test_the_verdict_says_what_it_holds_for(tmp_path: Path, summary: dict[str, Any]) -> None:
    assert first_screen.describe_scope(summary) == (
        f"FAIL with no defense (1 of 3 gates failed). Judged: 2 attacks from 2 of {ALL} families."
    )
    one = audited(tmp_path, Planted(LEAKY, SEALED), gate(max=0.1, defense="defended")).summary
    least = max(one["gates"][0]["detectable"].values())
    assert first_screen.describe_scope(one) == (
        "PASS with iso 5 (1 of 1 gate passed). Without a defense, this system leaks. Judged: 2 "
        f"attacks from 2 of {ALL} families. Smallest detectable leak: {least:.2g} of AUC, of the "
        "kind these attacks look for."
    )
    assert 0 < least < 0.1


def test_the_cheapest_strength_is_named_though_no_gate_judges_it(summary: dict[str, Any]) -> None:
    """The gate asks about strength 0 alone, which fails; 5 would pass both."""
    rows = {(r["defense"], r["strength"]): r for r in summary["grid"]}
    assert (rows["iso", 0.0]["gates"], rows["iso", 0.0]["passed"]) == (2, 1)
    assert (rows["iso", 5.0]["gates"], rows["iso", 5.0]["passed"]) == (2, 2)
    assert [len(rows["iso", s]["left"]) for s in (0.0, 5.0)] == [1, 0]
    assert [k for k, r in rows.items() if r["cheapest"]] == [("iso", 5.0)]
    (line,) = first_screen.describe_cheapest(summary, "breast_cancer")
    drop = rows["iso", 5.0]["utility_drop"]
    assert drop == pytest.approx(0.02, abs=0.005)
    assert line.startswith(f"Iso 5 passes every gate and costs {drop:.3f} [")
    step = advice.next_steps(summary)[0]
    assert step.kind is StepKind.USE_POINT
    assert "use iso 5 with splitnn" in step.text
    assert run(step.command) == 0
    bare = copy.deepcopy(summary)
    for row in bare["grid"]:
        row |= {"passed": row["gates"] - bool(row["strength"]), "cheapest": not row["strength"]}
    assert "--strength=0" in advice.next_steps(bare)[0].command.split()
    none = copy.deepcopy(summary)
    for row in none["grid"]:
        row |= {"passed": 0, "cheapest": False}
    assert "iso" not in first_screen.describe_cheapest(none, "breast_cancer")[0]
    step = advice.next_steps(none)[0]
    assert step.kind is StepKind.STRONGER
    assert step.command.startswith("vflsec tune ")
    assert step.command.endswith("--defense iso --high 100 --leak=0.1 --drop=0.1")
    for verdict in none["gates"]:
        verdict["gate"] |= {"target": "label"} if verdict["gate"]["metric"] == "advantage" else {}
    assert advice.next_steps(none)[0].command.endswith("--drop=0.1 --target label")


def test_the_level_of_a_gate_is_not_said_to_be_that_of_the_audit(summary: dict[str, Any]) -> None:
    """Looks share the error, so a gate was judged at 98.3 % beside a sentence that said 95 %."""
    usual = bounds(summary)
    assert "95 %" in usual
    shared = copy.deepcopy(summary)
    shared["gates"][0]["gate"]["confidence"] = 1 - 0.05 / 3
    assert " 5 % " in bounds(shared).removeprefix(usual)


def test_without_attacks_no_limit_on_them_is_advised(summary: dict[str, Any]) -> None:
    """`vflsec audit fedhssl_table4` advised a command that ended with "the audit makes none"."""
    bare = {**summary, "gates": [], "attacks": {}}
    (step,) = advice.next_steps(bare)
    assert step.command == "vflsec list attacks"
    (step,) = advice.next_steps({**summary, "gates": []})
    assert step.command.endswith(" --max 0.1")


def test_a_setting_that_was_given_twice_is_advised_once() -> None:
    """`--seeds` of `--until-decided` came after the `--set` it had taken the place of."""
    given = ["audit.seeds=3", "audit.dtype=bf16", "audit.seeds=[0, 1, 2]"]
    about = {"command": {"scenario": "a.toml", "folder": "out", "set": given}}
    assert advice.format_command(about, "audit") == (
        "vflsec audit a.toml --out out --set audit.dtype=bf16 --set 'audit.seeds=[0, 1, 2]'"
    )


def test_no_defense_is_the_cheapest_where_it_passes(tmp_path: Path) -> None:
    found = audited(tmp_path, Planted(LEAKY, SEALED), gate(max=0.4)).summary
    assert "without a defense" in first_screen.describe_cheapest(found, "breast_cancer")[0]
    assert [r["strength"] for r in found["grid"] if r["cheapest"]] == [0.0]
    assert found["grid"][0]["utility_drop"] == 0.0


def test_what_one_training_costs_is_not_said_of_another(tmp_path: Path) -> None:
    """splitnn failed, and "the gate passes without a defense" was said, for fedbcd leaks little.

    The terminal printed the same line for the gate at either training.
    """

    class Two(Planted):
        def _cell(self, cell: Any, attacks: Any) -> Any:
            little = dict.fromkeys(LEAKY, 0.05)
            self.advantage = LEAKY if cell.algorithm == "splitnn" else little
            return super()._cell(cell, attacks)

    both = 'algorithm=[{name="splitnn",epochs=2},{name="fedbcd",epochs=2}]'
    found = audited(tmp_path, Two(LEAKY, SEALED), gate(max=0.1), set=[both]).summary
    splitnn, fedbcd = first_screen.describe_cheapest(found, "breast_cancer")
    assert splitnn.startswith("splitnn: iso 5 passes every gate and costs 0.0")
    assert fedbcd == "fedbcd: every gate passes without a defense."
    assert "labels of bank (splitnn)" in answers(found)["How much, to whom?"]
    printed = io.StringIO()
    print_verdicts(found, Console(file=printed, width=WIDTH))
    said = [x for x in printed.getvalue().splitlines() if x.startswith(("PASS", "FAIL"))]
    where = [line.partition("0.1 ")[2].strip() for line in said]
    assert where == [
        "(breast_cancer, splitnn, iso 0)", "(breast_cancer, splitnn, iso 5)",
        "(breast_cancer, fedbcd, iso 0)", "(breast_cancer, fedbcd, iso 5)",
    ]  # fmt: skip


def test_a_reference_is_no_cure_and_no_failure(tmp_path: Path) -> None:
    """The label owner alone reaches 0.6; a gate on utility is about what is audited."""

    class Poor(Planted):
        def _cell(self, cell: Any, attacks: Any) -> Any:
            out = super()._cell(cell, attacks)
            if cell.algorithm == "local":
                out.measures[0] = replace(out.measures[0], value=0.6)
            return out

    gates = gate(metric="utility", min=0.8) + gate(metric="utility", min=0.8, algorithm="local")
    found = audited(tmp_path, Poor(LEAKY, SEALED), gates).summary
    verdicts = {(v["algorithm"], v["verdict"]) for v in found["gates"]}
    assert verdicts == {("splitnn", "PASS"), ("local", "FAIL")}
    assert {r["algorithm"] for r in found["grid"]} == {"splitnn"}


def test_every_command_works_when_pasted(
    folder: Path, summary: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    passed = copy.deepcopy(summary)
    passed["gates"] = [v | {"verdict": "PASS"} for v in summary["gates"]]
    steps = advice.next_steps(passed)
    assert "--update-baseline" in steps[0].command
    assert run(steps[0].command) in (0, 1)
    assert (tmp_path / "baseline.json").is_file()
    assert run(steps[-1].command) == 0  # vflsec show
    empty = summary | {"gates": []}
    assert run(advice.next_steps(empty)[0].command) in (0, 1, 3)
    lost = summary | {"complete": False, "gates": []}
    scenario = str(folder.parent / "case.toml")
    assert advice.next_steps(lost)[0].command == shlex.join(
        ["vflsec", "audit", scenario, "--out", str(folder)]
    )
    open_ = copy.deepcopy(summary)
    for v in open_["gates"]:
        v |= {"verdict": "INCONCLUSIVE", "more_seeds": 3, "rule": "undecided"}
    open_["alive"]["norm"]["alive"] = False
    assert "--until-decided" in advice.next_steps(open_)[0].command  # not what keeps a gate open
    open_["gates"][0] |= {"dead": [open_["alive"]["norm"]["place"]], "rule": "not_validated",
                          "more_seeds": None}  # fmt: skip
    steps = advice.next_steps(open_)
    assert run(steps[0].command) == 0  # vflsec show norm
    assert steps[0].kind is StepKind.NOT_VALIDATED
    assert steps[1].command.endswith("--until-decided 10")
    for v in open_["gates"]:
        v |= {"more_seeds": None, "stuck": True, "dead": [], "rule": "undecided"}
    assert advice.next_steps(open_)[0].kind is StepKind.STUCK
    assert run(advice.next_steps(open_)[0].command) == 0  # vflsec show attack


def test_attacks_without_a_figure_are_not_counted(summary: dict[str, Any]) -> None:
    """25 attacks were counted where 17 of them could not be made."""
    one = copy.deepcopy(summary)
    one["gates"] = [v | {"detectable": {}, "attacks": []} for v in one["gates"] if v["attack"]][:1]
    assert f"Judged: 2 attacks from 2 of {ALL} families" in first_screen.describe_scope(one)
    for p in one["points"]:
        if p["attack"].startswith("norm"):
            p["status"] = "not-observable"
    assert f"Judged: 1 attack from 1 of {ALL} families" in first_screen.describe_scope(one)
    for p in one["points"]:
        p["status"] = "not-observable"
    one["gates"][0] |= {"attack": "", "verdict": "INCONCLUSIVE"}
    assert first_screen.describe_scope(one).startswith(
        "INCONCLUSIVE with no defense (1 of 1 gate inconclusive). Judged: 0 attacks from 0 of "
        f"{ALL}"
    )


def test_a_copied_folder_is_the_one_that_commands_name(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("vflsec.report.html.draw", lambda *_: "")
    shutil.copytree(folder, "elsewhere")
    for words in (
        ["report", "elsewhere", "--to", "public"],
        ["gate", "elsewhere", "--report", "own"],
    ):
        main.main(words)
        shown = capsys.readouterr().out
        assert ("Results: public (open public/report.html" in shown) == (words[0] == "report")
        text = shown + Path(words[-1], "summary.md").read_text(encoding="utf-8")
        assert re.search(r"vflsec gate elsewhere --.* --dataset", text)
        assert str(folder) not in text


def test_a_pass_with_a_warning_says_so_everywhere(
    folder: Path, summary: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the line of the verdict, as the next step, in JUnit, SARIF and a GitHub job."""
    warning = "this audit would only have found a leak of 0.17 (norm), above the limit 0.1; about 9"
    found = copy.deepcopy(summary)
    found["gates"] = [v | {"verdict": "PASS"} for v in summary["gates"] if v["attack"]]
    quiet = copy.deepcopy(found)
    found["gates"][0] |= {
        "warning": warning, "warnings": ["insensitive"], "more_seeds": 9,
        "rule": "within", "reason": f"Within. T{warning[1:]}.",
    }  # fmt: skip
    assert first_screen.describe_scope(found) == (
        f"PASS with no defense (1 of 1 gate passed). Judged: 2 attacks from 2 of {ALL} families. "
        "But a leak above the limit could be missed."
    )
    step = advice.next_steps(found)[0]
    assert step.kind is StepKind.UNDETECTED
    scenario = str(folder.parent / "case.toml")
    words = ["vflsec", "audit", scenario, "--out", str(folder), "--seeds", "14"]
    assert step.command == shlex.join(words)
    found["gates"][0]["more_seeds"] = None
    assert advice.next_steps(found)[0].command == "vflsec show gate"
    case, _, out = junit_xml(found).partition("<system-out>")
    assert "<failure" not in case
    assert "<error" not in case
    assert out.startswith(
        "warning: advantage of any attack &lt;= 0.1 [breast_cancer, splitnn, iso 0]"
    )
    assert warning in out
    (result,) = sarif(found)["runs"][0]["results"]
    assert result["level"] == "note"
    assert result["properties"]["rule"] == "within"
    assert result["properties"]["warnings"] == ["insensitive"]
    assert result["message"]["text"].startswith("PASS: ")
    assert warning[1:] in result["message"]["text"]
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    (line,) = workflow_commands(found)
    assert line.startswith("::notice title=vflsec PASS (within insensitive)::")
    assert warning[1:] in line
    monkeypatch.setattr("vflsec.report.html.draw", lambda *_: "")
    for text in (html(found), statement(found), markdown_summary(found)):
        assert "leak of 0.17" in text
    assert sarif(quiet)["runs"][0]["results"] == []
    assert list(workflow_commands(quiet)) == []
    assert "warning:" not in junit_xml(quiet)


def test_gate_can_be_asked_what_it_would_have_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the scenario's gates, or of the one given; only an advantage has such a thing."""
    gates = gate(max=0.1, defense="defended") + gate(metric="utility", min=0.5)
    out = str(audited(tmp_path, Planted(LEAKY, SEALED), gates).folder)
    own = ["--max", "0.1", "--defense", "defended"]
    assert main.main(["gate", out, "--detect", "0.1"]) == 0
    assert main.main(["gate", out, *own, "--detect", "0.1"]) == 0
    capsys.readouterr()
    for more in ([], own):
        assert main.main(["gate", out, *more, "--detect", "0.005"]) == 3
        assert "above its detect = 0.005;" in " ".join(capsys.readouterr().out.split())
    assert main.main(["gate", out, "--metric", "auc", "--max", "0.7", "--detect", "0.1"]) == 2
    assert "detect" in capsys.readouterr().err
    other = str(audited(tmp_path / "b", Planted(LEAKY), gate(metric="utility", min=0.5)).folder)
    assert main.main(["gate", other, "--detect", "0.1"]) == 2
    assert "--detect" in capsys.readouterr().err


def test_what_was_not_run_is_said_first_class(summary: dict[str, Any]) -> None:
    lines = coverage.list_gaps(summary)
    untested = [line for line in lines if f" of {ALL} families)" in line]
    assert untested[0].startswith(f"Not tested (8 of {ALL} families): labels from zeros")
    sent = f"Messages not sent ({ALL - 10} of {ALL} families)"
    assert untested[1].startswith(sent)
    assert "features of another party" in untested[1]
    assert not any("without an attack" in line for line in lines)
    other = copy.deepcopy(summary)
    for c in other["cost"]["points"]:
        c["traffic"] += [
            {**c["traffic"][0], "kind": "ids", "name": "batch"},
            {**c["traffic"][0], "kind": "embedding", "sender": "shop", "receiver": "bank"},
        ]
    lines = coverage.list_gaps(other)
    assert "Messages that no attack read: embedding from shop to bank." in lines
    assert "Messages without an attack: ids (batch) from bank to shop." in lines
    for text in (html(other), statement(other), markdown_summary(other)):
        assert "without an attack" in text.lower() or "no attack exists" in text.lower()
        assert "not tested" in text.lower()


def test_of_a_quantity_nothing_is_said_of_classes(summary: dict[str, Any]) -> None:
    """Attacks that are made for classes do not exist there, and no class has a share."""
    found = copy.deepcopy(summary) | {"families": registered({1})}
    whole = {n for of in registered({2}).values() for n in of}
    assert whole == set(registry.attacks.entries())
    assert whole - {n for of in found["families"].values() for n in of} == {
        n for n in whole
        if (a := registry.attacks.create(n)).target in ("label", "integrity")
        and not a.quantities and not a.questions
    }  # fmt: skip
    found["parties"]["breast_cancer"]["classes"] = 1
    for old, new in (("norm", "residual"), ("model_completion", "value_completion")):
        for spec in found["attacks"].values():
            spec |= {"name": new, "label": new} if spec["name"] == old else {}
    states = {f.family: f.state for f in coverage.list_families(found)}
    assert states["Labels by swapped embeddings"] == coverage.State.NO_ATTACK
    assert states["Labels read off single gradients"] == coverage.State.TESTED
    assert states["Membership in the training"] == coverage.State.NOT_SENT
    assert states["Labels from zeros, signs, sizes and visits"] == coverage.State.NOT_TESTED
    none = {name for name, of in group_members(found["families"]).items() if not of}
    assert {f for f, s in states.items() if s == coverage.State.NO_ATTACK} == none
    assert len(none) >= 8
    (line,) = [
        x
        for x in coverage.list_gaps(found)
        if x.startswith(f"No attack exists here ({len(none)} of {ALL}")
    ]
    assert "labels by swapped embeddings" in line
    assert "labels from zeros" not in line
    (gradient,) = coverage.list_messages(found)
    assert gradient.tried == ("residual", "value_completion")
    assert gradient.others == ("message_completion", "zero_pattern")
    for page in (html(found), statement(found)):
        assert "(a quantity)" in page
        assert "1 classes" not in page
        assert "class shares." not in page
        assert "and the class shares" not in page
    assert "(2 classes)" in statement(summary)
    assert "and the class shares" in statement(summary)


def test_the_verdict_is_the_last_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["report", str(folder)], ["gate", str(folder)]):
        main.main(words)
        last = capsys.readouterr().out.rstrip("\n").splitlines()[-1]
        assert last.startswith("FAIL with no defense (1 of 3 gates failed). Judged: 2 attacks")


def test_a_share_stays_a_share(tmp_path: Path) -> None:
    """With a mean of 0.95 and a spread of 0.05 the t interval alone would end above 1."""
    planted = Planted({"norm": 0.4, "model_completion": 0.2}, SEALED, utility=0.95, sd=0.05)
    gates = gate(max=0.4) + gate(metric="auc", max=0.95, attack="norm")
    found = audited(tmp_path, planted, gates).summary
    cut = 0
    for p in found["points"]:
        for name in ("value", "control_value", "utility"):
            low, high = p[f"{name}_low"], p[f"{name}_high"]
            if low is not None and p["metric"] == "auc":
                assert 0 <= low <= high <= 1
                cut += high == 1
        if p["attack"] and p["metric"] == "auc":
            assert -1 <= p["advantage_low"] <= p["advantage_high"] <= 0.5
    assert cut
    for v in found["gates"]:
        assert v["high"] is None or v["high"] <= (0.5 if v["label"].startswith("adv") else 1)
    for r in found["strongest"]:
        assert r["high"] <= 0.5


def test_processor_time_is_told_apart_from_the_clock(summary: dict[str, Any]) -> None:
    assert "s of work" in first_screen.describe_work(summary)  # planted cells were not timed
    timed = copy.deepcopy(summary)
    timed["cost"] |= {"cpu_seconds": 12.0, "run_seconds": 7.5}
    assert first_screen.describe_work(timed) == (
        "10 of 10 trainings on cpu, 12.0 s of processor time; the last run took 7.5 s by the clock"
    ).replace("10 of 10", f"{timed['cells']['finished']} of {timed['cells']['planned']}")


def test_the_statement_has_what_one_signs(summary: dict[str, Any]) -> None:
    text = statement(summary | {"who": "A. Auditor <x>"})
    for wanted in (
        "Statement of a privacy audit: case", "Holds the labels", "1. What was tested",
        "6. Signatures", "Appendix A. System", "granted 20 labelled rows", "not tested",
        "Appendix G. Coverage", summary["scenario_hash"],
        "d-breast_cancer", "A. Auditor &lt;x&gt;", "Data-protection officer: name, date, signature",
    ):  # fmt: skip
        assert wanted in text, wanted
    guessed = {(p["split"], p["n"]) for p in summary["points"] if p["attack"] and p["n"]}
    ((split, most),) = guessed
    assert re.search(rf"Rows that attacks guess</dt>\s*<dd>{split} {most}</dd>", text)
    said = above_appendix(summary)
    every = coverage.list_families(summary)
    unsent = sum(f.state is coverage.State.NOT_SENT for f in every)
    assert unsent > 5
    assert f"of {len(every) - unsent} attack families" in said
    untested = coverage.list_untested(summary)
    ((answer,),) = (of for name, of in first_screen.build_answer(summary).items() if not name)
    for part in untested:  # the first screen gives the same figures
        assert part in said
        assert part in answer.lines[0]
    (families,) = coverage.list_untested(summary | {"cost": {}})
    assert f"{ALL} attack families" in families
    assert "shop labels of bank Can infer it" in said
    assert "FAIL" in said
    for hidden in ("norm", "model_completion", "iso", "AUC", "interval", "95 %", "splitnn"):
        assert hidden not in said
    assert statement(copy.deepcopy(summary)) == statement(summary)
    assert "<script" not in statement(summary | {"name": "<script>"})


def test_of_what_was_tested_whole_nothing_is_said(
    summary: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A count of none beside "not known to be safe"."""
    assert len(coverage.list_untested(summary)) == 1
    monkeypatch.setattr("vflsec.report.coverage.list_families", lambda _: [])
    assert coverage.list_untested(summary) == []


def test_tables_of_the_user_are_in_every_report(summary: dict[str, Any]) -> None:
    column = {"name": "income|x", "party": "bank", "role": "feature", "kind": "number",
              "distinct": 90, "missing": 3, "warning": ""}  # fmt: skip
    facts = {
        "tables": [{"file": "bank.csv", "parties": ["bank"], "rows": 120,
                    "read_as": "separated by ';'", "columns": [column]}],
        "overlap": {"bank": {"rows": 120, "common": 100, "labelled": 100, "only_here": 20},
                    "shop": {"rows": 101, "common": 100, "labelled": 100, "only_here": 1}},
    }  # fmt: skip
    found = summary | {"tables": {"breast_cancer": facts}}
    for text in (html(found), statement(found)):
        assert "bank.csv (bank): 120 rows, separated by &#39;;&#39;" in text
        assert "income|x" in text
        assert "Which rows the parties of breast_cancer share" in text
    text = markdown_summary(found)
    assert "| income\\|x | bank | feature | number | 90 | 3 |" in text
    assert "| bank | 120 | 100 | 100 | 20 |" in text


def test_of_an_audit_that_no_command_made_none_is_advised(summary: dict[str, Any]) -> None:
    steps = advice.next_steps({k: v for k, v in summary.items() if k != "command"})
    assert all(not s.command or s.command.startswith("vflsec show") or "list" in s.command
               for s in steps)  # fmt: skip
