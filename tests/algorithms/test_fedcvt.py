"""FedCVT: attention, pseudo-labels, its loss by hand, and what it sends."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from by_hand import assert_same, federation, largest_difference, models, tapped, trained
from sampled import sampled
from torch import Tensor, nn
from worlds import few_aligned, small_task, stack

from vflsec.algorithms.fedcvt import FedCVT, _Estimate, attend, weights
from vflsec.algorithms.splitnn import SplitNN
from vflsec.core.channel import Recorder
from vflsec.core.federation import Federation
from vflsec.core.rng import generator
from vflsec.core.task import Stack
from vflsec.errors import ConfigError
from vflsec.nn.models import Twin
from vflsec.nn.replicas import LEAST, Replicas

SMALL: dict[str, Any] = {
    "hidden": (7,), "cut": 3, "batch_size": 16, "lr": 1e-2, "epochs": 4, "patience": 2,
    "nl_batch_size": 10, "block": 20,
}  # fmt: skip
SPLIT = {k: v for k, v in SMALL.items() if k not in ("nl_batch_size", "block")}
PLAIN: dict[str, Any] = {
    "lambda1": 0.0, "lambda2": 0.0, "lambda3": 0.0, "lambda4": 0.0, "side_heads": False,
}  # fmt: skip
NEXT_TO_ONE = math.nextafter(1.0, 0.0)
EAGER: dict[str, Any] = {"t_fed": 0.4, "t_guest": 0.4, "t_host": 0.4, "sharpening": 0.1}


def few(seeds: list[int], dtype: torch.dtype = torch.float64, labelled: int | None = 48) -> Stack:
    """64 aligned rows, 48 of them labelled; 80 unaligned rows, labelled at the guest."""
    tasks = {s: few_aligned(small_task(s), 64, labelled=labelled) for s in set(seeds)}
    return Stack.build(tasks, seeds, dtype=dtype)


def numbers(*shape: int, name: str = "x") -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=generator(0, name))


@pytest.mark.parametrize("t", [0.3, 1.0, 2.0])
def test_sharpening_a_softmax(t: float) -> None:
    """p^(1/T) / sum p^(1/T); T = 1 is the softmax itself; the largest stays the largest."""
    q, k = numbers(2, 5, 3), numbers(2, 6, 3, name="k")
    p = torch.softmax(q @ k.transpose(1, 2) / 3**0.5, dim=2)
    sharp = p ** (1 / t) / (p ** (1 / t)).sum(2, keepdim=True)
    found = weights(q, k, t)
    torch.testing.assert_close(found, sharp, rtol=0, atol=1e-12)
    assert torch.equal(found.argmax(2), p.argmax(2))
    if t == 1.0:
        assert torch.equal(found, p)
    else:
        assert bool(((found.amax(2) > p.amax(2)) == (t < 1)).all())


def test_attention_at_its_ends() -> None:
    """Identical keys give the mean of the values, a single one its value."""
    q, v = numbers(2, 5, 3), numbers(2, 6, 4, name="v")
    same = numbers(2, 1, 3, name="k").expand(-1, 6, -1)
    mean = v.mean(1, keepdim=True).expand(-1, 5, -1)
    torch.testing.assert_close(attend(q, same, v, 0.1), mean, rtol=0, atol=1e-12)
    one = attend(q, same[:, :1], v[:, :1], 0.1)
    assert torch.equal(one, v[:, :1].expand(-1, 5, -1))


def test_one_overlap_row_is_every_estimate() -> None:
    """The unique part of every estimate is that row's; with one key so is the common part."""
    g, h = numbers(2, 1, 6, name="g"), numbers(2, 1, 6, name="h")
    e = _Estimate(0.5, {"ll": g}, {"ll": h, "block": h[..., 3:]})
    torch.testing.assert_close(e.host(numbers(2, 9, 6)), h.expand(-1, 9, -1), rtol=0, atol=1e-14)
    torch.testing.assert_close(e.guest(numbers(2, 9, 6)), g.expand(-1, 9, -1), rtol=0, atol=1e-14)


def test_twin_is_both_models_side_by_side() -> None:
    twins = [Twin(nn.Linear(4, 3), nn.Linear(4, 3)).double() for _ in range(2)]
    x = numbers(2, 5, 4)
    stacked = Replicas(twins, dtype=torch.float64)
    assert stacked.path == "stacked"
    out = stacked(x)
    for r, module in enumerate(twins):
        expected = torch.cat([module.unique(x[r]), module.common(x[r])], dim=1)
        torch.testing.assert_close(out[r], expected, rtol=0, atol=1e-14)


