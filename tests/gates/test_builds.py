"""What builds use: the pytest plug-in, the GitHub action, the GitLab job, the pre-commit hook."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from audited import LEAKY, SCENARIO, Planted, gate, scenario
from builds import PATHS, PLANTED, list_rules, read_yaml, run_step

from vflsec.audit.looks import Looks
from vflsec.engine.read_results import read_looks


def pytest_in(folder: Path, *args: str, fake: str = PLANTED) -> subprocess.CompletedProcess[str]:
    """pytest in its own process, with the plug-in whether it is installed or not."""
    (folder / "conftest.py").write_text(fake)
    env = os.environ | {"PYTHONPATH": PATHS, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", "-p", "vflsec.pytest_plugin", "-p",
               "no:cacheprovider", "--strict-markers", "-q", *args]  # fmt: skip
    return subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False
    )


def session(root: Path, **worker: str) -> Any:
    """What the plug-in knows of a call of pytest, of a worker if it is one."""
    from types import SimpleNamespace

    from vflsec import pytest_plugin

    config = SimpleNamespace(
        workerinput=worker, stash=pytest.Stash(), rootpath=root,
        getoption=lambda name: {"--vflsec-out": root / "kept", "verbose": 0}.get(name),
        pluginmanager=SimpleNamespace(getplugin=lambda name: None),
    )  # fmt: skip
    config.stash[pytest_plugin._AUDITS] = {}
    return config


@pytest.mark.slow
@pytest.mark.long
def test_each_verdict_is_a_test_and_marks_judge(tmp_path: Path) -> None:
    text = gate(max=0.1) + gate(max=0.306, attack="norm", strength=0, name="tight")
    (tmp_path / "case.toml").write_text(SCENARIO + text)
    (tmp_path / "good.toml").write_text(SCENARIO + gate(max=0.1, defense="defended"))
    (tmp_path / "test_it.py").write_text(
        "import pytest\n"
        '@pytest.mark.vflsec(scenario="good.toml", seeds=5)\n'
        "def test_good(vflsec): assert vflsec.exit_code == 0\n"
        '@pytest.mark.vflsec("case.toml")\n'
        "def test_bad(): pass\n"
        'def test_free(vflsec): assert vflsec("good.toml", seeds=5).exit_code == 0\n'
    )
    args = ["-rA", "--vflsec", "case.toml", "--vflsec-out", "kept"]
    done = pytest_in(tmp_path, *args)
    text = done.stdout
    assert done.returncode == 1, text
    assert "PASSED test_it.py::test_good" in text
    assert "PASSED test_it.py::test_free" in text
    assert "FAILED test_it.py::test_bad - Failed: FAIL: The advantage of norm" in text
    assert ". [breast_cancer, splitnn, iso 0]" in text  # which of the points failed
    name = "case.toml::advantage of any attack <= 0.1 [breast_cancer, splitnn, iso {}]"
    assert f"FAILED {name.format(0)}" in text
    assert f"PASSED {name.format(5)}" in text
    assert "FAILED case.toml::tight [breast_cancer, splitnn, iso 0]" in text
    assert "Traceback" not in text
    assert len([p for p in (tmp_path / "kept").iterdir() if (p / "junit.xml").is_file()]) == 2
    (tmp_path / "other").mkdir()  # a file of the same name
    (tmp_path / "other" / "case.toml").write_text(SCENARIO + gate(max=0.1, defense="defended"))
    both = pytest_in(tmp_path, *args, "--vflsec", "other/case.toml").stdout
    assert f"PASSED other/{name.format(5)}" in both
    assert f"PASSED {name.format(5)}" in both
    skipped = pytest_in(tmp_path, *args, "--vflsec-inconclusive=skip", "-k", "tight or 5")
    assert skipped.returncode == 0, skipped.stdout
    assert "1 skipped" in skipped.stdout
    (tmp_path / "none.toml").write_text(SCENARIO)
    args = ["--vflsec", "none.toml", "--vflsec-inconclusive=skip", "-k", "sets"]
    none = pytest_in(tmp_path, *args)
    assert none.returncode == 1, none.stdout
    assert "FAIL: No limit is set." in none.stdout


def looks_in(folder: Path) -> list[Looks]:
    """The looks at each audit in a folder, those that were planned last."""
    found = (read_looks(p.parent) for p in folder.rglob("summary.json"))
    return sorted(found, key=lambda looks: looks.planned)


@pytest.mark.slow
def test_a_larger_budget_goes_on_from_the_looks_that_are_kept(tmp_path: Path) -> None:
    """Each budget had a folder of its own, in which its looks began anew."""
    (tmp_path / "case.toml").write_text(SCENARIO + gate(max=0.1, attack="norm", defense="defended"))
    figures = "LEAKY, {'norm': 0.06, 'model_completion': 0.0}, sd=0.09"
    fake = f"{PLANTED}run.default_backend = Planted({figures}).backend\n"
    found = []
    for budget in ("6", "12"):
        options = ["--vflsec-until-decided", budget, "--vflsec-out", "kept", "--vflsec-seeds", "3"]
        done = pytest_in(tmp_path, "--vflsec", "case.toml", *options, fake=fake)
        assert done.returncode == 1, done.stdout
        found.append(looks_in(tmp_path / "kept"))
    assert [[len(of) for looks in each for of in looks.seeds] for each in found] == [
        [3, 6],
        [3, 6, 12],
    ]


@pytest.mark.slow
def test_options_are_for_every_audit_that_does_not_say_otherwise(tmp_path: Path) -> None:
    (tmp_path / "case.toml").write_text(SCENARIO + gate(max=0.1, defense="defended"))
    (tmp_path / "test_it.py").write_text(
        "import pytest\n"
        '@pytest.mark.vflsec("case.toml", out="first")\n'
        "def test_usual(vflsec): assert vflsec.results.seed.nunique() == 3\n"
        '@pytest.mark.vflsec("case.toml", seeds=4)\n'
        "def test_own(vflsec): assert vflsec.results.seed.nunique() == 4\n"
        '@pytest.mark.vflsec("case.toml", until_decided=6)\n'
        "def test_decided(vflsec): assert vflsec.exit_code == 0\n"
    )
    done = pytest_in(tmp_path, "-rA", "--vflsec-seeds", "3", "--vflsec-out", "kept")
    assert done.returncode == 0, done.stdout
    assert [looks.share for looks in looks_in(tmp_path / "kept")] == [1.0, 0.5]
    more = "run.default_backend = Planted(dict.fromkeys(LEAKY, 0.2)).backend\n"
    options = ["--vflsec-baseline", "first", "--vflsec-out", "new", "-k", "advantage"]
    risen = pytest_in(tmp_path, "--vflsec", "case.toml", *options, fake=PLANTED + more)
    assert risen.returncode == 1, risen.stdout
    (report,) = (tmp_path / "new").rglob("report.html")
    assert f"Report: {report.relative_to(tmp_path)}" in risen.stdout
    assert "regression" in list_rules(report.with_name("results.sarif"))
    missing = pytest_in(tmp_path, "--vflsec", "case.toml", "--vflsec-baseline", "none.json")
    assert missing.returncode == 4  # a usage error


@pytest.mark.slow
def test_every_mark_is_judged_and_each_names_one_scenario(tmp_path: Path) -> None:
    """A second mark, or a second name in one, was passed over: its FAIL was a test that passed."""
    (tmp_path / "case.toml").write_text(SCENARIO + gate(max=0.1))
    (tmp_path / "good.toml").write_text(SCENARIO + gate(max=0.1, defense="defended"))
    good, bad = '@pytest.mark.vflsec("good.toml")\n', '@pytest.mark.vflsec("case.toml")\n'
    (tmp_path / "test_it.py").write_text(
        f"import pytest\n{bad}{good}def test_two(vflsec): assert vflsec.exit_code == 0\n"
        f"{bad}class TestIt:\n    {good}    def test_inner(self): pass\n"
        '@pytest.mark.vflsec("good.toml", "case.toml")\ndef test_names(): pass\n'
        f"{good}def test_one(): pass\n"
    )
    text = pytest_in(tmp_path, "-rA", "--vflsec-out", "kept").stdout
    for name in ("test_two", "TestIt::test_inner"):
        assert f"FAILED test_it.py::{name} - Failed: FAIL: The advantage of" in text, text
    assert "the mark takes one scenario, got 2" in text
    assert "FAILED test_it.py::test_names" in text
    assert "PASSED test_it.py::test_one" in text
    assert "3 failed, 1 passed" in text


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("out", [[], ["--vflsec-out", "kept"]], ids=["temporary", "kept"])
def test_workers_share_one_audit(out: list[str], tmp_path: Path) -> None:
    """Two workers of xdist: every verdict is judged once, every training is trained once."""
    pytest.importorskip("xdist")
    (tmp_path / "case.toml").write_text(SCENARIO + gate(max=0.1) + gate(metric="utility", min=0.5))
    (tmp_path / "test_it.py").write_text(
        'def test_a(vflsec): assert vflsec("case.toml").exit_code == 1\n'
        'def test_b(vflsec): assert vflsec("case.toml").exit_code == 1\n'
    )
    fake = PLANTED + (
        "class Counted(Planted):\n"
        "    def __call__(self, cells, *args, **kwargs):\n"
        '        with open("trained", "a") as log:\n'
        '            log.writelines(f"{c.key}\\n" for c in cells)\n'
        "        return super().__call__(cells, *args, **kwargs)\n"
        "run.default_backend = Counted(LEAKY, SEALED).backend\n"
    )
    done = pytest_in(
        tmp_path, "-p", "xdist", "-n", "2", "-rA", "--vflsec", "case.toml", *out, fake=fake
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 failed, 5 passed" in done.stdout
    assert "FAILED case.toml::advantage of any attack <= 0.1" in done.stdout
    trained = (tmp_path / "trained").read_text().split()
    assert len(trained) == len(set(trained)) == 15
    if out:
        assert len(list((tmp_path / "kept").rglob("report.html"))) == 1


@pytest.mark.slow
@pytest.mark.parametrize("how", [(), ("-p", "xdist", "-n", "1")], ids=["alone", "workers"])
def test_a_scenario_that_is_not_there_breaks_no_run(how: tuple[str, ...], tmp_path: Path) -> None:
    """Workers of pytest-xdist called it an error of pytest's own, and ran nothing else."""
    pytest.importorskip("xdist")
    (tmp_path / "test_it.py").write_text("def test_other(): pass\n")
    done = pytest_in(tmp_path, *how, "-rA", "--vflsec", "nosuch.toml")
    usage, failed = 4, 1
    assert done.returncode == (failed if how else usage)
    assert ("1 failed, 1 passed" in done.stdout) is bool(how)
    assert "INTERNALERROR" not in done.stdout + done.stderr


