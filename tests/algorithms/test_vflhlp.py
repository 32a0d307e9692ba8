"""VFLHLP: reductions, the constraint, SCARF, and silence in stage 1."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from by_hand import assert_same, federation, largest_difference, tapped, trained
from torch import Tensor
from torch.nn.functional import cosine_similarity, cross_entropy
from worlds import few_aligned, small_task, stack

from vflsec.algorithms.local import Local
from vflsec.algorithms.splitnn import SplitNN
from vflsec.algorithms.vflhlp import VFLHLP
from vflsec.core.federation import Federation
from vflsec.core.policy import Own, Policy
from vflsec.core.rng import Streams, generator
from vflsec.core.task import Stack
from vflsec.core.view import Schema
from vflsec.errors import ConfigError, PolicyError
from vflsec.nn.augment import Corruption
from vflsec.nn.scarf import scarf_loss
from vflsec.train import loop
from vflsec.train.loop import run_phases

SMALL: dict[str, Any] = {
    "hidden": (7,), "cut": 3, "top": (4,), "batch_size": 16, "lr": 1e-2, "epochs": 5, "patience": 2,
}  # fmt: skip
SCARF: dict[str, Any] = {
    "scarf_epochs": 2, "scarf_batch_size": 32, "projector": (8, 8), "scarf_patience": 0,
}  # fmt: skip


def few(seeds: list[int], **world: Any) -> Stack:
    """48 of 144 training rows aligned and labelled; the active party has labels of all."""
    tasks = {s: few_aligned(small_task(s, **world), 48) for s in set(seeds)}
    return Stack.build(tasks, seeds, dtype=torch.float64)


def stages(algorithm: VFLHLP, stacked: Stack, seeds: list[int]) -> tuple[Federation, list[str]]:
    fed = federation(algorithm, stacked, seeds)
    return fed, [phase.name for phase in run_phases(algorithm, fed)]


@pytest.mark.parametrize("off", [{"constrain": False}, {"beta": 0.0}])
def test_neither_stage_is_splitnn_bit_for_bit(off: dict[str, Any]) -> None:
    seeds = [0, 1]
    stacked = few(seeds, widths=(4, 6, 5))
    split = trained(SplitNN(**SMALL), stacked, seeds)
    fed, names = stages(VFLHLP(**SMALL, scarf=False, **off), stacked, seeds)
    assert names == ["train"]
    assert_same(split.state(), fed.state())
    assert split.channel.ledger.of(0) == fed.channel.ledger.of(0)


def test_beta_zero_is_the_ablation_without_constraint() -> None:
    seeds = [0, 1]
    zero, names = stages(VFLHLP(**SMALL, **SCARF, beta=0.0), few(seeds), seeds)
    p, _ = stages(VFLHLP(**SMALL, **SCARF, constrain=False), few(seeds), seeds)
    assert names == ["scarf:passive1", "train"]
    assert_same(zero.state(), p.state())
    full, names = stages(VFLHLP(**SMALL, **SCARF, beta=1.0), few(seeds), seeds)
    assert names == ["supervised", "scarf:passive1", "train"]
    a, names = stages(VFLHLP(**SMALL, scarf=False, beta=1.0), few(seeds), seeds)
    assert names == ["supervised", "train"]
    split = trained(SplitNN(**SMALL), few(seeds), seeds)
    states = [f.state() for f in (p, full, a, split)]
    for i, one in enumerate(states):
        for other in states[:i]:
            assert largest_difference(one, other) > 1e-3


def after_stage(algorithm: VFLHLP, stacked: Stack, seeds: list[int], name: str) -> Federation:
    """The federation when the phase `name` has ended."""
    fed = federation(algorithm, stacked, seeds)
    for phase in run_phases(algorithm, fed):
        if phase.name == name:
            return fed
    raise AssertionError(name)


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_the_supervised_stage_is_local_bit_for_bit(dropout: float) -> None:
    """On all labelled rows of the active party, early stopping included."""
    seeds = [0, 1, 2]
    settings = {**SMALL, "dropout": dropout, "epochs": 8}
    fed = after_stage(VFLHLP(**settings), few(seeds), seeds, "supervised")
    local = trained(Local(**settings, own_labels=True), few(seeds), seeds)
    mine = fed.state()["active"]
    got = {"bottom": mine["local_bottom"], "top": mine["local_top"]}
    assert_same({"active": local.state()["active"]}, {"active": got})
    assert fed.epochs["supervised"] == local.epochs["train"]


def test_own_labels_are_those_of_all_own_rows() -> None:
    """Local-A on 48 aligned rows is local on all 144 rows of the active party."""
    seeds = [0, 1]
    tasks = {s: small_task(s) for s in seeds}
    every = trained(Local(**SMALL), Stack.build(tasks, seeds, dtype=torch.float64), seeds)
    own = trained(Local(**SMALL, own_labels=True), few(seeds), seeds)
    assert_same(every.state(), own.state())
    assert own.channel.ledger.entries == {}
    aligned = trained(Local(**SMALL), few(seeds), seeds)
    assert largest_difference(aligned.state(), own.state()) > 1e-3


def test_stage_one_sends_nothing() -> None:
    fed = federation(VFLHLP(**SMALL, **SCARF), few([0], widths=(4, 6, 5)))
    before = fed.state()
    seen = []
    for phase in run_phases(VFLHLP(**SMALL, **SCARF), fed):
        if phase.name == "train":
            break
        seen.append(phase.name)
        sent = {(r["kind"], r["name"]) for r in fed.channel.ledger.of(0)}
        assert sent == {("ids", "intersection")}
        assert not phase.audited
    assert seen == ["supervised", "scarf:passive1", "scarf:passive2"]
    ledger = fed.channel.ledger.of(0)
    assert {r["phase"] for r in ledger} == {"train", "predict"}
    split = trained(SplitNN(**{**SMALL, "patience": 0}), few([0], widths=(4, 6, 5)))
    fed = trained(VFLHLP(**{**SMALL, "patience": 0}, **SCARF), few([0], widths=(4, 6, 5)))
    assert fed.channel.ledger.of(0) == split.channel.ledger.of(0)
    assert set(fed.parties["passive1"].modules) == {"bottom"}
    assert set(fed.active.modules) == {"bottom", "top"}
    assert largest_difference({"passive2": before["passive2"] | {}}, {
        "passive2": {"bottom": fed.state()["passive2"]["bottom"],
                     "projector": before["passive2"]["projector"]}}) > 1e-3  # fmt: skip


def constrained(**settings: Any) -> tuple[VFLHLP, Federation]:
    """Ready for stage 2, with models of stage 1 that differ from where stage 2 starts."""
    algorithm = VFLHLP(**{**SMALL, "epochs": 2, **settings}, scarf=False)
    fed = federation(algorithm, few([0, 1]), [0, 1])
    for phase in run_phases(algorithm, fed):
        if phase.name == "supervised":
            break
    fed.phase = "train"
    algorithm._begin(fed)
    return algorithm, fed


@pytest.mark.parametrize("aggregation", ["concat", "sum"])
def test_gradient_of_the_constraint(aggregation: str) -> None:
    """beta (theta - Theta) for the bottom, the head's own columns and its bias; 0 elsewhere."""
    algorithm, fed = constrained(beta=0.3, aggregation=aggregation)
    alone = fed.extra["alone"].active.modules
    term = algorithm.own_term(fed)
    assert term is not None
    assert term.shape == (2,)
    mine = fed.active.modules
    total = torch.zeros(2, dtype=torch.float64)
    for part in ("bottom", "top"):
        params = mine[part].params
        grads = torch.autograd.grad(
            term.sum(), list(params.values()), retain_graph=True, allow_unused=True
        )
        for (key, now), grad in zip(params.items(), grads, strict=True):
            target = alone[part].params[key]
            if part == "top" and not key.startswith("0."):
                assert grad is None
                continue
            assert grad is not None
            if key == "0.weight" and part == "top" and aggregation == "concat":
                assert not grad[:, :, 3:].any()
                now, grad = now[:, :, :3], grad[:, :, :3]
            torch.testing.assert_close(grad, 0.3 * (now - target), rtol=0, atol=1e-14)
            assert float(grad.abs().max()) > 0
            total = total + 0.15 * (now - target).detach().square().flatten(1).sum(1)
    torch.testing.assert_close(term.detach(), total, rtol=0, atol=1e-12)


