"""Which epoch is kept: the lowest loss or the highest AUC on validation rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from by_hand import federation, trained
from sklearn.metrics import roc_auc_score
from torch import Tensor

from vflsec.algorithms.splitnn import SplitNN
from vflsec.core.federation import Federation, Phase
from vflsec.core.rng import generator
from vflsec.errors import ConfigError
from vflsec.plugins import registry
from vflsec.testing import small_stack
from vflsec.train.loop import compute_auc, compute_regret, predict, run_phases

SMALL: dict[str, Any] = {"hidden": (7,), "cut": 3, "batch_size": 32, "patience": 0}


def mark(fed: Federation) -> float:
    """The first number of the active party's bottom."""
    return float(next(iter(fed.active.modules["bottom"].params.values())).detach().flatten()[0])


def test_auc_is_the_usual_one_with_ties() -> None:
    scores = torch.randint(0, 6, (4, 57), generator=generator(0, "scores")).double()
    y = torch.randint(0, 2, (4, 57), generator=generator(0, "y"))
    want = [roc_auc_score(a, s) for a, s in zip(y.numpy(), scores.numpy(), strict=True)]
    np.testing.assert_allclose(compute_auc(scores, y).numpy(), want, rtol=0, atol=1e-12)


def test_auc_of_one_class_is_an_error_with_a_remedy() -> None:
    with pytest.raises(ConfigError, match=r"rows of both classes.*Raise data.validation"):
        compute_auc(torch.zeros(1, 3), torch.ones(1, 3, dtype=torch.int64))


class _Scripted(SplitNN):
    """Predicts what a script says for each epoch; trains one weight that counts the epochs."""

    def phases(self, fed: Federation) -> list[Phase]:
        (phase,) = super().phases(fed)

        def count(epoch: int) -> None:
            with torch.no_grad():
                for weight in fed.active.modules["bottom"].params.values():
                    weight.fill_(float(epoch))

        return [replace(phase, step=lambda rows: None, after_epoch=count)]

    def predict(self, fed: Federation, rows: Tensor) -> Tensor:
        """Epoch 0: the right order, all too sure. Epoch 1: three rows wrong, unsure."""
        y = fed.stack.labels().gather(1, rows).double()
        flipped = y.clone()
        flipped[:, :3] = 1 - flipped[:, :3]
        margin = [60 * y + 40, 2 * flipped - 1][int(mark(fed))]
        return torch.stack([torch.zeros_like(margin), margin], dim=-1)


@pytest.mark.parametrize(("by", "kept"), [("loss", 1.0), ("auc", 0.0)])
def test_loss_keeps_calibrated_logits_and_auc_the_right_order(by: str, kept: float) -> None:
    algorithm = _Scripted(**SMALL, epochs=2, select_by=by)
    fed = trained(algorithm, small_stack([0]))
    assert mark(fed) == kept
    assert fed.kept["train"] == [kept + 1]
    assert fed.epochs["train"] == [2]


@pytest.mark.parametrize("by", ["loss", "auc"])
def test_the_epoch_kept_is_the_best_that_was_seen(by: str) -> None:
    """And training past it changes nothing about which weights are kept."""
    stack, least = small_stack([0, 1]), []
    algorithm = SplitNN(**SMALL, epochs=6, lr=0.05, select_by=by)
    fed = federation(algorithm, stack, [0, 1])
    rows = stack.rows("validation")

    def progress(phase: str, done: int, total: int) -> None:
        least.append(compute_regret(algorithm, fed, rows, by))

    for _ in run_phases(algorithm, fed, progress):
        pass
    assert torch.equal(compute_regret(algorithm, fed, rows, by), torch.stack(least).min(0).values)
    assert len(least) == 6


def test_patience_counts_epochs_without_a_better_auc() -> None:
    algorithm = _Scripted(**SMALL | {"patience": 1}, epochs=3, select_by="auc")
    fed = trained(algorithm, small_stack([0]))
    assert fed.epochs["train"] == [2]


def test_three_classes_have_no_auc() -> None:
    with pytest.raises(ConfigError, match=r"splitnn.select_by must be 'loss' for more than two"):
        federation(SplitNN(**SMALL, select_by="auc"), small_stack([0], classes=3))


def test_shares_of_classes_are_read_by_their_largest() -> None:
    """Labels that a policy has softened still rank."""
    algorithm = SplitNN(**SMALL)
    fed = federation(algorithm, small_stack([0]))
    rows = fed.stack.rows("validation")
    hard = compute_regret(algorithm, fed, rows, "auc")
    y = fed.labels.clamp_min(0)
    fed.labels = torch.stack([1 - y, y], dim=-1) * 0.4 + 0.3
    assert torch.equal(compute_regret(algorithm, fed, rows, "auc"), hard)
    logits = predict(algorithm, fed, rows)[0]
    truth = y.gather(1, rows)[0]
    score = (logits[:, 1] - logits[:, 0]).detach().numpy()
    assert float(hard[0]) == pytest.approx(1 - roc_auc_score(truth.numpy(), score), abs=1e-12)


def test_how_long_replicas_beside_train_changes_no_prediction() -> None:
    """Noise of a policy after a phase that ends by itself, of a replica that ends it earlier."""
    algorithm = SplitNN(epochs=60, lr=0.02, **{**SMALL, "patience": 2})

    def answers(seeds: list[int]) -> tuple[list[int], Tensor]:
        stack, strength = small_stack(seeds), torch.full((len(seeds),), 0.5)
        noise = registry.defenses.create("embedding_noise", {})
        fed = trained(algorithm, stack, seeds, {"passive1": [(noise, strength)]})
        return fed.epochs["train"], predict(algorithm, fed, stack.rows("test"))[0]

    (alone, told), (beside, also) = answers([0]), answers([0, 1])
    assert alone == beside[:1]
    assert max(beside) > alone[0]
    assert torch.equal(told, also)
