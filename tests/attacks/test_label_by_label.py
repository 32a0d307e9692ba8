"""Attacks on one of several labels: the gradient by hand, known answers, nulls, refusals."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from cohorts import cohort
from sampled import sampled
from torch import Tensor

from vflsec.api import Trained, infer, measure, train
from vflsec.audit.metrics import score
from vflsec.audit.planted_leak import plant_leak
from vflsec.audit.truth import label_truth
from vflsec.core.channel import Recorder
from vflsec.core.federation import Federation
from vflsec.core.guess import Guess, Truth
from vflsec.core.rng import generator, numpy_generator
from vflsec.core.task import Stack, Task
from vflsec.data.prepare import make_task
from vflsec.epsilon.canaries import plant_labels
from vflsec.errors import ConfigError, ThreatModelError
from vflsec.plugins import registry
from vflsec.specs import AttackSpec, DefenseSpec
from vflsec.train.cohort import reassigned_task
from vflsec.train.views import make_view

LABELS = ("a", "b", "c")
PASSIVE = ("passive",)
ERROR = np.sqrt(601 / (12 * 300 * 300) / 3)
"""Of the mean over three seeds of an AUC on 600 balanced rows that knows nothing."""
MADE = (
    "norm", "direction", "hints", "similarity", "model_completion", "gradient_completion", "output",
    "direct", "message_completion", "zero_pattern", "joint_completion", "dictionary",
)  # fmt: skip
OF_TREES = ("gradient_pair", "leaf_vote", "leaf_weight")
OF_REGRESSIONS = ("glm_gradient",)


def tasks(seeds: int, rows: int = 600, **options: Any) -> dict[int, Task]:
    made = registry.datasets.create("several_gaussian", {"rows": rows, "test_rows": 300})
    return {s: make_task(made.load(s), s, **options) for s in range(seeds)}


@cache
def world(strength: float = 0.0, null: bool = False) -> Trained:
    section = {"name": "several_gaussian", "params": {"rows": 600, "test_rows": 300}}
    return train(
        section | ({"shuffle_labels": True} if null else {}), seeds=3, epochs=6,
        defenses={"iso": strength}, attacks=["direction"],
    )  # fmt: skip


def auc_of_each(trained: Trained, attack: str, **params: Any) -> dict[str, float]:
    """Mean over seeds of the AUC on training rows, by label, worked out from the columns."""
    found = {}
    for k, label in enumerate(LABELS):
        values = []
        for seed, task in trained.tasks.items():
            view = trained.view("passive", seed=seed, of_label=label)
            guess = infer(view, attack, **params)
            truth = task.values
            assert truth is not None
            rows = view.targets["train"].tolist()
            s = guess.scores if guess.scores.ndim == 1 else guess.scores[:, 1] - guess.scores[:, 0]
            of = dict(zip(guess.rows.tolist(), s.tolist(), strict=True))
            values.append(auc(np.array([of[i] for i in rows]), truth[rows, k].numpy() == 1))
        found[label] = float(np.mean(values))
    return found


def auc(s: Any, y: Any) -> float:
    pairs = s[y][:, None] - s[~y][None]
    return float((pairs > 0).mean() + (pairs == 0).mean() / 2)


def of_each(name: str, **params: Any) -> list[AttackSpec]:
    return [AttackSpec(name, params, PASSIVE, of_label=label) for label in LABELS]


def built(made: dict[int, Task], **settings: Any) -> tuple[Any, Federation]:
    stack = Stack.build(made, list(made), dtype=torch.float64)
    wanted = [("passive", "received", "gradient", "mean")]
    recorder = Recorder(wanted, len(made), len(made[0].y))
    fed = Federation.create(stack, list(made), None, recorder)
    algorithm = registry.algorithms.create("splitnn", {"hidden": [8], "cut": 4, **settings})
    algorithm.build(fed)
    fed.phase = "train"
    return algorithm, fed


def by_formula(fed: Federation, algorithm: Any, rows: Tensor) -> Tensor:
    """(1 / b L) sum_k (sigmoid(s_k) - y_k) W_k for the passive party's embedding, in numpy."""
    parts = [fed.parties[p].modules["bottom"](fed.columns(p, rows)) for p in ("active", "passive")]
    z = torch.cat(parts, dim=2).detach().numpy()
    top = {k: v.detach().numpy() for k, v in fed.active.modules["top"].state().items()}
    weight = next(v for v in top.values() if v.ndim == 3)  # (R, L, d)
    bias = next(v for v in top.values() if v.ndim == 2)
    s = np.einsum("rbd,rld->rbl", z, weight) + bias[:, None]
    y = np.stack([
        task.values[rows[r]].numpy() for r, task in enumerate(fed.stack.tasks)  # type: ignore[index]
    ])  # fmt: skip
    residual = 1 / (1 + np.exp(-s)) - y
    out = np.einsum("rbl,rld->rbd", residual, weight[:, :, -4:]) / (y.shape[1] * y.shape[2])
    return torch.from_numpy(out)


