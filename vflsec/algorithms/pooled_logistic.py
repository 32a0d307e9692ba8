"""Pooled logistic regression: all columns in one place; a reference, not a federated protocol.

L2-regularised multinomial logistic regression (scikit-learn) on the labelled rows with every
party's prepared columns side by side, categoricals one-hot.

Source: the pooled logistic-regression row of He, Kang et al., "A hybrid self-supervised learning
framework for vertical federated learning", arXiv:2208.08934 (2022), Table X.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vflsec.algorithms._pooled import Pooled
from vflsec.core import check
from vflsec.plugins import registry


@registry.algorithm
@dataclass(frozen=True)
class PooledLogistic(Pooled):
    """Hyper-parameters.

    Attributes:
        c: inverse strength of the L2 penalty.
        iterations: limit of the solver.
    """

    c: check.Positive = 1.0
    iterations: check.Count = 500

    def classifier(self, seed: int) -> Any:
        from vflsec.algorithms._quiet import Quiet

        return Quiet(C=self.c, max_iter=self.iterations)
