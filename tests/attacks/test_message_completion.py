"""Message completion: what several messages of a row tell together that their mean does not."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest
import torch
from attack_views import (
    PARTY,
    make_view,
    measure,
    null_band,
    rng,
    same,
    tables,
    turns,
    with_shared_noise,
)  # fmt: skip
from sampled import sampled
from torch import Tensor

from vflsec.core.guess import Guess
from vflsec.core.view import Table
from vflsec.errors import ThreatModelError
from vflsec.plugins import registry

N, WIDTH = 600, 16


def made(y: Tensor, leak: str) -> list[Tensor]:
    """Messages (n, d) of six epochs whose mean over epochs says next to nothing about the label."""
    g = rng(3)
    once = torch.randn(len(y), WIDTH, generator=g)
    out = []
    for e in range(6):
        x = once if leak == "remembered" else torch.randn(len(y), WIDTH, generator=g)
        x = x.clone()
        if leak == "remembered" and e == 5:  # noise that is drawn once, over a small gradient
            x[:, 3] += 0.02 * y
        elif leak == "alternating":
            x[:, 3] += 2.0 * y * (-1) ** e
        elif leak == "spread":
            x[:, 3] *= 1 + 3 * y
        elif leak == "odd":
            x[y == 1, 3] = float("nan")
        out.append(x)
    return out


def answer(
    y: Tensor, messages: list[Tensor], known: int = 20, *, shuffled: bool = False
) -> tuple[Guess, Tensor]:
    view = make_view(y, gradients=messages, known=known, shuffled=shuffled)
    guess = registry.attacks.create("message_completion", {}).infer(view, rng())
    assert not np.isin(guess.rows, view.require_known().rows.numpy()).any()
    assert len(guess.rows) == len(y) - known
    return guess, view.targets["train"]


@pytest.mark.parametrize(
    ("leak", "figures"),
    [("remembered", {"change", "change, one entry"}),
     ("alternating", {"change", "change, one entry"}),
     ("spread", {"steps", "steps, one entry", "spread, one entry", "sizes, one entry"}),
     ("odd", {"odd", "steps, one entry"})],
)  # fmt: skip
def test_a_leak_that_a_mean_hides_is_read(leak: str, figures: set[str]) -> None:
    y = (torch.rand(N, generator=rng(1)) < 0.4).long()
    guess, rows = answer(y, made(y, leak))
    assert guess.notes["figure"] in figures
    assert measure(guess, y, rows=rows) > 0.95
    if leak == "remembered":
        view = make_view(y, gradients=made(y, leak), known=20)
        mean = registry.attacks.create("similarity", {}).infer(view, rng())
        low, high = null_band(y, rows)
        assert low < measure(mean, y, rows=rows) < high


@pytest.mark.parametrize("whose", ["batch", "place", "row"])
@pytest.mark.parametrize("planted", [True, False])
def test_noise_that_rows_share_hides_no_label(whose: str, planted: bool) -> None:
    """Drawn once for a batch, or anew from one seed: 0.5 before, with `joint_completion` too."""
    y = (torch.rand(N, generator=rng(1)) < 0.4).long()
    plain = 0.3 * torch.randn(N, WIDTH, generator=rng(2))
    plain[:, 3] += 2.0 * y * planted
    messages = with_shared_noise(plain, whose)
    guess, rows = answer(y, messages, shuffled=True)
    low, high = null_band(y, rows)
    if planted and whose != "row":
        assert guess.notes["figure"].startswith("centred")
        assert measure(guess, y, rows=rows) > 0.95
    elif not planted:
        assert low < measure(guess, y, rows=rows) < high
    else:
        assert not guess.notes["figure"].startswith("centred")


@pytest.mark.parametrize("classes", sampled([4, 2]))
@pytest.mark.parametrize("how", ["sign", "factor", "rotation"])
@pytest.mark.parametrize("planted", [True, False])
def test_what_is_drawn_once_for_a_batch_and_turns_its_rows_hides_no_label(
    how: str, classes: int, planted: bool
) -> None:
    """Of 40 batches an epoch: an accuracy of 0.75 before of two classes, and of four of 0.41."""
    n, batch, draw = 40 * 16, 16, rng(5)
    y = torch.randint(classes, (n,), generator=rng(1))
    plain = torch.randn(n, 8, generator=rng(2)) / 2
    centres = torch.tensor([[1.0, 1.0], [-1.0, -1.0], [1.0, -1.0], [-1.0, 1.0]])
    plain[:, :2] += 1.5 * planted * centres[y]  # of one size each
    messages = []
    for e in range(10):
        of = turns(n, e) // batch
        if how == "rotation":
            q, r = torch.linalg.qr(torch.randn(n // batch, 8, 8, generator=draw))
            drawn = q * r.diagonal(dim1=1, dim2=2).sign().unsqueeze(1)  # all equally likely
            messages.append((drawn[of] @ plain.unsqueeze(2)).squeeze(2))
        else:
            drawn = torch.randn(n // batch, 1, generator=draw)
            messages.append(plain * (drawn.sign() if how == "sign" else drawn)[of])
    view = make_view(y, gradients=messages, known=10 * classes, batch=batch, shuffled=True)
    rows = view.targets["train"]
    guess = registry.attacks.create("message_completion", {}).infer(view, rng())
    if planted:
        assert guess.notes["figure"].startswith("batchwise")
        assert measure(guess, y, "accuracy", rows=rows) > 0.9
    elif classes == 2:
        low, high = null_band(y, rows)
        assert low < measure(guess, y, rows=rows) < high
    else:
        off = 4 * (0.25 * 0.75 / len(rows)) ** 0.5
        assert abs(measure(guess, y, "accuracy", rows=rows) - 0.25) < off


@pytest.mark.parametrize("planted", [True, False])
def test_what_is_sent_as_differences_is_added_up(planted: bool) -> None:
    """As codecs do that send what changed. Kept times the rows of the batch; the last has 24."""
    y = (torch.rand(N, generator=rng(1)) < 0.4).long()
    draw, before, messages = rng(3), torch.zeros(N, WIDTH), []
    for e in range(12):
        x = torch.randn(N, WIDTH, generator=draw)
        x[:, 3] += 1.2 * y * planted
        last = turns(N, e) // 64 == N // 64
        messages.append((x - before) * torch.where(last, N % 64, 64).unsqueeze(1))
        before = x
    guess, rows = answer(y, messages, known=40, shuffled=True)
    low, high = null_band(y, rows)
    if planted:  # 0.80 by the first message, 0.998 by the mean of what is added up
        assert guess.notes["figure"].startswith("sums")
        assert measure(guess, y, rows=rows) > 0.95
    else:
        assert low < measure(guess, y, rows=rows) < high


@pytest.mark.parametrize("leak", ["remembered", "alternating", "spread", "odd", "none"])
def test_of_labels_that_are_not_in_them_messages_tell_nothing(leak: str) -> None:
    y = (torch.rand(N, generator=rng(1)) < 0.4).long()
    other = y[torch.randperm(N, generator=rng(2))]
    guess, rows = answer(other, made(y, leak))
    low, high = null_band(other, rows)
    assert low < measure(guess, other, rows=rows) < high


def test_three_classes_of_which_messages_change_each_in_its_way() -> None:
    y = torch.arange(N) % 3
    once = torch.randn(N, WIDTH, generator=rng(3))
    after = once.clone()
    after[torch.arange(N), y] += 0.02
    guess, rows = answer(y, [once, after], known=60)
    assert measure(guess, y, "accuracy", rows=rows) > 0.95


def test_the_order_in_which_rows_were_recorded_does_not_matter() -> None:
    y = (torch.rand(N, generator=rng(1)) < 0.4).long()
    view = make_view(y, gradients=made(y, "alternating"), known=20)
    whole = view.received("gradient", "all")
    turned = whole.take(torch.randperm(len(whole), generator=rng(4)))
    other = replace(view, tables=MappingProxyType({("received", "gradient", "all", PARTY): turned}))
    attack = registry.attacks.create("message_completion", {})
    assert same(attack.infer(view, rng()), attack.infer(other, rng()))


def test_messages_of_another_kind_are_read_on_request() -> None:
    y = (torch.rand(N, generator=rng(1)) < 0.4).long()
    whole = tables(made(y, "alternating"), "embedding")
    view = make_view(y, known=20, extra=whole)
    attack = registry.attacks.create("message_completion", {"kind": "embedding"})
    assert attack.needs == {"embedding:all+", "known_rows"}
    assert measure(attack.infer(view, rng()), y, rows=view.targets["train"]) > 0.95


def test_it_says_what_it_misses() -> None:
    y = torch.arange(40) % 2
    attack = registry.attacks.create("message_completion", {})
    with pytest.raises(ThreatModelError, match=r"known rows of two classes .* got 1"):
        attack.infer(make_view(y, gradients=torch.randn(40, 3, generator=rng()), known=1), rng())
    with pytest.raises(ThreatModelError, match="all messages are equal"):
        attack.infer(make_view(y, gradients=torch.ones(40, 3), known=8), rng())
    empty = Table(torch.ones(2, 3), torch.full((2,), -1), torch.zeros(2).long(), torch.arange(2))
    view = make_view(y, known=8, extra={("received", "gradient", "all", PARTY): empty})
    with pytest.raises(ThreatModelError, match="got 0"):
        attack.infer(view, rng())