def test_an_audit_is_made_once_in_a_run_and_again_in_the_next(tmp_path: Path) -> None:
    from vflsec.engine.evaluate_store import audit_once
    from vflsec.engine.run import run_audit
    from vflsec.errors import ConfigError

    planted, made = Planted(LEAKY), []
    (tmp_path / "case.toml").write_text(SCENARIO)

    def audit() -> Any:
        made.append(1)
        return run_audit(tmp_path / "case.toml", tmp_path / "o", backend=planted.backend())

    def broken() -> Any:
        raise ConfigError("not this time")

    with pytest.raises(ConfigError, match="not this time"):
        audit_once(tmp_path / "o", "a", broken)
    first = audit_once(tmp_path / "o", "a", audit)
    stamp = (tmp_path / "o" / "summary.json").stat().st_mtime_ns
    again = audit_once(tmp_path / "o", "a", broken)
    assert (len(made), stamp) == (1, (tmp_path / "o" / "summary.json").stat().st_mtime_ns)
    assert again.summary["points"] == first.summary["points"]
    assert again.exit_code == first.exit_code
    audit_once(tmp_path / "o", "b", audit)
    audit_once(tmp_path / "o", "", audit)
    assert len(made) == 3
    assert len(set(planted.trained)) == len(planted.trained)  # resumed, never trained again


