"""The command line from scenario to exit code, under each condition; figures are planted."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from audited import SCENARIO, Planted, gate, scenario
from audited import go as run
from sampled import sampled
from scipy import stats

from vflsec.audit.gate import Gate
from vflsec.audit.looks import Looks
from vflsec.cli import main
from vflsec.config.scenario import load_scenario
from vflsec.engine import run as engine
from vflsec.engine.audit_record import _seen_from_build
from vflsec.specs import AttackSpec, CellResult, CellSpec
from vflsec.storage.store import Store

LEAKS = {"norm": 0.3, "model_completion": 0.2}
SAFE = {"norm": 0.0, "model_completion": 0.02}
DEAD = {"norm": -0.03, "model_completion": -0.04}
REVERSED = {"norm": -0.5, "model_completion": 0.02}
TABLE: dict[str, tuple[Planted, str, int, str]] = {
    "pass": (Planted(LEAKS, SAFE), gate(max=0.1, defense="defended"), 0, "within"),
    "no gate": (Planted(LEAKS), "", 0, ""),
    "fail": (Planted(LEAKS), gate(max=0.1), 1, "exceeded"),
    "fail beside inconclusive": (
        Planted(LEAKS, sd=0.02), gate(max=0.1) + gate(metric="utility", min=0.905), 1,
        "undecided",
    ),
    "one seed decides nothing": (Planted(LEAKS, SAFE), gate(max=0.1), 3, "single_seed"),
    "two seeds without spread": (Planted(LEAKS, sd=0.0), gate(max=0.4), 3, "underpowered"),
    "noise is inconclusive": (
        Planted(LEAKS, LEAKS, sd=0.04), gate(max=0.3, attack="norm", strength=5), 3, "undecided",
    ),
    "a leak that would have been missed": (
        Planted(LEAKS, SAFE), gate(max=0.1, defense="defended", detect=0.005), 3,
        "insensitive",
    ),
    "a dead attack": (Planted(DEAD), gate(max=0.1), 3, "not_validated"),
    "a leak in reverse": (
        Planted(LEAKS, REVERSED), gate(max=0.1, strength=5), 3, "reversed_ranking",
    ),
    "a broken attack": (
        Planted(LEAKS, SAFE, fails=["norm"]), gate(max=0.1, defense="defended"), 3, "failed_runs",
    ),
    "utility floor": (Planted(LEAKS), gate(metric="utility", min=0.95), 1, "exceeded"),
    "utility kept": (Planted(LEAKS), gate(metric="utility_drop", max=0.05), 0, "within"),
    "utility lost": (Planted(LEAKS), gate(metric="utility_drop", max=0.01), 1, "exceeded"),
    "one attack only": (
        Planted(LEAKS, {"norm": 0.3, "model_completion": 0.0}),
        gate(max=0.1, attack="model_completion", defense="defended"), 0, "within",
    ),
    "an epsilon that holds": (Planted(LEAKS, epsilon=1.0, measured=0.4), "", 0, "within"),
    "an epsilon that is broken": (
        Planted(LEAKS, epsilon=1.0, measured=1.7), "", 1, "claim_contradicted",
    ),
}  # fmt: skip


class Without(Planted):
    """Three of the seeds have no figure of an attack."""

    def _cell(self, cell: CellSpec, attacks: Sequence[AttackSpec]) -> CellResult:
        out = super()._cell(cell, attacks)
        if cell.seed < 3:
            out.measures = [m for m in out.measures if not m.attack]
        return out


TABLE["three of five seeds without a figure"] = (Without(LEAKS), gate(max=0.4), 3, "")
SEEDS = {"one seed decides nothing": 1, "two seeds without spread": 2}


def go(planted: Planted, folder: Path, text: str, *args: object) -> int:
    case = scenario(folder, "case", text)
    return run(planted, "audit", case, "--out", folder / "out", "-q", *args)


@pytest.mark.parametrize("name", TABLE)
def test_exit_codes(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    planted, text, code, rule = TABLE[name]
    more = ["--seeds", SEEDS[name]] if name in SEEDS else []
    assert go(planted, tmp_path, text, *more) == code
    seen = capsys.readouterr()
    assert seen.err == ""
    summary = json.loads((tmp_path / "out" / "summary.json").read_text(encoding="utf-8"))
    assert summary["exit_code"] == code
    assert not rule or rule in {v["rule"] for v in summary["gates"]}
    verdicts = {v["verdict"] for v in summary["gates"]}
    assert all(found in seen.out for found in verdicts)
    assert code != 0 or verdicts <= {"PASS"}
    if "dead" in name or "broken attack" in name:
        assert "PASS" not in verdicts
    if text or "epsilon" in name:
        assert main.main(["gate", str(tmp_path / "out")]) == code


def test_an_audit_is_complete_where_all_attacks_of_a_control_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Trainings that no plan makes counted as missing, for ever: exit code 3, and no baseline."""
    planted = Planted({"direct": 0.0, "embedding_inversion": 0.3})
    path, out, file = tmp_path / "case.toml", tmp_path / "out", tmp_path / "baseline.json"
    head, _ = SCENARIO.split("[[attack]]", 1)
    path.write_text(
        head + '[[attack]]\nname = "direct"\n[[attack]]\nname = "embedding_inversion"\n'
        "known_rows = 0\naux_rows = 20\n[audit]\nseeds = 5\nreferences = []\n"
        + gate(metric="utility", min=0.6), encoding="utf-8",
    )  # fmt: skip
    for _ in range(2):  # and again of what is stored
        assert run(planted, "audit", path, "--out", out, "-q") == 0
    assert "UNFINISHED" not in capsys.readouterr().out
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    n = len(set(planted.trained))
    assert (summary["complete"], summary["exit_code"]) == (True, 0)
    assert summary["cells"] == {"planned": n, "finished": n}
    refused = {(r["role"], r["attack"]["name"]) for r in summary["refused"]}
    assert ("control", "direct") in refused
    assert main.main(["gate", str(out), "--baseline", str(file), "--update-baseline"]) == 0
    assert main.main(["gate", str(out), "--baseline", str(file)]) in (0, 3)
    assert "embedding_inversion" in file.read_text(encoding="utf-8")


