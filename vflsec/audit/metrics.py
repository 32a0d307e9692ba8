"""How well an attack guessed, and how well the main task is solved: one registry of metrics.

Every metric has a direction and a level of chance; every figure comes with its interval within the
cell. Rows on which an attack abstains stay in: they count as wrong in hard decisions and get the
median score in rankings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vflsec.audit import intervals
from vflsec.audit.concordance import compute_concordance
from vflsec.audit.exposed import EXPOSED, ClassCount, count_by_class
from vflsec.audit.intervals import entropy, normal_quantile
from vflsec.audit.rounding import show
from vflsec.audit.truth_join import Decided, Floats, Ints, Joined, decide, join, shuffled_order
from vflsec.core import check
from vflsec.label import find_label

if TYPE_CHECKING:
    from vflsec.core.guess import Guess, Truth

ERROR_REMOVED = "error_removed"
"""The one metric that is of an attack and its controls together, and not of one answer."""


@dataclass(frozen=True)
class Score:
    """One figure of one guess.

    Attributes:
        metric: name in :data:`METRICS`.
        value: the figure, None where it has no meaning (a ranking of rows of one class).
        low, high: two-sided interval over rows within the cell.
        n: rows scored.
        chance: what knowing nothing but the class shares gives; of hits at few false alarms, the
            mean over all orders of the rows.
        turned: the figure of the answer turned round, of a metric that does not tell it by itself
            (of an AUC it is 1 less the value); else None.
        by_class: of exposed rows, how many of each class.
        tied: whether the guess has one answer for all rows, whatever figure that has.
    """

    metric: str
    value: float | None
    low: float | None
    high: float | None
    n: int
    chance: float | None
    turned: float | None = None
    by_class: tuple[ClassCount, ...] = ()
    tied: bool = False


@dataclass(frozen=True)
class _Case:
    joined: Joined
    decided: Decided
    classes: int
    prior: Floats
    confidence: float
    columns: Ints | None = None
    counted: dict[tuple[float, bool], list[ClassCount]] = field(default_factory=dict)

    @property
    def y(self) -> Ints:
        return self.joined.values

    @property
    def flat(self) -> tuple[Floats, NDArray[Any]]:
        """One score and one value for each row."""
        return self.joined.scores.reshape(-1), self.joined.values.reshape(-1)

    @cached_property
    def tied(self) -> bool:
        scores = self.joined.scores
        return len(scores) > 1 and bool((scores == scores[0]).all())

    @cached_property
    def margin(self) -> Floats:
        """Two classes: one score for each row, larger = class 1."""
        return _margin(self.joined.scores)

    @cached_property
    def order(self) -> Ints:
        """Two classes: the order in which the margins rise, for all that ranks them."""
        return np.argsort(self.margin)


Figure = tuple[float | None, float | None, float | None]


@dataclass(frozen=True)
class Metric:
    """A named metric.

    Attributes:
        measure: (value, low, high) of a case; None where no answer has one by itself.
        chance: of a case, from its classes, its prior (C,) and how many rows of a class there are.
        larger_is_better: for the attacker, or for the main task.
        binary_only: True if it has no meaning beyond two classes.
        targets: of guesses it has a meaning for: ``label``, ``value`` (a label that is a quantity),
            ``labels`` (several of each row), ``feature`` or ``property`` (a share of rows).
        reach: the least and the largest value it can have.
        turned: the same of the answer turned round, where the value does not tell it.
        by_class: of what the value is the sum over classes, which then are what is scored.
        separates: whether it is about telling rows apart; else one answer for all is what is asked.
    """

    name: str
    measure: Callable[[_Case], Figure] | None
    chance: Callable[[_Case], float]
    larger_is_better: bool = True
    binary_only: bool = False
    targets: tuple[str, ...] = ("label",)
    reach: tuple[float, float] = (0.0, 1.0)
    turned: Callable[[_Case], Figure] | None = None
    by_class: Callable[[_Case], list[ClassCount]] | None = None
    separates: bool = True


def _margin(scores: Floats) -> Floats:
    return scores if scores.ndim == 1 else scores[:, 1] - scores[:, 0]


def _proportion(k: float, n: int, confidence: float) -> Figure:
    """k / n, with the exact interval of the nearest whole number."""
    if n == 0:
        return None, None, None
    return (k / n, *intervals.clopper_pearson(round(k), n, confidence))


def _accuracy(case: _Case) -> Figure:
    return _proportion(case.decided.right(case.y), len(case.y), case.confidence)


def _balanced_accuracy(case: _Case) -> Figure:
    """Mean recall; the exact limits of the recalls are combined by MOVER (Zou and Donner 2008)."""
    recalls = []
    for c in np.flatnonzero(np.bincount(case.y)):
        of = case.y == c
        right = case.decided.called(int(c), of)
        recalls.append(_proportion(right, int(of.sum()), case.confidence))
    p, low, high = np.array(recalls, float).T
    mean, m = float(p.mean()), len(p)
    down = math.sqrt(float(((p - low) ** 2).sum())) / m
    up = math.sqrt(float(((high - p) ** 2).sum())) / m
    return mean, max(0.0, mean - down), min(1.0, mean + up)


def _mean_auc(
    parts: list[tuple[Ints, Floats, NDArray[np.bool_]]],
    confidence: float,
    weakest: bool = False,
    orders: list[Ints] | None = None,
) -> Figure:
    kept = [p for p in parts if p[2].any() and not p[2].all()]
    if not kept:
        return None, None, None
    auc, pairs = intervals.mean_auc(kept, orders)
    if len(kept) == 1:
        positive = int(kept[0][2].sum())
        auc = intervals.of_few(auc, positive, len(kept[0][2]) - positive)
    if weakest:
        pairs = min(int(min(y.sum(), (~y).sum())) for _, _, y in kept)
    return (auc.value, *intervals.auc_interval(auc, pairs, confidence))


def _auc(case: _Case) -> Figure:
    rows, y, s = case.joined.rows, case.y, case.joined.scores
    if case.classes == 2:
        return _mean_auc([(rows, case.margin, y == 1)], case.confidence, orders=[case.order])
    parts = [(rows, s[:, c], y == c) for c in range(case.classes)]
    return _mean_auc(parts, case.confidence, weakest=True)


def _macro_auc(case: _Case) -> Figure:
    """Labels that have one value only are left out; the interval counts a row once."""
    rows, y, s = case.joined.rows, case.joined.values, case.joined.scores
    parts = [(rows, s[:, k], y[:, k] == 1) for k in range(y.shape[1])]
    return _mean_auc(parts, case.confidence, weakest=True)


def _macro_accuracy(case: _Case) -> Figure:
    right = (case.joined.scores > 0) == (case.joined.values == 1)
    return _normal(right.mean(axis=1), case.confidence)


def _leak_auc(case: _Case) -> Figure:
    rows = case.joined.rows
    parts = [(rows[at], _margin(s), case.y[at] == 1) for at, s in case.joined.groups]
    return _mean_auc(parts, case.confidence)


def _f1(case: _Case) -> Figure:
    """F1 = 2J/(1+J) with J = TP/(TP+FP+FN); J is binomial given its denominator, hence exact."""
    positive = case.y == 1
    hit, wrong = case.decided.called(1, positive), case.decided.called(1, ~positive)
    both = int(positive.sum()) + round(hit + wrong)
    j = _proportion(round(hit), both - round(hit), case.confidence)
    low, high = (None if x is None else 2 * x / (1 + x) for x in j[1:])
    return 2 * hit / both if both else None, low, high


def _tpr(case: _Case, rate: float = 0.01, *, turned: bool = False) -> Figure:
    """Share of positives above the negative that ends the false alarms, the mean over tied orders.

    Of m negatives and p positives with one score, in random order, r / (m + 1) of the p stand
    before the r-th negative: with all scores equal that is :func:`_hits_by_chance`. The interval is
    exact over the positives, with the threshold taken as given.

    `turned`: of the answer turned round. An answer may rank rightly on the whole and have its
    surest rows in reverse, which the other end tells alone.

    Source: McSherry and Najork, "Computing information retrieval performance measures efficiently
    in the presence of tied scores", ECIR 2008; the mean is that of the negative hypergeometric
    distribution.
    """
    s, pos = -case.margin if turned else case.margin, case.y == 1
    if pos.all() or not pos.any():
        return None, None, None
    ends = _allowed(int((~pos).sum()), rate) + 1
    order = case.order[::-1] if turned else case.order
    bar = s[order[np.flatnonzero(~pos[order])[-ends]]]
    above, tied = s > bar, s == bar
    of, others = int(pos.sum()), int((tied & ~pos).sum()) + 1
    left = ends - int((above & ~pos).sum())
    found = int((above & pos).sum()) * others + int((tied & pos).sum()) * left  # in whole numbers
    interval = intervals.clopper_pearson(round(found / others), of, case.confidence)
    return (found / (of * others), *interval)


def _allowed(negatives: int, rate: float) -> int:
    """How many false alarms there may be."""
    return int(rate * negatives + 1e-9)


def _hits_by_chance(case: _Case, rate: float = 0.01) -> float:
    """:func:`_tpr` of equal scores: the mean over all orders of the rows.

    With so few negatives that none may be a false alarm it is far above the rate: of 75, 1 / 76.
    """
    negatives = int((case.y != 1).sum())
    return (_allowed(negatives, rate) + 1) / (negatives + 1)


def _by_class(case: _Case, rate: float, *, turned: bool = False) -> list[ClassCount]:
    """Exposed rows by class, one row of each, counted once for all that asks for them."""
    if (rate, turned) not in case.counted:
        scores, at = case.margin if case.classes == 2 else case.joined.scores, case.joined.one_each
        case.counted[rate, turned] = count_by_class(scores[at], case.y[at], rate, turned=turned)
    return case.counted[rate, turned]


def _exposed(case: _Case, rate: float, *, turned: bool = False) -> Figure:
    """Rows that are named, of those of classes that can be; exact as a share of these rows."""
    if turned and case.classes != 2:
        return None, None, None
    found = _by_class(case, rate, turned=turned)
    rows = sum(c.rows for c in found)
    return _proportion(sum(c.named for c in found), rows, case.confidence)


def _exposed_by_luck(case: _Case, rate: float) -> float:
    """:func:`_exposed` of equal scores."""
    found = _by_class(case, rate)
    return sum(c.luck for c in found) / max(1, sum(c.rows for c in found))


def _normal(per_row: Floats, confidence: float) -> Figure:
    mean = float(per_row.mean())
    if len(per_row) < 2:
        return mean, None, None
    z = normal_quantile(0.5 + confidence / 2)
    half = z * float(per_row.std(ddof=1)) / math.sqrt(len(per_row))
    return mean, mean - half, mean + half


def _log_loss(case: _Case) -> Figure:
    s = case.joined.scores
    if s.ndim != 2:
        raise check.fail("log_loss: scores", "given by class, (n, C)", s.shape)
    if not ((s >= 0).all() and np.allclose(s.sum(1), 1, atol=1e-4)):
        s = np.exp(s - s.max(1, keepdims=True))
    p = s / s.sum(1, keepdims=True)
    picked = np.clip(p[np.arange(len(p)), case.y], 1e-15, 1.0)
    return _normal(-np.log(picked), case.confidence)


def _relative_error(case: _Case) -> Figure:
    truth = np.asarray(case.joined.values, float).reshape(len(case.joined.rows), -1)
    size = float(np.linalg.norm(truth))
    error = float(np.linalg.norm(case.joined.scores.reshape(truth.shape) - truth))
    return (error / size if size > 0 else None), None, None


def _r2(case: _Case) -> Figure:
    s, y = case.joined.scores, case.joined.values
    s, y = s.reshape(len(s), -1), y.reshape(len(y), -1)
    off, spread = (s - y) ** 2, y.var(axis=0)
    if case.columns is not None:  # a category is one column, however many codes it has
        starts = np.flatnonzero(np.diff(case.columns, prepend=-1))
        off, spread = (np.add.reduceat(x, starts, axis=-1) for x in (off, spread))
    use = spread > 0
    if not use.any():
        return None, None, None
    return _normal(1 - (off[:, use] / spread[use]).mean(1), case.confidence)


def _share_error(case: _Case) -> Figure:
    """No interval within a cell: it is one estimate."""
    return abs(float(case.joined.scores.mean()) - float(case.joined.values.mean())), None, None


def _concordance(case: _Case) -> Figure:
    s, y = case.flat
    return compute_concordance(s, y, shuffled_order(case.joined.rows), case.confidence)


def _mae(case: _Case) -> Figure:
    s, y = case.flat
    return _normal(np.abs(s - y), case.confidence)


def _count_deviance(mean: Floats, y: Floats) -> Floats:
    """Poisson deviance of counts (n,) from their means, those below 1e-6 taken as that."""
    mean = np.maximum(mean, 1e-6)
    return np.asarray(2 * (y * np.log(np.maximum(y, 1e-300) / mean) - (y - mean)))


def _deviance(case: _Case) -> Figure:
    s, y = case.flat
    return _normal(_count_deviance(s, y), case.confidence)


def _deviance_of_mean(case: _Case) -> float:
    y = np.asarray(case.joined.values, float).reshape(-1)
    return float(_count_deviance(np.full(len(y), y.mean()), y).mean())


_LIST = (
    Metric("accuracy", _accuracy, lambda k: float(k.prior.max())),
    Metric("balanced_accuracy", _balanced_accuracy, lambda k: 1 / k.classes),
    Metric("auc", _auc, lambda k: 0.5),
    Metric("leak_auc", _leak_auc, lambda k: 0.5, binary_only=True),
    Metric("f1", _f1, lambda k: float(2 * k.prior[1] / (1 + k.prior[1])), binary_only=True),
    Metric("tpr_at_1pct_fpr", _tpr, _hits_by_chance, binary_only=True,
           turned=partial(_tpr, turned=True)),
    Metric("tpr_at_01pct_fpr", partial(_tpr, rate=0.001), partial(_hits_by_chance, rate=0.001),
           binary_only=True, turned=partial(_tpr, rate=0.001, turned=True)),
    *(Metric(name, partial(_exposed, rate=rate), partial(_exposed_by_luck, rate=rate),
             turned=partial(_exposed, rate=rate, turned=True),
             by_class=partial(_by_class, rate=rate)) for name, rate in EXPOSED.items()),
    Metric("log_loss", _log_loss, lambda k: entropy(k.prior), larger_is_better=False,
           reach=(0.0, math.inf)),
    Metric("r2", _r2, lambda k: 0.0, targets=("feature", "value", "count"),
           reach=(-math.inf, 1.0)),
    Metric("r2_column", _r2, lambda k: 0.0, targets=("feature",), reach=(-math.inf, 1.0)),
    Metric("relative_error", _relative_error, lambda k: 1.0, larger_is_better=False,
           targets=("feature",), reach=(0.0, math.inf)),
    Metric("share_error", _share_error, lambda k: abs(0.5 - float(k.prior[1])),
           larger_is_better=False, targets=("property",), separates=False),
    Metric("concordance", _concordance, lambda k: 0.5, targets=("value", "count")),
    Metric("deviance", _deviance, _deviance_of_mean, larger_is_better=False, targets=("count",),
           reach=(0.0, math.inf)),
    Metric("macro_auc", _macro_auc, lambda k: 0.5, targets=("labels",)),
    Metric("macro_accuracy", _macro_accuracy,
           lambda k: float(np.maximum(k.prior, 1 - k.prior).mean()), targets=("labels",)),
    Metric(ERROR_REMOVED, None, lambda k: 0.0,
           targets=("label", "labels", "value", "count", "feature", "property"),
           reach=(-math.inf, 1.0)),
    Metric("mae", _mae, lambda k: 0.8, larger_is_better=False, targets=("value",),
           reach=(0.0, math.inf)),
)  # fmt: skip
"""What each means: docs/statistics.md, "The metrics"."""

METRICS: dict[str, Metric] = {m.name: m for m in _LIST}
RANKINGS = ("auc", "leak_auc", "concordance")
"""Metrics of how well rows are ranked, of which 0.5 is chance and 1 less the value the reverse."""


def find_reach(metric: str, of: str = "") -> tuple[float, float]:
    """The least and the largest that a figure can be; infinite where there is no end.

    Args:
        metric: of :data:`METRICS`, ``utility``, ``utility_drop``, ``epsilon_lower`` or
            ``advantage``, which is over the level of chance too (0.5 for an AUC).
        of: the metric whose advantage or drop is meant.
    """
    if metric in ("advantage", "utility_drop"):
        least, most = METRICS[of].reach if of in METRICS else (0.0, 1.0)
        if most == math.inf:
            return -math.inf, math.inf
        return least if least < 0 else -1.0, 0.5 if of in RANKINGS else 1.0
    if metric == "epsilon_lower":
        return 0.0, math.inf
    return METRICS[metric].reach if metric in METRICS else (0.0, 1.0)


_WORDS = {
    "r2_column": "R² of the best column", "share_error": "error of the share",
    ERROR_REMOVED: "the remaining error", "exposed": "rows named with certainty",
    "exposed_01pct": "rows named at one false alarm in 1,000",
    "tpr_at_1pct_fpr": "hits at 1 % false alarms", "tpr_at_01pct_fpr": "hits at 0.1 % false alarms",
}  # fmt: skip
_WRITTEN = {"auc": "AUC", "f1": "F1", "r2": "R²"}


def metric_name(metric: str) -> str:
    """A metric's name in a sentence."""
    words = (_WRITTEN.get(word, word) for word in metric.split("_"))
    return _WORDS.get(metric) or " ".join(words)


