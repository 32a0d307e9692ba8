"""What stays visible under the defenses of an audit, and what attacks measured there.

The tables and the claims come from the defenses (:mod:`vflsec.plan.planner`); this module adds
which attacks were not observable and what the others measured, each beside the same attack where
nothing is hidden.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vflsec.audit.attack_names import find_attack, tell_apart
from vflsec.audit.intervals import holds_zero, t_interval
from vflsec.audit.metrics import metric_name
from vflsec.audit.point import SPLITS, UNDEFENDED, Grants, Identity
from vflsec.audit.result_row import ResultRow
from vflsec.core.visibility import Line
from vflsec.runtime.grouping import group_by
from vflsec.specs import UNMADE

_ERROR = "relative_error"
_WHERE = ("defense", "strength", "phase", "split", "metric")
_SAME = 1e-6  # figures that differ by less come from the same numbers


@dataclass(frozen=True)
class Protocol:
    """Who holds what under one algorithm and stack of defenses, and what that hides and leaves.

    Attributes:
        algorithm, defense: as in results.
        names: of the defenses.
    """

    algorithm: str = ""
    defense: str = ""
    names: tuple[str, ...] = ()
    lines: tuple[Line, ...] = ()
    hides: str = ""
    leaves: str = ""


@dataclass(frozen=True)
class Measured:
    """One attack where something is hidden, and the same attack where nothing is.

    Attributes:
        dataset, attack, adversary, victim, target: which; `attack` is told apart from the others
            of its label.
        metric: its name in a sentence.
        value, value_low, value_high: mean over seeds, with its t interval.
        control: mean of the control; None where there is none.
        seeds: behind the value.
        unencrypted: mean where nothing is hidden, over the seeds of both.
        change, change_low, change_high: paired by seed.
        verdict: in words; "" where there is nothing to compare with.
    """

    dataset: str = ""
    attack: str = ""
    adversary: str = ""
    target: str = ""
    metric: str = ""
    value: float = 0.0
    value_low: float | None = None
    value_high: float | None = None
    control: float | None = None
    seeds: int = 0
    unencrypted: float | None = None
    change: float | None = None
    change_low: float | None = None
    change_high: float | None = None
    verdict: str = ""
    victim: str = ""


@dataclass(frozen=True)
class Outcome(Protocol):
    """A protocol with what attacks measured under it.

    Attributes:
        unseen: attacks that could not be made, as (attack, adversary, status, reason).
        measured: every attack beside its control and beside the same attack unencrypted.
        sentences: (data set, text); none where nothing is hidden.
    """

    unseen: tuple[tuple[str, ...], ...] = ()
    measured: tuple[Measured, ...] = ()
    sentences: tuple[tuple[str, str], ...] = ()


def describe_outcomes(
    entries: Sequence[Protocol], rows: Iterable[ResultRow], level: float,
    grants: Mapping[str, Grants] | None = None,
) -> list[Outcome]:  # fmt: skip
    """The protocols of an audit with one sentence for each data set, and what was not seen.

    Args:
        entries: of the audit.
        rows: one for each measure.
        level: of the intervals.
        grants: what is not usual of attacks, by their keys.
    """
    attacks = [r for r in rows if r.attack and r.role == "audit"]
    apart = tell_apart(attacks, grants)
    by_point = group_by(attacks, lambda r: (r.algorithm, r.defense, r.dataset))
    out = []
    for entry in entries:
        bare = _twin(entry, entries)
        datasets = [k[2] for k in by_point if k[:2] == (entry.algorithm, entry.defense)]
        sentences: list[tuple[str, str]] = []
        measured: list[Measured] = []
        unseen: dict[tuple[str, ...], None] = {}
        for dataset in dict.fromkeys(datasets):
            of = by_point[entry.algorithm, entry.defense, dataset]
            gone = [r for r in of if r.status in UNMADE]
            unseen |= dict.fromkeys((r.attack, r.adversary, r.status, r.reason) for r in gone)
            beside = by_point.get((entry.algorithm, bare, dataset), []) if bare else []
            found = _measured(of, beside, level, apart)
            measured += found
            if entry.hides:
                sentences.append((dataset, _sentence(entry, dataset, found, gone)))
        out.append(Outcome(**vars(entry), unseen=tuple(unseen), measured=tuple(measured),
                           sentences=tuple(sentences)))  # fmt: skip
    return out


def _twin(entry: Protocol, entries: Sequence[Protocol]) -> str:
    """The point to compare with: the same defenses with nothing hidden, else none at all."""
    if not entry.hides:
        return ""
    for other in entries:
        same = (other.names, other.algorithm) == (entry.names, entry.algorithm)
        if same and not other.hides:
            return other.defense
    return UNDEFENDED


def _sentence(
    entry: Protocol, dataset: str, found: Sequence[Measured], gone: Sequence[ResultRow]
) -> str:
    said: dict[bool, list[str]] = {True: [], False: []}
    for m in found:
        text = f"{m.attack} {m.metric} {m.value:.3g}"
        if m.target == "label":
            text += f", its control {m.control:.3g}" if m.control is not None else ""
            text += f", {m.verdict}" if m.verdict else ""
        said[m.target == "label"].append(text)
    unseen = list(dict.fromkeys(r.attack for r in gone if r.status == "not-observable"))
    first = f"On {dataset}, {entry.algorithm} with {entry.defense} hides {entry.hides}"
    first += f" ({'; '.join(said[False])})" if said[False] else ""
    first += f"; not observable, so not tested: {', '.join(unseen)}" if unseen else ""
    second = f"it leaves {entry.leaves}"
    second += f" ({'; '.join(said[True])})" if said[True] else ""
    return f"{first}; {second}."


@dataclass(frozen=True)
class _Values:
    """Of one attack: its values by seed, and the mean of its control."""

    metric: str
    by_seed: Mapping[int, float]
    control: float | None


def _measured(
    rows: Sequence[ResultRow], beside: Sequence[ResultRow], level: float,
    apart: Mapping[Identity, str],
) -> list[Measured]:  # fmt: skip
    """Every attack with its mean over seeds, its control, and its paired change, with intervals."""
    theirs = _values(beside)
    out = []
    for at, of in _values(rows).items():
        twin = theirs.get(at)
        other = twin.by_seed if twin is not None and twin.metric == of.metric else {}
        shared = sorted(set(of.by_seed) & set(other))
        change = np.array([of.by_seed[s] - other[s] for s in shared])
        low, high = t_interval(change, level)[:2] if shared else (None, None)
        mine = np.array(list(of.by_seed.values()))
        mine_low, mine_high = t_interval(mine, level)[:2]
        out.append(
            Measured(
                at.dataset, " ".join(filter(None, (at.attack, apart[find_attack(at)]))),
                at.adversary, at.target,
                "relative error" if of.metric == _ERROR else metric_name(of.metric),
                float(mine.mean()), mine_low, mine_high, of.control, len(mine),
                float(np.mean([other[s] for s in shared])) if shared else None,
                float(change.mean()) if shared else None, low, high, _moved(change, low, high),
                at.victim,
            )
        )  # fmt: skip
    return out


def _moved(change: NDArray[np.float64], low: float | None, high: float | None) -> str:
    """What became of a figure, in words; "" where one seed gives no interval."""
    if len(change) and np.abs(change).max() < _SAME:
        return "unchanged"
    if low is None or high is None:
        return ""
    within = holds_zero(low, high)
    return "change within its interval" if within else f"changed by {change.mean():+.3f}"


def _values(rows: Sequence[ResultRow]) -> dict[Identity, _Values]:
    """By attack, whatever hides something from it.

    Test rows where there are some; the relative error of an inversion rather than its R².
    """
    wanted = (
        r for r in rows
        if r.metric == (_ERROR if r.target == "embedding" else r.primary)
        and r.status == "ok" and "@" not in r.phase
    )  # fmt: skip
    out = {}
    for key, of in group_by(wanted, lambda r: r.without(*_WHERE)).items():
        split = next((s for s in SPLITS if any(r.split == s for r in of)), of[0].split)
        kept = [r for r in of if r.split == split and r.phase == of[-1].phase]
        known = [r.control_value for r in kept if r.control_value is not None]
        values = {r.seed: math.nan if r.value is None else r.value for r in kept}
        control = float(np.mean(known)) if known else None
        out[key] = _Values(kept[0].metric, values, control)
    return out
