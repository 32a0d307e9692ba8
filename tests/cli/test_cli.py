"""The command line: exit codes, messages, JSON; listing and help without torch."""

from __future__ import annotations

import csv
import importlib
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import Cli
from engine_fakes import SCENARIO, Trainer, backend

from vflsec.cli.type_words import describe_type
from vflsec.engine import run
from vflsec.errors import DataError
from vflsec.plugins.registry import Registry

COMMANDS = ["audit", "check", "gate", "report", "list", "show", "new", "init"]


@pytest.fixture
def trainer() -> Trainer:
    return Trainer()


@pytest.fixture
def vflsec(cli: Cli, monkeypatch: pytest.MonkeyPatch, trainer: Trainer) -> Cli:
    """The command line with a fake trainer."""
    monkeypatch.setattr(run, "default_backend", lambda: backend(trainer))
    return cli


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "case.toml"
    path.write_text("# Does it leak?\n" + SCENARIO)
    return path


def with_gate(scenario: Path, limit: float) -> Path:
    text = f'\n[[gate]]\nmetric = "utility"\nmin = {limit}\nalgorithm = "splitnn"\n'
    scenario.write_text(SCENARIO + text)
    return scenario


@pytest.mark.parametrize(("limit", "code"), [(0.01, 0), (1.5, 1), (0.7, 3)])
def test_gates_set_the_exit_code(
    vflsec: Cli, scenario: Path, tmp_path: Path, limit: float, code: int
) -> None:
    out = tmp_path / "out"
    assert vflsec("audit", with_gate(scenario, limit), "--out", out) == code
    verdict = {0: "PASS", 1: "FAIL", 3: "INCONCLUSIVE"}[code]
    assert verdict in vflsec.out
    assert vflsec("gate", out) == code
    assert verdict in vflsec.out
    assert vflsec("report", out) == 0
    assert verdict in vflsec.out


def test_an_audit_prints_what_was_found(vflsec: Cli, scenario: Path, tmp_path: Path) -> None:
    assert vflsec("audit", scenario, "--out", tmp_path / "out") == 0
    for text in ("9 trainings into", "[2/2]", "breast_cancer", "passive1", "passive2",
                 "none", "iso 5", "9 of 9 trainings",
                 f"vflsec report {tmp_path / 'out'}"):  # fmt: skip
        assert text in vflsec.out
    assert "scratch" not in vflsec.out
    assert max(len(line) for line in vflsec.out.splitlines() if str(tmp_path) not in line) <= 100
    assert "\x1b" not in vflsec.out
    assert vflsec("audit", scenario, "--out", tmp_path / "out", "--quiet") == 0
    assert "9 of 9 trainings done" not in vflsec.out
    assert vflsec("audit", scenario, "--out", tmp_path / "out") == 0
    assert "9 of 9 trainings done" in vflsec.out
    assert vflsec("report", tmp_path / "out") == 0
    for text in ("scratch", "advantage", "CAP"):
        assert text in vflsec.out