def find_scale(metric: str) -> int:
    """What sentences multiply a figure by: exposed rows are counted of 1,000."""
    return 1000 if metric in EXPOSED else 1


def format_limit(limit: float, metric: str) -> str:
    """A limit on a metric in a sentence, as it is written."""
    return f"{find_scale(metric) * limit:g}"


def format_size(x: float, metric: str, limit: float = 0.0, spec: str = ".3f") -> str:
    """A figure in a sentence, on its own side of `limit` (:func:`vflsec.audit.rounding.show`)."""
    scale = find_scale(metric)
    return show(scale * x, scale * limit, spec if scale == 1 else ".0f")


def format_unit(metric: str) -> str:
    """`` of AUC``, `` of 1,000 rows named with certainty``; '' where there is no metric."""
    return f" of {'1,000 ' if metric in EXPOSED else ''}{metric_name(metric)}" if metric else ""


def find_sign(metric: str) -> int:
    """-1 for a metric of which less is better for the attacker, else 1."""
    return -1 if metric in METRICS and not METRICS[metric].larger_is_better else 1


def find_best(metric: str) -> float:
    """The figure of an attack that errs nowhere; infinite where there is no end."""
    return find_reach(metric)[find_sign(metric) > 0]


def choose_primary(classes: int, prior: ArrayLike | None = None, target: str = "label") -> str:
    """The metric that a verdict rests on.

    ``auc`` for two classes; beyond, ``accuracy``, or ``balanced_accuracy`` where the largest class
    share is more than 1.5 times the smallest; ``r2`` for features, ``concordance`` for a quantity,
    ``macro_auc`` for several labels.

    Args:
        classes: C.
        prior: class shares (C,), None if taken as even.
    """
    label = find_label(target, int(classes))
    return "r2" if label is None else label.choose_primary(prior)