def test_the_gradient_at_the_cut_is_the_sum_over_labels() -> None:
    made = tasks(2, rows=200)
    algorithm, fed = built(made)
    rows = fed.stack.rows("labelled")[:, :32]
    batch = algorithm.up(fed, rows)
    _, (cut,) = algorithm.differentiate(fed, batch)
    assert cut.shape == (2, 32, 4)
    torch.testing.assert_close(cut, by_formula(fed, algorithm, rows), rtol=1e-10, atol=1e-14)


@pytest.mark.slow
def test_every_label_is_read_off_undefended_gradients_and_none_under_heavy_noise() -> None:
    assert min(auc_of_each(world(), "similarity").values()) > 0.95
    assert min(auc_of_each(world(), "direction", positives=5).values()) > 0.95
    found = auc_of_each(world(strength=50.0), "similarity")
    assert max(abs(v - 0.5) for v in found.values()) < 4 * ERROR


@pytest.mark.slow
def test_own_columns_with_the_same_known_rows_are_the_control_of_each_label() -> None:
    """They do not reach what gradients tell, and every label has controls of its own."""
    frame = measure(world(), "similarity", by_seed=True)
    frame = frame[(frame.metric == "auc") & (frame.seed == 0)].set_index("attack")
    best = [float(frame.control_value[f"similarity(label={x})"]) for x in LABELS]
    assert len(set(best)) == 3
    assert min(best) >= 0.5
    assert max(best) < 0.75
    assert frame.advantage.min() > 0.2


def test_summed_logits_tell_every_label_without_a_known_row() -> None:
    """The gradient of logit k is p_k - y_k: its sign is the label, whatever the others are."""
    bare: dict[str, Any] = {"top": [], "linear_top": False, "aggregation": "sum"}
    section = {"name": "several_gaussian", "params": {"rows": 200, "test_rows": 50}}
    trained = train(section, seeds=2, epochs=2, attacks=["direct"], **bare)
    for k, label in enumerate(LABELS):
        view = trained.view("passive", seed=1, of_label=label, known_rows=0)
        guess = infer(view, "direct")
        truth = trained.tasks[1].values
        assert truth is not None
        assert auc(guess.scores[:, 1] - guess.scores[:, 0], truth[guess.rows, k].numpy() == 1) == 1
    laid = plant_leak(
        trained.view("passive", seed=0, of_label="b"), label_truth(trained.tasks[0].of_label("b")),
        [0.5, 0.5], 0.5, generator(0, "dosing"),
    )  # fmt: skip
    before = trained.view("passive", seed=0, of_label="b")
    changed = laid.received("gradient").tensor != before.received("gradient").tensor
    rows = changed.any(dim=1)
    assert 0.3 < rows.double().mean() < 0.7
    values = trained.tasks[0].values
    assert values is not None
    at = laid.received("gradient").rows[rows]
    assert torch.equal(laid.received("gradient").tensor[rows, 1] < 0, values[at, 1] == 1)


def test_in_the_null_world_no_label_is_told() -> None:
    """Labels are permuted over rows, so gradients tell of the truth what chance does."""
    for name in ("similarity", "direction", "norm"):
        found = auc_of_each(world(null=True), name)
        assert max(abs(v - 0.5) for v in found.values()) < 4 * ERROR, name


