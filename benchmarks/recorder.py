"""What recording costs a split training step: embeddings 512 x 64, with and without the recorder.

One step is that of two parties in one process: the passive bottom, the active bottom and top, the
loss, both backward passes and both optimisers. Steps with and without `vflsec.record` at the
passive party alternate; printed are medians of the processor time, so that other work on the
machine counts less, and what recording adds. One thread.

    python benchmarks/recorder.py [STEPS]
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch import nn

import vflsec

BATCH, WIDTH, COLUMNS = 512, 64, 100


def bottom() -> nn.Module:
    """A bottom model of ordinary size for a table."""
    return nn.Sequential(
        nn.Linear(COLUMNS, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, WIDTH)
    )


def main(steps: int = 300) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    passive, active, top = bottom(), bottom(), nn.Linear(2 * WIDTH, 2)
    theirs = torch.optim.Adam(passive.parameters())
    ours = torch.optim.Adam([*active.parameters(), *top.parameters()])
    x, own = torch.randn(BATCH, COLUMNS), torch.randn(BATCH, COLUMNS)
    y, ids = torch.randint(2, (BATCH,)), torch.arange(BATCH)
    took: dict[bool, list[float]] = {False: [], True: []}
    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder) / "trace"
        with vflsec.record(where, party="bank", role="passive", rows=BATCH) as rec:
            for i in range(2 * steps):
                on = bool(i % 2)
                started = time.process_time()
                z = passive(x)
                if on:
                    z = rec.cut(z, ids)
                got = z.detach().requires_grad_()
                loss = nn.functional.cross_entropy(top(torch.cat([active(own), got], 1)), y)
                ours.zero_grad()
                loss.backward()
                ours.step()
                theirs.zero_grad()
                z.backward(got.grad)
                theirs.step()
                if i >= 20:
                    took[on].append(time.process_time() - started)
    plain, recorded = (1e3 * statistics.median(took[on]) for on in (False, True))
    print(f"split step with embeddings {BATCH} x {WIDTH}, {steps} each, one thread")
    print(f"without the recorder  {plain:6.2f} ms")
    print(f"with the recorder     {recorded:6.2f} ms")
    print(f"recording costs       {recorded - plain:6.2f} ms, {100 * (recorded / plain - 1):.1f} %")


if __name__ == "__main__":
    main(*(int(a) for a in sys.argv[1:]))
