"""The generative regression network."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import MappingProxyType

import numpy as np
import pytest
import torch
from attack_views import PARTY, feature_view, made, make_view, r2, rng
from torch import nn

from vflsec.core.view import Schema, Table, View
from vflsec.plugins import registry

grn = partial(made, "grn")


def world(seed: int = 0, n: int = 256) -> tuple[View, torch.Tensor]:
    """One column behind an invertible linear model; logits are sums."""
    x = torch.randn(n, 1, generator=rng(seed))
    own = 0.7 * x + 0.7 * torch.randn(n, 1, generator=rng(seed + 1))
    models = {"active": {"bottom": nn.Linear(1, 2)}, PARTY: {"bottom": nn.Linear(1, 2)}}
    with torch.no_grad():
        models[PARTY]["bottom"].weight.copy_(torch.tensor([[0.6], [-0.6]]))
    z = models[PARTY]["bottom"](x).detach()
    return feature_view(own, x, z, models=models, facts={"top": False, "aggregation": "sum"}), x


@pytest.mark.slow
def test_it_works_where_a_shuffled_prediction_does_not() -> None:
    """An invertible F of one column: own columns alone explain half of it, predictions more."""
    torch.manual_seed(0)
    view, x = world()
    found = r2(grn(epochs=60, noise=0, match="prediction").infer(view, rng()), x)
    key = ("received", "embedding", "last", "active")
    table = view.tables[key]
    order = torch.randperm(len(x), generator=rng(5))
    shuffled = Table(table.tensor[order], table.rows, table.epoch, table.step)
    lost = r2(grn(epochs=60, noise=0).infer(replace(view, tables={key: shuffled}), rng()), x)
    control = np.corrcoef(view.columns["active"][:, 0], x[:, 0])[0, 1] ** 2
    assert found == pytest.approx(control, abs=0.15)
    assert lost < 0.2 < found


def test_tables_with_categories_are_declined_and_no_failure() -> None:
    """`grn` and `unsplit_input` said so of themselves, and ended in an error."""
    mine = {"passive1": Schema(("a",), (0,), (1,)), "other": Schema(("b", "c"), (0, 3), (2,))}
    view = replace(make_view(torch.arange(8) % 2), schema=MappingProxyType(mine))
    for name in ("grn", "unsplit_input", "equation_solving"):
        why = registry.attacks.create(name, {}).declines(view)
        assert "numeric columns, unlike other" in why
        numbers = {**mine, "other": Schema(("b",), (0,), (1,))}
        plain = replace(view, schema=MappingProxyType(numbers))
        assert registry.attacks.create(name, {}).declines(plain) == ""