def test_without_its_extras_it_is_splitnn_bit_for_bit() -> None:
    """All lambdas 0, side heads off, so nothing selected: FedSplitNN on [unique, common]."""
    seeds = [0, 1]
    cvt = trained(FedCVT(**SMALL, **PLAIN), few(seeds), seeds)
    own = {"module": "by_hand:twin"}
    split = SplitNN(
        **{**SPLIT, "cut": 6}, top=(), parties={"active": own, "passive1": own}
    )  # fmt: skip
    reference = trained(split, few(seeds), seeds)
    assert_same(cvt.state(), reference.state())
    assert cvt.epochs["train"] == reference.epochs["train"]
    more = trained(FedCVT(**SMALL, **{**PLAIN, "lambda1": 0.1}), few(seeds), seeds)
    assert largest_difference(cvt.state(), more.state()) > 1e-4


def warm(algorithm: FedCVT) -> Federation:
    """After some training, when heads begin to agree, with fresh optimizers."""
    fed = trained(replace(algorithm, epochs=10, patience=0), few([0]))
    fed.phase = "train"
    for party in fed.parties.values():
        party.start("sgd", algorithm.lr, 0.0)
    return fed


def one_step(algorithm: FedCVT, stacked: Stack | None = None) -> tuple[Federation, Any]:
    fed = warm(algorithm) if stacked is None else federation(algorithm, stacked)
    rows = fed.stack.rows("labelled")[:, :16]
    with tapped(fed) as passed:
        algorithm.step(fed, rows)
    return fed, passed


@pytest.mark.slow
@pytest.mark.parametrize("threshold", sampled(["t_fed", "t_guest", "t_host"]))
def test_a_threshold_next_to_one_selects_nothing(threshold: str) -> None:
    fed, _ = one_step(FedCVT(**SMALL, **EAGER))
    assert 0 < int(fed.extra["selected"]) <= 10
    fed, _ = one_step(FedCVT(**SMALL, **{**EAGER, threshold: NEXT_TO_ONE}))
    assert int(fed.extra["selected"]) == 0