def test_no_constraint_where_nothing_moved() -> None:
    """theta = Theta gives 0 with zero gradient; a warm start begins there."""
    algorithm, fed = constrained(beta=5.0, warm_start=True)
    term = algorithm.own_term(fed)
    assert term is not None
    assert term.tolist() == [0.0, 0.0]
    bottom = fed.active.modules["bottom"].parameters()
    assert all(not g.any() for g in torch.autograd.grad(term.sum(), bottom))
    rows = fed.stack.rows("labelled")[:, :16]
    algorithm.step(fed, rows)
    moved = algorithm.own_term(fed)
    assert moved is not None
    assert float(moved.detach().min()) > 0


def test_a_huge_constraint_puts_the_bottom_back() -> None:
    """Plain SGD with lr x beta = 1: theta^1 = Theta^1 - lr dL/dtheta^1 after one step."""
    lr = 1e-3
    algorithm, fed = constrained(beta=1 / lr, lr=lr, optimizer="sgd")
    plain = SplitNN(**{**SMALL, "lr": lr, "optimizer": "sgd"})
    reference = federation(plain, few([0, 1]), [0, 1])
    rows = fed.stack.rows("labelled")[:, :16]
    start = reference.state()["active"]["bottom"]
    assert all(torch.equal(v, start[k]) for k, v in fed.active.modules["bottom"].state().items())
    algorithm.step(fed, rows)
    plain.step(reference, rows)
    stage1 = fed.extra["alone"].active.modules["bottom"].params
    for key, now in fed.active.modules["bottom"].params.items():
        gradient = (start[key] - reference.active.modules["bottom"].params[key]) / lr
        torch.testing.assert_close(now, stage1[key] - lr * gradient, rtol=0, atol=1e-12)