def list_default(classes: int, target: str = "label", *, groups: bool = True) -> list[str]:
    """What guesses are measured by where nothing is asked for, the primary metric among them.

    Args:
        classes: C.
        target: of the truth, see :attr:`Metric.targets`.
        groups: whether scores compare within groups of rows alone, as those of one batch do.
    """
    label = find_label(target, classes)
    return ["r2"] if label is None else list(label.list_metrics(groups=groups))


def score(
    guess: Guess,
    truth: Truth,
    rows: Iterable[int] | ArrayLike,
    *,
    classes: int,
    prior: ArrayLike,
    metrics: Sequence[str] | None = None,
    confidence: float = 0.95,
    quota: bool = False,
) -> list[Score]:
    """Score a guess on some rows. Attack, control and main task all go through here.

    Args:
        guess: label scores (n,) for two classes, or (n, C); a quantity (n,); of several labels
            a logit each (n, L); features (n, d).
        truth: labels in 0..C-1, several labels (n, L) of 0 and 1, a quantity or features; must
            cover `rows`.
        rows: sample ids to score, each once; whatever else was guessed is ignored.
        classes: C.
        prior: class shares (C,), for quotas, ties and chance; of several labels the shares of
            ones (L,). Not taken from the truth.
        metrics: names in :data:`METRICS`; None takes all that apply (``log_loss`` on demand).
        confidence: of the two-sided intervals.
        quota: of two classes call as many rows positive as the class shares say, whatever form the
            scores have: the one rule under which attack and control are compared.

    Raises:
        ShapeError: see :func:`vflsec.audit.truth_join.join`.
        ConfigError: unknown metric, or one with no meaning for this target or number of classes.
    """
    if not isinstance(rows, np.ndarray | list | tuple):
        rows = np.asarray(rows)
    joined = join(guess, truth, rows)
    shares = np.asarray(prior, float)
    label = guess.target == "label"
    decided = Decided(np.empty(0, np.int64))
    if label:
        _check_labels(joined, shares, classes)
        decided = decide(joined, shares, quota)
    case = _Case(joined, decided, classes, shares, confidence, truth.columns)
    chosen = metrics or list_default(classes, guess.target, groups=guess.group is not None)
    return [_one(name, case, guess.target) for name in chosen]


