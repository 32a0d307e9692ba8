"""Gradient completion: known rows on gradients of all epochs, the embedding and own columns."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from attack_views import infer_auc, made, make_view, null_band, rng, same
from cohorts import cohort
from sampled import sampled
from torch import Tensor

from vflsec.core.attack import Attack
from vflsec.core.view import View
from vflsec.data.prepare import make_task
from vflsec.errors import ThreatModelError
from vflsec.inference.gradient_history import History, _evidence, em_scores, soft_logistic
from vflsec.plugins import registry
from vflsec.specs import AttackSpec, DefenseSpec

completion = partial(made, "gradient_completion")


def signals(
    alpha: float, *, turns: bool, n: int = 2000, epochs: int = 10, m: int = 16, seed: int = 0
) -> tuple[list[Tensor], Tensor]:
    """Gradients +-alpha u_t + N(0, 1) of balanced labels; u_t one direction, or one each epoch."""
    g = rng(seed)
    y = torch.arange(n) % 2
    fixed = torch.randn(m, generator=g, dtype=torch.float64)
    out = []
    for _ in range(epochs):
        u = torch.randn(m, generator=g, dtype=torch.float64) if turns else fixed
        noise = torch.randn(n, m, generator=g, dtype=torch.float64)
        out.append(alpha * (2 * y - 1).unsqueeze(1) * (u / u.norm()) + noise)
    return out, y


def view_of(gradients: list[Tensor], y: Tensor, **given: object) -> View:
    n = len(y)
    made = {"columns": torch.randn(n, 4, generator=rng(99), dtype=torch.float64), "known": 20}
    return make_view(y, gradients=gradients, **{**made, **given})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("alpha", "turns", "summed", "em"),
    sampled([(0.3, True, 0.571, 0.89), (0.3, False, 0.854, 0.898), (0.6, True, 0.677, 0.995)]),
)
def test_em_comes_close_to_the_matched_filter(
    alpha: float, turns: bool, summed: float, em: float
) -> None:
    """The best possible AUC is Phi(sqrt 2 sqrt(T) alpha); a sum over epochs cancels turns."""
    oracle = 0.5 * (1 + math.erf(math.sqrt(10) * alpha))
    found: dict[str, list[float]] = {"head": [], "em": []}
    blank = torch.zeros(2000, 1, dtype=torch.float64)
    for seed in range(4):
        gradients, y = signals(alpha, turns=turns, seed=seed)
        view = view_of(gradients, y, columns=blank)
        for kind, values in found.items():
            values.append(infer_auc(completion(kind=kind), view, y))
    assert np.mean(found["head"]) == pytest.approx(summed, abs=0.07)
    assert np.mean(found["em"]) == pytest.approx(em, abs=0.02)
    assert max(found["em"]) <= oracle + 0.01
    if turns:
        assert np.mean(found["em"]) > np.mean(found["head"]) + 0.2


def test_the_mean_over_epochs_is_enough_for_a_direction_that_stays() -> None:
    for turns, least, most in ((False, 0.87, 0.93), (True, 0.45, 0.7)):
        found = []
        for seed in range(2):
            gradients, y = signals(0.3, turns=turns, seed=seed)
            blank = torch.zeros(2000, 1, dtype=torch.float64)
            view = view_of(gradients, y, columns=blank)
            found.append(infer_auc(completion(kind="em", epochs="mean"), view, y))
        assert least < np.mean(found) < most
    attack = completion(epochs="mean")
    assert attack.needs == {"gradient:scaled", "known_rows", "model"}
    assert completion().needs == {"gradient:all", "known_rows", "model"}
    noise, y = of_classes(3, 0.0, 0)
    view = view_of(noise, y, known=30)
    assert right(attack, view, y) == pytest.approx(1 / 3, abs=0.04)


def test_one_batch_of_another_size_changes_nothing() -> None:
    """Any batch times 1e6: scaled and unit sums, and em, are as before; the raw sum is not."""
    gradients, y = signals(0.6, turns=False, n=400)
    loud = [g.clone() for g in gradients]
    loud[3][64:128] *= 1e6
    for params in (
        {"kind": "em"}, {"kind": "average"}, {"kind": "head", "accumulate": "scaled"},
        {"kind": "head", "accumulate": "unit"},
    ):  # fmt: skip
        before = completion(**params).infer(view_of(gradients, y), rng())
        after = completion(**params).infer(view_of(loud, y), rng())
        assert after.scores == pytest.approx(before.scores, rel=1e-6, abs=1e-6)
    raw = completion(kind="head", accumulate="raw")
    assert infer_auc(raw, view_of(loud, y), y) < infer_auc(raw, view_of(gradients, y), y) - 0.05


def test_dividing_by_the_batch_pays_where_noise_goes_with_it() -> None:
    """Lognormal batch scales M_t, noise and signal in proportion: the plain sum keeps the share
    (sum M)^2 / (T sum M^2) of the information, scaled sums keep it all."""
    gradients, y = signals(0.5, turns=False, n=4000, epochs=15, m=16, seed=3)
    size = torch.exp(torch.randn(15, generator=rng(5), dtype=torch.float64))
    kept = float(size.sum() ** 2 / (15 * (size**2).sum()))
    loud = [g * s for g, s in zip(gradients, size, strict=True)]
    view = view_of(loud, y, batch=4000)
    history = History.of(view.received("gradient", "all"))
    u = torch.randn(16, generator=rng(3), dtype=torch.float64)
    separations = {}
    for how in ("scaled", "raw"):
        along = history.mean(how) @ u
        gap = along[y == 1].mean() - along[y == 0].mean()
        separations[how] = float(gap / along[y == 1].std()) ** 2
    assert separations["raw"] / separations["scaled"] == pytest.approx(kept, abs=0.1)


def test_an_embedding_that_is_the_label_beside_empty_gradients() -> None:
    y = torch.randint(2, (400,), generator=rng())
    y[:2] = torch.tensor([0, 1])
    z = torch.nn.functional.one_hot(y, 2).double()
    for kind in ("head", "em", "average"):
        view = view_of([torch.zeros(400, 3)] * 2, y, columns=z)
        assert infer_auc(completion(kind=kind), view, y) == 1.0


def test_labels_permuted_before_the_grant_are_not_found() -> None:
    gradients, y = signals(0.6, turns=True)
    other = y[torch.randperm(len(y), generator=rng(8))]
    view = view_of(gradients, other)
    low, high = null_band(other, view.targets["train"])
    assert low < infer_auc(completion(kind="em"), view, other) < high


def randomised(share: float, n: int = 2000) -> tuple[Tensor, Tensor, Tensor]:
    """True labels that 40 columns tell in part, released with epsilon 1: (x, y, released)."""
    x = torch.randn(n, 40, generator=rng(1), dtype=torch.float64)
    value = x.sum(1) / 40**0.5 + 0.5 * torch.randn(n, generator=rng(2), dtype=torch.float64)
    y = (value > value.quantile(1 - share)).long()
    keep = math.e / (1 + math.e)
    told = torch.rand(n, generator=rng(3)) < keep
    return x, y, torch.where(told, y, 1 - y)


@pytest.mark.parametrize("share", [0.15, 0.5])
def test_randomised_response_is_read_to_its_limit_and_beyond_by_own_columns(share: float) -> None:
    """A released label alone is worth e^eps / (1 + e^eps) = 0.731, whatever the balance; n of them
    teach own columns more. Without own columns nothing is beyond the channel."""
    x, y, released = randomised(share)
    g = (2.0 * released - 1).unsqueeze(1) * torch.ones(1, 4, dtype=torch.float64)
    gradients = [g + 0.1 * torch.randn(2000, 4, generator=rng(s), dtype=torch.float64)
                 for s in range(4)]  # fmt: skip
    blank = torch.zeros(2000, 2, dtype=torch.float64)
    limit = math.e / (1 + math.e)
    channel = infer_auc(completion(epsilon=1.0), view_of(gradients, y, columns=blank), y)
    assert channel == pytest.approx(limit, abs=0.03)
    plain = infer_auc(completion(kind="em"), view_of(gradients, y, columns=blank), y)
    assert plain == pytest.approx(limit, abs=0.03)
    beyond = infer_auc(completion(epsilon=1.0), view_of(gradients, y, columns=x), y)
    assert beyond > limit + 0.08


def test_evidence_of_a_released_label_is_never_beyond_epsilon() -> None:
    from vflsec.attacks.gradient_completion import randomised as log_odds

    blank = torch.zeros(4, 1, dtype=torch.float64)
    em = torch.tensor([-80.0, -1.0, 1.0, 80.0], dtype=torch.float64)
    found = log_odds(blank, em, 1.0)
    assert found == pytest.approx(-found.flip(0), abs=1e-6)
    assert float(found.max()) == pytest.approx(1.0, abs=1e-6)


def test_soft_logistic_regression_is_at_its_minimum() -> None:
    x = torch.randn(300, 5, generator=rng(), dtype=torch.float64)
    share = torch.rand(300, generator=rng(1), dtype=torch.float64)
    w = soft_logistic(x, share, c=0.1, steps=30)
    slope = x.T @ (torch.sigmoid(x @ w[:-1] + w[-1]) - share) + w[:-1] / 0.1
    assert float(slope.abs().max()) < 1e-5


def test_known_rows_keep_their_label_and_are_not_in_the_answer() -> None:
    gradients, y = signals(0.6, turns=False, n=300)
    view = view_of(gradients, y)
    guess = completion().infer(view, rng())
    assert not set(guess.rows.tolist()) & set(view.require_known().rows.tolist())
    assert set(guess.rows.tolist()) == set(view.targets["train"].tolist())
    assert same(guess, completion().infer(view, rng(5)))  # nothing is drawn
    history = History.of(view.received("gradient", "all"))
    places, labels = torch.tensor([0, 1]), torch.tensor([1, 0])
    z = torch.zeros(300, 1, dtype=torch.float64)
    start = torch.full((300, 2), 0.5, dtype=torch.float64)
    one = em_scores(history, z, start, places, labels)
    assert torch.equal(one, em_scores(history, z, start.clone(), places, labels))


def test_of_two_classes_the_evidence_is_that_of_two_normal_distributions() -> None:
    g = torch.randn(50, 6, generator=rng(), dtype=torch.float64)
    p = torch.rand(50, generator=rng(1), dtype=torch.float64)
    high, low = p @ g / p.sum(), (1 - p) @ g / (1 - p).sum()
    d = (high - low) / (high - low).norm()
    q, high, low = g @ d, high @ d, low @ d
    spread = (p * (q - high) ** 2 + (1 - p) * (q - low) ** 2).mean()
    found = _evidence(g, torch.stack([1 - p, p], dim=1))
    expected = ((q - low) ** 2 - (q - high) ** 2) / (2 * spread)
    assert found[:, 1] - found[:, 0] == pytest.approx(expected)


def of_classes(classes: int, alpha: float, seed: int) -> tuple[list[Tensor], Tensor]:
    """Ten epochs of alpha u_(t, y) + N(0, 1) in 16 directions, new ones in each epoch."""
    g = rng(seed)
    y = torch.arange(2000) % classes
    out = []
    for _ in range(10):
        u = torch.linalg.qr(torch.randn(16, classes, generator=g, dtype=torch.float64))[0].T
        out.append(alpha * u[y] + torch.randn(2000, 16, generator=g, dtype=torch.float64))
    return out, y


def right(attack: Attack, view: View, y: Tensor) -> float:
    guess = attack.infer(view, rng())
    return float((guess.scores.argmax(1) == y[guess.rows].numpy()).mean())


def test_of_several_classes_em_comes_close_to_the_matched_filter() -> None:
    """Who knows all class means is right where its own class's sum of projections is largest."""
    g = rng(9)
    own = math.sqrt(10) * 0.6 + torch.randn(100_000, generator=g)
    best = float((own > torch.randn(100_000, 3, generator=g).amax(1)).double().mean())
    for seed in range(2):
        gradients, y = of_classes(4, 0.6, seed)
        view = view_of(gradients, y, known=40, columns=torch.zeros(2000, 1, dtype=torch.float64))
        assert best - 0.06 < right(completion(kind="em"), view, y) < best + 0.02
        assert right(completion(kind="head"), view, y) < best - 0.3  # its sum turns


