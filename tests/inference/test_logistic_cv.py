"""Cross-validated logistic regression in one batch against one scikit-learn fit at a time."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from sampled import sampled
from sklearn.linear_model import LogisticRegression

from vflsec.core.view import Known
from vflsec.inference import batched_logistic as solver
from vflsec.inference import completion
from vflsec.inference.batched_logistic import ridge_logistic, softmax_logistic
from vflsec.inference.completion import (
    SHRINKAGE,
    Fit,
    assign_folds,
    choose_fit,
    cv_score,
    fit_logistic,
    logistic_by_one,
    logistic_cv,
    simplest_good,
)


def world(q: int, p: int, seed: int = 0) -> tuple[np.ndarray, Known, np.ndarray]:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(q + 200, p, generator=g, dtype=torch.float64)
    y = (x[:, 0] + 0.7 * torch.randn(q + 200, generator=g, dtype=torch.float64) > 0).long()
    y[:4] = torch.tensor([0, 1, 0, 1])
    return x[:q].numpy(), Known(torch.arange(q), y[:q]), x[q:].numpy()


@pytest.mark.parametrize(("q", "p"), [(12, 3), (20, 6), (40, 12)])
def test_the_batch_is_what_single_fits_are(q: int, p: int) -> None:
    x, known, targets = world(q, p)
    found = logistic_cv(x, known, targets, 2, "logistic", SHRINKAGE)
    y, fold = known.labels.numpy(), assign_folds(known.labels).numpy()
    held = np.zeros((len(SHRINKAGE), q, 2))
    for k, c in enumerate(SHRINKAGE):
        for f in range(fold.max() + 1):
            held[k, fold == f] = fit_logistic(x[fold != f], y[fold != f], x[fold == f], 2, c)
    best = simplest_good(list(held), y)
    assert found.penalty == SHRINKAGE[best]
    assert found.held is not None
    assert np.abs(found.held - held[best]).max() < 2e-3
    assert np.abs(found.scores - fit_logistic(x, y, targets, 2, SHRINKAGE[best])).max() < 2e-3


def test_one_class_alone_is_answered_without_a_fit() -> None:
    x, known, targets = world(6, 2)
    found = logistic_cv(x, Known(known.rows, torch.ones(6, dtype=torch.int64)), targets, 2, "l")
    assert (found.scores[:, 1] == 0).all()
    assert (found.scores[:, 0] == -30).all()


def test_a_column_of_many_categories_is_no_warning_on_the_terminal() -> None:
    """A few granted rows hold nearly as many categories; scikit-learn took them for a quantity."""
    x, _, targets = world(30, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = fit_logistic(x, np.arange(30) % 20, targets, 20, 1.0)
    assert found.shape == (200, 20)
    assert np.exp(found).sum(1) == pytest.approx(np.ones(200))


KINDS = ("plain", "split", "constant", "far", "rare")
"""What the known rows are like; `split`: the classes can be told without error, `constant`: one
entry is, `far`: a few numbers lie far out, `rare`: a class has two rows."""


def several(q: int, p: int, classes: int, kind: str, seed: int = 0) -> tuple[
    np.ndarray, Known, np.ndarray
]:  # fmt: skip
    """Rows (q, p), their labels, and 100 rows to answer."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(q + 100, p))
    told = x[:, 0] + (0 if kind == "split" else 0.5) * rng.normal(size=q + 100)
    y = np.digitize(told, np.quantile(told[:q], np.linspace(0, 1, classes + 1)[1:-1]))
    if kind == "constant":
        x[:, -1] = 2.0
    if kind == "far":
        x *= np.exp(rng.normal(size=x.shape))
    if kind == "rare":
        y[np.flatnonzero(y[:q] == 0)[2:]] = 1
    return x[:q], Known(torch.arange(q), torch.as_tensor(y[:q])), x[q:]


