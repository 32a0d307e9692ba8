"""Labels that were released, guessed by themselves: a claim is about every class, and every row."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from vflsec.defenses.learned_prior import response
from vflsec.defenses.rr_prior import draw
from vflsec.epsilon.canaries import Planted
from vflsec.epsilon.released_labels import Released, Weighed, count_released, weigh_released
from vflsec.label.classes import Classes


def canaries(classes: int, m: int, rng: torch.Generator) -> Planted:
    pairs = Classes(classes).draw_pairs(m, torch.full((classes,), 1 / classes), rng)
    return Planted(torch.arange(m), torch.randint(2, (m,), generator=rng), pairs)


def weigh(flips: Tensor, epsilon: float, m: int, rng: torch.Generator) -> Weighed:
    """What five trainings say of a claim on labels that are released by a matrix (C, C)."""
    found = []
    for _ in range(5):
        planted = canaries(len(flips), m, rng)
        true = planted.carried
        coins = torch.rand(1, m, generator=rng, dtype=torch.float64)
        seen = draw(flips.unsqueeze(0), true.unsqueeze(0), coins)[0]
        counted = count_released(true, seen, planted)
        assert counted is not None
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
    assert (found.guesses, found.tries) == (375, 2)


@pytest.mark.parametrize("classes", [2, 4])
def test_an_intact_mechanism_is_accused_no_more_often_than_the_level(classes: int) -> None:
    rng, flips = torch.Generator().manual_seed(classes), response(1.0, classes)
    low = sum(weigh(flips, 1.0, 100, rng).p < 0.05 for _ in range(200))
    assert low <= 19  # 10 expected at most, and three deviations


@pytest.mark.parametrize("form", [lambda y: y, lambda y: torch.eye(3)[y] + 0.1])
def test_the_likelier_candidate_counts(form: Callable[[Tensor], Tensor]) -> None:
    pairs = torch.tensor([[0, 1], [0, 1], [2, 1]])
    planted = Planted(torch.tensor([4, 0, 2]), torch.tensor([0, 1, 1]), pairs)
    released = form(torch.tensor([0, 0, 0, 0, 0]))
    found = count_released(torch.zeros(5).long(), released, planted)
    assert found is not None
    assert found.guesses == {(0, 1): 2}
    assert found.right == {(0, 1): 1}
    assert count_released(torch.zeros(5, 1), released, planted) is None
