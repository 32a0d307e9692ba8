"""From the measures of cells to what is leaked: the advantage over all controls, with its interval.

``list_rows`` (one for each measure) → ``complete_rows`` (compared with controls) → ``summarise``
(one point for each identity: mean over seeds, t intervals, utility beside it) → ``build_curves``
(one for each defense and attack: the privacy-utility curve and its CAP).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from vflsec.audit import controls as ctl
from vflsec.audit import defense_label, intervals
from vflsec.audit.controls import Leakage, Paired
from vflsec.audit.exposed import EXPOSED, ClassCount, Counts, Exposed
from vflsec.audit.metrics import ERROR_REMOVED, METRICS, find_best, find_reach, find_sign
from vflsec.audit.point import (
    IDENTITY,
    SPLITS,
    UNDEFENDED,
    Estimate,
    Identity,
    Point,
    Training,
    clean,
)
from vflsec.audit.result_row import (
    ResultRow,
    count_fewest,
    count_unscored,
    find_declined,
    name_controls,
    read_advantages,
)
from vflsec.label import PRIMARY
from vflsec.runtime.grouping import group_by
from vflsec.runtime.typed_values import read_as
from vflsec.specs import (
    BY_CLASS,
    QUESTIONS,
    TIED,
    TURNED,
    CellResult,
    DefenseSpec,
    Measure,
)


def defense_point(defenses: Sequence[DefenseSpec]) -> tuple[str, float | None]:
    """Label of a stack of defenses, and the strength swept along the curve.

    The strength is that of the first defense that has one; strengths of the others are part of the
    label. No defense is ("none", 0).
    """
    labels, swept = [], None
    for d in defenses:
        inner = dict(d.params)
        if d.strength is not None and swept is not None:
            inner["strength"] = d.strength
        elif d.strength is not None:
            swept = float(d.strength)
        if d.party:
            inner["party"] = d.party
        labels.append(defense_label.format_defense(d.name, inner))
    return (" + ".join(labels), swept) if labels else (UNDEFENDED, 0.0)


def list_rows(
    result: CellResult,
    at: Training | None = None,
    *,
    known_rows: Mapping[str, int | None] = MappingProxyType({}),
    of_label: Mapping[str, str] = MappingProxyType({}),
) -> list[ResultRow]:
    """The measures of a finished cell, not yet compared: see :func:`complete_rows`.

    Args:
        result: the cell.
        at: what its training is called; None takes what its specification says.
        known_rows, of_label: fields of the rows, by the attack's key.
    """
    spec = result.spec
    at = at or Training(spec.data["name"], spec.algorithm, *defense_point(spec.defenses))
    sent = [row for row in result.ledger if row.phase != "predict"]
    about = at.as_dict() | {
        "cell": result.key, "seed": spec.seed, "bytes": sum(row.bytes for row in sent),
        "messages": sum(row.messages for row in sent),
    }  # fmt: skip
    return [
        ResultRow(
            **about,
            **{name: clean(value) for name, value in vars(m).items()},
            known_rows=known_rows.get(m.attack_key),
            of_label=of_label.get(m.attack_key, ""),
            turned=clean(m.notes.get(TURNED)),
            tied=bool(m.notes.get(TIED)),
            by_class=read_as(tuple[ClassCount, ...], m.notes.get(BY_CLASS, ())),
            asked=_chosen(m),
        )
        for m in result.measures
    ]


def _chosen(m: Measure) -> str:
    """What an attack chose by itself to be asked, '' where nothing was left to it."""
    return str(m.notes.get("column" if m.metric == "r2_column" else "asked", ""))


def complete_rows(rows: Iterable[ResultRow]) -> list[ResultRow]:
    """The rows with their primary metric, the control that leaves least, and the advantage over it.

    That is, at each point, the control with the least mean advantage over its seeds; the figures of
    all controls stay in ``controls``. A primary metric that is given stays; else it is told from
    the levels of chance. A row whose status is not ``ok`` has no figures.
    """
    rows = list(rows)
    least: dict[Identity, str] = {}
    attacks = (r for r in rows if r.attack and r.status == "ok")
    for point, of in group_by(attacks, lambda r: r.identity).items():
        if found := Leakage.between(*read_advantages(of), named=""):
            least[point] = found.least.name
    seen: dict[tuple[Any, ...], dict[str, float | None]] = defaultdict(dict)
    for r in rows:
        chances = seen[_asked(r)]
        if r.metric and chances.get(r.metric) is None:
            chances[r.metric] = r.chance
    primary = {asked: _primary(chances) for asked, chances in seen.items()}
    return [_complete(r, r.primary or primary[_asked(r)], least) for r in rows]


def _complete(row: ResultRow, primary: str, least: Mapping[Identity, str]) -> ResultRow:
    if row.status != "ok":  # an exception never becomes a number
        return replace(
            row, primary=primary, value=None, low=None, high=None, control="", control_value=None,
            advantage=None, controls={},
        )  # fmt: skip
    control = least.get(row.identity, "")
    own, gain = row.figures.get(control), None
    if row.value is not None and own is not None:
        gain = find_sign(row.metric) * (row.value - own)
    found = dict(sorted(row.controls.items()))
    return replace(
        row, primary=primary, control=control, control_value=own, advantage=gain, controls=found
    )


def _asked(row: ResultRow) -> tuple[Any, ...]:
    """What has one primary metric: a question about a quantity has another than its values."""
    return row.dataset, bool(row.attack), row.target, row.of_label in QUESTIONS


def _primary(chances: Mapping[str, float | None]) -> str:
    """The primary metric among those present, told from their levels of chance."""
    for metric in PRIMARY:
        if metric in chances:
            return metric
    balanced, top = chances.get("balanced_accuracy"), chances.get("accuracy")
    two = any(METRICS[m].binary_only for m in chances if m in METRICS) or balanced == 0.5
    wish = "auc" if two else "accuracy"
    if not two and balanced and top and top < 1:
        smallest = (1 - top) / (1 / balanced - 1)  # of the classes, at most
        wish = "balanced_accuracy" if top > 1.5 * smallest else "accuracy"
    if wish in chances:
        return wish
    return next((m for m in METRICS if m in chances), next(iter(chances), ""))


def _estimate(
    values: Mapping[int, float], confidence: float, metric: str, of: str = ""
) -> Estimate:
    """Mean over seeds with its t bounds; these stay where the metric can be."""
    mean, sd = intervals.mean_and_sd(list(values.values()))
    if mean is None or sd is None:
        return Estimate(mean=mean, seeds=len(values))
    ends, n = find_reach(metric, of), len(values)
    two, one = (intervals.t_half_width(n, confidence, side) or 0 for side in ("two", "upper"))
    low, high, lower, upper = (
        intervals.clip_bound(mean + k * sd, ends) for k in (-two, two, -one, one)
    )
    return Estimate(mean, sd, low, high, lower, upper, n)


def _advantage(leak: Leakage | None, confidence: float, metric: str) -> Estimate:
    """The advantage over all controls: the mean over the least, bounds as in `Leakage`."""
    if leak is None:
        return Estimate()
    tail, ends = (1 - confidence) / 2, find_reach("advantage", metric)
    return Estimate(
        mean=leak.least.mean,
        sd=leak.least.sd,
        low=intervals.clip_bound(leak.lower(tail), ends),
        high=intervals.clip_bound(leak.upper(tail), ends),
        lower=intervals.clip_bound(leak.lower(2 * tail), ends),
        upper=intervals.clip_bound(leak.upper(2 * tail), ends),
        seeds=leak.least.n,
    )


def _count(rows: Iterable[ResultRow], control: str) -> Counts:
    """Rows that an attack and a control name, over the seeds that have both."""
    found = [(r, r.figures[control]) for r in rows if r.value is not None and control in r.figures]
    return Counts(
        named=sum(r.n * r.value for r, _ in found if r.value is not None),
        own=sum(r.n * own for r, own in found),
        rows=sum(r.n for r, _ in found),
        luck=sum(r.n * (r.chance or 0.0) for r, _ in found),
        seeds=len({r.seed for r, _ in found}),
    )


def _exposed(rows: Sequence[ResultRow], leak: Leakage | None, confidence: float) -> Exposed | None:
    """Of a point in a metric of exposed rows, what is exposed; else None."""
    counts = None if leak is None else leak.least.counts
    if leak is None or counts is None:
        return None
    classes = [r.by_class for r in rows]
    return Exposed.of(rows[0].metric, leak.least.name, counts, classes, confidence)


def _by_seed(rows: Iterable[ResultRow], column: str) -> dict[int, float]:
    pairs = ((r.seed, float(v)) for r in rows if (v := getattr(r, column)) is not None)
    found = sorted(group_by(pairs, lambda pair: pair[0]).items())
    return {seed: intervals.mean_of([v for _, v in of]) for seed, of in found}


def _flip(rows: Sequence[ResultRow], values: Mapping[int, float]) -> Mapping[int, float]:
    """By seed the figure of an answer with its labels flipped; empty where there is none."""
    if rows and rows[0].is_reversible:
        return {s: 1 - v for s, v in values.items()}
    return _by_seed(rows, "turned")


def _turn_with(
    rows: Sequence[ResultRow], leak: Leakage | None, control: Mapping[int, float]
) -> Mapping[int, float]:
    """By seed the control's figure beside an answer with its labels flipped; empty where there is
    none. A control that leaves no level of chance is the same attack, and flipped with it.
    """
    if leak is None or rows[0].chance is not None:
        return control
    return {s: 1 - v for s, v in control.items()} if rows[0].is_reversible else {}


def _fill(
    mine: Mapping[int, float], own: Mapping[int, float], had: Collection[int]
) -> dict[int, float]:
    """Values by seed, on seeds that are not in `had` those of a control; none where none is."""
    return {**mine, **{s: x for s, x in own.items() if s not in had}} if mine else {}


def _often(asked: Iterable[str]) -> str:
    """What was asked on how many seeds, the most frequent first; '' where nothing was chosen."""
    count = Counter(a for a in asked if a)
    if len(count) == 1:
        return next(iter(count))
    return ", ".join(f"{a} ({n} of {count.total()} seeds)" for a, n in count.most_common())


def _average(values: Mapping[int, float]) -> float | None:
    return intervals.mean_of(list(values.values())) if values else None


class _Utility:
    """Figures of the main task by seed, found for a point."""

    def __init__(self, rows: Sequence[ResultRow]) -> None:
        self.values: dict[Training, dict[tuple[str, str], dict[int, float]]] = defaultdict(dict)
        self.bare: dict[tuple[Training, str, str], dict[int, float]] = defaultdict(dict)
        self.metric: dict[str, str] = {}
        main = [r for r in rows if not r.attack and r.status == "ok"]
        for r in [*main, *(r for r in rows if not r.attack and not r.target)]:
            self.metric.setdefault(r.dataset, r.primary)
        asked = (r for r in main if r.metric == self.metric[r.dataset])
        groups = group_by(asked, lambda r: (r.training, r.phase, r.split))
        for (at, phase, split), of in groups.items():
            self.values[at][phase, split] = _by_seed(of, "value")
        bare = (at for at in self.values if at.is_undefended)
        for at in sorted(bare, key=lambda at: at.defense != UNDEFENDED):  # what comes first stands
            for (phase, split), values in self.values[at].items():
                alike = at.system, phase, split
                self.bare[alike] = {**values, **self.bare[alike]}

    def find(self, at: Identity) -> tuple[dict[int, float], str, str]:
        """Values by seed, phase and split: of the point's phase if it is there, else the last."""
        here = self.values.get(at.training)
        if not here:
            return {}, "", ""
        phases = [p for p, _ in here]
        phase = at.phase if at.phase in phases else phases[-1]
        splits = [s for p, s in here if p == phase]
        split = next((s for s in SPLITS if s in splits), splits[0])
        return here[phase, split], phase, split


