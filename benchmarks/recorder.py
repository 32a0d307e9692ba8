"""What recording costs a split training step: embeddings 512 x 64, with and without the recorder.

Blocks of steps without `vflsec.record` at the passive party, with it, and with it writing behind
the loop, take turns. Printed are medians over rounds of medians over steps, and the middle half of
the rounds. PyTorch has one thread.

- *one process*: both parties' steps on a shuffled batch of a table, in processor time of the loop's
  thread (in the kernel too), so that other work on the machine counts less.
- *behind, whole*: with the processor time of the thread that writes, which a machine with a core to
  spare does not wait for; means over steps.
- *two processes*: the passive party's step over a loopback socket, waiting included, by the clock.

    python benchmarks/recorder.py [ROUNDS [STEPS]]
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch import Tensor, nn

import vflsec

BATCH, WIDTH, ROWS, BLOCK, BEHIND = 512, 64, 4096, 10, 32
SIZES = {"small": (15, 128), "ordinary": (100, 256, 128)}
"""Columns and hidden layers of a bottom model."""

Cut = Callable[[Tensor, Tensor], Tensor]


def bottom(*sizes: int) -> nn.Module:
    layers: list[nn.Module] = []
    for a, b in pairwise(sizes):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], WIDTH))


class Active:
    """The party with labels: what comes back for an embedding."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        self.model, self.top = bottom(*sizes), nn.Linear(2 * WIDTH, 2)
        self.x, self.y = torch.randn(ROWS, sizes[0]), torch.randint(2, (ROWS,))
        self.optimizer = torch.optim.Adam([*self.model.parameters(), *self.top.parameters()])

    def step(self, z: Tensor, rows: Tensor) -> Tensor:
        got = z.requires_grad_()
        shares = self.top(torch.cat([self.model(self.x[rows]), got], 1))
        loss = nn.functional.cross_entropy(shares, self.y[rows])
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        assert got.grad is not None
        return got.grad


def make_step(
    sizes: tuple[int, ...], other: Callable[[Tensor, Tensor], Tensor], clock: Callable[[], float]
) -> Callable[[Cut], float]:
    """A step of the passive party; called with what stands at the cut, returns milliseconds."""
    passive, x = bottom(*sizes), torch.randn(ROWS, sizes[0])
    optimizer = torch.optim.Adam(passive.parameters())

    def step(cut: Cut) -> float:
        rows = torch.randperm(ROWS)[:BATCH]
        started = clock()
        z = cut(passive(x[rows]), rows)
        back = other(z.detach(), rows)
        optimizer.zero_grad()
        z.backward(back)
        optimizer.step()
        return 1e3 * (clock() - started)

    return step


def exactly(sock: socket.socket, n: int) -> bytearray:
    data, have = bytearray(n), 0
    while have < n:
        have += sock.recv_into(memoryview(data)[have:])
    return data


def serve(sock: socket.socket, sizes: tuple[int, ...]) -> None:
    """The active party in a process of its own, until it is ended."""
    torch.set_num_threads(1)
    active = Active(sizes)
    while True:
        rows = torch.frombuffer(exactly(sock, 8 * BATCH), dtype=torch.int64)
        z = torch.frombuffer(exactly(sock, 4 * BATCH * WIDTH), dtype=torch.float32)
        sock.sendall(active.step(z.reshape(BATCH, WIDTH), rows).numpy().tobytes())


def measure(step: Callable[[Cut], float], rounds: int, steps: int) -> dict[str, list[float]]:
    """Medians over steps, one of each round: alone, and by how the recorder writes."""
    found: dict[str, list[float]] = {"alone": [], "direct": [], "behind": [], "behind, whole": []}
    with tempfile.TemporaryDirectory() as folder:
        how: dict[str, Any] = {"party": "bank", "role": "passive", "rows": ROWS}
        with (
            vflsec.record(Path(folder) / "direct", **how) as direct,
            vflsec.record(Path(folder) / "behind", behind=BEHIND, **how) as behind,
        ):
            cuts: dict[str, Cut] = {
                "alone": lambda z, _: z, "direct": direct.cut, "behind": behind.cut,
            }  # fmt: skip
            for i in range(rounds + 1):
                taken: dict[str, list[float]] = {name: [] for name in cuts}
                spent = dict.fromkeys(cuts, 0.0)
                for _ in range(0, steps, BLOCK):
                    for name, cut in cuts.items():
                        began = time.process_time()
                        taken[name] += [step(cut) for _ in range(BLOCK)]
                        behind.wait()
                        spent[name] += time.process_time() - began
                if i:  # the first warms up
                    for name in cuts:
                        found[name].append(statistics.median(taken[name]))
                    more = 1e3 * (spent["behind"] - spent["alone"]) / steps
                    found["behind, whole"].append(found["alone"][-1] + more)
    return found


def report(name: str, found: dict[str, list[float]]) -> None:
    plain = found["alone"]
    print(f"{name}: {statistics.median(plain):.2f} ms alone")
    for how, recorded in found.items():
        if how == "alone":
            continue
        costs = [b - a for a, b in zip(plain, recorded, strict=True)]
        shares = sorted(100 * c / a for a, c in zip(plain, costs, strict=True))
        low, high = shares[len(shares) // 4], shares[-1 - len(shares) // 4]
        print(
            f"    {how}: {statistics.median(costs):.2f} ms, {statistics.median(shares):.1f} % "
            f"({low:.1f} to {high:.1f})"
        )


def main(rounds: int = 15, steps: int = 50) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(f"split step, embeddings {BATCH} x {WIDTH}, {rounds} rounds of {steps} steps, one thread")
    for name, sizes in SIZES.items():
        step = make_step(sizes, Active(sizes).step, time.thread_time)
        report(f"one process, {name} bottoms", measure(step, rounds, steps))
    for name, sizes in SIZES.items():
        ours, theirs = socket.socketpair()
        with ours, theirs:
            child = multiprocessing.get_context("fork").Process(target=serve, args=(theirs, sizes))
            child.start()

            def other(z: Tensor, rows: Tensor, sock: socket.socket = ours) -> Tensor:
                sock.sendall(rows.numpy().tobytes() + z.numpy().tobytes())
                back = torch.frombuffer(exactly(sock, 4 * BATCH * WIDTH), dtype=torch.float32)
                return back.reshape(BATCH, WIDTH)

            try:
                step = make_step(sizes, other, time.perf_counter)
                report(f"two processes, {name} bottoms", measure(step, rounds, steps))
            finally:
                child.terminate()
                child.join()


if __name__ == "__main__":
    main(*(int(a) for a in sys.argv[1:]))