def test_the_default_folder_is_named_like_the_scenario(
    vflsec: Cli, scenario: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert vflsec("audit", "case.toml", "--seeds", 2, "--set", "defense.0.strength=1") == 0
    summary = json.loads((tmp_path / "out" / "case" / "summary.json").read_text())
    assert summary["cells"]["planned"] == 4
    assert vflsec("audit", "case.toml", "--fresh", "--seeds", 1, "--device", "cpu") == 0


def test_scenario_errors_are_two_without_a_traceback(vflsec: Cli, scenario: Path) -> None:
    scenario.write_text(SCENARIO.replace("seeds", "sedes").replace("[0, 5]", "[-1]"))
    for command in ("audit", "check"):
        assert vflsec(command, scenario) == 2
        assert vflsec.err.startswith("error: 2 problems in the scenario:\n")
        assert f"{scenario}:15: audit.sedes is not a known key" in vflsec.err
        assert f"{scenario}:8: defense.0.strength.0 must be a number >= 0, got -1." in vflsec.err
        assert "Traceback" not in vflsec.err


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["audit", "quikstart"], "Did you mean 'quickstart'?"),
        (["audit", "quickstart", "--seeds", "0"], "--seeds"),
        (["audit", "quickstart", "--device", "tpu"], "--device must be one of"),
        (["audit", "quickstart", "--device", "gpu"], "got 'gpu'. Did you mean 'cuda'?"),
        (["audit", "quickstart", "--attacker", "storng"], "error: --attacker must be one of"),
        (["audit", "quickstart", "--set", "audit"], "KEY.PATH=VALUE"),
        (["audit"], "Missing argument"),
        (["adit"], "No such command"),
        (["list", "atacks"], "'atacks' is not one of 'attacks'"),
        (["show", "nrom"], "Did you mean 'norm'?"),
        (["report", "nowhere"], "Name a folder that `vflsec audit` wrote"),
        (["gate", "nowhere"], "has no results.sqlite"),
        (["gate", "nowhere", "--max", "0,1"], "as 0.1"),
        (["new", "attack", "norm"], "is taken by"),
        (["new", "attack", "Bad-Name"], "must be a module name"),
        (["init", "nowhere.csv", "--label", "y", "--out", "x.toml"], "nowhere.csv"),
    ],
)
def test_mistakes_on_the_command_line_are_two(
    vflsec: Cli, args: list[str], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert vflsec(*args) == 2
    assert text in vflsec.err
    assert "Traceback" not in vflsec.err
    assert vflsec.out == ""


def test_a_misspelt_scenario_file_is_told_from_the_files_beside_it(
    vflsec: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only packaged scenarios were suggested, and all of them listed."""
    (tmp_path / "privacy.toml").write_text("")
    monkeypatch.chdir(tmp_path)
    for given, meant in (("privacy.tml", "privacy.toml"), ("./privcy.toml", "privacy.toml"),
                         (tmp_path / "privacy", f"{tmp_path}/privacy.toml")):  # fmt: skip
        assert f"Did you mean '{meant}'?" in vflsec.refuses("check", given)


def test_data_errors_are_two(vflsec: Cli, scenario: Path, tmp_path: Path, trainer: Trainer) -> None:
    def bad(call: int) -> None:
        raise DataError("bank.csv: column 'y' is empty.")

    trainer.before = bad
    assert vflsec("audit", scenario, "--out", tmp_path / "out") == 2
    assert vflsec.err == "error: bank.csv: column 'y' is empty.\n"


def test_defects_are_four_and_show_a_traceback_on_request(
    vflsec: Cli, scenario: Path, tmp_path: Path, trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(call: int) -> None:
        raise ZeroDivisionError("of by one")

    trainer.before = fail
    assert vflsec("audit", scenario, "--out", tmp_path / "out") == 4
    assert "internal error: ZeroDivisionError: of by one" in vflsec.err
    assert "--traceback" in vflsec.err
    assert "Traceback" not in vflsec.err
    assert vflsec("audit", scenario, "--out", tmp_path / "out", "--traceback") == 4
    assert "Traceback (most recent call last)" in vflsec.err
    monkeypatch.setenv("VFLSEC_TRACEBACK", "1")
    assert vflsec("audit", scenario, "--out", tmp_path / "out") == 4
    assert "Traceback (most recent call last)" in vflsec.err


@pytest.mark.parametrize(
    ("args", "resume"),
    [
        (["audit", "case.toml", "--fresh"], "audit case.toml"),
        (["audit", "my case.toml", "--set", "x=[1, 2]"], "audit 'my case.toml' --set 'x=[1, 2]'"),
    ],
)
def test_an_interrupted_audit_is_130_and_says_how_to_go_on(
    vflsec: Cli, scenario: Path, tmp_path: Path, trainer: Trainer, args: list[str], resume: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def stop(call: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys, "argv", ["vflsec", *args])
    trainer.before = stop
    assert vflsec("audit", scenario, "--out", tmp_path / "out") == 130
    assert "0 of 9 trainings stored" in vflsec.err
    assert vflsec.err.endswith(f"Resume: vflsec {resume}\n")


def test_an_interrupt_while_planning_is_said_too(
    vflsec: Cli, scenario: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit 130 came without a word: the parser catches the interrupt."""

    def stop(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "make_plan", stop)
    assert vflsec("audit", scenario, "--out", tmp_path / "out") == 130
    assert vflsec.err == "Interrupted.\n"


def test_thresholds_on_the_command_line_replace_those_of_the_scenario(
    vflsec: Cli, scenario: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert vflsec("audit", scenario, "--out", out) == 0
    assert "has no gate" in vflsec.refuses("gate", out)
    assert vflsec("gate", out, "--metric", "utility", "--min", 0.01) == 0
    assert vflsec("gate", out, "--metric", "utility", "--min", 1.5, "--defense", "iso") == 1
    assert vflsec("gate", out, "--metric", "advantag", "--max", 1) == 2
    before = (out / "summary.json").read_bytes()
    assert vflsec("gate", out, "--max", 0.49) in (1, 3)
    assert (out / "summary.json").read_bytes() == before


def test_a_baseline_fails_what_leaks_more_than_before(
    vflsec: Cli, scenario: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import engine_fakes

    first = engine_fakes.figure
    old, new, file = tmp_path / "old", tmp_path / "new", tmp_path / "baseline.json"
    monkeypatch.setattr(engine_fakes, "figure", lambda *names: 0.65 + 0.1 * first(*names))
    assert vflsec("audit", scenario, "--out", old) == 0
    assert "--update-baseline needs --baseline FILE" in vflsec.refuses(
        "gate", old, "--update-baseline"
    )
    assert "No such file" in vflsec.refuses("gate", old, "--baseline", file)
    assert vflsec("gate", old, "--baseline", file, "--update-baseline") == 0
    assert f"vflsec gate {old} --baseline {file}" in vflsec.refuses("compare", file, old)
    for baseline in (file, old):
        assert vflsec("gate", old, "--baseline", baseline) == 0
        assert vflsec.out.count("PASS") == 0  # beside a leak that was there before
        assert "8 of 8 figures did not rise" in vflsec.out
        assert vflsec.out.splitlines()[-1].startswith("NO RISE")
    every = tmp_path / "every"
    assert vflsec("gate", old, "--baseline", file, "--report", every) == 0
    assert f"Results: {every}" in vflsec.out
    page = (every / "report.html").read_text()
    assert re.findall(r"changed by ([+-][\d.]+)", page) == ["+0.000"] * 8
    monkeypatch.setattr(engine_fakes, "figure", lambda *names: 0.85 + 0.1 * first(*names))
    assert vflsec("audit", scenario, "--out", new) == 0
    assert vflsec("gate", new, "--baseline", file, "--report", tmp_path / "ci") == 1
    assert vflsec.out.count("FAIL") == 8 + 1
    risen = re.findall(r"changed by ([+-][\d.]+)", " ".join(vflsec.out.split()))
    assert risen == ["+0.200"] * 8
    assert (tmp_path / "ci" / "junit.xml").read_text().count("<failure") == 8


@pytest.mark.parametrize("kind", ["attacks", "defenses", "algorithms", "datasets", "scenarios"])
def test_lists_are_objects_with_name_summary_and_source(vflsec: Cli, kind: str) -> None:
    assert vflsec("list", kind, "--format", "json") == 0
    items = json.loads(vflsec.out)
    assert items
    for item in items:
        assert set(item) >= {"name", "summary", "source"}
        assert item["name"]
        assert item["summary"]
    assert vflsec("list", kind) == 0
    assert [line.split()[0] for line in vflsec.out.splitlines()] == [i["name"] for i in items]


def test_show_reads_parameters_and_needs_without_importing(vflsec: Cli) -> None:
    assert vflsec("show", "local", "--format", "json") == 0
    (local,) = json.loads(vflsec.out)
    names = [p["name"] for p in local["parameters"]]
    assert names[:3] == ["hidden", "cut", "top"]  # inherited from splitnn
    assert local["kind"] == "algorithm"
    assert vflsec("show", "isotropic") == 0  # an alias
    assert "defense iso" in vflsec.out
    assert "on: one of 'gradient', 'embedding', 'state' (default \"gradient\")" in vflsec.out
    assert "\n      names of messages that pass as they are, and are not protected.\n" in vflsec.out
    assert "strengths: noise norm /" in vflsec.out
    assert vflsec("show", "model_completion") == 0
    assert "\nneeds: model, known_rows\n" in vflsec.out
    assert "\ntarget: label\n" in vflsec.out
    assert "frozenset" not in vflsec.out
    assert vflsec("show", "attribute") == 0  # computed: with its defaults
    assert "\nneeds: aux_rows, embedding:" in vflsec.out
    assert vflsec("show", "fedhssl", "--format", "json") == 0
    (inherited,) = [p for p in json.loads(vflsec.out)[0]["parameters"] if p["name"] == "select_by"]
    assert inherited["meaning"].startswith("what is best on validation rows")
    assert vflsec("show", "quickstart") == 0
    assert "[algorithm]" in vflsec.out


@pytest.mark.parametrize("kind", ["attacks", "defenses", "algorithms", "datasets"])
def test_parameters_read_are_those_of_the_class(kind: str) -> None:
    from vflsec.cli.catalog import lookup
    from vflsec.plugins import registry

    known: Registry = getattr(registry, kind)
    for name in known.names():
        shown = next(d for d in lookup(name) if d["kind"] == kind[:-1])
        fields = list(registry.list_parameters(known.get(name)))
        assert sorted(p["name"] for p in shown["parameters"]) == sorted(fields), name
        assert all(p["meaning"] and p["default"] != "null" for p in shown["parameters"]), name
        said = " ".join(p["type"] for p in shown["parameters"])
        assert not re.search(r"\w\.\w|\w\[", said), name


@pytest.mark.parametrize(("annotation", "words"), [
    ("check.NonNegative", "a finite number >= 0"), ("check.OpenUnit", "a number in (0, 1)"),
    ("Annotated[int, partial(check.integer, low=2, high=14)]", "an integer in [2, 14]"),
    ("Annotated[float | Literal['auto'], check.non_negative]", "a finite number >= 0 or 'auto'"),
    ("Annotated[float | None, check.positive]", "a finite number > 0"),
    ("Annotated[str, check.among('a', 'b')]", "one of 'a', 'b'"),
    ("Annotated[str, check.among('a, got b')]", "one of 'a, got b'"),
    ("Annotated[str, check.among(*NAMES)]", "text"),
    ("Annotated[tuple[check.Count, ...], check.some]", "a list, each an integer >= 1"),
    ("tuple[int, float]", "a list: an integer, a number"), ("dict[str, Any]", "a table"),
    ("Literal['a', 'b'] | None", "one of 'a', 'b'"),
])  # fmt: skip
def test_a_type_is_said_in_words(annotation: str, words: str) -> None:
    """`power: check.NonNegative` was a name of the source."""
    assert describe_type(annotation) == words


def test_check_prints_the_plan_and_trains_nothing(
    vflsec: Cli, scenario: Path, trainer: Trainer
) -> None:
    assert vflsec("check", "quickstart", "--set", "audit.seeds=2") == 0
    assert "breast_cancer" in vflsec.out
    assert "roughly" in vflsec.out
    assert vflsec("check", "quickstart", "--format", "json", "--set", "audit.seeds=2") == 0
    (item,) = json.loads(vflsec.out)
    assert item["name"] == "quickstart"
    assert item["source"] == "scenarios/quickstart.toml"
    assert item["summary"].startswith("Does a split network leak")
    audits = [g for g in item["plan"]["groups"] if g["role"] == "audit"]
    assert [len(g["cells"]) for g in audits] == [8, 8]
    assert trainer.calls == []


def test_a_new_attack_and_a_new_defense_register_and_work(
    vflsec: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from vflsec.plugins import registry

    monkeypatch.chdir(tmp_path)
    (tmp_path / "attacks").mkdir()
    assert vflsec("new", "attack", "tail_score") == 0
    assert vflsec("new", "defense", "fade_out") == 0
    assert "entry-points" in vflsec.out
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path / "attacks"))
    score = importlib.import_module("tail_score").TailScore
    fade = importlib.import_module("fade_out").FadeOut()
    assert (score.name, fade.name) == ("tail_score", "fade_out")
    assert registry.list_parameters(score)["power"].default == 1.0
    from vflsec.core.message import Message
    from vflsec.core.policy import Own
    from vflsec.core.rng import Streams

    d = torch.arange(12.0).reshape(2, 3, 2) + 1
    own = Own("active", torch.tensor([0.0, 0.25], dtype=torch.float64), Streams([0, 0]))
    sent = fade.outgoing(Message("gradient", "active", "passive", d), own)
    assert torch.equal(sent[0], d[0])
    assert torch.equal(sent[1], 0.75 * d[1])
    assert "tail_score.py" in vflsec.refuses("new", "attack", "tail_score")


def table(folder: Path, name: str, *columns: str) -> Path:
    path = folder / name
    with path.open("w", newline="") as file:
        rows = [[f"c{i}", *(str((i // (j + 1) + j) % 3) for j in range(1, len(columns)))]
                for i in range(60)]  # fmt: skip
        csv.writer(file).writerows([columns, *rows])
    return path


def test_init_writes_a_scenario_that_checks(vflsec: Cli, tmp_path: Path) -> None:
    from vflsec import load_scenario

    bank = table(tmp_path, "bank-data.csv", "customer", "age", "default")
    bureau = table(tmp_path, "bureau.csv", "customer", 'a "b",c', "d")
    out = tmp_path / "credit.toml"
    args = ["--id", "customer", "--label", "default", "--out", out]
    assert vflsec("init", bureau, bank, *args) == 0
    data = load_scenario(out).root.data[0]
    assert data.files == {"bureau": "bureau.csv", "bank_data": "bank-data.csv"}
    assert (data.id, data.label, data.active) == ("customer", "default", "bank_data")
    assert "add --force" in vflsec.refuses("init", bureau, bank, *args)

    wrong = ["init", bureau, bank, "--id", "customer", "--label", "defualt", "--out", out]
    assert "Did you mean 'default'?" in vflsec.refuses(*wrong)
    assert vflsec("init", bureau, bank, "--label", "default", "--out", out, "--force") == 0
    assert load_scenario(out).root.data[0].id == "customer"

    one = tmp_path / "sub" / "one.toml"
    one.parent.mkdir()
    assert vflsec("init", bank, "--label", "default", "--out", one) == 0
    data = load_scenario(one).root.data[0]
    assert data.file == "../bank-data.csv"
    assert data.columns == {"active": ["customer"], "passive": ["age"]}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_help_has_an_example(vflsec: Cli, command: str) -> None:
    assert vflsec(command, "--help") == 0
    assert f"Example: vflsec {command}" in vflsec.out


def test_help_and_version(vflsec: Cli) -> None:
    from vflsec import __version__ as version

    assert vflsec("--version") == 0
    assert vflsec.out == f"vflsec {version}\n"
    assert vflsec("--help") == 0
    assert all(command in vflsec.out for command in COMMANDS)


@pytest.mark.parametrize(
    ("args", "pressed", "text"),
    [
        (["--show-completion"], {}, "complete -o default -F _vflsec_completion vflsec"),
        ([], {"_VFLSEC_COMPLETE": "complete_bash", "COMP_WORDS": "vflsec lis", "COMP_CWORD": "1"},
         "list"),
    ],
)  # fmt: skip
def test_completion_ends_without_an_error(
    vflsec: Cli, args: list[str], pressed: dict[str, str], text: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Every press of Tab printed "sys.exit(0) was called", for the parser ends so."""
    bash = "bash", "/bin/bash"  # not the shell that calls pytest
    monkeypatch.setattr("shellingham.detect_shell", lambda: bash)
    for key, value in pressed.items():
        monkeypatch.setenv(key, value)
    assert vflsec(*args) == 0
    assert vflsec.out.rstrip().endswith(text)
    assert vflsec.err == ""
