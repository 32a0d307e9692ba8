"""Scores: joins by row id, ties, abstention, groups, and the numbers of each metric."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sampled import sampled
from scipy import stats
from scored import by_metric, score_rows
from sklearn import metrics as sk

from vflsec.audit import intervals
from vflsec.audit.exposed import EXPOSED
from vflsec.audit.metrics import METRICS, Score, choose_primary, score
from vflsec.core.guess import Guess, Truth
from vflsec.errors import ConfigError, ShapeError


def world(n: int = 300, classes: int = 2, seed: int = 0) -> tuple[Guess, Truth, np.ndarray]:
    rng = np.random.default_rng(seed)
    rows = rng.permutation(10 * n)[:n]
    y = rng.integers(classes, size=n)
    scores = rng.normal(size=(n, classes)) + 1.2 * np.eye(classes)[y]
    if classes == 2:
        scores = scores[:, 1] - scores[:, 0]
    return Guess("label", rows, scores), Truth("label", rows, y), np.full(classes, 1 / classes)


def test_binary_numbers_equal_sklearn() -> None:
    guess, truth, prior = world()
    got = by_metric(score(guess, truth, truth.rows, classes=2, prior=prior))
    assert set(got) == {"auc", "accuracy", "balanced_accuracy", "f1", "tpr_at_1pct_fpr", *EXPOSED}
    y, s = truth.values, guess.scores
    hard = np.zeros(300, int)
    hard[np.argsort(-s)[:150]] = 1
    assert got["auc"].value == pytest.approx(sk.roc_auc_score(y, s))
    assert got["accuracy"].value == pytest.approx((hard == y).mean())
    assert got["balanced_accuracy"].value == pytest.approx(sk.balanced_accuracy_score(y, hard))
    assert got["f1"].value == pytest.approx(sk.f1_score(y, hard))
    fpr, tpr, _ = sk.roc_curve(y, s, drop_intermediate=False)
    assert got["tpr_at_1pct_fpr"].value == pytest.approx(tpr[fpr <= 0.01].max())
    k = int((hard == y).sum())
    assert (got["accuracy"].low, got["accuracy"].high) == intervals.clopper_pearson(k, 300)
    for s in got.values():
        assert s.low < s.value < s.high
        assert s.n == 300
    assert [got[m].chance for m in ("auc", "accuracy", "f1", "tpr_at_1pct_fpr")] == pytest.approx(
        [0.5, 0.5, 2 / 3, 2 / (1 + (y == 0).sum())]
    )


def test_multi_class_numbers_equal_sklearn() -> None:
    guess, truth, _ = world(classes=4)
    prior = np.array([0.4, 0.3, 0.2, 0.1])
    got = by_metric(score(guess, truth, truth.rows, classes=4, prior=prior))
    assert set(got) == {"accuracy", "balanced_accuracy", "auc", *EXPOSED}
    y, s = truth.values, guess.scores
    each = [sk.roc_auc_score(y == c, s[:, c]) for c in range(4)]
    assert got["auc"].value == pytest.approx(np.mean(each))
    assert got["accuracy"].value == pytest.approx((s.argmax(1) == y).mean())
    assert got["accuracy"].chance == 0.4
    assert got["balanced_accuracy"].chance == 0.25
    p = np.exp(s) / np.exp(s).sum(1, keepdims=True)
    for scores in (s, p):
        loss = score_rows(scores, y, "log_loss", prior=prior)["log_loss"]
        assert loss.value == pytest.approx(sk.log_loss(y, p))
    assert not METRICS["log_loss"].larger_is_better


@pytest.mark.parametrize("classes", [2, 3])
def test_row_order_never_matters(classes: int) -> None:
    guess, truth, prior = world(classes=classes)
    group = np.arange(300) % 7 if classes == 2 else None
    rng = np.random.default_rng(5)
    a, b, c = (rng.permutation(300) for _ in range(3))
    one = score(
        Guess("label", guess.rows, guess.scores, group), truth, truth.rows,
        classes=classes, prior=prior,
    )  # fmt: skip
    two = score(
        Guess("label", guess.rows[a], guess.scores[a], None if group is None else group[a]),
        Truth("label", truth.rows[b], truth.values[b]),
        truth.rows[c],
        classes=classes,
        prior=prior,
    )
    assert one == two


def test_only_the_asked_rows_count_and_known_rows_do_not() -> None:
    guess, truth, prior = world()
    asked = np.sort(truth.rows)[:100]
    inside = np.isin(guess.rows, asked)
    part = Guess("label", guess.rows[inside], guess.scores[inside])
    kw = {"classes": 2, "prior": prior}
    assert score(guess, truth, asked, **kw) == score(part, truth, asked, **kw)


def test_a_row_never_guessed_raises_and_an_abstained_one_is_wrong() -> None:
    guess, truth, prior = world()
    kw = {"classes": 2, "prior": prior}
    short = Guess("label", guess.rows[1:], guess.scores[1:])
    with pytest.raises(ShapeError, match=r"1 of 300 are missing \(first: " + str(guess.rows[0])):
        score(short, truth, truth.rows, **kw)
    with pytest.raises(ShapeError, match="truth must cover"):
        score(guess, Truth("label", truth.rows[1:], truth.values[1:]), truth.rows, **kw)
    mute = np.zeros(300, bool)
    mute[:100] = True
    scores = guess.scores.copy()
    scores[:100] = np.nan
    got = by_metric(
        score(Guess("label", guess.rows, scores, abstain=mute), truth, truth.rows, **kw)
    )
    spoken = by_metric(
        score(
            Guess("label", guess.rows[100:], guess.scores[100:]), truth, guess.rows[100:],
            metrics=["accuracy"], **kw,
        )
    )  # fmt: skip
    assert got["accuracy"].n == 300
    assert got["accuracy"].value == pytest.approx(spoken["accuracy"].value * 200 / 300)
    filled = np.where(mute, np.median(guess.scores[100:]), guess.scores)
    assert got["auc"].value == pytest.approx(sk.roc_auc_score(truth.values, filled))
    silent = Guess("label", guess.rows, np.full(300, np.nan), abstain=np.ones(300, bool))
    nothing = by_metric(score(silent, truth, truth.rows, **kw))
    assert (nothing["accuracy"].value, nothing["auc"].value) == (0, 0.5)


def test_non_finite_answers_and_repeats_raise() -> None:
    guess, truth, prior = world()
    kw = {"classes": 2, "prior": prior}
    bad = guess.scores.copy()
    bad[3] = np.inf
    with pytest.raises(ShapeError, match="1 scores are not finite"):
        score(Guess("label", guess.rows, bad), truth, truth.rows, **kw)
    with pytest.raises(ShapeError, match="within a group"):
        Guess("label", np.r_[guess.rows, guess.rows[:1]], np.r_[guess.scores, 0.0])
    with pytest.raises(ShapeError, match="rows must not repeat"):
        score(guess, truth, np.r_[truth.rows, truth.rows[:1]], **kw)
    with pytest.raises(ConfigError, match=r"labels in 0\.\.1"):
        score(guess, Truth("label", truth.rows, truth.values - 1), truth.rows, **kw)
    with pytest.raises(ConfigError, match=r"\(n, 3\)"):
        score(guess, truth, truth.rows, classes=3, prior=np.full(3, 1 / 3))
    with pytest.raises(ConfigError, match="Did you mean 'auc'"):
        score(guess, truth, truth.rows, metrics=["acu"], **kw)


def test_ties_are_broken_without_looking_at_the_order_of_a_sorted_table() -> None:
    n = 2000
    rows = np.arange(n)
    for y in ((rows < n // 2).astype(int), (rows >= n // 2).astype(int)):
        got = score_rows(np.zeros(n), y)
        assert got["auc"].value == 0.5
        low, high = stats.binom.ppf([1e-4, 1 - 1e-4], n, 0.5) / n
        assert low <= got["accuracy"].value <= high


def test_quota_is_the_ceiling_of_the_prior() -> None:
    rows = np.arange(30)
    y, scores = (rows < 3).astype(int), -rows.astype(float)
    found = score_rows(scores, y, "accuracy", prior=[0.9, 0.1])["accuracy"]
    assert found.value == 1  # 0.1 * 30 is 3.0000000000000004 and still means three rows
    found = score_rows(scores, y, "accuracy", prior=[0.88, 0.12])["accuracy"]
    assert found.value == pytest.approx(29 / 30)  # ceil(3.6) = 4: one too many


def test_class_ties_go_to_the_larger_prior() -> None:
    found = score_rows(np.zeros((10, 3)), np.full(10, 2), "accuracy", prior=[0.3, 0.2, 0.5])
    assert found["accuracy"].value == 1


def test_leak_auc_looks_within_batches_and_skips_single_class_ones() -> None:
    rows = np.arange(12)
    y = np.array([0, 0, 1, 1, 0, 0, 1, 1, 1, 1, 1, 1])
    group = np.repeat([0, 1, 2], 4)
    s = np.array([0, 1, 2, 3, 100, 103, 102, 101, 5, 6, 7, 8.0])
    kw = {"classes": 2, "prior": [0.5, 0.5]}
    guess, truth = Guess("label", rows, s, group), Truth("label", rows, y)
    got = by_metric(score(guess, truth, rows, **kw))
    assert got["leak_auc"].value == pytest.approx((1 + 0.5) / 2)
    assert got["leak_auc"].low < 0.75 < got["leak_auc"].high
    drifting = Guess("label", rows, s + 1000 * group, group)
    moved = by_metric(score(drifting, truth, rows, **kw))
    assert moved == got  # neither batch metric nor pooled metric sees the drift between batches
    one = Truth("label", rows, np.ones(12, int))
    assert by_metric(score(guess, one, rows, **kw))["leak_auc"].value is None


def test_rows_seen_in_several_epochs_are_averaged_by_quantile() -> None:
    rows = np.tile(np.arange(40), 3)
    group = np.repeat([0, 1, 2], 40)
    y = (np.arange(40) % 2).astype(int)
    rng = np.random.default_rng(0)
    s = rng.normal(size=120) + y[rows]
    s[group == 2] *= 1e6
    kw = {"classes": 2, "prior": [0.5, 0.5], "metrics": ["auc"]}
    got = score(
        Guess("label", rows, s, group), Truth("label", np.arange(40), y), np.arange(40), **kw
    )
    mean = np.mean([stats.rankdata(s[group == g]) for g in range(3)], axis=0)
    assert got[0].value == pytest.approx(sk.roc_auc_score(y, mean))


def test_one_class_gives_no_auc_instead_of_a_number() -> None:
    got = score_rows(np.arange(5.0), np.ones(5, int))
    assert got["auc"].value is None
    assert got["tpr_at_1pct_fpr"].value is None


def test_features_are_scored_by_r2() -> None:
    rng = np.random.default_rng(0)
    rows, x = np.arange(500), rng.normal(size=(500, 3))
    (perfect,) = score_rows(x, x, target="feature").values()
    assert (perfect.metric, perfect.value, perfect.chance) == ("r2", 1.0, 0.0)
    mean = score_rows(np.tile(x.mean(0), (500, 1)), x, target="feature")["r2"]
    assert mean.value == pytest.approx(0)
    half = score_rows(x / 2, x, target="feature")["r2"]
    assert half.low < half.value < half.high
    assert half.value == pytest.approx(0.75, abs=0.01)
    with pytest.raises(ConfigError, match="of target 'feature'"):
        score_rows(x, x, "auc", target="feature")
    label, truth = Guess("label", rows, x[:, 0]), Truth("feature", rows, x)
    with pytest.raises(ShapeError, match=r"guess.target must be 'feature'"):
        score(label, truth, rows, classes=2, prior=[0.5, 0.5])


def test_all_codes_of_a_category_are_one_column_of_r2() -> None:
    """A code of one row of 500, guessed a little too often, counted as much as a number: -8."""
    rng = np.random.default_rng(0)
    rows, number = np.arange(500), rng.normal(size=500)
    code = np.where(rows < 1, 2, np.where(rows < 200, 1, 0))
    x = np.column_stack([number, np.eye(3)[code]])
    guess = x + np.column_stack([np.zeros(500), *rng.normal(0, 0.13, (3, 500))])
    kw: dict[str, Any] = {"classes": 2, "prior": [0.5, 0.5], "metrics": ["r2"]}
    plain = score(Guess("feature", rows, guess), Truth("feature", rows, x), rows, **kw)[0]
    whole = Truth("feature", rows, x, columns=[0, 1, 1, 1])
    found = score(Guess("feature", rows, guess), whole, rows, **kw)[0]
    off = ((guess - x)[:, 1:] ** 2).mean(0).sum() / x[:, 1:].var(0).sum()
    assert plain.value is not None
    assert plain.value < -1
    assert found.value == pytest.approx((1 + 1 - off) / 2, abs=1e-12)
    assert found.value > 0.9
    with pytest.raises(ShapeError, match="columns"):
        Truth("feature", rows, x, columns=[0, 1])


def test_balanced_accuracy_interval_covers_in_simulation() -> None:
    rng = np.random.default_rng(7)
    y, hits = (np.arange(120) < 20).astype(int), 0
    for _ in range(300):
        right = rng.random(120) < np.where(y == 1, 0.6, 0.9)
        hard = np.where(right, y, 1 - y)
        (got,) = score_rows(np.eye(2)[hard], y, "balanced_accuracy", prior=[0.8, 0.2]).values()
        hits += got.low <= 0.75 <= got.high
    assert hits >= stats.binom.ppf(1e-3, 300, 0.95)


def test_primary_metric() -> None:
    assert choose_primary(2, [0.99, 0.01]) == "auc"
    assert choose_primary(4) == "accuracy"
    assert choose_primary(3, [0.4, 0.3, 0.3]) == "accuracy"
    assert choose_primary(3, [0.5, 0.3, 0.2]) == "balanced_accuracy"
    assert choose_primary(2, target="feature") == "r2"
    with pytest.raises(ConfigError):
        choose_primary(1)


def test_attack_and_control_are_decided_by_one_rule() -> None:
    """The same ranking as a scalar and as log shares of an off-centre fit is worth the same."""
    rng = np.random.default_rng(3)
    y = (rng.random(400) < 0.25).astype(np.int64)
    margin = y + rng.normal(0, 1.0, 400) + 2.0  # a fit to balanced rows: far too many positives
    names = ["accuracy", "balanced_accuracy", "f1"]

    def figures(scores: np.ndarray, **how: Any) -> list[float | None]:
        return [s.value for s in score_rows(scores, y, *names, prior=[0.75, 0.25], **how).values()]

    by_class = np.stack([np.zeros(400), margin], 1)
    assert figures(by_class, quota=True) == figures(margin, quota=True) == figures(margin)
    before, now = figures(by_class)[0], figures(by_class, quota=True)[0]
    assert before is not None
    assert now is not None
    assert before < 0.35 < 0.65 < now
    nothing = np.log(np.broadcast_to([0.75, 0.25], (400, 2)))
    assert figures(nothing, quota=True)[0] == pytest.approx(float((y == 0).mean()))


def test_quota_leaves_more_than_two_classes_to_the_largest_score() -> None:
    rng = np.random.default_rng(4)
    y, s, prior = np.arange(90) % 3, rng.normal(size=(90, 3)), [1 / 3] * 3
    by_quota = score_rows(s, y, "accuracy", prior=prior, quota=True)
    assert by_quota == score_rows(s, y, "accuracy", prior=prior)


def hits(s: np.ndarray, y: np.ndarray, metric: str = "tpr_at_1pct_fpr") -> Score:
    return score_rows(s, y.astype(np.int64), metric)[metric]


def test_sure_knowledge_of_three_rows_counts_more_than_chance() -> None:
    """300 of 1,000 rows are positive; 3 of them are named, and 7 of the others are ruled out.

    Of the 693 + 297 that are tied, 297 * 8 / 694 positives stand before the eighth negative.
    Ties were cut off for the attack and averaged for chance: 0.0100 against 8 / 701 = 0.0114.
    """
    y = np.arange(1000) < 300
    s = np.zeros(1000)
    s[:3], s[300:307] = 1, -1
    one = hits(s, y)
    assert one.value == pytest.approx((3 + 297 * 8 / 694) / 300, rel=1e-15)
    assert (one.chance, round(one.value, 4), round(one.chance, 4)) == (8 / 701, 0.0214, 0.0114)
    assert one.low is not None
    assert one.low < one.value < (one.high or 0)
    turned = hits(-s, y)  # 7 others before anybody, then one of 694 places
    assert turned.value == pytest.approx(297 / 694 / 300, rel=1e-15)
    assert turned.value == one.turned


@settings(max_examples=100)
@given(st.integers(1, 400), st.integers(1, 1500), st.integers(0, 10**6), st.integers(1, 8))
def test_hits_are_means_over_orders_of_ties_and_rise_with_a_positive_alone(
    positives: int, negatives: int, seed: int, values: int
) -> None:
    y = np.arange(positives + negatives) < positives
    draw = np.random.default_rng(seed)
    for metric, rate in (("tpr_at_1pct_fpr", 100), ("tpr_at_01pct_fpr", 1000)):
        equal = hits(np.full(len(y), float(draw.normal())), y, metric)
        assert (equal.value, equal.turned) == (equal.chance, equal.chance)
        allowed = negatives // rate
        assert equal.chance == (allowed + 1) / (negatives + 1)
        s = draw.integers(0, values, len(y)).astype(float)
        before = hits(s, y, metric).value
        last = np.sort(s[~y])[::-1][allowed]  # where one false alarm more would be
        tied, left = (s == last) & y, allowed + 1 - int((s[~y] > last).sum())
        among = stats.nhypergeom(int((s == last).sum()), int(tied.sum()), left).mean()
        assert before == pytest.approx(((s[y] > last).sum() + among) / positives, rel=1e-12)
        at = int(draw.integers(len(y)))
        s[at] += 1
        after = hits(s, y, metric).value
        assert before is not None
        assert after is not None
        assert after >= before if y[at] else after <= before


@pytest.mark.parametrize("metric", ["tpr_at_1pct_fpr", "tpr_at_01pct_fpr"])
def test_hits_of_an_answer_turned_round_are_those_of_its_scores_turned_round(metric: str) -> None:
    """Ties included; of metrics that tell it by their value nothing is said."""
    draw = np.random.default_rng(3)
    y = (draw.random(2000) < 0.3).astype(int)
    scores = np.round(draw.normal(size=2000) - 4 * y * (draw.random(2000) < 0.3), 1)
    mine, auc = score_rows(scores, y, metric, "auc", prior=[0.7, 0.3]).values()
    other = score_rows(-scores, y, metric, prior=[0.7, 0.3])[metric]
    assert (mine.turned, other.turned) == (other.value, mine.value)
    assert mine.turned is not None
    assert mine.turned > 0.1
    assert auc.turned is None


@pytest.mark.slow
def test_rows_that_scores_do_not_tell_apart_count_as_any_of_them_might() -> None:
    """The mean over 4000 orders of tied rows; an answer of nothing is decided as its control is.

    The order was a hash of ids, so an attacker that says nothing had 0.52 on every seed.
    """
    rng = np.random.default_rng(5)
    y = (rng.random(60) < 0.4).astype(np.int64)
    s = np.round(y + rng.normal(size=60))
    names = ["accuracy", "balanced_accuracy", "f1"]

    def figures(scores: np.ndarray) -> list[float | None]:
        found = score_rows(scores, y, *names, prior=[0.7, 0.3], quota=True)
        return [f.value for f in found.values()]

    mixed = np.array([figures(s + 1e-6 * rng.random(60)) for _ in range(4000)], float)
    assert (mixed.std(0) > 0.01).all()
    assert figures(s) == pytest.approx(mixed.mean(0), abs=0.002)
    assert figures(np.zeros(60)) == figures(np.zeros((60, 2))) == [(y == 0).mean(), 0.5, 0.0]


def test_zeros_beside_a_few_numbers_accuse_nobody() -> None:
    """A number for 5 % of the rows, drawn anew on each of 5 seeds: 33 % of such audits failed."""
    rng = np.random.default_rng(6)
    failed, audits, metric = 0, 150, "balanced_accuracy"
    for _ in range(audits):
        y = (rng.random(200) < 0.3).astype(np.int64)
        gains = []
        for _ in range(5):
            s = np.where(rng.random(200) < 0.05, rng.random(200), 0.0)
            one = score_rows(s, y, metric, prior=[0.7, 0.3], quota=True)[metric]
            gains.append(one.value - 0.5)  # type: ignore[operator]
        failed += (intervals.t_interval(gains, 0.95, "lower").low or 0.0) > 0
    assert failed <= stats.binom.ppf(0.999, audits, 0.05)


@pytest.mark.parametrize(
    ("positives", "negatives"), sampled([(5, 1000), (2, 100), (3, 100), (10, 100)])
)
@pytest.mark.parametrize("auc", [0.5, 0.7, 0.9, 0.97])
def test_the_interval_of_an_auc_holds_it_with_few_positives(
    positives: int, negatives: int, auc: float
) -> None:
    """By DeLong's standard error alone 73 to 94 % of these intervals held it."""
    rng = np.random.default_rng(11)
    y = (np.arange(positives + negatives) < positives).astype(np.int64)
    apart = 2**0.5 * float(stats.norm.ppf(auc))
    held, drawn = 0, 400
    for _ in range(drawn):
        one = score_rows(rng.normal(size=len(y)) + apart * y, y, "auc")["auc"]
        assert one.low is not None
        assert one.high is not None
        held += one.low <= auc <= one.high
    assert held >= stats.binom.ppf(1e-3, drawn, 0.94)


def test_one_answer_for_all_rows_is_said_of_whatever_figure() -> None:
    """By an accuracy under a drawn quota or an R² it cannot be told."""
    rng = np.random.default_rng(0)
    y, x = rng.permutation(30) % 3, rng.standard_normal((30, 2))
    for target, truth, same, varied in (
        ("label", y, np.zeros((30, 3)), rng.standard_normal((30, 3))),
        ("feature", x, np.full((30, 2), 0.7), x),
    ):
        for scores, tied in ((same, True), (varied, False)):
            found = score_rows(scores, truth, prior=[0.4, 0.3, 0.3], target=target)
            assert {s.tied for s in found.values()} == {tied}
    share = np.full(30, 0.3)  # one for all is what is asked
    found = score_rows(share, y % 2, "share_error", target="property")
    assert not found["share_error"].tied
