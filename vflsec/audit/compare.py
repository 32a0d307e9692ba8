"""What changed between two audits: paired by cell where both trained the same seeds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from vflsec.audit.change import change
from vflsec.audit.point import IDENTITY, Identity
from vflsec.audit.result import Audit
from vflsec.audit.result_row import ResultRow, advantages, read_rows

__all__ = ["compare"]

_UNSAID = ("attack_key", "of_label")
"""What is no part of a comparison: keys differ by version, and labels are told by the attack's."""

Values = Mapping[Identity, Mapping[str, Mapping[int, float]]]
"""By point, control and seed: advantages of attacks, values of the main task."""


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


def _same(a: Values, b: Values) -> dict[Identity, Identity]:
    """Points of one audit with their like in the other.

    Strength 0 of any defense is the undefended training, so it is compared with that of another.
    """
    out = {k: k for k in a if k in b}
    left = {_bare(k): k for k in b if k not in out and k.is_undefended}
    for k in a:
        if k not in out and k.is_undefended and _bare(k) in left:
            out[k] = left.pop(_bare(k))
    return out


def _bare(at: Identity) -> Identity:
    return at.without("defense", "strength")


def _named(at: Identity) -> dict[str, Any]:
    return {k: getattr(at, k) for k in IDENTITY if k not in _UNSAID} | {
        "quantity": "advantage" if at.attack else "utility"
    }


def _values(frame: pd.DataFrame) -> Values:
    found: dict[Identity, list[ResultRow]] = defaultdict(list)
    for r in read_rows(frame):
        here = r.role != "control" and r.metric == r.primary
        if here and r.status == "ok" and r.value is not None:
            found[r.without(*_UNSAID)].append(r)
    out = {key: _by_control(of) for key, of in found.items()}
    return {key: of for key, of in out.items() if of}


def _by_control(rows: Sequence[ResultRow]) -> Mapping[str, Mapping[int, float]]:
    if rows[0].attack:
        return advantages(rows)[0]
    values = [(r.seed, r.value) for r in rows if r.value is not None]
    seeds = sorted({s for s, _ in values})
    return {"": {s: float(np.mean([v for t, v in values if t == s])) for s in seeds}}


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
