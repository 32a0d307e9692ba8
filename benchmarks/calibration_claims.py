"""How often an audit fails a claimed epsilon that is true, and one that is false by a factor.

Run ``python benchmarks/calibration_claims.py`` (a minute on one core): it prints what
docs/concepts.md says of canaries. Simulated audits of five seeds with 120 guessed canaries each,
judged as results are (`vflsec.epsilon.claimed_vs_measured`), of randomised response that is guessed
by what it answers. Intervals are of Clopper and Pearson, 95 %. Mechanisms that are trained, intact
or broken, are in `benchmarks/broken_mechanisms.py`.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from vflsec.audit.gate import EPSILON, FAIL
from vflsec.audit.intervals import clopper_pearson
from vflsec.audit.result_row import ResultRow
from vflsec.epsilon import canary_bounds
from vflsec.epsilon.claimed_vs_measured import Claimed, judge_claims
from vflsec.epsilon.measured_claims import CONFIDENCE

AUDITS, SEEDS, CANARIES = 200, 5, 120
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


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--audits", type=int, default=AUDITS)
    args = parser.parse_args()
    print(f"| claim | truth | failed of {args.audits} audits |\n|---|---|---|")
    for claimed, times in RESPONSES:
        made = _failed(_response(claimed * times), args.audits, {"epsilon": claimed})
        print(f"| randomised response, {claimed:g} | {times:g} x epsilon | {made} |", flush=True)


Guesser = Callable[[np.random.Generator, np.ndarray], np.ndarray]


def _response(epsilon: float) -> Guesser:
    def score(rng: np.random.Generator, y: np.ndarray) -> np.ndarray:
        told = np.where(rng.random(len(y)) < 1 / (1 + math.exp(-epsilon)), y, ~y)
        return np.where(told, 1.0, -1.0) + 1e-6 * rng.standard_normal(len(y))

    return score


def _failed(guesser: Guesser, audits: int, claim: dict[str, Any]) -> str:
    """How many audits fail a claim, with an interval."""
    rng, failed = np.random.default_rng(1), 0
    point: dict[str, Any] = {"dataset": "d", "algorithm": "a", "defense": "x", "strength": 1.0}
    for _ in range(audits):
        found = []
        for _ in range(SEEDS):
            y = rng.random(CANARIES) < 0.5
            score, coin = torch.tensor(guesser(rng, y)), torch.tensor(y).long()
            found.append(
                canary_bounds.bound_epsilon(
                    score, coin, claimed=claim["epsilon"], confidence=CONFIDENCE
                )
            )
        rows = [
            ResultRow(**point, seed=s, metric=EPSILON, value=m.epsilon,
                      notes={"defense": "x", "looks": m.looks, "confidence": CONFIDENCE})
            for s, m in enumerate(found)
        ]  # fmt: skip
        (verdict,) = judge_claims(rows, [Claimed(**point, **claim, by="x")])
        failed += verdict.verdict == FAIL
    of = clopper_pearson(failed, audits, 0.95)
    return f"{100 * failed / audits:.3g} % [{100 * (of.low or 0):.3g}, {100 * (of.high or 1):.3g}]"


if __name__ == "__main__":
    main()
