"""NVFlare end to end: a job of another author's style in its simulated environment, audited.

Skipped where NVFlare is not installed (``pip install nvflare``).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from vflsec.cli.main import main
from vflsec.trace.reader import Trace
from vflsec.trace.truth import write_truth

pytestmark = pytest.mark.slow
pytest.importorskip("nvflare", reason="NVFlare is not installed")

JOB = Path(__file__).resolve().parent / "nvflare_job.py"
N, BATCH, STEPS = 600, 64, 60


def test_recorded_and_audited(tmp_path: Path) -> None:
    g = np.random.default_rng(0)
    y = (g.random(N) < 0.3).astype(np.int64)
    x = g.normal(size=(N, 6)).astype(np.float32)
    x[:, 0] += 0.5 * y
    known = np.concatenate([np.nonzero(y == c)[0][:10] for c in (0, 1)])
    np.savez(tmp_path / "data.npz", x=x, y=y, known=known)
    trace = tmp_path / "trace"
    env = os.environ | {
        "DATA": str(tmp_path / "data.npz"), "TRACE": str(trace), "WORKSPACE": str(tmp_path / "w"),
    }  # fmt: skip
    env.pop("NVFLARE_SIMULATOR_WORKSPACE_ROOT", None)
    subprocess.run([sys.executable, str(JOB)], check=True, timeout=400, env=env, cwd=tmp_path)
    assert main(["trace", "seal", str(trace), "--ended"]) == 0
    found = Trace.open(trace)
    assert found.manifest.framework.name == "nvflare"
    got = list(found.observer("site-1").messages())
    assert [m.kind for m in got] == ["embedding", "gradient"] * STEPS
    assert {(m.wire_dtype, m.n_rows) for m in got} == {("float16", BATCH)}
    for m in got[1::2]:
        assert m.pair == m.fields["msg"] - 1
        assert (m.rows == got[m.pair].rows).all()
    assert any(len(set(m.rows)) < BATCH for m in got), "rows repeat within a batch"
    write_truth(tmp_path / "labels", range(N), y)
    audit = ["trace", "audit", str(trace), "--truth", str(tmp_path / "labels")]
    chosen = ["--attack", "norm", "--attack", "direction", "--max", "0.05"]
    assert main([*audit, *chosen, "--out", str(tmp_path / "out")]) == 3, "one seed decides nothing"
    points = json.loads((tmp_path / "out" / "summary.json").read_text())["points"]
    auc = {p["attack"]: p["value"] for p in points if p["metric"] == "auc"}
    assert auc["direction"] > 0.9
    assert auc["norm"] > 0.8
