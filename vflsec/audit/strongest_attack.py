"""Which point stands for an attack in a summary, the strongest attacker, and who leaks to whom."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from vflsec.audit import controls, intervals
from vflsec.audit.gate_candidate import as_against
from vflsec.audit.metrics import reach
from vflsec.audit.point import Identity, Point
from vflsec.audit.reversed_ranking import ranking

_SPLITS = ("test", "validation", "train")
_SECRETS = {
    "label": "labels", "feature": "columns", "attribute": "values of one column",
    "embedding": "embeddings", "integrity": "predictions (forced)", "membership": "training rows",
    "property": "attribute share",
}  # fmt: skip
_ATTACK = ("dataset", "algorithm", "adversary", "attack", "attack_key", "target")
_TO_WHOM = ("dataset", "adversary", "victim", "target")
_TRAINING = ("dataset", "algorithm", "defense", "strength")


@dataclass(frozen=True, slots=True)
class Strongest(Identity):
    """The strongest attack on a secret, corrected for having been chosen.

    Attributes:
        control: the one with the least advantage.
        advantage: over it, mean over seeds; None where there is none.
        low, high: its corrected bounds; None for one seed.
        p: corrected one-sided p-value of "it gains nothing"; None for one seed.
        tried: how many answers were looked at.
        attacks: of how many attacks.
        at: which rows and stage in words, where the attack has several.
    """

    control: str = ""
    advantage: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    tried: int = 0
    attacks: int = 0
    at: str = ""

    @property
    def is_leak(self) -> bool:
        """Whether it leaks significantly."""
        return controls.leaks(self.advantage, self.low)

    @property
    def named(self) -> str:
        """The attack, and where it was that strong."""
        return " ".join(filter(None, (self.attack, self.at)))


def select_shown(points: Iterable[Point]) -> list[Point]:
    """One answer for each (data, algorithm, defense, strength, adversary, attack), for figures.

    Args:
        points: of :func:`vflsec.audit.leakage.summarise`.

    Returns:
        in the metric that verdicts rest on those after the last phase, on the rows (test or
        training) on which the attack gains most without a defense, the same ones at every strength.
    """
    groups = _group((p for p in points if p.is_main), *_ATTACK, "defense", "strength")
    last = [[p for p in of if p.phase == of[-1].phase] for of in groups.values()]
    bare = {_keep(of[0], _ATTACK) for of in last if of[0].is_undefended}
    gained: dict[Identity, dict[str, float]] = defaultdict(dict)
    for of in last:
        who = _keep(of[0], _ATTACK)
        for p in of if who not in bare or of[0].is_undefended else ():
            gained[who][p.split] = max(gained[who].get(p.split, -float("inf")), _gain(p))
    return [_one(of, gained[_keep(of[0], _ATTACK)]) for of in last]


def _keep(at: Identity, names: Sequence[str]) -> Identity:
    """The identity with these fields alone."""
    return Identity(**{name: getattr(at, name) for name in names})


def _group(points: Iterable[Point], *names: str) -> dict[Identity, list[Point]]:
    """Points by what they have in common of these fields."""
    out: dict[Identity, list[Point]] = defaultdict(list)
    for p in points:
        out[_keep(p, names)].append(p)
    return out


def _one(of: Sequence[Point], gained: Mapping[str, float]) -> Point:
    rank = {s: i for i, s in enumerate(_SPLITS)}

    def order(p: Point) -> tuple[float, int]:
        return -gained.get(p.split, -float("inf")), rank.get(p.split, len(rank))

    return min(of, key=order)


def format_secret(at: Identity) -> str:
    """What leaks and whose it is: "labels of active"."""
    what = _SECRETS.get(at.target or "label", at.target)
    return f"{what} of {at.victim.replace('+', ' and ')}" if at.victim else what


def find_leaks(points: Iterable[Point], confidence: float = 0.95) -> list[Strongest]:
    """Who leaks to whom: for each data set, adversary, victim and target the strongest attack.

    On the undefended training; where nothing of a data set is undefended, all points count. Rows
    that were trained on count as test rows do, and every stage of the training.

    Args:
        points: of :func:`vflsec.audit.leakage.summarise`.
        confidence: of the corrected intervals, see :func:`find_strongest`.
    """
    return _best(_without_defense([p for p in points if p.is_main]), _TO_WHOM, confidence)


def find_reversed_leaks(points: Iterable[Point], confidence: float = 0.95) -> list[Strongest]:
    """As :func:`find_leaks`, of answers with their labels flipped, where these leak significantly.

    Args:
        points: of :func:`vflsec.audit.leakage.summarise`.
        confidence: of the intervals, corrected for the tries.

    Returns:
        ``advantage`` with its bounds is what the flipped answer gains over the control that was
        named beforehand.
    """
    ranked = [p for p in points if p.attack and p.status == "ok" and ranking(p)]
    out = []
    for of in _group(_without_defense(ranked), *_TO_WHOM).values():
        tail = (1 - confidence) / (2 * len(of))
        sure = []
        for p in of:
            flipped = as_against(p.mirrored)
            low = None if flipped is None else flipped.bound("lower", tail)
            if flipped is not None and controls.leaks(flipped.mean, low):
                ends = reach("advantage", p.metric)
                low, high = (
                    intervals.within(flipped.bound(s, tail), ends) for s in ("lower", "upper")
                )
                made = Strongest(**p.identity.as_dict(), control=p.control, advantage=flipped.mean,
                                 low=low, high=high, at=_at(p, of))  # fmt: skip
                sure.append(made)
        out += [max(sure, key=lambda r: r.advantage or 0.0)] if sure else []
    return out


def _without_defense(points: Sequence[Point]) -> list[Point]:
    bare = {p.dataset for p in points if p.is_undefended}
    return [p for p in points if p.dataset not in bare or p.is_undefended]


def find_strongest(points: Iterable[Point], confidence: float = 0.95) -> list[Strongest]:
    """The strongest attacker of each target under each training, corrected for having chosen it.

    Advantages are over all controls (:class:`vflsec.audit.controls.Leakage`). Every attack on every
    set of rows after every stage is a try. Taking the best of m tries, each t interval over seeds
    is made at confidence 1 - (1 - confidence) / m, and the one-sided p-value for an advantage above
    0 is adjusted over all m (Holm 1979). What leaks at that level is stronger than what does not,
    whatever its mean: one attack that varies a lot hides no other.

    Args:
        points: of :func:`vflsec.audit.leakage.summarise`.
        confidence: of the corrected two-sided intervals.
    """
    mine = [p for p in points if p.is_main]
    return _best(mine, (*_TRAINING, "victim", "target"), confidence)


def find_by_training(points: Iterable[Point], confidence: float = 0.95) -> list[Strongest]:
    """As :func:`find_strongest`, for each adversary by itself: who learns what there."""
    mine = [p for p in points if p.is_main]
    return _best(mine, (*_TRAINING, "adversary", "victim", "target"), confidence)


def _best(points: Iterable[Point], by: Sequence[str], confidence: float) -> list[Strongest]:
    out = []
    for of in _group(points, *by).values():
        found = [p.leakage for p in of]
        adjusted = intervals.holm([1.0 if x is None else x.p_above(0.0) for x in found])
        tail = (1 - confidence) / (2 * len(of))
        lows = [None if x is None else x.lower(tail) for x in found]
        sure = [controls.leaks(p.advantage.mean, low) for p, low in zip(of, lows, strict=True)]
        i = max(range(len(of)), key=lambda i: (sure[i], _gain(of[i])))
        best, leak = of[i], found[i]
        ends = reach("advantage", best.metric)
        out.append(
            Strongest(
                **best.identity.as_dict(), control=best.control, advantage=best.advantage.mean,
                low=intervals.within(lows[i], ends),
                high=intervals.within(leak.upper(tail), ends) if leak else None,
                p=None if lows[i] is None else float(adjusted[i]), tried=len(of),
                attacks=len(_group(of, *_ATTACK, "defense", "strength")), at=_at(best, of),
            )
        )  # fmt: skip
    return out


def _at(point: Point, points: Iterable[Point]) -> str:
    """On which rows, and after which stage, where the same attack has several; else ''."""
    names = (*_ATTACK, "defense", "strength")
    same = _group(points, *names)[_keep(point, names)]
    words = [f"on {point.split} rows"] if len({p.split for p in same}) > 1 else []
    words += [f"after {point.phase}"] if len({p.phase for p in same}) > 1 else []
    return " ".join(words)


def _gain(point: Point) -> float:
    return -float("inf") if point.advantage.mean is None else point.advantage.mean