def test_a_view_of_one_label_knows_this_label_of_the_granted_rows_and_no_other() -> None:
    made = tasks(2, rows=200)
    algorithm, fed = built(made)
    list(zip(range(1), algorithm.phases(fed), strict=False))
    granted = {}
    for k, label in enumerate(LABELS):
        spec = AttackSpec("norm", {}, PASSIVE, known_rows=20, of_label=label)
        view = make_view(algorithm, fed, {}, spec, 0)
        known, values = view.require_known(), made[0].values
        assert values is not None
        assert view.facts.classes == 2
        assert view.labels is None
        assert known.labels.dtype == torch.int64
        assert known.labels.tolist() == values[known.rows, k].tolist()
        assert known.labels.bincount().tolist() == [10, 10]
        assert view.require_prior().tolist() == made[0].of_label(label).prior.tolist()
        for rows in view.targets.values():
            assert not torch.isin(known.rows, rows).any()
        granted[label] = known.rows.tolist()
    assert granted["a"] != granted["b"]


def test_every_label_has_a_key_and_a_name_of_its_own() -> None:
    plain, named = AttackSpec("norm", {"epoch": "last"}, PASSIVE), of_each("norm", epoch="last")
    assert len({plain.key, *(s.key for s in named)}) == 4
    assert [s.label for s in named] == [f"norm(epoch=last, label={x})" for x in LABELS]
    assert plain.label == "norm(epoch=last)"


def test_a_label_beside_others_is_scored_as_it_would_be_alone() -> None:
    """The measure of one label is the AUC of the attack's answer against that column."""
    trained = world()
    frame = measure(trained, "norm", by_seed=True, known_rows=4)
    frame = frame[(frame.metric == "auc") & (frame.split == "train")]
    assert sorted(frame.attack) == sorted([f"norm(label={x})" for x in LABELS] * 3)
    view = trained.view("passive", seed=1, of_label="b", known_rows=4)
    guess = infer(view, "norm")
    values = trained.tasks[1].values
    assert values is not None
    rows = view.targets["train"].tolist()
    s = dict(zip(guess.rows.tolist(), guess.scores.tolist(), strict=True))
    expected = auc(np.array([s[i] for i in rows]), values[rows, 1].numpy() == 1)
    at = frame[(frame.attack == "norm(label=b)") & (frame.seed == 1)]
    assert at.value.tolist() == pytest.approx([expected])
    with pytest.raises(ThreatModelError, match="needs one label"):
        infer(trained.view("passive", seed=1), "direction")
    with pytest.raises(ThreatModelError, match="needs one label"):
        infer(trained.view("passive", seed=1), "cluster")


def test_a_returned_prediction_of_a_label_is_as_good_as_the_main_task() -> None:
    specs = [AttackSpec("output", {}, PASSIVE, known_rows=0, of_label=x) for x in LABELS]
    of = tasks(1, rows=300)
    (result,) = cohort(specs, of, main=True, epochs=3, returns_predictions=True)
    found = {m.attack: m.value for m in result.measures if m.attack and m.metric == "auc"}
    (main,) = [m for m in result.measures if (m.split, m.metric) == ("test", "macro_auc")]
    assert main.value is not None
    assert main.value > 0.6
    for label in LABELS:
        assert found[f"output(label={label})"] == pytest.approx(main.notes["auc"][label], abs=1e-6)


def test_attacks_that_cannot_take_labels_one_by_one_are_refused() -> None:
    facts = replace(make_facts(), classes=0)
    made = []
    for name in registry.attacks.names():
        try:
            attack = registry.attacks.create(name)
        except ConfigError:
            continue  # it needs settings
        if attack.target in ("label", "integrity", "membership"):
            assert attack.pointless(facts), name
        if attack.labelwise:
            made.append(name)
            assert attack.target == "label"
            bare = replace(facts, classes=2, top=False, aggregation="sum")
            assert not attack.pointless(bare)
            assert attack.each_label(LABELS) == LABELS
        else:
            assert attack.each_label(LABELS) == ("",)
    assert sorted(made) == sorted((*MADE, *OF_TREES, *OF_REGRESSIONS))


