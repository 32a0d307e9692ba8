"""SDAR: what a simulated bottom decodes, what carries it, and where it finds nothing."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from attack_views import PARTY, feature_view, made, r2, rng
from torch import nn

from vflsec.core.view import Table, View
from vflsec.errors import ThreatModelError
from vflsec.measure.controls import feature_controls

sdar = partial(made, "sdar")

KEY = ("received", "embedding", "last", "active")


def world(
    seed: int, *, n: int = 900, aux: int = 300, normal: bool = False
) -> tuple[View, torch.Tensor]:
    """Two columns behind z = tanh(A x), and labels drawn from what a top of [own, z] says."""
    g = rng(seed)
    x = torch.randn(n, 2, generator=g) if normal else -torch.rand(n, 2, generator=g).log() - 1
    own = torch.randn(n, 2, generator=g)
    z = torch.tanh(0.6 * x @ torch.tensor([[1.2, 0.3, 0.5], [-0.4, 1.0, 0.2]]))
    top = nn.Linear(5, 2)
    with torch.no_grad():
        half = torch.tensor([1.0, 0.3, 2.0, 1.0, 0.5])
        top.weight.copy_(torch.stack([-half, half]))
        top.bias.zero_()
        p = torch.softmax(top(torch.cat([own, z], 1)), 1)[:, 1]
    y = (torch.rand(n, generator=g) < (0.5 if normal else p)).long()
    models = {"active": {"bottom": nn.Identity(), "top": top}}
    view = feature_view(own, x, z, aux=aux, models=models, facts={"widths": {PARTY: 3}})
    return replace(view, labels=y), x


def shuffled(view: View) -> View:
    """The same embeddings under other ids."""
    t = view.tables[KEY]
    order = torch.randperm(len(t), generator=rng(9))
    return replace(view, tables={KEY: Table(t.tensor[order], t.rows, t.epoch, t.step)})


def figures(worlds: list[tuple[View, torch.Tensor]], **params: object) -> list[float]:
    guesses = sdar(**params).infer_many(
        [v for v, _ in worlds], [rng(s) for s in range(len(worlds))]
    )
    return [r2(g, x) for g, (_, x) in zip(guesses, worlds, strict=True)]


@pytest.mark.slow
@pytest.mark.long
def test_it_decodes_skewed_columns_that_own_columns_and_labels_do_not_tell() -> None:
    worlds = [world(s) for s in range(3)]
    told = [max(r2(c.guess, x) for c in feature_controls([v], [rng()])[0]) for v, x in worlds]
    assert max(told) < 0.3
    assert min(figures(worlds)) > 0.6


@pytest.mark.slow
@pytest.mark.long
def test_it_is_the_adversarial_term_that_finds_the_embedding() -> None:
    assert max(figures([world(s) for s in range(3)], simulate=0.0)) < 0.0


@pytest.mark.slow
@pytest.mark.long
def test_embeddings_of_other_rows_tell_nothing() -> None:
    worlds = [world(s) for s in range(3)]
    assert max(figures([(shuffled(v), x) for v, x in worlds])) < 0.0


@pytest.mark.slow
@pytest.mark.long
def test_normal_columns_that_no_label_tells_apart_stay_hidden() -> None:
    """Any rotation of them fits as well: what is decoded is one, and not the right one."""
    assert max(figures([world(s, normal=True) for s in range(3)])) < 0.3


def test_neither_the_pairs_of_auxiliary_rows_nor_their_scores_are_used() -> None:
    """What they sent may be anything, they get no answer, and no label of a test row is read."""
    view, _ = world(0, n=200, aux=60)
    t = view.tables[KEY]
    spoiled = t.tensor.clone()
    spoiled[:60] = torch.nan
    labels = torch.where(torch.arange(200) < 180, view.labels, -1)
    targets = {"train": torch.arange(60, 180), "test": torch.arange(180, 200)}
    plain = replace(view, targets=targets)
    blind = replace(plain, labels=labels, tables={KEY: replace(t, tensor=spoiled)})
    guess, other = (sdar(steps=10).infer(v, rng()) for v in (plain, blind))
    assert np.array_equal(guess.rows, np.arange(60, 180))
    assert np.array_equal(guess.scores, other.scores)
    moved = replace(plain, labels=1 - plain.labels)
    assert not np.array_equal(sdar(steps=10).infer(moved, rng()).scores, guess.scores)


def test_own_labels_are_a_control_where_the_view_holds_them() -> None:
    """x tells the label, and so the label tells x: R^2 of the two class means is 2 / pi."""
    x = torch.randn(4000, 1, generator=rng(1), dtype=torch.float64)
    own = torch.randn(4000, 1, generator=rng(2), dtype=torch.float64)
    view = replace(feature_view(own, x, x, aux=500), labels=(x[:, 0] > 0).long())
    found = {c.name: r2(c.guess, x) for c in feature_controls([view], [rng()])[0]}
    assert set(found) == {
        "mean", "linear", "network", "entry", "labelled", "labelled, network", "labelled, entry",
        "chosen",
    }  # fmt: skip
    assert found["linear"] < 0.02
    assert found["labelled"] == pytest.approx(2 / np.pi, abs=0.03)


def test_what_it_needs_is_said() -> None:
    view, _ = world(0, n=60, aux=20)
    with pytest.raises(ThreatModelError, match="own models"):
        sdar().infer(replace(view, models={}), rng())
    assert "quantity" in sdar().pointless(replace(view.facts, classes=1))
