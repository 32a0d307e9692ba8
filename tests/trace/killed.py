"""A loop that records, in a process that is killed in the middle of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

_LOOP = """
import json, sys, torch, vflsec
how = {"party": "bank", "role": "passive", "rows": 64, "loss_reduction": "mean"}
with vflsec.record(sys.argv[1], **how | json.loads(sys.argv[2])) as rec:
    for step in range(10**6):
        z = rec.cut(torch.full((64, 16), float(step)).requires_grad_(), torch.arange(64))
        z.backward(torch.full((64, 16), float(step)))
        print(step, flush=True)
"""


def recorded_until_killed(folder: Path, **how: Any) -> int:
    """Record a loop into `folder` until SIGKILL; returns the last step that it told."""
    command = [sys.executable, "-c", _LOOP, str(folder), json.dumps(how)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        done = 0
        for line in process.stdout:
            done = int(line) if line.strip().isdigit() else done
            if done == 40:
                os.kill(process.pid, signal.SIGKILL)
    return done