def summarise(
    rows: Sequence[ResultRow], confidence: float = 0.95, *, shares: bool = False
) -> list[Point]:
    """One point for each identity: means over seeds with t intervals, and the utility beside them.

    Metrics of the main task are points too, without an attack.

    Args:
        rows: of :func:`complete_rows`.
        confidence: of the two-sided (`low`, `high`) and of the one-sided (`lower`, `upper`)
            bounds; missing where there are fewer than two seeds.
        shares: whether each attack's primary point has another one in :data:`ERROR_REMOVED`; these
            come last.
    """
    points = group_by(rows, lambda r: r.identity)
    made = _Summary(rows, confidence)
    found = [made.point(at, of) for at, of in points.items()]
    pairs = zip(found, points.values(), strict=True) if shares else ()
    return [*found, *(p for pair in pairs if (p := made.share_remaining(*pair)) is not None)]


class _Summary:
    """What the points of an audit have in common."""

    def __init__(self, rows: Sequence[ResultRow], confidence: float) -> None:
        self.confidence = confidence
        self.task = _Utility(rows)
        self.declined = find_declined(rows)
        self.named = name_controls(r for r in rows if r.attack and r.status == "ok")
        self.planned = Counter(at for at, _ in {(r.training, r.seed) for r in rows})
        lost = {(r.training, r.seed) for r in rows if not r.attack and r.status == "error"}
        self.lost = Counter(at for at, _ in lost)

    def share_remaining(self, point: Point, rows: Sequence[ResultRow]) -> Point | None:
        """An attack's primary point as a share of the error that its controls leave."""
        best = find_best(point.metric)
        if not point.is_main or math.isinf(best):
            return None
        ok = [r for r in rows if r.status == "ok"]
        gained, own = read_advantages(ok, self.declined)
        shares, left = ctl.as_shares(gained, own, best)
        leak = self._leakage(ok, shares, own, left=left)
        if leak is None:
            return None
        return replace(
            point, metric=ERROR_REMOVED, chance=0.0, leakage=leak,
            value=self._mean(shares[leak.least.name], ERROR_REMOVED),
            advantage=_advantage(leak, self.confidence, ERROR_REMOVED),
            worst_seed=ctl.find_worst(shares), turned=Estimate(), mirrored=Estimate(),
        )  # fmt: skip

    def point(self, at: Identity, rows: Sequence[ResultRow]) -> Point:
        """The point of an identity, from its rows."""
        ok = [r for r in rows if r.status == "ok"]
        values = _by_seed(ok, "value")
        gained, own = read_advantages(ok, self.declined) if at.attack else ({}, {})
        leak = self._leakage(ok, gained, own, ctl.floor_at_chance(gained))
        first = rows[0]
        flipped = _flip(ok, values) if at.attack else {}
        least, ahead = (own[of.name] for of in (leak.least, leak.ahead)) if leak else ({}, {})
        beside = _turn_with(ok, leak, ahead)
        # where it declined, its adversary is left with the control
        reached, flipped = _fill(values, least, values), _fill(flipped, beside, values)
        return Point(
            **{name: getattr(at, name) for name in IDENTITY},
            **self._utility(at),
            primary=first.primary,
            n=max(r.n for r in rows),
            n_least=count_fewest(ok),
            chance=next((r.chance for r in ok if r.chance is not None), None),
            leakage=leak,
            planned=self.planned[at.training],
            unscored=count_unscored(ok),
            seeds=len(reached),
            failed=len({r.seed for r in rows if r.status == "error"}),
            failed_trainings=self.lost[at.training],
            tied=set(_by_seed(ok, "tied").values()) == {1.0},
            status="ok" if ok else first.status,
            reason=next((r.reason for r in rows if r.reason), ""),
            asked=_often(r.asked for r in ok),
            bytes=_average(_by_seed(rows, "bytes")),
            messages=_average(_by_seed(rows, "messages")),
            value=self._mean(reached, at.metric),
            control_value=self._mean(least, at.metric),
            advantage=_advantage(leak, self.confidence, at.metric),
            worst_seed=ctl.find_worst(gained),
            turned=self._mean(flipped, at.metric),
            mirrored=self._mean(
                {s: v - beside[s] for s, v in flipped.items() if s in beside}, "advantage"
            ),
            exposed=_exposed(ok, leak, self.confidence),
        )

    def _leakage(
        self, ok: Sequence[ResultRow], gained: Paired, own: Paired, floored: Paired | None = None,
        left: Paired | None = None,
    ) -> Leakage | None:  # fmt: skip
        """Over all controls, with the one that was named beforehand if it is among them."""
        if not gained:
            return None
        leak = Leakage.between(gained, own, self.named.get(ok[0].control_set, ""), floored, left)
        if leak is None:
            return None
        against = leak.against if ok[0].metric not in EXPOSED else tuple(
            replace(a, counts=_count(ok, a.name)) for a in leak.against
        )  # fmt: skip
        planned = self.planned[ok[0].training]
        trainings = ctl.count_trainings(planned, count_unscored(ok))
        return replace(leak, named=leak.ahead.name, against=against, trainings=trainings)

    def _utility(self, at: Identity) -> dict[str, Any]:
        """Fields of a point that tell of the main task."""
        metric = self.task.metric.get(at.dataset, "")
        now, phase, split = self.task.find(at)
        bare = self.task.bare.get((at.system, phase, split), {})
        drop = {s: bare[s] - now[s] for s in now if s in bare}
        return {
            "utility_metric": metric,
            "utility": self._mean(now, metric),
            "utility_drop": self._mean(drop, "utility_drop", metric),
        }

    def _mean(self, values: Mapping[int, float], metric: str, of: str = "") -> Estimate:
        return _estimate(values, self.confidence, metric, of)
