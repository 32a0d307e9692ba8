"""Flower end to end: an app of another author's style, simulated over loopback, recorded, audited.

Three lines of `flower_app.py` record. Skipped where Flower and its simulation are not installed
(``pip install 'flwr[simulation]'``).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vflsec.cli.main import main
from vflsec.report.exports import load_summary
from vflsec.trace.reader import Trace
from vflsec.trace.truth import write_truth

pytestmark = [pytest.mark.slow, pytest.mark.long]
pytest.importorskip("flwr", reason="Flower is not installed")
pytest.importorskip("ray", reason="Flower's simulation is not installed")

APP = Path(__file__).resolve().parent / "flower_app.py"
N, PAIRS, ROUNDS = 2000, 8, 6


def make_data(file: Path) -> np.ndarray:
    """Two banks whose columns say little about the label, which the server holds."""
    g = np.random.default_rng(0)
    y = (g.random(N) < 0.3).astype(np.int64)
    x = [g.normal(size=(N, 5)).astype(np.float32) for _ in range(2)]
    for columns in x:
        columns[:, 0] += 0.5 * y
    known = np.concatenate([np.nonzero(y == c)[0][:10] for c in (0, 1)])
    prior = np.array([1 - y.mean(), y.mean()])
    np.savez(file, x0=x[0], x1=x[1], y=y, known=known, prior=prior)
    return y


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``none/bank0-SEED``, ``noise/bank0-SEED``, and the server's labels beside them."""
    folder = tmp_path_factory.mktemp("flower")
    y = make_data(folder / "data.npz")
    write_truth(folder / "labels", range(N), y)
    for name, noise in (("none", "0"), ("noise", "16")):
        env = os.environ | {
            "DATA": str(folder / "data.npz"), "ROUNDS": str(ROUNDS), "PAIRS": str(PAIRS),
            "NOISE": noise, "TRACE": str(folder / name), "RAY_DISABLE_DOCKER_CPU_WARNING": "1",
        }  # fmt: skip
        subprocess.run([sys.executable, str(APP)], check=True, timeout=400, env=env, cwd=folder)
        for trace in sorted((folder / name).iterdir()):
            assert main(["trace", "seal", str(trace), "--ended"]) == 0
    return folder


def test_what_a_client_saw(traces: Path) -> None:
    """Gradients belong to the embedding of their round, whichever process they came to."""
    found = sorted((traces / "none").iterdir())
    assert len(found) == 2 * PAIRS
    received = 0
    for path in found:
        trace = Trace.open(path)
        assert trace.notes == []
        assert trace.manifest.framework.name == "flwr"
        (name,) = trace.observers
        got = list(trace.observer(name).messages())
        sent = {m.step: m for m in got if m.kind == "embedding"}
        assert sorted(sent) == list(range(ROUNDS))
        back = [m for m in got if m.kind == "gradient"]
        received += len(back)
        assert ROUNDS - 2 <= len(back) <= ROUNDS, "those of the last round may never arrive"
        for m in back:
            assert m.pair == sent[m.step].fields.msg
            assert m.values.shape == (N, 4)
            assert (m.rows == np.arange(N)).all()
            assert abs(m.values.sum(0)).max() < 1.0
    assert received >= 2 * PAIRS * (ROUNDS - 2)


def test_fail_undefended_and_pass_with_noise(traces: Path, capsys: Any) -> None:
    gates = traces / "gates.toml"
    defended = '[[gate]]\nmetric = "advantage"\nmax = 0.05\ndefense = "defended"\n'
    gates.write_text(f'{defended}[[gate]]\nmetric = "advantage"\nmax = 0.05\ndefense = "none"\n')
    every = [str(p) for d in ("none", "noise") for p in sorted((traces / d).glob("bank0-*"))]
    out = traces / "out"
    args = ["trace", "audit", *every, "--out", str(out), "--gates", str(gates)]
    chosen = ["--attack", "norm", "--attack", "direction", "--truth", str(traces / "labels")]
    assert main([*args, *chosen]) == 1
    verdicts = load_summary(out)["gates"]
    assert [g["verdict"] for g in verdicts] == ["PASS", "FAIL"], capsys.readouterr().out
    gates.write_text(defended)
    score = ["trace", "score", str(out / "guesses"), "--truth", str(traces / "labels")]
    assert main([*score, "--out", str(traces / "again"), "--gates", str(gates)]) == 0
    points = {
        (p["attack"], p["defense"]): p["value"]
        for p in load_summary(out)["points"]
        if p["metric"] == "auc"
    }
    assert points["direction", "none"] > 0.99
    assert points["norm", "none"] > 0.95
    assert abs(points["norm", "noise"] - 0.5) < 0.03
