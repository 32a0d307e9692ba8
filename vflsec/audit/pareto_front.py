"""Each strength of each defense as one point: its worst attack, and what it costs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import pandas as pd

from vflsec.audit import leakage
from vflsec.audit.controls import Leakage, leaks
from vflsec.audit.gate import MIN_ROWS, MIN_SEEDS
from vflsec.audit.reversed_ranking import ranking
from vflsec.audit.verdict_text import thin
from vflsec.errors import ConfigError

__all__ = ["Trial", "pareto", "trials"]


@dataclass(frozen=True)
class Trial:
    """One strength of one defense: the worst attack's advantage and the main task, with bounds.

    Attributes:
        defense, strength: what was run.
        leak, leak_high: largest mean advantage over attacks, and the largest upper bound, of the
            answer or of the answer turned round where it ranks two classes.
        attack: the attack with that bound.
        utility: mean of the main-task metric.
        drop, drop_high: mean loss of utility against strength 0, and its upper bound; of several
            trainings (data sets, algorithms, phases) these three are of the one that loses most.
        claimed, measured: the epsilon that is claimed, and the largest lower bound that canaries
            measure of it; None where nothing is claimed, or tested.
        failed: an attack or training that failed on some seed there, an attack on several classes
            that ranks them in reverse, or one with less evidence than a gate passes on, in words;
            '' if none.
        turned: whether `leak_high` is that of an answer turned round.
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
    failed: str = ""
    turned: bool = False

    def meets(self, leak: float) -> bool:
        """Whether every attack gave a figure to pass on, and its upper bound is within."""
        return not self.failed and self.leak_high <= leak

    def epsilons(self) -> str:
        """Both epsilons as a sentence, ``""`` where nothing is claimed."""
        if self.claimed is None:
            return ""
        if self.measured is None:
            return f" It claims epsilon {self.claimed:.4g}, which was not tested."
        return f" It claims epsilon {self.claimed:.4g}; at least {self.measured:.3g} is measured."


def trials(results: pd.DataFrame) -> list[Trial]:
    """One trial for each defense and strength of an audit's results.

    Raises:
        ConfigError: no attack gave a figure.
    """
    frame = results[results["role"] == "audit"] if "role" in results else results
    points = leakage.summarise(frame)
    of = points[points["attack"] != ""]
    good = (of["metric"] == of["primary"]) & (of["status"] == "ok")
    if not good.any():
        raise ConfigError("tune: no attack of the scenario gave a figure. See `vflsec check`.")
    broken = _broken(points)
    out = []
    for key, every in of.groupby(["defense", "strength"]):
        defense, strength = cast("tuple[str, float]", key)
        rows = every[good[every.index]]
        if rows.empty:
            none = (math.nan, math.inf, "", math.nan, math.nan, math.inf)
            out.append(Trial(defense, strength, *none, failed=broken.get((defense, strength), "")))
            continue
        turned = rows["mirrored_high"].fillna(-math.inf)
        plain = rows["advantage_high"].fillna(math.inf)
        bounds = plain.clip(lower=turned)
        at = int(bounds.to_numpy().argmax())
        worst: Any = rows.iloc[at]
        bare = leakage.is_undefended({"defense": defense, "strength": strength})
        paid: Any = worst if bare else _dearest(points, defense, strength)
        out.append(
            Trial(
                str(defense), float(strength), float(rows["advantage"].max()), float(bounds.max()),
                str(worst["attack"]), float(paid["utility"]),
                0.0 if bare else float(paid["utility_drop"]),
                0.0 if bare else _or_infinite(paid["utility_drop_high"]),
                failed=broken.get((defense, strength), ""),
                turned=bool(bounds.iloc[at] > plain.iloc[at]),
            )
        )  # fmt: skip
    return out


def _dearest(points: pd.DataFrame, defense: str, strength: float) -> Any:
    """The point of a strength at which the loss of utility may be largest, wherever it leaks."""
    here = points[(points["defense"] == defense) & (points["strength"] == strength)]
    here = here[(here["attack"] != "") | (here["metric"] == here["utility_metric"])]
    return here.iloc[int(here["utility_drop_high"].fillna(math.inf).to_numpy().argmax())]


def _broken(points: pd.DataFrame) -> dict[tuple[str, float], str]:
    """What has no figure on some seed, with the reason, ranks classes in reverse, or is too little
    to pass on, by defense and strength.
    """
    out: dict[tuple[str, float], str] = {}
    for r in leakage.rows_of(points[points["failed"] > 0]):
        what = r["attack"] or "the training"
        seeds = f"{r['failed']} seed{'s' if r['failed'] > 1 else ''}"
        said = f"{what} failed on {seeds}" + (f" ({r['reason']})" if r["reason"] else "")
        out.setdefault((r["defense"], r["strength"]), said)
    ranked = [r for r in leakage.rows_of(points) if r["attack"] and ranking(r)]
    for r in ranked:
        if r["metric"] != r["primary"] and leaks(r["mirrored"], r["mirrored_low"]):
            gain = f"turned round {r['mirrored']:+.3f} of {r['metric']}"
            said = f"{r['attack']} ranks in reverse ({gain})"
            out.setdefault((r["defense"], r["strength"]), said)
    for r in leakage.rows_of(points):
        judged = r["attack"] and r["metric"] == r["primary"] and r["status"] == "ok"
        leak = Leakage.of(r) if judged else None
        said = thin(r, leak, MIN_SEEDS, MIN_ROWS) if leak is not None else ""
        if said:
            out.setdefault((r["defense"], r["strength"]), said)
    return out


def pareto(found: Sequence[Trial]) -> list[Trial]:
    """Those that no other beats in both utility and leak (means), best utility first."""
    ordered = sorted(found, key=lambda t: (-t.utility, t.leak))
    out: list[Trial] = []
    for trial in ordered:
        if not out or trial.leak < out[-1].leak:
            out.append(trial)
    return out


def _or_infinite(value: Any) -> float:
    return math.inf if value is None or value != value else float(value)
