"""Zero patterns: signs of zeros, exact zeros, visits and order, before any number is read."""

from __future__ import annotations

import math
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest
import torch
from attack_views import (
    ID_ORDERS,
    PARTY,
    make_view,
    measure,
    null_band,
    passed,
    passed_by_ids,
    rng,
    visited,
)
from sampled import sampled
from torch import Tensor

from vflsec.core.attack import Attack
from vflsec.core.message import Message
from vflsec.core.policy import Own
from vflsec.core.rng import Streams
from vflsec.core.view import Table, View
from vflsec.plugins import registry

SUM = {"top": False, "aggregation": "sum"}


def pattern() -> Attack:
    return registry.attacks.create("zero_pattern", {})


def recorded(view: View, rows: Tensor, tensor: Tensor, batch: int = 64) -> View:
    """The view with these messages in the order in which they passed, one epoch."""
    step = torch.arange(len(rows)) // batch
    table = Table(tensor, rows, torch.zeros_like(rows), step)
    return passed(view, table)


def test_a_zero_entry_of_a_saturated_softmax_names_the_class() -> None:
    """float32: the label's entry is 0 from a margin of 24 ln 2; the other's from 104."""
    edge = 24 * math.log(2)
    y = torch.arange(4) % 2
    for margin, told in ((edge - 0.1, False), (edge + 0.1, True), (60.0, True), (110.0, False)):
        logits = torch.nn.functional.one_hot(y, 2).float() * margin
        g = torch.softmax(logits, 1) - torch.nn.functional.one_hot(y, 2)
        guess = pattern().infer(make_view(y, gradients=g, facts=SUM), rng())
        assert (guess.notes["reading"] == "entries") is told
        assert measure(guess, y) == (1.0 if told else 0.5)


def test_a_zero_row_of_a_saturated_logit_is_a_positive() -> None:
    """Logits of both signs between 17 and 80: positives are 0, negatives are not, exactly."""
    y = torch.arange(200) % 2
    logit = (2 * y - 1) * (17 + 60 * torch.rand(200, generator=rng()))
    logit.requires_grad_(True)
    loss = torch.nn.functional.binary_cross_entropy_with_logits(logit, y.float(), reduction="sum")
    (slope,) = torch.autograd.grad(loss, logit)
    assert torch.equal(slope == 0, y == 1)
    guess = pattern().infer(make_view(y, gradients=slope.unsqueeze(1) * torch.ones(1, 3)), rng())
    assert guess.notes["reading"] == "rows"
    assert measure(guess, y) == 1.0


def test_a_mask_that_multiplies_keeps_the_sign_and_one_that_chooses_does_not() -> None:
    """Ten classes, 5 % of the entries kept: the least entry finds half of the labels, the sign
    bits all of them."""
    n, classes = 2000, 10
    y = torch.randint(classes, (n,), generator=rng())
    y[:classes] = torch.arange(classes)
    logits = torch.randn(n, classes, generator=rng(1)) * 3
    g = torch.softmax(logits, 1) - torch.nn.functional.one_hot(y, classes)
    keep = g.abs() >= g.abs().flatten().kthvalue(int(0.95 * g.numel())).values
    leaky = make_view(y, gradients=g * keep, facts=SUM)
    guess = pattern().infer(leaky, rng())
    assert guess.notes["reading"] == "signs"
    assert measure(guess, y, "accuracy") == 1.0
    least = registry.attacks.create("direct").infer(leaky, rng())
    told = measure(least, y, "accuracy")
    assert told < 0.7
    chosen = make_view(y, gradients=torch.where(keep, g, torch.zeros(())), facts=SUM)
    assert measure(pattern().infer(chosen, rng()), y, "accuracy") <= told + 0.02


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_a_planted_share_of_zero_rows_is_worth_half_of_it(share: float) -> None:
    """A share q of the positives' rows is 0: AUC 1/2 + q/2, with and without known rows."""
    y = torch.arange(4000) % 2
    g = torch.randn(4000, 3, generator=rng())
    g[(y == 1) & (torch.rand(4000, generator=rng(1)) < share)] = 0.0
    guess = pattern().infer(make_view(y, gradients=g), rng())
    assert measure(guess, y) == pytest.approx(0.5 + share / 2, abs=0.02)
    view = make_view(y, gradients=g, known=200)
    found = measure(pattern().infer(view, rng()), y, rows=view.targets["train"])
    assert found == pytest.approx(0.5 + share / 2, abs=0.02)
    other = y[torch.randperm(4000, generator=rng(3))]
    low, high = null_band(other, torch.arange(4000))
    assert low < measure(guess, other) < high