def exact(
    x: np.ndarray, y: np.ndarray, targets: np.ndarray, classes: int, c: float
) -> np.ndarray:  # fmt: skip
    """Class shares (n, C) by scikit-learn, to the end."""
    out = np.zeros((len(targets), classes))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = LogisticRegression(C=c, tol=1e-10, max_iter=50_000).fit(x, y)
    out[:, model.classes_] = model.predict_proba(targets)
    return out


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("q", "p"), sampled([(20, 40), (20, 8), (18, 1), (60, 20)]))
@pytest.mark.parametrize("classes", sampled([3, 2, 6]))
def test_fits_of_all_folds_and_penalties_are_scikit_learns(
    kind: str, q: int, p: int, classes: int
) -> None:
    x, known, targets = several(q, p, classes, kind)
    y, fold = known.labels.numpy(), assign_folds(known.labels).numpy()
    for c in (1e-3, 1.0, 10.0):
        found = logistic_cv(x, known, targets, classes, "logistic", (c,))
        off = np.exp(found.scores) - exact(x, y, targets, classes, c)
        assert np.abs(off).max() < 2e-5, (c, np.abs(off).max())
        assert found.held is not None
        for f in range(fold.max() + 1):
            told = exact(x[fold != f], y[fold != f], x[fold == f], classes, c)
            assert np.abs(np.exp(found.held[fold == f]) - told).max() < 2e-5, (c, f)
        assert found.cv == cv_score(found.held, y)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("classes", [2, 3, 6])
def test_one_entry_of_each_fold_is_fitted_as_scikit_learn_does(kind: str, classes: int) -> None:
    x, known, targets = several(30, 5, classes, kind)
    y, fold = known.labels.numpy(), assign_folds(known.labels).numpy()
    found = logistic_by_one(x, known, targets, classes, "entry")
    j = completion._entry(x, y)
    told = exact(x[:, j], y, targets[:, j], classes, 1.0)
    assert np.abs(np.exp(found.scores) - told).max() < 1e-5
    held = np.zeros((30, classes))
    for f in range(fold.max() + 1):
        on = fold != f
        j = completion._entry(x[on], y[on])
        held[~on] = exact(x[on][:, j], y[on], x[~on][:, j], classes, 1.0)
    assert found.cv == pytest.approx(cv_score(np.log(held + 1e-13), y), abs=1 / 30 + 1e-9)


def test_folds_choose_entries_of_their_own() -> None:
    """Each fold's rows are fitted on the entry that tells its own rows apart, not another's."""
    x = np.zeros((6, 2))
    y = np.array([0, 0, 0, 1, 1, 1])
    x[:, 0] = [0, 5, 5, 5, 0, 0]  # without rows 0 and 3 this one tells all
    x[:, 1] = [0, 0, 1, 1, 1, 1.5]
    known = Known(torch.arange(6), torch.as_tensor(y))
    fold = assign_folds(known.labels).numpy()
    entries = [completion._entry(x[fold != f], y[fold != f]) for f in range(3)]
    assert [0] in entries
    assert [1] in entries
    held = np.zeros((6, 2))
    for f, j in enumerate(entries):
        held[fold == f] = exact(x[fold != f][:, j], y[fold != f], x[fold == f][:, j], 2, 1.0)
    assert logistic_by_one(x, known, x, 2, "entry").cv == cv_score(np.log(held), y)


def test_every_fit_has_rows_of_every_class_that_is_known() -> None:
    """What lets fits of all folds be one batch."""
    rng = np.random.default_rng(0)
    for _ in range(300):
        y = torch.as_tensor(rng.integers(0, rng.integers(1, 9), rng.integers(1, 40)))
        keep = completion._rows_of_fits(y)
        assert keep[-1].all()
        assert all(set(y[on].tolist()) == set(y.tolist()) for on in keep)
        assert len(keep) == 1 or (~keep[:-1]).sum(0).tolist() == [1] * len(y)


