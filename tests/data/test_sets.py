"""Built-in data sets: their shapes, and that each world leaks as much as its docstring says."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from vflsec.core.task import Task
from vflsec.data.prepare import make_task
from vflsec.errors import ConfigError
from vflsec.plugins import registry

NAMES = (
    "alike", "breast_cancer", "control_gaussian", "digits", "imitation", "leaky", "sealed",
    "two_views",
)  # fmt: skip
WORLDS = ("alike", "control_gaussian", "imitation", "leaky", "sealed", "two_views")
SWEPT = {"alike": {"noise": 0.5}, "imitation": {"noise": 0.5}, "two_views": {"nuisance": 1.0}}


def load(name, seed=0, **params):
    return registry.datasets.create(name, params).load(seed)


def task(name, seed=0, options=None, **params) -> Task:
    return make_task(load(name, seed, **params), seed, **(options or {}))


def test_every_set_is_registered_with_summary_and_source():
    assert set(NAMES) <= set(registry.datasets.names())
    for name in NAMES:
        entry = registry.datasets.entry(name)
        assert entry.summary.endswith(".")
        assert len(entry.source) > 20
        assert "sound audit finds" in entry.doc
    assert registry.datasets.entry("bcw").name == "breast_cancer"


@pytest.mark.parametrize("name", NAMES)
def test_sets_make_stackable_tasks(name):
    one, two = task(name, 0), task(name, 1)
    assert {k: len(v) for k, v in one.sets.items()} == {k: len(v) for k, v in two.sets.items()}
    assert one.parties == ("active", "passive")
    assert one.schema == two.schema
    assert torch.isfinite(one.x["passive"]).all()
    assert load(name, 0).digest == load(name, 1).digest
    assert len(load(name).digest) == 64


@pytest.mark.parametrize("name", WORLDS)
def test_worlds_differ_by_seed_and_repeat(name):
    a, b, c = load(name, 0), load(name, 0), load(name, 1)
    np.testing.assert_array_equal(a.parties["passive"].values, b.parties["passive"].values)
    np.testing.assert_array_equal(a.y, b.y)
    assert not np.array_equal(a.y, c.y)
    assert load(name, 0, **SWEPT.get(name, {"positive_rate": 0.3})).digest != a.digest


def test_breast_cancer_is_what_scikit_learn_gives(monkeypatch):
    """Read from its file; asked for by its function where there is no such file."""
    from sklearn.datasets import load_breast_cancer

    bunch = load_breast_cancer()
    parties = load("breast_cancer", parties=2, split="all").parties
    names = [*parties["passive"].names, *parties["active"].names]
    assert names == [n.replace(" ", "_") for n in bunch.feature_names]
    ours = np.hstack([parties["passive"].values, parties["active"].values])
    np.testing.assert_array_equal(ours, bunch.data)
    np.testing.assert_array_equal(load("breast_cancer").y, 1 - bunch.target)
    made = registry.datasets.create("breast_cancer")
    usual = made.load(0).digest
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert made.load(0).digest == usual


def test_breast_cancer_halves():
    source = load("breast_cancer")
    assert len(source.y) == 569
    assert source.y.sum() == 212
    assert source.class_names == ("benign", "malignant")
    passive, active = source.parties["passive"], source.parties["active"]
    assert len(passive.names) == len(active.names) == 14
    assert passive.names[0] == "mean_radius"
    assert active.names[-1] == "worst_concave_points"
    three = load("breast_cancer", parties=3, split="all").parties
    assert {p: len(d.names) for p, d in three.items()} == {
        "active": 10, "passive1": 10, "passive2": 10,
    }  # fmt: skip
    assert not set(three["active"].names) & set(three["passive1"].names)


def test_digits_as_tables_and_as_images():
    tables, images = load("digits"), load("digits", as_images=True)
    assert len(tables.y) == 1797
    assert len(tables.parties["passive"].names) == 32
    assert images.parties["active"].values.shape == (1797, 1, 8, 4)
    np.testing.assert_array_equal(
        tables.parties["passive"].values,
        images.parties["passive"].values.reshape(1797, 32) * 16,
    )
    whole = [images.parties[p].values[5, 0] for p in ("active", "passive")]
    assert np.concatenate(whole, axis=1).sum() == tables_row_sum(tables, 5) / 16
    assert task("digits", as_images=True).schema["passive"].shape == (1, 8, 4)
    assert len(load("digits", parties=4).parties) == 4


def tables_row_sum(source, row):
    return sum(d.values[row].sum() for d in source.parties.values())


def test_control_gaussian_is_the_published_recipe():
    made = task("control_gaussian")
    assert len(made.sets["labelled"]) == 2000
    assert len(made.sets["test"]) == 1000
    assert len(made.sets["validation"]) == 500
    assert made.schema["passive"].shape == (100,)
    assert made.schema["active"].shape == (20,)
    assert made.y.float().mean().item() == pytest.approx(0.5, abs=5 * 0.5 / 3500**0.5)
    rates = [load("control_gaussian", s, positive_rate=0.1, flips=0.0).y.mean() for s in range(5)]
    assert np.mean(rates) == pytest.approx(0.1, abs=5 * 0.3 / 17500**0.5)


def test_control_gaussian_weights_and_flips():
    """Least squares on a large world recovers 1.5 : 0.7, and 3 % of labels are unexplained."""
    source = load("control_gaussian", rows=40_000)
    x = np.concatenate([source.parties[p].values for p in ("active", "passive")], axis=1)
    w = np.linalg.lstsq(x, 2.0 * source.y - 1, rcond=None)[0]
    ratio = np.linalg.norm(w[20:]) / np.linalg.norm(w[:20])
    assert ratio == pytest.approx(1.5 / 0.7, rel=0.05)
    wrong = ((x @ w > 0) != source.y).mean()
    assert wrong == pytest.approx(0.03, abs=0.015)


def auc(made: Task, columns: list[str], known: int | None = None, split: str = "test") -> float:
    """Test AUC of logistic regression on own columns, from all labels or `known` a class."""
    x = np.concatenate([made.x[p].numpy() for p in columns], axis=1)
    y, rows = made.y.numpy(), made.sets["labelled"].numpy()
    taught = y if made.given is None else made.given.numpy()
    if known is not None:
        rows = np.concatenate([rows[y[rows] == c][:known] for c in (0, 1)])
    model = LogisticRegression(max_iter=500).fit(x[rows], taught[rows])
    out = made.sets[split].numpy()
    return float(roc_auc_score(y[out], model.decision_function(x[out])))


def test_leaky_is_learnable_but_not_from_ten_labels_alone():
    made = [task("leaky", s) for s in range(5)]
    both = np.mean([auc(t, ["active", "passive"]) for t in made])
    alone = np.mean([auc(t, ["passive"]) for t in made])
    few = np.mean([auc(t, ["passive"], 10) for t in made])
    assert both > 0.97
    assert 0.93 < alone < both
    assert 0.65 < few < 0.85
    rate = np.mean([load("leaky", s).y.mean() for s in range(5)])
    assert rate == pytest.approx(0.2, abs=5 * 0.4 / 5000**0.5)


def test_sealed_and_shuffled_worlds_teach_nothing():
    """Mean test AUC over 10 worlds within 4 standard errors of 0.5."""
    sealed = [auc(task("sealed", s), ["active", "passive"]) for s in range(10)]
    null = [
        auc(task("leaky", s, {"shuffle_labels": True}), ["active", "passive"]) for s in range(10)
    ]
    error = np.sqrt((250 + 1) / (12 * 50 * 200)) / np.sqrt(10)
    assert abs(np.mean(sealed) - 0.5) < 4 * error
    assert abs(np.mean(null) - 0.5) < 4 * error


def test_control_gaussian_needs_the_federation():
    made = [task("control_gaussian", s) for s in range(3)]
    assert np.mean([auc(t, ["passive"], 10) for t in made]) < 0.7
    assert np.mean([auc(t, ["passive"]) for t in made]) > 0.85


def test_alike_tells_as_much_as_its_docstring_says():
    reached = {"active": [], "passive": [], "both": []}
    for seed in range(10):
        made = load("alike", seed, rows=[[1300, ["active", "passive"], "", True]],
                    classes=[910, 390])  # fmt: skip
        for who, found in reached.items():
            x = np.hstack([t.values for p, t in made.parties.items() if who in (p, "both")])
            fitted = LogisticRegression().fit(x[:300], made.y[:300])
            found.append(roc_auc_score(made.y[300:], fitted.decision_function(x[300:])))
    assert np.mean(reached["both"]) == pytest.approx(0.81, abs=0.03)
    assert np.mean(reached["passive"]) == pytest.approx(0.77, abs=0.03)
    assert np.mean(reached["active"]) == pytest.approx(0.72, abs=0.05)


def test_alike_has_the_columns_and_classes_that_are_asked_for():
    made = load("alike", rows=[[500, ["active"], "train", True], [100, ["passive"], "test", False]],
                columns={"active": [[3, 1], [0, 2]], "passive": [[200, 1]]},
                classes=[300, 150, 50])  # fmt: skip
    assert np.bincount(made.y[made.y >= 0]).tolist() == [300, 150, 50]
    assert (made.y < 0).sum() == 100
    codes = made.parties["active"].values[:, 0]
    assert np.bincount(codes.astype(int), minlength=4).tolist()[1:] == pytest.approx(
        [167] * 3, abs=25
    )
    assert np.unique(made.parties["passive"].values).max() <= 200
    assert made.parties["active"].values[:, 1:].std(0) == pytest.approx([1, 1], abs=0.15)
    images = load("alike", images={"passive": [3, 8, 8]}).parties["passive"]
    assert images.values.shape == (300, 3, 8, 8)
    with pytest.raises(ConfigError, match="classes must add up to 300 labelled rows"):
        load("alike", classes=[1, 2])


def test_imitation_is_the_function_it_states():
    """Without noise x_B is sin(2 x_A W): its arcsine is linear in x_A where |2 x_A W| < pi / 2."""
    source = load("imitation", rows=4000, noise=0.0)
    x_a, x_b = (source.parties[p].values for p in ("active", "passive"))
    assert (x_a.shape[1], x_b.shape[1]) == (6, 8)
    small = np.linalg.norm(x_a, axis=1) < 0.6
    bent = np.arcsin(x_b[small])
    w, *_ = np.linalg.lstsq(2 * x_a[small], bent, rcond=None)
    np.testing.assert_allclose(np.sin(2 * x_a @ w), x_b, atol=0.02)
    sides, counts = np.unique(load("imitation").split, return_counts=True)
    assert dict(zip(sides, counts)) == {"test": 7200, "train": 1440, "validation": 360}


def test_imitation_is_easy_with_the_partner_and_hard_without():
    """Logistic regression: AUC 0.91 on x_B, whose effect is a plane, and 0.72 on x_A."""
    source = load("imitation")
    train, test = source.split == "train", source.split == "test"
    found = {}
    for party in ("active", "passive"):
        x = source.parties[party].values
        model = LogisticRegression().fit(x[train], source.y[train])
        found[party] = roc_auc_score(source.y[test], model.decision_function(x[test]))
    assert found["passive"] > 0.9
    assert found["active"] < found["passive"] - 0.1


def test_two_views_share_the_latent_and_nothing_else():
    """Within a class the views go together in the six dimensions of u (and, bent, a little beyond);
    one view alone has twelve more.
    """
    source = load("two_views", rows=6000)
    assert np.bincount(source.y[source.split == "train"]).tolist() == [750] * 8
    views = [source.parties[p].values for p in ("active", "passive")]
    assert [v.shape[1] for v in views] == [60, 60]
    inside = [v - np.stack([v[source.y == c].mean(0) for c in range(8)])[source.y] for v in views]
    cross = np.linalg.svd(inside[0].T @ inside[1] / len(source.y), compute_uv=False)
    assert cross[5] > 2 * cross[6]
    within = np.linalg.svd(np.cov(inside[0].T), compute_uv=False)
    assert within[17] > 1.5 * within[18]
