"""What passive parties send as sums of bins: over enough rows, or under noise with an account."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from planted_trees import Kept, boost, find_leaves, make_table

from vflsec.core.accountants import gaussian
from vflsec.core.privacy_usage import RunFacts
from vflsec.core.task import Stack
from vflsec.defenses.k_anonymous import merge_bins
from vflsec.errors import ConfigError
from vflsec.plugins import registry
from vflsec.testing import small_task, train


class Merging(Kept):
    """Keeps messages, and merges bins of fewer than 12 rows."""

    def change_sums(self, party: str, values: np.ndarray, *names: object) -> np.ndarray:
        return merge_bins(values, 12)


@pytest.mark.parametrize("k", [1, 2, 5, 40])
def test_merged_sums_are_over_k_rows_and_lose_none(k: int) -> None:
    counts = np.random.default_rng(0).poisson(2.0, size=(3, 4, 9)).astype(float)
    counts[0, 0, -1], counts[1, 1, :-1] = 0, 0
    sums = np.stack([counts * 0.3, counts * 0.2, counts], axis=-1)
    out = merge_bins(sums, k)
    assert np.allclose(out.sum(2), sums.sum(2))
    few = (out[..., 2] > 0) & (out[..., 2] < np.minimum(k, counts.sum(2))[..., None])
    assert not few.any()
    if k == 1:
        assert np.array_equal(out, sums)


@pytest.mark.parametrize("missing", [False, True])
def test_a_cut_is_taken_where_the_rows_are_as_the_sums_say(missing: bool) -> None:
    """Both sides of every split of the passive party have as many rows as merged bins had."""
    x, y = make_table()
    if missing:
        x[::50, 5:] = np.nan
    of = boost(x, y, (1,), rounds=4, sender=Merging())
    own = 0
    for t, tree in enumerate(of.trees):
        size = np.bincount(find_leaves(of, t), minlength=len(tree.owner))
        for i in range(len(size) - 1, 0, -1):
            size[(i - 1) // 2] += size[i]
        for node in np.flatnonzero(tree.owner == 1):
            own += 1
            assert min(size[2 * node + 1], size[2 * node + 2]) >= 12
    assert own > 3
    searched = [m[3] for m in of.sender.sent if m[0] == "histogram"]
    assert all((s[..., 2][s[..., 2] > 0] >= 12).all() for s in searched)


def test_noise_is_of_the_size_that_its_account_is_of() -> None:
    """Strength times sqrt(2 d (1 + 1/16 + 1)), and epsilon composed over levels."""
    made = registry.defenses.create("histogram_noise", {"levels": 12})
    own: Any = type("own", (), {"strength": torch.tensor([2.0]), "context": {"replica": 0}})
    noise = made.sums(np.zeros((50, 5, 33, 3)), np.random.default_rng(0), own)
    assert noise.std() == pytest.approx(2.0 * np.sqrt(2 * 5 * (1 + 1 / 16 + 1)), rel=0.02)
    assert made.account(2.0) == gaussian(2.0, 12, 1e-5).epsilon
    claim = made.guarantee(2.0, RunFacts())
    assert claim.epsilon is None
    assert f"{made.account(2.0):.4g}" in claim.sentence()
    with pytest.raises(ConfigError):
        registry.defenses.create("histogram_noise", {"delta": 1.0})


def test_labels_released_in_stages_train_trees() -> None:
    """LP-MST before boosting: an early training on part of the rows, and epsilon for each label."""
    made = registry.defenses.create("lp_mst")
    on = {"active": [(made, torch.tensor([0.0, 0.5], dtype=torch.float64))]}
    algorithm = registry.algorithms.create("secureboost", {"trees": 4})
    task = small_task(0)
    trained = train(algorithm, Stack.build({0: task}, [0, 0]), [0, 0], on)
    rows = task.sets["labelled"]
    kept = (trained.fed.labels[1][rows] == task.y[rows]).double().mean()
    assert torch.equal(trained.fed.labels[0][rows], task.y[rows])
    assert 0.75 < float(kept) < 1.0  # e^2 / (e^2 + 1) = 0.88
    assert not bool((trained.fed.labels[1][rows] < 0).any())
