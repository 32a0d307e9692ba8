"""What a gate weighs, and the sentence that says how it came out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from scipy import special

from vflsec.audit import intervals

if TYPE_CHECKING:
    from vflsec.audit.gate import Gate

__all__ = ["TASK", "Candidate", "between", "broken", "fails", "nothing", "passes",
           "seeds_to_add"]  # fmt: skip

TASK = ("utility", "utility_drop")
"""Gate metrics that speak of the main task, not of an attack."""

_MOST_SEEDS = 1000


@dataclass
class Candidate:
    """One attack at one point, turned so that the gate asks for a maximum."""

    row: Mapping[str, Any]
    value: float
    sd: float | None
    n: int
    limit: float
    dead: str = ""
    name: str = field(init=False)

    def __post_init__(self) -> None:
        self.name = self.row["attack"] or self.row["utility_metric"]

    def bound(self, side: str, alpha: float) -> float | None:
        """The one-sided t bound of the mean at level `alpha`; None with fewer than two seeds."""
        factor = intervals.t_half_width(self.n, 1 - alpha, "upper")
        if factor is None or self.sd is None:
            return None
        return self.value + (factor if side == "upper" else -factor) * self.sd

    def p_beyond(self) -> float:
        """One-sided p-value of "the mean is at most the limit"."""
        if self.n < 2 or self.sd is None:
            return 1.0
        gap = self.value - self.limit
        if self.sd == 0:
            return 0.0 if gap > 0 else 1.0
        return float(special.stdtr(self.n - 1, -gap * math.sqrt(self.n) / self.sd))

    def more_seeds(self, alpha: float) -> int | None:
        """Seeds to add until the half width is below the distance to the limit, sd as seen."""
        gap = abs(self.value - self.limit)
        if self.sd is None or gap == 0:
            return None
        for n in range(max(self.n, 2), _MOST_SEEDS + 1):
            factor = intervals.t_half_width(n, 1 - alpha, "upper")
            if factor is not None and factor * self.sd < gap:
                return max(n - self.n, 1)
        return None


def nothing(missing: Sequence[Mapping[str, Any]], gate: Gate) -> str:
    """Why there was nothing to judge, by attack."""
    said = []
    for r in missing:
        why = r["reason"]
        what = r["attack"] or gate.metric
        state = "without a figure" if r["status"] == "ok" else r["status"]
        said.append(f"{what} is {state}" + (f" ({why})" if why else ""))
    return f"Nothing to judge: {'; '.join(dict.fromkeys(said))}. That is not the same as safe."


def broken(failed: Sequence[Mapping[str, Any]], blocked: Sequence[Mapping[str, Any]]) -> str:
    """Which attacks have failed, and why."""
    names = {r["attack"] or r["metric"]: r for r in [*blocked, *failed]}
    said = []
    for name, r in names.items():
        count = int(r["failed"])
        what = f"{count} {'seed' if count == 1 else 'seeds'} of {name} failed"
        if not count:
            what = f"{name} has no figure" if r["status"] == "ok" else f"{name} is {r['status']}"
        said.append(what + (f" ({r['reason']})" if r["reason"] else ""))
    return f"Cannot pass: {'; '.join(said)}."


def _figure(c: Candidate, gate: Gate) -> str:
    sign = 1 if gate.max is not None else -1
    what = gate.metric if gate.metric in TASK else f"the {gate.metric} of {c.name}"
    return f"{what} is {sign * c.value:.3f} over {c.n} seeds"


def _side(gate: Gate) -> tuple[str, str]:
    return ("upper", "lower") if gate.max is not None else ("lower", "upper")


def fails(lead: Candidate, beyond: Sequence[Candidate], gate: Gate) -> str:
    """What is beyond the threshold, and how surely."""
    others = len({c.name for c in beyond}) - 1
    rest = f", and {others} more beyond it" if others else ""
    where = "above" if gate.max is not None else "below"
    text = f"{_figure(lead, gate)}, {where} {gate.threshold:g} at {gate.confidence:.0%}{rest}."
    return text[0].upper() + text[1:]


def passes(
    lead: Candidate,
    high: float,
    found: Sequence[Candidate],
    missing: Sequence[Mapping[str, Any]],
    gate: Gate,
) -> str:
    """What is within the threshold, and by how much."""
    bound = high if gate.max is not None else -high
    text = (
        f"{_figure(lead, gate)}, its {_side(gate)[0]} bound {bound:.3f} within {gate.threshold:g}"
    )
    if len({c.name for c in found}) > 1:
        text += f" (the worst of {len({c.name for c in found})} attacks)"
    aside = sorted({f"{r['attack']} ({r['status']})" for r in missing})
    text += f"; set aside: {', '.join(aside)}" if aside else ""
    return text[0].upper() + text[1:] + "."


def seeds_to_add(open_: Sequence[Candidate], alpha: float, level: float) -> int | None:
    """Seeds that would decide all of `open_`; None if too many would.

    Args:
        open_: attacks between pass and fail.
        alpha: level of the bound that passes an attack.
        level: of the test that fails one, which is stricter where there are several.
    """
    more = [c.more_seeds(level if c.value > c.limit else alpha) for c in open_]
    return None if any(m is None for m in more) else max(m for m in more if m is not None)


def between(lead: Candidate, more: int | None, gate: Gate, level: float) -> str:
    """What is open, and what would decide it."""
    if more is None:
        cure = f"more than {_MOST_SEEDS} seeds would not decide it"
    else:
        cure = f"about {more} more seed{'s' if more > 1 else ''} would decide it"
        cure += _rows_instead(lead, level)
    text = f"{_figure(lead, gate)}, and its interval holds {gate.threshold:g}; {cure}."
    return text[0].upper() + text[1:]


def _rows_instead(c: Candidate, alpha: float) -> str:
    """The other cure, where so few target rows explain the spread over seeds by themselves.

    The standard error of a share over n rows is at most 0.5 / sqrt(n), and that of an AUC of
    balanced classes about 0.58 / sqrt(n) (Hanley and McNeil 1982, no signal).
    """
    rows, gap = int(c.row["n"] or 0), abs(c.value - c.limit)
    factor = intervals.t_half_width(c.n, 1 - alpha, "upper")
    if rows < 1 or not c.sd or not factor or c.sd > 1.2 * 0.58 / math.sqrt(rows):
        return ""
    return (
        f", or about {math.ceil(rows * (factor * c.sd / gap) ** 2)} target rows instead of {rows}"
    )