@pytest.mark.slow
def test_until_decided_adds_seeds_and_shares_the_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    planted = Planted(LEAKS, {"norm": 0.08, "model_completion": 0.0}, sd=0.04)
    text = gate(max=0.1, attack="norm", defense="defended")
    assert go(planted, tmp_path, text) == 3
    assert "more seed" in " ".join(capsys.readouterr().out.split())
    assert go(planted, tmp_path, text, "--until-decided", 80) == 0
    summary = json.loads((tmp_path / "out" / "summary.json").read_text(encoding="utf-8"))
    (verdict,) = summary["gates"]
    looks = {10: 2, 20: 3, 40: 4, 80: 5}[verdict["n"]]
    assert verdict["gate"]["confidence"] == pytest.approx(1 - 0.05 / 2**looks)
    assert summary["confidence"] == verdict["gate"]["confidence"]
    points = pd.read_parquet(tmp_path / "out" / "points.parquet")
    of = points.query("attack == 'norm' and metric == 'auc' and value_sd > 0").iloc[0]
    half = (
        stats.t.ppf(1 - 0.025 / 2**looks, of["value_seeds"] - 1)
        * of["value_sd"]
        / of["value_seeds"] ** 0.5
    )
    assert of["value_high"] - of["value"] == pytest.approx(half)
    assert len(set(planted.trained)) == len(planted.trained)
    assert main.main(["gate", str(tmp_path / "out")]) == 0
    with Store(tmp_path / "out", readonly=True) as store:
        other = engine.judge(store, also=[Gate(max=0.09)], only=True, export=False)
    assert other.summary["gates"][0]["gate"]["confidence"] == verdict["gate"]["confidence"]


