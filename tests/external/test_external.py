"""A split loop written without vflsec, audited through the recorder.

The same architecture on the same rows is also trained and audited by vflsec; the attacks must find
as much, within intervals over seeds.
"""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vflsec.audit.intervals import t_interval
from vflsec.audit.metrics import score as metric_of
from vflsec.cli.main import main
from vflsec.core.guess import Guess, Truth
from vflsec.report.exports import load_summary
from vflsec.specs import AttackSpec
from vflsec.testing.worlds import small_task
from vflsec.trace.reader import Trace
from vflsec.trace.truth import write_truth
from vflsec.trace.validate import validate
from vflsec.train.views import draw_known_rows

sys.path.append(str(Path(__file__).resolve().parent.parent / "trace"))
from simulated import simulate

pytestmark = [pytest.mark.slow, pytest.mark.long]
LOOP = Path(__file__).resolve().parent / "split_loop.py"
ATTACKS = ("norm", "direction", "cluster", "model_completion", "gradient_completion")
SCALED = {"cluster(accumulate=scaled)", "norm(accumulate=scaled)"}
"""Are tried too, for a loop elsewhere may divide its loss by anything."""
EPOCHS, SEEDS = 5, (0, 1, 2)
WORLD: dict[str, Any] = {"n": 400, "positive_rate": 0.2, "signal": 0.5}


def run_loop(folder: Path, seed: int) -> Path:
    """Train over loopback; returns the trace, with a truth folder of its own beside it."""
    common = prepare(folder, seed)
    trace = folder / f"trace-{seed}"
    shop = subprocess.Popen([sys.executable, str(LOOP), "shop", *common])
    try:
        bank = [sys.executable, str(LOOP), "bank", *common, str(trace)]
        subprocess.run(bank, check=True, timeout=200)
        assert shop.wait(timeout=60) == 0
    finally:
        shop.kill()
        shop.wait()
    return trace


def prepare(folder: Path, seed: int) -> list[str]:
    """Write the data of both parties and the truth; returns what both processes are told."""
    task = small_task(seed, **WORLD)
    active, passive = task.parties
    known = draw_known_rows(task, seed, 20)
    path = folder / f"data-{seed}.npz"
    np.savez(
        path, x_shop=task.x[active].numpy(), x_bank=task.x[passive].numpy(), y=task.y.numpy(),
        train=task.sets["labelled"].numpy(), test=task.sets["test"].numpy(),
        known=np.stack([known.rows.numpy(), known.labels.numpy()]), prior=task.prior.numpy(),
    )  # fmt: skip
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = str(probe.getsockname()[1])
    write_truth(folder / f"labels-{seed}", np.arange(len(task.y)), task.y)
    return [port, str(path), str(EPOCHS), str(seed)]


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Path]]:
    folder = tmp_path_factory.mktemp("external")
    return folder, [run_loop(folder, s) for s in SEEDS]


def test_the_recorded_loop_is_a_valid_trace(traces: tuple[Path, list[Path]]) -> None:
    trace = Trace.open(traces[1][0])
    assert trace.notes == []
    report = validate(traces[1][0])
    steps = EPOCHS * 2  # 240 rows in batches of 128 and 112
    assert report.messages == {"bank": 2 * steps + 1}
    assert report.last_step["bank"] == ("train", EPOCHS - 1, steps - 1)
    sizes = {m.n_rows for m in trace.observer("bank").messages() if m.kind == "gradient"}
    assert sizes == {128, 112}


def test_guesses_without_labels_then_verdicts_at_their_owner(
    traces: tuple[Path, list[Path]], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, found = traces
    chosen = [x for a in ATTACKS for x in ("--attack", a)]
    out = folder / "blind"
    assert main(["trace", "audit", *map(str, found), "--out", str(out), *chosen]) == 0
    said = capsys.readouterr().out
    assert "Next, at the label owner" in said
    made = re.search(r"7 attacks made guesses: (.+)\.\n", said)
    assert made is not None
    assert set(made[1].split(", ")) == {*ATTACKS, *SCALED}
    assert not (out / "results.sqlite").exists()
    truths = [x for s in SEEDS for x in ("--truth", str(folder / f"labels-{s}"))]
    # Less than 0.4 of AUC is to gain over own columns: exposed rows are judged instead.
    for limit, least in ((0.05, 0.3), (0.4, 0.9)):
        gates = folder / f"gates-{limit}.toml"
        gates.write_text(f'[[gate]]\nattack = "direction"\nmax = {limit}\n')
        to = folder / f"scored-{limit}"
        args = ["trace", "score", str(out / "guesses"), *truths, "--out", str(to)]
        assert main([*args, "--gates", str(gates)]) == 1
        summary = load_summary(to)
        (verdict,) = summary["gates"]
        assert verdict["verdict"] == "FAIL"
        assert verdict["value"] > least
        assert (to / "report.html").is_file()
    points = {
        p["attack"]: p for p in summary["points"]
        if p["metric"] == "auc" and p["split"] == "train"
    }  # fmt: skip
    assert set(points) == {*ATTACKS, *SCALED}
    assert points["direction"]["value"] > 0.9
    assert points["gradient_completion"]["value"] > 0.9
    controls = {p["control"].partition("(")[0] for p in points.values()}
    assert controls <= {"scratch", "logistic", "majority"}
    _agrees_with_live(folder, points)


def _agrees_with_live(folder: Path, points: dict[str, Any]) -> None:
    """What the live audit of the same architecture on the same rows finds, within intervals."""
    specs = [AttackSpec(a, adversary=("passive1",), known_rows=20) for a in ATTACKS]
    live: dict[str, list[float]] = {a: [] for a in ATTACKS}
    for seed in SEEDS:
        task = small_task(seed, **WORLD)
        found = simulate(
            folder / f"live-{seed}", specs, seed=seed, params={"epochs": EPOCHS, "patience": 0},
            **WORLD,
        )  # fmt: skip
        truth = Truth("label", np.arange(len(task.y)), task.y)
        for i, name in enumerate(ATTACKS):
            guess, view = found.guesses[i, "train"], found.views[i, "train"]
            assert isinstance(guess, Guess)
            rows, prior = view.targets["train"].numpy(), task.prior.numpy()
            (auc,) = metric_of(guess, truth, rows, classes=2, prior=prior, metrics=["auc"])
            live[name].append(auc.value)
    for name, values in live.items():
        mine = t_interval(np.array(values), 0.99)
        point = points[name]
        slack = max(0.02, float(mine.high - mine.low) / 2)
        low, high = point["value_low"] - slack, point["value_high"] + slack
        assert low <= np.mean(values) <= high, (name, values, point["value"])
