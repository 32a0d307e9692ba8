"""Columns and labels that trees tell beside their leaves: known answers, nulls, what stops them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sampled import sampled
from sklearn.metrics import roc_auc_score

from vflsec.attacks.bin_sums import climb, list_nodes, pin_bins
from vflsec.core.task import Stack, Task
from vflsec.core.view import View
from vflsec.inference.leaf_groups import Leaves, list_sides
from vflsec.plugins import registry
from vflsec.specs import AttackSpec
from vflsec.testing import small_task, train
from vflsec.train.views import make_view
from vflsec.trees.bins import cut_columns

KINDS = (("active", "received"), ("active", "sent"), ("passive1", "received"), ("passive1", "sent"),
         ("passive2", "sent"))  # fmt: skip
PASSIVE = ("passive1", "passive2")
FORMS = [
    *((p, way, "partition", "all") for p, way in KINDS),
    ("active", "received", "own_pair", "all"), ("active", "received", "histogram", "all"),
    ("passive1", "received", "sample_list", "all"),
]  # fmt: skip


def look(
    task: Task, who: str, defense: str = "", strength: float = 1.0, aux: int = 40, marks: int = 0,
    **params: Any,
) -> View:  # fmt: skip
    """What a party has of one training with a defense at all of its owners.

    `marks`: of an active party that deviates.
    """
    algorithm = registry.algorithms.create("secureboost", {"trees": 10} | params)
    on: dict[str, list[Any]] = {}
    if defense:
        policy = registry.defenses.create(defense)
        owners = {"all": ("active", "passive1"), "passive": ("passive1",)}[policy.owner]
        on = {p: [(policy, torch.tensor([strength], dtype=torch.float64))] for p in owners}
    if marks:
        policy = registry.attacks.create("bin_sums", {"marks": marks}).policy()
        on["active"] = [*on.get("active", ()), (policy, torch.ones(1, dtype=torch.float64))]
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


def test_the_active_party_reads_what_each_of_several_parties_sends() -> None:
    """It could make no attack: nodes of other rows from each party were put side by side."""
    task = small_task(0, n=600, widths=(2, 1, 1))
    x = task.x["passive1"][:, 0] + task.x["passive2"][:, 0]
    task = replace(task, y=(x > 0).long())
    view = look(task, "active", trees=10)
    got = view.received("partition", "all")
    said = [look(task, p, trees=10).tables["sent", "partition", "all", p] for p in PASSIVE]
    assert min(map(len, said)) > 0
    assert torch.equal(got.rows, torch.cat([t.rows for t in said]))
    assert torch.equal(got.tensor, torch.cat([t.tensor for t in said]))
    guess = attack(view, "leaf_columns")
    truth = torch.cat([task.x[p] for p in PASSIVE], 1)[guess.rows].double()
    assert (1 - ((truth - guess.scores) ** 2).mean(0) / truth.var(0)).min() > 0.4


def test_sides_are_read_off_a_heap() -> None:
    """Node 4 is the right child of 1, the left child of the root; 0 is nowhere."""
    leaves = Leaves(torch.arange(3), torch.tensor([[4], [2], [0]]), torch.tensor([0]))
    assert list_sides(leaves).tolist() == [[-1, 1], [1, 0], [0, 0]]
    assert climb(np.array([4, 9, 0, 2]), 1).tolist() == [1, 1, -1, 2]
    some = leaves.among(torch.tensor([7, 2]), torch.tensor([0, 2]))
    assert (some.rows.tolist(), some.nodes.tolist()) == ([0, 2], [[4], [0]])


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


def find_bins(task: Task, ids: np.ndarray) -> np.ndarray:
    """The true bins (n, d) of the passive party's columns."""
    return cut_columns(task.x["passive1"].double().numpy(), ids, 32)[0].T[ids]


@pytest.mark.parametrize("profile", sampled(["fate-2", "paper", "secretflow"]))
def test_a_bin_of_one_row_is_that_rows_bin(profile: str) -> None:
    """Whatever is pinned is right; the further trees grow, the more. Nor counts nor the order of
    bins are needed."""
    task = small_task(0, n=600, widths=(3, 4))
    share = []
    for trees in (4, 20):
        view = look(task, "active", trees=trees, depth=5, profile=profile)
        ids, found = pin_bins(view)
        told = found >= 0
        assert np.array_equal(found[told], find_bins(task, ids)[told])
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