@pytest.mark.parametrize("nl_labels", [True, False])
@pytest.mark.parametrize("sure", sampled([0.4, NEXT_TO_ONE]))
def test_loss_and_gradients_by_hand(nl_labels: bool, sure: float) -> None:
    """Every message down, and every own update, against the formulas in plain torch."""
    settings = {**EAGER, "t_fed": sure, "lambda1": 0.3, "lambda2": 0.2, "lambda3": 0.5,
                "lambda4": 0.4}  # fmt: skip
    algorithm = FedCVT(**SMALL, **settings, nl_labels=nl_labels)
    fed = warm(algorithm)
    task, t = fed.stack.first, 0.1
    guest_rows = fed.stack.rows("local:active")[:, 3:40:4]
    guest_rows = guest_rows[~torch.isin(guest_rows, task.sets["aligned"])].unsqueeze(0)
    if nl_labels:
        fed.extra["draws"]["guest"] = lambda: guest_rows
    mine, bottom = models(fed, "active"), models(fed, "passive1")["bottom"]
    rows = fed.stack.rows("labelled")[:, :16]
    with tapped(fed) as passed:
        algorithm.step(fed, rows)
    up = {m.name: (m, d[0]) for m, d in passed if m.kind == "embedding"}
    down = {m.name: d[0] for m, d in passed if m.kind == "gradient"}
    assert list(up) == list(down) == ["", "ul", "nl", "block"]
    x = {k: task.x["passive1"][m.rows[0]].double() for k, (m, _) in up.items()}
    h = {k: bottom(v).detach() for k, v in x.items()}
    h["block"] = h["block"][:, 3:]
    for k, (_, sent) in up.items():
        torch.testing.assert_close(sent, h[k], rtol=0, atol=1e-12)
        h[k].requires_grad_()

    def extract(ids: Tensor) -> Tensor:
        return mine["bottom"](task.x["active"][ids].double())

    def attn(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        p = torch.softmax(q @ k.T / 3**0.5, dim=1) ** (1 / t)
        return (p / p.sum(1, keepdim=True)) @ v

    def guess(z: Tensor) -> Tensor:
        return torch.cat(
            [attn(z[:, :3], h[""][:, :3], g_ll[:, :3]), attn(z[:, 3:], lab[:, 3:], lab[:, 3:])], 1
        )

    def guess_host(z: Tensor) -> Tensor:
        common = attn(z[:, 3:], h["block"], h["block"])
        return torch.cat([attn(z[:, :3], g_ol[:, :3], h_ol[:, :3]), common], 1)

    g_ll, y_ll = extract(rows[0]), task.y[rows[0]]
    g_ol = torch.cat([g_ll, extract(up["ul"][0].rows[0])])
    h_ol = torch.cat([h[""], h["ul"]])
    g_nl, y_nl = extract(guest_rows[0]), task.y[guest_rows[0]]
    lab, y_lab = (torch.cat([g_ll, g_nl]), torch.cat([y_ll, y_nl])) if nl_labels else (g_ll, y_ll)
    joint, ce = mine["top"], nn.functional.cross_entropy
    answers = [joint(torch.cat([guess(h["nl"]), h["nl"]], 1)), mine["guest_head"](guess(h["nl"])),
               mine["host_head"](h["nl"])]  # fmt: skip
    shares = torch.stack([torch.softmax(a, 1) for a in answers])
    sure_enough = shares.amax(2) > torch.tensor([[sure], [0.4], [0.4]])
    picks = shares.argmax(2)
    chosen = (picks == picks[0]).all(0) & sure_enough.all(0)
    assert int(chosen.sum()) == int(fed.extra["selected"])
    assert bool(chosen.any()) == (sure < 0.9)
    fed_z, fed_y = [torch.cat([g_ll, h[""]], 1)], [y_ll]
    if chosen.any():
        fed_z.append(torch.cat([guess(h["nl"]), h["nl"]], 1)[chosen])
        fed_y.append(picks[0][chosen])
        if nl_labels:
            fed_z.append(torch.cat([g_nl, guess_host(g_nl)], 1))
            fed_y.append(y_nl)
    loss = ce(joint(torch.cat(fed_z)), torch.cat(fed_y))
    loss = loss + ce(mine["guest_head"](lab), y_lab) + ce(mine["host_head"](h[""]), y_ll)
    mse = nn.functional.mse_loss
    loss = loss + 0.3 * mse(g_ll[:, 3:], h[""][:, 3:])
    for z in (g_ol, h_ol):
        loss = loss + 0.2 * (z[:, :3] @ z[:, 3:].T).norm() / len(z)
    loss = loss + 0.5 * (mse(guess(h_ol), g_ol) + mse(guess_host(g_ol), h_ol))
    one, every = (nn.functional.one_hot(y, 2).double() for y in (y_ll, y_lab))
    for found in (attn(h[""][:, :3], h[""][:, :3], one), attn(h[""][:, 3:], lab[:, 3:], every)):
        loss = loss - 0.4 * (one * (found + 1e-8).log()).sum(1).mean()
    loss.backward()
    for k, gradient in down.items():
        expected = h[k].grad
        if expected is None:  # nothing was selected
            assert (k, sure) == ("nl", NEXT_TO_ONE)
            expected = torch.zeros_like(gradient)
        torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-11)
        assert bool(gradient.any()) == bool(expected.any())
    for part, module in mine.items():
        for key, p in module.named_parameters():
            assert p.grad is not None
            now = fed.active.modules[part].params[key][0].detach()
            torch.testing.assert_close(now, p.detach() - 1e-2 * p.grad, rtol=0, atol=1e-11)
    z = {k: bottom(v) for k, v in x.items()}
    z["block"] = z["block"][:, 3:]
    sum((z[k] * down[k]).sum() for k in z).backward()  # type: ignore[union-attr]
    for key, p in bottom.named_parameters():
        assert p.grad is not None
        now = fed.parties["passive1"].modules["bottom"].params[key][0].detach()
        torch.testing.assert_close(now, p.detach() - 1e-2 * p.grad, rtol=0, atol=1e-11)