@pytest.mark.slow
def test_two_scenarios_that_name_one_folder_are_two_audits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under pytest-xdist the second of two marks was given the verdict of the first."""
    from vflsec import pytest_plugin
    from vflsec.engine import run

    planted = Planted(LEAKY)
    monkeypatch.setattr(run, "default_backend", planted.backend)
    for name, limit in (("lax", 0.4), ("strict", 0.1)):
        (tmp_path / f"{name}.toml").write_text(SCENARIO + gate(max=limit))

    def worker(scenario: str, **options: Any) -> int:
        options["out"] = str(tmp_path / "out")
        config = session(tmp_path, testrunuid="one")
        return pytest_plugin._run(config, str(tmp_path / scenario), options).exit_code

    assert [worker("lax.toml"), worker("strict.toml"), worker("lax.toml")] == [0, 1, 0]
    assert worker("lax.toml", set=["gate.0.max=0.1"]) == 1
    assert len(set(planted.trained)) == len(planted.trained)  # resumed, never trained again


@pytest.mark.slow
@pytest.mark.parametrize("worker", [{}, {"testrunuid": "one"}], ids=["alone", "workers"])
def test_what_a_test_rewrites_is_audited_again(
    worker: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scenario that a test rewrote, or one of the same name in another working directory, had the
    verdict of the first.
    """
    from vflsec import pytest_plugin
    from vflsec.engine import run

    planted = Planted(LEAKY)
    monkeypatch.setattr(run, "default_backend", planted.backend)
    config = session(tmp_path, **worker)
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()

    def audit(folder: str, limit: float | None = None) -> Any:
        monkeypatch.chdir(tmp_path / folder)
        if limit is not None:
            Path("base.toml").write_text(SCENARIO + gate(max=limit))
            Path("case.toml").write_text('extends = "base.toml"\n')
        return pytest_plugin._run(config, "case.toml", {})

    first = audit("one", 0.4)
    assert audit("one") is first
    later = [audit("two", 0.1), audit("one", 0.11), audit("one", 0.4)]
    assert [a.exit_code for a in (first, *later)] == [0, 1, 1, 0]
    assert later[0].folder != first.folder == later[1].folder


