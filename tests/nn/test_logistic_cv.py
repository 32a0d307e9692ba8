"""Cross-validated logistic regression in one batch against one scikit-learn fit at a time."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from vflsec.nn.completion import SHRINKAGE, folds_of, logistic, logistic_cv, simplest_good
from vflsec.view import Known


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
    y, fold = known.labels.numpy(), folds_of(known.labels).numpy()
    held = np.zeros((len(SHRINKAGE), q, 2))
    for k, c in enumerate(SHRINKAGE):
        for f in range(fold.max() + 1):
            held[k, fold == f] = logistic(x[fold != f], y[fold != f], x[fold == f], 2, c)
    best = simplest_good(list(held), y)
    assert found.penalty == SHRINKAGE[best]
    assert found.held is not None
    assert np.abs(found.held - held[best]).max() < 2e-3
    assert np.abs(found.scores - logistic(x, y, targets, 2, SHRINKAGE[best])).max() < 2e-3


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
        found = logistic(x, np.arange(30) % 20, targets, 20, 1.0)
    assert found.shape == (200, 20)
    assert np.exp(found).sum(1) == pytest.approx(np.ones(200))