def test_a_limit_of_the_command_line_has_the_confidence_of_the_audit(tmp_path: Path) -> None:
    """It was judged at 95 %, and passed where the scenario's same gate did not."""
    planted = Planted(LEAKS, {"norm": 0.02, "model_completion": 0.0}, sd=0.01)
    asked = {"max": 0.05, "attack": "norm", "defense": "defended"}
    assert go(planted, tmp_path, gate(**asked), "--set", "audit.confidence=0.9999") == 3
    with Store(tmp_path / "out", readonly=True) as store:
        record = store.record()
        (given,) = record.gates
        own, by_option = (
            engine.judge(store, also=also, only=True, export=False).summary["gates"][0]
            for also in ([given], [Gate.from_section(asked, record.confidence)])
        )
    assert own["gate"]["confidence"] == by_option["gate"]["confidence"] == 0.9999
    assert own["verdict"] == by_option["verdict"] == "INCONCLUSIVE"
    words = ["--max", "0.05", "--attack", "norm", "--defense", "defended"]
    assert main.main(["gate", str(tmp_path / "out"), *words]) == 3


def test_an_audit_of_little_confidence_has_gates_of_the_least_that_they_may_have(
    tmp_path: Path,
) -> None:
    """Its intervals are of 60 %; no gate is below 80 %, and none may be refused for that."""
    planted = Planted(LEAKS, {"norm": 0.0, "model_completion": 0.0})
    assert go(planted, tmp_path, "", "--set", "audit.confidence=0.6") == 0
    assert main.main(["gate", str(tmp_path / "out"), "--max", "0.1", "--attack", "norm"]) == 1
    with Store(tmp_path / "out", readonly=True) as store:
        asked = Gate.from_section({"max": 0.1}, store.record().confidence)
        found = engine.judge(store, also=[asked], only=True, export=False)
    assert {v["gate"]["confidence"] for v in found.summary["gates"]} == {0.8}


def _at(*counts: int) -> Looks:
    return Looks(tuple(tuple(range(n)) for n in counts))


@pytest.mark.slow
def test_a_larger_budget_goes_on_from_the_looks_that_were_spent(tmp_path: Path) -> None:
    """The second run began its looks anew: over both an error was likelier than the level says."""
    text = gate(max=0.1, attack="norm", defense="defended")
    ends = []
    for name, budgets in (("one", [40]), ("two", [10, 40]), ("three", [10, 10, 40, 40])):
        (tmp_path / name).mkdir()
        planted = Planted(LEAKS, {"norm": 0.098, "model_completion": 0.0}, sd=0.04)
        for most in budgets:
            assert go(planted, tmp_path / name, text, "--until-decided", most) == 3
        with Store(tmp_path / name / "out", readonly=True) as store:
            looks = store.record().looks
        summary = json.loads((tmp_path / name / "out" / "summary.json").read_text())
        (verdict,) = summary["gates"]
        assert verdict["gate"]["confidence"] == looks.narrow(0.95)
        ends.append((looks, verdict["n"], verdict["high"], len(planted.trained)))
    assert ends[0][:2] == (_at(5, 10, 20, 40), 40)
    assert ends[1:] == ends[:1] * 2
    # A look that was interrupted leaves no summary and is remembered all the same. Seeds that were
    # looked at cost nothing; others do, those of a lone audit too.
    (tmp_path / "two" / "out" / "summary.json").unlink()
    assert go(planted, tmp_path / "two", text, "--seeds", 20) == 3
    assert go(planted, tmp_path / "two", text, "--seeds", 50) == 3
    with Store(tmp_path / "two" / "out", readonly=True) as store:
        assert store.record().looks == _at(5, 10, 20, 40, 50)
    assert go(planted, tmp_path / "one", text, "--until-decided", 10, "--fresh") == 3
    with Store(tmp_path / "one" / "out", readonly=True) as store:
        assert store.record().looks == _at(5, 10)