def test_the_constraint_changes_no_message() -> None:
    """The first gradients that go down are those of FedSplitNN."""
    algorithm, fed = constrained(beta=100.0)
    plain = SplitNN(**SMALL)
    reference = federation(plain, few([0, 1]), [0, 1])
    rows = fed.stack.rows("labelled")[:, :16]
    with tapped(fed) as mine, tapped(reference) as theirs:
        algorithm.step(fed, rows)
        plain.step(reference, rows)
    assert [m.kind for m, _ in mine] == [m.kind for m, _ in theirs]
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(mine, theirs, strict=True))


def test_scarf_loss_is_info_nce_minus_log_n() -> None:
    g = generator(0, "scarf")
    z, c = (torch.randn(3, 9, 5, dtype=torch.float64, generator=g) for _ in range(2))
    for r in range(3):
        s = cosine_similarity(z[r].unsqueeze(1), c[r].unsqueeze(0), dim=-1) / 0.7
        expected = cross_entropy(s, torch.arange(9)) - math.log(9)
        assert float(scarf_loss(z, c, 0.7)[r]) == pytest.approx(float(expected), abs=1e-12)
    same = torch.ones(1, 9, 5, dtype=torch.float64)
    assert float(scarf_loss(same, same)) == pytest.approx(0.0, abs=1e-12)
    corner = torch.eye(5, dtype=torch.float64).unsqueeze(0)
    assert float(scarf_loss(corner, corner, 0.1)) < -1.6


@pytest.mark.parametrize("rate", [0.0, 0.5, 1.0])
def test_corruption(rate: float) -> None:
    """Rate 0 keeps rows; else that share of the columns takes values of the same column."""
    g = generator(0, "x")
    pool = torch.randn(2, 50, 4, dtype=torch.float64, generator=g)
    schema = Schema(("a", "b", "c", "d"), (0,) * 4, (4,))
    rng = Streams([0, 1], "test", dtype=torch.float64)
    x = pool[:, :20]
    out = Corruption(schema, pool, rate, "marginal", rng)(x)
    changed = out != x
    assert float(changed.double().mean()) == pytest.approx(rate, abs=0.05)
    assert int(changed.sum(-1).max()) == round(4 * rate)
    for r in range(2):
        for j in range(4):
            assert torch.isin(out[r, :, j], pool[r, :, j]).all()
    if rate == 0:
        assert torch.equal(out, x)


def test_without_corruption_both_views_are_one() -> None:
    """The loss of stage 1b is then that of a row against itself, and still trains."""
    seeds = [0]
    clean = VFLHLP(**SMALL, **SCARF, constrain=False, corruption=0.0)
    corrupted = replace(clean, corruption=0.6)
    a, b = (after_stage(alg, few(seeds), seeds, "scarf:passive1") for alg in (clean, corrupted))
    assert largest_difference(a.state(), b.state()) > 1e-3
    x = a.columns("passive1", a.stack.rows("test"))
    modules = a.parties["passive1"].modules
    z = modules["projector"](modules["bottom"](x))
    assert float(scarf_loss(z, z).detach()) < 0


