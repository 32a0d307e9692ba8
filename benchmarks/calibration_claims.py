"""How often an audit fails a claimed epsilon that is true, and one that is false by a factor.

Run ``python benchmarks/calibration_claims.py`` (about ten minutes on one core): it prints what
docs/concepts.md says of canaries; ``--trained`` the second part alone.

Simulated: audits of five seeds with 120 guessed canaries each, judged as results are
(`vflsec.epsilon.claimed_vs_measured`). Randomised response is guessed by what it answers; Gaussian
noise by a guesser that knows along what the two messages of a canary differ. Intervals are of
Clopper and Pearson, 95 %.
Trained: what canaries in the real cohort guess behind noise that is so many times less than it
says, 20 seeds of a Gaussian world of 600 rows, and what noise as it is claimed would let them.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import torch

from vflsec.audit.gate import EPSILON, FAIL
from vflsec.audit.intervals import clopper_pearson
from vflsec.audit.leakage import results_frame
from vflsec.core import accountants
from vflsec.core.policy import Policy
from vflsec.defenses.embedding_noise import EmbeddingNoise
from vflsec.defenses.noise import Noise
from vflsec.engine.cohort import run_cohort
from vflsec.epsilon import canary_bounds
from vflsec.epsilon.claimed_vs_measured import contradictions
from vflsec.epsilon.measured_claims import CONFIDENCE
from vflsec.specs import CellSpec, DefenseSpec
from vflsec.testing import small_task

AUDITS, SEEDS, CANARIES, DELTA = 200, 5, 120, 1e-5
RESPONSES: tuple[tuple[float, float], ...] = (
    (0.25, 1.5),
    (0.5, 1.5),
    (1, 1),
    (1, 1.5),
    (2, 1.5),
    (3, 1.5),
    (4, 1.5),
)
"""(Claimed epsilon, by what the true one is larger)."""
NOISES: tuple[tuple[float, tuple[float, ...]], ...] = (
    (0.1143, (1, 2, 4)), (0.25, (1, 2)), (0.5, (1, 1.25, 1.5, 2)), (1, (1, 1.25, 1.5, 2)),
)  # fmt: skip
"""(Sensitivity / noise as claimed, by what the noise is less)."""
TRAINED: tuple[tuple[type[Policy], dict[str, Any]], ...] = (
    (Noise, {"clip": 0.05, "distribution": "gaussian"}),
    (EmbeddingNoise, {}),
)
TIMES: tuple[float, ...] = (1, 1.5, 2, 3)


def main() -> None:
    """Print both parts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--audits", type=int, default=AUDITS)
    parser.add_argument("--trained", action="store_true")
    args = parser.parse_args()
    if not args.trained:
        print(f"| claim | truth | failed of {args.audits} audits |\n|---|---|---|")
        for claimed, times in RESPONSES:
            made = _failed(_response(claimed * times), args.audits, {"epsilon": claimed})
            print(f"| randomised response, {claimed:g} | {times:g} x epsilon | {made} |")
        for m, factors in NOISES:
            of = accountants.gaussian(1 / m, 1, DELTA)
            claim = {"epsilon": of.epsilon, "delta": DELTA, "chance": of.chance}
            for times in factors:
                made = _failed(_noised(m * times), args.audits, claim)
                said = f"Gaussian noise, {of.epsilon:.2g} at {DELTA:g}"
                print(f"| {said} | noise / {times:g} | {made} |", flush=True)
    print("\n| defense, strength 2 | noise / | guessed right | of | as claimed at most |")
    print("|---|---|---|---|---|")
    for defense, params in TRAINED:
        for times in TIMES:
            right, n, chance = _trained(defense, params, times)
            shares = f"{100 * right / n:.3g} % | {n:,} | {100 * chance:.3g} %"
            print(f"| {defense.name} | {times:g} | {shares} |", flush=True)


Guesser = Callable[[np.random.Generator, np.ndarray], np.ndarray]


def _response(epsilon: float) -> Guesser:
    def score(rng: np.random.Generator, y: np.ndarray) -> np.ndarray:
        told = np.where(rng.random(len(y)) < 1 / (1 + math.exp(-epsilon)), y, ~y)
        return np.where(told, 1.0, -1.0) + 1e-6 * rng.standard_normal(len(y))

    return score


def _noised(shift: float) -> Guesser:
    def score(rng: np.random.Generator, y: np.ndarray) -> np.ndarray:
        return np.where(y, shift, -shift) / 2 + rng.standard_normal(len(y))

    return score


def _failed(guesser: Guesser, audits: int, claim: dict[str, Any]) -> str:
    """How many audits fail a claim, with an interval."""
    rng, failed = np.random.default_rng(1), 0
    point: dict[str, Any] = {"dataset": "d", "algorithm": "a", "defense": "x", "strength": 1.0}
    delta = claim.get("delta", 0.0)
    for _ in range(audits):
        found = []
        for _ in range(SEEDS):
            y = rng.random(CANARIES) < 0.5
            score, coin = torch.tensor(guesser(rng, y)), torch.tensor(y).long()
            found.append(
                canary_bounds.judged(
                    score, coin, claimed=claim["epsilon"], delta=delta, confidence=CONFIDENCE
                )
            )
        rows: list[dict[str, Any]] = [
            point | {"cell": str(s), "seed": s, "metric": EPSILON, "value": m.epsilon}
            for s, m in enumerate(found)
        ]
        looks: list[Any] = [m.looks for m in found]
        frame = results_frame(rows).assign(
            claimant="x", undefended=None, looks=looks, sure=CONFIDENCE
        )
        (verdict,) = contradictions(frame, [point | claim | {"by": "x"}])
        failed += verdict.verdict == FAIL
    of = clopper_pearson(failed, audits, 0.95)
    return f"{100 * failed / audits:.3g} % [{100 * (of.low or 0):.3g}, {100 * (of.high or 1):.3g}]"


@contextmanager
def _less(defense: type[Policy], times: float) -> Iterator[None]:
    """While it lasts, the defense adds so many times less noise than it says."""
    plain = defense.outgoing

    def outgoing(self: Any, message: Any, own: Any) -> Any:
        return plain(self, message, replace(own, strength=own.strength / times))

    with mock.patch.object(defense, "outgoing", outgoing):
        yield


def _trained(defense: type[Policy], params: dict[str, Any], times: float) -> tuple[int, int, float]:
    """Right guesses, guesses, and the share that noise as claimed would let be right."""
    tasks = {s: small_task(s, n=600) for s in range(20)}
    made, how = (DefenseSpec(defense.name, params, "", 2.0),), {"epochs": 3, "batch_size": 64}
    cells = [CellSpec({"name": "w"}, "splitnn", {**how, "patience": 0}, made, s) for s in tasks]
    with _less(defense, times):
        results = run_cohort(cells, [], tasks, device="cpu")
    looks = [m.notes["looks"] for r in results for m in r.measures if m.metric == EPSILON]
    guesses = sum(look[0][0] for look in looks)
    right = sum(look[0][1] for look in looks)
    return right, guesses, max(g["chance"] for r in results for g in r.guarantees)


if __name__ == "__main__":
    main()
