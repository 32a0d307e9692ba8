"""Defenses of trees hold in the view that they name, and fail in the one where they do not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from vflsec.core.privacy_usage import RunFacts, Uses
from vflsec.core.task import Stack, Task
from vflsec.core.view import View
from vflsec.defenses.id_lmid import measure_divergence
from vflsec.errors import ConfigError
from vflsec.inference.leaf_groups import find_leaves
from vflsec.plugins import registry
from vflsec.specs import AttackSpec, CellSpec, DefenseSpec
from vflsec.testing import small_task, train
from vflsec.testing.worlds import Trained
from vflsec.train.cohort import Training
from vflsec.train.views import make_view

FORMS = [
    ("passive1", "received", "partition", "all"), ("passive1", "sent", "partition", "all"),
    ("passive1", "received", "gradient_pair", "all"),
]  # fmt: skip


def with_copy(noise: float = 0.0) -> Task:
    """The active party holds a copy of the label, a share of it replaced by coins."""
    task = small_task(0, n=800)
    coin = torch.rand(len(task.y), generator=torch.Generator().manual_seed(0)) < noise
    other = torch.randint(2, (len(task.y),), generator=torch.Generator().manual_seed(1))
    x = {**task.x, "active": task.x["active"].clone()}
    x["active"][:, 0] = torch.where(coin, other, task.y).float()
    return replace(task, x=x)


def defended(task: Task, defense: str, strength: float, **params: Any) -> Trained:
    """Trained with the defense off in replica 0, and on in replica 1."""
    policy = registry.defenses.create(defense)
    on = {"active": [(policy, torch.tensor([0.0, strength], dtype=torch.float64))]}
    algorithm = registry.algorithms.create("secureboost", {"trees": 10} | params)
    return train(algorithm, Stack.build({0: task}, [0, 0]), [0, 0], on, wanted=FORMS)


def look(trained: Trained, r: int = 1, known: int = 20) -> View:
    spec = AttackSpec("", adversary=("passive1",), known_rows=known)
    return make_view(trained.algorithm, trained.fed, {}, spec, r)


def vote(trained: Trained, r: int = 1) -> float:
    """AUC of leaf_vote; 0.5 where the view tells nothing of any leaf."""
    view = look(trained, r)
    if not any(k[1] == "partition" and len(t) for k, t in view.tables.items()):
        return 0.5
    guess = registry.attacks.create("leaf_vote").infer(view, torch.Generator())
    y = trained.fed.stack.tasks[0].y[torch.from_numpy(guess.rows)]
    return float(roc_auc_score(y, guess.scores))


def list_row_sets(view: View, task: Task) -> tuple[np.ndarray, np.ndarray]:
    """Class counts (m, 2) of all row sets that a view tells, and of all rows (2,).

    The rows that stay at a node when others are told of a child are a set, too.
    """
    leaves = find_leaves(view)
    y = task.y[leaves.rows].numpy()
    out = []
    for column in leaves.nodes.T.numpy():
        sets: dict[int, list[int]] = {}
        for node, label in zip(column, y, strict=True):
            while True:  # a row of a node is one of all nodes above it
                sets.setdefault(int(node), []).append(int(label))
                if node == 0:
                    break
                node = (node - 1) // 2
        out += [np.bincount(s, minlength=2) for s in sets.values()]
        out += [np.bincount(y[column == node], minlength=2) for node in np.unique(column)]
    total = np.bincount(task.y[task.sets["labelled"]].numpy(), minlength=2)
    return np.array(out, dtype=float), total.astype(float)


def obeys(counts: np.ndarray, total: np.ndarray, defense: str, strength: float) -> np.ndarray:
    """Which row sets keep within the limit of a defense, (m,)."""
    prior = total / total.sum()
    if defense == "id_lmid":
        inside = measure_divergence(counts, prior)
        outside = measure_divergence(total - counts, prior)
        return np.maximum(inside, outside) <= 1 / strength + 1e-9
    return counts.max(1) / counts.sum(1) <= 1 - strength * (1 - prior.max()) + 1e-9


@pytest.mark.parametrize(("defense", "strength"), [("id_lmid", 10.0), ("purity_limit", 0.6)])
def test_row_sets_that_are_shown_obey_the_limit(defense: str, strength: float) -> None:
    """All of them in the paper's view; under FATE some do not, and the label is as open as ever."""
    task = with_copy(0.7)
    held = {}
    for profile in ("paper", "secretflow", "fate-2"):
        trained = defended(task, defense, strength, profile=profile, trees=4)
        counts, total = list_row_sets(look(trained), task)
        kept = obeys(counts, total, defense, strength)
        held[profile] = kept.all(), vote(trained), vote(trained, 0)
        assert len(counts) > 4, "nothing was shown, so that nothing was tested"
    assert held["paper"][0]
    assert held["secretflow"][0]
    assert not held["fate-2"][0]
    assert held["fate-2"][1] > 0.75
    assert held["paper"][1] < held["paper"][2] - 0.05


