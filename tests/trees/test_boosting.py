"""Federated trees are those of pooled boosting, and what crosses is what the protocol says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from planted_trees import Kept, boost, find_leaves, make_table
from sampled import sampled

from vflsec.label import Classes, Counts, Label, MultiLabel, Quantity
from vflsec.trees.histograms import Limits
from vflsec.trees.profiles import FIELDS, PROFILES

CUTS = [(5,), (1,), (9,), (3, 6), (2, 4, 8), (0, 5), (1, 2, 3, 4, 5, 6, 7, 8, 9)]


def assert_same_trees(a: Any, b: Any, starts: tuple[int, ...]) -> None:
    """Splits on the same columns at the same cuts, and the same scores, bit for bit."""
    for one, other in zip(a.trees, b.trees, strict=True):
        split = one.owner >= 0
        assert np.array_equal(split, other.owner >= 0)
        place = np.array([0, *starts])[other.owner[split]] + other.column[split]
        assert np.array_equal(one.column[split], place)
        assert np.array_equal(one.cut[split], other.cut[split])
        assert np.array_equal(one.weight, other.weight)
    assert np.array_equal(a.scores, b.scores)


@pytest.mark.parametrize("cuts", sampled([(cuts,) for cuts in CUTS], every=3))
def test_federated_is_pooled_bit_for_bit(cuts: tuple[int, ...]) -> None:
    x, y = make_table()
    x[::7, 3] = np.nan
    for rules in ({}, {"depth": 5, "bins": 16, "limits": Limits(min_rows=7)},
                  {"top": 0.2, "other": 0.2}):  # fmt: skip
        assert_same_trees(boost(x, y, **rules), boost(x, y, cuts, **rules), cuts)


@pytest.mark.parametrize("profile", PROFILES)
def test_no_profile_changes_a_bit(profile: str) -> None:
    x, y = make_table()
    assert_same_trees(boost(x, y), boost(x, y, (4, 7), profile=profile), (4, 7))


def planted_labels(kind: str) -> tuple[Label, np.ndarray]:
    x, _ = make_table()
    rng = np.random.default_rng(1)
    if kind == "three":
        return Classes(3), np.digitize(x[:, 0] + x[:, 9], [-0.7, 0.7])
    if kind == "quantity":
        return Quantity(), (x[:, :1] + x[:, 9:])
    if kind == "counts":
        return Counts(), rng.poisson(np.exp(0.5 * x[:, :1] + 0.5 * x[:, 9:])).astype(float)
    return MultiLabel(("a", "b")), (x[:, [0, 9]] > 0).astype(float)


@pytest.mark.parametrize("kind", ["three", "quantity", "counts", "several"])
def test_every_kind_of_label_is_learnt_and_cut_alike(kind: str) -> None:
    label, y = planted_labels(kind)
    x, _ = make_table()
    pooled = boost(x, y, label=label, half=False)
    assert_same_trees(pooled, boost(x, y, (5,), label=label, half=False), (5,))
    assert len(pooled.trees) == 10 * label.trees
    answers = pooled.predict(np.arange(len(x)))
    assert answers.shape == (len(x), label.outputs)
    truth = y if kind != "three" else np.eye(3)[y]
    assert all(np.corrcoef(a, t)[0, 1] > 0.5 for a, t in zip(answers.T, truth.T, strict=True))


@pytest.mark.parametrize("kind", ["two", "three", "quantity", "counts", "several"])
def test_derivatives_are_those_of_the_loss(kind: str) -> None:
    """By differences of the loss that networks are trained on."""
    import torch

    label, y = planted_labels(kind) if kind != "two" else (Classes(2), make_table()[1])
    scores = np.random.default_rng(2).normal(size=(len(y), label.trees))
    g, h = label.compute_newton(scores, y)

    def loss(at: np.ndarray) -> np.ndarray:
        answers = torch.from_numpy(label.form_answers(at)).unsqueeze(0)
        of = torch.from_numpy(y).unsqueeze(0)
        return np.asarray(label.losses(answers, of)[0])

    # networks learn a quantity by the whole squared error, several labels by the mean over them
    times = {"quantity": 0.5, "several": 2.0}.get(kind, 1.0)
    for k in range(label.trees):
        step = np.zeros(label.trees)
        step[k] = 1e-4
        up, here, down = loss(scores + step), loss(scores), loss(scores - step)
        assert np.allclose(g[:, k], times * (up - down) / 2e-4, atol=1e-6)
        assert np.allclose(h[:, k], times * (up - 2 * here + down) / 1e-8, atol=1e-5)
    start = label.compute_start(y)
    first, _ = label.compute_newton(np.tile(start, (len(y), 1)), y)
    assert np.abs(first.mean(0)).max() < 1e-8


XGB = {"tree_method": "hist", "max_bin": 256, "min_child_weight": 1e-3, "base_score": 0.5,
       "nthread": 1, "eta": 0.3, "reg_lambda": 0.1}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("depth", "rounds", "bins", "missing"), [
    (3, 10, 32, False), (5, 20, 64, False), (4, 20, 32, False), (3, 10, 32, True),
])  # fmt: skip
def test_partitions_are_those_of_pooled_xgboost(
    depth: int, rounds: int, bins: int, missing: bool
) -> None:
    xgboost = pytest.importorskip("xgboost")
    x, y = make_table(3, n=2000)
    if missing:
        x[np.random.default_rng(4).random(x.shape) < 0.1] = np.nan
    of = boost(x, y, (5,), rounds=rounds, depth=depth, bins=bins)
    codes = np.concatenate([of.codes["p0"], of.codes["p1"]]).T.astype(np.float32)
    codes[codes == bins] = np.nan
    table = xgboost.DMatrix(codes, label=y)
    settings = {**XGB, "max_depth": depth, "objective": "binary:logistic"}
    other = xgboost.train(settings, table, rounds)
    leaves = other.predict(table, pred_leaf=True)
    for t in range(rounds):
        mine = find_leaves(of, t)
        pairs = np.unique(np.stack([mine, leaves[:, t]]), axis=1).shape[1]
        assert pairs == len(np.unique(mine)) == len(np.unique(leaves[:, t])), f"tree {t}"
    p = 1 / (1 + np.exp(-of.scores[:, 0]))
    assert np.abs(p - other.predict(table)).max() <= 1e-6


def test_what_crosses_is_counted_as_the_protocol_says() -> None:
    """A host sends 2 numbers for each of its columns and bins of a node that is searched, and
    the rows of the nodes that it splits; the ciphers of gradients are one a row and tree."""
    x, y = make_table()
    kept = Kept()
    of = boost(x, y, (4,), profile="paper", sender=kept)
    n, d, bins = len(x), 6, of.rules.bins + 1
    searched = own = rows_of_own = told = 0
    for t, tree in enumerate(of.trees):
        size = np.bincount(find_leaves(of, t), minlength=len(tree.owner))
        for i in range(len(size) - 1, 0, -1):
            size[(i - 1) // 2] += size[i]
        inner = np.arange(len(size)) < 2**of.rules.depth - 1
        alive = inner & (size > 1)
        searched += int(alive.sum())
        told += int(size[alive][1:].sum())  # all but the root's
        own += int((tree.owner == 1).sum())
        rows_of_own += int(size[tree.owner == 1].sum())
    size_of = lambda kind, sender: sum(m[3].size for m in kept.sent if m[:2] == (kind, sender))  # noqa: E731
    assert size_of("ciphertext", "p0") == 10 * n
    assert size_of("histogram", "p1") == 2 * d * bins * searched
    assert size_of("signal", "p0") == own
    assert size_of("partition", "p1") == rows_of_own
    assert size_of("partition", "p0") == told


def test_a_profile_shows_what_it_says() -> None:
    x, y = make_table()
    seen = {}
    for name in PROFILES:
        kept = Kept()
        boost(x, y, (4,), profile=name, sender=kept)
        seen[name] = kept.sent
        kinds = {(m[0], "active" if m[1] == "p0" else "passive") for m in kept.sent}
        assert kinds == {s[:2] for s in PROFILES[name].sends if s[0] != "own_pair"}
    down = {k: [m for m in v if m[:2] == ("partition", "p0")] for k, v in seen.items()}
    assert all(len(m[4]) == len(x) for m in down["fate-2"])
    assert max(m[5] % 3 for m in down["fate-2"]) == 2  # the last level too
    assert max(m[5] % 3 for m in down["paper"]) == 1
    weights = [m[3][:, FIELDS.index("weight")] for m in seen["xgboost-open"] if m[0] == "tree"]
    assert np.isfinite(np.concatenate(weights)).sum() > 0
    fate = np.concatenate([m[3] for m in seen["fate-2"] if m[0] == "tree"])
    told = np.isfinite(fate).any(axis=0)
    assert [f for f, at in zip(FIELDS, told, strict=True) if at] == ["node", "owner", "rows"]


def test_bins_of_a_shuffled_host_are_the_same_sums() -> None:
    x, y = make_table()
    plain, mixed = Kept(), Kept()
    boost(x, y, (4,), profile="fate-2", sender=plain, rounds=1)
    boost(x, y, (4,), profile="secretflow", sender=mixed, rounds=1)
    a, b = (next(m[3] for m in k.sent if m[0] == "histogram") for k in (plain, mixed))
    assert a.shape[-1] == 3
    assert b.shape[-1] == 2
    assert not np.array_equal(a[..., :2], b)
    assert np.array_equal(np.sort(a[..., :2].cumsum(axis=2), axis=2), np.sort(b, axis=2))


def test_trees_that_may_not_be_shown_are_grown_alone() -> None:
    """All trees local: nothing crosses, and the trees are those of the active party alone."""
    x, y = make_table()
    kept = Kept(lambda sets: np.zeros(sets.counts.shape[:-1], dtype=bool))
    of = boost(x, y, (4,), sender=kept)
    assert kept.sent == []
    assert_same_trees(boost(x[:, :4], y), of, (4,))
    allowed = boost(x, y, (4,), rule=lambda sets: np.ones(sets.counts.shape[:-1], dtype=bool))
    assert_same_trees(boost(x, y), allowed, (4,))


def test_goss_grows_on_the_rows_that_it_names() -> None:
    x, y = make_table()
    kept = Kept()
    boost(x, y, (4,), sender=kept, top=0.2, other=0.1, rounds=3)
    lists = [m[3] for m in kept.sent if m[0] == "sample_list"]
    assert [len(of) for of in lists] == [180, 180, 180]
    # with p = 1/2 all gradients are as large, and the first a n rows are taken in order; then not
    assert not np.array_equal(lists[0], lists[1])


def test_a_leaf_of_the_first_tree_tells_its_positives() -> None:
    """n+ = n p0 + w (n p0 (1 - p0) + l2) / rate, exactly, from weight and rows alone."""
    x, y = make_table()
    of = boost(x, y, (4,), rounds=1)
    leaf = find_leaves(of, 0)
    for node in np.unique(leaf):
        n = (leaf == node).sum()
        found = n * 0.5 + of.trees[0].weight[node] * (n * 0.25 + 0.1) / 0.3
        assert abs(found - y[leaf == node].sum()) < 1e-9
