"""A public factor on gradients hides nothing: attacks read labels off whatever their units."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest
import torch
from attack_views import make_view, measure, rng, tables
from sampled import sampled

from vflsec.core.view import View
from vflsec.plugins import registry
from vflsec.testing import attacks as suite


def scaled(view: View, factor: float) -> View:
    """The view as it would be with received gradients `factor` times as large."""
    return replace(
        view,
        tables=MappingProxyType(
            {
                key: replace(t, tensor=t.tensor * factor) if key[1] == "gradient" else t
                for key, t in view.tables.items()
            }
        ),
    )


@pytest.mark.parametrize("name", ["norm", "direction", "similarity", "cluster", "direct", "hints"])
@pytest.mark.parametrize("power", sampled([100, -100]))
def test_labels_are_found_behind_a_public_factor(name: str, power: int) -> None:
    """At 1e-30 the squares of `norm` and `direction` were 0 in float32: 0.5 on every seed, and a
    gate passed; at 1e+30 they were infinite.
    """
    views = [scaled(v, 2.0**power) for v in suite.views_of(name)]
    before = suite._values(name, "leaky", False)
    after = suite._values(
        name, "leaky", False, suite._attack(name).infer_many(views, suite._rngs())
    )
    assert np.mean(before) > 0.9
    np.testing.assert_allclose(after, before, atol=1e-3)


COMPARE = [n for n in registry.attacks.names() if registry.attacks.get(n).any_scale]


def test_which_attacks_compare_sizes_over_batches() -> None:
    assert {"norm", "cluster", "exploit"} <= set(COMPARE)


@pytest.mark.parametrize("name", sampled(COMPARE))
def test_a_factor_of_each_batch_is_no_matter_on_request(name: str) -> None:
    """A trace that does not tell its factors is read with these settings as well."""
    attack = registry.attacks.create(name, registry.attacks.get(name).any_scale)
    y = (torch.rand(400, generator=rng(1)) < 0.3).long()
    z = torch.randn(400, 4, generator=rng(2))
    w = torch.tensor([[1.0, -0.5, 2.0, 0.3]])
    g = (torch.sigmoid(0.3 * z @ w.T - 1) - y.unsqueeze(1)) * w
    of = 10.0 ** (torch.arange(400) // 50 * 7 % 5 - 2).unsqueeze(1)
    sent = tables([z], "embedding", "sent", 50)
    views = [make_view(y, gradients=x, known=20, batch=50, extra=sent) for x in (g, g * of)]
    plain, found = (measure(attack.infer(v, rng()), y) for v in views)
    assert plain > 0.9
    assert found == pytest.approx(plain, abs=2e-3)
