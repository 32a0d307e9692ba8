"""Learners on own columns against scikit-learn, and worlds in which each is the one to beat."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from sklearn.ensemble import ExtraTreesClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from vflsec.core.view import Known, View
from vflsec.inference.batched_logistic import ridge_logistic, wide_logistic
from vflsec.inference.completion import cv_score
from vflsec.measure import own_classifiers
from vflsec.measure.own_classifiers import BOOST_FROM, PENALTIES, fit_learners, from_randomised


def fake(x: torch.Tensor, y: torch.Tensor, q: int, classes: int = 2) -> View:
    """A view of own columns, the first q rows known."""
    known = Known(torch.arange(q), y[:q])
    return cast(View, SimpleNamespace(
        require_known=lambda: known, target_rows=torch.arange(q, len(x)),
        facts=SimpleNamespace(classes=classes), design=lambda rows: x[rows],
    ))  # fmt: skip


def aucs(x: torch.Tensor, y: torch.Tensor, q: int) -> dict[str, float]:
    found = fit_learners(fake(x, y, q), torch.Generator().manual_seed(0))
    return {f.variant: float(roc_auc_score(y[q:], f.scores[:, 1] - f.scores[:, 0])) for f in found}


def balanced(n: int, seed: int) -> tuple[torch.Generator, torch.Tensor]:
    return torch.Generator().manual_seed(seed), torch.arange(n) % 2


def test_ridge_logistic_is_that_of_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 6))
    y = (x[:, 0] + 0.5 * rng.normal(size=40) > 0).astype(float)
    keep = np.ones((2, 40))
    keep[0, :13] = 0
    wide = np.hstack([x, np.ones((40, 1))])
    found = ridge_logistic(wide, y[None], keep, PENALTIES)
    for k, c in enumerate(PENALTIES):
        for f, of in enumerate((slice(13, None), slice(None))):
            model = LogisticRegression(C=c, tol=1e-10, max_iter=5000).fit(x[of], y[of])
            assert found[k, f, 0, :6] == pytest.approx(model.coef_[0], abs=1e-4)
            assert found[k, f, 0, 6] == pytest.approx(model.intercept_[0], abs=1e-4)


def test_ridge_logistic_holds_where_the_rows_can_be_split_without_error() -> None:
    x = np.array([[-1.0, 1.0], [-2.0, 1.0], [1.0, 1.0], [2.0, 1.0]])
    w = ridge_logistic(x, np.array([[0.0, 0, 1, 1]]), np.ones((1, 4)), (10.0, 1e6))
    assert np.isfinite(w).all()
    assert (x @ w[1, 0, 0] * [-1, -1, 1, 1] > 0).all()


def test_shrinkage_wins_with_few_rows_and_many_columns() -> None:
    """The class means of 20 rows know more than a fit at C = 10 that follows each of them."""
    g, y = balanced(3000, 1)
    x = torch.randn(3000, 60, generator=g) + 0.28 * (2 * y[:, None] - 1)
    x[:, 30:] += 2.0 * torch.randn(3000, 1, generator=g)
    got = [aucs(x[i * 600 :][:600], y[:600], 20) for i in range(5)]
    shrunk, loose = (float(np.mean([a[n] for a in got])) for n in ("logistic(C=0.001)",
                                                                   "logistic(C=10)"))  # fmt: skip
    assert shrunk > 0.75
    assert abs(shrunk - loose) > 0.01


def test_trees_and_boosting_find_what_no_line_does() -> None:
    g, _ = balanced(3000, 2)
    x = torch.rand(3000, 4, generator=g) * 2 - 1
    y = ((x[:, 0] * x[:, 1]) > 0).long()
    got = aucs(x, y, 400)
    assert got["logistic"] < 0.6
    assert min(got["trees"], got["boosting"]) > 0.9
    assert "boosting" not in aucs(x, y, BOOST_FROM - 1)


@pytest.mark.parametrize(("q", "classes"), [(20, 2), (120, 3)])
def test_trees_are_those_of_scikit_learn_bit_for_bit(q: int, classes: int) -> None:
    g = np.random.default_rng(q)
    x, y = g.normal(size=(q + 300, 12)), np.arange(q) % classes
    found = own_classifiers._trees(x[:q], y, x[q:], classes, 7)
    model = ExtraTreesClassifier(
        own_classifiers.TREES, bootstrap=True, oob_score=True, random_state=7,
        min_samples_leaf=1 if q < 100 else 3,
    ).fit(x[:q], y)  # fmt: skip
    shares = [
        np.log(p.clip(1e-13)) for p in (model.predict_proba(x[q:]), model.oob_decision_function_)
    ]
    assert np.array_equal(found.scores, shares[0])
    assert found.cv == cv_score(shares[1], y)


def test_the_principal_direction_needs_the_known_rows_for_its_sign_alone() -> None:
    """Breast cancer: the first direction of 400 rows beats what 20 labels teach."""
    g, y = balanced(2000, 3)
    x = 1.0 * torch.randn(2000, 40, generator=g)
    x[:, :20] += 0.5 * (2 * y[:, None] - 1)
    for side in (1, -1):
        got = aucs(side * x, y, 10)
        assert got["principal"] > 0.97
        assert got["principal"] > got["logistic"]


def test_nothing_is_found_where_nothing_is() -> None:
    g, y = balanced(4000, 4)
    got = aucs(torch.randn(4000, 8, generator=g), y, 200)
    assert {"logistic", "principal", "trees", "boosting"} <= set(got)
    assert all(abs(a - 0.5) < 0.06 for a in got.values())


def test_known_rows_of_one_class_and_more_than_two_classes() -> None:
    g = torch.Generator().manual_seed(5)
    y = torch.arange(600) % 3
    x = torch.randn(600, 6, generator=g) + 2.0 * torch.nn.functional.one_hot(y, 6)
    found = list(fit_learners(fake(x, y, 60, 3), g))
    right: dict[str, Any] = {
        f.variant: (f.scores.argmax(1) == y[60:].numpy()).mean() for f in found
    }
    assert set(right) == {*(f"logistic(C={c:g})" for c in PENALTIES if c != 1), "logistic", "trees"}
    assert min(right.values()) > 0.75
    assert all(np.exp(f.scores).sum(1) == pytest.approx(1, abs=1e-6) for f in found)
    one = Known(torch.arange(5), torch.ones(5, dtype=torch.int64))
    view = fake(x, y, 5)
    lone = list(
        fit_learners(cast(View, SimpleNamespace(**{**vars(view), "require_known": lambda: one})), g)
    )
    assert len(lone) == len(PENALTIES)
    assert all((f.scores[:, 1] > f.scores[:, 0]).all() for f in lone)


def test_n_randomised_labels_tell_of_the_population_and_not_of_a_row() -> None:
    """Randomised response at epsilon 1: better than 20 clean labels, and blind to a row's own."""
    g, _ = balanced(2000, 6)
    x = torch.randn(2000, 20, generator=g)
    y = ((x[:, :5].sum(1) + 1.5 * torch.randn(2000, generator=g)) > 0).long()
    flip = torch.rand(2000, generator=g) > float(np.e / (1 + np.e))
    noisy = torch.where(flip, 1 - y, y)
    view = fake(x, y, 20)
    seen = cast(View, SimpleNamespace(**{**vars(view), "known": Known(torch.arange(20), y[:20])}))
    found = from_randomised(seen, noisy)
    margin = found.scores[:, 1] - found.scores[:, 0]
    auc = float(roc_auc_score(y[20:], margin))
    assert auc > aucs(x, y, 20)["logistic"] + 0.05
    blind = from_randomised(
        cast(View, SimpleNamespace(**{**vars(seen), "design": lambda rows: x[rows] * 0})), noisy
    )
    flat = blind.scores[:, 1] - blind.scores[:, 0]
    assert abs(float(roc_auc_score(noisy[20:], flat)) - 0.5) < 0.05
    other = noisy.clone()
    other[100] = 1 - other[100]
    moved = from_randomised(seen, other).scores
    assert moved[80] == pytest.approx(found.scores[80], abs=1e-9)  # row 100 is the 80th target
    assert (moved != found.scores).any()


