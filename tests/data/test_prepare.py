"""Splits keep their sizes over seeds, and nothing is fitted on rows that do not train."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from user_tables import refused

from vflsec.audit.truth import label_truth
from vflsec.core.task import Stack, Task
from vflsec.data.prepare import make_task
from vflsec.data.source import PartyData, Source
from vflsec.data.split import LEAST, row_sets, stratified_order, take
from vflsec.errors import ConfigError, DataError


def table(values, rows=None, categories=None):
    values = np.asarray(values, dtype=np.float64)
    rows = np.arange(len(values)) if rows is None else np.asarray(rows)
    d = values.shape[1]
    return PartyData(values, rows, tuple(f"c{i}" for i in range(d)), categories or (None,) * d)


def source(n=200, positives=60, *, only_a=0, only_b=0, unlabelled=0, **more) -> Source:
    """n overlapping rows, then rows of one party only; the last `unlabelled` overlap rows bare."""
    rng = np.random.default_rng(0)
    total = n + only_a + only_b
    y = np.zeros(total, dtype=np.int64)
    y[rng.permutation(n)[:positives]] = 1
    y[n : n + only_a : 2] = 1
    y[n + only_a :] = -1
    y[n - unlabelled : n] = -1
    a = np.r_[np.arange(n), np.arange(n, n + only_a)]
    b = np.r_[np.arange(n), np.arange(n + only_a, total)]
    parties = {
        "bank": table(rng.normal(3, 2, (len(a), 3)), a),
        "shop": table(rng.normal(-1, 5, (len(b), 2)), b),
    }
    return Source("toy", parties, "bank", y, ("no", "yes"), **more)


def sizes(task: Task) -> dict[str, int]:
    return {k: len(v) for k, v in task.sets.items()}


def test_missing_numbers_are_remembered_of_who_lacks_some():
    made = source()
    made.parties["shop"].values[[0, 7], 1] = np.nan
    kinds = table([[1.0, np.nan]] * 200, categories=(None, ("a", "b")))
    made = dataclasses.replace(made, parties={**made.parties, "kinds": kinds})
    task = make_task(made, 0)
    assert list(task.missing) == ["shop"]  # a missing category is a code of its own
    assert task.missing["shop"].nonzero().tolist() == [[0, 1], [7, 1]]
    assert task.x["shop"][[0, 7], 1].tolist() == [0.0, 0.0]


def test_exact_sizes_and_class_counts():
    task = make_task(source(), 0)
    assert sizes(task) == {
        "labelled": 120, "aligned": 120, "validation": 30, "test": 50,
        "local:bank": 120, "local:shop": 120,
    }  # fmt: skip
    counts = {k: torch.bincount(task.y[v]).tolist() for k, v in task.sets.items()}
    assert counts["test"] == [35, 15]
    assert counts["validation"] == [21, 9]
    assert counts["labelled"] == [84, 36]
    held = torch.cat([task.sets[k] for k in ("labelled", "validation", "test")])
    assert torch.equal(held.sort().values, torch.arange(200))
    assert all(torch.equal(v, v.sort().values) for v in task.sets.values())
    assert task.parties == ("bank", "shop")
    assert task.prior.tolist() == pytest.approx([0.7, 0.3])


def test_same_seed_same_task_and_other_seed_other_rows():
    a, b, c = make_task(source(), 3), make_task(source(), 3), make_task(source(), 4)
    assert all(torch.equal(a.sets[k], b.sets[k]) for k in a.sets)
    assert all(torch.equal(a.x[p], b.x[p]) for p in a.parties)
    assert not torch.equal(a.sets["test"], c.sets["test"])


def test_training_rows_are_standardised_exactly():
    src = source()
    task = make_task(src, 1)
    train = task.sets["local:shop"]
    raw = src.parties["shop"].values[train.numpy()]
    wanted = (raw - raw.mean(axis=0)) / raw.std(axis=0)
    np.testing.assert_allclose(task.x["shop"][train].numpy(), wanted, rtol=1e-5, atol=1e-6)
    assert task.x["shop"].dtype == torch.float32


@pytest.mark.parametrize("scale", ["zscore", "rank"])
def test_held_out_values_do_not_reach_the_scaler(scale):
    src = source()
    before = make_task(src, 5, scale=scale)
    out = torch.cat([before.sets["test"], before.sets["validation"]]).numpy()
    values = src.parties["bank"].values.copy()
    values[out] = values[out] * 1000 + 7
    parties = {**src.parties, "bank": dataclasses.replace(src.parties["bank"], values=values)}
    after = make_task(dataclasses.replace(src, parties=parties), 5, scale=scale)
    train = before.sets["local:bank"]
    assert torch.equal(before.x["bank"][train], after.x["bank"][train])
    assert not torch.equal(before.x["bank"][out], after.x["bank"][out])


def test_missing_constant_and_extreme_columns():
    values = np.random.default_rng(1).normal(size=(100, 4))
    values[:, 1] = 5.0
    values[::3, 2] = np.nan
    values[:, 3] *= 1e200
    y = np.arange(100) % 2
    parties = {"a": table(values), "b": table(np.full((100, 1), np.nan))}
    task = make_task(Source("toy", parties, "a", y, ("0", "1")), 0)
    x = task.x["a"]
    assert torch.isfinite(x).all()
    assert (x[:, 1] == 0).all()
    assert (x[::3, 2] == 0).all()
    assert x[task.sets["labelled"], 3].std(unbiased=False).item() == pytest.approx(1, abs=1e-5)
    assert (task.x["b"] == 0).all()


def test_rank_scale_of_missing_and_binary_columns():
    values = np.random.default_rng(1).lognormal(0, 3, size=(400, 2))
    values[:, 1] = values[:, 1] > 1
    values[:40, 0] = np.nan
    parties = {"a": table(values), "b": table(values[:, :1] * np.nan)}
    task = make_task(Source("toy", parties, "a", np.arange(400) % 2, ("0", "1")), 0, scale="rank")
    train = task.sets["labelled"]
    x = task.x["a"][train]
    assert (task.x["a"][:40, 0] == 0).all()
    assert x[:, 0].max() < 6
    assert x[:, 1].unique().numel() == 2
    assert x[:, 1].mean().item() == pytest.approx(0, abs=1e-5)


def test_unseen_and_missing_categories_get_code_zero():
    n = 100
    y = np.arange(n) % 2
    codes = np.where(np.arange(n) % 3 == 0, 1.0, 2.0)
    src = Source(
        "toy",
        {"a": table(codes[:, None], categories=(("x", "y", "z"),)), "b": table(np.ones((n, 1)))},
        "a", y, ("0", "1"),
    )  # fmt: skip
    test = make_task(src, 0).sets["test"].numpy()
    codes[test[0]], codes[test[1]] = 3.0, np.nan
    task = make_task(src, 0)
    assert task.schema["a"].cardinalities == (4,)
    assert task.x["a"][test[:2], 0].tolist() == [0, 0]
    train = task.sets["labelled"].numpy()
    np.testing.assert_array_equal(task.x["a"][train, 0].numpy(), codes[train])


def test_partial_overlap_goes_to_local_sets_only():
    task = make_task(source(200, 60, only_a=40, only_b=30), 2)
    assert sizes(task) == {
        "labelled": 120, "aligned": 120, "validation": 30, "test": 50,
        "local:bank": 160, "local:shop": 150,
    }  # fmt: skip
    assert len(task.active_labelled) == 160
    both = task.present["bank"] & task.present["shop"]
    for name in ("labelled", "aligned", "validation", "test"):
        assert both[task.sets[name]].all()
    assert (task.x["shop"][~task.present["shop"]] == 0).all()
    assert task.y[240:].tolist() == [-1] * 30


def test_unlabelled_overlap_is_aligned_but_never_scored():
    task = make_task(source(200, 60, unlabelled=20), 0)
    assert len(task.sets["aligned"]) - len(task.sets["labelled"]) == 20
    assert (task.y[task.sets["test"]] >= 0).all()
    assert (task.y[task.sets["validation"]] >= 0).all()


@pytest.mark.parametrize("share", [0.25, 30])
def test_aligned_keeps_a_part_and_leaves_the_rest_local(share):
    task = make_task(source(), 0, aligned=share)
    assert len(task.sets["aligned"]) == 30
    assert torch.equal(task.sets["aligned"], task.sets["labelled"])
    assert torch.bincount(task.y[task.sets["aligned"]]).tolist() == [21, 9]
    assert len(task.sets["local:bank"]) == len(task.sets["local:shop"]) == 120
    assert len(task.active_labelled) == 120


def test_smaller_grants_are_subsets_of_larger_ones():
    small, large = make_task(source(), 0, aligned=0.2), make_task(source(), 0, aligned=0.6)
    assert set(small.sets["aligned"].tolist()) < set(large.sets["aligned"].tolist())
    assert torch.equal(small.sets["test"], large.sets["test"])
    few, many = make_task(source(), 0, labelled=30), make_task(source(), 0, labelled=60)
    assert set(few.sets["labelled"].tolist()) < set(many.sets["labelled"].tolist())


def test_labelled_is_stratified_and_bounds_validation():
    task = make_task(source(), 0, labelled=10)
    assert torch.bincount(task.y[task.sets["labelled"]]).tolist() == [7, 3]
    assert torch.bincount(task.y[task.sets["validation"]]).tolist() == [7, 3]
    assert torch.equal(task.active_labelled, task.sets["labelled"])
    assert len(task.sets["aligned"]) == 140
    tiny = make_task(source(200, 10), 0, labelled=6)
    assert torch.bincount(tiny.y[tiny.sets["labelled"]]).tolist() == [4, 2]


def test_fixed_split_decides_the_test_rows():
    side = np.array(["train"] * 150 + ["test"] * 50, dtype=object)
    for seed in (0, 1):
        task = make_task(source(split=side), seed)
        assert task.sets["test"].tolist() == list(range(150, 200))
        assert len(task.sets["validation"]) == round(0.15 * 150)
        assert len(task.sets["labelled"]) == 150 - 22
    side[140:150] = "validation"
    assert make_task(source(split=side), 0).sets["validation"].tolist() == list(range(140, 150))


def test_no_row_of_the_test_side_trains_aligned_or_not():
    side = np.array(["train", "test"] * 130)
    task = make_task(source(200, 60, only_a=40, only_b=20, unlabelled=10, split=side), 0)
    for name in ("labelled", "aligned", "validation", "local:bank", "local:shop"):
        assert (task.sets[name] % 2 == 0).all()
    assert (task.active_labelled % 2 == 0).all()
    assert len(task.sets["local:bank"]) - len(task.sets["aligned"]) == 20
    assert len(task.sets["test"]) == 95


def test_shuffled_labels_keep_class_counts_of_a_fixed_split():
    side = np.array(["test"] * 60 + ["train"] * 140)
    counts = [
        torch.bincount(t.given[t.sets["test"]]).tolist()
        for t in (make_task(source(split=side), s, shuffle_labels=True) for s in range(4))
    ]
    real = make_task(source(split=side), 0)
    counts.append(torch.bincount(real.y[real.sets["test"]]).tolist())
    assert all(c == counts[0] for c in counts)


def test_groups_stay_on_one_side_with_equal_sizes():
    rng = np.random.default_rng(3)
    group = rng.integers(0, 70, 230)
    seen = []
    for seed in range(4):
        src = source(200, 80, only_a=30, group=group)
        task = make_task(src, seed)
        sides = [
            set(group[task.sets["test"].numpy()]),
            set(group[task.sets["validation"].numpy()]),
            set(group[task.sets["local:bank"].numpy()]),
        ]
        assert not sides[0] & sides[1]
        assert not sides[0] & sides[2]
        assert not sides[1] & sides[2]
        seen.append(sizes(task))
    assert all(s == seen[0] for s in seen)
    assert seen[0]["test"] == 50
    biggest = int(np.bincount(group[:200]).max())
    assert seen[0]["labelled"] == 200 - 50 - 30 - 2 * (biggest - 1)
    assert (task.largest_group, label_truth(task).people.tolist()) == (
        int(np.bincount(group).max()), group.tolist(),
    )  # fmt: skip
    assert label_truth(make_task(source(200, 80), 0)).people is None


@pytest.fixture
def people() -> np.ndarray:
    return np.repeat(np.arange(100), 4)


def test_groups_are_drawn_again_where_a_row_set_lacks_a_class(people):
    """Of 8 of 100 people none is among the 15 % to validate on, in about a quarter of draws."""
    src = dataclasses.replace(source(400, group=people), y=(people < 8).astype(np.int64))
    for seed in range(40):
        sets = row_sets(src, seed)
        found = {"test": sets.test, "validation": sets.validation, "train": sets.train}
        for name, rows in found.items():
            assert np.bincount(src.y[rows], minlength=2).min() >= LEAST[name]
        of = [set(people[rows]) for rows in found.values()]
        assert not of[0] & of[1] | of[0] & of[2] | of[1] & of[2]
        assert len(sets.train) == len(row_sets(src, 0).train)


def test_a_class_of_too_few_people_is_an_error(people):
    with pytest.raises(DataError, match="class 'yes'"):
        row_sets(dataclasses.replace(source(400, group=people), y=(people < 2).astype(int)), 0)


def test_group_on_both_sides_of_a_fixed_split_is_refused():
    side = np.array(["train", "test"] * 100)
    with pytest.raises(DataError, match="100 groups on two"):
        make_task(source(split=side, group=np.arange(200) // 2), 0)


def test_shuffled_labels_keep_counts_and_lose_order():
    src = source(400, 120, only_a=40, unlabelled=10)
    real, null = make_task(src, 0), make_task(src, 0, shuffle_labels=True)
    assert sizes(real) == sizes(null)
    assert real.given is None
    assert torch.equal(real.y, null.y)
    assert torch.equal(torch.bincount(real.y + 1), torch.bincount(null.given + 1))
    assert torch.equal(real.y < 0, null.given < 0)
    moved = (real.y != null.given).float().mean().item()
    assert 0.3 < moved < 0.5
    assert not torch.equal(null.given, make_task(src, 1, shuffle_labels=True).given)
    np.testing.assert_array_equal(src.y, source(400, 120, only_a=40, unlabelled=10).y)


def test_images_are_one_tensor_for_all_seeds():
    image = np.random.default_rng(0).random((60, 1, 4, 4)).astype(np.float32)
    parties = {"a": PartyData(image, np.arange(60)), "b": table(np.ones((60, 1)))}
    src = Source("toy", parties, "a", np.arange(60) % 2, ("0", "1"))
    one, two = make_task(src, 0), make_task(src, 1)
    assert one.x["a"] is two.x["a"]
    assert one.schema["a"].shape == (1, 4, 4)
    np.testing.assert_array_equal(one.x["a"].numpy(), image)


def test_tasks_of_several_seeds_stack():
    options = {"labelled": 20, "aligned": 0.5}
    src = source(200, 60, only_a=20, only_b=10)
    tasks = {s: make_task(src, s, **options) for s in range(3)}
    stack = Stack.build(tasks, [0, 1, 2, 1])
    assert stack.rows("labelled").shape == (4, 20)
    assert torch.equal(stack.rows("test")[1], stack.rows("test")[3])
    x = stack.columns("shop", stack.rows("validation"))
    assert torch.equal(x[2], tasks[2].x["shop"][tasks[2].sets["validation"]])


@settings(max_examples=40, deadline=None)
@given(
    counts=st.lists(st.integers(12, 60), min_size=2, max_size=5),
    seed=st.integers(0, 10**6),
    test=st.floats(0.1, 0.4),
    validation=st.floats(0.05, 0.3),
    only=st.integers(0, 9),
)
def test_sizes_and_class_counts_never_depend_on_the_seed(counts, seed, test, validation, only):
    n = sum(counts)
    y = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(counts)), counts))
    y = np.r_[y, np.zeros(only, dtype=np.int64)]
    parties = {
        "a": table(np.zeros((n + only, 1))),
        "b": table(np.zeros((n, 1))),
    }
    src = Source("toy", parties, "a", y, tuple(map(str, range(len(counts)))))
    tasks = [make_task(src, s, test=test, validation=validation) for s in (seed, seed + 1)]
    of = [
        {k: torch.bincount(t.y[v], minlength=len(counts)).tolist() for k, v in t.sets.items()}
        for t in tasks
    ]
    assert of[0] == of[1]
    parts = [of[0][k] for k in ("labelled", "validation", "test")]
    assert np.sum(parts, axis=0).tolist() == counts
    assert min(of[0]["test"]) >= 1
    assert min(of[0]["validation"]) >= 2


def test_every_prefix_of_a_stratified_order_is_in_proportion():
    strata = np.repeat([0, 1, 2], [70, 20, 10])
    order = stratified_order(strata, np.random.default_rng(0))
    assert sorted(order.tolist()) == list(range(100))
    for k in (10, 20, 50, 90):
        counts = np.bincount(strata[order[:k]], minlength=3)
        np.testing.assert_allclose(counts, np.array([0.7, 0.2, 0.1]) * k, atol=1)
    assert np.bincount(strata[take(order, strata, 10, 3)]).tolist() == [4, 3, 3]


BAD_OPTIONS = [
    ({"validation": 0.0}, ConfigError, "data: validation must be a number in (0, 1), got 0.0"),
    ({"test": 1.0}, ConfigError, "data: test must be a number in (0, 1), got 1.0"),
    ({"test": 0.7, "validation": 0.4}, ConfigError, "validation + test must be below 1, got 1.1"),
    ({"labelled": 0}, ConfigError, "data: labelled must be an integer >= 1, got 0"),
    ({"labelled": 3}, DataError, "labelled must be in [4, "),
    ({"labelled": 1000}, DataError, "got 1000"),
    ({"aligned": 0.0}, ConfigError, "data: aligned must be a number in (0, 1], got 0.0"),
    ({"aligned": True}, ConfigError, "data: aligned must be"),
    ({"aligned": 121}, DataError, "aligned must be at most 120"),
    ({"aligned": 3}, DataError, "class 'yes' must have at least 2 rows in the 3 aligned rows"),
    ({"aligned": 20, "labelled": 40}, DataError, "labelled must be in [4, 20]"),
    ({"scale": "log"}, ConfigError, "data: scale must be one of 'zscore', 'rank', got 'log'"),
]


@pytest.mark.parametrize(("options", "kind", "text"), BAD_OPTIONS, ids=lambda v: str(v)[:40])
def test_bad_options_are_refused(options, kind, text):
    with refused(kind, text):
        make_task(source(), 0, **options)


def test_a_rare_class_and_a_missing_overlap_are_refused():
    with pytest.raises(DataError, match="class 'yes' must have at least 5 rows in the whole table"):
        make_task(source(200, 4), 0)
    side = np.array(["train"] * 200)
    side[:10] = "test"
    src = source(split=side)
    y = src.y.copy()
    y[:10] = 0
    with pytest.raises(DataError, match="class 'yes' must have at least 1 rows in row set 'test'"):
        make_task(dataclasses.replace(src, y=y), 0)