@pytest.mark.parametrize("options", [{"baseline": 3}, {"out": 3}, {"out": " "}, {"baseline": ""}])
def test_what_is_no_path_is_a_usage_error(options: dict[str, Any], tmp_path: Path) -> None:
    from vflsec import pytest_plugin

    (tmp_path / "case.toml").write_text(SCENARIO)
    with pytest.raises(pytest.UsageError, match=f"{next(iter(options))} must be a path"):
        pytest_plugin._run(session(tmp_path), str(tmp_path / "case.toml"), options)


@pytest.mark.parametrize("option", ["--vflsec-seeds", "--vflsec-until-decided"])
def test_a_number_that_is_none_is_refused_at_its_option(option: str) -> None:
    from vflsec import pytest_plugin

    parser = pytest.Parser(_ispytest=True)
    pytest_plugin.pytest_addoption(parser)
    assert getattr(parser.parse([option, "5"]), option[2:].replace("-", "_")) == 5
    for text in ("0", "-1", "x"):
        with pytest.raises(pytest.UsageError, match=option):
            parser.parse([f"{option}={text}"])


def test_unused_it_costs_nothing(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import sys\n"
        "def test_it():\n"
        '    heavy = {"torch", "pandas", "matplotlib", "sklearn", "vflsec.engine.run"}\n'
        "    assert not heavy & set(sys.modules)\n"
    )
    done = pytest_in(tmp_path, fake="")
    assert done.returncode == 0, done.stdout
    off = pytest_in(tmp_path, "-p", "no:vflsec.pytest_plugin", fake="")
    assert off.returncode == 0, off.stdout


@pytest.mark.slow
def test_a_wrong_scenario_is_a_usage_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.chdir(tmp_path)
    code = pytest.main(
        ["-p", "vflsec.pytest_plugin", "-p", "no:cacheprovider", "-c", os.devnull,
         "--rootdir", str(tmp_path), "--vflsec", "nowhere.toml", str(tmp_path)]
    )  # fmt: skip
    said = "".join(capfd.readouterr())
    assert code == 4
    assert "nowhere.toml: is not a file" in said
    assert "Traceback" not in said


def _schema(name: str) -> Any:
    import importlib.resources

    pytest.importorskip("check_jsonschema")
    files = importlib.resources.files("check_jsonschema") / "builtin_schemas" / "vendor" / name
    return json.loads(files.read_text(encoding="utf-8"))


