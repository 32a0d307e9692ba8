"""A split loop written without vflsec, audited through the recorder.

The same architecture on the same rows is also trained and audited by vflsec; the attacks must find
as much, within intervals over seeds.
"""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vflsec.audit.intervals import t_interval
from vflsec.audit.metrics import score as metric_of
from vflsec.cli.main import main
from vflsec.core.guess import Guess, Truth
from vflsec.specs import AttackSpec
from vflsec.testing.worlds import small_task
from vflsec.trace.reader import Trace
from vflsec.trace.truth import read_truth, write_truth
from vflsec.trace.validate import validate
from vflsec.train.views import draw_known_rows

sys.path.append(str(Path(__file__).resolve().parent.parent / "trace"))
from simulated import simulate

pytestmark = pytest.mark.slow
LOOP = Path(__file__).resolve().parent / "split_loop.py"
ATTACKS = ("norm", "direction", "cluster", "model_completion", "gradient_completion")
SCALED = {"cluster(accumulate=scaled)", "norm(accumulate=scaled)"}
"""Are tried too, for a loop elsewhere may divide its loss by anything."""
EPOCHS, SEEDS = 5, (0, 1, 2)
WORLD: dict[str, Any] = {"n": 400, "positive_rate": 0.2, "signal": 0.5}


def run_loop(folder: Path, seed: int, *, record: bool = True) -> Path:
    """Train over loopback; returns the trace, with a truth folder of its own beside it."""
    _, common = prepare(folder, seed)
    trace = folder / f"trace-{seed}"
    shop = subprocess.Popen([sys.executable, str(LOOP), "shop", *common])
    try:
        more = [str(trace)] if record else []
        subprocess.run([sys.executable, str(LOOP), "bank", *common, *more], check=True, timeout=200)
        assert shop.wait(timeout=60) == 0
    finally:
        shop.kill()
        shop.wait()
    return trace


def prepare(folder: Path, seed: int, epochs: int = EPOCHS) -> tuple[Path, list[str]]:
    """The data of both parties, the truth, and what both processes are told."""
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
    return path, [port, str(path), str(epochs), str(seed)]


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
    # Less than 0.4 of AUC is to gain over own columns: exposed people are judged instead.
    for limit, least in ((0.05, 0.3), (0.4, 0.9)):
        gates = folder / f"gates-{limit}.toml"
        gates.write_text(f'[[gate]]\nattack = "direction"\nmax = {limit}\n')
        to = folder / f"scored-{limit}"
        args = ["trace", "score", str(out / "guesses"), *truths, "--out", str(to)]
        assert main([*args, "--gates", str(gates)]) == 1
        summary = json.loads((to / "summary.json").read_text())
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