def test_many_columns_are_fitted_alike() -> None:
    rng = np.random.default_rng(1)
    x = np.hstack([rng.normal(size=(400, 30)), np.ones((400, 1))])
    margin = x[:, :3].sum(1) + rng.normal(size=400)
    hit = np.stack([margin > 0, margin > 1]).astype(float)
    keep = (rng.random((3, 400)) < 0.8).astype(float)
    wide, plain = wide_logistic(x, hit, keep, 0.01), ridge_logistic(x, hit, keep, (0.01,))[0]
    assert wide.shape == (3, 2, 31)
    assert np.abs((wide - plain) @ x.T).max() < 1e-3 < 1 < np.abs(plain @ x.T).max()


def test_a_fit_without_a_row_of_a_class_is_sure_and_finite() -> None:
    x, keep = np.ones((4, 2)), np.array([[1.0, 1, 0, 0], [1, 1, 1, 1]])
    w = wide_logistic(x, np.array([[0.0, 0, 1, 1]]), keep, 0.01)
    assert (w[0, 0] @ x[0], w[1, 0] @ x[0]) == (-30, pytest.approx(0, abs=1e-6))


def test_controls_of_wide_tables_are_those_of_narrow_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same table with and without the ways that are made for thousands of columns."""
    g, y = balanced(600, 5)
    x = torch.randn(600, 12, generator=g)
    x[:, 0] += 3 * y  # the first principal direction
    noisy = torch.where(torch.rand(600, generator=g) < 0.2, 1 - y, y)
    view = fake(x, y, 20)
    seen = cast(View, SimpleNamespace(**{**vars(view), "known": Known(torch.arange(20), y[:20])}))

    def scores() -> list[np.ndarray]:
        made = {f.variant: f for f in fit_learners(view, torch.Generator().manual_seed(0))}
        return [f.scores[:, 1] - f.scores[:, 0] for f in (made["principal"],
                                                         from_randomised(seen, noisy))]  # fmt: skip

    narrow = scores()
    monkeypatch.setattr(own_classifiers, "_WIDE", 3)
    monkeypatch.setattr(own_classifiers, "_DENSE", 3)
    for before, now in zip(narrow, scores(), strict=True):
        assert np.abs(np.asarray(before) - np.asarray(now)).max() < 1e-3
        assert np.abs(np.asarray(before)).max() > 0.5
