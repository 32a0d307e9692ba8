"""Privacy against utility over a grid of strengths: CAP of a curve, DCS of its points."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from vflsec.audit.cap_score import cap, dcs
from vflsec.audit.leakage import POINT, TRAINING, UNDEFENDED, clean, is_undefended, rows_of
from vflsec.audit.point import Point
from vflsec.audit.reversed_ranking import reversible

__all__ = ["curves"]


def _cap_metric(present: set[str], primary: str) -> str:
    """Attack accuracy beyond two classes (He et al. 2022), the AUC where that is primary."""
    if primary == "auc" or "accuracy" not in present:
        return primary
    return "accuracy"


def curves(summary: Sequence[Point], include_zero: bool = False) -> pd.DataFrame:
    """One row for each defense and attack: the privacy-utility curve and its CAP.

    Args:
        summary: of :func:`summarise`.
        include_zero: whether strength 0, which is no defense, counts in the mean of CAP. It always
            does for the undefended curve, whose only point it is.

    Returns:
        the columns of :data:`POINT` except strength; ``metric`` says which attack performance CAP
        uses (``auc`` for two classes, as max(AUC, 1 - AUC), for a reversed ranking is no
        protection; ``accuracy`` beyond); lists ``strengths``, ``values``,
        ``advantages``, ``utilities`` over the grid, ascending; ``cap`` (None where a point is
        missing or leaves [0, 1]) and ``cap_strengths``; ``undefended_value`` and
        ``undefended_utility`` of the same attack; ``dcs``, the defense capability score at each
        strength (None where a figure is missing or leaves [0, 1]). Neither is given where a
        training failed: the mean over those that did not would tell too much.
    """
    keys = [k for k in POINT if k not in ("strength", "metric")]
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    grid: dict[tuple[Any, ...], set[float | None]] = defaultdict(set)
    for r in rows_of(summary):
        grid[tuple(r[k] for k in TRAINING[:3])].add(clean(r["strength"]))
        if r["attack"]:
            groups[tuple(clean(r[k]) for k in keys)].append(r)
    bare: dict[tuple[Any, ...], tuple[float, float | None]] = {}
    out = []
    for key, of in groups.items():
        metric = _cap_metric({r["metric"] for r in of}, of[0]["primary"])
        points = [r for r in of if r["metric"] == metric]
        points.sort(key=lambda r: (r["strength"] != r["strength"], r["strength"]))
        rest = tuple(v for k, v in zip(keys, key, strict=True) if k != "defense")
        for p in points:
            if is_undefended(p) and (p["defense"] == UNDEFENDED or (rest, metric) not in bare):
                bare[rest, metric] = (p["value"], None if p["failed_trainings"] else p["utility"])
        used = [p for p in points if include_zero or not is_undefended(p)] or points
        there = grid[tuple(of[0][k] for k in TRAINING[:3])]
        out.append(
            dict(zip(keys, key, strict=True))
            | {
                "metric": metric,
                "utility_metric": of[0]["utility_metric"],
                "strengths": [p["strength"] for p in points],
                "values": [p["value"] for p in points],
                "advantages": [p["advantage"] for p in points],
                "utilities": [p["utility"] for p in points],
                "cap": None if there != {clean(p["strength"]) for p in points} else _cap(used),
                "cap_strengths": [p["strength"] for p in used],
                "_rest": (rest, metric),
                "_either_way": [_either_way(p) for p in points],
                "_failed": [p["failed_trainings"] for p in points],
            }
        )
    for row in out:
        row["undefended_value"], row["undefended_utility"] = bare.get(
            row.pop("_rest"), (None, None)
        )
        pairs = zip(row.pop("_either_way"), row["utilities"], row.pop("_failed"), strict=True)
        bare_u = row["undefended_utility"]
        row["dcs"] = [None if bad else _dcs(a, u, bare_u) for a, u, bad in pairs]
    return pd.DataFrame(out)


def _either_way(point: Mapping[str, Any]) -> float:
    """The attack's figure; of a ranking the better of it and its reverse."""
    value = float(point["value"])
    ranks = point["metric"] in ("auc", "concordance") and reversible(point)
    return max(value, 1 - value) if ranks else value


def _cap(points: Sequence[Mapping[str, Any]]) -> float | None:
    u, a = [p["utility"] for p in points], [_either_way(p) for p in points]
    if not points or not all(0 <= x <= 1 for x in [*u, *a]):  # NaN compares false
        return None
    return None if any(p["failed_trainings"] for p in points) else cap(u, a)


def _dcs(attack: float, utility: float, undefended: float | None) -> float | None:
    if undefended is None or not all(0 <= x <= 1 for x in (attack, utility, undefended)):
        return None
    return dcs(attack, utility, undefended)
