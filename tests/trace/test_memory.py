"""Auditing a long trace takes memory for its gradients once, and not several times."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.long]

_AUDIT = """
import json, resource, sys
from pathlib import Path
import numpy as np, torch, vflsec
from vflsec.engine.trace_attacks import infer

def trace(folder, epochs, n):
    torch.manual_seed(0)
    y = (torch.rand(n) < 0.5).long()
    how = dict(rows=n, classes=2, loss_reduction="sum", columns=torch.randn(n, 3), prior=(0.5, 0.5))
    known = np.arange(20)
    with vflsec.record(
        folder, party="bank", role="passive", known=(known, y[:20].numpy()), **how
    ) as rec:
        rec.model(torch.nn.Sequential(torch.nn.Linear(3, 64)))
        z = torch.randn(n, 64)
        for e in range(epochs):
            rec.epoch(e)
            for rows in torch.randperm(n).split(512):
                h = rec.cut(z[rows].requires_grad_(), rows)
                h.backward((y[rows] * 2.0 - 1).unsqueeze(1) + torch.randn(len(rows), 64))
    return sum(p.stat().st_size for p in Path(folder).rglob("*.parquet"))

def peak():
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

names = ("direction", "gradient_completion", "zero_pattern")
trace(sys.argv[1] + "/small", 2, 2000)
infer([sys.argv[1] + "/small"], sys.argv[1] + "/g", attacks=names)
before = peak()
size = trace(sys.argv[1] + "/large", 100, 4000)
recorded = peak()
infer([sys.argv[1] + "/large"], sys.argv[1] + "/h", attacks=names)
print(json.dumps({"size": size, "recording": recorded - before, "audit": peak() - before}))
"""


def test_memory_of_an_audit(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _AUDIT, str(tmp_path)], capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["size"] > 200e6
    assert found["recording"] < 0.5 * found["size"]
    assert found["audit"] < 2.0 * found["size"]  # gradients once, and a fixed part
