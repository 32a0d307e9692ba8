"""Attacks on boosted trees: known answers, budgets, and what each profile gives away."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from vflsec.attacks.leaf_graph import find_communities
from vflsec.core.task import Stack, Task
from vflsec.core.view import View
from vflsec.errors import ThreatModelError
from vflsec.label import Quantity
from vflsec.plugins import registry
from vflsec.specs import AttackSpec
from vflsec.testing import small_task, train
from vflsec.train.views import make_view

FORMS = [
    ("passive1", "received", "partition", "all"), ("passive1", "sent", "partition", "all"),
    ("passive1", "received", "gradient_pair", "all"), ("passive1", "received", "tree", "all"),
]  # fmt: skip


def look(task: Task, *, known: int = 20, name: str = "", **params: Any) -> View:
    """What passive1 has of one training on a task."""
    algorithm = registry.algorithms.create("secureboost", params)
    trained = train(algorithm, Stack.build({0: task}, [0, 0]), [0, 0], wanted=FORMS)
    spec = AttackSpec(name, adversary=("passive1",), known_rows=known)
    return make_view(algorithm, trained.fed, {}, spec, 0)


def attack(view: View, name: str, **params: Any) -> Any:
    made = registry.attacks.create(name, params)
    return made.infer(view, torch.Generator().manual_seed(0))


def auc(guess: Any, task: Task) -> float:
    return float(roc_auc_score(task.y[torch.from_numpy(guess.rows)], guess.scores))


def with_copy(seed: int = 0) -> Task:
    """The active party holds a copy of the label: every row set of its splits is pure."""
    task = small_task(seed)
    x = {**task.x, "active": task.x["active"].clone()}
    x["active"][:, 0] = task.y.float()
    return replace(task, x=x)


@pytest.mark.parametrize("params", [
    {}, {"by": "model"}, {"by": "model", "beside": True},
])  # fmt: skip
def test_two_known_rows_tell_all_labels_where_leaves_are_pure(params: dict[str, Any]) -> None:
    task = with_copy()
    known = 2 if not params else 10
    guess = attack(look(task, known=known), "leaf_vote", **params)
    assert auc(guess, task) == 1.0
    assert len(guess.rows) == len(task.sets["labelled"]) - known


def test_a_column_that_is_missing_for_one_class_is_the_label() -> None:
    """The way of missing values at a split is learnt; as the mean it would tell less."""
    task, found = small_task(0), {}
    noise = torch.randn(task.x["passive1"].shape, generator=torch.Generator().manual_seed(5))
    noise[task.y == 1, 0] = 0.0
    gaps = torch.zeros_like(noise, dtype=torch.bool)
    gaps[task.y == 1, 0] = True
    for told in ({}, {"passive1": gaps}):
        world = replace(task, x={**task.x, "passive1": noise}, missing=told)
        guess = attack(look(world, trees=1, depth=1, bins=8), "leaf_vote")
        found[bool(told)] = auc(guess, world)
    assert found[True] == 1.0 > found[False]


def test_what_is_not_shown_is_not_told() -> None:
    """The only split is the active party's: FATE shows its sides, the paper's protocol does not."""
    task = with_copy()
    shown = attack(look(task, depth=1), "leaf_vote")
    assert auc(shown, task) == 1.0
    with pytest.raises(ThreatModelError, match="'partition' in form 'all'"):
        attack(look(task, depth=1, profile="paper"), "leaf_vote")


def test_own_splits_count_too() -> None:
    """In the paper's protocol the last level is known of own splits alone, which the host sent."""
    task = small_task(0, signal=6.0)
    view = look(task, profile="paper", depth=2)
    less = {k: t for k, t in view.tables.items() if k[0] == "received"}
    whole, part = attack(view, "leaf_vote"), attack(replace(view, tables=less), "leaf_vote")
    assert auc(whole, task) > auc(part, task) + 0.01


