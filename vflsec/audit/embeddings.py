"""Scores attacks that recover another party's embedding, beside what needs no message."""

from __future__ import annotations

from typing import Any

import numpy as np

from vflsec.audit.metrics import Score, score
from vflsec.core.guess import Guess, Truth
from vflsec.core.view import Table, View

METRICS = ("r2", "relative_error")
Scored = tuple[Score, dict[str, dict[str, float | None]], dict[str, Any]]


def score_embedding(table: Table, view: View, guess: Guess) -> list[Scored]:
    """Scores with controls and notes, on the rows that were guessed.

    The truth is `table`: what each row's embedding was when it was last sent. Controls: the
    constant 0, and the column means (which no attacker knows, so the comparison is conservative).
    The notes give the error of the best linear guess from the layer's output, fitted to the truth
    itself: what no linear attack on z alone can beat.
    """
    held = table.tensor.double().cpu().numpy()
    truth = Truth("feature", table.rows, held)
    rows = guess.rows
    mean = np.broadcast_to(held.mean(0), (len(rows), held.shape[1]))
    beside = {"mean": (mean, 0.0), "zero": (np.zeros_like(mean), -1.0)}
    shares = np.full(2, 0.5)

    def scored(values: np.ndarray) -> dict[str, Score]:
        found = score(
            Guess("feature", rows, values), truth, rows, classes=2, prior=shares, metrics=METRICS
        )
        return {s.metric: s for s in found}

    controls = {name: (scored(values), cv) for name, (values, cv) in beside.items()}
    notes = {**guess.notes, **_best_linear(view, rows, truth)}
    return [
        (s, {n: {"value": c[m].value, "cv": cv} for n, (c, cv) in controls.items()}, notes)
        for m, s in scored(guess.scores).items()
    ]


def _best_linear(view: View, rows: np.ndarray, truth: Truth) -> dict[str, Any]:
    import torch

    if not any(key[:2] == ("received", "activation") for key in view.tables):
        return {}
    form = next(k[2] for k in view.tables if k[:2] == ("received", "activation"))
    z = view.received("activation", form)
    if form == "all":
        z = z.take(z.epoch == int(z.epoch.max()))
    asked = torch.from_numpy(rows).to(z.rows.device)
    design = z.of_rows(asked).double().cpu().numpy()
    design = np.hstack([design, np.ones((len(design), 1))])
    order = np.argsort(truth.rows)
    h = truth.values[order[np.searchsorted(truth.rows[order], rows)]]
    fit = design @ np.linalg.lstsq(design, h, rcond=None)[0]
    return {"best_linear_error": round(float(np.linalg.norm(fit - h) / np.linalg.norm(h)), 5)}
