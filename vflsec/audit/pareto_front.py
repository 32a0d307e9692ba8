"""Each strength of each defense as one point: its worst attack, and what it costs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pandas as pd

from vflsec.audit import leakage
from vflsec.audit.controls import is_leak
from vflsec.audit.exposed import EXPOSED
from vflsec.audit.findings import NO_FIGURE
from vflsec.audit.gate import Reason, Rule, Verdict
from vflsec.audit.point import Point
from vflsec.audit.result_row import ResultRow, read_rows
from vflsec.audit.verdict_text import find_shortfall
from vflsec.errors import ConfigError
from vflsec.runtime.grouping import group_by


@dataclass(frozen=True)
class Trial:
    """One strength of one defense: the worst attack's advantage and the main task, with bounds.

    Attributes:
        defense, strength: what was run.
        leak, leak_high: largest mean advantage over attacks, and the largest upper bound, of the
            answer or of the answer turned round where it ranks two classes.
        attack: the attack with that bound; '' where none sees a message, and all figures are 0.
        utility: mean of the main-task metric.
        drop, drop_high: mean loss of utility against strength 0, and its upper bound; of several
            trainings (data sets, algorithms, phases) these three are of the one that loses most.
        claimed, measured: the epsilon that is claimed, and the largest lower bound that canaries
            measure of it; None where nothing is claimed, or tested.
        failed: an attack or training that failed on some seed there, an attack on several classes
            that ranks them in reverse, or one with less evidence than a gate passes on; the code is
            a :class:`vflsec.audit.gate.Rule` or :class:`vflsec.audit.gate.Shortfall`. None if none.
        turned: whether `leak_high` is that of an answer turned round.
        gates: what the gates of the audit say there.
    """

    defense: str
    strength: float
    leak: float
    leak_high: float
    attack: str
    utility: float
    drop: float
    drop_high: float
    claimed: float | None = None
    measured: float | None = None
    failed: Reason | None = None
    turned: bool = False
    gates: tuple[Verdict, ...] = ()

    @property
    def named(self) -> str:
        """The attack, or that none sees a message."""
        return self.attack or "no attack sees a message"

    def meets(self, leak: float) -> bool:
        """Whether every attack gave a figure to pass on, its upper bound is within, and no gate
        says that too many people may be exposed.
        """
        return not (self.failed or any(self.find_excess(leak)))

    def find_excess(self, leak: float) -> tuple[float, float]:
        """How far the upper bound of the advantage is beyond `leak`, and that of the worst gate on
        exposed people beyond its limit; 0 where it is within.
        """
        return max(self.leak_high - leak, 0.0), self.exposing.excess if self.exposing else 0.0

    def is_near(self, leak: float) -> bool:
        """Whether more seeds may do: the means are within, those of exposed people too."""
        means = all(g.value is not None and g.value <= g.threshold for g in self.exposed)
        return not (self.failed or self.turned) and self.leak <= leak and means

    @property
    def exposed(self) -> list[Verdict]:
        """The gates on people exposed at this strength whose upper bound is beyond their limit."""
        here = (g for g in self.gates if g.strength in (None, self.strength))
        return [g for g in here if g.limited in EXPOSED and g.excess > 0]

    @property
    def exposing(self) -> Verdict | None:
        """Of these the one farthest beyond its limit; None if all are within."""
        return max(self.exposed, key=lambda g: g.excess, default=None)

    def epsilons(self) -> str:
        """Both epsilons as a sentence, ``""`` where nothing is claimed."""
        if self.claimed is None:
            return ""
        if self.measured is None:
            return f" Claimed epsilon {self.claimed:.4g} (not tested)."
        return f" Claimed epsilon {self.claimed:.4g}, measured at least {self.measured:.3g}."


def trials(results: Iterable[ResultRow] | pd.DataFrame) -> list[Trial]:
    """One trial for each defense and strength of an audit's results.

    Raises:
        ConfigError: no attack gave a figure.
    """
    rows = read_rows(results) if isinstance(results, pd.DataFrame) else results
    points = leakage.summarise([r for r in rows if r.role == "audit"])
    if not any(p.is_main for p in points):
        raise ConfigError(f"tune: {NO_FIGURE}. See `vflsec check`.")
    swept = (p for p in points if p.strength is not None)
    by = group_by(swept, lambda p: (p.defense, p.strength or 0.0))
    broken = _broken(points)
    return [_trial(by[k], broken.get(k)) for k in sorted(by) if any(p.attack for p in by[k])]


def _trial(points: Sequence[Point], failed: Reason | None) -> Trial:
    """Of the points of one defense and strength."""
    defense, strength = points[0].defense, points[0].strength or 0.0
    rows = [p for p in points if p.is_main]
    if not rows and all(p.status == "not-observable" for p in points if p.attack):
        lost = _dearest(points)
        return Trial(
            defense, strength, 0.0, 0.0, "", _or(lost.utility.mean, math.nan),
            _or(lost.utility_drop.mean, math.nan), _or(lost.utility_drop.high, math.inf),
            failed=failed,
        )  # fmt: skip
    if not rows:
        none = (math.nan, math.inf, "", math.nan, math.nan, math.inf)
        return Trial(defense, strength, *none, failed=failed)
    worst = max(rows, key=_bound)
    bare = worst.is_undefended
    paid = worst if bare else _dearest(points)
    drop = paid.utility_drop
    return Trial(
        defense, strength,
        max((p.advantage.mean for p in rows if p.advantage.mean is not None), default=math.nan),
        _bound(worst), worst.attack, _or(paid.utility.mean, math.nan),
        0.0 if bare else _or(drop.mean, math.nan), 0.0 if bare else _or(drop.high, math.inf),
        failed=failed,
        turned=_bound(worst) > _or(worst.advantage.high, math.inf),
    )  # fmt: skip


def _bound(point: Point) -> float:
    """The upper bound of its advantage, or of that of the answer turned round."""
    return max(_or(point.advantage.high, math.inf), _or(point.mirrored.high, -math.inf))


def _dearest(points: Sequence[Point]) -> Point:
    """The point of a strength at which the loss of utility may be largest, wherever it leaks."""
    here = [p for p in points if p.attack or p.metric == p.utility_metric]
    return max(here, key=lambda p: _or(p.utility_drop.high, math.inf))


def _broken(points: Sequence[Point]) -> dict[tuple[str, float | None], Reason]:
    """What has no figure on some seed, with the reason, ranks classes in reverse, or is too little
    to pass on, by defense and strength.
    """
    out: dict[tuple[str, float | None], Reason] = {}
    for said in (_failed, _reversed, _too_little):
        for p in points:
            if why := said(p):
                out.setdefault((p.defense, p.strength), why)
    return out


def _failed(p: Point) -> Reason | None:
    if not p.failed:
        return None
    seeds = f"{p.failed} seed{'s' if p.failed > 1 else ''}"
    why = f" ({p.reason})" if p.reason else ""
    return Reason(Rule.FAILED_RUNS, f"{p.attack or 'the training'} failed on {seeds}{why}")


def _reversed(p: Point) -> Reason | None:
    ranks = p.attack and p.is_ranking and p.metric != p.primary
    if not ranks or not is_leak(p.mirrored.mean, p.mirrored.low):
        return None
    text = f"{p.attack} leaks with labels flipped ({p.mirrored.mean:+.3f} of {p.metric})"
    return Reason(Rule.REVERSED_RANKING, text)


def _too_little(p: Point) -> Reason | None:
    return find_shortfall(p, p.leakage) if p.is_main and p.leakage is not None else None


def pareto(found: Sequence[Trial]) -> list[Trial]:
    """Those that no other beats in both utility and leak (means), best utility first."""
    ordered = sorted(found, key=lambda t: (-t.utility, t.leak))
    out: list[Trial] = []
    for trial in ordered:
        if not out or trial.leak < out[-1].leak:
            out.append(trial)
    return out


def _or(value: float | None, other: float) -> float:
    return other if value is None else value
