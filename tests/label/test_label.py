"""Every kind of label against slow references, and what any kind must have to be one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast, get_args

import numpy as np
import pytest
import torch

from vflsec.audit.metrics import METRICS, choose_primary, find_reach, list_default
from vflsec.core.guess import Truth
from vflsec.data.classes import READERS
from vflsec.engine.trace_positive_control import is_possible
from vflsec.errors import ConfigError
from vflsec.label import (
    KINDS,
    PRIMARY,
    Classes,
    Label,
    MultiLabel,
    Quantity,
    TaskName,
    find_label,
    make_label,
    make_named_label,
)
from vflsec.plugins import registry
from vflsec.testing import small_task

KIND_VALUES: list[Label] = [kind.build(3, ("a", "b")) for kind in KINDS]


def truth_of(label: Label, n: int = 12) -> torch.Tensor:
    """Labels of `n` rows."""
    rng = np.random.default_rng(3)
    if not label.floating:
        return torch.from_numpy(rng.integers(0, label.outputs, n))
    shape = (n,) if label.numeric else (n, label.outputs)
    return torch.from_numpy(rng.integers(0, 2, shape).astype(float))


@pytest.mark.parametrize("label", KIND_VALUES, ids=lambda k: k.name)
def test_a_kind_is_found_by_its_code_its_name_and_its_truth(label: Label) -> None:
    assert make_label(label.code, label.names) == label
    assert make_named_label(label.name, 3, ("a", "b")) == label
    assert type(find_label(label.target, 3)) is type(label)
    assert find_label("feature") is None
    assert label.name in get_args(TaskName)
    assert set(get_args(TaskName)) == set(READERS)
    codes = {kind.build(2, ()).code for kind in KINDS}
    assert len(codes) == len(KINDS) == len(get_args(TaskName))


def test_a_kind_may_have_classes_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """One beside Classes with a number of classes could not be stored: nothing was imported."""

    class Grades(Classes):
        codes = range(-99, -1)
        code = property(lambda self: -self.count)

        @classmethod
        def build(cls, classes: int, names: tuple[str, ...]) -> Grades:
            return cls(abs(classes))

    monkeypatch.setattr("vflsec.label.KINDS", (*KINDS, Grades))
    make_label.cache_clear()
    try:
        assert make_label(-4) == Grades(4)
        assert [make_label(c).code for c in (-1, 0, 1, 2, 7, -4)] == [-1, 0, 1, 2, 7, -4]
    finally:
        make_label.cache_clear()


@pytest.mark.parametrize("label", KIND_VALUES, ids=lambda k: k.name)
def test_what_a_kind_names_exists(label: Label) -> None:
    """Its metrics are meant for its truth, and its positive control has labels of this kind."""
    for name in label.list_metrics(groups=False):
        assert label.target in METRICS[name].targets
    assert label.choose_primary() in label.list_metrics()
    assert list_default(label.code if label.code > 1 else 2, label.target) == label.list_metrics()
    source = registry.datasets.create(label.control).load(0)
    assert source.label.name == label.name
    assert not label.numeric or label.choose_primary() in PRIMARY


@pytest.mark.parametrize("label", KIND_VALUES, ids=lambda k: k.name)
def test_losses_are_of_single_rows_and_a_right_answer_costs_less(label: Label) -> None:
    y = truth_of(label)
    trained = label.stack([y], torch.float64)
    assert trained.shape[:2] == (1, len(y))
    wrong = torch.zeros(1, len(y), label.outputs, dtype=torch.float64)
    right = wrong.clone()
    if label.floating:
        right += 8.0 * (trained - 0.5) if not label.numeric else trained.clamp_min(1e-9).log()
    else:
        right.scatter_(2, trained.unsqueeze(2), 8.0)
    if isinstance(label, Quantity):
        right = trained.clone()
    losses = label.losses(right, trained)
    assert losses.shape == (1, len(y))
    assert bool((losses <= label.losses(wrong, trained) + 1e-6).all())
    one = torch.stack(
        [label.losses(right[:, [i]], trained[:, [i]])[:, 0] for i in range(len(y))], 1
    )
    assert torch.allclose(one, losses)
    gradient = right.clone().requires_grad_()
    label.losses(gradient, trained).sum().backward()  # type: ignore[no-untyped-call]
    assert gradient.grad is not None
    assert bool(gradient.grad.isfinite().all())


@pytest.mark.parametrize("label", KIND_VALUES, ids=lambda k: k.name)
def test_canaries_carry_labels_that_the_truth_can_hold(label: Label) -> None:
    given, rows = truth_of(label).clone(), torch.tensor([1, 4, 7])
    coins = torch.tensor([0, 1, 0])
    prior = torch.full((label.sides,), 1 / label.sides, dtype=torch.float64)
    prior[0] += 0.1
    before = given.clone()
    pairs = label.draw_pairs(1, prior, torch.Generator().manual_seed(0)).expand(3, 2)
    label.plant(given, rows, pairs.gather(1, coins.unsqueeze(1)).squeeze(1))
    assert torch.equal(given[rows[0]], given[rows[2]])
    assert not torch.equal(given[rows[0]], given[rows[1]])
    kept = [i for i in range(len(given)) if i not in rows.tolist()]
    assert torch.equal(given[kept], before[kept])
    Truth(label.target, np.arange(len(given)), given.numpy())


def test_parts_questions_and_attacks_that_suit() -> None:
    several, quantity, classes = MultiLabel(("a", "b")), Quantity(), Classes(3)
    assert several.list_parts(False, True, ()) == ("a", "b")
    assert several.list_parts(False, False, ()) == ("",)
    ask = list(quantity.questions)
    assert quantity.list_parts(True, False, ask) == ["", *ask]
    assert quantity.list_parts(False, False, ask) == ask
    assert quantity.list_parts(True, False, ()) == ("",) == classes.list_parts(True, True, ask)
    assert classes.suits("label", quantities=False, labelwise=False)
    assert not quantity.suits("label", quantities=False, labelwise=True)
    assert quantity.suits("feature", quantities=False, labelwise=False)
    assert not several.suits("membership", quantities=True, labelwise=False)
    assert torch.equal(
        several.take_part("b", torch.tensor([[0.0, 1.0], [torch.nan, torch.nan]]), torch.zeros(0)),
        torch.tensor([1, -1]),
    )


@pytest.mark.parametrize("power", [-1000, -300, 300, 1000, 1021])
def test_quantities_of_any_size_are_the_same_in_standard_deviations(power: int) -> None:
    """Squares of 1e160 and of 1e-200 are no numbers; a factor of two changes no digit."""
    values = np.array([1.0, -2.0, 0.5, np.nan, 3.0])
    labelled = np.array([0, 1, 2, 4])
    seen = values[labelled]
    usual = Quantity().prepare(values, labelled)
    assert np.array_equal(usual, (values - seen.mean()) / seen.std(), equal_nan=True)
    large = Quantity().prepare(np.ldexp(values, power), labelled)
    assert np.array_equal(large, usual, equal_nan=True)
    assert not Quantity().prepare(np.zeros(5), labelled).any()


def test_rows_that_are_too_few_are_named() -> None:
    y = np.array([0, 0, 0, 1, 2])
    found = list(Classes(3).find_scarce(y, None, ["x", "y", "z"], 2))
    assert [must.split("'")[1] for must, _, _ in found] == ["y", "z"]
    values = np.array([[1.0, 0], [1, 0], [1, 1], [0, 1]])
    several = MultiLabel(("a", "b"))
    assert [m.split("'")[1] for m, _, _ in several.find_scarce(y[:4], values, ["-"], 2)] == ["a"]
    columns = dict(several.split_classes(y[:4], values))
    assert columns["b"].tolist() == [0, 0, 1, 1]


def test_levels_of_metrics_follow_from_the_metric() -> None:
    inf = float("inf")
    assert find_reach("advantage", "auc") == (-1.0, 0.5) == find_reach("advantage", "concordance")
    assert (
        find_reach("advantage", "accuracy")
        == (-1.0, 1.0)
        == find_reach("utility_drop", "macro_auc")
    )
    assert find_reach("advantage", "r2") == (-inf, 1.0) == find_reach("r2_column")
    assert find_reach("utility_drop", "mae") == (-inf, inf)
    assert find_reach("log_loss") == (0.0, inf) == find_reach("epsilon_lower")
    assert find_reach("utility") == (0.0, 1.0) == find_reach("auc")
    assert choose_primary(2, target="value") == "concordance"
    assert choose_primary(3, [0.6, 0.2, 0.2]) == ("balanced_accuracy")


def test_what_several_labels_cannot_do_is_refused_before_they_are_asked() -> None:
    """No label is no part of classes, a trace of several gets no control, nor an attack on all."""
    task = small_task(0)
    with pytest.raises(ConfigError, match="the label must be one of '', got 'size'"):
        task.of_label("size")
    several = SimpleNamespace(rows=100, classes=0, run=SimpleNamespace(defense=""))
    assert not is_possible(cast(Any, several))
    facts = registry.algorithms.create("splitnn").planned_facts("a", ("a", "b"), 0)
    assert facts.label.by_part
    for name in registry.attacks.names():
        attack = registry.attacks.create(name)
        if attack.target == "label":
            assert attack.pointless(facts), name


@pytest.mark.parametrize("label", KIND_VALUES, ids=lambda k: k.name)
def test_a_kind_does_what_it_has_a_meaning_for_and_refuses_the_rest_in_words(label: Label) -> None:
    """Plans refuse it earlier; who asks a kind directly is told what it can do."""
    y, prior, rng = truth_of(label), [1 / label.sides] * label.sides, torch.Generator()
    if label.part_names:
        assert label.take_part(label.part_names[0], y, y).shape == (len(y),)
    else:
        with pytest.raises(ConfigError, match=f"yes/no parts, got '{label.noun}'"):
            label.take_part("a", y, y)
    if label.by_part:
        with pytest.raises(ConfigError, match="of a planted leak must be one label"):
            label.encode(y, prior)
        with pytest.raises(ConfigError, match="of a trace must be one label"):
            label.draw(5, torch.tensor(prior), rng)
    else:
        assert label.encode(y, prior).shape == (len(y), label.sides)
        assert label.draw(5, torch.tensor(prior), rng).shape == (5,)