def test_the_rows_that_a_tree_is_grown_on_are_a_row_set() -> None:
    """By a prior below 1/2 the largest gradients are those of the rarer class alone."""
    task = with_copy()
    y = task.y.clone()
    y[task.x["active"][:, 1] > -0.5] = 0
    task = replace(task, y=y)
    params = {"profile": "paper", "base": "prior", "top": 0.05, "other": 0.0, "trees": 1}
    forms = [("passive1", "received", "sample_list", "all")]
    got = []
    for strength in (0.0, 20.0):
        on = (registry.defenses.create("id_lmid"), torch.tensor([strength], dtype=torch.float64))
        algorithm = registry.algorithms.create("secureboost", params)
        stack = Stack.build({0: task}, [0])
        trained = train(algorithm, stack, [0], {"active": [on]}, wanted=forms)
        tables = trained.fed.channel.recorder.tables(0, ["passive1"], "train")
        got.append(tables.get((*forms[0][1:], "passive1")))
    assert bool((y[got[0].rows] == 1).all())
    assert got[1] is None


def test_row_sets_that_are_shown_are_of_k_rows_in_the_view_that_is_named() -> None:
    """Under FATE's the leaves of the active party's own splits are smaller."""
    least = {}
    for profile in ("paper", "secretflow", "fate-2"):
        trained = defended(small_task(0, n=800), "k_anonymous", 40.0, profile=profile, trees=4)
        counts, _ = list_row_sets(look(trained), trained.fed.stack.tasks[0])
        least[profile] = counts.sum(1).min()
    assert least["paper"] >= 40
    assert least["secretflow"] >= 40
    assert least["fate-2"] < 40


TREES = ("local_trees", "label_dp", "lp_mst", "grafting", "id_lmid", "purity_limit", "k_anonymous",
         "histogram_noise", "range_check")  # fmt: skip


@pytest.mark.parametrize("name", TREES)
def test_at_strength_0_not_a_bit_changes(name: str) -> None:
    """Neither of what crosses nor of answers, while another replica is treated."""
    policy = registry.defenses.create(name)
    owners = {"active": ("active",), "passive": ("passive1",), "all": ("active", "passive1")}
    strengths = torch.tensor([0.0, max(policy.trial)], dtype=torch.float64)
    on = {p: [(policy, strengths)] for p in owners[policy.owner]}
    forms = [*FORMS, ("active", "received", "histogram", "all"),
             ("active", "received", "own_pair", "all")]  # fmt: skip
    algorithm = registry.algorithms.create("secureboost", {"trees": 3})
    stack = Stack.build({0: small_task(0)}, [0, 0])
    defended, plain = (train(algorithm, stack, [0, 0], p, wanted=forms) for p in (on, None))
    for party in ("active", "passive1"):
        a, b = (t.fed.channel.recorder.tables(0, [party], "train") for t in (defended, plain))
        assert a.keys() == b.keys()
        assert a
        for key in a:
            assert torch.equal(a[key].tensor, b[key].tensor), key
            assert torch.equal(a[key].rows, b[key].rows), key
    sent = [
        sorted(tuple(map(str, row.values())) for row in t.fed.channel.ledger.of(0)
               if row["messages"])
        for t in (defended, plain)
    ]  # fmt: skip
    assert sent[0] == sent[1]
    rows = stack.rows("test")
    answers = [t.algorithm.predict(t.fed, rows)[0] for t in (defended, plain)]
    assert torch.equal(*answers)


@pytest.mark.parametrize(("defense", "strength"), [("id_lmid", 200.0), ("purity_limit", 1.0)])
def test_a_copy_of_the_label_is_hidden_from_the_view_it_names_alone(
    defense: str, strength: float
) -> None:
    task = with_copy()
    assert vote(defended(task, defense, strength, profile="paper")) < 0.65
    assert vote(defended(task, defense, strength, profile="fate-2")) == 1.0


def test_local_trees_are_not_shown_and_the_others_tell_as_much() -> None:
    task = with_copy(0.4)
    trained = defended(task, "local_trees", 2.0)
    shown, whole = (find_leaves(look(trained, *r)).trees for r in ((), (0,)))
    assert torch.equal(shown, whole[2:])
    assert len(whole) == 10
    assert vote(trained) > vote(trained, 0) - 0.05
    rows = trained.fed.channel.ledger.of(1)
    pairs = next(r for r in rows if r["name"] == "gradient_pair")
    assert pairs["messages"] == 8


