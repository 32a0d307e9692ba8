"""Rows of which no message came: attacks that read messages neither use nor guess them."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
import torch
from attack_views import binary_gradients, make_view, measure, tables
from sampled import sampled

import vflsec
from vflsec.core.source import Given
from vflsec.core.view import View
from vflsec.measure.attack import Bench
from vflsec.measure.observed_rows import drop_unobserved_rows
from vflsec.measure.prepared import prepare
from vflsec.plugins import registry
from vflsec.specs import AttackSpec

MADE = [
    {"name": "direction", "positives": 3}, {"name": "hints"}, {"name": "cluster", "names": "known"},
    {"name": "similarity"}, {"name": "exploit", "steps": 60}, {"name": "unsplit"},
    {"name": "gradient_completion"}, {"name": "norm"}, {"name": "message_completion"},
]  # fmt: skip


def some_never_came(known: int = 20) -> tuple[View, torch.Tensor, torch.Tensor]:
    """Gradients that tell all labels, but of 50 rows and of the first half of the known ones."""
    g, y = binary_gradients(400, 8)
    view = make_view(y, gradients=[g, 0.9 * g, 0.8 * g], known=known, columns=torch.randn(400, 4))
    sent = tables([g, g, g], "embedding", "sent")
    assert view.known is not None
    gone = torch.cat([view.known.rows[: known // 2], view.targets["train"][::7][:50]])
    cut = {k: t.take(~torch.isin(t.rows, gone)) for k, t in {**view.tables, **sent}.items()}
    return replace(view, tables=MappingProxyType(cut)), y, gone


@pytest.mark.parametrize("made", sampled(MADE), ids=lambda m: m["name"])
def test_what_came_is_read_by_the_known_rows_that_came(made: dict[str, Any]) -> None:
    """`hints` took other rows for the known ones that never came: its AUC here was 0."""
    view, y, gone = some_never_came()
    name, params = made["name"], {k: v for k, v in made.items() if k != "name"}
    (of,) = prepare([AttackSpec(name, params, known_rows=20)])
    ((answer,),) = Bench().attack(of, Given([view], [0]))
    assert answer.reason == ""
    assert answer.guess is not None
    rows = answer.view.targets["train"]
    assert len(rows) == 400 - 20 - 50
    assert not torch.isin(rows, gone).any()
    assert measure(answer.guess, y, rows=rows) > 0.95
    majority = next(c for c in answer.controls() if c.name == "majority")
    assert set(majority.guess.rows.tolist()) == set(view.targets["train"].tolist())
    alone = vflsec.infer(view, name, **params)
    assert measure(alone, y, rows=rows) > 0.95


def test_where_all_came_or_absence_is_read_the_view_is_as_it_was() -> None:
    view, _, _ = some_never_came()
    zero, hints, completion = (
        registry.attacks.create(n, {}) for n in ("zero_pattern", "hints", "model_completion")
    )
    assert drop_unobserved_rows(zero, view) is view
    assert drop_unobserved_rows(completion, view) is view
    assert drop_unobserved_rows(hints, view) is not view
    whole = make_view(torch.arange(60) % 2, gradients=torch.randn(60, 2), known=4)
    assert drop_unobserved_rows(hints, whole) is whole
    none = {k: t.take(t.rows < 0) for k, t in whole.tables.items()}
    silent = replace(whole, tables=MappingProxyType(none))
    assert drop_unobserved_rows(hints, silent) is silent


@pytest.mark.slow
def test_poisson_batches_of_two_epochs_are_attacked() -> None:
    """Some 13 % of the rows are never drawn; every attack on messages ended in an error."""
    weak = {"dpsgd": {"strength": [0.01], "party": "all", "accountant": "prv"}}
    trained = vflsec.train("leaky", "splitnn", defenses=weak, seeds=2, epochs=2, device="cpu")
    asked: list[dict[str, Any]] = [
        {"name": "direction", "known_rows": 20}, {"name": "norm"},
        {"name": "embedding_inversion", "adversary": "active", "aux_rows": 60},
        {"name": "attribute", "adversary": ["active"], "aux_rows": 60},
    ]  # fmt: skip
    found = vflsec.measure(trained, asked, by_seed=True)
    assert set(found.status) == {"ok"}
    first = found[(found.attack == "direction") & (found.metric == "auc")]
    assert (first.value > 0.9).all()
    n = len(trained.view("passive", known_rows=20, seed=0).targets["train"])
    assert (first.n < 0.95 * n).all()
    assert (first.n > 0.75 * n).all()
