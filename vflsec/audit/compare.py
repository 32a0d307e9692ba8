"""What changed between two audits: paired by cell where both trained the same seeds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from vflsec.audit.change import Seeds, compute_change
from vflsec.audit.point import Identity
from vflsec.audit.result import Audit
from vflsec.audit.result_row import ResultRow, read_advantages, read_rows
from vflsec.runtime.grouping import group_by

_UNSAID = ("attack_key", "of_label")
"""What is no part of a comparison: keys differ by version, and labels are told by the attack's."""

Values = Mapping[Identity, Mapping[str, Seeds]]
"""By point, control and seed: advantages of attacks, values of the main task."""


@dataclass(frozen=True, slots=True)
class Compared(Identity):
    """A figure of two audits; of one that only one has the figures are None.

    Attributes:
        quantity: ``advantage`` (over all controls) or ``utility``.
        before, after: means over seeds.
        change, low, high: paired by seed where possible, with its t interval; no bounds for one.
        seeds: how many.
        paired: whether both audits have the same ones.
    """

    quantity: str = ""
    before: float | None = None
    after: float | None = None
    change: float = 0.0
    low: float | None = None
    high: float | None = None
    seeds: int = 0
    paired: bool = True

    @property
    def harm(self) -> int:
        """1 for more leakage or less utility beyond the interval, -1 for the opposite, else 0."""
        if self.low is None or self.high is None or self.low <= 0 <= self.high:
            return 0
        return 1 if (self.low > 0) == bool(self.attack) else -1


@dataclass(frozen=True, slots=True)
class Comparison:
    """What changed between two audits.

    Attributes:
        before, after: their folders.
        confidence: of the intervals.
        rows: figures of both.
        gone, new: points of one only.
        facts: what else differs (scenario, data, versions, device) as (name, before, after).
    """

    before: str
    after: str
    confidence: float
    rows: tuple[Compared, ...] = ()
    gone: tuple[Compared, ...] = ()
    new: tuple[Compared, ...] = ()
    facts: tuple[tuple[str, str, str], ...] = ()


def compare(old: Audit, new: Audit) -> Comparison:
    """The change of every advantage over all controls, and of the utility, between two audits.

    Two-sided t intervals have the confidence of `new`.
    """
    level = float(new.summary["confidence"])
    a, b = (_values(read_rows(x.results)) for x in (old, new))
    same = _same(a, b)
    return Comparison(
        str(old.folder), str(new.folder), level,
        rows=tuple(_change(k, a[k], b[other], level) for k, other in same.items()),
        gone=tuple(_missing(k) for k in a if k not in same),
        new=tuple(_missing(k) for k in b if k not in same.values()),
        facts=tuple(_facts(old, new)),
    )  # fmt: skip


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


def _missing(at: Identity) -> Compared:
    return Compared(**at.as_dict(), quantity=_quantity(at))


def _quantity(at: Identity) -> str:
    return "advantage" if at.attack else "utility"


def _values(rows: Iterable[ResultRow]) -> Values:
    known = (
        r for r in rows
        if r.role != "control" and r.metric == r.primary and r.status == "ok"
        and r.value is not None
    )  # fmt: skip
    found = group_by(known, lambda r: r.without(*_UNSAID))
    out = {key: _by_control(of) for key, of in found.items()}
    return {key: of for key, of in out.items() if of}


def _by_control(rows: Sequence[ResultRow]) -> Mapping[str, Seeds]:
    if rows[0].attack:
        return read_advantages(rows)[0]
    seeds = sorted(group_by(rows, lambda r: r.seed).items())
    return {"": {s: float(np.mean([r.value for r in of])) for s, of in seeds}}


def _change(
    at: Identity, before: Mapping[str, Seeds], after: Mapping[str, Seeds], level: float
) -> Compared:
    found, tail = compute_change(after, before), (1 - level) / 2
    return Compared(
        **at.as_dict(), quantity=_quantity(at), before=found.before, after=found.after,
        change=found.mean, low=found.lower(tail), high=found.upper(tail), seeds=found.seeds,
        paired=found.paired,
    )  # fmt: skip


def _facts(old: Audit, new: Audit) -> Iterator[tuple[str, str, str]]:
    for key in ("scenario_hash", "device"):
        yield from _differ(key.replace("_", " "), old.summary[key], new.summary[key])
    for name in ("data", "versions"):
        a, b = old.summary[name], new.summary[name]
        for key in dict.fromkeys(chain(a, b)):
            yield from _differ(f"{name} {key}", a.get(key, "-"), b.get(key, "-"))


def _differ(name: str, before: object, after: object) -> Iterator[tuple[str, str, str]]:
    if before != after:
        yield name, str(before), str(after)