def test_zero_rows_that_mean_the_other_class_are_turned_by_known_rows() -> None:
    y = torch.arange(1000) % 2
    g = torch.randn(1000, 3, generator=rng())
    g[y == 0] = 0.0
    assert measure(pattern().infer(make_view(y, gradients=g), rng()), y) == 0.0
    view = make_view(y, gradients=g, known=4)
    assert measure(pattern().infer(view, rng()), y, rows=view.targets["train"]) == 1.0


@pytest.mark.parametrize(("share", "epochs", "expected"), [(0.15, 1, 0.924), (0.3, 3, 0.858)])
def test_sampling_that_balances_classes_is_counted(
    share: float, epochs: int, expected: float
) -> None:
    """Visits are Poisson with means E / 2 pi and E / 2 (1 - pi)."""
    n = 6000
    y = (torch.arange(n) < share * n).long()
    weight = torch.where(y == 1, 0.5 / share, 0.5 / (1 - share)).double()
    rows = torch.multinomial(weight, epochs * n, replacement=True, generator=rng(2))
    view = recorded(make_view(y), rows, torch.randn(len(rows), 2, generator=rng(1)))
    guess = pattern().infer(view, rng())
    assert guess.notes["reading"] == "visits"
    seen = rows.unique()
    counts = torch.bincount(rows, minlength=n)[seen]
    exact = measure(replace(guess, rows=seen.numpy(), scores=counts.double().numpy()), y)
    assert measure(guess, y, rows=seen) == pytest.approx(exact)
    assert set(guess.rows.tolist()) == set(range(n))
    never = torch.bincount(rows, minlength=n).double()  # a row that never came is a count too
    whole = replace(guess, rows=np.arange(n), scores=never.numpy())
    assert measure(whole, y) == pytest.approx(expected, abs=0.01)
    assert measure(guess, y) == pytest.approx(measure(whole, y))


def test_batches_sorted_by_label_are_seen_with_known_rows_only() -> None:
    y = torch.arange(1000) % 2
    rows = torch.argsort(y, stable=True).repeat(3)
    view = recorded(make_view(y, known=6), rows, torch.randn(3000, 2, generator=rng()), batch=10)
    epoch = torch.arange(3).repeat_interleave(1000)
    table = replace(view.received("gradient", "all"), epoch=epoch)
    view = passed(view, table)
    guess = pattern().infer(view, rng())
    assert guess.notes["reading"] == "order"
    assert measure(guess, y, rows=view.targets["train"]) == 1.0
    assert pattern().declines(view) == ""
    blind = pattern().infer(replace(view, known=None), rng())
    assert blind.notes == {"reading": "nothing", "varies": ["order"]}  # one order always
    assert pattern().declines(replace(view, known=None))


@pytest.mark.parametrize("sorted_epochs", [3, 1])
def test_rows_of_a_sorted_table_that_come_by_their_ids_say_nothing(sorted_epochs: int) -> None:
    """All epochs pass in the order of the table, or one of three does."""
    y = (torch.arange(1000) >= 500).long()
    orders = [torch.randperm(1000, generator=rng(e)) for e in range(3 - sorted_epochs)]
    rows = torch.cat([*orders, *[torch.arange(1000)] * sorted_epochs])
    view = recorded(make_view(y, known=40), rows, torch.randn(3000, 2, generator=rng()), batch=10)
    table = replace(view.received("gradient", "all"), epoch=torch.arange(3).repeat_interleave(1000))
    assert pattern().infer(passed(view, table), rng()).notes["varies"] == []