def test_of_several_classes_nothing_is_found_in_noise_or_permuted_labels() -> None:
    noise, y = of_classes(3, 0.0, 0)
    told, labels = of_classes(3, 0.6, 1)
    other = labels[torch.randperm(len(labels), generator=rng(8))]
    for gradients, truth in ((noise, y), (told, other)):
        view = view_of(gradients, truth, known=30)
        for kind in ("head", "em", "average"):
            assert right(completion(kind=kind), view, truth) == pytest.approx(1 / 3, abs=0.04)


def test_of_several_classes_columns_and_gradients_add_up() -> None:
    """Columns tell class 0 from the rest, gradients 1 from 2: both together are right."""
    y = torch.arange(1200) % 3
    columns = torch.randn(1200, 4, generator=rng(3), dtype=torch.float64)
    columns[:, 0] += 6 * (y == 0)
    gradients = [torch.randn(1200, 8, generator=rng(s), dtype=torch.float64) for s in range(6)]
    for of in gradients:
        of[:, 0] += 0.9 * ((y == 1).double() - (y == 2).double())
    view = view_of(gradients, y, columns=columns, known=60)
    assert right(completion(kind="average"), view, y) > 0.97
    blank = view_of(gradients, y, columns=torch.zeros_like(columns), known=60)
    alone = view_of(
        [torch.randn(1200, 8, generator=rng(7)).double()] * 6, y, columns=columns, known=60
    )
    assert right(completion(kind="average"), blank, y) < 0.85
    assert right(completion(kind="average"), alone, y) < 0.7


