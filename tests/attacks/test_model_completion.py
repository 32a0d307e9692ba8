"""Passive model completion: a head on the own trained bottom, fitted to a few labelled rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from attack_views import made, make_view, measure, rng, same
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from torch import nn

from vflsec.core.guess import Guess
from vflsec.core.view import Known
from vflsec.inference.completion import (
    SHRINKAGE,
    Fit,
    Fitted,
    cv_score,
    fit_logistic,
    logistic_cv,
    simplest_good,
)  # fmt: skip

completion = partial(made, "model_completion")


def labels(n: int, classes: int, seed: int = 0) -> torch.Tensor:
    y = torch.randint(classes, (n,), generator=rng(seed))
    y[:classes] = torch.arange(classes)
    return y


VARIANTS = [("logistic",), ("mlp",), ("finetune",), ("finetune_mlp",)]


def trained_bottom(d: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(d, 8), nn.ReLU(), nn.Linear(8, 4)).double()


@pytest.mark.parametrize("variants", VARIANTS)
def test_an_embedding_that_is_the_label_is_read_without_error(variants: tuple[str, ...]) -> None:
    """Z = e_y with a known row of every class."""
    y = labels(300, 4)
    z = nn.functional.one_hot(y, 4).double()
    view = make_view(y, columns=z, bottom=nn.Linear(4, 4).double(), known=12, test=100)
    if variants[0] in ("logistic", "mlp"):
        view = make_view(y, columns=z, known=12, test=100)
    guess = completion(variants=variants, steps=300).infer(view, rng())
    assert measure(guess, y, "accuracy") == 1.0


def read_by(entry: int) -> nn.Module:
    """A bottom of five columns that hands on one of them alone."""
    bottom = nn.Linear(5, 3).double()
    with torch.no_grad():
        bottom.weight[:, [k for k in range(5) if k != entry]] = 0
    return bottom


@pytest.mark.parametrize(
    ("entry", "alone", "beside"),
    [(1, (0.45, 0.55), (0.62, 0.75)), (0, (0.8, 0.88), (0.8, 0.88))],
)
def test_own_columns_beside_the_embedding(
    entry: int, alone: tuple[float, float], beside: tuple[float, float]
) -> None:
    """Column 0 of five allows an AUC of 0.856; a bottom that learnt nothing does not hand it on.

    One that hands on noise alone takes half of the weight; one that has it all loses nothing.
    """
    found = []
    for seed in range(6):
        y = torch.arange(500) % 2
        x = torch.randn(500, 5, generator=rng(seed), dtype=torch.float64)
        x[:, 0] += 1.5 * y
        view = make_view(y, columns=x, bottom=read_by(entry), known=20, test=200)
        views = [view, replace(view, known=view.require_known())]
        mine = completion(columns=True, variants=("logistic",)).infer_many(views, [rng(), rng()])
        assert same(*mine)
        found.append(
            [
                measure(g, y)
                for g in (completion(variants=("logistic",)).infer(view, rng()), mine[0])
            ]
        )
    for value, (low, high) in zip(np.mean(found, axis=0), (alone, beside), strict=True):
        assert low < value < high


def test_the_bottom_is_left_as_it_was() -> None:
    """Also the variants that train along work on a copy."""
    y = labels(120, 2)
    bottom = trained_bottom(6)
    before = {k: v.clone() for k, v in bottom.state_dict().items()}
    x = torch.randn(120, 6, generator=rng(1), dtype=torch.float64)
    view = make_view(y, columns=x, bottom=bottom, known=10)
    completion(steps=20).infer(view, rng())
    assert all(torch.equal(v, before[k]) for k, v in bottom.state_dict().items())


def test_permuted_class_names_permute_the_answer() -> None:
    y = labels(200, 3)
    z = nn.functional.one_hot(y, 3).double() + 0.5 * torch.randn(
        200, 3, generator=rng(2), dtype=torch.float64
    )
    view = make_view(y, columns=z, known=15)
    known = view.require_known()
    order = torch.tensor([2, 0, 1])
    plain = completion(variants=("logistic",)).infer(view, rng())
    turned = completion(variants=("logistic",)).infer(
        replace(view, known=Known(known.rows, order[known.labels])), rng()
    )
    assert turned.scores[:, order] == pytest.approx(plain.scores, abs=1e-3)


def test_the_variant_is_chosen_on_known_rows() -> None:
    """A linear head cannot solve exclusive-or; the network head can, and wins the validation."""
    x = torch.randn(600, 2, generator=rng(3), dtype=torch.float64)
    y = ((x[:, 0] > 0) ^ (x[:, 1] > 0)).long()
    view = make_view(y, columns=x, known=80)
    guess = completion(variants=("logistic", "mlp"), steps=300).infer(view, rng())
    assert guess.notes["variant"] == "mlp"
    assert guess.notes["cv"]["mlp"] > guess.notes["cv"]["logistic"] + 0.2
    assert measure(guess, y) > 0.9


@pytest.mark.parametrize(
    "params",
    [{}, {"variants": ("mixmatch",), "mixmatch": {"epochs": 1, "iterations": 20}}],
    ids=["default", "mixmatch"],
)
def test_replicas_in_one_batch_equal_replicas_alone(params: dict[str, Any]) -> None:
    views = []
    for seed in range(3):
        y = labels(90, 2, seed)
        x = torch.randn(90, 4, generator=rng(seed + 10), dtype=torch.float64) + y.unsqueeze(1)
        torch.manual_seed(seed)
        views.append(make_view(y, columns=x, bottom=trained_bottom(4), known=8))
    attack = completion(steps=15, **params)
    together = attack.infer_many(views, [rng(s) for s in range(3)])
    for s, view in enumerate(views):
        alone = attack.infer(view, rng(s))
        assert same(alone, together[s]) or np.allclose(alone.scores, together[s].scores, atol=1e-9)
        assert alone.notes == together[s].notes


def test_only_the_chosen_variant_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two worlds that need a line and one that needs a network, each is answered once."""
    answered: dict[str, list[int]] = {}
    fits = Fitted.fits

    def counted(self: Fitted, replicas: Sequence[int]) -> list[Fit]:
        answered.setdefault(self.variant, []).extend(replicas)
        return fits(self, replicas)

    monkeypatch.setattr(Fitted, "fits", counted)
    views = []
    for seed in range(3):
        x = torch.randn(600, 2, generator=rng(seed + 3), dtype=torch.float64)
        y = ((x[:, 0] > 0) ^ (x[:, 1] > 0)).long() if seed == 1 else (x[:, 0] > 0).long()
        views.append(make_view(y, columns=x, known=80))
    attack = completion(variants=("logistic", "mlp"), steps=300)
    guesses = attack.infer_many(views, [rng(s) for s in range(3)])
    assert answered == {"logistic": [0, 2], "mlp": [1]}
    assert [g.notes["variant"] for g in guesses] == ["logistic", "mlp", "logistic"]
    monkeypatch.undo()
    alone = [attack.infer(v, rng(s)) for s, v in enumerate(views)]
    assert all(same(a, b) for a, b in zip(alone, guesses, strict=True))