class _Cut(Planted):
    """Is interrupted at its third training."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if len(self.trained) >= 2:
            raise KeyboardInterrupt
        return super().__call__(*args, **kwargs)


def test_audits_of_ever_more_seeds_are_looks(tmp_path: Path) -> None:
    """Each was judged at the whole error, and 14 % of sealed systems failed at 5, 10, 20 or 40."""
    text, out = gate(max=0.1, attack="norm", defense="defended"), tmp_path / "out"
    planted = Planted(LEAKS, {"norm": 0.098, "model_completion": 0.0}, sd=0.04)

    def look(*words: Any) -> tuple[list[int], float]:
        assert go(planted, tmp_path, text, *words) == 3
        (verdict,) = json.loads((out / "summary.json").read_text())["gates"]
        with Store(out, readonly=True) as store:
            looks = store.record().looks
        return [len(of) for of in looks.seeds], round(1 - verdict["gate"]["confidence"], 6)

    assert look("--seeds", 1) == ([], 0.05)  # no attack is judged on one
    assert look("--seeds", 5) == look("--seeds", 5) == ([5], 0.05)
    assert look("--seeds", 10) == ([5, 10], 0.0125)
    assert look("--until-decided", 20) == ([5, 10, 20], 0.00625)
    assert look("--seeds", 10) == ([5, 10, 20], 0.0125)  # once more: as it was
    assert look("--seeds", 5, "--set", "algorithm.epochs=7") == ([5, 10, 20], 0.05)
    assert look("--seeds", 1) == ([5, 10, 20], 0.00625)  # whatever was looked at before it
    assert look("--seeds", 40, "--set", "algorithm.epochs=7") == ([5, 10, 20, 40], 0.003125)
    assert look("--seeds", 3, "--fresh") == ([3], 0.05)
    cut = _Cut(LEAKS, {"norm": 0.098, "model_completion": 0.0}, sd=0.04)
    assert go(cut, tmp_path, text, "--seeds", 8, "--replicas", 1) == 130
    assert look("--seeds", 3) == ([3, 8], 0.05)
    assert look("--seeds", 8) == ([3, 8], 0.0125)  # what was begun may have been looked at
    assert look("--set", "audit.seeds=[7, 8, 9]") == ([3, 8, 3], 0.00625)


def test_until_decided_stops_where_seeds_are_not_what_is_missing(tmp_path: Path) -> None:
    planted = Planted(DEAD)
    assert go(planted, tmp_path, gate(max=0.1), "--until-decided", 40) == 3
    assert len(planted.trained) == 15


UNANSWERABLE = {
    "attack": (gate(max=0.1, attack="nrom"), "got 'nrom'. Did you mean 'norm'"),
    "adversary": (gate(max=0.1, adversary="bank"), "one of shop,"),
    "dataset": (gate(max=0.1, dataset="breast"), "one of breast_cancer,"),
    "algorithm": (gate(max=0.1, algorithm="splitn"), "Did you mean 'splitnn'?"),
    "defense": (gate(max=0.1, defense="isso"), "one of iso, none, got 'isso'. Did you mean 'iso'?"),
    "strength": (gate(max=0.1, defense="iso", strength=3.0), "one of 0, 5, got 3"),
    "phase": (gate(max=0.1, phase="trian"), "Did you mean 'train'?"),
    "split": (gate(max=0.1, split="tset"), "Did you mean 'test'?"),
    "together": (gate(max=0.1, attack="norm", split="test"), "no point has together"),
    "utility of a lost attack": (gate(metric="utility", min=0.5, attack="x"), "got 'x'"),
    "limit": (gate(max=1.0), "can reach"),
    "limit of an AUC": (gate(max=0.5), "must be below 0.5, the most that auc can"),
    "r2 of classes": (
        gate(max=0.1, of="r2"),
        "must be one of auc, accuracy, balanced_accuracy, f1, tpr_at_1pct_fpr",
    ),
    "epsilon of noise that claims none": (
        gate(metric="epsilon_lower", max=3.0),
        "needs a defense that claims an epsilon",
    ),
    "hits nobody counts": (gate(metric="tpr_at_01pct_fpr", max=0.1), "got 'tpr_at_01pct_fpr'"),
}


@pytest.mark.parametrize("name", UNANSWERABLE)
def test_a_gate_that_nothing_can_answer_or_fail_is_an_error_before_training(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Such gates ended as exit 3 after all training (names), or as a pass (limits)."""
    text, words = UNANSWERABLE[name]
    planted = Planted(LEAKS)
    assert go(planted, tmp_path, text) == 2
    err = capsys.readouterr().err
    assert words in err
    assert f"case.toml:{len(SCENARIO.splitlines()) + 1}" in err or "gate.0" in err
    assert planted.trained == []
    assert run(planted, "check", tmp_path / "case.toml") == 2


