"""Did leakage rise against stored results? A regression gate on the mean advantage.

A baseline holds the advantage of every attack by seed. The same point (data, algorithm, defense,
strength, phase, adversary, attack, rows, metric) is compared, paired by seed where both have the
seed. A rise is beyond what is tolerated if it exceeds max(0.03, 2.5 sd / sqrt(n)) with the
baseline's spread over seeds: libraries drift, and the noise of a few seeds is no change.

FAIL: beyond that, and above 0 for sure (one-sided t, Holm over all points). INCONCLUSIVE: beyond
that but not for sure, or the attack is gone, failed, or is no longer shown to work. PASS: within.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy import special

from vflsec.audit import intervals
from vflsec.audit.gate import FAIL, INCONCLUSIVE, PASS, Gate, Verdict
from vflsec.audit.leakage import rows_of
from vflsec.errors import ConfigError
from vflsec.files import write_atomic

if TYPE_CHECKING:
    from vflsec.audit.result import Audit

__all__ = ["BASELINE_VERSION", "LEAST", "advantages", "baseline_of", "read_baseline", "regressions",
           "write_baseline"]  # fmt: skip

BASELINE_VERSION = 1
LEAST = 0.03
SPREAD = 2.5
_KEY = ("dataset", "algorithm", "defense", "strength", "phase", "adversary", "attack", "known_rows",
        "target", "split", "metric")  # fmt: skip

Key = tuple[Any, ...]
Values = Mapping[Key, Mapping[int, float]]


def baseline_of(frame: pd.DataFrame, scenario_hash: str, version: str) -> dict[str, Any]:
    """What ``baseline.json`` holds: the advantage of every attack, by point and seed.

    Args:
        frame: of :func:`vflsec.audit.leakage.results_frame`.
        scenario_hash, version: to say in a report what the baseline was made from.

    Raises:
        ConfigError: no attack has an advantage.
    """
    values = advantages(frame)
    if not values:
        raise ConfigError("baseline: these results hold no advantage to compare with later.")
    points = [
        dict(zip(_KEY, key, strict=True)) | {"advantage": {str(s): v for s, v in by_seed.items()}}
        for key, by_seed in values.items()
    ]
    return {
        "baseline_version": BASELINE_VERSION,
        "vflsec": version,
        "scenario_hash": scenario_hash,
        "points": points,
    }


def advantages(frame: pd.DataFrame) -> dict[Key, dict[int, float]]:
    """The advantage of every attack by point and seed, in its primary metric."""
    if "role" in frame.columns:
        frame = frame[frame["role"] != "control"]
    found: dict[Key, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for r in rows_of(frame):
        if r["attack"] and r["metric"] == r["primary"] and r["status"] == "ok":
            value = r["advantage"]
            if value is not None and value == value:
                key = tuple(None if r[k] != r[k] else r[k] for k in _KEY)
                found[key][int(r["seed"])].append(float(value))
    return {k: {s: float(np.mean(v)) for s, v in sorted(of.items())} for k, of in found.items()}


def read_baseline(path: Path) -> Values:
    """The values by point and seed in a file that :func:`baseline_of` made.

    Raises:
        ConfigError: it is no such file.
    """
    advice = "Make one with: vflsec gate DIR --baseline FILE --update-baseline"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not JSON"
        raise ConfigError(f"{path}: cannot be read as a baseline: {why}. {advice}") from None
    version = found.get("baseline_version") if isinstance(found, dict) else None
    if version != BASELINE_VERSION:
        raise ConfigError(
            f"{path}: baseline_version must be {BASELINE_VERSION}, got {version!r}. {advice}"
        )
    try:
        out: dict[Key, dict[int, float]] = {}
        for p in found["points"]:
            by_seed = {int(s): float(v) for s, v in p["advantage"].items()}
            if not by_seed or not all(map(math.isfinite, by_seed.values())):
                raise ValueError
            out[tuple(p[k] for k in _KEY)] = by_seed
        return out
    except (KeyError, TypeError, ValueError, AttributeError):
        raise ConfigError(f"{path}: a point of this baseline is malformed. {advice}") from None


def write_baseline(path: Path, audit: Audit) -> None:
    """Keep the advantages of an audit as the file to compare later ones with.

    Raises:
        ConfigError: the audit is unfinished or has no advantage, or the file cannot be written.
    """
    if not audit.summary["complete"]:
        raise ConfigError(
            f"{audit.folder}: not all that was planned is measured, so this is no baseline. "
            "Run the audit again first."
        )
    version = audit.summary["versions"]["vflsec"]
    found = baseline_of(audit.results, audit.summary["scenario_hash"], version)
    text = json.dumps(found, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    write_atomic(path, lambda p: p.write_text(text, encoding="utf-8"))


@dataclass(frozen=True)
class _Change:
    """The change of one point: mean, its standard error, degrees of freedom, allowance."""

    key: Key
    mean: float
    error: float
    freedom: float
    seeds: int
    allowed: float

    def p_above_zero(self) -> float:
        """One-sided p-value of "there is no rise"."""
        if self.freedom <= 0:
            return 1.0
        if self.error == 0:
            return 0.0 if self.mean > 0 else 1.0
        return float(special.stdtr(self.freedom, -self.mean / self.error))

    def half_width(self, alpha: float) -> float | None:
        if self.freedom <= 0:
            return None
        return float(special.stdtrit(self.freedom, 1 - alpha)) * self.error


def _change(key: Key, now: Mapping[int, float], before: Mapping[int, float]) -> _Change:
    old = np.array(list(before.values()))
    spread = float(old.std(ddof=1)) if len(old) > 1 else 0.0
    allowed = max(LEAST, SPREAD * spread / math.sqrt(len(old)))
    shared = sorted(set(now) & set(before))
    if len(shared) >= 2 or len(shared) == len(now) == len(before):
        d = np.array([now[s] - before[s] for s in shared])
        error = float(d.std(ddof=1)) / math.sqrt(len(d)) if len(d) > 1 else 0.0
        return _Change(key, float(d.mean()), error, len(d) - 1, len(d), allowed)
    new = np.array(list(now.values()))
    mean, n = float(new.mean() - old.mean()), min(len(new), len(old))
    if n < 2:
        return _Change(key, mean, 0.0, 0, n, allowed)
    a, b = new.var(ddof=1) / len(new), old.var(ddof=1) / len(old)
    freedom = (
        n - 1 if a + b == 0 else (a + b) ** 2 / (a**2 / (len(new) - 1) + b**2 / (len(old) - 1))
    )  # Welch 1947
    return _Change(key, mean, math.sqrt(a + b), float(freedom), n, allowed)


def regressions(
    frame: pd.DataFrame,
    before: Values,
    alive: Mapping[str, tuple[bool, str]],
    confidence: float = 0.95,
) -> list[Verdict]:
    """One verdict for every point of the baseline.

    Args:
        frame: results as they are now, of :func:`vflsec.audit.leakage.results_frame`.
        before: of :func:`read_baseline`.
        alive: of :func:`vflsec.audit.gate.alive`.
        confidence: of the one-sided bounds.
    """
    now = advantages(frame)
    changes = [_change(k, now[k], before[k]) for k in before if k in now]
    p = intervals.holm([c.p_above_zero() for c in changes])
    alpha = 1 - confidence
    out = [_judged(c, x < alpha, alive, alpha) for c, x in zip(changes, p, strict=True)]
    gone = [_verdict(k, LEAST, INCONCLUSIVE, _gone(k)) for k in before if k not in now]
    if not before:
        reason = "The baseline holds no point, so nothing was compared."
        gone = [Verdict(_gate(LEAST), INCONCLUSIVE, None, None, None, LEAST, 0, reason)]
    return out + gone


def _judged(c: _Change, sure: bool, alive: Mapping[str, tuple[bool, str]], alpha: float) -> Verdict:
    point = dict(zip(_KEY, c.key, strict=True))
    name = point["attack"]
    said = f"The advantage of {name} changed by {c.mean:+.3f} over {c.seeds} seeds"
    shown, why = alive.get(name, (False, "no evidence was given"))
    more = None
    if c.mean > c.allowed and sure:
        verdict, reason = FAIL, f"{said}; {c.allowed:.3f} is tolerated."
    elif c.mean > c.allowed:
        verdict, more = INCONCLUSIVE, _more(c, alpha)
        cure = f"about {more} more seeds would decide it" if more else "more seeds are needed"
        reason = f"{said}, beyond the tolerated {c.allowed:.3f} but not surely above 0; {cure}."
    elif not shown:
        verdict = INCONCLUSIVE
        reason = f"Not shown to be alive, so its silence proves nothing: {name} ({why})."
    else:
        verdict, reason = PASS, f"{said}, within the tolerated {c.allowed:.3f}."
    width = c.half_width(alpha)
    low, high = (None, None) if width is None else (c.mean - width, c.mean + width)
    return _verdict(c.key, c.allowed, verdict, reason, c.mean, low, high, c.seeds, more)


def _more(c: _Change, alpha: float) -> int | None:
    """Seeds to add until this change would surely be above 0, its spread as seen."""
    spread = c.error * math.sqrt(c.seeds)
    if spread == 0 or c.mean <= 0:
        return None if c.seeds > 1 else 1
    for n in range(max(c.seeds, 2), 1001):
        if float(special.stdtrit(n - 1, 1 - alpha)) * spread / math.sqrt(n) < c.mean:
            return max(n - c.seeds, 1)
    return None


def _gone(key: Key) -> str:
    name = dict(zip(_KEY, key, strict=True))["attack"]
    return (
        f"{name} has a figure in the baseline and none here, so a rise would go unseen. If that is "
        "meant, renew the baseline with --update-baseline."
    )


def _gate(allowed: float, who: str = "") -> Gate:
    return Gate(max=allowed, name=f"advantage{who} does not rise against the baseline")


def _verdict(
    key: Key, allowed: float, verdict: str, reason: str, value: float | None = None,
    low: float | None = None, high: float | None = None, n: int = 0, more: int | None = None,
) -> Verdict:  # fmt: skip
    p = dict(zip(_KEY, key, strict=True))
    where = {k: p[k] for k in ("dataset", "algorithm", "defense", "strength", "attack",
                               "adversary", "phase", "split")}  # fmt: skip
    rows = f" on {p['split']} rows" if p["split"] else ""
    known = f" with {p['known_rows']:g} known rows" if p["known_rows"] else ""
    who = f" of {p['attack']} by {p['adversary']}{rows}{known}"
    return Verdict(
        _gate(allowed, who), verdict, value, low, high, allowed, n, reason, more_seeds=more, **where
    )
