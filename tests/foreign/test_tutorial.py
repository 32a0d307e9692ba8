"""The tutorial on frameworks: one application on Flower and NVFlare prints the page's figures."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from scripts import load

from vflsec.cli.main import main
from vflsec.report.exports import load_summary

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tutorials" / "frameworks.md"
CODE = PAGE.with_suffix("")
TEXT = PAGE.read_text(encoding="utf-8") if PAGE.is_file() else ""
FENCES = re.findall(r"^```(\w+)\n(.*?)^```", TEXT, re.M | re.S)
COMMANDS = [line for kind, body in FENCES if kind == "console" for line in body.splitlines()]
NEEDED = {"flower": ("flwr", "ray"), "nvflare": ("nvflare",)}


def test_quoted_lines_stand_in_the_files() -> None:
    files = {p.name: p.read_text(encoding="utf-8") for p in CODE.glob("*.py")}
    assert set(files) == {"application.py", "run_flower.py", "run_nvflare.py"}
    held = {line.strip() for text in files.values() for line in text.splitlines()}
    quoted = [line for kind, body in FENCES if kind == "python" for line in body.splitlines()]
    assert len(quoted) > 10
    assert [line for line in quoted if line.strip() not in held] == []
    for name, text in files.items():
        said = [c for c in COMMANDS if c == f"python {name}"]
        assert said, f"the page runs {name}"
        assert said[0] in text, f"{name} says how it is run"


def test_both_sides_draw_the_same_batches() -> None:
    app = load(CODE / "application.py")
    epoch = [i for step in range(app.STEPS // app.EPOCHS) for i in app.rows_of(step)]
    assert sorted(epoch) == list(range(app.ROWS))
    shop = app.Shop(0)
    z = shop.embed(0).detach()
    assert z.shape == (app.BATCH, app.WIDTH)
    before = shop.network.weight.clone()
    shop.learn(0, z)
    assert (shop.network.weight != before).any()


def shown() -> dict[tuple[str, str, str], float]:
    """Figures by (defense, attack, metric), as the page's table says them."""
    rows = re.findall(r"^\| (none|noise) \| `(\w+)` \| ([\d.]+) \| ([\d.]+) \|", TEXT, re.M)
    return {
        (defense, attack, metric): float(value)
        for defense, attack, *values in rows
        for metric, value in zip(("auc", "exposed"), values)
    }


def matching(word: str) -> list[str]:
    """What a shell makes of a word."""
    return sorted(map(str, Path().glob(word))) if "*" in word else [word]


def utilities(text: str) -> dict[str, float]:
    """The network's AUC by training."""
    found = re.findall(r"(seed \d, noise \d+): .* ([\d.]+)$", text, re.M)
    return {training: float(auc) for training, auc in found}


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("framework", NEEDED)
def test_a_framework_gives_the_figures(
    framework: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for module in NEEDED[framework]:
        pytest.importorskip(module, reason=f"{module} is not installed")
    monkeypatch.chdir(tmp_path)
    paths = os.pathsep.join([str(CODE), os.environ.get("PYTHONPATH", "")])
    env = os.environ | {"PYTHONPATH": paths, "RAY_DISABLE_DOCKER_CPU_WARNING": "1"}
    env.pop("NVFLARE_SIMULATOR_WORKSPACE_ROOT", None)
    for name in (f"run_{framework}.py", "application.py"):
        done = subprocess.run(
            [sys.executable, str(CODE / name)], check=True, timeout=900, env=env, text=True,
            stdout=subprocess.PIPE,
        )  # fmt: skip
        if name.startswith("run"):
            assert len(utilities(TEXT)) == 6
            assert utilities(done.stdout) == pytest.approx(utilities(TEXT), abs=0.005)
    codes = []
    for command in COMMANDS:
        if command.startswith("vflsec"):
            words = shlex.split(command.replace("flower", framework))
            codes.append(main([w for word in words[1:] for w in matching(word)]))
    assert codes == [0] * 7 + [1, 0]
    points = load_summary(Path("verdict", framework, "noise"))["points"]
    found = {(p["defense"], p["attack"], p["metric"]): p["value"] for p in points}
    wanted = shown()
    assert len(wanted) == 8
    assert {k: found[k] for k in wanted} == pytest.approx(wanted, abs=0.01)
    said = capsys.readouterr().out
    verdicts = re.findall(r"^(?:FAIL|PASS) with [^.]+", TEXT, re.M)
    assert len(verdicts) == 2
    assert [verdict for verdict in verdicts if verdict not in said] == []
