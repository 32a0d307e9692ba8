"""What recorded guesses measure of a claimed epsilon of labels; nothing can be planted afterwards.

The proxy of :mod:`vflsec.epsilon.randomised_labels` is the class shares in the truth's folder,
weighed together with what the controls say, all without each row's own label. What a control
reaches against that proxy shows how far it is off at least, and is taken off the bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vflsec.core.guess import Guess
from vflsec.core.rng import generator
from vflsec.epsilon.randomised_labels import centre_scores, observe, stack_shares
from vflsec.measure.attack import Answer
from vflsec.specs import Claim, Measure
from vflsec.trace.manifest import ClaimedPrivacy

CONFIDENCE = 0.99
"""Of the bound of one trace, all attacks together; a single trace can then contradict a claim."""
LEAST = 100
"""Fewest rows with a truth and class shares."""

Floats = NDArray[np.float64]


def measure_epsilon(
    answers: Sequence[Answer],
    y: NDArray[np.int64],
    shares: Floats,
    claim: ClaimedPrivacy,
    seed: int,
    tau: float = 0.0,
) -> tuple[list[Measure], str]:
    """A measure of metric ``epsilon_lower``, and why there is none.

    Args:
        answers: of one trace, whose views hold rows to guess that have a truth.
        y: (N,) labels by row, -1 where there is none.
        shares: (N, C) class shares by row, NaN where there are none.
        claim: what is claimed.
        seed: of the run, draws the other label of each pair.
        tau: bound of the log odds by which the proxy may be off.
    """
    classes = shares.shape[1]
    able = (y >= 0) & (y < classes) & np.isfinite(shares).all(1)
    asked = [
        a for a in answers
        if a.guess is not None and a.of.attack.target == "label" and a.guess.group is None
        and "train" in a.view.targets
    ]  # fmt: skip
    found: list[tuple[float, dict[str, Any]]] = []
    sure = 1 - (1 - CONFIDENCE) / max(1, len(asked))
    for answer in asked:
        assert answer.guess is not None
        rows = answer.view.targets["train"].numpy()
        rows = rows[able[rows] & np.isin(rows, answer.guess.rows)]
        if len(rows) < LEAST or len(np.unique(y[rows])) < 2:
            continue
        beside = [_of(c.guess, rows, classes) for c in answer.controls()]
        beside = [b for b in beside if b is not None]
        q = stack_shares([np.log(shares[rows].clip(1e-9)), *beside], y[rows], classes)
        scores = _of(answer.guess, rows, classes, q)
        if scores is None:
            continue
        how = {"delta": claim.delta, "confidence": sure}
        labels, proxy = torch.from_numpy(y[rows]), torch.from_numpy(q)

        def bound(x: Floats, name: str, labels=labels, proxy=proxy, how=how) -> Any:  # type: ignore[no-untyped-def]
            rng = generator(seed, "observed", name)
            return observe(torch.from_numpy(x), labels, proxy, rng, **how)

        seen = bound(scores, answer.of.spec.label)
        alone = max((bound(b, f"control {i}").epsilon for i, b in enumerate(beside)), default=0.0)
        off = max(tau, alone, seen.without)
        notes = {
            "attack": answer.of.spec.label, "pairs": seen.pairs, "guesses": seen.guesses,
            "right": seen.right, "without": round(max(alone, seen.without), 4), "tau": tau,
        }  # fmt: skip
        found.append((max(0.0, seen.epsilon - off), notes))
    if not found:
        return [], f"under {LEAST} answered rows"
    epsilon, notes = max(found, key=lambda f: f[0])
    measure = Measure(
        answers[0].phase, "", "epsilon_lower", epsilon, n=notes["pairs"], target="claim",
        notes=notes,
    )  # fmt: skip
    return [measure], ""


def _of(guess: Guess, rows: NDArray[np.int64], classes: int, proxy: Floats | None = None) -> Any:
    """Scores (n, C) of a guess on some rows; None if it does not say them."""
    order = np.argsort(guess.rows, kind="stable")
    at = np.searchsorted(guess.rows[order], rows)
    if (at >= len(order)).any() or (guess.rows[order][at.clip(max=len(order) - 1)] != rows).any():
        return None
    x = np.asarray(guess.scores, np.float64)[order[at]]
    if x.ndim == 1:
        if classes != 2 or proxy is None:
            return None
        return centre_scores(x, proxy)
    return x if x.shape[1] == classes else None


def make_guarantee(claim: ClaimedPrivacy) -> Claim:
    """The claim as results keep it."""
    says = "Claimed by whoever gave the trace or the option; checked against its guesses."
    return Claim(
        "label", claim.epsilon, claim.delta, reason="", defense="claim", says=says,
        confidence=CONFIDENCE,
    )  # fmt: skip
