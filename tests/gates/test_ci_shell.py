"""The shell of the GitHub action and the GitLab job, run as runners do; figures are planted."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from audited import SCENARIO, gate
from builds import PATHS, PLANTED, list_rules, read_yaml, run_step

pytestmark = pytest.mark.long  # its slow tests

PROGRAM = (
    PLANTED
    + """
import os, sys
from vflsec.cli import main as cli

safe = {**SEALED, "norm": float(os.environ.get("LEFT", 0))}
run.default_backend = Planted(LEAKY, safe, sd=float(os.environ.get("SD", 0.01))).backend
args = sys.argv[1:]
sys.exit(cli.main(args[2:] if args[:2] == ["-m", "vflsec"] else args))
"""
)
DEFENDED = gate(max=0.1, defense="defended")
CASES: dict[str, tuple[str, dict[str, str], int, str]] = {
    # name: gates, environment beside the defaults, exit code of the step, verdict
    "pass": (DEFENDED, {}, 0, "PASS"),
    "fail": (gate(max=0.1), {}, 1, "FAIL"),
    "inconclusive": (DEFENDED, {"LEFT": "0.1", "SD": "0.04"}, 3, "INCONCLUSIVE"),
    "inconclusive, warn": (
        DEFENDED, {"LEFT": "0.1", "SD": "0.04", "INCONCLUSIVE": "warn"}, 0, "INCONCLUSIVE",
    ),
    "bad scenario": ("[[gate]]\nmaxx = 1\n", {}, 2, ""),
}  # fmt: skip


@pytest.fixture
def runner(tmp_path: Path) -> dict[str, str]:
    """The environment of a step: `python` and `vflsec` with planted figures, a pip that does
    nothing."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    commands = tmp_path / "bin"
    commands.mkdir()
    real = f'#!/bin/bash\nexec "{sys.executable}" "{program}" "$@"\n'
    for name, text in (("python", real), ("vflsec", real), ("pip", "#!/bin/bash\nexit 0\n")):
        (commands / name).write_text(text)
        (commands / name).chmod(0o755)
    return {
        k: v for k, v in os.environ.items() if not k.startswith(("GITHUB_", "CI"))
    } | {
        "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": PATHS,
        "OMP_NUM_THREADS": "1",
    }  # fmt: skip


def step(
    root: Path, folder: Path, runner: dict[str, str], **inputs: str
) -> tuple[subprocess.CompletedProcess[str], dict[str, str], str]:
    """The action's last step in bash as GitHub calls it: (process, its outputs, its summary)."""
    action = read_yaml((root / "action.yml").read_text(encoding="utf-8"))
    defaults = {k: str(v.get("default", "")) for k, v in action["inputs"].items()}
    last = action["runs"]["steps"][-1]
    named = {
        k: defaults[m[1]] if (m := re.fullmatch(r"\$\{\{ inputs\.(\S+) \}\}", v)) else v
        for k, v in last["env"].items()
    }
    output, summary = folder / "output", folder / "summary"
    output.write_text("")
    summary.write_text("# what stood here before\n")
    env = runner | named | {
        "SCENARIO": "case.toml", "GITHUB_ACTIONS": "true", "GITHUB_OUTPUT": str(output),
        "GITHUB_STEP_SUMMARY": str(summary), "GITHUB_WORKSPACE": str(folder), "CI": "true",
    } | inputs  # fmt: skip
    done = run_step(last["run"], env, folder)
    told = dict(line.split("=", 1) for line in output.read_text().splitlines())
    return done, told, summary.read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_the_step_of_the_action(
    name: str, root: Path, tmp_path: Path, runner: dict[str, str]
) -> None:
    gates, extra, code, verdict = CASES[name]
    (tmp_path / "case.toml").write_text(SCENARIO + gates)
    done, told, summary = step(root, tmp_path, runner, **extra)
    assert done.returncode == code, done.stdout + done.stderr
    asked = 3 if "warn" in name else code
    assert told == {"exit-code": str(asked)}
    assert summary.startswith("# what stood here before\n")
    out = tmp_path / "vflsec-out"
    if not verdict:
        assert "maxx is not a known key" in " ".join(done.stderr.split())
        assert "vflsec: " not in summary
        assert not (out / "report.html").exists()
        return
    assert f"vflsec: {verdict} (case)" in summary
    assert summary.count("vflsec: ") == 1
    notices = [line for line in done.stdout.splitlines() if line.startswith("::")]
    kinds = {line.split(" ")[0] for line in notices}
    wanted = {"PASS": set(), "FAIL": {"::error"}, "INCONCLUSIVE": {"::warning"}}
    assert kinds == wanted[verdict]
    if verdict == "FAIL":
        lines = (tmp_path / "case.toml").read_text().splitlines()
        at = lines.index("[[gate]]") + 1
        assert notices[0].startswith(
            f"::error title=vflsec FAIL (exceeded),file=case.toml,line={at}::"
        )
    for path in ("results.sarif", "junit.xml", "report.html"):
        assert (out / path).stat().st_size > 500


