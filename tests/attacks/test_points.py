"""Points, clusters, first directions and exact splits: what several attacks share."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from attack_views import PARTY, make_view, rng, tables

from vflsec.core.view import Table, join_side_by_side
from vflsec.errors import ThreatModelError
from vflsec.inference.clustering_points import (
    Points,
    first_direction,
    k_means,
    lower_cluster,
    make_points,
)


def test_gradients_come_sorted_by_row_and_embeddings_cover_known_and_target_rows() -> None:
    y = torch.arange(20) % 2
    g = torch.arange(40.0).reshape(20, 2)
    view = make_view(y, gradients=g, columns=3 * g, known=4, test=5)
    order = torch.randperm(20, generator=rng())
    key = ("received", "gradient", "mean", PARTY)
    shuffled = {**view.tables, key: view.tables[key].take(order)}
    from dataclasses import replace

    again = make_points(replace(view, tables=shuffled), "gradient")
    assert torch.equal(again.rows, torch.arange(20))
    assert torch.equal(again.x, g.double())
    assert torch.equal(make_points(view, "embedding").x, 3 * g.double())
    assert torch.equal(again.of(torch.tensor([7, 2])), g[[7, 2]].double())
    assert again.without(torch.tensor([0, 19])).rows.tolist() == list(range(1, 19))


def test_first_direction_is_that_of_the_singular_value_decomposition() -> None:
    x = torch.randn(50, 6, generator=rng(), dtype=torch.float64) * torch.arange(1, 7)
    v = torch.linalg.svd(x - x.mean(0)).Vh[0]
    assert abs(float(first_direction(x) @ v)) == pytest.approx(1.0, abs=1e-10)


def test_the_split_of_numbers_is_the_best_of_all_splits() -> None:
    a = torch.tensor([0.1, 5.0, 0.2, 4.0, 0.0, 0.3], dtype=torch.float64)
    assert lower_cluster(a).tolist() == [True, False, True, False, True, True]
    for seed in range(5):
        b = torch.randn(30, generator=rng(seed), dtype=torch.float64)
        low = lower_cluster(b)
        spread = float(
            b[low].var(correction=0) * low.sum() + b[~low].var(correction=0) * (~low).sum()
        )
        s = np.sort(b.numpy())
        every = [s[:i].var() * i + s[i:].var() * (30 - i) for i in range(1, 30)]
        assert spread == pytest.approx(min(every))


def test_k_means_finds_separated_groups_whatever_the_order_of_centres() -> None:
    truth = torch.arange(120) % 4
    x = 20.0 * torch.eye(4, dtype=torch.float64)[truth] + torch.randn(
        120, 4, generator=rng(), dtype=torch.float64
    )
    found = k_means(x, 4, rng())
    pairs = {(int(a), int(b)) for a, b in zip(truth, found.member)}
    assert len(pairs) == 4
    assert found.spread == pytest.approx(
        float(sum(((x[truth == c] - x[truth == c].mean(0)) ** 2).sum() for c in range(4)))
    )
    seeded = k_means(x, 4, start=x[:4])
    assert torch.equal(seeded.member, truth)


def test_standardising_leaves_constant_columns_at_zero() -> None:
    x = Points(torch.arange(4), torch.tensor([[1.0, 3], [1, 5], [1, 7], [1, 9]]).double())
    z = x.standardised().x
    assert z[:, 0].tolist() == [0, 0, 0, 0]
    assert float(z[:, 1].std(correction=0)) == pytest.approx(1.0)


def test_a_coalition_sees_the_rows_that_all_its_parties_received_side_by_side() -> None:
    def table(rows: list[int], factor: float) -> Table:
        ids = torch.tensor(rows)
        return Table(factor * ids.float().unsqueeze(1), ids, 0 * ids, ids)

    joined = join_side_by_side([table([3, 1, 2], 1.0), table([2, 3, 9], 10.0)])
    assert joined.rows.tolist() == [2, 3]
    assert joined.tensor.tolist() == [[2, 20], [3, 30]]
    assert joined.step.tolist() == [2, 3]
    everything = tables([torch.ones(3, 1), torch.zeros(3, 1)])
    all_epochs = everything["received", "gradient", "all", PARTY]
    assert join_side_by_side([all_epochs, all_epochs]).tensor.shape == (6, 2)
    with pytest.raises(ThreatModelError, match="more than once"):
        join_side_by_side([all_epochs, table([0, 1], 1.0)])
