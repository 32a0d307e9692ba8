"""What MKL's one order of sums costs: products of stacked layers with MKL_CBWR and without.

Each side in processes of its own, in turn; the ratio of processor times, and on which layers a
replica among twenty differs from itself beside a twin. Run ``python benchmarks/order.py``.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys

from timed import ONE

from vflsec.runtime.mkl import NAME, VALUE

ROUNDS = 5
CODE = """
import json, time, torch
torch.set_num_threads(1)
took = []
for r, b, i, o, n in ((8, 64, 20, 64, 200), (32, 64, 37, 37, 100), (8, 512, 64, 64, 50),
                      (32, 512, 13, 63, 20), (2, 2048, 256, 256, 5)):
    x, w, bias = torch.randn(r, b, i), torch.randn(r, o, i), torch.randn(r, 1, o)
    best = 1e9
    for _ in range(7):
        start = time.process_time()
        for _ in range(n):
            y = torch.baddbmm(bias, x, w.transpose(1, 2))
            torch.bmm(y.transpose(1, 2), x), torch.bmm(y, w)
        best = min(best, time.process_time() - start)
    took.append(best)
from vflsec.nn.batch_invariance import find_variant_layers
print(json.dumps([took, find_variant_layers()]))
"""


def side(value: str) -> tuple[list[float], list[str]]:
    """Seconds of each layer, and the layers on which company matters, with this MKL_CBWR."""
    env = {**os.environ, **ONE, NAME: value}  # set, also to nothing: importing leaves it so
    done = subprocess.run(
        [sys.executable, "-c", CODE], env=env, capture_output=True, text=True, check=True
    )
    took, apart = json.loads(done.stdout)
    return took, apart


def main() -> None:
    """Time both sides and print."""
    rounds = [(side(""), side(VALUE)) for _ in range(ROUNDS)]
    ratios = [[b / a for a, b in zip(p[0], q[0], strict=True)] for p, q in rounds]
    by_layer = [statistics.median(r) for r in zip(*ratios, strict=True)]
    (_, without), (_, with_it) = rounds[0]
    print(f"{NAME}={VALUE}: {min(by_layer):.2f} to {max(by_layer):.2f} times the processor time "
          f"over {len(by_layer)} layers (medians of {ROUNDS} rounds); company matters on "
          f"{len(without)} of 12 layers without it, on {len(with_it)} with it")  # fmt: skip


if __name__ == "__main__":
    main()
