"""Regression on few rows: many columns cost what the rows do, and are all answered."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from vflsec.core.rng import generator
from vflsec.inference import ridge_regression
from vflsec.inference.ridge_regression import (
    ALPHAS,
    WIDE,
    _turned,
    assign_folds,
    fit_regressors,
    fit_ridges,
    r_squared,
)

KNOWN = 40


def world(seed: int, columns: int) -> tuple[Tensor, Tensor]:
    """Embeddings (n, 16) and columns (n, d) of eight common factors."""
    g = generator(seed, "regression")
    z = torch.randn(500, 8, generator=g)
    x = torch.tanh(z @ torch.randn(8, columns, generator=g) / 2)
    x = x + 0.1 * torch.randn(x.shape, generator=g)
    return torch.tanh(0.7 * z @ torch.randn(8, 16, generator=g)), x


def fitted(seeds: list[int], columns: int, some: slice) -> list[Tensor]:
    drawn = [world(s, columns) for s in seeds]
    fits = fit_regressors(
        "network", [e[:KNOWN] for e, _ in drawn], [x[:KNOWN, some] for _, x in drawn],
        [e[KNOWN:] for e, _ in drawn], [generator(s, "fit") for s in seeds],
    )  # fmt: skip
    return [f.values for f in fits]


def test_coordinates_hold_all_that_the_rows_have() -> None:
    y = torch.randn(7, 90, generator=generator(0, "turned"), dtype=torch.float64)
    y[3] = y[2]  # fewer directions than rows
    told, back = _turned(y, generator(0, "rotation"))
    assert told.shape == (7, 7)
    assert back.shape == (7, 90)
    torch.testing.assert_close(told @ back, y, rtol=1e-12, atol=1e-12)
    other = torch.randn(7, 7, generator=generator(1, "turned"), dtype=torch.float64)
    errors = (other - told).square().sum() * 90 / 7 / 4
    assert float(errors) == pytest.approx(float((other @ back - y).square().sum()), rel=1e-12)
    assert float(told.square().mean()) == pytest.approx(4 * float(y.square().mean()), rel=1e-12)
    shares = told.square().sum(0) / told.square().sum()
    assert float(shares.max()) < 0.35  # of one direction among seven


@pytest.mark.slow
def test_wide_answers_are_no_worse_than_column_by_column() -> None:
    """Six parts of at most as many columns as rows are fitted as they are."""
    seeds = list(range(6))
    truth = [world(s, 240)[1][KNOWN:].double() for s in seeds]
    whole = fitted(seeds, 240, slice(None))
    parts = [fitted(seeds, 240, slice(a, a + 40)) for a in range(0, 240, 40)]
    together = [torch.cat([p[r] for p in parts], 1) for r in range(len(seeds))]
    mine, theirs = (
        sum(r_squared(v, t) for v, t in zip(found, truth, strict=True)) / len(seeds)
        for found in (whole, together)
    )
    assert all(v.shape == (460, 240) for v in whole)
    assert theirs > 0.45
    assert mine > theirs


def test_replicas_that_are_alike_are_fitted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Own columns of one seed are those of every strength."""
    alone = [*fitted([0], 3, slice(None)), *fitted([1], 3, slice(None))]
    stacked, made = ridge_regression.Replicas, list[int]()

    def counted(modules: list[torch.nn.Module], **how: Any) -> Any:
        made.append(len(modules))
        return stacked(modules, **how)

    monkeypatch.setattr(ridge_regression, "Replicas", counted)
    found = fitted([0, 1, 0, 1], 3, slice(None))
    assert made == [2 * 6]  # five folds and all rows
    assert all(torch.equal(a, b) for a, b in zip(found, alone * 2, strict=True))


def test_a_replica_does_not_depend_on_its_company() -> None:
    for columns in (WIDE * KNOWN, WIDE * KNOWN + 1):
        both = fitted([0, 1], columns, slice(None))
        assert torch.equal(fitted([1], columns, slice(None))[0], both[1])


@pytest.mark.parametrize(("q", "p", "d"), [(20, 5, 1), (30, 40, 7), (7, 1, 3)])
def test_ridge_under_all_penalties_is_that_of_each(
    q: int, p: int, d: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the penalty does not change is computed once for each fold: six systems, not thirty."""
    g = generator(0, "ridge")
    x = torch.randn(q + 50, p, generator=g, dtype=torch.float64)
    y = torch.randn(q, d, generator=g, dtype=torch.float64)
    solve, solved = torch.linalg.solve, []

    def counted(a: Tensor, b: Tensor) -> Tensor:
        solved.append(len(a))
        return solve(a, b)

    monkeypatch.setattr(torch.linalg, "solve", counted)
    found = fit_ridges("ridge", x[:q], y, x[q:])
    assert solved == [len(ALPHAS)] * 6
    z, fold = ridge_regression._standardise(x)(x), assign_folds(q)

    def one(on: Tensor, asked: Tensor, alpha: float) -> Tensor:
        centred, mean = z[:q][on] - z[:q][on].mean(0), y[on].mean(0)
        gram = centred.T @ centred + alpha * torch.eye(p, dtype=torch.float64)
        return (asked - z[:q][on].mean(0)) @ solve(gram, centred.T @ (y[on] - mean)) + mean

    for alpha, fit in zip(ALPHAS, found, strict=True):
        close = {"rtol": 1e-11, "atol": 1e-11}
        torch.testing.assert_close(fit.values, one(fold >= 0, z[q:], alpha), **close)
        assert fit.held is not None
        for f in range(5):
            told = one(fold != f, z[:q][fold == f], alpha)
            torch.testing.assert_close(fit.held[fold == f], told, **close)
        assert fit.cv == r_squared(fit.held, y)