@pytest.mark.parametrize("way", ID_ORDERS)
def test_nothing_is_read_of_an_order_by_ids_in_a_sorted_table(way: str) -> None:
    y = (torch.arange(800) >= 400).long()
    view = passed_by_ids(told_by_batches(y, 8, 100, "random", 40), way, 100)
    assert pattern().infer(view, rng()).notes["reading"] == "nothing"


def told_by_batches(y: Tensor, epochs: int, batch: int, arranged: str, known: int) -> View:
    """Random batches; arranged: positives ``first`` in each, batches ``pure``, or ``random``."""
    rows = []
    for e in range(epochs):
        order = torch.randperm(len(y), generator=rng(e))
        if arranged == "pure":  # each class in batches of its own, these in random order
            order = order[torch.argsort(y[order], stable=True)]
            parts = order.split(batch)
            parts = [parts[i] for i in torch.randperm(len(parts), generator=rng(50 + e))]
        else:
            parts = list(order.split(batch))
        if arranged == "first":
            parts = [p[torch.argsort(y[p], stable=True, descending=True)] for p in parts]
        rows += parts
    whole = torch.cat(rows)
    step = torch.repeat_interleave(torch.arange(len(rows)), torch.tensor([len(p) for p in rows]))
    epoch = torch.arange(epochs).repeat_interleave(len(y))
    table = Table(torch.randn(len(whole), 4, generator=rng(9)), whole, epoch, step)
    return passed(make_view(y, known=known), table)


@pytest.mark.parametrize(("arranged", "reading"), [("first", "place"), ("pure", "company")])
def test_rows_within_batches_and_batches_of_one_class_are_seen(arranged: str, reading: str) -> None:
    """Classes of equal size: whoever knows 20 rows knows all, and no label no batch tells one."""
    y = torch.arange(800) % 2
    view = told_by_batches(y, 8, 100, arranged, 20)
    guess = pattern().infer(view, rng())
    assert guess.notes == {"reading": reading, "varies": [reading]}
    assert not np.isin(guess.rows, view.require_known().rows.numpy()).any()
    assert measure(guess, y, rows=view.targets["train"]) > 0.99
    assert pattern().declines(replace(view, known=None))


@pytest.mark.parametrize("arranged", ["first", "pure"])
def test_batches_arranged_by_something_else_tell_no_label(arranged: str) -> None:
    other, y = torch.arange(800) % 2, torch.arange(800) // 2 % 2
    view = told_by_batches(other, 8, 100, arranged, 20)
    view = replace(make_view(y, known=20), tables=view.tables)
    low, high = null_band(y, view.targets["train"])
    assert low < measure(pattern().infer(view, rng()), y, rows=view.targets["train"]) < high


@pytest.mark.parametrize("epochs", [2, 6, 30])
@pytest.mark.parametrize("batch", [10, 100, 400])
def test_random_batches_are_no_company(epochs: int, batch: int) -> None:
    y = torch.arange(800) % 2
    view = told_by_batches(y, epochs, batch, "random", 20)
    assert pattern().infer(view, rng()).notes["varies"] == []


def passes(n: int, epochs: int) -> list[Tensor]:
    return [torch.randperm(n, generator=rng(e)) for e in range(epochs)]


@pytest.mark.parametrize("chosen", ["once more", "last alone", "swapped"])
def test_rows_that_come_once_more_or_less_in_one_epoch_are_seen(chosen: str) -> None:
    """One visit more in ten is no more than chance lets draws differ, but a pass does not draw."""
    y = (torch.rand(800, generator=rng(1)) < 0.4).long()
    parts = passes(800, 10)
    if chosen == "once more":
        parts[3] = torch.cat([parts[3], (y == 1).nonzero().squeeze(1)])
    elif chosen == "last alone":
        parts[9] = parts[9][y[parts[9]] == 1]
    else:  # every row comes ten times in all
        parts[2], parts[5] = (
            torch.cat([parts[e], (y == c).nonzero().squeeze(1)]) for e, c in ((2, 1), (5, 0))
        )
    view = visited(parts, y, 20)
    guess = pattern().infer(view, rng())
    assert guess.notes["reading"] == "epochs"
    assert measure(guess, y, rows=view.targets["train"]) == 1.0
    other = torch.randperm(800, generator=rng(5))
    null = visited([other[p] for p in parts], y, 20)
    low, high = null_band(y, null.targets["train"])
    assert low < measure(pattern().infer(null, rng()), y, rows=null.targets["train"]) < high
    assert pattern().declines(replace(view, known=None))