def _blocks(root: Path, kind: str) -> list[str]:
    text = (root / "docs" / "ci.md").read_text(encoding="utf-8")
    return re.findall(rf"```{kind}\n(.*?)```", text, flags=re.DOTALL)


def test_the_action_holds_to_the_schema_and_reads_no_input_as_code(root: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    action = read_yaml((root / "action.yml").read_text(encoding="utf-8"))
    jsonschema.validate(action, _schema("github-actions.json"))
    for step in action["runs"]["steps"]:
        assert "${{" not in step.get("run", "")


def test_the_action_runs(root: Path, tmp_path: Path) -> None:
    """The shell of the last step, with a command line that only echoes and fails as told."""
    action = read_yaml((root / "action.yml").read_text(encoding="utf-8"))
    script = action["runs"]["steps"][-1]["run"]
    fake = tmp_path / "bin" / "python"
    fake.parent.mkdir()
    fake.write_text('#!/bin/bash\nprintf "%s\\n" "$*" >> "$LOG"\nexit "$CODE"\n')
    fake.chmod(0o755)
    defaults = dict.fromkeys(("BASELINE", "SEEDS", "UNTIL", "ARGUMENTS"), "")
    for code, extra, expected, calls in (
        (0, {}, 0, ["-m vflsec audit --out o u t -- my case.toml"]),
        (1, {"SEEDS": "3", "UNTIL": "9", "ARGUMENTS": "--set\na=b c"}, 1,
         ["-m vflsec audit --seeds 3 --until-decided 9 --set a=b c --out o u t -- my case.toml"]),
        (3, {"INCONCLUSIVE": "warn"}, 0, ["-m vflsec audit --out o u t -- my case.toml"]),
        (2, {"BASELINE": "b"}, 2, ["-m vflsec audit --out o u t -- my case.toml"]),
        (1, {"BASELINE": "b"}, 1, ["-m vflsec audit --out o u t -- my case.toml",
                                   "-m vflsec gate o u t --baseline b --report o u t"]),
    ):  # fmt: skip
        log, out = tmp_path / "log", tmp_path / "output"
        log.write_text("")
        env = os.environ | defaults | {
            "SCENARIO": "my case.toml", "OUT": "o u t", "INCONCLUSIVE": "fail", "LOG": str(log),
            "CODE": str(code), "GITHUB_OUTPUT": str(out),
            "PATH": f"{fake.parent}{os.pathsep}{os.environ['PATH']}", **extra,
        }  # fmt: skip
        done = run_step(script, env, tmp_path)
        assert done.returncode == expected, done.stderr
        assert log.read_text().splitlines() == calls
        assert out.read_text().splitlines()[-1] == f"exit-code={code}"


def test_the_gitlab_job_holds_to_the_schema(root: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    (job,) = [read_yaml(b) for b in _blocks(root, "yaml") if "image:" in b]
    schema = _schema("gitlab-ci.json")
    validator = jsonschema.validators.validator_for(schema)(schema)
    assert [e.message for e in validator.iter_errors(job)] == []


def test_the_gates_in_the_documentation_are_valid(root: Path, tmp_path: Path) -> None:
    from vflsec import load_scenario

    block = "\n".join(_blocks(root, "toml"))
    path = tmp_path / "case.toml"
    path.write_text(SCENARIO + block, encoding="utf-8")
    gates = load_scenario(path).root.gate
    assert [g.detect for g in gates if g.detect is not None] == [0.1]
    assert {g.target for g in gates} == {"*", "label"}
    assert "exposed" in {g.of for g in gates}


def test_the_hook_calls_check(root: Path) -> None:
    (hook,) = read_yaml((root / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    assert hook["entry"] == "vflsec check"
    assert re.search(hook["files"], "scenarios/mine.toml")
    assert not re.search(hook["files"], "pyproject.toml")


def test_check_takes_several_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from vflsec.cli import main

    paths = [str(scenario(tmp_path, name, "")) for name in ("a", "b")]
    assert main.main(["check", *paths, "--format", "json"]) == 0
    assert [p["name"] for p in json.loads(capsys.readouterr().out)] == ["a", "b"]
