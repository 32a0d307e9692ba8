"""Labels that were released, guessed by themselves: a claim is about every class, and every row."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from vflsec.core.policy import Own
from vflsec.defenses.label_dp import LabelDP
from vflsec.defenses.learned_prior import response
from vflsec.defenses.lp_mst import LPMST
from vflsec.defenses.rr_prior import draw
from vflsec.engine.cohort import run_cohort
from vflsec.epsilon.canaries import Planted
from vflsec.epsilon.labels_again import MOST, tally_released
from vflsec.epsilon.released_labels import Released, Weighed, weigh_released
from vflsec.label.classes import Classes
from vflsec.specs import CellSpec, DefenseSpec
from vflsec.testing import small_task

SHAPE = {"epochs": 1, "patience": 0, "hidden": [8], "cut": 4}
Hook = Callable[[LabelDP, Tensor, Own], Tensor]
plain = LabelDP.labels


def canaries(classes: int, m: int, rng: torch.Generator) -> Planted:
    pairs = Classes(classes).draw_pairs(m, torch.full((classes,), 1 / classes), rng)
    return Planted(torch.arange(m), torch.randint(2, (m,), generator=rng), pairs)


def release(flips: Tensor, planted: Planted, rng: torch.Generator) -> Any:
    """A tally of labels released once by a matrix (C, C), or for each row (m, C, C)."""
    coins = torch.rand(len(planted.rows), 1, generator=rng, dtype=torch.float64)
    rows = flips.expand(len(planted.rows), *flips.shape[-2:])
    seen = draw(rows, planted.carried.unsqueeze(1), coins).T
    return tally_released(seen, [planted])[0]


def weigh(flips: Tensor, epsilon: float, m: int, rng: torch.Generator, calls: int = 0) -> Weighed:
    """What five trainings say of a claim, each with so many calls again."""
    found = []
    for _ in range(5):
        planted = canaries(flips.shape[-1], m, rng)
        once, again = release(flips, planted, rng), np.zeros((m, 2, 3), np.int64)
        for _ in range(calls):
            coins = torch.randint(2, (m,), generator=rng)
            again += release(flips, Planted(planted.rows, coins, planted.pairs), rng)
        counted = Released.count(planted.pairs.numpy(), once, again if calls else None, epsilon)
        assert not counted.remembered
        assert counted.canaries == m * (1 + calls)
        assert counted == Released.read(counted.fields())
        found.append(counted)
    return weigh_released(found, epsilon)


def test_each_canary_has_a_pair_of_its_own_the_more_frequent_class_first() -> None:
    rng, prior = torch.Generator().manual_seed(0), torch.tensor([0.2, 0.5, 0.3])
    pairs = Classes(3).draw_pairs(600, prior, rng)
    kinds, many = pairs.unique(dim=0, return_counts=True)
    assert kinds.tolist() == [[1, 0], [1, 2], [2, 0]]
    assert int(many.min()) > 150
    two = Classes(2).draw_pairs(5, torch.tensor([0.9, 0.1]), rng)
    assert two.tolist() == [[0, 1]] * 5


def spare_class(flips: Tensor) -> Tensor:
    """Class 1 is released as it is, and what would become it becomes something else."""
    out = flips.clone()
    out[1] = torch.eye(len(flips))[1].double()
    others = [c for c in range(len(flips)) if c != 1]
    for c in others:
        out[c, [o for o in others if o != c]] += out[c, 1] / (len(others) - 1)
        out[c, 1] = 0.0
    return out


@pytest.mark.parametrize("classes", [3, 5])
def test_a_class_that_is_never_flipped_contradicts_the_claim(classes: int) -> None:
    rng = torch.Generator().manual_seed(classes)
    flips = response(1.0, classes)
    assert weigh(flips, 1.0, 150, rng).p > 0.01
    assert weigh(spare_class(flips), 1.0, 150, rng).p < 1e-9


def test_a_class_that_is_never_flipped_is_not_hidden_by_another_that_flips_more() -> None:
    """Over both, released labels tell as much as of randomised response that is as it says."""
    rng, keep = torch.Generator().manual_seed(2), float(response(0.5, 2)[0, 0])
    flips = torch.tensor([[2 * keep - 1, 2 - 2 * keep], [0.0, 1.0]], dtype=torch.float64)
    found = weigh(flips, 0.5, 75, rng)
    assert found.p < 1e-6
    assert (found.guesses, found.tries) == (375, 4)


@pytest.mark.parametrize(("classes", "calls"), [(2, 0), (4, 0), (2, 4), (3, 4)])
def test_an_intact_mechanism_is_accused_no_more_often_than_the_level(
    classes: int, calls: int
) -> None:
    rng, flips = torch.Generator().manual_seed(classes), response(1.0, classes)
    low = sum(weigh(flips, 1.0, 40, rng, calls).p < 0.05 for _ in range(100))
    assert low <= 11  # 5 expected at most, and three deviations


def test_rows_that_are_never_flipped_are_not_hidden_by_those_that_flip_more() -> None:
    """Over all rows, labels that are released tell less than the claim lets them."""
    rng, keep = torch.Generator().manual_seed(2), float(response(1.0, 2)[0, 0])
    flips = torch.tensor([[2 * keep - 1, 2 - 2 * keep]]).double()
    more = torch.stack([flips[0], flips[0].flip(0)])
    rows = torch.stack([torch.eye(2).double() if k % 2 else more for k in range(60)])
    assert weigh(rows, 1.0, 60, rng).p > 0.01
    assert weigh(rows, 1.0, 60, rng, 64).p < 1e-9
    always = torch.stack([torch.eye(2).double().flip(0) if k % 9 == 0 else response(1.0, 2)
                          for k in range(60)])  # fmt: skip
    assert weigh(always, 1.0, 60, rng, 64).p < 1e-9


@pytest.mark.parametrize("form", [lambda y: y, lambda y: torch.eye(3)[y] + 0.1])
def test_the_likelier_candidate_counts(form: Callable[[Tensor], Tensor]) -> None:
    pairs = torch.tensor([[0, 1], [0, 1], [2, 1]])
    planted = Planted(torch.tensor([4, 0, 2]), torch.tensor([0, 1, 1]), pairs)
    (tally,) = tally_released(form(torch.zeros(1, 5).long()), [planted])
    found = Released.count(pairs.numpy(), tally)
    assert found.guesses == {(0, 1): 2}
    assert found.right[0, 1] == 1
    assert (found.canaries, found.rows) == (3, ())


def as_it_is(which: Callable[[Tensor], Tensor]) -> Hook:
    def labels(self: LabelDP, y: Tensor, own: Own) -> Tensor:
        return torch.where(which(y), y, plain(self, y, own))

    return labels


def tenth(y: Tensor) -> Tensor:
    return (torch.arange(y.shape[1]) % 10 == 0).expand_as(y)


def remember() -> Hook:
    """Answers of the first call, kept by row and label outside of the policy's memory."""
    kept: list[Tensor] = []

    def labels(self: LabelDP, y: Tensor, own: Own) -> Tensor:
        if not kept:
            kept.append(torch.stack([plain(self, 0 * y + c, own)[0] for c in (0, 1)]))
        released = kept[0].T.expand(*y.shape, 2).gather(2, y.clamp_min(0).unsqueeze(2)).squeeze(2)
        return torch.where(y >= 0, released, y)

    return labels