def arranged_once(y: Tensor, epochs: int, which: int, how: str) -> list[Tensor]:
    """Passes in random order, but for one: sorted by class, or its batches of 50 are."""
    parts = passes(len(y), epochs)
    if how == "sorted":
        parts[which] = parts[which][torch.argsort(y[parts[which]], stable=True)]
    elif how == "first":
        batches = [
            b[torch.argsort(y[b], stable=True, descending=True)] for b in parts[which].split(50)
        ]
        parts[which] = torch.cat(batches)
    elif how == "pure":
        ones, none = ((parts[which][y[parts[which]] == c]).split(50) for c in (1, 0))
        parts[which] = torch.cat([b for pair in zip(ones, none, strict=True) for b in pair])
    return parts


@pytest.mark.parametrize(
    ("how", "reading", "varies", "told"),
    [("sorted", "order of epoch 3", ["order", "company"], 0.99),
     ("first", "place of epoch 3", ["place"], 0.99),
     ("pure", "company of epoch 3", ["company"], 0.75)],
)  # fmt: skip
def test_one_epoch_in_order_among_random_ones_is_seen(
    how: str, reading: str, varies: list[str], told: float
) -> None:
    """The third of ten; over all of them rows stand hardly otherwise than by chance."""
    y = torch.randperm(400, generator=rng(1)) % 2
    view = visited(arranged_once(y, 10, 2, how), y, 20, 50)
    guess = pattern().infer(view, rng())
    assert guess.notes == {"reading": reading, "varies": varies}
    assert not np.isin(guess.rows, view.require_known().rows.numpy()).any()
    assert measure(guess, y, rows=view.targets["train"]) > told
    assert pattern().declines(view) == ""
    assert pattern().declines(replace(view, known=None))


def test_the_order_of_the_only_epoch_is_seen() -> None:
    y = torch.randperm(400, generator=rng(1)) % 2
    view = visited(arranged_once(y, 1, 0, "sorted"), y, 20, 50)
    guess = pattern().infer(view, rng())
    assert guess.notes["reading"] == "order of epoch 1"
    assert measure(guess, y, rows=view.targets["train"]) > 0.99


@pytest.mark.slow
@pytest.mark.parametrize("how", sampled(["sorted", "random", "first", "pure"]))
def test_an_epoch_that_is_ordered_by_something_else_is_hardly_ever_read(how: str) -> None:
    """Of sixty nulls 0.6 may be read by chance, and what is read tells nothing."""
    read, found = 0, []
    for seed in range(60):
        y = torch.randperm(400, generator=rng(100 + seed)) % 2
        other = y[torch.randperm(400, generator=rng(300 + seed))]
        view = visited(arranged_once(other, 10, 2, how), y, 20, 50)
        guess = pattern().infer(view, rng())
        read += guess.notes["reading"] != "nothing"
        found.append(measure(guess, y, rows=view.targets["train"]))
    assert read <= 3
    assert abs(np.mean(found) - 0.5) < 0.01


@pytest.mark.slow
def test_more_epochs_to_choose_from_do_not_hide_what_all_tell() -> None:
    """Zero rows tell 0.75 of the pairs; no lucky epoch of thirty is taken for them."""
    for seed in range(20):
        y = torch.randperm(400, generator=rng(seed)) % 2
        parts = [torch.randperm(400, generator=rng(1000 + 30 * seed + e)) for e in range(30)]
        view = visited(parts, y, 20, 50)
        table = view.received("gradient", "all")
        told = (y == 1) & (torch.rand(400, generator=rng(500 + seed)) < 0.5)
        table = replace(table, tensor=table.tensor * (~told[table.rows]).unsqueeze(1))
        guess = pattern().infer(passed(view, table), rng())
        assert guess.notes["reading"] in ("rows", "sizes", "all")


