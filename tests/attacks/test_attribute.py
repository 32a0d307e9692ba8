"""Attribute inference: one column of another party from its embeddings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from attack_views import PARTY, feature_view, measure, normal, r2, rng, with_shared_noise
from cohorts import cohort
from sampled import sampled
from sklearn.metrics import roc_auc_score

from vflsec.attacks.attribute import areas
from vflsec.core.attack import describe_scoring
from vflsec.core.guess import Guess
from vflsec.core.view import Schema, View
from vflsec.errors import ConfigError, ThreatModelError
from vflsec.measure.controls import controls_for
from vflsec.plugins import registry
from vflsec.specs import AttackSpec
from vflsec.testing import small_task


def side(view: View, x: torch.Tensor) -> tuple[Guess, float]:
    """The answer about the second column of x (n, d), and the share of rows on the right side."""
    guess = registry.attacks.create("attribute", {"column": "v1"}).infer(view, rng())
    return guess, float((guess.scores.argmax(1) == (x[guess.rows, 1] > 0).numpy()).mean())


def test_an_embedding_that_holds_the_column_gives_it_away() -> None:
    x = normal(400, 3)
    view = feature_view(normal(400, 2, seed=1), x, x @ normal(3, 5, seed=2), aux=80)
    _, right = side(view, x)
    assert right > 0.93


def test_categories_are_classes() -> None:
    codes = torch.randint(1, 4, (300,), generator=rng()).double()
    x = torch.stack([normal(300), codes], 1)
    z = torch.nn.functional.one_hot(codes.long(), 4).double() + 0.1 * normal(300, 4, seed=2)
    view = feature_view(normal(300, 2, seed=1), x, z, aux=60, cardinalities=(0, 4))
    guess = registry.attacks.create("attribute", {}).infer(view, rng())
    assert (guess.scores.argmax(1) == codes[guess.rows].long().numpy()).all()
    assert guess.notes["victim"] == PARTY


def test_an_unrelated_embedding_stays_at_chance() -> None:
    x = normal(1200, 1)
    view = feature_view(normal(1200, 2, seed=1), x, normal(1200, 4, seed=2), aux=200)
    guess = registry.attacks.create("attribute", {}).infer(view, rng())
    truth = (x[guess.rows, 0] > 0).long().numpy()
    share = (guess.scores.argmax(1) == truth).mean()
    assert abs(share - 0.5) < 4 * (0.25 / 1000) ** 0.5


def test_columns_are_named_or_told() -> None:
    schema = Schema(("age", "job"), (0, 3), (2,))
    x = torch.tensor([[0.5, 1.0], [-1.0, 2.0]])
    assert schema.attribute(x)[0].tolist() == [1, 2]
    assert schema.attribute(x)[1] == 3
    assert schema.attribute(x, "age")[0].tolist() == [1, 0]
    with pytest.raises(ThreatModelError, match="'age', 'job'"):
        schema.attribute(x, "salary")


@pytest.mark.parametrize("told", sampled(["first", "anew"]))
def test_what_the_last_epoch_does_not_tell_another_or_all_do(told: str) -> None:
    """The last embeddings alone were read: 0.5 and 0.7 of the rows, R^2 -0.02 and 0.35."""
    x = normal(500, 3)
    plain = x @ normal(3, 6, seed=2)
    epochs = [normal(500, 6, seed=3 + e) for e in range(10)]
    if told == "first":
        epochs[0] = plain
    else:
        epochs = [plain + 3 * noise for noise in epochs]
    view = feature_view(normal(500, 2, seed=1), x, epochs, aux=80)
    _, right = side(view, x)
    assert right > (0.9 if told == "first" else 0.77)
    share = registry.attacks.create("property", {"column": "v1"}).infer(view, rng())
    assert share.notes["lambda"] > 0.6
    decoded = registry.attacks.create("embedding_inversion", {}).infer(view, rng())
    assert r2(decoded, x) > (0.95 if told == "first" else 0.55)
    assert decoded.notes["variant"].endswith(told.replace("anew", "mean"))


@pytest.mark.parametrize("whose", sampled(["batch", "row", "place"]))
def test_noise_that_rows_share_hides_nothing(whose: str) -> None:
    """Noise of eight times the embeddings' size: 0.5 of the rows and an R^2 of 0 were told."""
    x = normal(640, 3)
    epochs = with_shared_noise(x @ normal(3, 6, seed=2), whose)
    view = feature_view(normal(640, 2, seed=1), x, epochs, aux=80, shuffled=True)
    guess, right = side(view, x)
    share = registry.attacks.create("property", {"column": "v1"}).infer(view, rng())
    decoded = r2(registry.attacks.create("embedding_inversion", {}).infer(view, rng()), x)
    if whose == "row":  # as it should be drawn
        assert "centred" not in guess.notes["variant"]
        assert abs(right - 0.5) < 0.12
        assert decoded < 0.1
    else:
        assert guess.notes["variant"].endswith(", centred")
        assert right > 0.9
        assert share.notes["lambda"] > 0.6
        assert decoded > 0.8


