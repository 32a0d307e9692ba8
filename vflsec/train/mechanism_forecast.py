"""What will be counted, predicted from the phases' plans before anything is trained.

Every phase takes one step of each of its passes, evaluates once if it selects, and predicts once if
it predicts; what that counts is multiplied by the epochs and batches to come. Rows that steps draw
with replacement are bounded: with chance 1 - 10^-6 none of them is used more often than said.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from vflsec.core.algorithm import Algorithm
from vflsec.core.federation import Federation, Pass, Phase
from vflsec.core.phase import expect_epochs
from vflsec.core.policy import Policy
from vflsec.core.privacy_usage import Counter, Uses
from vflsec.train.label_stages import find_staged_policy
from vflsec.train.loop import build_judges, predict

RARE = 1e-6
SLOW = 5.0
"""Processor seconds from which a first step is timed itself, not a further one."""


class _Expected:
    """Uses of every row by one counter, (N,): what is sure, and the bound of what is drawn."""

    def __init__(self, counter: Counter) -> None:
        self.counter = counter
        self.sure = torch.zeros(counter.rows, dtype=torch.float64)
        self.drawn = torch.zeros(counter.rows, dtype=torch.float64)
        self.unsure = False
        self._before = self._now()

    def _now(self) -> Tensor:
        return self.counter.total()[0].double().cpu()

    def new(self) -> Tensor:
        """What was counted since the last call, (N,)."""
        now = self._now()
        out, self._before = now - self._before, now
        return out

    def repeat(self, times: int = 1) -> None:
        """What was counted since happens so many times in all."""
        self.sure += times * self.new()

    def step(self, phase: Phase, walk: Pass, batch: Tensor) -> None:
        """What was counted since is one step of a pass."""
        new, rows = self.new(), walk.rows[0].cpu()
        self.unsure |= bool(self.counter.sampling)
        each = float(new[batch[0].cpu()].min())
        self.sure[rows] += phase.epochs * each
        new[batch[0].cpu()] -= each
        steps = phase.epochs * math.ceil(walk.rows.shape[1] / walk.batch_size)
        left = float(new.sum())
        for among in phase.drawn:
            some = among[0].cpu()
            hits = new[some]
            if not len(some) or not bool((hits > 0).any()):
                continue
            unit = float(hits[hits > 0].min())
            from scipy import stats

            tries = steps * math.ceil(float(hits.sum()) / unit)
            most = unit * float(stats.binom.isf(RARE / len(some), tries, 1 / len(some)))
            self.drawn[some] = torch.maximum(self.drawn[some], torch.tensor(most).double())
            left -= float(hits.sum())
        self.unsure |= left > 1e-9

    def uses(self) -> Uses | None:
        """The prediction; None where a phase draws rows that it does not name."""
        if self.unsure:
            return None
        return Uses(counted=round(float((self.sure + self.drawn).max())))


def _seconds(step: Callable[[], object], most: int = 3) -> float:
    """Processor seconds of a step on one thread: the least of `most`, of one where it is slow."""
    before, least = torch.get_num_threads(), math.inf
    torch.set_num_threads(1)
    try:
        for _ in range(most):
            start = time.process_time()
            step()
            least = min(least, time.process_time() - start)
            if least > 0.1:
                break
    finally:
        torch.set_num_threads(before)
    return least


def take_first_steps(
    algorithm: Algorithm, fed: Federation, timed: list[tuple[float, float]] | None = None
) -> tuple[tuple[str, ...], Callable[[Policy], Uses | None]]:
    """Take the first step of every phase.

    Returns the phases after which attacks are made, and what each policy will treat at most.

    A policy that releases labels in stages holds them back at first: then nothing is done, and
    nothing predicted. The models are not those of a training afterwards.

    Args:
        algorithm: its modules are built.
        fed: the cohort, not trained.
        timed: gets, for each pass, how many steps are expected and the processor seconds of a
            further one, of the first where it is :data:`SLOW`; unless a policy counts its uses,
            which a further step would change.
    """
    bound = [(b.policy, b.own.uses) for p in fed.parties.values() for b in p.bindings]
    expected = [(policy, _Expected(c)) for policy, c in bound if c is not None]
    if find_staged_policy(fed) is not None:
        return (), lambda _: None
    every = [e for _, e in expected]
    for policy, e in expected:
        if policy.counted == "labels":
            e.sure += e.counter.total()[0].double().cpu()
    phases = algorithm.phases(fed)
    for phase in phases:
        fed.phase = phase.name
        fed.channel.begin(phase.name, phase.epochs)
        if phase.before is not None:
            phase.before()
        for e in every:
            e.repeat()
        for walk in phase.walks() if phase.epochs else ():
            _take_step(fed, phase, walk, every, timed)
        if every:
            _evaluate(algorithm, fed, phase, every)
    return tuple(p.name for p in phases if p.audited), partial(_predict_uses, expected)


def _take_step(
    fed: Federation,
    phase: Phase,
    walk: Pass,
    every: Sequence[_Expected],
    timed: list[tuple[float, float]] | None,
) -> None:
    """The first step of a pass, if it has a batch; where nothing counts, what a step takes."""
    fed.batch = next(iter(fed.batches(walk)), None)
    if fed.batch is None:
        return
    step = partial(walk.step, fed.batch)
    took = _seconds(step, most=1)
    for e in every:
        e.step(phase, walk, fed.batch)
    if timed is not None and not every:
        batches = math.ceil(walk.rows.shape[1] / walk.batch_size)
        epochs = expect_epochs(phase.epochs, phase.patience, batches)
        timed.append((epochs * batches, took if took > SLOW else _seconds(step)))


def _evaluate(
    algorithm: Algorithm, fed: Federation, phase: Phase, every: Sequence[_Expected]
) -> None:
    """What a phase is evaluated on: validation rows after each epoch, all rows at its end."""
    regrets = build_judges(algorithm, fed, phase)
    for one in regrets:
        one.regret()
    if regrets:
        for e in every:
            e.repeat(phase.epochs)
    if phase.predicts:
        for split in ("test", "validation"):
            predict(algorithm, fed, fed.stack.rows(split))
        for e in every:
            e.repeat()


def _predict_uses(expected: Sequence[tuple[Policy, _Expected]], policy: Policy) -> Uses | None:
    """The most uses of a policy at any party; None if it counts none, or some are not known."""
    found = [e.uses() for p, e in expected if p is policy]
    known = [u for u in found if u is not None]
    return max(known, key=lambda u: u.counted) if known and len(known) == len(found) else None
