"""Dictionary: simple functions of messages that tell the label are found, by chance hardly any."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest
import torch
from attack_views import ID_ORDERS, PARTY, make_view, measure, passed_by_ids, rng, visited
from hypothesis import given, settings
from hypothesis import strategies as st
from sampled import sampled
from scipy import stats
from torch import Tensor

from vflsec.audit.scoring import orient
from vflsec.core.attack import Attack
from vflsec.core.guess import Truth
from vflsec.core.view import Known, View
from vflsec.errors import ThreatModelError
from vflsec.inference.batch_order import compute_gap_chance
from vflsec.plugins import registry
from vflsec.specs import ORIENTED_BY

LOW = torch.tensor(~1, dtype=torch.int32)


def attack(kind: str = "gradient") -> Attack:
    return registry.attacks.create("dictionary", {"kind": kind})


def labels(n: int, seed: int = 1) -> Tensor:
    return torch.randperm(n, generator=rng(seed)) % 2


def noise(n: int, epochs: int = 4, d: int = 8, seed: int = 2) -> list[Tensor]:
    draw = rng(seed)
    return [torch.randn(n, d, generator=draw) for _ in range(epochs)]


def signed(x: Tensor, entries: Sequence[int], sign: Tensor) -> Tensor:
    """Gaussian messages the product of whose signs at some entries is `sign`."""
    x = x.clone()
    x[:, entries[0]] *= x[:, list(entries)].prod(1).sign() * sign
    return x


def low_bit(x: Tensor, entry: int, bit: Tensor) -> Tensor:
    x = x.clone()
    pattern = x[:, entry].contiguous().view(torch.int32)
    x[:, entry] = ((pattern & LOW) | bit.int()).view(torch.float32)
    return x


def leak(form: str, y: Tensor) -> list[Tensor]:
    s, ids = (2 * y - 1).float(), torch.arange(len(y))
    of_id = (2 * ((ids >> 3) & 1) - 1).float()
    hidden = {
        "product of two signs": lambda x: signed(x, (0, 1), s),
        "product of three signs": lambda x: signed(x, (2, 5, 7), s),
        "sign xor public bit": lambda x: signed(x, (4,), s * of_id),
        "low bit": lambda x: low_bit(x, 3, y),
        "remainder": lambda x: torch.cat(
            [(x[:, :1] * 1000).round() * 10 + y.unsqueeze(1), (x[:, 1:] * 1000).round()], dim=1
        ),
    }
    return [hidden[form](x) for x in noise(len(y))]


FORMS = ("product of two signs", "product of three signs", "sign xor public bit", "low bit",
         "remainder")  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_what_one_function_tells_is_told_in_full(form: str) -> None:
    """20 known rows of 600, each right by chance with 2^-20: AUC 1, and p at most 2^-19 by each.

    All others look like noise: each entry by itself, and products of fewer.
    """
    y = labels(600)
    view = make_view(y, gradients=leak(form, y), known=20, shuffled=True)
    guess = attack().infer(view, rng())
    assert measure(guess, y, rows=view.targets["train"]) == 1.0
    assert guess.notes["best"] == form
    assert guess.notes["survived"] >= 4  # in every epoch, or in those that are tried
    assert guess.notes["p"] <= 2**-19 * guess.notes["tried"] / 0.8 < 0.05
    assert set(guess.rows) == set(view.targets["train"].tolist())


def test_a_remainder_under_noise_on_embeddings_is_told_by_their_receiver() -> None:
    y = labels(600)
    view = make_view(y, known=20)
    tables = make_view(y, gradients=leak("remainder", y), shuffled=True).tables
    sent = {("received", "embedding", form, p): t for (_, _, form, p), t in tables.items()}
    view = replace(view, tables=MappingProxyType(sent))
    assert measure(attack("embedding").infer(view, rng()), y, rows=view.targets["train"]) == 1.0
    with pytest.raises(ThreatModelError, match="not in this view"):
        attack().infer(view, rng())


def shuffled(rows: Tensor, seed: int) -> Tensor:
    return rows[torch.randperm(len(rows), generator=rng(seed))]


def test_classes_at_odd_and_even_places_of_a_batch_are_told_apart() -> None:
    """Of mean places nothing is seen: they are 24 and 25 of 50."""
    y = labels(400)
    ones, none = ((y == c).nonzero().squeeze(1) for c in (1, 0))
    parts = [torch.stack([shuffled(none, e), shuffled(ones, 50 + e)], dim=1).flatten()
             for e in range(6)]  # fmt: skip
    view = visited(parts, y, 20, 50)
    guess = attack().infer(view, rng())
    assert measure(guess, y, rows=view.targets["train"]) == 1.0
    assert guess.notes["best"] == "place"


def test_rows_that_come_twice_are_told() -> None:
    y = labels(400)
    ones = (y == 1).nonzero().squeeze(1)
    parts = [shuffled(torch.cat([torch.arange(400), ones]), e) for e in range(3)]
    view = visited(parts, y, 20, 50)
    guess = attack().infer(view, rng())
    assert measure(guess, y, rows=view.targets["train"]) == 1.0
    assert guess.notes["best"] == "visits"


@pytest.mark.parametrize(("share", "known"), [(0.05, 800), (0.01, 1600)])
def test_a_few_marked_rows_are_named_and_no_other(share: float, known: int) -> None:
    """Entry 0 is 0.2 off noise of 0.01 on some rows, by their class; all others are tied.

    Of m1 and m0 of the rows of a class that are marked the AUC is 1 - (1 - m1) (1 - m0) / 2, and
    among positives the hits at 1 % are m1 and (k + 1) / (n + 1) of the others, with k false alarms
    among n rows of class 0 that are not marked.
    """
    n = 4000
    y = labels(n)
    marked = torch.zeros(n, dtype=torch.bool)
    for c in (0, 1):
        of = shuffled((y == c).nonzero().squeeze(1), 5 + c)
        marked[of[: int(share * n / 2)]] = True
    epochs = [0.01 * x for x in noise(n, 3, 4)]
    for x in epochs:
        x[:, 0] += 0.2 * marked * (2 * y - 1)
    view = make_view(y, gradients=epochs, known=known, shuffled=True)
    guess = attack().infer(view, rng())
    rows = view.targets["train"]
    m1, m0 = (float(marked[rows[y[rows] == c]].double().mean()) for c in (1, 0))
    assert measure(guess, y, rows=rows) == pytest.approx(1 - (1 - m1) * (1 - m0) / 2)
    negatives = int((y[rows] == 0).sum())
    others = (1 - m1) * (int(0.01 * negatives) + 1) / (round(negatives * (1 - m0)) + 1)
    hits = measure(guess, y, "tpr_at_1pct_fpr", rows)
    assert hits == pytest.approx(m1 + others)
    assert guess.notes["best"] == "outlying value"


def test_a_rare_mark_is_told_once_one_label_of_a_row_of_its_choice_is_granted() -> None:
    """1 % of 2000 rows are marked by class, none of them known: which way round is one bit.

    The row whose label was granted is not ranked, all others of the mark are, none besides.
    """
    n, by_sign = 2000, {1: 0, -1: 0}
    y = labels(n)
    marked = torch.cat([shuffled((y == c).nonzero().squeeze(1)[20:], 5 + c)[:10] for c in (0, 1)])
    for sign in (1, -1):
        epochs = [0.01 * x for x in noise(n, 3, 4)]
        for x in epochs:
            x[marked, 0] += sign * 0.2 * (2 * y[marked] - 1)
        view = make_view(y, gradients=epochs, known=20, shuffled=True)
        guess = attack().infer(view, rng())
        by_sign[sign] = guess.notes[ORIENTED_BY]
        assert by_sign[sign] in marked.tolist()
        truth = Truth("label", np.arange(n), y.numpy())
        told = orient(guess, truth)
        at = dict(zip(told.rows.tolist(), told.scores.tolist(), strict=True))
        right = [at[int(r)] * (2 * int(y[r]) - 1) for r in marked if int(r) in at]
        assert sorted(right)[:1] == [0]
        assert right.count(1) == len(right) - 1 >= 15
        assert np.count_nonzero(told.scores) == right.count(1)
    assert by_sign[1] == by_sign[-1]


def null(seed: int) -> View:
    """Noise, integers, zeros and places that know nothing of the labels."""
    draw, n = rng(1000 + seed), 300
    y = torch.randint(2, (n,), generator=draw)
    epochs = []
    for _ in range(3):
        x = torch.randn(n, 5, generator=draw)
        x[:, 1] = (5 * x[:, 1]).round()
        x[:, 2] *= torch.rand(n, generator=draw) < 0.9
        x[:, 3] += 3 * (torch.rand(n, generator=draw) < 0.05)
        epochs.append(x)
    return make_view(y, gradients=epochs, known=20, shuffled=True)


@pytest.mark.parametrize("worlds", [20, pytest.param(200, marks=pytest.mark.slow)])
def test_where_nothing_is_told_all_scores_are_equal_but_for_the_level(worlds: int) -> None:
    """At most 5 % of the worlds give a false alarm; more than allowed here has 1 in 1,000."""
    alarms = 0
    for seed in range(worlds):
        guess = attack().infer(null(seed), rng(seed))
        alarms += guess.notes["survived"] > 0
        assert (len(np.unique(guess.scores)) == 1) == (guess.notes["survived"] == 0)
    assert alarms <= stats.binom.ppf(0.999, worlds, 0.05)


def test_an_answer_of_nothing_has_chance_in_every_figure() -> None:
    view = null(3)
    guess = attack().infer(view, rng())
    assert guess.notes["best"] == "nothing"
    y = torch.arange(300) % 2
    assert measure(guess, y, rows=view.targets["train"]) == 0.5


@pytest.mark.parametrize(("known", "way"), sampled(
    [(20, ""), (20, "down in batches"), (200, ""),
     *((known, way) for known in (20, 200) for way in ID_ORDERS)], keep=2,
))  # fmt: skip
def test_a_table_sorted_by_label_is_no_leak_of_messages(known: int, way: str) -> None:
    """Ids alone tell the label, and some entries are mostly positive; nor where rows come by id."""
    y, alarms = (torch.arange(512) >= 256).long(), 0
    for seed in range(20):
        epochs = [x + torch.tensor([3.0, 0.8, 0.6, 0]) for x in noise(512, 4, 4, 100 + seed)]
        view = make_view(y, gradients=epochs, known=20, shuffled=True)
        view = passed_by_ids(view, way, 64) if way else view
        drawn = [shuffled((y == c).nonzero().squeeze(1), 50 + seed)[: known // 2] for c in (0, 1)]
        rows = torch.stack(drawn, dim=1).flatten()
        left = torch.arange(512)[~torch.isin(torch.arange(512), rows)]
        view = replace(view, known=Known(rows, y[rows]), targets={"train": left})
        alarms += attack().infer(view, rng(seed)).notes["survived"] > 0
    assert alarms <= stats.binom.ppf(0.999, 20, 0.05)


def test_nothing_but_known_labels_and_messages_is_read() -> None:
    """Labels of other rows, class shares and own columns may be anything."""
    y = labels(600)
    view = make_view(y, gradients=leak("low bit", y), known=20, shuffled=True)
    first = attack().infer(view, rng())
    spoiled = replace(view, prior=torch.full((2,), torch.nan), labels=torch.full((600,), torch.nan),
                      columns={PARTY: torch.full((600, 1), torch.nan)})  # fmt: skip
    second = attack().infer(spoiled, rng())
    assert np.array_equal(first.scores, second.scores)
    assert np.array_equal(first.rows, second.rows)
    assert not np.isin(first.rows, view.require_known().rows.numpy()).any()


def test_one_class_of_twelve_that_is_revealed_is_told_from_the_rest() -> None:
    """Its AUC is 1, and that of eleven columns of zeros 1/2."""
    y = torch.randperm(1200, generator=rng(1)) % 12
    epochs = [signed(x, (0, 1), (2 * (y == 7) - 1).float()) for x in noise(1200)]
    view = make_view(y, gradients=epochs, known=120, shuffled=True)
    guess = attack().infer(view, rng())
    auc = measure(guess, y, rows=view.targets["train"])
    assert auc == pytest.approx((1 + 11 / 2) / 12, abs=0.02)
    told = guess.scores[:, 7]
    mine = (y[torch.from_numpy(guess.rows)] == 7).numpy()
    assert told[mine].min() > told[~mine].max()


def test_it_asks_for_known_rows_of_two_classes() -> None:
    y = labels(100)
    view = make_view(y, gradients=noise(100), known=1)
    with pytest.raises(ThreatModelError, match="known rows of two classes"):
        attack().infer(view, rng())


def test_what_is_no_number_neither_breaks_it_nor_is_overlooked() -> None:
    y = labels(400)
    epochs = noise(400)
    for x in epochs:
        x[y == 1, 2] = torch.inf
        x[::7, 3] = torch.nan
    view = make_view(y, gradients=epochs, known=20, shuffled=True)
    assert measure(attack().infer(view, rng()), y, rows=view.targets["train"]) == 1.0


@settings(max_examples=60)
@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 99))
def test_the_test_is_exact(n1: int, n0: int, hundredths: int) -> None:
    """p is the chance of all outcomes as far apart, by scipy, and at most x has chance x."""
    share = hundredths / 100
    a, b = np.meshgrid(np.arange(n1 + 1), np.arange(n0 + 1), indexing="ij")
    chance = stats.binom.pmf(a, n1, share) * stats.binom.pmf(b, n0, share)
    gaps = np.abs(a / n1 - b / n0)
    p = np.vectorize(lambda g: compute_gap_chance(float(g), n1, n0, share))(gaps)
    plain = np.vectorize(lambda g: chance[gaps >= g - 1e-9].sum())(gaps)
    np.testing.assert_allclose(p, plain, atol=1e-9)
    for level in (0.001, 0.05, 0.3):
        assert chance[p <= level].sum() <= level + 1e-9


def test_20_rows_of_balanced_classes_decide_among_20000_functions() -> None:
    assert compute_gap_chance(1.0, 10, 10, 0.5) == pytest.approx(2**-19)
    assert 20_000 * compute_gap_chance(1.0, 10, 10, 0.5) / 0.8 < 0.05
