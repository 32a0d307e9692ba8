"""The cluster attack: one cluster a class, named by size or by known rows."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from attack_views import PARTY, binary_gradients, made, make_view, measure, rng
from sampled import sampled
from torch import nn

from vflsec.attacks.cluster import Cluster

cluster = partial(made, "cluster")


def blobs(
    shares: list[float], apart: float = 30.0, n: int = 400
) -> tuple[torch.Tensor, torch.Tensor]:
    edges = torch.tensor(shares).cumsum(0) * n
    y = torch.bucketize(torch.arange(n).float(), edges, right=True)
    y = y[torch.randperm(n, generator=rng(5))]
    x = apart * nn.functional.one_hot(y, len(shares)).double()
    return x + torch.randn(n, len(shares), generator=rng(), dtype=torch.float64), y


@pytest.mark.parametrize("on", ["gradient", "embedding"])
def test_classes_of_different_size_are_named_by_size(on: str) -> None:
    x, y = blobs([0.5, 0.1, 0.4])
    view = make_view(y, gradients=x, columns=x)
    guess = cluster(on=on).infer(view, rng())
    assert measure(guess, y, "accuracy") == 1.0
    assert sorted(guess.notes["cluster_sizes"]) == sorted(torch.bincount(y).tolist())


@pytest.mark.parametrize("classes", sampled([10, 3]))
def test_clusters_are_named_in_the_order_of_their_sizes(classes: int) -> None:
    """By distances to the shares another order was as good, and taken in 2 to 17 of 100 draws."""
    g = np.random.default_rng(0)
    for _ in range(100):
        shares = g.dirichlet(np.full(classes, 3.0))
        member = torch.tensor(g.choice(classes, 400, p=g.dirichlet(np.full(classes, 3.0))))
        view = make_view(torch.arange(400) % classes, gradients=torch.zeros(400, 1))
        view = replace(view, prior=torch.tensor(shares))
        named = Cluster()._names(view, torch.arange(400), member, classes)
        sizes = np.bincount(member.numpy(), minlength=classes)[named]
        assert sizes[np.argsort(shares)].tolist() == sorted(sizes.tolist())


def test_classes_of_equal_size_are_named_by_known_rows() -> None:
    x, y = blobs([0.25] * 4)
    view = make_view(y, gradients=x, known=4)
    guess = cluster(names="known").infer(view, rng())
    assert measure(guess, y, "accuracy") == 1.0
    assert not set(guess.rows.tolist()) & set(view.require_known().rows.tolist())


def test_a_single_download_is_enough() -> None:
    """One message for each row, kept as it passed."""
    g, y = binary_gradients(500, 8)
    view = make_view(y, gradients=g)
    only = {k: t for k, t in view.tables.items() if k == ("received", "gradient", "first", PARTY)}
    guess = cluster(accumulate=False).infer(replace(view, tables=only), rng())
    assert measure(guess, y) > 0.99


def test_cosine_ignores_length() -> None:
    g, y = binary_gradients(500, 8, 0.3)
    g = g * torch.rand(500, 1, generator=rng()).sub(0.5).mul(8).exp()
    guess = cluster(metric="cosine").infer(make_view(y, gradients=g), rng())
    assert measure(guess, y) == 1.0