def test_a_sum_of_several_rows_is_never_that_of_one() -> None:
    """H > |G| (1 - |G|), whatever the labels are."""
    rng = np.random.default_rng(0)
    for n in (2, 3, 5):
        p = 0.001 + 0.998 * rng.beta(0.3, 0.3, (4000, n))
        g = (p - (rng.random((4000, n)) < 0.5)).sum(1)
        assert ((p * (1 - p)).sum(1) > np.abs(g) * (1 - np.abs(g))).all()


@pytest.mark.parametrize("profile", ["paper", "secretflow"])
def test_the_sums_of_h_give_the_order_of_bins_back(profile: str) -> None:
    """Shuffled sums, sorted, are those of the bins in order, of every node of every tree."""
    task = small_task(0, n=600, widths=(3, 4))
    view, open_ = (look(task, "active", profile=p, depth=1) for p in (profile, "fate-2"))
    ids = view.received("own_pair", "all").rows.unique().numpy()
    for mixed, told in zip(*(list_nodes(v, ids) for v in (view, open_)), strict=True):
        assert np.allclose(mixed.sums, told.sums[..., :2], atol=1e-9)
        raw = view.received("histogram", "all").tensor[0].reshape(4, -1, 2)
        assert not np.allclose(np.diff(raw, axis=1, prepend=0), told.sums[..., :2])


@pytest.mark.parametrize("profile", ["fate-2", "paper"])
@pytest.mark.parametrize("marks", [20, 50])
def test_marks_name_the_bin_of_each_marked_row(profile: str, marks: int) -> None:
    """1,200 and 3,000 cells of 15 trees and 4 columns; scored on other rows it tells nothing."""
    task = small_task(0, n=2000, widths=(3, 4))
    view = look(task, "active", marks=marks, trees=15, profile=profile)
    ids, found = pin_bins(view, marked=True)
    told = found >= 0
    assert told.sum() == 15 * 4 * marks
    assert np.array_equal(found[told], find_bins(task, ids)[told])
    guess = registry.attacks.create("bin_sums", {"marks": marks}).infer(view, torch.Generator())
    order = np.random.default_rng(0).permutation(len(guess.rows))
    assert r2(guess, task, "passive1") > r2(guess, task, "passive1", order) + 0.1


def test_an_honest_party_and_no_marks_are_the_same() -> None:
    made = registry.attacks.create("bin_sums")
    assert made.policy() is None
    assert not made.needs_own_training
    assert registry.attacks.create("bin_sums", {"marks": 1}).needs_own_training


def test_a_grid_of_gradients_leaves_room_for_few_marks() -> None:
    """1 + log2(1 / s) rows a tree, which are read as before; k_anonymous is no bar to marks."""
    task = small_task(0, n=2000, widths=(3, 4))
    for strength, left in ((2.0**-4, 5), (1.0, 1)):
        view = look(task, "active", "range_check", strength, marks=50)
        ids, found = pin_bins(view, marked=True)
        assert (found >= 0).sum() == 10 * 4 * left
        assert np.array_equal(found[found >= 0], find_bins(task, ids)[found >= 0])
    ids, found = pin_bins(look(task, "active", "k_anonymous", 40.0, marks=50), marked=True)
    off = (found - find_bins(task, ids))[found >= 0]
    assert (found >= 0).sum() >= 10 * 4 * 45
    assert off.min() >= 0
    assert off.mean() < 2
    view = look(task, "active", "histogram_noise", 0.1, marks=50)
    assert (pin_bins(view, marked=True)[1] >= 0).sum() == 0


def test_gradients_in_the_open_have_no_sums() -> None:
    view = look(small_task(0), "active", profile="xgboost-open")
    assert registry.attacks.create("bin_sums").applicable(view.facts)


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


def test_a_list_is_a_message_about_labels_where_rows_are_sampled_alone() -> None:
    assert not [k for k in look(rare(), "passive1", aux=0).tables if k[1] == "sample_list"]
    for top, kind in ((1.0, "ids"), (0.2, "sample_list")):
        sends = registry.algorithms.create("secureboost", {"top": top}).sends
        assert {k for k, *_ in sends} & {"ids", "sample_list"} == {kind}