@pytest.mark.parametrize("labelled", [48, 64])
def test_ledger_is_exact(labelled: int) -> None:
    """Every block up and its gradient down, every step; ul only where there are such rows."""
    _, passed = one_step(FedCVT(**SMALL), few([0], torch.float32, labelled))
    assert all(d.grad_fn is None for _, d in passed)
    fed = trained(FedCVT(**{**SMALL, "patience": 0}), few([0], torch.float32, labelled))
    ledger = {(r["phase"], r["kind"], r["name"]): r for r in fed.channel.ledger.of(0)}
    steps = 4 * -(-labelled // 16)
    sizes = {"": 4 * labelled * 6, "nl": steps * 10 * 6, "block": steps * 20 * 3}
    if labelled < 64:
        sizes["ul"] = steps * 10 * 6
    for name, elements in sizes.items():
        for kind in ("embedding", "gradient"):
            row = ledger.pop(("train", kind, name))
            assert row["elements"] == elements
            assert row["bytes"] == 4 * elements
            assert row["messages"] == row["rounds"] == steps
            ends = (row["sender"], row["receiver"])
            assert ends == (
                ("passive1", "active") if kind == "embedding" else ("active", "passive1")
            )
    ids = ledger.pop(("train", "ids", "batch"))
    assert ids["elements"] == 4 * labelled + (steps * 10 if labelled < 64 else 0)
    assert set(ledger) == {("train", "ids", "intersection"), ("predict", "embedding", "")}


def test_tables_keep_the_gradients_of_labelled_rows() -> None:
    """The blocks of other rows travel under other names and do not mix in."""
    stacked = few([0])
    recorder = Recorder(
        [("passive1", "received", "gradient", form) for form in ("all", "mean")], 1, 240
    )
    fed = Federation.create(stacked, [0], recorder=recorder)
    algorithm = FedCVT(**SMALL)
    algorithm.build(fed)
    fed.phase = "train"
    rows = stacked.rows("labelled")[:, :16]
    with tapped(fed) as passed:
        algorithm.step(fed, rows)
    tables = recorder.tables(0, ["passive1"], "train")
    labelled = next(d for m, d in passed if m.kind == "gradient" and m.name == "")
    assert len(tables) == 2
    for table in tables.values():
        order, expected = table.rows.argsort(), rows[0].argsort()
        assert torch.equal(table.rows[order], rows[0][expected])
        assert torch.equal(table.tensor[order], 16.0 * labelled[0][expected])


@pytest.mark.slow
def test_a_cell_does_not_depend_on_its_company() -> None:
    """Also where some replicas select pseudo-labels and others do not."""
    sure = {"t_fed": 0.65, "t_guest": 0.55, "t_host": 0.55, "sharpening": 0.1}
    algorithm = FedCVT(**{**SMALL, "epochs": 8, "patience": 0}, **sure)
    seeds = list(range(5))
    many = trained(algorithm, few(seeds), seeds)
    assert 0 < int((many.extra["selected"] > 0).sum()) < 5
    for r in (0, 3):  # selects nothing, selects some
        one = trained(algorithm, few([r] * LEAST), [r] * LEAST)
        assert_same(many.state(), one.state(), of=(r, 0))


@pytest.mark.slow
def test_pseudo_labels_are_mostly_right() -> None:
    """On an easy world, sure and agreeing heads know the label of rows they never saw."""
    tasks = {s: few_aligned(small_task(s, n=600, signal=4.0), 120) for s in (0, 1)}
    stacked = Stack.build(tasks, [0, 1])
    settings = {**SMALL, "epochs": 20, "patience": 0, "nl_batch_size": 64, "block": 64}
    algorithm = FedCVT(**settings, t_fed=0.7, t_guest=0.6, t_host=0.6, sharpening=0.1)
    fed = trained(algorithm, stacked, [0, 1])
    got = {"nl": fed.parties["passive1"].modules["bottom"]}
    rows = fed.extra["draws"]["nl"].rows
    z = got["nl"](fed.columns("passive1", rows)).detach()
    ll = stacked.rows("labelled")
    g = fed.active.modules["bottom"](fed.columns("active", ll)).detach()
    h = got["nl"](fed.columns("passive1", ll)).detach()
    estimate = _Estimate(0.1, {"ll": g}, {"ll": h, "block": h[..., 3:]})
    chosen, label = algorithm._select(fed, estimate, z)
    truth = torch.stack([t.y for t in stacked.tasks]).gather(1, rows)
    assert float(chosen.double().mean()) > 0.05
    assert float((label == truth)[chosen].double().mean()) > 0.8


def test_it_needs_two_parties() -> None:
    for widths in ((4, 6, 5), (4,)):
        task = small_task(0, widths=widths)
        stacked = Stack.build({0: task}, [0], dtype=torch.float64)
        words = f"the number of parties must be 2, got {len(widths)}. Use vflhlp"
        with pytest.raises(ConfigError, match=words):
            federation(FedCVT(**SMALL), stacked)


def test_it_needs_unaligned_rows() -> None:
    with pytest.raises(ConfigError, match="needs unaligned rows of 'passive1'"):
        federation(FedCVT(**SMALL), stack([0]))
    task = few_aligned(small_task(0), 64)
    task = replace(task, active_labelled=task.sets["labelled"])
    stacked = Stack.build({0: task}, [0], dtype=torch.float64)
    with pytest.raises(ConfigError, match="Set nl_labels = false"):
        federation(FedCVT(**SMALL), stacked)
    assert "guest" not in federation(FedCVT(**SMALL, nl_labels=False), stacked).extra["draws"]
    with pytest.raises(ConfigError, match="cut of both parties must be the same"):
        federation(FedCVT(**SMALL, parties={"active": {"cut": 4}}), few([0]))