@pytest.mark.parametrize("attack", ["gradient_pair", "leaf_weight"])
def test_open_trees_tell_each_label(attack: str) -> None:
    """A round grows a tree for each label; that there were none was an error of every seed."""
    params = {"algorithm": "secureboost", "profile": "xgboost-open", "trees": 5}
    (result,) = cohort(of_each(attack), tasks(1, rows=200), **params)
    found = [m for m in result.measures if m.metric == "auc" and m.split == "train"]
    assert len(found) == len(LABELS)
    least = 1.0 if attack == "gradient_pair" else 0.6
    assert all((m.value or 0.0) >= least for m in found)


def make_facts() -> Any:
    algorithm = registry.algorithms.create("splitnn")
    return algorithm.planned_facts("active", ("active", "passive"), 3)


OTHER = {"several_gaussian": "several labels", "quantity_gaussian": "a quantity"}


def of_kind(dataset: str, rows: int) -> dict[int, Task]:
    made = registry.datasets.create(dataset, {"rows": rows, "test_rows": 300})
    return {0: make_task(made.load(0), 0)}


@pytest.mark.parametrize("dataset", OTHER)
@pytest.mark.parametrize("name", ["label_dp", "marvell", "mixup", "coae", "gradperturb"])
def test_a_defense_of_classes_is_refused(name: str, dataset: str) -> None:
    with pytest.raises(ConfigError, match=OTHER[dataset]):
        cohort([], of_kind(dataset, 100), [DefenseSpec(name, strength=0.1)])


@pytest.mark.parametrize(
    ("name", "dataset"),
    [("fedhssl", "quantity_gaussian"), *((n, "several_gaussian") for n in (
        "fedhssl", "fedcvt", "ushaped", "vflhlp", "pooled_logistic"))],
)  # fmt: skip
def test_an_algorithm_of_classes_is_refused(name: str, dataset: str) -> None:
    said = f"{name}: the label must be a class, got '{OTHER[dataset]}"
    with pytest.raises(ConfigError, match=said):
        cohort([], of_kind(dataset, 100), algorithm=name)


@pytest.mark.parametrize(
    "name",
    sampled([
        n for n in registry.defenses.names()
        if registry.defenses.get(n).quantities and registry.defenses.get(n).strengths  # type: ignore[attr-defined]
    ], every=4),
)  # fmt: skip
def test_a_defense_of_messages_is_applied(name: str) -> None:
    """At strength 0 the training is the undefended one; at a strength its figures are others."""
    kind: Any = registry.defenses.get(name)
    params = {"algorithm": "splitnn", **({} if kind.world.get("algorithm") else {"epochs": 2}),
              **kind.world}  # fmt: skip
    found = []
    for on in ([], *([DefenseSpec(name, strength=x)] for x in (0.0, kind.trial[1]))):
        (result,) = cohort([], tasks(1, rows=100), on, main=True, **params)
        found.append([m.value for m in result.measures if m.metric == "macro_auc"])
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize("dataset", OTHER)
def test_without_a_peer_it_is_the_active_party_alone_bit_for_bit(dataset: str) -> None:
    made, metrics = of_kind(dataset, 200), ("macro", "r2", "mae")
    alone = replace(made[0], parties=("active",))
    figures = []
    for name, given in (("local", made), ("splitnn", {0: alone})):
        (result,) = cohort([], given, main=True, algorithm=name, epochs=3)
        figures.append([m.value for m in result.measures if m.metric.startswith(metrics)])
    assert figures[0] == figures[1]
    assert len(figures[0]) == 4


def test_label_canaries_have_all_ones_or_all_zeros() -> None:
    task = tasks(1, rows=200)[0]
    changed, planted = plant_labels(task, 3)
    assert changed.values is not None
    assert task.values is not None
    told = changed.values[planted.rows]
    assert torch.equal(told, planted.coins.double().unsqueeze(1).expand(-1, 3))
    others = torch.ones(len(task.y), dtype=torch.bool)
    others[planted.rows] = False
    assert torch.equal(changed.values[others], task.values[others])


