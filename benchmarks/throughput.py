"""Model-steps per CPU-second: the whole engine, a bare batched loop, and one model at a time.

One two-party network (12-64-32 and 12-64-32, linear head to 2 classes), fused Adam, one CPU thread,
all in one run and interleaved, so that the ratios hold even where the machine's speed drifts:

* bare: hand-written batched matrix products for R replicas, no parties, no channel, no recording;
* bare, alike: the same with what else the engine does: every replica has an order of its own, and
  the passive party's gradients get isotropic noise, drawn at once, and are summed by row;
* engine: the package's training step with channel, ledger, recorded gradients and isotropic noise;
* engine, quiet: the same without noise and recording;
* one: the engine with a single replica at a time (the bare loop with R = 1 for comparison).

Run ``python benchmarks/throughput.py``: it prints the table of docs/performance.md. With ``--device
cuda`` it prints steps per second of the clock on a GPU instead, and with ``--graphs`` also those of
steps that are taken as CUDA graphs.
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from vflsec.core.channel import Recorder
from vflsec.core.federation import Federation
from vflsec.core.task import Stack, Task
from vflsec.core.view import Schema
from vflsec.errors import ConfigError
from vflsec.label import Classes
from vflsec.plugins import registry
from vflsec.train.cuda_graphs import CudaGraphs, taken
from vflsec.train.device import pick_device

COLUMNS, HIDDEN, CUT, CLASSES = 12, 64, 32, 2


def task(seed: int, rows: int) -> Task:
    g = torch.Generator().manual_seed(seed)
    names = ("active", "passive")
    total = rows + 64  # the last 64 are held out
    x = {p: torch.randn(total, COLUMNS, generator=g) for p in names}
    y = (x["active"][:, 0] + x["passive"][:, 0] > 0).long()
    ids = torch.arange(rows)
    sets = {"labelled": ids, "aligned": ids, "validation": ids[:64]}
    sets["test"] = torch.arange(rows, total)
    sets |= {f"local:{p}": ids for p in names}
    schema = {p: Schema(tuple("abcdefghijkl"), (0,) * COLUMNS, (COLUMNS,)) for p in names}
    present = {p: torch.ones(total, dtype=torch.bool) for p in names}
    return Task("bench", names, x, present, schema, y, Classes(CLASSES), sets, ids)


def engine(
    replicas: int, batch: int, *, busy: bool, device: str = "cpu", graphs: bool = False
) -> Callable[[int], None]:
    """A function that runs n engine steps."""
    rows = max(4 * batch, 1024)
    seeds = list(range(replicas))
    stack = Stack.build({s: task(s, rows) for s in seeds}, seeds, device)
    wanted = [("passive", "received", "gradient", "mean")] if busy else []
    iso = registry.defenses.create("iso")
    policies = {"active": [(iso, torch.ones(replicas))]} if busy else {}
    recorder = Recorder(wanted, replicas, rows + 64)
    fed = Federation.create(stack, seeds, policies, recorder)
    fed.graphs = partial(CudaGraphs, torch.device(device)) if graphs else None
    algorithm = registry.algorithms.create(
        "splitnn", {"hidden": [HIDDEN], "cut": CUT, "batch_size": batch}
    )
    algorithm.build(fed)
    (phase,) = algorithm.phases(fed)
    fed.phase = phase.name
    step = taken(algorithm, fed, phase.step)
    batches: Iterator[Tensor] = iter(())

    def run(steps: int) -> None:
        nonlocal batches
        for _ in range(steps):
            batch_rows = next(batches, None)
            if batch_rows is None:
                batches = iter(fed.batches(phase))
                batch_rows = next(batches)
            step(batch_rows)
            fed.steps += 1

    return run


def bare(
    replicas: int, batch: int, *, alike: bool = False, device: str = "cpu"
) -> Callable[[int], None]:
    """The same network as plain batched products.

    Args:
        replicas, batch, device: as the engine's.
        alike: rows are shuffled for each replica, and behind the second bottom stand iso's noise
            and a sum of the gradients of every row.
    """
    g = torch.Generator(device).manual_seed(0)

    def weight(i: int, o: int) -> list[Tensor]:
        w = torch.randn(replicas, i, o, generator=g, device=device) / i**0.5
        return [w.requires_grad_(), torch.zeros(replicas, 1, o, device=device).requires_grad_()]

    shapes = [(COLUMNS, HIDDEN), (HIDDEN, CUT)] * 2 + [(2 * CUT, CLASSES)]
    params = [p for i, o in shapes for p in weight(i, o)]
    optimizer = torch.optim.Adam(params, lr=1e-3, fused=True)
    rows = max(4 * batch, 1024)
    xs = [torch.randn(replicas, rows, COLUMNS, generator=g, device=device) for _ in range(2)]
    y = (xs[0][..., 0] + xs[1][..., 0] > 0).long()

    first = (torch.arange(replicas, device=device) * rows).unsqueeze(1)
    sums = torch.zeros(replicas * rows, CUT, device=device)
    order = first + torch.arange(rows, device=device)

    def treat(d: Tensor, seen: Tensor) -> Tensor:
        largest = torch.linalg.vector_norm(d, dim=2).amax(dim=1)
        sigma = (largest / CUT**0.5).reshape(-1, 1, 1)
        d = torch.addcmul(d, torch.randn(d.shape, generator=g, device=device), sigma)
        sums.index_add_(0, seen, d.reshape(-1, CUT))
        return d

    def pick(of: Tensor, at: slice, seen: Tensor) -> Tensor:
        if not alike:
            return of[:, at]
        return of.flatten(0, 1).index_select(0, seen).reshape(replicas, batch, *of.shape[2:])

    def run(steps: int) -> None:
        nonlocal order
        for k in range(steps):
            at = slice((k * batch) % rows, (k * batch) % rows + batch)
            if alike and not at.start:
                drawn = [torch.randperm(rows, generator=g, device=device) for _ in range(replicas)]
                order = first + torch.stack(drawn)
            seen = order[:, at].reshape(-1)
            zs = []
            for j, x in enumerate(xs):
                w1, b1, w2, b2 = params[4 * j : 4 * j + 4]
                h = torch.relu(torch.baddbmm(b1, pick(x, at, seen), w1))
                zs.append(torch.baddbmm(b2, h, w2))
            if alike:
                zs[1].register_hook(partial(treat, seen=seen))
            logits = torch.baddbmm(params[9], torch.cat(zs, 2), params[8])
            log_p = torch.log_softmax(logits, 2)
            loss = -log_p.gather(2, pick(y, at, seen).unsqueeze(2)).mean((1, 2)).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return run


def measure(run: Callable[[int], None], replicas: int, steps: int) -> float:
    start = time.process_time()
    run(steps)
    return replicas * steps / (time.process_time() - start)


def table(
    rounds: int, seconds: float, replicas: Sequence[int] = (1, 8, 32)
) -> list[dict[str, float]]:
    """Medians over rounds for each batch and number of replicas; ``ratio`` is engine / bare."""
    out = []
    for batch in (64, 512):
        for many in replicas:
            runs = {
                "bare": bare(many, batch),
                "alike": bare(many, batch, alike=True),
                "engine": engine(many, batch, busy=True),
                "quiet": engine(many, batch, busy=False),
            }
            found: dict[str, list[float]] = {k: [] for k in runs}
            steps = {}
            for name, run in runs.items():
                measure(run, many, 20)
                rate = measure(run, many, 20) / many
                steps[name] = max(10, int(rate * seconds))
            for _ in range(rounds):
                for name, run in runs.items():
                    found[name].append(measure(run, many, steps[name]))
            ratios = np.array(found["engine"]) / np.array(found["bare"])
            alike = np.array(found["engine"]) / np.array(found["alike"])
            out.append(
                {"batch": batch, "replicas": many}
                | {k: float(np.median(v)) for k, v in found.items()}
                | {"ratio": float(np.median(ratios)), "low": ratios.min(), "high": ratios.max()}
                | {"alike": float(np.median(alike))}
            )
    return out


def by_the_clock(run: Callable[[int], None], steps: int, device: torch.device) -> float:
    """Steps per second on a GPU."""
    torch.cuda.synchronize(device)
    start = time.perf_counter()
    run(steps)
    torch.cuda.synchronize(device)
    return steps / (time.perf_counter() - start)


def on_gpu(
    device: str, graphs: bool, rounds: int, seconds: float,
    replicas: Sequence[int] = (1, 8, 64, 256, 1024),
) -> None:  # fmt: skip
    """Print steps per second of bare loop and engine, with noise and recording and without."""
    where = pick_device(device)
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name(where)}, medians of {rounds} "
          "interleaved rounds\n")  # fmt: skip
    print("| batch | replicas | noise and recording | bare loop, steps/s | engine, steps/s | "
          "as graphs | engine / bare (range) | graphs / engine (range) |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|")
    for batch in (64, 512):
        for many in replicas:
            for busy in (False, True):
                runs = [bare(many, batch, alike=busy, device=str(where))]
                ways = (False, True) if graphs else (False,)
                runs += [engine(many, batch, busy=busy, device=str(where), graphs=g) for g in ways]
                steps = []
                for run in runs:
                    by_the_clock(run, 20, where)  # what is made and captured once
                    steps.append(max(10, int(by_the_clock(run, 20, where) * seconds)))
                found = np.array(
                    [
                        [by_the_clock(run, n, where) for run, n in zip(runs, steps, strict=True)]
                        for _ in range(rounds)
                    ]
                )
                rates = [f"{rate:,.0f}" for rate in np.median(found, axis=0)]
                ratios = [spread(found[:, 1] / found[:, 0])]
                ratios.append(spread(found[:, 2] / found[:, 1]) if graphs else "-")
                row = [batch, many, "yes" if busy else "no", *rates, *([] if graphs else ["-"])]
                print("| " + " | ".join(map(str, [*row, *ratios])) + " |", flush=True)


def spread(ratio: np.ndarray) -> str:
    """A median with its range."""
    return f"{np.median(ratio):.2f} ({ratio.min():.2f} to {ratio.max():.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds (default 5)")
    parser.add_argument("--seconds", type=float, default=0.5, help="seconds a measurement")
    parser.add_argument("--device", default="cpu", help="cpu (default), cuda or cuda:N")
    parser.add_argument("--graphs", action="store_true", help="on a GPU, also as CUDA graphs")
    arguments = parser.parse_args()
    if arguments.device != "cpu":
        try:
            on_gpu(arguments.device, arguments.graphs, arguments.rounds, arguments.seconds)
        except ConfigError as error:
            parser.error(str(error))
        return
    if arguments.graphs:
        parser.error("--graphs needs a GPU: add --device cuda.")
    torch.set_num_threads(1)
    rows = table(arguments.rounds, arguments.seconds)
    one = {r["batch"]: r["engine"] for r in rows if r["replicas"] == 1}
    print(f"torch {torch.__version__}, {platform.machine()}, one thread, medians of "
          f"{arguments.rounds} interleaved rounds\n")  # fmt: skip
    print("| batch | replicas | bare loop | engine | engine / bare (range) | engine / bare, alike "
          "| engine without noise and recording | replicas at once / one at a time |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|")
    for r in rows:
        print(
            f"| {r['batch']} | {r['replicas']} | {r['bare']:,.0f} | {r['engine']:,.0f} | "
            f"{r['ratio']:.2f} ({r['low']:.2f} to {r['high']:.2f}) | {r['alike']:.2f} | "
            f"{r['quiet']:,.0f} | "
            f"{r['engine'] / one[r['batch']]:.1f}x |"
        )


if __name__ == "__main__":
    main()