def test_of_several_labels_each_is_read_and_a_column_is_no_class() -> None:
    """Rows with the second label come once more; behind summed logits zeros are of labels."""
    y = torch.stack([torch.rand(800, generator=rng(s)) < 0.4 for s in (1, 2)], dim=1).long()
    parts = passes(800, 10)
    parts[3] = torch.cat([parts[3], (y[:, 1] == 1).nonzero().squeeze(1)])
    for k, expected in ((0, 0.5), (1, 1.0)):
        view = visited(parts, y[:, k], 20)
        view = replace(view, facts=replace(view.facts, extra={"of_label": k}, **SUM))
        assert not pattern().pointless(view.facts)
        found = measure(pattern().infer(view, rng()), y[:, k], rows=view.targets["train"])
        assert found == pytest.approx(expected, abs=0.08)
    g = torch.randn(800, 2, generator=rng())
    g[y == 1] = 0.0  # met margins: of each label by itself
    view = make_view(y[:, 0], gradients=g, facts={**SUM, "extra": {"of_label": 0}})
    assert pattern().infer(view, rng()).notes["reading"] != "entries"
    view = make_view(y[:, 0], gradients=g, facts={**SUM, "extra": {"of_label": 0}}, known=20)
    assert measure(pattern().infer(view, rng()), y[:, 0], rows=view.targets["train"]) > 0.95


