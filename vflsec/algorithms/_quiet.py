"""Logistic regression of scikit-learn that says nothing; imported where it is fitted only."""

from __future__ import annotations

import warnings
from typing import Any

from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression


class Quiet(LogisticRegression):
    """Without the warning that the iteration limit was reached; the limit is a setting here."""

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:  # noqa: N803  # as sklearn
        """Fit to X (n, p) and labels y (n,)."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            return super().fit(X, y, sample_weight)
