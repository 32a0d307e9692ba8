"""Columns and labels that trees tell beside their leaves: known answers, nulls, what stops them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from vflsec.attacks.bin_sums import climb, pin_bins
from vflsec.core.task import Stack, Task
from vflsec.core.view import View
from vflsec.inference.leaf_groups import Leaves, list_sides
from vflsec.plugins import registry
from vflsec.specs import AttackSpec
from vflsec.testing import small_task, train
from vflsec.train.views import make_view
from vflsec.trees.bins import cut_columns

KINDS = (("active", "received"), ("active", "sent"), ("passive1", "received"), ("passive1", "sent"))
FORMS = [
    *((p, way, "partition", "all") for p, way in KINDS),
    ("active", "received", "histogram", "all"), ("passive1", "received", "ids", "all"),
]  # fmt: skip


def look(
    task: Task, who: str, defense: str = "", strength: float = 1.0, aux: int = 40, **params: Any
) -> View:
    """What a party has of one training with a defense at all of its owners."""
    algorithm = registry.algorithms.create("secureboost", params)
    on = {}
    if defense:
        policy = registry.defenses.create(defense)
        owners = {"all": ("active", "passive1"), "passive": ("passive1",)}[policy.owner]
        on = {p: [(policy, torch.tensor([strength], dtype=torch.float64))] for p in owners}
    trained = train(algorithm, Stack.build({0: task}, [0]), [0], on, wanted=FORMS)
    name = "leaf_columns" if aux else "sample_list"
    spec = AttackSpec(name, adversary=(who,), aux_rows=aux, known_rows=0)
    return make_view(algorithm, trained.fed, {}, spec, 0)


def attack(view: View, name: str) -> Any:
    made = registry.attacks.create(name)
    assert made.declines(view) == ""
    return made.infer(view, torch.Generator().manual_seed(0))


def r2(guess: Any, task: Task, party: str, order: Any = slice(None)) -> float:
    truth = task.x[party].double().numpy()[guess.rows][order]
    off = ((truth - guess.scores) ** 2).mean(0) / truth.var(0)
    return float(1 - off.mean())


def one_column() -> Task:
    """A label that the only column of the passive party says, and nothing of the active's."""
    task = small_task(0, n=600, widths=(2, 1))
    noise = torch.randn(600, generator=torch.Generator().manual_seed(0))
    return replace(task, y=(task.x["passive1"][:, 0] + noise > 0).long())


def test_sides_are_read_off_a_heap() -> None:
    """Node 4 is the right child of 1, the left child of the root; 0 is nowhere."""
    leaves = Leaves(torch.arange(3), torch.tensor([[4], [2], [0]]), torch.tensor([0]))
    assert list_sides(leaves).tolist() == [[-1, 1], [1, 0], [0, 0]]
    assert climb(np.array([4, 9, 0, 2]), 1).tolist() == [1, 1, -1, 2]


@pytest.mark.parametrize("profile", ["paper", "fate-2", "secretflow", "xgboost-open"])
def test_sides_of_many_cuts_are_the_column(profile: str) -> None:
    task = one_column()
    guess = attack(look(task, "active", trees=30, depth=2, profile=profile), "leaf_columns")
    assert r2(guess, task, "passive1") > 0.75
    order = np.random.default_rng(0).permutation(len(guess.rows))
    assert r2(guess, task, "passive1", order) < 0.05


def test_a_host_that_is_told_every_node_reads_the_label_owners_columns() -> None:
    """In FATE's view and not where it is told of its own splits alone."""
    task = one_column()
    swapped = replace(task, x={**task.x, "active": task.x["passive1"].repeat(1, 2)})
    noise = torch.randn(600, 1, generator=torch.Generator().manual_seed(1))
    swapped = replace(swapped, x={**swapped.x, "passive1": noise})
    told = attack(look(swapped, "passive1", trees=30, depth=2), "leaf_columns")
    assert r2(told, swapped, "active") > 0.75


def test_a_bin_of_one_row_is_that_rows_bin() -> None:
    """Whatever is pinned is right; the further trees grow, the more."""
    task = small_task(0, n=600, widths=(3, 4))
    share = []
    for trees in (4, 20):
        view = look(task, "active", trees=trees, depth=5)
        ids, found = pin_bins(view)
        codes, _ = cut_columns(task.x["passive1"].double().numpy(), ids, 32)
        told = found >= 0
        assert np.array_equal(found[told], codes.T[ids][told])
        share.append(told.mean())
    assert 0.02 < share[0] < share[1]
    assert share[1] > 0.2
    guess = attack(view, "bin_sums")
    assert guess.notes["pinned"] > 0.2
    assert r2(guess, task, "passive1") > 0.15


@pytest.mark.parametrize(("defense", "strength"), [("k_anonymous", 2.0), ("histogram_noise", 0.1)])
def test_sums_that_are_guarded_pin_nothing_and_sides_tell_as_much(
    defense: str, strength: float
) -> None:
    """Both hold for sums, and not for the sides of rows, which cross in plain."""
    task = small_task(0, n=600, widths=(3, 4))
    view = look(task, "active", defense, strength, depth=5)
    assert (pin_bins(view)[1] >= 0).mean() < 0.001
    alone = look(one_column(), "active", defense, strength, trees=30, depth=2)
    assert r2(attack(alone, "leaf_columns"), one_column(), "passive1") > 0.6


@pytest.mark.parametrize("profile", ["paper", "secretflow", "xgboost-open"])
def test_bins_are_read_where_they_come_in_order(profile: str) -> None:
    view = look(small_task(0), "active", profile=profile)
    assert "in their order" in registry.attacks.create("bin_sums").applicable(view.facts)


def rare() -> Task:
    task = small_task(0, n=800, positive_rate=0.2)
    return task


def test_the_first_list_of_a_prior_start_names_positives_alone() -> None:
    task = rare()
    y = task.y[task.sets["labelled"]]
    share = float(y.double().mean())
    for top, right in ((share - 0.05, None), (share, 1.0)):
        view = look(task, "passive1", aux=0, base="prior", top=top, other=0.0, trees=1)
        guess = attack(view, "sample_list")
        named = guess.scores > 0
        truth = task.y[torch.from_numpy(guess.rows)].numpy()
        assert (truth[named] == 1).all()
        assert named.any()
        if right is not None:
            # rounding up names at most one row more than there are positives
            assert roc_auc_score(truth, guess.scores) >= 0.99


def test_later_lists_name_the_rarer_class_more_often() -> None:
    task = rare()
    guess = attack(look(task, "passive1", aux=0, top=0.2, other=0.1, trees=20), "sample_list")
    truth = task.y[torch.from_numpy(guess.rows)].numpy()
    assert roc_auc_score(truth, guess.scores) > 0.65
    rng = np.random.default_rng(0)
    null = [roc_auc_score(rng.permutation(truth), guess.scores) for _ in range(20)]
    assert abs(np.mean(null) - 0.5) < 0.03


def test_lists_of_all_rows_tell_nothing() -> None:
    made = registry.attacks.create("sample_list")
    assert "every list names every row" in made.declines(look(rare(), "passive1", aux=0))
