"""What changed between two audits: paired by cell where both trained the same seeds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from vflsec.audit.change import change
from vflsec.audit.controls import advantages
from vflsec.audit.leakage import is_undefended, rows_of
from vflsec.audit.result import Audit

__all__ = ["compare"]

_POINT = ("dataset", "algorithm", "defense", "strength", "phase", "adversary", "attack",
          "known_rows", "target", "victim", "split", "metric")  # fmt: skip


Key = tuple[Any, ...]


def compare(old: Audit, new: Audit, confidence: float | None = None) -> dict[str, Any]:
    """The change of every advantage over all controls, and of the utility, between two audits.

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
    same = _same(a, b)
    return {
        "before": str(old.folder),
        "after": str(new.folder),
        "confidence": level,
        "rows": [_named(k) | _change(a[k], b[other], level) for k, other in same.items()],
        "gone": [_named(k) for k in a if k not in same],
        "new": [_named(k) for k in b if k not in same.values()],
        "facts": _facts(old.summary, new.summary),
    }


def _same(a: Mapping[Key, Any], b: Mapping[Key, Any]) -> dict[Key, Key]:
    """Points of one audit with their like in the other.

    Strength 0 of any defense is the undefended training, so it is compared with that of another.
    """
    out = {k: k for k in a if k in b}
    left = {_bare(k): k for k in b if k not in out and _bare(k)}
    for k in a:
        if k not in out and _bare(k) in left:
            out[k] = left.pop(_bare(k))
    return out


def _bare(key: Key) -> Key:
    """The point without its defense, if that is none or of strength 0; else ()."""
    named = dict(zip(_POINT, key, strict=True))
    if not is_undefended(named):
        return ()
    return tuple(v for k, v in named.items() if k not in ("defense", "strength"))


def _named(key: tuple[Any, ...]) -> dict[str, Any]:
    return dict(zip(_POINT, key, strict=True)) | {
        "quantity": "advantage" if key[_POINT.index("attack")] else "utility"
    }


def _values(frame: pd.DataFrame) -> dict[tuple[Any, ...], dict[str, dict[int, float]]]:
    """Advantages by control (of attacks) and values (of the main task) by point and seed."""
    found: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for r in rows_of(frame):
        here = r.get("role", "audit") != "control" and r["metric"] == r["primary"]
        if here and r["status"] == "ok" and r["value"] == r["value"]:
            found[tuple(None if r[k] != r[k] else r[k] for k in _POINT)].append(r)
    out = {key: _by_control(of) for key, of in found.items()}
    return {key: of for key, of in out.items() if of}


def _by_control(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[int, float]]:
    if rows[0]["attack"]:
        return advantages(rows)[0]
    seeds = sorted({int(r["seed"]) for r in rows})
    return {
        "": {s: float(np.mean([r["value"] for r in rows if int(r["seed"]) == s])) for s in seeds}
    }


def _change(before: Any, after: Any, level: float) -> dict[str, Any]:
    found = change(after, before)
    tail = (1 - level) / 2
    return {
        "before": found.before,
        "after": found.after,
        "change": found.mean,
        "low": found.lower(tail),
        "high": found.upper(tail),
        "seeds": found.seeds,
        "paired": found.paired,
    }


def _facts(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[list[str]]:
    pairs = [(k.replace("_", " "), old[k], new[k]) for k in ("scenario_hash", "device")]
    for name in ("data", "versions"):
        for key in dict.fromkeys([*old[name], *new[name]]):
            pairs.append((f"{name} {key}", old[name].get(key, "-"), new[name].get(key, "-")))
    return [[name, str(a), str(b)] for name, a, b in pairs if a != b]