@pytest.mark.parametrize(
    ("metric", "grid", "canaries", "words"),
    [
        ("utility_drop", "[1, 5]", "true", "gate.0.metric needs an undefended run"),
        ("utility_drop", "[0, 5]", "true", ""),
        ("utility_drop", "[0]", "true", "needs a defense. Add one"),
        ("epsilon_lower", "[1, 5]", "false", "[audit] canaries = true"),
        ("epsilon_lower", "[1, 5]", "true", ""),
        ("epsilon_lower", "[0]", "true", "needs a defense that claims an epsilon"),
    ],
)
def test_a_gate_asks_for_what_the_grid_and_the_canaries_measure(
    metric: str, grid: str, canaries: str, words: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """They were trained to the end and then inconclusive for ever."""
    text = SCENARIO.replace('"iso"', '"label_dp"').replace("[0, 5]", grid)
    text = text.replace("[audit]", f"[audit]\ncanaries = {canaries}")
    path = tmp_path / "case.toml"
    path.write_text(text + gate(metric=metric, max=0.9), encoding="utf-8")
    assert main.main(["check", str(path)]) == (2 if words else 0)
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--attack", "nrom"], "Did you mean 'norm'?"),
        (["--split", "validation"], "--split must be one of train"),
        (["--defense", "isso"], "Did you mean 'iso'?"),
        (["--adversary", "bank"], "--adversary must be one of shop"),
        (["--dataset", "x"], "--dataset must be one of breast_cancer"),
    ],
)
def test_gate_of_a_folder_refuses_what_is_not_there(
    options: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert go(Planted(LEAKS, SAFE), tmp_path, "") == 0
    assert main.main(["gate", str(tmp_path / "out"), "--max", "0.1", *options]) == 2
    assert words in capsys.readouterr().err
    assert main.main(["gate", str(tmp_path / "out"), "--max", "1"]) == 2
    assert "can reach" in capsys.readouterr().err
    assert main.main(["gate", str(tmp_path / "out"), "--max", "0.6", "--metric", "mae"]) == 2
    assert "got 'mae'" in capsys.readouterr().err
    assert main.main(["gate", str(tmp_path / "out"), "--max", "0.6"]) == 2
    assert "the most that auc can reach" in capsys.readouterr().err


NARROWING = ("--metric", "--attack", "--adversary", "--split", "--target", "--dataset",
             "--defense", "--of", "--strength")  # fmt: skip


@pytest.mark.parametrize(
    "options",
    sampled(
        [
            ["--defense", "none"],
            ["--attack", "nrom"],
            ["--strength", "0"],
            ["--metric", "utlity"],
            ["--target", "feature", "--split", "train"],
            ["--adversary", "x", "--detect", "0.1"],
            ["--dataset", "x"],
            ["--of", "auc"],
        ],
        every=3,
    ),
)
def test_options_about_no_limit_are_refused_not_passed_over(
    options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = gate(max=0.1, defense="defended")
    assert go(Planted(LEAKS, SAFE), tmp_path, text) == 0
    out = str(tmp_path / "out")
    capsys.readouterr()
    assert main.main(["gate", out, *options]) == 2  # not the PASS of the scenario's own gate
    said = capsys.readouterr()
    assert all(name in said.err.split(": needs")[0] for name in options if name in NARROWING)
    assert "needs --max or --min" in said.err
    assert "PASS" not in said.out


def test_a_limit_does_not_silence_the_gates_of_an_edited_scenario(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert go(Planted(LEAKS, SAFE), tmp_path, gate(max=0.1, defense="defended")) == 0
    edited = tmp_path / "edited.toml"
    edited.write_text(SCENARIO.lstrip() + gate(max=0.1), encoding="utf-8")
    out = str(tmp_path / "out")
    both = ["--max", "0.2", "--defense", "defended", "--scenario", str(edited)]
    assert main.main(["gate", out, *both]) == 2
    assert "exclude each other" in capsys.readouterr().err


def find_place(out: Path) -> tuple[str, int]:
    """File and line of the first result, as SARIF has them."""
    log = json.loads((out / "results.sarif").read_text(encoding="utf-8"))
    at = log["runs"][0]["results"][0]["locations"][0]["physicalLocation"]
    return at["artifactLocation"]["uri"], at["region"]["startLine"]


def test_a_gate_of_an_extended_file_is_annotated_where_the_scenario_names_that_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setattr(engine, "default_backend", Planted(LEAKS).backend)
    monkeypatch.chdir(tmp_path)
    base = "#\n" * 40 + SCENARIO.lstrip() + gate(max=0.1, defense="none")
    (tmp_path / "base.toml").write_text(base, encoding="utf-8")
    (tmp_path / "case.toml").write_text('# one\nextends = "base.toml"\n', encoding="utf-8")
    assert main.main(["audit", "case.toml", "--out", "out", "-q"]) == 1
    said = [x for x in capsys.readouterr().out.splitlines() if x.startswith("::error")]
    assert len(said) == 1
    assert "file=case.toml,line=2::" in said[0]  # it has no line 57
    assert find_place(tmp_path / "out") == ("case.toml", 2)
    own = '# one\nextends = "base.toml"\n\n' + gate(max=0.1)
    (tmp_path / "case.toml").write_text(own, encoding="utf-8")
    assert main.main(["gate", "out", "--scenario", "case.toml"]) == 1
    assert "file=case.toml,line=4::" in capsys.readouterr().out


def test_a_scenario_elsewhere_is_never_taken_for_a_file_of_the_checkout(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bare name pointed at a file of that name in the folder of the build, or at none."""
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setattr(engine, "default_backend", Planted(LEAKS).backend)
    case, job = tmp_path / "a case.toml", tmp_path / "checkout" / "job"
    job.mkdir(parents=True)
    case.write_text(SCENARIO.lstrip() + gate(max=0.1, defense="none"), encoding="utf-8")
    line = 1 + case.read_text(encoding="utf-8").splitlines().index("[[gate]]")
    monkeypatch.chdir(job)

    for workspace in ("", str(job.parent), str(tmp_path)):  # a job may run below the checkout
        monkeypatch.setenv("GITHUB_WORKSPACE", workspace)
        assert main.main(["audit", "../../a case.toml", "--out", "out", "-q"]) == 1
        (said,) = [x for x in capsys.readouterr().out.splitlines() if x.startswith("::error")]
        below = workspace == str(tmp_path)
        uri = "a%20case.toml" if below else case.resolve().as_uri()
        assert find_place(job / "out") == (uri, line)
        assert ("file=a case.toml," in said, "file=" in said) == (below, below)
    assert str(tmp_path) not in (job / "out" / "report.html").read_text(encoding="utf-8")
    packaged = load_scenario("quickstart")
    assert _seen_from_build(packaged) == "", "the package is no part of a checkout"


@pytest.mark.slow
def test_without_a_gate_seeds_are_added_while_it_is_open_whether_anything_leaks(
    tmp_path: Path,
) -> None:
    """The advised `--seeds` spent a whole error at each look: 11 % of sealed systems leaked."""
    planted = Planted({"norm": 0.2, "model_completion": 0.0}, sd=0.2)
    assert go(planted, tmp_path, "", "--set", "audit.seeds=2") == 0
    summary = tmp_path / "out" / "summary.json"
    assert any(c["is_open"] for c in json.loads(summary.read_text())["strongest"])
    assert go(planted, tmp_path, "", "--set", "audit.seeds=2", "--until-decided", 32) == 0
    found = json.loads(summary.read_text())
    points = pd.read_parquet(tmp_path / "out" / "points.parquet")
    looks = {4: 2, 8: 3, 16: 4, 32: 5}[points["seeds"].max()]
    assert found["confidence"] == pytest.approx(1 - 0.05 / 2**looks)
    assert looks < 5
    assert not any(c["is_open"] for c in found["strongest"])
