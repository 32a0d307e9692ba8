"""Which point stands for an attack in a summary, the strongest attacker, and who leaks to whom."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

from vflsec.audit import controls, intervals
from vflsec.audit.controls import Leakage
from vflsec.audit.gate_candidate import find_reversed
from vflsec.audit.leakage import is_undefended
from vflsec.audit.metrics import reach
from vflsec.audit.point import IDENTITY
from vflsec.audit.reversed_ranking import ranking

__all__ = ["by_training", "leaks", "named", "reverses", "secret", "shown", "strongest", "told"]

Row: TypeAlias = Any
"""A :class:`vflsec.audit.point.Point`, or a row of a summary."""
R = TypeVar("R", bound=Any)

_SPLITS = ("test", "validation", "train")
_WHO = ("dataset", "algorithm", "adversary", "attack", "attack_key", "target")
_IDENTITY = (*_WHO, "defense", "strength")
_CELL = (*IDENTITY, "control", "advantage")
_TO_WHOM = ("dataset", "adversary", "victim", "target")
_TRAINING = ("dataset", "algorithm", "defense", "strength")
_SIDES = ("lower", "upper")
_SECRETS = {
    "label": "labels", "feature": "columns", "attribute": "values of one column",
    "embedding": "embeddings", "integrity": "predictions (forced)", "membership": "training rows",
    "property": "attribute share",
}  # fmt: skip


def told(rows: Iterable[R]) -> list[R]:
    """Every answer of every attack in the metric that verdicts rest on, as gates judge them.

    An attack that guesses training and test rows, or is made after several stages, has several.

    Args:
        rows: points of :func:`vflsec.audit.leakage.summarise`, missing numbers None.
    """
    return [
        r for r in rows
        if r["attack"] and r["status"] == "ok" and r["metric"] == r["primary"]
    ]  # fmt: skip


def shown(rows: Iterable[R]) -> list[R]:
    """One answer for each (data, algorithm, defense, strength, adversary, attack), for figures.

    Args:
        rows: points of :func:`vflsec.audit.leakage.summarise`, missing numbers None.

    Returns:
        of :func:`told` those after the last phase, on the rows (test or training) on which the
        attack gains most without a defense, the same ones at every strength.
    """
    groups: dict[tuple[Any, ...], list[R]] = defaultdict(list)
    for r in told(rows):
        groups[_identity(r)].append(r)
    last = [[r for r in of if r["phase"] == of[-1]["phase"]] for of in groups.values()]
    bare = {_who(of[0]) for of in last if is_undefended(of[0])}
    gained: dict[tuple[Any, ...], dict[str, float]] = defaultdict(dict)
    for of in last:
        for r in of if _who(of[0]) not in bare or is_undefended(of[0]) else ():
            most = gained[_who(r)]
            most[r["split"]] = max(most.get(r["split"], -float("inf")), _gain(r))
    return [_one(of, gained[_who(of[0])]) for of in last]


def _identity(r: Row) -> tuple[Any, ...]:
    return tuple(r[k] for k in _IDENTITY)


def _who(r: Row) -> tuple[Any, ...]:
    return tuple(r[k] for k in _WHO)


def _one(of: Sequence[R], gained: Mapping[str, float]) -> R:
    rank = {s: i for i, s in enumerate(_SPLITS)}

    def order(r: R) -> tuple[float, int]:
        return -gained.get(r["split"], -float("inf")), rank.get(r["split"], len(rank))

    return min(of, key=order)


def secret(row: Row) -> str:
    """What leaks and whose it is, in words: "labels of active"."""
    what = _SECRETS.get(row["target"] or "label", row["target"])
    victim = row.get("victim", "")  # results of an earlier version do not say whose
    return f"{what} of {victim.replace('+', ' and ')}" if victim else str(what)


def leaks(rows: Iterable[Row], confidence: float = 0.95) -> list[dict[str, Any]]:
    """Who leaks to whom: for each data set, adversary, victim and target the strongest attack.

    On the undefended training; where nothing of a data set is undefended, all points count. Rows
    that were trained on count as test rows do, and every stage of the training.

    Args:
        rows: points of :func:`vflsec.audit.leakage.summarise`, missing numbers None.
        confidence: of the corrected intervals, see :func:`strongest`.

    Returns:
        as :func:`strongest`.
    """
    return _best(_without_defense(told(rows)), _TO_WHOM, confidence)


def reverses(rows: Iterable[Row], confidence: float = 0.95) -> list[dict[str, Any]]:
    """Who leaks to whom in reverse: as :func:`leaks`, of answers turned round that surely leak.

    Args:
        rows: points of :func:`vflsec.audit.leakage.summarise`, missing numbers None.
        confidence: of the intervals, corrected for the tries as those of :func:`leaks`.

    Returns:
        as :func:`leaks`, where ``advantage`` with its bounds is what the answer turned round gains
        over the control that was named beforehand; nothing where none surely leaks.
    """
    ranked = [r for r in rows if r["attack"] and r["status"] == "ok" and ranking(r)]
    groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for r in _without_defense(ranked):
        groups[tuple(r.get(k) for k in _TO_WHOM)].append(r)
    out = []
    for of in groups.values():
        tail = (1 - confidence) / (2 * len(of))
        sure = []
        for r in of:
            turned = find_reversed(r, "advantage")
            low = None if turned is None else turned.bound("lower", tail)
            if turned is not None and controls.leaks(turned.mean, low):
                ends = reach("advantage", r["metric"])
                low, high = (intervals.within(turned.bound(s, tail), ends) for s in _SIDES)
                gain = {"advantage": turned.mean, "low": low, "high": high, "at": _at(r, of)}
                sure.append({k: r.get(k) for k in _CELL} | gain)
        out += [max(sure, key=_gain)] if sure else []
    return out


def _without_defense(points: Sequence[Row]) -> list[Row]:
    bare = {r["dataset"] for r in points if is_undefended(r)}
    return [r for r in points if r["dataset"] not in bare or is_undefended(r)]


def strongest(rows: Iterable[Row], confidence: float = 0.95) -> list[dict[str, Any]]:
    """The strongest attacker of each target under each training, corrected for having chosen it.

    Advantages are over all controls (:class:`vflsec.audit.controls.Leakage`). Every attack on every
    set of rows after every stage is a try. Taking the best of m tries, each t interval over seeds
    is made at confidence 1 - (1 - confidence) / m, and the one-sided p-value for an advantage above
    0 is adjusted over all m (Holm 1979). What leaks at that level is stronger than what does not,
    whatever its mean: one attack that varies a lot hides no other.

    Args:
        rows: points of :func:`vflsec.audit.leakage.summarise`, missing numbers None.
        confidence: of the corrected two-sided intervals.

    Returns:
        rows with the identity of the point, ``control`` (the one with the least advantage),
        ``advantage`` (mean over
        seeds) with its corrected bounds ``low`` and ``high``, ``p``, ``tried`` (m), ``attacks`` (of
        how many), and ``at``, which rows and stage in words where the attack has several; numbers
        are None where there is no advantage or only one seed.
    """
    return _best(told(rows), (*_TRAINING, "victim", "target"), confidence)


def by_training(rows: Iterable[Row], confidence: float = 0.95) -> list[dict[str, Any]]:
    """As :func:`strongest`, for each adversary by itself: who learns what under each training."""
    return _best(told(rows), (*_TRAINING, "adversary", "victim", "target"), confidence)


def _best(points: Iterable[Row], by: Sequence[str], confidence: float) -> list[dict[str, Any]]:
    groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for r in points:
        groups[tuple(r.get(k) for k in by)].append(r)
    out = []
    for of in groups.values():
        found = [Leakage.of(r) for r in of]
        adjusted = intervals.holm([1.0 if x is None else x.p_above(0.0) for x in found])
        tail = (1 - confidence) / (2 * len(of))
        lows = [None if x is None else x.lower(tail) for x in found]
        sure = [controls.leaks(r["advantage"], low) for r, low in zip(of, lows, strict=True)]
        i = max(range(len(of)), key=lambda i: (sure[i], _gain(of[i])))
        best, leak = of[i], found[i]
        ends = reach("advantage", best["metric"])
        high = intervals.within(leak.upper(tail), ends) if leak else None
        out.append(
            {k: best.get(k) for k in _CELL}
            | {"low": intervals.within(lows[i], ends), "high": high}
            | {"p": None if lows[i] is None else float(adjusted[i]), "tried": len(of)}
            | {"attacks": len({_identity(r) for r in of}), "at": _at(best, of)}
        )
    return out


def _at(row: Row, points: Iterable[Row]) -> str:
    """On which rows, and after which stage, where the same attack has several; else ''."""
    same = [r for r in points if _identity(r) == _identity(row)]
    words = [f"on {row['split']} rows"] if len({r["split"] for r in same}) > 1 else []
    words += [f"after {row['phase']}"] if len({r["phase"] for r in same}) > 1 else []
    return " ".join(words)


def named(row: Row) -> str:
    """The attack of a row of :func:`leaks` or :func:`strongest`, and where it was that strong."""
    return " ".join(filter(None, (str(row["attack"]), row.get("at", ""))))


def _gain(row: Row) -> float:
    value = row["advantage"]
    return -float("inf") if value is None else float(value)