def test_a_killed_loop_is_audited_to_its_last_whole_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both processes are killed in the midst of training; nothing of theirs runs at the end."""
    path, common = prepare(tmp_path, 0, epochs=10_000)
    trace = tmp_path / "killed"
    command = [sys.executable, str(LOOP)]
    with (
        subprocess.Popen([*command, "shop", *common]) as shop,
        subprocess.Popen([*command, "bank", *common, str(trace)]) as bank,
    ):
        segment = trace / "view/bank/raw-0000-d32-f4.arrows"
        for _ in range(3000):
            if segment.exists() and segment.stat().st_size > 400_000:
                break
            time.sleep(0.02)
        bank.kill()
        shop.kill()
    assert path.exists()
    assert main(["trace", "seal", str(trace)]) == 0
    assert "(partial)" in capsys.readouterr().out
    opened = Trace.open(trace)
    last = validate(trace).last_step["bank"]
    assert last is not None
    assert last[2] >= 4
    found = list(opened.observer("bank").messages())
    assert [m.step for m in found if m.kind == "embedding"][: last[2] + 1] == [*range(last[2] + 1)]
    out = tmp_path / "out"
    truth = ["--truth", str(tmp_path / "labels-0"), "--max", "0.05"]
    args = ["trace", "audit", str(trace), "--attack", "direction", "--out", str(out), *truth]
    assert main(args) in (1, 3)
    summary = json.loads((out / "summary.json").read_text())
    assert any("recording stopped before the run did" in n for n in summary["notes"])
    (auc,) = [p for p in summary["points"] if p["metric"] == "auc"]
    assert auc["value"] > 0.9


def test_rows_without_a_truth_are_left_out_and_counted(traces: tuple[Path, list[Path]]) -> None:
    folder, found = traces
    out = folder / "some"
    audit = ["trace", "audit", str(found[0]), "--out", str(out), "--attack", "direction"]
    assert main(audit) == 0
    truth = read_truth(folder / "labels-0").labels
    write_truth(folder / "half", truth.rows[::2], truth.values[::2])
    to = folder / "some-scored"
    score = ["trace", "score", str(out / "guesses"), "--truth", str(folder / "half")]
    assert main([*score, "--out", str(to)]) == 0
    summary = json.loads((to / "summary.json").read_text())
    assert any("rows without a truth are left out" in n for n in summary["notes"])
    (auc,) = [p for p in summary["points"] if p["metric"] == "auc"]
    assert 90 < auc["n"] < 120
    assert auc["value"] > 0.9


def test_permuted_labels_show_nothing(traces: tuple[Path, list[Path]]) -> None:
    """A truth that has nothing to do with the trace: no attack has an advantage."""
    folder, found = traces
    out = folder / "null"
    assert main(["trace", "audit", str(found[0]), "--out", str(out), "--attack", "direction"]) == 0
    truth = read_truth(folder / "labels-0").labels
    values = np.random.default_rng(3).permutation(truth.values)
    write_truth(folder / "permuted", truth.rows, values)
    to = folder / "null-scored"
    score = ["trace", "score", str(out / "guesses"), "--out", str(to), "--truth"]
    assert main([*score, str(folder / "permuted")]) == 2  # it contradicts what was granted
    known = Trace.open(found[0]).observer("bank").known()
    assert known is not None
    place = np.searchsorted(truth.rows, known.rows.numpy())
    values[place] = truth.values[place]
    write_truth(folder / "null-labels", truth.rows, values)
    assert main([*score, str(folder / "null-labels")]) == 0
    summary = json.loads((to / "summary.json").read_text())
    (auc,) = [p for p in summary["points"] if p["metric"] == "auc"]
    assert 0.35 < auc["value"] < 0.65


def test_errors_are_one_sentence(
    traces: tuple[Path, list[Path]], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder, found = traces
    cases = [
        (["validate", str(tmp_path)], "manifest.json"),
        (["info", str(tmp_path / "none")], "is no folder"),
        (["audit", str(found[0]), str(found[0]), "--out", str(tmp_path / "a")], "seed 0"),
        (["audit", str(found[0]), "--out", str(tmp_path / "b"), "--attack", "nrom"], "norm"),
        (["audit", str(found[0]), "--out", str(tmp_path / "c"), "--model", "x"], "--model must be"),
        (["score", str(tmp_path), "--truth", str(tmp_path)], "answers.json is missing"),
        (["seal", str(found[0])], "is sealed already"),
    ]
    for args, words in cases:
        assert main(["trace", *args]) == 2, args
        said = capsys.readouterr().err
        assert words in said
        assert "Traceback" not in said
    guesses = folder / "blind" / "guesses"
    if guesses.is_dir():
        (target, *_) = sorted(guesses.glob("guess-*.parquet"))
        whole = target.read_bytes()
        target.write_bytes(whole[:-1] + b"!")
        args = ["trace", "score", str(guesses), "--truth", str(folder / "labels-0")]
        assert main([*args, "--out", str(tmp_path / "d")]) == 2
        assert "was changed" in capsys.readouterr().err
        target.write_bytes(whole)
