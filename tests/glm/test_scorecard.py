"""A scorecard's weights are those of pooled counts, and tell which share of each bin is 1."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from vflsec.algorithms.scorecard import find_weights
from vflsec.attacks.woe_inversion import count_ones
from vflsec.core.task import Stack, Task
from vflsec.errors import ConfigError
from vflsec.plugins import registry
from vflsec.specs import AttackSpec
from vflsec.testing import small_task, train
from vflsec.testing.worlds import Trained
from vflsec.train.views import make_view

KINDS = ("woe_value", "woe", "model_gradient", "ids")


def trained(task: Task, **params: Any) -> Trained:
    algorithm = registry.algorithms.create("scorecard", {"epochs": 2, **params})
    wanted = [(p, "received", k, "all") for p in task.passive for k in KINDS]
    return train(algorithm, Stack.build({0: task}, [0, 0]), [0, 0], wanted=wanted)


def attack(of: Trained, name: str = "woe_inversion", **grants: Any) -> Any:
    spec = AttackSpec(name, adversary=("passive1",), known_rows=0, **grants)
    view = make_view(of.algorithm, of.fed, {}, spec, 0)
    return view, registry.attacks.create(name).infer(view, torch.Generator())


def test_weights_by_hand() -> None:
    """Two bins of 4 and 6 rows with 1 and 5 ones, and a column whose first bin has no zero."""
    counts = np.array([[[1.0, 4], [5, 6]], [[3, 3], [3, 7]]])
    woe, iv = find_weights(counts, 6.0, 10)
    expected = np.log([(1 / 6) / (3 / 4), (5 / 6) / (1 / 4)])
    assert np.allclose(woe[0], expected, atol=1e-15)
    assert iv[0] == pytest.approx((1 / 6 - 3 / 4) * expected[0] + (5 / 6 - 1 / 4) * expected[1])
    assert woe[1, 0] == pytest.approx(np.log((3.5 / 6) / (0.5 / 4)))
    assert np.all(find_weights(np.zeros((1, 2, 2)), 6.0, 10)[0] == 0)


def test_the_ones_of_each_bin_are_counted_exactly() -> None:
    """From weights and rows alone, to 1e-6, which is what is written down."""
    task = small_task(0, n=600)
    view, guess = attack(trained(task), prior=True)
    table = view.received("woe_value", "all")
    y = task.y[table.rows]
    assert guess.notes["bins"] > 20
    checked = 0
    for column in table.tensor.T:
        for woe, ones in count_ones(column, float(y.double().mean())).items():
            here = column == woe
            if y[here].unique().numel() == 2:  # to the others 1/2 is added
                checked += 1
                assert abs(ones - int(y[here].sum())) < 1e-6
    assert checked > 15


@pytest.mark.parametrize("cut", [(4, 6), (4, 2, 4), (1, 3, 3, 3)])
def test_any_cut_gives_the_same_card(cut: tuple[int, ...]) -> None:
    """Coefficients of pooled training, to 1e-12."""
    whole = small_task(0, widths=(4, 6))
    columns = torch.cat([whole.x["active"], whole.x["passive1"]], dim=1)

    def coefficients(widths: tuple[int, ...]) -> np.ndarray:
        task = small_task(0, widths=widths)
        parts = dict(zip(task.parties, columns.split(list(widths), dim=1), strict=True))
        of = trained(replace(task, x=parts, y=whole.y, sets=whole.sets))
        first, *others = of.fed.extra["learners"][(0, 1)].weights.values()
        return np.concatenate([first[:-1], *others, first[-1:]])

    assert np.abs(coefficients(cut) - coefficients((10,))).max() <= 1e-12


def test_a_copy_of_the_label_is_read_and_noise_is_left_out() -> None:
    task = small_task(0, n=600)
    x = {**task.x, "passive1": torch.randn(600, 6, generator=torch.Generator().manual_seed(2))}
    x["passive1"][:, 3] = task.y.float()
    of = trained(replace(task, x=x), min_iv=0.5)
    view, guess = attack(of)
    assert view.received("woe_value", "all").tensor.shape == (360, 1)
    (woe,) = view.received("woe", "all").tensor
    assert woe.shape == (6, 11)
    assert woe.any(dim=1).nonzero().tolist() == [[3]]
    assert roc_auc_score(task.y[torch.from_numpy(guess.rows)], guess.scores) == 1.0


def test_against_the_truth_of_other_rows_it_is_at_chance() -> None:
    task = small_task(0, n=600)
    _, guess = attack(trained(task))
    y = task.y[torch.from_numpy(guess.rows)].numpy()
    rng = np.random.default_rng(0)
    found = [roc_auc_score(rng.permutation(y), guess.scores) for _ in range(20)]
    error = np.sqrt((len(y) + 1) / (12 * y.sum() * (len(y) - y.sum())))
    assert abs(np.mean(found) - 0.5) < 4 * error / np.sqrt(20)
    assert roc_auc_score(y, guess.scores) > 0.8


def test_gradients_of_weights_are_solved_like_others() -> None:
    task = small_task(0, n=600)
    _, guess = attack(trained(task, batch_size=6, rate=0.001, min_iv=0.0), "glm_gradient")
    y = task.y[torch.from_numpy(guess.rows)].numpy()
    assert ((guess.scores > 0) == (y == 1)).mean() > 0.97


def test_a_label_of_three_classes_is_refused() -> None:
    with pytest.raises(ConfigError, match="scorecard: the number of classes must be 2, got"):
        registry.algorithms.create("scorecard").check_label(3)


def test_sums_of_noisy_labels_give_weights_of_bins_that_could_be() -> None:
    counts = np.array([[[-2.0, 5.0], [9.0, 4.0], [3.0, 6.0]]])
    kept = np.array([[[0.0, 5.0], [4.0, 4.0], [3.0, 6.0]]])
    for noisy, could_be in zip(
        find_weights(counts, 7.0, 15), find_weights(kept, 7.0, 15), strict=True
    ):
        assert np.isfinite(noisy).all()
        assert np.array_equal(noisy, could_be)