def _one(name: str, case: _Case, target: str) -> Score:
    metric = METRICS[check.one_of("score: metrics", name, METRICS)]
    if metric.measure is None:
        raise check.fail("score: metrics", "one without controls", name)
    if target not in metric.targets:
        raise check.fail("score: metrics", f"of target {target!r}", name)
    if metric.binary_only and case.classes != 2:
        raise check.fail("score: metrics", f"meant for {case.classes} classes", name)
    value, low, high = metric.measure(case)
    chance = metric.chance(case)
    turned = None if metric.turned is None else metric.turned(case)[0]
    by_class = () if metric.by_class is None else tuple(metric.by_class(case))
    n = sum(c.rows for c in by_class) if metric.by_class else len(case.joined.rows)
    tied = metric.separates and case.tied
    return Score(name, value, low, high, n, chance, turned, by_class, tied)


def _check_labels(joined: Joined, prior: Floats, classes: int) -> None:
    if prior.shape != (classes,) or not (prior >= 0).all() or abs(float(prior.sum()) - 1) > 1e-6:
        raise check.fail("score: prior", f"{classes} shares that sum to 1", prior.tolist())
    if joined.values.min() < 0 or joined.values.max() >= classes:
        seen = (int(joined.values.min()), int(joined.values.max()))
        raise check.fail("score: truth", f"labels in 0..{classes - 1} on every scored row", seen)
    shape = joined.scores.shape
    if (len(shape) == 1 and classes != 2) or (len(shape) == 2 and shape[1] != classes):
        rule = f"(n, {classes})" + (" or (n,)" if classes == 2 else "")
        raise check.fail("score: scores of the guess", rule, shape)