def remember_in_memory(self: LabelDP, y: Tensor, own: Own) -> Tensor:
    if "answers" not in own.memory:
        own.memory["answers"] = plain(self, y, own)
    answers: Tensor = own.memory["answers"]
    return answers


def train(defense: str, rows: int, seeds: int) -> list[Released]:
    """What was released of the labels of trainings under a claim of 2."""
    tasks = {s: small_task(s, n=rows) for s in range(seeds)}
    made = (DefenseSpec(defense, {}, "", 0.5),)
    cells = [CellSpec({"name": "w"}, "splitnn", SHAPE, made, s) for s in tasks]
    results = run_cohort(cells, [], tasks, device="cpu")
    notes = [m.notes["released"] for r in results for m in r.measures if "released" in m.notes]
    return [Released.read(of) for of in notes]


@pytest.mark.parametrize(
    ("hook", "found"),
    [
        (plain, "nothing"), (remember_in_memory, "nothing"), (remember(), "remembered"),
        (as_it_is(lambda y: y == 1), "broken"), (as_it_is(tenth), "broken"),
        (as_it_is(lambda y: y == y), "broken"),
    ],
)  # fmt: skip
def test_the_hook_of_a_training_is_called_again(
    monkeypatch: pytest.MonkeyPatch, hook: Hook, found: str
) -> None:
    monkeypatch.setattr(LabelDP, "labels", hook)
    told = train("label_dp", rows=120, seeds=2)
    assert len(told) == 2
    p = weigh_released(told, 2.0).p
    assert (p < 1e-9) == (found == "broken")
    assert p > 0.01 or found == "broken"
    assert all(of.remembered == (found == "remembered") for of in told)
    calls = 1 if found == "remembered" else 1 + MOST
    assert [of.canaries for of in told] == [36 * calls] * 2
    if found == "nothing":
        right = sum(sum(of.right.values()) for of in told)
        share, n = 1 / (1 + math.exp(-2.0)), 72 * calls
        assert abs(right / n - share) < 4 * math.sqrt(share * (1 - share) / n)


def test_a_later_stage_is_not_hidden_by_calls_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second stage of LP-MST released its labels as they are, and the claim passed: intact
    guesses of the first, called again, were 64 times as many.
    """

    def relabel(self: LPMST, y: Tensor, stage: int, predict: Any, own: Own) -> Tensor:
        rows = own.memory["parts"][stage]
        return y.scatter(1, rows, own.memory["truth"].gather(1, rows))

    assert weigh_released(train("lp_mst", rows=300, seeds=5), 2.0).p > 0.01
    monkeypatch.setattr(LPMST, "relabel", relabel)
    assert weigh_released(train("lp_mst", rows=300, seeds=5), 2.0).p < 0.002
