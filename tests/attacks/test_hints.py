"""The hint attacks: distance to, and projection on, gradients of known positives."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from attack_views import binary_gradients, made, make_view, measure, rng

from vflsec.errors import ThreatModelError

hints = partial(made, "hints")


@pytest.mark.parametrize("measured_by", ["projection", "distance"])
@pytest.mark.parametrize("count", [1, 3, 5])
def test_two_points_are_told_apart(measured_by: str, count: int) -> None:
    y = (torch.rand(300, generator=rng()) < 0.3).long()
    v = torch.randn(5, generator=rng(1), dtype=torch.float64)
    view = make_view(y, gradients=(0.3 - y.double()).unsqueeze(1) * v, known=10)
    guess = hints(measure=measured_by, hints=count).infer(view, rng())
    assert measure(guess, y) == 1.0
    used = view.require_known().of_class(1)[:count]
    assert not set(used.tolist()) & set(guess.rows.tolist())


def test_the_formulas() -> None:
    g, y = binary_gradients(60, 3)
    g = g.double() + torch.randn(60, 3, generator=rng(), dtype=torch.float64)
    view = make_view(y, gradients=g, known=6)
    known = view.require_known()
    h, away = g[known.of_class(1)[:3]], g[known.of_class(0)[:3]]
    far = hints(measure="distance", hints=3).infer(view, rng())
    near = [min(float((g[i] - hj).norm()) for hj in h) for i in far.rows]
    expected = [min(float((g[i] - a).norm()) for a in away) for i in far.rows]
    assert far.scores == pytest.approx([a - b for a, b in zip(expected, near, strict=True)])
    published = hints(measure="distance", hints=3, negatives=False).infer(view, rng())
    near = [min(float((g[i] - hj).norm()) for hj in h) for i in published.rows]
    assert published.scores == pytest.approx([-d for d in near])
    along = hints(hints=3).infer(view, rng())
    longest = max([*h, *(-away)], key=lambda hj: float(hj.norm()))
    assert along.scores == pytest.approx(
        [float(g[i] @ longest / longest.norm()) for i in along.rows]
    )


def test_too_few_positives_are_refused() -> None:
    g, y = binary_gradients(100, 4)
    with pytest.raises(ThreatModelError, match="needs 5 known positives, got 2"):
        hints().infer(make_view(y, gradients=g, known=4), rng())


@pytest.mark.parametrize(("known", "least", "enough"), [(4, 2, True), (4, 3, False), (0, 1, False)])
def test_too_few_positives_are_known_before_an_answer(known: int, least: int, enough: bool) -> None:
    g, y = binary_gradients(100, 4)
    view = make_view(y, gradients=g, known=known)
    for attack in (hints(hints=least), made("direction", positives=least)):
        assert (not attack.explain_grant(view)) == enough


def test_a_known_negative_tells_hard_positives_from_easy_negatives() -> None:
    """Short positive gradients lie near no hint, but nearer to one than to a negative."""
    y = torch.arange(400) % 2
    size = torch.rand(400, generator=rng(3), dtype=torch.float64) ** 2
    g = ((2 * y - 1) * size).unsqueeze(1) * torch.ones(1, 3, dtype=torch.float64)
    g = g + 0.02 * torch.randn(400, 3, generator=rng(4), dtype=torch.float64)
    view = make_view(y, gradients=g, known=4)
    rows = view.targets["train"]
    both = measure(hints(measure="distance", hints=2).infer(view, rng()), y, rows=rows)
    alone = measure(
        hints(measure="distance", hints=2, negatives=False).infer(view, rng()), y, rows=rows
    )
    assert both > max(alone, 0.95)