@pytest.mark.parametrize("profile", ["paper", "fate-2", "secretflow", "xgboost-open"])
def test_all_trees_local_sends_nothing(profile: str) -> None:
    trained = defended(small_task(0), "local_trees", 10.0, profile=profile)
    sent = [r for r in trained.fed.channel.ledger.of(1) if r["messages"]]
    assert sent == []
    assert [r for r in trained.fed.channel.ledger.of(0) if r["messages"]]
    with pytest.raises(ConfigError, match="a whole number"):
        registry.defenses.create("local_trees").check_strength(1.5)


def test_randomised_labels_hide_the_label_and_not_the_partition() -> None:
    """Plain gradients tell the randomised label, not the true one; leaves tell the true one."""
    task = with_copy()
    trained = defended(task, "label_dp", 1.0, profile="xgboost-open")
    labels = trained.fed.labels[1]
    guess = registry.attacks.create("gradient_pair").infer(look(trained), torch.Generator())
    rows = torch.from_numpy(guess.rows)
    told = torch.from_numpy(guess.scores > 0).long()
    assert torch.equal(told, labels[rows])
    right = float((told == task.y[rows]).double().mean())
    keep = np.e / (np.e + 1)
    assert abs(right - keep) < 4 * np.sqrt(keep * (1 - keep) / len(rows))
    assert vote(trained) > 0.95


def test_labels_released_in_stages_hide_the_partition_no_better() -> None:
    trained = defended(with_copy(), "lp_mst", 1.0, trees=4)
    rows = trained.fed.stack.rows("labelled")[0]
    assert not torch.equal(trained.fed.labels[1][rows], trained.fed.labels[0][rows])
    assert vote(trained) > 0.95


@pytest.mark.parametrize("profile", ["paper", "fate-2"])
def test_what_is_said_of_every_defense_names_the_profile(profile: str) -> None:
    defenses = tuple(DefenseSpec(name, strength=1.0) for name in ("local_trees", "histogram_noise"))
    settings = {"profile": profile, "trees": 2}
    cell = CellSpec({"name": "small"}, "secureboost", settings, defenses)
    training = Training([cell], (), {0: small_task(0, n=80)}, torch.device("cpu"))
    for _ in training.run(predictions=False):
        pass
    assert all(f"Profile: {profile}." in row.says for row in training.guarantees(0))
    assert f"Profile {profile} " in registry.algorithms.create("secureboost", settings).settled()


@pytest.mark.parametrize(("profile", "words"), [
    ("fate-2", "the profile fate-2 shows every party the node of every row"),
    ("paper", "it holds for the row sets that passive parties help to split"),
])  # fmt: skip
def test_claims_name_the_profile(profile: str, words: str) -> None:
    for name in ("id_lmid", "purity_limit"):
        found = registry.defenses.create(name).guarantee(1.0, RunFacts(profile=profile))
        assert found.epsilon is None
        assert words in found.sentence()


def test_grafts_are_hidden_where_own_branches_are_and_told_in_the_view_of_all_nodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At an epsilon of 0.1 labels are coins: a copy of the true ones tells itself by grafts alone.

    In the paper's view not a bit depends on them, and in FATE's no epsilon is claimed.
    """
    task, test = with_copy(), small_task(0, n=800).sets["test"]
    votes, right = {}, {}
    for profile in ("paper", "fate-2"):
        trained = defended(task, "grafting", 10.0, profile=profile)
        votes[profile] = vote(trained)
        answers = trained.algorithm.predict(trained.fed, test.expand(2, -1))[1]
        right[profile] = float((answers.argmax(1) == task.y[test]).double().mean())
        told = registry.defenses.create("grafting").guarantee(
            10.0, RunFacts(uses=Uses(counted=1), profile=profile)
        )
        assert (told.epsilon is None) == (profile == "fate-2")
        with monkeypatch.context() as bare:
            bare.setattr(registry.defenses.get("grafting"), "regrow", lambda self, own: None)
            same = look(defended(task, "grafting", 10.0, profile=profile))
        tables = look(trained).tables
        assert same.tables.keys() == tables.keys()
        equal = [torch.equal(tables[k].tensor, same.tables[k].tensor) for k in tables]
        assert all(equal) == (profile == "paper")
    assert votes["fate-2"] > max(0.9, votes["paper"] + 0.1)
    assert right["paper"] == right["fate-2"] > 0.9