@pytest.mark.parametrize(
    ("planted", "grows"),
    sampled([(True, "rows"), (False, "rows"), (True, ""), (True, "all"), (False, "")], 2),
)
def test_noise_that_is_remembered_for_each_row_is_gone_from_the_change(
    planted: bool, grows: str
) -> None:
    """It does not average out, so all forms stood at chance, and gates passed."""
    x, noise = normal(640, 3), 20 * normal(640, 6, seed=3)
    plain = [x @ normal(3, 6, seed=s) * planted for s in (2, 4)]
    more = {"": 1.0, "all": 3.0, "rows": 2 + normal(640, 1, seed=8).abs()}[grows]
    epochs = [plain[0] + noise, plain[1] + more * noise]
    view = feature_view(normal(640, 2, seed=1), x, epochs, aux=80)
    guess, right = side(view, x)
    decoded = r2(registry.attacks.create("embedding_inversion", {}).infer(view, rng()), x)
    if planted:
        assert guess.notes["variant"].endswith(", change")
        assert right > (0.8 if grows == "rows" else 0.9)
        assert decoded > (0.6 if grows == "rows" else 0.9)
    else:
        assert abs(right - 0.5) < 4 * (0.25 / 560) ** 0.5
        assert decoded < 0.05


def hidden(how: str, x: torch.Tensor, own: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    """Noise z (n, d) in which a column x (n,) stands otherwise than in an entry."""
    z = z.clone()
    if how == "length":
        return torch.nn.functional.normalize(z, dim=1) * torch.exp(x / 2).unsqueeze(1)
    if how == "zeros":
        return z * (torch.rand(z.shape, generator=rng(4)) < torch.sigmoid(2 * x + 1).unsqueeze(1))
    if how == "times own":
        z[:, 3] = x.sign() * own[:, 0].sign()
    elif how == "plus own":
        z[:, 3] = x + 10 * own[:, 0]
    elif how == "two entries":
        z[:, 3], z[:, 4] = z[:, 3].sign(), z[:, 3].sign() * x.sign()
    return z


@pytest.mark.parametrize(
    ("how", "least", "decoded"),
    sampled([("length", 0.9, 0.9), ("zeros", 0.75, 0.4), ("times own", 0.95, 0.2),
             ("two entries", 0.95, 0.35), ("plus own", 0.9, 0.9), ("nothing", 0.0, -0.1)], every=5),
)  # fmt: skip
def test_a_column_that_stands_in_no_entry_is_found(how: str, least: float, decoded: float) -> None:
    """Of rows 0.46 to 0.61 were answered rightly, 0.84 of two entries."""
    x, own = normal(1000, 6), normal(1000, 3, seed=1)
    z = hidden(how, x[:, 1], own, normal(1000, 16, seed=2))
    view = feature_view(own, x, z, aux=60)
    guess = registry.attacks.create("attribute", {"column": "v1"}).infer(view, rng())
    truth = x[guess.rows, 1]
    right = (guess.scores.argmax(1) == (truth > 0).long().numpy()).mean()
    found = registry.attacks.create("embedding_inversion", {}).infer(view, rng())
    off = (torch.from_numpy(found.scores)[:, 1] - truth).square().mean() / truth.var()
    if how == "nothing":
        assert abs(right - 0.5) < 4 * (0.25 / 940) ** 0.5
        assert -0.1 < 1 - off < 0.05
    else:
        assert right > least
        assert 1 - off > decoded


@pytest.mark.parametrize("factor", sampled(["both", "row", "positive", "sign"]))
def test_a_factor_drawn_for_each_row_hides_little(factor: str) -> None:
    """Multiplicative blinding: behind a factor of any sign 0.5 of the rows were told."""
    x, sign = normal(900, 3), normal(900, 1, seed=5).sign()
    z = x @ normal(3, 6, seed=2) + 2
    size = torch.exp(2 * normal(900, 1, seed=6))
    epochs = [z * {"positive": size, "sign": sign, "both": size * sign, "row": 0}[factor]]
    if factor == "row":
        epochs = [normal(900, 6, seed=7)]  # nothing of the columns is left
    view = feature_view(normal(900, 2, seed=1), x, epochs, aux=100)
    _, right = side(view, x)
    decoded = r2(registry.attacks.create("embedding_inversion", {}).infer(view, rng()), x)
    if factor == "row":
        assert abs(right - 0.5) < 4 * (0.25 / 800) ** 0.5
        assert decoded < 0.05
    else:
        assert right > 0.8
        assert decoded > 0.4


def test_one_entry_of_many_that_marks_a_category_is_found() -> None:
    """Beside a regression on all 64 entries of 80 rows."""
    x, z = normal(600, 1), normal(600, 64, seed=2)
    x = torch.cat([x, 1.0 + (normal(600, 1, seed=4) > 0.8).double()], 1)
    z[:, 7] = 4 * (x[:, 1] - 1) + normal(600, seed=5)
    view = feature_view(normal(600, 2, seed=1), x, z, aux=80, cardinalities=(0, 3))
    guess = registry.attacks.create("attribute", {}).infer(view, rng())
    assert guess.notes["variant"] == "entry"
    truth = x[guess.rows, 1].long().numpy()
    assert (guess.scores.argmax(1) == truth).mean() > 0.93


@pytest.mark.parametrize(("told", "aux"), sampled([(0.1, 60), (0.0, 200), (0.1, 200)]))
def test_a_tenth_of_the_rows_told_moves_the_true_positive_rate(told: float, aux: int) -> None:
    """`docs/limits.md`: rows that are told plainly come first, on most of six seeds."""
    rates = []
    for seed in range(0, 60, 10):
        x, plain = normal(1600, 3, seed=seed), torch.rand(1600, 1, generator=rng(seed + 7)) < told
        z = torch.where(plain, 8 * x @ normal(3, 6, seed=seed + 2), normal(1600, 6, seed=seed + 3))
        view = feature_view(normal(1600, 2, seed=seed + 1), x, z, aux=aux)
        guess = registry.attacks.create("attribute", {"column": "v1"}).infer(view, rng())
        scores, truth = torch.as_tensor(guess.scores[:, 1]), x[guess.rows, 1] > 0
        assert roc_auc_score(truth, scores) < 0.65
        rates.append(float((scores[truth] > scores[~truth].quantile(0.99)).double().mean()))
    rate = sum(rates) / 6
    if not told:
        assert rate < 0.025
    else:
        assert rate > (0.06 if aux == 200 else 0.035)


TOLD = {
    "far from the median": lambda v: v.abs() > 0.674,
    "largest tenth": lambda v: v > 1.2816,
    "smallest tenth": lambda v: v < -1.2816,
}


def auc(guess: Guess, truth: torch.Tensor) -> float:
    return float(roc_auc_score(truth[torch.as_tensor(guess.rows)], guess.scores[:, 1]))


def about(x: torch.Tensor, z: torch.Tensor, aux: int = 120, **params: object) -> Guess:
    view = feature_view(normal(len(x), 2, seed=1), x, z, aux=aux)
    return registry.attacks.create("attribute", {"column": "v1", **params}).infer(view, rng())


@pytest.mark.parametrize("ask", sampled(TOLD))
@pytest.mark.parametrize("plant", ["mark", "column", "nothing"])
def test_what_is_asked_of_a_column_is_found(ask: str, plant: str) -> None:
    """A mark on a tenth of the rows moves the side of the mean little, and |x| not at all."""
    x, z = normal(1600, 3), normal(1600, 6, seed=2)
    truth = TOLD[ask](x[:, 1])
    if plant == "mark":
        z[:, 4] = 6 * truth + normal(1600, seed=5)
    elif plant == "column":
        z = torch.cat([x, z], 1) @ normal(9, 9, seed=6)
    found = auc(about(x, z, ask=ask), truth)
    if plant == "nothing":
        assert abs(found - 0.5) < 0.08
        return
    assert found > 0.95
    if plant == "mark":
        side = auc(about(x, z), x[:, 1] > 0)
        assert side < (0.53 if ask.startswith("far") else 0.64)


def test_one_category_of_many_is_asked_against_the_others() -> None:
    """One in fifty: of the balanced accuracy over eight categories it moves a sixteenth."""
    codes = torch.randint(2, 9, (3000,), generator=rng()).double()
    codes[torch.rand(3000, generator=rng(3)) < 0.02] = 1
    z = normal(3000, 6, seed=2)
    z[:, 3] = 8 * (codes == 1) + normal(3000, seed=5)
    x = torch.stack([normal(3000), codes], 1)
    for shuffled in (False, True):
        given = z[torch.randperm(3000, generator=rng(7))] if shuffled else z
        view = feature_view(normal(3000, 2, seed=1), x, given, aux=400, cardinalities=(0, 9))
        guess = registry.attacks.create("attribute", {"category": 1}).infer(view, rng())
        found = auc(guess, codes == 1)
        assert found > 0.95 if not shuffled else abs(found - 0.5) < 0.2


@pytest.mark.parametrize("ask", sampled(TOLD))
def test_what_own_columns_tell_of_a_question_is_no_leak(ask: str) -> None:
    """They tell the value, and so do controls: an attack beside noise gains nothing on them."""
    x = normal(1600, 3)
    own = torch.stack([x[:, 1] + 0.3 * normal(1600, seed=8), normal(1600, seed=9)], 1)
    view = feature_view(own, x, normal(1600, 6, seed=2), aux=120)
    attack = registry.attacks.create("attribute", {"column": "v1", "ask": ask})
    truth = TOLD[ask](x[:, 1])
    (controls,) = controls_for(attack, [view], [rng()])
    best = max(auc(c.guess, truth) if c.guess.scores.ndim > 1
               else roc_auc_score(truth[torch.as_tensor(c.guess.rows)], c.guess.scores)
               for c in controls)  # fmt: skip
    assert auc(attack.infer(view, rng()), truth) > 0.85
    assert auc(attack.infer(view, rng()), truth) < best + 0.02


def test_what_cannot_be_asked_of_a_column_is_said() -> None:
    schema = Schema(("age", "job"), (0, 3), (2,))
    x = torch.tensor([[0.5, 1.0], [-1.0, 2.0]])
    assert schema.attribute(x, "job", category=2) == (pytest.approx(torch.tensor([0, 1])), 2)
    with pytest.raises(ThreatModelError, match="'job' holds categories 1 to 2, of which ask"):
        schema.attribute(x, "job", "largest tenth")
    with pytest.raises(ThreatModelError, match="categories 1 to 2, of which category = 3"):
        schema.attribute(x, "job", category=3)
    with pytest.raises(ThreatModelError, match="'age' holds numbers, of which category = 1"):
        schema.attribute(x, "age", category=1)


@pytest.mark.parametrize(("victim", "whose"), [("", "passive1"), ("passive2", "passive2")])
def test_of_several_parties_it_is_said_whose_column_it_was(victim: str, whose: str) -> None:
    """What it found of the first one's was called a column of both."""
    asked = AttackSpec("attribute", {}, ("active",), aux_rows=60, victim=victim)
    tasks = {0: small_task(0, n=400, widths=(4, 3, 5))}
    (result,) = cohort(asked, tasks, epochs=2, cut=8)
    assert {m.victim for m in result.measures} == {whose}
    assert {m.notes["victim"] for m in result.measures if m.notes} == {whose}
    assert result.facts.columns == {"active": 4, "passive1": 3, "passive2": 5}


PLANTED: dict[str, tuple[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "side": ("v2 above its mean", lambda x: 2 * (x[:, 2] > 0).double()),
    "far": ("v2 far from the median", lambda x: x[:, 2].abs()),
    "tail": ("v2 in the largest tenth", lambda x: 3 * (x[:, 2] > 1.28).double()),
    "rare": ("v6 in its category 3", lambda x: 3 * (x[:, 6] == 3).double()),
}


def many_columns(how: str, seed: int) -> tuple[torch.Tensor, View]:
    """Six numbers and a category of which 0.1 of the rows are a 3; one entry of 16 says `how`."""
    x, z = normal(900, 7, seed=seed), normal(900, 16, seed=seed + 10)
    share = torch.rand(900, generator=rng(seed + 20))
    x[:, 6] = torch.where(share < 0.1, 3.0, torch.where(share < 0.5, 2.0, 1.0)).double()
    if how in PLANTED:
        z[:, 4] = PLANTED[how][1](x) + 0.3 * z[:, 4]
    own = normal(900, 3, seed=seed + 30)
    return x, feature_view(own, x, z, aux=100, cardinalities=(0,) * 6 + (4,))


@pytest.mark.parametrize("how", sampled([*PLANTED, "nothing"]))
def test_whichever_question_is_told_best_is_asked(how: str) -> None:
    """Of 27 questions about seven columns; the first category, or column, alone was asked."""
    attack = registry.attacks.create("attribute", {"column": "*"})
    gains, found = [], []
    seeds = range(3 if how == "nothing" else 2)
    for seed in seeds:
        x, view = many_columns(how, seed)
        guess = attack.infer(view, rng(seed))
        asked = describe_scoring(attack.resolved(guess))
        found.append(guess.notes["asked"])
        truth = view.schema[PARTY].attribute(x, *asked)[0]
        controls = controls_for(attack.resolved(guess), [view], [rng(seed)])[0]
        own = [measure(c.guess, truth, rows=view.targets["train"]) for c in controls]
        gains.append(measure(replace(guess, target="label"), truth) - max(own))
    if how == "nothing":
        assert np.mean(gains) < 0.02
    else:
        assert found == [PLANTED[how][0]] * len(seeds)
        assert min(gains) > 0.35


@pytest.mark.parametrize("seed", sampled(range(3)))
def test_embeddings_that_hold_own_columns_alone_answer_no_question(seed: int) -> None:
    """Of a column known but for its sign the sizes told up to 0.16 more than controls did."""
    own = normal(900, 8, seed=seed)
    x = torch.cat([own[:, :1], normal(900, 1, seed=seed + 50).sign() * own[:, :1]], 1)
    view = feature_view(own, x, own[:, :1], aux=60)
    attack = registry.attacks.create("attribute", {"column": "v1", "ask": "far from the median"})
    truth = view.schema[PARTY].attribute(x, *describe_scoring(attack))[0]
    controls = controls_for(attack, [view], [rng(seed)])[0]
    own_columns = max(measure(c.guess, truth, rows=view.targets["train"]) for c in controls)
    found = measure(replace(attack.infer(view, rng(seed)), target="label"), truth)
    assert found > 0.95
    assert found - own_columns < 0.01


def test_whichever_asks_nothing_that_own_columns_tell_otherwise_than_by_a_line() -> None:
    """Of a column known but for its sign it asked the size, which hid a leak of 0.4 by 0.01."""
    attack = registry.attacks.create("attribute", {"column": "*"})
    for seed in range(2):
        own, rest = normal(900, 4, seed=seed), normal(900, 3, seed=seed + 20)
        x = torch.cat([normal(900, 1, seed=seed + 10).sign() * own[:, :1], rest], 1)
        plain = x[:, 1:2] + 0.5 * normal(900, 1, seed=seed + 30)
        z = torch.cat([own[:, :1], plain, normal(900, 2, seed=seed + 40)], 1)
        view = feature_view(own, x, z, aux=100)
        guess = attack.infer(view, rng(seed))
        asked = describe_scoring(attack.resolved(guess))
        assert asked[0] == "v1"
        truth = view.schema[PARTY].attribute(x, *asked)[0]
        controls = controls_for(attack.resolved(guess), [view], [rng(seed)])[0]
        own_columns = max(measure(c.guess, truth, rows=view.targets["train"]) for c in controls)
        assert measure(replace(guess, target="label"), truth) - own_columns > 0.35


def test_whichever_rests_on_auxiliary_rows_alone() -> None:
    x, view = many_columns("nothing", 5)
    attack = registry.attacks.create("attribute", {"column": "*"})
    first = attack.infer(view, rng()).notes["question"]
    z = view.received("embedding", "last").tensor
    x[100:, :6] = z[100:, :6]  # whatever the columns of all other rows are
    again = attack.infer(feature_view(view.columns["active"], x, z, aux=100,
                                      cardinalities=(0,) * 6 + (4,)), rng())  # fmt: skip
    assert again.notes["question"] == first


@pytest.mark.slow
def test_whichever_is_judged_as_the_question_that_it_chose() -> None:
    tasks = {0: small_task(0, n=400)}
    spec = AttackSpec("attribute", {"column": "*"}, ("active",), aux_rows=60)
    for result in cohort(spec, tasks, epochs=4, cut=8):
        (auc,) = [m for m in result.measures if m.metric == "auc"]
        column, ask, category = auc.notes["question"]
        same = {k: v for k, v in (("column", column), ("ask", ask), ("category", category)) if v}
        by_name = AttackSpec("attribute", same, ("active",), aux_rows=60)
        seed = result.spec.seed
        (other,) = cohort(by_name, {seed: tasks[seed]}, epochs=4, cut=8)
        (named,) = [m for m in other.measures if m.metric == "auc"]
        assert (auc.value, auc.n, auc.chance) == (named.value, named.n, named.chance)
        shared = {name: auc.controls[name] for name in named.controls}
        assert shared == named.controls
        assert all(name.startswith("value, ") for name in auc.controls.keys() - named.controls)
        assert auc.attack == "attribute(column=*)"
        assert auc.notes["asked"].startswith(column)


def test_whichever_chooses_the_question_too() -> None:
    with pytest.raises(ConfigError, match="beside ask or category"):
        registry.attacks.create("attribute", {"column": "*", "ask": "largest tenth"})
    with pytest.raises(ConfigError, match=r"property\.column"):
        registry.attacks.create("property", {"column": "*"})
    view = feature_view(normal(30, 1), torch.ones(30, 2), normal(30, 2), aux=10)
    with pytest.raises(ThreatModelError, match="Raise aux_rows"):
        registry.attacks.create("attribute", {"column": "*"}).infer(view, rng())


@pytest.mark.parametrize("name", ["attribute", "property"])
def test_images_are_declined_and_no_failure(name: str) -> None:
    """It was said that there is no column '', in an error."""
    x = normal(60, 4)
    view = feature_view(normal(60, 2, seed=1), x, x, aux=20)
    assert registry.attacks.create(name, {}).declines(view) == ""
    images = {**view.schema, view.victims[0]: Schema((), (), (1, 2, 2))}
    why = registry.attacks.create(name, {}).declines(replace(view, schema=images))
    assert why == f"{name} needs a table; {view.victims[0]} has images."


@pytest.mark.parametrize("decimals", [9, 1, 0])  # of these many scores are equal
def test_areas_are_shares_of_pairs_in_the_right_order(decimals: int) -> None:
    g = torch.Generator().manual_seed(decimals)
    scores = torch.randn(30, 8, generator=g, dtype=torch.float64).round(decimals=decimals)
    y = (torch.rand(30, 8, generator=g) < 0.4).double()
    for area, s, of in zip(areas(scores, y), scores.T, y.T, strict=True):
        gap = s[of == 1].unsqueeze(1) - s[of == 0]
        assert float(area) == pytest.approx(float((gap.sign() / 2 + 0.5).mean()), abs=1e-14)