def test_votes_are_the_share_of_known_company() -> None:
    """By hand: of three rows at a node with two known ones, and one elsewhere."""
    view = look(with_copy(), known=4)
    guess = attack(view, "leaf_vote")
    table = view.received("partition", "all")
    nodes: list[dict[int, int]] = [{} for _ in range(10)]  # by tree, of each row
    told = (table.rows.tolist(), table.tensor.flatten().tolist(), table.step.tolist())
    for row, node, step in zip(*told, strict=True):
        if step >= 30:
            continue
        nodes[step // 3][row] = max(int(node), nodes[step // 3].get(row, 0))
    for row, score in list(zip(guess.rows, guess.scores, strict=True))[:20]:
        votes, weight = 0.0, 0.0
        for at in nodes:
            for k, y in zip(view.known.rows.tolist(), view.known.labels.tolist(), strict=True):
                same = at[k] == at[int(row)]
                votes, weight = votes + same * (2 * y - 1), weight + same
        assert abs(score - votes / max(weight, 1e-12)) < 1e-9


@pytest.mark.parametrize(("classes", "params"), [
    (2, {}), (2, {"base": "prior"}), (4, {}), (2, {"top": 0.3, "other": 0.2}),
])  # fmt: skip
def test_open_gradients_are_the_labels(classes: int, params: dict[str, Any]) -> None:
    task = small_task(0, classes=classes, widths=(5, 6))
    view = look(task, profile="xgboost-open", known=0, **params)
    guess = attack(view, "gradient_pair")
    y = task.y[torch.from_numpy(guess.rows)].numpy()
    if classes == 2:
        assert ((guess.scores > 0) == (y == 1)).all()
    else:
        assert (guess.scores.argmax(1) == y).all()


def test_open_gradients_of_a_quantity_are_its_values() -> None:
    task = small_task(0)
    values = torch.randn(len(task.y), 1, dtype=torch.float64)
    task = replace(task, label=Quantity(), values=values.squeeze(1), y=torch.zeros_like(task.y))
    guess = attack(look(task, profile="xgboost-open"), "gradient_pair")
    assert np.allclose(guess.scores, values.squeeze(1)[torch.from_numpy(guess.rows)], atol=1e-5)


def test_leaf_weights_count_positives() -> None:
    task = small_task(0)
    view = look(task, profile="xgboost-open", known=0)
    told = attack(view, "leaf_weight")
    table = view.received("partition", "all").take(view.received("partition", "all").step == 2)
    for node, positives in told.notes["positives"].items():
        rows = table.rows[table.tensor == int(node)]
        assert abs(positives - int(task.y[rows].sum())) < 1e-3
    assert auc(told, task) > 0.9


@pytest.mark.parametrize("profile", ["paper", "fate-2", "secretflow"])
def test_no_weight_is_shown_elsewhere(profile: str) -> None:
    view = look(small_task(0), profile=profile)
    if profile == "paper":
        with pytest.raises(ThreatModelError):
            attack(view, "leaf_weight")
    else:
        assert "no leaf weight" in registry.attacks.create("leaf_weight").declines(view)


@pytest.mark.parametrize(("name", "params"), [
    ("leaf_vote", {}), ("leaf_vote", {"by": "model"}), ("leaf_graph", {}), ("gradient_pair", {}),
    ("leaf_weight", {}), ("leaf_counts", {}),
])  # fmt: skip
def test_against_the_truth_of_other_rows_it_is_at_chance(name: str, params: dict[str, Any]) -> None:
    """Labels are permuted after the training, those that the attacker knows with them."""
    task, rng = with_copy(), np.random.default_rng(0)
    view = look(task, profile="xgboost-open", known=0 if name != "leaf_vote" else 20)
    assert abs(auc(attack(view, name, **params), task) - 0.5) > 0.4
    found = []
    for _ in range(20):
        y = torch.from_numpy(rng.permutation(task.y.numpy()))
        known = view.known and replace(view.known, labels=y[view.known.rows])
        found.append(auc(attack(replace(view, known=known), name, **params), replace(task, y=y)))
    n = len(task.sets["labelled"])
    assert abs(np.mean(found) - 0.5) < 5 * np.sqrt((n + 1) / (3 * n * n)) / np.sqrt(20)


def test_in_a_sealed_world_trees_tell_what_they_memorised_alone() -> None:
    """No column says anything of the label: chance on other rows' truth, not on that of these."""
    task = small_task(0, n=600)
    y = torch.randint(2, task.y.shape, generator=torch.Generator().manual_seed(3))
    task = replace(task, y=y)
    view = look(task, known=40, depth=5)
    rng, found = np.random.default_rng(1), []
    for _ in range(20):
        other = torch.from_numpy(rng.permutation(y.numpy()))
        known = replace(view.known, labels=other[view.known.rows])
        found.append(auc(attack(replace(view, known=known), "leaf_vote"), replace(task, y=other)))
    assert abs(np.mean(found) - 0.5) < 0.03
    assert auc(attack(view, "leaf_vote"), task) > 0.55


def test_communities_are_cliques() -> None:
    """Four cliques joined by single edges; and the same where rows come as weighted groups."""
    w = np.zeros((40, 40))
    for k in range(4):
        w[10 * k : 10 * k + 10, 10 * k : 10 * k + 10] = 1.0
        w[10 * k, (10 * k + 10) % 40] = w[(10 * k + 10) % 40, 10 * k] = 1.0
    np.fill_diagonal(w, 0)
    order = np.random.default_rng(0).permutation(40)
    found = find_communities(w[np.ix_(order, order)])
    assert found.max() == 3
    assert len({(a, b) for a, b in zip(found, order // 10, strict=True)}) == 4
    groups = np.array([[100.0, 1, 0], [1, 100.0, 1], [0, 1, 100.0]])
    assert find_communities(groups).tolist() == [0, 1, 2]


def test_graph_names_classes_without_a_known_label() -> None:
    """With one class rarer, sizes name the two clusters."""
    task = with_copy()
    y = task.y.clone()
    y[task.x["active"][:, 1] > -0.5] = 0
    x = {**task.x, "active": task.x["active"].clone()}
    x["active"][:, 0] = y.float()
    task = replace(task, y=y, x=x)
    for name in ("leaf_graph", "leaf_counts"):
        assert auc(attack(look(task, known=0), name), task) == 1.0