@pytest.mark.parametrize("batch", [60, 300])
@pytest.mark.parametrize("told", [True, False])
def test_a_last_batch_that_is_left_out_says_nothing(batch: int, told: bool) -> None:
    """Every epoch lacks other rows; also where nobody said when an epoch began."""
    y = torch.arange(800) % 2
    parts = [p[: 800 // batch * batch] for p in passes(800, 10)]
    view = visited(parts if told else [torch.cat(parts)], y, 20, batch)
    assert pattern().infer(view, rng()).notes["varies"] == []
    assert pattern().declines(view).startswith("no zeros, signs or visits")


def test_dense_rows_once_an_epoch_in_random_order_say_nothing() -> None:
    """All scores equal, so that no order of rows breaks the tie: AUC exactly 1/2."""
    y = (torch.rand(800, generator=rng(1)) < 0.2).long()
    rows = torch.cat([torch.randperm(800, generator=rng(s)) for s in range(6)])
    table = Table(torch.randn(4800, 4, generator=rng(9)), rows,
                  torch.arange(6).repeat_interleave(800), torch.arange(4800) // 64)  # fmt: skip
    for known in (0, 20):
        view = make_view(y, known=known)
        view = passed(view, table)
        guess = pattern().infer(view, rng())
        assert guess.notes == {"reading": "nothing", "varies": []}
        assert pattern().declines(view).startswith("no zeros, signs or visits")
        assert measure(guess, y, rows=view.targets["train"]) == 0.5


@pytest.mark.parametrize(
    ("name", "strength"),
    [("compression", 4.0), ("discrete", 0.25), ("ppdl", 1.0), ("max_norm", 1.0),
     ("gradient_average", 0.5), ("noise", 0.1), ("iso", 1.0)],
)  # fmt: skip
def test_no_defense_of_ours_puts_a_sign_on_a_zero(name: str, strength: float) -> None:
    """The delivered bits, of dense rows and of rows with zeros of both signs."""
    g = torch.randn(1, 64, 8, generator=rng()) * 0.01
    g[0, :8] = 0.0
    g[0, 8:16] = -0.0
    policy = registry.defenses.create(name, {})
    own = Own(
        "active", torch.tensor([strength], dtype=torch.float64), Streams([0], name), classes=2
    )
    own.labels = torch.arange(64).unsqueeze(0) % 2
    rows = torch.arange(64).unsqueeze(0)
    out = policy.outgoing(Message("gradient", "active", PARTY, g, rows, scale=64.0), own)
    assert not bool(((out == 0) & torch.signbit(out)).any())
    if name in ("compression", "discrete", "ppdl"):
        assert bool((out == 0).any())


def test_max_norm_leaves_zero_rows_zero_and_noise_does_not() -> None:
    """What none of the multiplying defenses can hide, and what an added number does."""
    y = torch.arange(200) % 2
    g = torch.randn(200, 4, generator=rng()) * (1 - y).unsqueeze(1)
    for name, expected in (("max_norm", 1.0), ("iso", 0.5)):
        policy = registry.defenses.create(name, {})
        own = Own("active", torch.tensor([1.0], dtype=torch.float64), Streams([0], name))
        out = policy.outgoing(Message("gradient", "active", PARTY, g.unsqueeze(0)), own)[0]
        assert measure(pattern().infer(make_view(y, gradients=out), rng()), y) == expected


@pytest.mark.parametrize("known", [0, 40])
@pytest.mark.parametrize("plant", ["class", "any"])
def test_rows_that_never_came_are_guessed(plant: str, known: int) -> None:
    """Half of class 1 is never drawn: every attack on gradients left those rows out and failed."""
    n = 1000
    y = torch.randint(2, (n,), generator=rng())
    view = make_view(y, gradients=torch.randn(n, 3, generator=rng(1)), known=known)
    half = torch.rand(n, generator=rng(2)) < 0.5
    came = (~half | (y == 0) if plant == "class" else ~half).nonzero().squeeze(1)
    passes = [came[torch.randperm(len(came), generator=rng(e))] for e in range(4)]
    rows = torch.cat(passes)
    found = recorded(view, rows, torch.randn(len(rows), 3, generator=rng(9)))
    table = found.tables["received", "gradient", "all", PARTY]
    epoch = torch.arange(4).repeat_interleave(len(came))
    found = passed(found, replace(table, epoch=epoch))
    assert pattern().declines(found) == ""
    guess = pattern().infer(found, rng())
    assert guess.notes["reading"] == "visits"
    assert set(guess.rows.tolist()) == set(view.targets["train"].tolist())
    told = measure(guess, y)
    if plant == "any":
        low, high = null_band(y, view.targets["train"])
        assert low < told < high
    else:
        assert max(told, 1 - told) == pytest.approx(0.75, abs=0.03)
        assert known == 0 or told > 0.7


def test_own_embeddings_are_counted_and_not_read() -> None:
    """Their numbers are own columns; how often a row was asked for is not."""
    y = (torch.arange(120) % 4 == 0).long()
    rows = torch.cat([torch.arange(120).repeat(5), torch.nonzero(y).squeeze(1).repeat(10)])
    rows = rows[torch.randperm(len(rows), generator=rng())]
    step = torch.arange(len(rows)) // 40
    z = torch.relu(torch.randn(len(rows), 3, generator=rng())) * (1 - y[rows]).unsqueeze(1)
    attack = registry.attacks.create("zero_pattern", {"kind": "embedding"})

    def seen(at: Tensor) -> View:
        table = Table(z[at], rows[at], torch.zeros_like(rows[at]), step[at])
        tables = MappingProxyType({("sent", "embedding", "all", PARTY): table})
        return replace(make_view(y), tables=tables)

    view = seen(torch.arange(len(rows)))
    guess = attack.infer(view, rng())
    assert guess.notes["varies"] == ["visits"]
    assert measure(guess, y) == 1.0
    once = seen(torch.tensor([int((rows == r).nonzero()[0]) for r in range(120)]))
    assert "no zeros, signs or visits" in attack.declines(once)


@pytest.mark.parametrize("odd", [True, False])
def test_random_order_is_said_of_what_was_tested(odd: bool) -> None:
    """Class 1 at odd places has the mean place of class 0, and is no random order."""
    y = torch.randperm(400, generator=rng(1)) % 2
    parts = passes(400, 6)
    if odd:
        parts = [torch.stack([p[y[p] == 0], p[y[p] == 1]], dim=1).flatten() for p in parts]
    said = pattern().declines(replace(visited(parts, y, 0), known=None))
    assert "no zeros, signs or visits" in said
    assert ("odd and even places" in said) == odd