def test_a_reassigned_task_deals_labels_and_values_out_anew() -> None:
    """Row by row within each set, so that shares stay and nothing of the truth does."""
    of_values = registry.datasets.create("quantity_gaussian", {"rows": 200, "test_rows": 50})
    for task in (tasks(1, rows=200)[0], make_task(of_values.load(0), 0)):
        given, values = reassigned_task(task, 0).given, task.values
        assert given is not None
        assert values is not None
        assert given.shape == values.shape
        for name in ("labelled", "validation", "test"):
            told, true = given[task.sets[name]], values[task.sets[name]]
            assert not torch.equal(told, true)
            flat = [t.reshape(len(t), -1).tolist() for t in (told, true)]
            assert sorted(flat[0]) == sorted(flat[1])


def test_a_cell_does_not_depend_on_its_company() -> None:
    made = tasks(3, rows=100)
    specs = [replace(s, known_rows=0) for s in of_each("norm")]
    together, (alone,) = (
        cohort(specs, of, main=True, algorithm="fedbcd", epochs=2) for of in (made, {2: made[2]})
    )
    assert [m.value for m in alone.measures] == [m.value for m in together[2].measures]


def macro(scores: Any, y: Any) -> dict[str, Any]:
    rows = np.arange(len(y))
    found = score(Guess("labels", rows, scores), Truth("labels", rows, y), rows, classes=0,
                  prior=np.nanmean(y, axis=0))  # fmt: skip
    return {s.metric: s for s in found}


def test_macro_figures_are_means_over_labels() -> None:
    from sklearn.metrics import roc_auc_score

    g = numpy_generator(0, "macro")
    y = (g.random((400, 3)) < [0.5, 0.2, 0.05]).astype(float)
    s = 1.5 * y + g.standard_normal(y.shape)
    found = macro(s, y)
    expected = np.mean([roc_auc_score(y[:, k], s[:, k]) for k in range(3)])
    assert found["macro_auc"].value == pytest.approx(expected)
    assert found["macro_auc"].chance == 0.5
    assert found["macro_accuracy"].value == pytest.approx(((s > 0) == (y == 1)).mean())
    share = y.mean(0)
    assert found["macro_accuracy"].chance == pytest.approx(np.maximum(share, 1 - share).mean())
    y[:, 2] = 0  # one value only: left out
    expected = np.mean([roc_auc_score(y[:, k], s[:, k]) for k in range(2)])
    assert macro(s, y)["macro_auc"].value == pytest.approx(expected)
    y[:] = 1
    assert macro(s, y)["macro_auc"].value is None


def test_the_interval_of_a_macro_auc_counts_a_row_once() -> None:
    """Labels that are copies of one another tell no more than one; it covers 0.5 as it says."""
    g = numpy_generator(1, "macro")
    covered, copies = 0, []
    for _ in range(300):
        y = np.repeat((g.random((120, 1)) < 0.4).astype(float), 4, axis=1)
        s = np.repeat(g.standard_normal((120, 1)), 4, axis=1)
        found = macro(s, y)["macro_auc"]
        one = macro(s[:, :2], y[:, :2])["macro_auc"]
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= 0.5 <= found.high
        copies.append((found.high - found.low) / (one.high - one.low))  # type: ignore[operator]
    assert np.mean(copies) == pytest.approx(1.0, abs=1e-9)
    assert 0.91 < covered / 300 < 0.985  # 0.95 +- 3 sqrt(0.95 0.05 / 300)


def test_a_label_of_one_value_among_the_scored_rows_is_left_out_and_said() -> None:
    made = tasks(1, rows=200)
    values = made[0].values
    assert values is not None
    changed = values.clone()
    changed[made[0].sets["test"], 1] = 0.0
    (result,) = cohort([], {0: replace(made[0], values=changed)}, main=True, epochs=2)
    (m,) = [m for m in result.measures if (m.split, m.metric) == ("test", "macro_auc")]
    assert m.notes["left_out"] == ["b"]
    assert m.notes["auc"]["b"] is None
    others = [m.notes["auc"][x] for x in ("a", "c")]
    assert m.value == pytest.approx(np.mean(others))