def test_classes_without_a_known_row_and_epsilon_beyond_two_are_refused() -> None:
    gradients, y = signals(0.6, turns=False, n=100)
    view = view_of(gradients, y)
    ten = replace(view.facts, classes=10)
    assert "two classes" in completion(epsilon=1.0).applicable(ten)
    assert completion().applicable(ten) == ""
    known = view.require_known()
    of_one = replace(view, known=replace(known, rows=known.rows[:1], labels=known.labels[:1]))
    with pytest.raises(ThreatModelError, match="of every class, got"):
        completion().infer(of_one, rng())
    with pytest.raises(ThreatModelError, match="known_rows"):
        completion().infer(replace(view, known=None), rng())


WORLDS = [
    ("marvell", 1.0, 0.5, {}), ("max_norm", 1.0, 0.15, {}), ("iso", 5.0, 0.5, {}),
    ("label_dp", 1.0, 0.15, {"epsilon": 1.0}), ("label_dp", 1.0, 0.5, {"epsilon": 1.0}),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("defense", "strength", "share", "randomised_form"), sampled(WORLDS))
def test_behind_defenses_it_at_least_equals_every_single_attack(
    defense: str, strength: float, share: float, randomised_form: dict[str, float]
) -> None:
    """Trained worlds, 20 known rows, mean over seeds of the AUC on training rows."""
    source = registry.datasets.create(
        "control_gaussian",
        {"rows": 800, "positive_rate": share, "validation_rows": 100, "test_rows": 100},
    )
    seeds = (0, 1)
    tasks = {s: make_task(source.load(s), s) for s in seeds}
    on = [DefenseSpec(defense, strength=strength)]
    single: list[tuple[str, dict[str, Any]]] = [
        ("norm", {}), ("direction", {"positives": 5}), ("hints", {}), ("similarity", {}),
        ("spectral", {"on": "gradient"}), ("spectral", {}), ("similarity", {"on": "embedding"}),
        ("model_completion", {"variants": ("logistic",)}),
    ]  # fmt: skip
    fused: list[dict[str, Any]] = [{"kind": k} for k in ("head", "em", "average")]
    fused += [randomised_form] if randomised_form else []
    named = [*single, *(("gradient_completion", f) for f in fused)]
    attacks = [AttackSpec(n, p, (tasks[0].passive[0],)) for n, p in named]
    found: dict[str, list[float]] = {a.label: [] for a in attacks}
    for result in cohort(attacks, tasks, on, epochs=12, patience=0, top=(16,)):
        for m in result.measures:
            if m.metric == "auc" and m.split == "train":
                assert m.value is not None
                found[m.attack].append(m.value)
    means = {k: float(np.mean(v)) for k, v in found.items()}
    ours = max(v for k, v in means.items() if k.startswith("gradient_completion"))
    others = max(v for k, v in means.items() if not k.startswith("gradient_completion"))
    assert ours >= others - 0.002, means
    if defense != "label_dp":
        assert means["gradient_completion(kind=average)"] >= others - 0.005, means
