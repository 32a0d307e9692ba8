"""What changed between two audits: paired by cell where both trained the same seeds."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from scipy import special

from vflsec.audit.leakage import rows_of
from vflsec.audit.result import Audit

__all__ = ["compare"]

_POINT = ("dataset", "algorithm", "defense", "strength", "phase", "adversary", "attack",
          "known_rows", "target", "victim", "split", "metric")  # fmt: skip
Seeds = Mapping[int, float]


def compare(old: Audit, new: Audit, confidence: float | None = None) -> dict[str, Any]:
    """The change of every advantage and of the utility from one audit to another.

    Args:
        old, new: audits.
        confidence: of the two-sided t intervals; None takes that of `new`.

    Returns:
        ``rows``: points in both with ``before``, ``after``, ``change``, ``low``, ``high``,
        ``seeds`` and ``paired``; ``gone`` and ``new``: points in one only; ``facts``: what else
        differs (scenario, data, versions, device) as [name, before, after].
    """
    level = confidence or float(new.summary["confidence"])
    a, b = _values(old.results), _values(new.results)
    return {
        "before": str(old.folder),
        "after": str(new.folder),
        "confidence": level,
        "rows": [_named(k) | _change(a[k], b[k], level) for k in a if k in b],
        "gone": [_named(k) for k in a if k not in b],
        "new": [_named(k) for k in b if k not in a],
        "facts": _facts(old.summary, new.summary),
    }


def _named(key: tuple[Any, ...]) -> dict[str, Any]:
    return dict(zip(_POINT, key, strict=True)) | {
        "quantity": "advantage" if key[_POINT.index("attack")] else "utility"
    }


def _values(frame: pd.DataFrame) -> dict[tuple[Any, ...], dict[int, float]]:
    """Advantages (of attacks) and values (of the main task) by point and seed."""
    found: dict[tuple[Any, ...], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for r in rows_of(frame):
        value = r["advantage"] if r["attack"] else r["value"]
        here = r.get("role", "audit") != "control" and r["metric"] == r["primary"]
        if here and r["status"] == "ok" and value is not None and value == value:
            key = tuple(None if r[k] != r[k] else r[k] for k in _POINT)
            found[key][int(r["seed"])].append(float(value))
    return {k: {s: float(np.mean(v)) for s, v in sorted(of.items())} for k, of in found.items()}


def _change(a: Seeds, b: Seeds, level: float) -> dict[str, Any]:
    shared = sorted(set(a) & set(b))
    x, y = np.array(list(a.values())), np.array(list(b.values()))
    paired = len(shared) >= 2 or set(a) == set(b)
    if paired:
        x, y = np.array([a[s] for s in shared]), np.array([b[s] for s in shared])
        d = y - x
        freedom, error = len(d) - 1.0, _sd(d) / math.sqrt(len(d))
        seeds = len(d)
    else:
        u, v = _sd(x) ** 2 / len(x), _sd(y) ** 2 / len(y)
        small = min(len(x), len(y))
        freedom = small - 1.0
        if small > 1 and u + v > 0:  # Welch 1947
            freedom = (u + v) ** 2 / (u**2 / (len(x) - 1) + v**2 / (len(y) - 1))
        error, seeds = math.sqrt(u + v), small
    mean = float(y.mean() - x.mean())
    width = None
    if freedom > 0:
        width = float(special.stdtrit(freedom, 0.5 + level / 2)) * error
    return {
        "before": float(x.mean()),
        "after": float(y.mean()),
        "change": mean,
        "low": None if width is None else mean - width,
        "high": None if width is None else mean + width,
        "seeds": seeds,
        "paired": paired,
    }


def _sd(values: Any) -> float:
    return float(values.std(ddof=1)) if len(values) > 1 else 0.0


def _facts(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[list[str]]:
    pairs = [(k.replace("_", " "), old[k], new[k]) for k in ("scenario_hash", "device")]
    for name in ("data", "versions"):
        for key in dict.fromkeys([*old[name], *new[name]]):
            pairs.append((f"{name} {key}", old[name].get(key, "-"), new[name].get(key, "-")))
    return [[name, str(a), str(b)] for name, a, b in pairs if a != b]