def test_no_penalty_left_is_the_limit_of_the_class_means() -> None:
    """Balanced known rows: logistic regression at C = 1e-6 ranks as the class-mean difference."""
    x = rng_normal(20, 30)
    y = np.arange(20) % 2
    targets = rng_normal(200, 30, seed=1)
    limit, near, far = (
        (s := fit_logistic(x, y, targets, 2, c))[:, 1] - s[:, 0] for c in (0.0, 1e-6, 10.0)
    )
    difference = targets @ (x[y == 1].mean(0) - x[y == 0].mean(0))
    assert np.corrcoef(limit, difference)[0, 1] == pytest.approx(1, abs=1e-12)
    assert np.corrcoef(limit, near)[0, 1] > 0.99999
    assert np.corrcoef(limit, far)[0, 1] < 0.95


def test_twenty_rows_on_columns_that_repeat_each_other_are_shrunk() -> None:
    """Twelve noisy copies of one number: the shrunk head is ahead of the plain one."""
    shrunk, plain = [], []
    for seed in range(8):
        y = labels(1000, 2, seed)
        number = 1.0 * y + torch.randn(1000, generator=rng(seed + 30), dtype=torch.float64)
        x = torch.randn(1000, 12, generator=rng(seed + 50), dtype=torch.float64)
        x = number.unsqueeze(1) + x
        view = make_view(y, columns=x, known=20)
        guess = completion(variants=("logistic",)).infer(view, rng())
        shrunk.append(measure(guess, y, rows=view.targets["train"]))
        known, rest = view.require_known(), view.targets["train"]
        z = ((x - x[rest].mean(0)) / x[rest].std(0)).numpy()
        s = fit_logistic(z[known.rows], known.labels.numpy(), z[rest], 2)
        plain.append(measure(Guess("label", rest, s), y))
    assert np.mean(shrunk) > np.mean(plain) + 0.05