def keep_baseline(folder: Path, env: dict[str, str], out: str) -> None:
    """Audit the case, and keep its figures as ``b.json``."""
    script = (
        f"vflsec audit case.toml --out {out} -q\n"
        f"vflsec gate {out} --baseline b.json --update-baseline"
    )
    made = run_step(script, env, folder)
    assert made.returncode == 0, made.stdout + made.stderr


@pytest.mark.slow
@pytest.mark.long
def test_the_step_judges_the_folder_that_it_audited(
    root: Path, tmp_path: Path, runner: dict[str, str]
) -> None:
    """With `--out` among the arguments the audit before, of a cache, was judged, and passed."""
    (tmp_path / "case.toml").write_text(SCENARIO + DEFENDED)
    keep_baseline(tmp_path, runner, "vflsec-out")
    (tmp_path / "case.toml").write_text(SCENARIO + gate(max=0.1))
    done, told, _ = step(root, tmp_path, runner, BASELINE="b.json", ARGUMENTS="--out\nother")
    assert (done.returncode, told) == (1, {"exit-code": "1"}), done.stdout + done.stderr
    assert not (tmp_path / "other").exists()


@pytest.mark.slow
@pytest.mark.long
def test_the_step_judges_a_rise_against_a_baseline(
    root: Path, tmp_path: Path, runner: dict[str, str]
) -> None:
    """Two calls inside, one summary: that of the second, which has the baseline."""
    (tmp_path / "case.toml").write_text(SCENARIO + DEFENDED)
    keep_baseline(tmp_path, runner | {"LEFT": "-0.1"}, "before")
    done, told, summary = step(root, tmp_path, runner, BASELINE="b.json", LEFT="0.05")
    assert (done.returncode, told) == (1, {"exit-code": "1"}), done.stdout + done.stderr
    assert summary.count("vflsec: ") == 1
    assert "vflsec: FAIL (case)" in summary
    (report,) = [p for p in tmp_path.rglob("results.sarif") if "before" not in p.parts]
    assert "regression" in list_rules(report)
    done, told, _ = step(root, tmp_path, runner, BASELINE="b.json", LEFT="-0.1", OUT="again")
    assert (done.returncode, told) == (0, {"exit-code": "0"}), done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pass", "fail", "inconclusive"])
def test_the_gitlab_job(name: str, root: Path, tmp_path: Path, runner: dict[str, str]) -> None:
    text = (root / "docs" / "ci.md").read_text(encoding="utf-8")
    (block,) = [b for b in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if "image:" in b]
    (job,) = read_yaml(block).values()
    gates, extra, code, _ = CASES[name]
    (tmp_path / "privacy.toml").write_text(SCENARIO + gates)
    env = runner | extra | {"CI": "true", "GITLAB_CI": "true"}
    done = run_step("\n".join(job["script"]), env, tmp_path)
    assert done.returncode == code, done.stderr
    assert (job["allow_failure"]["exit_codes"] == code) == (name == "inconclusive")
    for path in [*job["artifacts"]["paths"], job["artifacts"]["reports"]["junit"]]:
        assert (tmp_path / path).stat().st_size > 500
