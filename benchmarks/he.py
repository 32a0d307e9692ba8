"""What the encrypted interactive layer costs: one batch 512 x 64 -> 32 against the plaintext step.

    python benchmarks/he.py [--rows 512] [--width 64] [--out 32] [--repeats 3]

Prints, for 1 and 2 TenSEAL threads and for both weight modes, seconds by operation and bytes by
message, the ratio to the same step in the clear (numpy, one thread), and the estimate that
`vflsec check` uses. Run it on an idle machine; the median of the repeats is shown. With ``--cpu``
seconds are those of the processor, at one thread, and the least of the repeats is shown: what a
busy machine can tell.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import numpy as np  # noqa: E402

from vflsec.he import cost  # noqa: E402
from vflsec.he.ckks import Parameters  # noqa: E402
from vflsec.he.interactive import ActiveRole, PassiveRole  # noqa: E402

CLOCK = [time.perf_counter]


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    start = CLOCK[0]()
    out = call()
    return CLOCK[0]() - start, out


def step(active: ActiveRole, passive: PassiveRole, h: Any, g: Any, shared: bool) -> dict[str, Any]:
    """One training step; seconds and bytes by name."""
    s: dict[str, float] = {}
    s["encrypt"], sealed = timed(lambda: passive.embed(h))
    s["multiply"], product = timed(lambda: active.forward(sealed))
    s["decrypt"], masked = timed(lambda: passive.open(product))
    active.unmask(masked)
    more, blocks = timed(passive.embed_blocks)
    s["encrypt gradient input"] = more
    s["multiply gradient"], gradient = timed(lambda: active.gradient(blocks, g))
    s["decrypt gradient"], back = timed(lambda: passive.open_gradient(gradient))
    active.unmask(back)
    size = {"Enc(h)": sealed, "product": product, "blocks": blocks, "weight gradient": gradient}
    if shared:
        s["encrypt share"], share = timed(lambda: passive.encrypt_share(len(h)))
        s["multiply share"], out = timed(lambda: active.embedding_gradient(share, g))
        s["decrypt embedding gradient"], _ = timed(lambda: passive.open_embedding_gradient(out))
        size |= {"Enc(W_p)": share, "embedding gradient": out}
    return {"seconds": s, "bytes": {k: len(v) for k, v in size.items()}}


def plain(h: Any, w: Any, b: Any, g: Any) -> float:
    def once() -> None:
        h @ w + b, h.T @ g, g @ w.T

    return statistics.median(timed(once)[0] for _ in range(50))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, value in (("rows", 512), ("width", 64), ("out", 32), ("repeats", 3)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--cpu", action="store_true")
    a = parser.parse_args()
    if a.cpu:
        CLOCK[0] = time.process_time
    middle = min if a.cpu else statistics.median
    rng = np.random.default_rng(0)
    h, g = rng.normal(size=(a.rows, a.width)), rng.normal(size=(a.rows, a.out)) / a.rows
    w, b = rng.normal(size=(a.width, a.out)), rng.normal(size=a.out)
    clear = plain(h, w, b, g)
    print(f"{Parameters().label}; batch {a.rows} x {a.width} -> {a.out}; plaintext step "
          f"{1e3 * clear:.3f} ms")  # fmt: skip
    for shared in (False, True):
        for threads in (1,) if a.cpu else (1, 2):
            passive = PassiveRole(None, 0, "p", shared=shared, threads=threads)
            active = ActiveRole(passive.public(), 0, "p", threads=threads)
            active.load(w, b)
            passive.load(rng.normal(size=w.shape) if shared else None, 0.1)
            spent = time.process_time()
            runs = [step(active, passive, h, g, shared) for _ in range(a.repeats)]
            spent = (time.process_time() - spent) / a.repeats
            seconds = {k: middle(r["seconds"][k] for r in runs) for k in runs[0]["seconds"]}
            total, size = sum(seconds.values()), sum(runs[0]["bytes"].values())
            print(f"\n{'shared' if shared else 'plain'} weights, {threads} thread(s): "
                  f"{total:.2f} s and {size / 1e6:.1f} MB a step, "
                  f"{total / clear:.0f} times the plaintext step "
                f"({spent:.2f} CPU seconds)")  # fmt: skip
            print("  seconds: " + ", ".join(f"{k} {v:.3f}" for k, v in seconds.items()))
            print("  MB: " + ", ".join(f"{k} {v / 1e6:.2f}" for k, v in runs[0]["bytes"].items()))
        found = cost.batch(a.rows, a.width, a.out, shared=shared)
        print(f"  estimate of `vflsec check`: {found.seconds:.2f} s, {found.bytes / 1e6:.1f} MB")
    print("\nconstants measured now:", cost.measure(Parameters()))
    three = Parameters(8192, (60, 40, 60), 40)
    print(f"for {three.label}:", cost.measure(three))


if __name__ == "__main__":
    main()
