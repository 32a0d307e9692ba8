"""MixMatch for twenty trainings at once, beside a bare loop for one after another.

The audited side fits every replica and every fold of its cross-validation as one stack, and answers
for all rows; the bare side is one hand-written model a replica, without folds and without answers.
Bottom 14-32-16 with batch normalisation in neither, heads of one block, 40 known and 400 unlabelled
rows, batches of 16 + 16, the bottom trained along. Both sides take the same number of steps, in
turn, in processor time of one thread; then the published number of steps is run once.

Run ``python benchmarks/mixmatch.py``; ``--published EPOCHS`` sets how many epochs of 1024
iterations are run at the end, 0 for none.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from vflsec.core.view import Known
from vflsec.inference.completion import Problem
from vflsec.inference.mixmatch import (
    MixMatch,
    fit_mixmatch,
    make_head,
    mix,
    sharpen,
)

CELLS, KNOWN, FREE, COLUMNS, WIDTH = 20, 40, 400, 14, 16


def compute_losses(logits: Tensor, target: Tensor, labelled: int, weight: float) -> Tensor:
    """Loss (R,) of mixed rows (R, 2b, C) whose first `labelled` came from labelled ones."""
    log_p = torch.log_softmax(logits, dim=-1)
    known = -(target * log_p)[:, :labelled].sum(-1).mean(1)
    free = (log_p.exp() - target)[:, labelled:].square().mean((1, 2))
    return known + weight * free


def world(seed: int) -> tuple[nn.Module, Tensor, Tensor, Tensor]:
    """A bottom, known rows with their labels, and unlabelled rows."""
    g = torch.Generator().manual_seed(seed)
    y = torch.arange(KNOWN) % 2
    x = torch.randn((KNOWN, COLUMNS), generator=g) + y.unsqueeze(1)
    bottom = nn.Sequential(nn.Linear(COLUMNS, 32), nn.ReLU(), nn.Linear(32, WIDTH))
    return bottom, x, y, torch.randn((FREE, COLUMNS), generator=g) + 0.5


def stacked(cells: int, settings: MixMatch) -> None:
    """What an audit runs for so many trainings."""
    bottoms, xs, ys, free = zip(*(world(s) for s in range(cells)), strict=True)
    rngs = [torch.Generator().manual_seed(s) for s in range(cells)]
    knowns = [Known(torch.arange(KNOWN), y) for y in ys]
    found = fit_mixmatch("mixmatch", bottoms, Problem(xs, knowns, free, 2), free, rngs, settings,
                         finetune=True, mix_inputs=True)  # fmt: skip
    found.fits(range(cells))


def bare(settings: MixMatch) -> None:
    """One model of one training, by hand."""
    bottom, x, y, free = world(0)
    model = nn.Sequential(copy.deepcopy(bottom), make_head(WIDTH, 2, settings.depth))
    average = copy.deepcopy(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=settings.lr)
    hot, b = nn.functional.one_hot(y, 2).float(), settings.batch
    beta = torch.distributions.Beta(settings.alpha, settings.alpha)
    for t in range(settings.steps):
        at, other = torch.randint(KNOWN, (b,)), torch.randint(FREE, (b,))
        rows = torch.cat([x[at], free[other]])
        with torch.no_grad():
            model.eval()
            guess = sharpen(torch.softmax(model(free[other]), -1), settings.temperature)
            model.train()
        order, weight = torch.randperm(2 * b)[None], beta.sample((1,))
        weight = torch.maximum(weight, 1 - weight)
        target = mix(torch.cat([hot[at], guess])[None], order, weight)
        logits = model(mix(rows[None], order, weight)[0])
        loss = compute_losses(logits[None], target, b, settings.weight * t / settings.steps).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        keep = min(settings.decay, (1 + t) / (10 + t))
        with torch.no_grad():
            for p, a in zip(model.parameters(), average.parameters(), strict=True):
                p.mul_(1 - settings.shrink * settings.lr)
                a.mul_(keep).add_(p, alpha=1 - keep)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--published", type=int, default=5)
    given = parser.parse_args()
    torch.set_num_threads(1)
    settings = MixMatch(epochs=1, iterations=given.steps)
    ratios: dict[str, list[float]] = {"bare loops": [], "single fits": []}
    for k in range(given.rounds + 1):
        together, one, alone = (
            _seconds(lambda: stacked(CELLS, settings)), _seconds(lambda: bare(settings)),
            _seconds(lambda: stacked(1, settings)),
        )  # fmt: skip
        if k:  # the first fills the caches
            ratios["bare loops"].append(CELLS * one / together)
            ratios["single fits"].append(CELLS * alone / together)
    for name, found in ratios.items():
        print(f"{CELLS} {name} over {CELLS} together: {statistics.median(found):.1f} "
              f"({min(found):.1f} to {max(found):.1f}), {given.rounds} rounds")  # fmt: skip
    if given.published:
        whole = MixMatch(epochs=given.published, iterations=1024)
        took, one = _seconds(lambda: stacked(CELLS, whole)), _seconds(lambda: bare(whole))
        print(f"{given.published} epochs of 1024 iterations: {took:.1f} CPU s for {CELLS}, "
              f"{one:.1f} for a bare loop of one")  # fmt: skip


def _seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


if __name__ == "__main__":
    main()
