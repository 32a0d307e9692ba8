"""Pooled gradient boosting: all columns in one place; a reference, not a federated protocol.

Histogram gradient boosting (scikit-learn) on the labelled rows with every party's prepared columns
side by side, codes of categoricals as they are.

Source: the pooled LightGBM row of He, Kang et al., "A hybrid self-supervised learning framework for
vertical federated learning", arXiv:2208.08934 (2022), Table IV; Ke et al., "LightGBM", NeurIPS
2017.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from vflsec.algorithms._pooled import Pooled
from vflsec.core import check
from vflsec.core.rng import derive
from vflsec.core.task import Task
from vflsec.plugins import registry


@registry.algorithm
@dataclass(frozen=True)
class PooledBoosting(Pooled):
    """Hyper-parameters.

    Attributes:
        iterations: boosting rounds.
        lr: shrinkage.
        leaves: most leaves of a tree.
    """

    iterations: check.Count = 50
    lr: check.Positive = 0.1
    leaves: Annotated[int, check.at_least(2)] = 8

    def classifier(self, seed: int) -> Any:
        from sklearn.ensemble import HistGradientBoostingClassifier

        return HistGradientBoostingClassifier(
            max_iter=self.iterations,
            learning_rate=self.lr,
            max_leaf_nodes=self.leaves,
            max_bins=63,  # of the usual 255 each is searched at every split, whatever the rows
            early_stopping=False,
            random_state=derive(seed, "boosting") % 2**32,
        )

    def design(self, task: Task, rows: Tensor) -> np.ndarray:
        parts = [task.x[p][rows].reshape(len(rows), -1) for p in task.parties]
        return torch.cat(parts, dim=1).double().numpy()