def test_many_rows_and_a_large_nuisance_are_not_shrunk() -> None:
    """The label is a small difference of two columns that share a large one: means miss it."""
    y = labels(1500, 2)
    shared = 3 * torch.randn(1500, 1, generator=rng(1), dtype=torch.float64)
    x = torch.cat([shared + 0.3 * (2 * y - 1).unsqueeze(1), shared], dim=1)
    x = x + 0.1 * torch.randn(1500, 2, generator=rng(2), dtype=torch.float64)
    view = make_view(y, columns=x, known=200)
    guess = completion(variants=("logistic",)).infer(view, rng())
    assert guess.notes["c"] >= 1.0
    assert measure(guess, y, rows=view.targets["train"]) > 0.97


def test_a_near_tie_goes_to_the_simpler_answer() -> None:
    """Two of 20 rows better is a tie, ten of 20 is not; the order decides what is simpler."""
    y = np.arange(20) % 3
    right = np.eye(3)[y]
    two, ten = right.copy(), right.copy()
    two[:2] = np.roll(right[:2], 1, axis=1)
    ten[:10] = np.roll(right[:10], 1, axis=1)
    assert simplest_good([two, right], y) == 0
    assert simplest_good([ten, right], y) == 1
    assert simplest_good([ten, two, right], y) == 1
    assert simplest_good([right, ten], y) == 0


def test_many_classes_are_judged_by_their_shares() -> None:
    """Three of 40 rows better is a tie by right and wrong; shares that say nothing are not."""
    y = np.arange(40) % 4
    sure = np.log(np.where(np.eye(4)[y] == 1, 0.91, 0.03))
    flat = np.log(np.where(np.eye(4)[y] == 1, 0.28, 0.24))
    flat[:3] = np.roll(flat[:3], 1, axis=1)
    assert cv_score(sure, y) - cv_score(flat, y) == pytest.approx(3 / 40)
    assert simplest_good([flat, sure], y) == 1
    sharp = np.log(np.where(np.eye(4)[y] == 1, 0.91, 0.03))
    sharp[:3] = np.roll(sharp[:3], 1, axis=1)
    assert simplest_good([sharp, sure], y) == 0


def test_ten_classes_on_eighty_rows_are_not_shrunk_to_the_end() -> None:
    """Half the pixels of the digits: mean accuracy over six draws, beside the most shrunk heads."""
    from sklearn.datasets import load_digits

    pixels, y = load_digits(return_X_y=True)
    x = pixels[:, 32:]
    x = (x - x.mean(0)) / np.maximum(x.std(0), 1e-6)
    found = {"chosen": [], "shrunk": []}
    for seed in range(6):
        order = np.random.default_rng(seed).permutation(len(y))
        known, rest = order[:80], order[80:]
        grant = Known(torch.as_tensor(known), torch.as_tensor(y[known]))
        for name, grid in (("chosen", SHRINKAGE), ("shrunk", SHRINKAGE[:2])):
            fit = logistic_cv(x[known], grant, x[rest], 10, "logistic", grid)
            found[name].append(float((fit.scores.argmax(1) == y[rest]).mean()))
    assert np.mean(found["chosen"]) > 0.69
    assert np.mean(found["chosen"]) > np.mean(found["shrunk"]) + 0.01


def test_more_columns_than_rows_change_nothing_but_the_time() -> None:
    """The fit within the span of the known rows equals the fit on all columns."""
    x = rng_normal(60, 90)
    known = Known(torch.arange(20), torch.arange(20) % 2)
    fit = logistic_cv(x[:20], known, x[20:], 2, "logistic", (1.0,))
    exact = LogisticRegression(tol=1e-10, max_iter=10_000).fit(x[:20], known.labels.numpy())
    assert fit.scores == pytest.approx(exact.predict_log_proba(x[20:]), abs=1e-5)
    assert fit.held is not None


def rng_normal(n: int, d: int, seed: int = 0) -> np.ndarray:
    return torch.randn(n, d, generator=rng(seed), dtype=torch.float64).numpy()


def test_held_out_auc_is_the_published_one_and_a_diverged_head_has_none() -> None:
    rng = np.random.default_rng(3)
    for q in (4, 20, 81):
        y = (rng.random(q) < 0.3).astype(np.int64)
        y[:2] = (0, 1)
        margin = rng.integers(-3, 4, q).astype(np.float64)  # many ties
        log_p = np.stack([np.zeros(q), margin], 1)
        assert cv_score(log_p, y) == pytest.approx(roc_auc_score(y, margin), abs=1e-12)
    assert cv_score(np.log(np.eye(2)[[0, 1, 1]] + 1e-9), np.array([0, 1, 1])) == 1
    assert cv_score(np.zeros((3, 2)), np.array([1, 1, 1])) == 0.5
    assert cv_score(np.full((3, 2), np.nan), np.array([0, 1, 1])) == 0
