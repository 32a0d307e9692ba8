"""FedBCD: its reductions to FedSplitNN, its stale gradients and what it saves."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from by_hand import (
    assert_follows,
    assert_same,
    federation,
    largest_difference,
    models,
    tapped,
    trained,
)
from sampled import sampled
from torch import Tensor, nn
from worlds import stack

from vflsec.algorithms.fedbcd import FedBCD
from vflsec.algorithms.splitnn import SplitNN
from vflsec.core.federation import Federation

SMALL: dict[str, Any] = {"hidden": (7,), "cut": 3, "top": (4,), "batch_size": 16, "lr": 1e-2}
ORDERS = ("parallel", "sequential")


def one_round(fed: Federation, algorithm: SplitNN) -> Tensor:
    """One round on the first 16 training rows, (1, 16)."""
    rows = fed.stack.rows("labelled")[:, :16]
    algorithm.step(fed, rows)
    return rows


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("proximal", sampled([3.0, 0.0]))
def test_one_local_update_is_splitnn_bit_for_bit(order: str, proximal: float) -> None:
    seeds = [0, 1, 2]
    stacked = stack(seeds, widths=(4, 6, 5))
    settings = {**SMALL, "epochs": 6, "patience": 2}
    split = trained(SplitNN(**settings), stacked, seeds)
    bcd = trained(
        FedBCD(**settings, local_updates=1, order=order, proximal=proximal), stacked, seeds
    )
    assert_same(split.state(), bcd.state())
    assert split.channel.ledger.of(1) == bcd.channel.ledger.of(1)
    more = trained(FedBCD(**settings, local_updates=2, order=order), stacked, seeds)
    assert largest_difference(split.state(), more.state()) > 1e-3


@pytest.mark.parametrize("q", [2, 5])
def test_stale_updates_of_a_linear_bottom_add_up(q: int) -> None:
    """Plain SGD: Q updates with a stale gradient equal one with Q times the learning rate."""
    stacked = stack([0])
    settings: dict[str, Any] = {"hidden": (), "cut": 3, "optimizer": "sgd"}
    several, one = FedBCD(**settings, lr=0.01, local_updates=q), SplitNN(**settings, lr=0.01 * q)
    feds = [federation(a, stacked) for a in (several, one)]
    for fed, algorithm in zip(feds, (several, one), strict=True):
        for party in fed.parties.values():
            for group in party.optimizer.param_groups:
                group["momentum"] = 0.0
        one_round(fed, algorithm)
    a, b = ({"passive1": f.state()["passive1"]} for f in feds)
    assert largest_difference(a, b) < 1e-12
    assert largest_difference(feds[0].state(), feds[1].state()) > 1e-6  # the active party is fresh


@pytest.mark.parametrize("order", ORDERS)
def test_rounds_by_hand(order: str) -> None:
    """Three updates with Adam and a proximal term, against plain torch."""
    mu, q = 0.7, 3
    algorithm = FedBCD(**SMALL, local_updates=q, order=order, proximal=mu)
    fed = federation(algorithm, stack([0]))
    task = fed.stack.first
    mine, theirs = models(fed, "active"), models(fed, "passive1")["bottom"]
    rows = one_round(fed, algorithm)[0]
    x, y = {p: task.x[p][rows].double() for p in task.parties}, task.y[rows]

    def loss(z: Tensor) -> Tensor:
        logits = mine["top"](torch.cat([mine["bottom"](x["active"]), z], dim=1))
        return nn.functional.cross_entropy(logits, y)

    own = [*mine["bottom"].parameters(), *mine["top"].parameters()]
    optimizers = [torch.optim.Adam(p, lr=1e-2) for p in (own, list(theirs.parameters()))]

    def update(which: int, objective: Tensor, reference: list[Tensor]) -> None:
        params = optimizers[which].param_groups[0]["params"]
        optimizers[which].zero_grad()
        objective.backward()
        for p, r in zip(params, reference):
            p.grad += mu * (p.detach() - r)
        optimizers[which].step()

    stale = theirs(x["passive1"]).detach().requires_grad_()
    reference: list[Tensor] = []
    cuts = []
    for i in range(q):
        (cut,) = torch.autograd.grad(loss(stale), stale)
        cuts.append(cut)
        update(0, loss(stale), reference)
        reference = [p.detach().clone() for p in own] if i == 0 else reference
    sent = cuts[-1] if order == "sequential" else cuts[0]
    reference = []
    for i in range(q):
        update(1, (theirs(x["passive1"]) * sent).sum(), reference)
        reference = [p.detach().clone() for p in theirs.parameters()] if i == 0 else reference
    assert_follows(fed, {"active": mine, "passive1": {"bottom": theirs}})


@pytest.mark.parametrize("order", ORDERS)
def test_messages_do_not_depend_on_the_number_of_updates(order: str) -> None:
    """One embedding and one gradient a round: Q times fewer an update."""
    ledgers = []
    for q in (1, 4):
        algorithm = FedBCD(**SMALL, epochs=3, patience=0, local_updates=q, order=order)
        fed = trained(algorithm, stack([0], torch.float32))
        ledgers.append(fed.channel.ledger.of(0))
    assert ledgers[0] == ledgers[1]
    gradient = next(r for r in ledgers[1] if r["kind"] == "gradient")
    assert gradient["messages"] == 3 * 9
    assert gradient["bytes"] == 3 * 144 * 3 * 4


@pytest.mark.parametrize("order", ORDERS)
def test_learning_rate_zero_changes_nothing(order: str) -> None:
    algorithm = FedBCD(**SMALL, local_updates=3, order=order, proximal=1.0)
    fed = federation(algorithm, stack([0]))
    before = fed.state()
    for party in fed.parties.values():
        for group in party.optimizer.param_groups:
            group["lr"] = 0.0
    one_round(fed, algorithm)
    assert_same(before, fed.state())


def test_the_message_of_the_sequential_form_is_the_last_one() -> None:
    """The parallel form sends what FedSplitNN sends; the sequential one something else."""
    sent = {}
    for name, algorithm in {
        "split": SplitNN(**SMALL),
        "parallel": FedBCD(**SMALL, local_updates=4),
        "sequential": FedBCD(**SMALL, local_updates=4, order="sequential"),
    }.items():
        fed = federation(algorithm, stack([0]))
        with tapped(fed) as passed:
            one_round(fed, algorithm)
        assert [m.kind for m, _ in passed] == ["ids", "embedding", "gradient"]
        sent[name] = passed[-1][1]
    assert torch.equal(sent["split"], sent["parallel"])
    assert not torch.equal(sent["split"], sent["sequential"])