@pytest.mark.parametrize("by_one", [False, True])
def test_rows_too_few_for_folds_and_classes_that_nobody_saw(by_one: bool) -> None:
    x, _, targets = several(9, 4, 3, "plain")
    y = np.array([1, 3, 3, 3, 4, 4, 4, 4, 4])  # one row of class 1: no folds; 0, 2 and 5 not seen
    for told in (y, np.where(y == 4, 5, 2), np.full(9, 3)):  # then two of six were seen, and one
        known = Known(torch.arange(9), torch.as_tensor(told))
        found = (logistic_by_one if by_one else logistic_cv)(x, known, targets, 6, "l")
        assert (np.delete(found.scores, np.unique(told), 1) == -30).all()
        if told is y:
            assert found.cv == (0.0 if by_one else pytest.approx(5 / 9))
        if len(set(told)) == 1:
            assert (found.scores[:, 3] == 0).all()
            continue
        j = completion._entry(x, told) if by_one else [0, 1, 2, 3]
        shares = exact(x[:, j], told, targets[:, j], 6, 1.0)
        assert np.abs(np.exp(found.scores) - shares).max() < 1e-4


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_rows_that_are_not_finite_are_no_attack_that_found_nothing(
    classes: int, bad: float
) -> None:
    x, known, targets = several(20, 4, classes, "plain")
    x[3, 1] = bad
    with np.errstate(all="ignore"):
        with pytest.raises(ValueError, match="not finite"):
            logistic_by_one(x, known, targets, classes, "entry")
        if classes > 2:
            with pytest.raises(ValueError, match="not finite"):
                logistic_cv(x, known, targets, classes, "l")
        else:
            assert np.isnan(logistic_cv(x, known, targets, classes, "l").scores).all()


def test_large_fits_are_made_one_at_a_time_with_the_same_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x, known, targets = several(40, 6, 3, "plain")
    batch = logistic_cv(x, known, targets, 3, "l", SHRINKAGE[:5])
    monkeypatch.setattr(completion, "BATCHED", 40 * 6 * 3 - 1)
    monkeypatch.setattr(completion, "softmax_logistic", None)
    single = logistic_cv(x, known, targets, 3, "l", SHRINKAGE[:5])
    assert single.penalty == batch.penalty
    assert np.abs(np.exp(single.scores) - np.exp(batch.scores)).max() < 2e-3


def test_a_batch_that_takes_much_memory_is_made_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """One fit at a time in the end; what a piece holds changes steps, not answers."""
    x, known, _ = several(40, 6, 3, "plain")
    wide = np.hstack([x, np.ones((40, 1))])
    y = known.labels.numpy()
    keep = completion._rows_of_fits(known.labels).astype(float)
    hit = (y == np.arange(3)[:, None]).astype(float)
    grid = (0.01, 1.0, 10.0)
    whole = softmax_logistic(wide, y, keep, grid), ridge_logistic(wide, hit, keep, grid)
    sizes: list[int] = []
    newton = solver._newton

    def counted(w: np.ndarray, *rest: object) -> np.ndarray:
        sizes.append(w.shape[0] * w.shape[1])
        return newton(w, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(solver, "_newton", counted)
    monkeypatch.setattr(solver, "_ROOM", 1)
    pieces = softmax_logistic(wide, y, keep, grid), ridge_logistic(wide, hit, keep, grid)
    assert sizes == [1] * (2 * 3 * len(keep))
    for a, b in zip(whole, pieces, strict=True):
        assert a.shape == b.shape
        assert np.abs(a - b).max() < 1e-5
    steps = np.stack([np.roll(wide, k, 0) for k in range(len(keep))])  # rows of each fit
    of_each = ridge_logistic(steps, hit, keep, grid)
    for f in range(len(keep)):
        alone = ridge_logistic(steps[f], hit, keep[f : f + 1], grid)
        assert np.abs(of_each[:, f] - alone[:, 0]).max() < 1e-5


def test_the_first_of_the_best_answers_before_the_next_is_made() -> None:
    said: list[str] = []

    def fits() -> Iterator[Fit]:
        for name, cv in (("a", 0.5), ("b", 0.7), ("c", 0.6), ("d", 0.7)):
            said.append(name)
            yield Fit(name, cv, lambda name=name: said.append(name.upper()) or np.zeros((1, 2)))

    told: dict[str, float] = {}
    best = choose_fit(fits(), told)
    assert best is not None
    assert best.variant == "b"
    assert said == ["a", "A", "b", "B", "c", "d"]
    assert told == {"a": 0.5, "b": 0.7, "c": 0.6, "d": 0.7}
    assert choose_fit([], {}) is None