def test_scarf_lowers_its_loss() -> None:
    seeds = [0, 1]
    algorithm = VFLHLP(**SMALL, **{**SCARF, "scarf_epochs": 15}, constrain=False, corruption=0.3)
    losses = []
    for fed in (
        federation(algorithm, few(seeds), seeds),
        after_stage(algorithm, few(seeds), seeds, "scarf:passive1"),
    ):
        x = fed.columns("passive1", fed.stack.rows("test"))
        pool = fed.columns("passive1", fed.stack.rows("labelled"))
        rng = Streams(seeds, "test", dtype=torch.float64)
        corrupt = Corruption(fed.stack.first.schema["passive1"], pool, 0.3, "marginal", rng)
        m = fed.parties["passive1"].modules
        with torch.no_grad():
            losses.append(
                scarf_loss(m["projector"](m["bottom"](x)), m["projector"](m["bottom"](corrupt(x))))
            )
    assert bool((losses[1] < losses[0] - 0.05).all())


@dataclass(frozen=True)
class ByRow(Policy):
    """Takes the sum of what single rows add, which changes nothing."""

    name = "by_row"

    def gradients(self, gradients: list[Tensor], rows: Any, own: Own) -> list[Tensor]:
        return [r.sum(1) for r in rows()]


def test_what_cannot_be_limited_by_row_is_refused() -> None:
    """A defense on gradients of single rows is never left out silently."""
    one = torch.ones(1, dtype=torch.float64)
    on = {p: {p: [(ByRow(), one)]} for p in ("active", "passive1")}
    quick = {**SMALL, "epochs": 1}
    with pytest.raises(PolicyError, match="by_row: SCARF couples the rows"):
        trained(VFLHLP(**quick, **SCARF), few([0]), policies=on["passive1"])
    with pytest.raises(PolicyError, match="the constraint is no sum over rows"):
        trained(VFLHLP(**quick, scarf=False), few([0]), policies=on["active"])
    free = VFLHLP(**quick, scarf=False, constrain=False)
    plain = trained(free, few([0]))
    limited = trained(free, few([0]), policies=on["active"])
    assert largest_difference(plain.state(), limited.state()) < 1e-9


def test_scarf_stops_early_with_the_weights_of_its_best_epoch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each replica has what it has after exactly its best number of epochs, bit for bit."""
    losses: list[Tensor] = []
    original = loop._Best.update

    def update(best: Any, on: Tensor) -> Tensor:
        with torch.no_grad():
            losses.append(best.regret())
        return original(best, on)

    monkeypatch.setattr(loop._Best, "update", update)
    settings = {**SMALL, **SCARF, "scarf_epochs": 60, "scarf_lr": 0.05, "constrain": False}
    seeds, name = [0, 1], "scarf:passive1"
    early = after_stage(VFLHLP(**settings | {"scarf_patience": 2}), few(seeds), seeds, name)
    assert 3 <= len(losses) < 60
    for r in (0, 1):
        seen = [float(loss[r]) for loss in losses]
        best = next(  # the first epoch that the next two do not beat
            i for i in range(len(seen)) if min(seen[i + 1 : i + 3], default=9.0) >= seen[i]
            and seen[i] == min(seen[: i + 1])
        )  # fmt: skip
        until = VFLHLP(**settings | {"scarf_epochs": best + 1})
        plain = after_stage(until, few(seeds), seeds, name)
        for part in ("bottom", "projector"):
            a, b = (f.parties["passive1"].modules[part].state() for f in (early, plain))
            assert all(torch.equal(a[k][r], b[k][r]) for k in a)


def test_scarf_refuses_images() -> None:
    task = small_task(0)
    schema = {**task.schema, "passive1": Schema((), (), (6,))}
    stacked = Stack.build({0: replace(task, schema=schema)}, [0], dtype=torch.float64)
    with pytest.raises(ConfigError, match=r"vflhlp.scarf must be false: 'passive1'"):
        federation(VFLHLP(**SMALL), stacked)
    assert federation(VFLHLP(**SMALL, scarf=False), stacked).replicas == 1
    assert stack([0]).replicas == 1
