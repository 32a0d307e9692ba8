"""Did leakage rise against stored results? A regression gate on the mean advantage.

A baseline holds the advantage of every attack over every control by seed. The same point (data,
algorithm, defense, strength, phase, adversary, attack, rows, metric) is compared, paired by seed
where both have the seed; attacks that only their grants tell apart are never taken together, and
one that has other grants now than in the baseline is not the same. A rise is beyond what is
tolerated if it exceeds max(0.03, 2.5 sd / sqrt(n)) with the baseline's spread over seeds: libraries
drift, and the noise of a few seeds is no change.

FAIL: beyond that, and above 0 for sure over all controls (:mod:`vflsec.audit.change`, Holm over all
points). INCONCLUSIVE: beyond that but not for sure, or the attack is gone, failed, is no longer
shown to work, now ranks in reverse, or the evidence is thin as under a gate. PASS: within; it warns
where the baseline is of other data.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from vflsec.audit import intervals, result_row, verdict_text
from vflsec.audit.change import Change, Seeds, change, least
from vflsec.audit.gate import (
    FAIL,
    INCONCLUSIVE,
    MIN_ROWS,
    MIN_SEEDS,
    PASS,
    Gate,
    Origin,
    Reason,
    Rule,
    Shortfall,
    Verdict,
    Warn,
    format_warnings,
)
from vflsec.audit.leakage import TRAINING, rows_of
from vflsec.audit.metrics import reach
from vflsec.audit.point import Point
from vflsec.audit.result_row import ResultRow, read_rows
from vflsec.audit.reversed_ranking import ranking
from vflsec.audit.rounding import both
from vflsec.audit.validated import NO_EVIDENCE, Validated, Validation, place_of
from vflsec.errors import ConfigError
from vflsec.runtime.atomic_files import json_text, read_text, write_atomic
from vflsec.specs import OF_THE_LABELS

if TYPE_CHECKING:
    from vflsec.audit.result import Audit

__all__ = ["BASELINE_VERSION", "LEAST", "Baseline", "advantages", "baseline_of", "granted",
           "read_baseline", "refuse_failed", "regressions", "write_baseline"]  # fmt: skip

BASELINE_VERSION = 2
_READABLE = (1, 2)
_ADVICE = "Make one with: vflsec gate DIR --baseline FILE --update-baseline"
LEAST = 0.03
SPREAD = 2.5
_KEY = ("dataset", "algorithm", "defense", "strength", "phase", "adversary", "attack", "known_rows",
        "target", "split", "metric", "grants", "attack_key")  # fmt: skip
_ANSWER = tuple(k for k in _KEY if k != "metric")
_RAN = (*TRAINING, "adversary", "attack", "attack_key")
_MADE = (*_RAN, "phase")

Key = tuple[Any, ...]
Values = Mapping[Key, Mapping[str, Seeds]]
"""Advantages by point, control and seed; a baseline of version 1 has one control, called ""."""


class Baseline(dict[Key, Mapping[str, Seeds]]):
    """The values of an earlier audit, and the hashes of its data by data set where they are known.

    Attributes:
        data: hashes by name.
    """

    def __init__(self, points: Values, data: Mapping[str, str] | None = None) -> None:
        super().__init__(points)
        self.data = dict(data or {})

    def others(self, data: Mapping[str, str]) -> dict[str, Reason]:
        """By data set, that it is not the one of the baseline; without those that are."""
        return {
            name: Reason(
                Warn.OTHER_DATA,
                f"the baseline was made of other data called {name}, so how much was tolerated "
                "there says little here; renew it with --update-baseline if the change is meant",
            )
            for name, made in self.data.items()
            if data.get(name, made) != made
        }


def baseline_of(
    frame: pd.DataFrame, scenario_hash: str, version: str, data: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """What ``baseline.json`` holds: the advantage of every attack, by point and seed.

    Args:
        frame: of :func:`vflsec.audit.leakage.results_frame`, with :func:`granted` if that is known.
        scenario_hash, version: to say in a report what the baseline was made from.
        data: hashes by data set, to say where a later audit is of other data.

    Raises:
        ConfigError: no attack has an advantage.
    """
    values = advantages(frame)
    if not values:
        raise ConfigError("baseline: these results hold no advantage to compare with later.")
    points = [
        dict(zip(_KEY, key, strict=True))
        | {"advantage": {c: {str(s): v for s, v in of.items()} for c, of in by_control.items()}}
        for key, by_control in values.items()
    ]
    return {
        "baseline_version": BASELINE_VERSION,
        "vflsec": version,
        "scenario_hash": scenario_hash,
        "data": {k: v for k, v in (data or {}).items() if k in {p["dataset"] for p in points}},
        "points": points,
    }


def granted(frame: pd.DataFrame, attacks: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """Results with what each attack was granted beside known rows, in words (``grants``).

    Args:
        frame: of :func:`vflsec.audit.leakage.results_frame`.
        attacks: what attacks are, by key, as a summary has it; of others nothing is known (None).
    """
    words = [_grants(r, attacks.get(r["attack_key"])) for r in rows_of(frame)]
    return frame.assign(grants=pd.Series(words, index=frame.index, dtype=object))


def _grants(row: Mapping[str, Any], spec: Mapping[str, Any] | None) -> str | None:
    if spec is None:
        return None
    words = [f"{spec['aux_rows']} auxiliary rows"] * bool(spec["aux_rows"])
    words += ["the others' models"] * bool(spec["peer_model"])
    words += ["no class shares"] * (not spec["prior"])
    aimed = bool(row["victim"]) and row["target"] not in OF_THE_LABELS
    return ", ".join([*words, *([f"against {row['victim']}"] if aimed else [])])


def advantages(frame: pd.DataFrame) -> dict[Key, dict[str, dict[int, float]]]:
    """The advantage of every attack by point, control and seed, in its primary metric."""
    rows: dict[Key, list[ResultRow]] = defaultdict(list)
    for r in read_rows(frame):
        if r.is_main and r.role != "control":
            rows[tuple(getattr(r, k) for k in _KEY)].append(r)
    found = {key: result_row.advantages(of)[0] for key, of in rows.items()}
    return {key: of for key, of in found.items() if of}


def _points(frame: pd.DataFrame) -> dict[Key, list[dict[str, Any]]]:
    found: dict[Key, list[dict[str, Any]]] = defaultdict(list)
    for r in _audited(frame):
        if r["attack"] and r["metric"] == r["primary"] and r["status"] == "ok":
            found[_of(r, _KEY)].append(r)
    return found


def _rankings(frame: pd.DataFrame) -> dict[Key, float]:
    """Mean advantage of the answers turned round, by point without its metric."""
    found: dict[Key, list[float]] = defaultdict(list)
    for r in _audited(frame):
        if r["attack"] and ranking(r) and r["status"] == "ok":
            gain = 1 - r["value"] - r["control_value"]
            if gain == gain:
                found[_of(r, _ANSWER)].append(gain)
    return {key: float(np.mean(of)) for key, of in found.items()}


def _audited(frame: pd.DataFrame) -> list[dict[str, Any]]:
    if "role" in frame.columns:
        frame = frame[frame["role"] != "control"]
    return rows_of(frame)


def _of(row: Mapping[str, Any], names: Iterable[str]) -> Key:
    return tuple(None if (x := row.get(k)) != x else x for k in names)


def _same(now: Iterable[Key], before: Iterable[Key]) -> dict[Key, Key]:
    """Points of the baseline with their like now: by the attack's key, else if it is the only one.

    A key also changes with what changes no figure (dosing, an attack's source), and baselines of
    earlier versions have none, or say nothing of grants.
    """
    out = {k: k for k in before if k in set(now)}
    for known in (1, 2):  # by all but the key, and by all but the grants where one side lacks them
        left: dict[Key, list[list[Key]]] = defaultdict(lambda: [[], []])
        for side, keys in enumerate((before, now)):
            for k in keys:
                if k not in (out.values() if side else out):
                    left[k[:-known]][side].append(k)
        pairs = [(old[0], new[0]) for old, new in left.values() if len(old) == len(new) == 1]
        out |= {old: new for old, new in pairs if known == 1 or None in (old[-2], new[-2])}
    return out


def read_baseline(path: Path) -> Baseline:
    """The values by point and seed in a file that :func:`baseline_of` made.

    Raises:
        ConfigError: it is no such file.
    """
    try:
        found = json.loads(read_text(path))
    except (OSError, ValueError, RecursionError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not JSON"
        raise ConfigError(f"{path}: cannot be read as a baseline: {why}. {_ADVICE}") from None
    version = found.get("baseline_version") if isinstance(found, dict) else None
    if version not in _READABLE:
        raise ConfigError(
            f"{path}: baseline_version must be {' or '.join(map(str, _READABLE))}, "
            f"got {version!r}. {_ADVICE}"
        )
    try:
        points = [_read_point(p, version) for p in found["points"]]
        if len(dict(points)) < len(points):
            raise ValueError  # of a file merged by hand the last of two would count
        data = {str(k): str(v) for k, v in found.get("data", {}).items()}
        return Baseline(dict(points), data)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise ConfigError(f"{path}: a point of this baseline is malformed. {_ADVICE}") from None


def _read_point(p: Mapping[str, Any], version: int) -> tuple[Key, dict[str, dict[int, float]]]:
    """One point of a file; in version 1 it has one control without a name.

    Raises:
        ValueError: it is malformed, as do the others that :func:`read_baseline` catches.
    """
    given = {"": p["advantage"]} if version == 1 else p["advantage"]
    of = {str(c): {int(s): float(v) for s, v in by.items()} for c, by in given.items()}
    figures = [v for by_seed in of.values() for v in by_seed.values()]
    if not of or not all(of.values()) or not all(map(math.isfinite, figures)):
        raise ValueError
    grants = p.get("grants")
    if grants is not None and not isinstance(grants, str):
        raise ValueError
    if any(isinstance(p[k], str | bool) for k in ("strength", "known_rows")):
        raise ValueError
    return (*(p[k] for k in _KEY[:-2]), grants, str(p.get("attack_key", ""))), of


def refuse_failed(where: Path | None, frame: pd.DataFrame) -> None:
    """Refuse as a baseline what lacks an attack that was run, for its rise would go unseen.

    Raises:
        ConfigError: an attack has no figure at a place where it, or its training, failed.
    """
    ran = [r for r in _audited(frame) if r["attack"]]
    told = {_of(r, _RAN) for r in ran if r["status"] != "error" and r["value"] == r["value"]}
    for r in ran:
        if r["status"] == "error" and _of(r, _RAN) not in told:
            at = ", ".join(str(x) for x in _of(r, TRAINING) if x is not None)
            raise ConfigError(
                f"{where}: {r['attack']} by {r['adversary']} failed on every seed at [{at}] "
                f"({r['reason']}), so this is no baseline: its rise would go unseen. Mend that or "
                "leave it out of the scenario, and audit again."
            )


def write_baseline(path: Path, audit: Audit) -> None:
    """Keep the advantages of an audit as the file to compare later ones with.

    Raises:
        ConfigError: the audit is unfinished or has no advantage, an attack failed on every seed, or
            the file cannot be written.
    """
    if not audit.summary["complete"]:
        raise ConfigError(
            f"{audit.folder}: not all that was planned is measured, so this is no baseline. "
            "Run the audit again first."
        )
    if path.exists():
        read_baseline(path)  # nothing else is overwritten
    version = audit.summary["versions"]["vflsec"]
    frame = granted(audit.results, audit.summary.get("attacks", {}))
    refuse_failed(audit.folder, frame)
    found = baseline_of(frame, audit.summary["scenario_hash"], version, audit.summary["data"])
    text = json_text(found)
    write_atomic(path, lambda p: p.write_text(text, encoding="utf-8"))


def regressions(
    frame: pd.DataFrame,
    before: Values,
    validated: Validated,
    confidence: float = 0.95,
    points: Sequence[Point] | None = None,
    others: Mapping[str, Reason] | None = None,
) -> list[Verdict]:
    """One verdict for every point of the baseline.

    Args:
        frame: results as they are now, of :func:`vflsec.audit.leakage.results_frame`, with
            :func:`granted` if that is known.
        before: of :func:`read_baseline`.
        validated: of :func:`vflsec.audit.validated.find_validated`.
        confidence: of the one-sided bounds.
        points: summary of `frame`; with it a PASS warns where the system learned nothing.
        others: of :meth:`Baseline.others`; a PASS warns there.
    """
    now, rows = advantages(frame), _points(frame)
    planned: dict[Key, set[int]] = defaultdict(set)
    for r in _audited(frame):
        planned[_of(r, TRAINING)].add(int(r["seed"]))
    lost = _lost(frame)
    worth, reverse = _worth(points), _rankings(frame)
    same, names = _same(now, before), _names(before)
    changes = {k: change(now[other], before[k]) for k, other in same.items()}
    p = intervals.holm([c.p_above_zero() for c in changes.values()])
    alpha = 1 - confidence
    out = []
    for (k, c), x in zip(changes.items(), p, strict=True):
        of = rows[same[k]]
        training = _of(of[0], TRAINING)
        allowed = _allowed(before[k])
        short = _find_shortfall(of, len(planned[training]), len(before[k][least(before[k])]))
        warned = worth.get(training), (others or {}).get(of[0]["dataset"])
        weighed = _Weighed(
            c, allowed, x < alpha, alpha, reverse.get(_of(of[0], _ANSWER), -math.inf),
            str(of[0]["attack"]), validated.get(place_of(of[0]), NO_EVIDENCE),
            short or lost.get(_of(of[0], _MADE)) or _find_any_rise_tolerated(k, allowed),
            tuple(w for w in warned if w is not None),
        )  # fmt: skip
        out.append(_judge(k, weighed, names[k]))
    gone = [
        Verdict.of_nothing(**_asked(k, LEAST, names[k]), rule=Rule.NO_LONGER_MEASURED,
                           reason=_gone(k, now))
        for k in before if k not in same
    ]  # fmt: skip
    if not before:
        reason = "The baseline holds no point, so nothing was compared."
        rule, origin = Rule.NOTHING_SELECTED, Origin.BASELINE
        gone = [Verdict.of_nothing(_gate(LEAST), rule, reason, origin=origin)]
    return out + gone


def _lost(frame: pd.DataFrame) -> dict[Key, Reason]:
    """By attack, that it or its training failed on some seeds."""
    seeds: dict[Key, dict[int, str]] = defaultdict(dict)
    for r in _audited(frame):
        if r["attack"] and r["status"] == "error":
            seeds[_of(r, _MADE)].setdefault(int(r["seed"]), str(r["reason"]))
    return {
        key: Reason(
            Shortfall.FAILED_SEEDS,
            f"it failed on {len(of)} seed{'s' * (len(of) > 1)}: {next(iter(of.values()))}",
        )
        for key, of in seeds.items()
    }


def _worth(points: Sequence[Point] | None) -> dict[Key, Reason | None]:
    """By training, why what passes there tells nothing of a system that works; None if it does."""
    rows = [] if points is None else rows_of(points)
    guessing = verdict_text.Guessing.by_training(rows)
    return {
        _of(r, TRAINING): verdict_text.find_worthless(
            r, _gate(LEAST), guessing.get((r["dataset"], r["algorithm"]))
        )
        for r in rows
        if r["attack"]
    }


def _allowed(before: Mapping[str, Seeds]) -> float:
    old = np.array(list(before[least(before)].values()))
    spread = float(old.std(ddof=1)) if len(old) > 1 else 0.0
    return max(LEAST, SPREAD * spread / math.sqrt(len(old)))


def _find_any_rise_tolerated(key: Key, allowed: float) -> Reason | None:
    """That no rise could be beyond what the baseline's spread tolerates; None if one could be."""
    metric = str(key[_KEY.index("metric")])
    far = reach("advantage", metric)[1]
    if allowed < far:
        return None
    text = (
        f"the baseline's seeds differ so much that any rise is tolerated (an advantage in {metric} "
        f"reaches {far:g}); make one of more seeds"
    )
    return Reason(Shortfall.ANY_RISE_TOLERATED, text)


def _find_shortfall(rows: Sequence[Mapping[str, Any]], planned: int, before: int) -> Reason | None:
    """What is missing from the least evidence for a PASS; None if nothing is.

    A baseline of two seeds tolerates whatever their spread happens to be.
    """
    with_figure = [r for r in rows if r["value"] == r["value"]]
    seeds, fewest = len({r["seed"] for r in with_figure}), min(int(r["n"]) for r in rows)
    if seeds < planned:
        return Reason(Shortfall.MISSING_SEEDS, f"it has a figure on {seeds} of {planned} seeds")
    least_seeds = f"and a pass takes at least {MIN_SEEDS}"
    if seeds < MIN_SEEDS:
        return Reason(Shortfall.FEW_SEEDS, f"it has {seeds} seeds, {least_seeds}")
    if before < MIN_SEEDS:
        text = f"the baseline has {before} seeds of it, {least_seeds}"
        return Reason(Shortfall.BASELINE_FEW_SEEDS, text)
    if fewest < MIN_ROWS:
        text = f"it was scored on {fewest} rows, not {MIN_ROWS} at least"
        return Reason(Shortfall.FEW_ROWS, text)
    return None


@dataclass(frozen=True)
class _Weighed:
    """What the rules look at: how one point changed against the baseline.

    Attributes:
        change: of its advantage.
        allowed: what is tolerated.
        significant: whether it rose above 0 significantly, corrected for all points.
        alpha: level of the bounds.
        reversed: its advantage with labels flipped; minus infinity where there is none.
        attack: its name.
        validation: whether that is shown to work.
        shortfall: what is missing from the least evidence for a PASS.
        warnings: of a PASS.
    """

    change: Change
    allowed: float
    significant: bool
    alpha: float
    reversed: float
    attack: str
    validation: Validation
    shortfall: Reason | None
    warnings: tuple[Reason, ...]

    @property
    def shown(self) -> tuple[str, str]:
        """The change and what is tolerated, with digits that keep their order."""
        return both(self.change.mean, self.allowed, "+.3f")

    @property
    def said(self) -> str:
        """By how much it changed."""
        return (
            f"The advantage of {self.attack} changed by {self.shown[0]} over {self.change.seeds} "
            "seeds"
        )


class _Ruling(NamedTuple):
    verdict: str
    rule: Rule
    reason: str
    more: int | None = None
    detail: str = ""


def _regression(w: _Weighed) -> _Ruling | None:
    if w.change.mean <= w.allowed or not w.significant:
        return None
    return _Ruling(FAIL, Rule.REGRESSION, f"{w.said}; {w.shown[1]} is tolerated.")


def _undecided(w: _Weighed) -> _Ruling | None:
    if w.change.mean <= w.allowed:
        return None
    more = w.change.more_seeds(w.alpha)
    cure = f"about {more} more seeds would decide it" if more else "more seeds are needed"
    beyond = f"beyond the tolerated {w.shown[1]} but not surely above 0"
    return _Ruling(INCONCLUSIVE, Rule.UNDECIDED, f"{w.said}, {beyond}; {cure}.", more)


def _reversed_ranking(w: _Weighed) -> _Ruling | None:
    if w.reversed <= max(w.change.before, 0.0) + w.allowed:
        return None
    reason = f"{w.said}, but it ranks in reverse: turned round it would be {w.reversed:.3f}."
    return _Ruling(INCONCLUSIVE, Rule.REVERSED_RANKING, reason)


def _not_validated(w: _Weighed) -> _Ruling | None:
    if w.validation.validated:
        return None
    why = w.validation
    reason = f"Not shown to be alive, so its silence proves nothing: {w.attack} ({why.text})."
    return _Ruling(INCONCLUSIVE, Rule.NOT_VALIDATED, reason, detail=why.code)


def _underpowered(w: _Weighed) -> _Ruling | None:
    if w.shortfall is None:
        return None
    reason = f"{w.said}, but too little to pass on: {w.shortfall.text}."
    return _Ruling(INCONCLUSIVE, Rule.UNDERPOWERED, reason, detail=w.shortfall.code)


def _within(w: _Weighed) -> _Ruling:
    warned, _ = format_warnings(w.warnings)
    reason = f"{w.said}, within the tolerated {w.shown[1]}."
    reason += f" {warned[0].upper()}{warned[1:]}." if warned else ""
    return _Ruling(PASS, Rule.WITHIN, reason)


_RULES: tuple[Callable[[_Weighed], _Ruling | None], ...] = (
    _regression, _undecided, _reversed_ranking, _not_validated, _underpowered, _within,
)  # fmt: skip
"""The first that speaks decides; the last always does."""


def _judge(key: Key, w: _Weighed, who: str) -> Verdict:
    ruling = next(said for rule in _RULES if (said := rule(w)) is not None)
    warnings = w.warnings if ruling.verdict == PASS else ()
    return Verdict(
        verdict=ruling.verdict, value=w.change.mean, low=w.change.lower(w.alpha),
        high=w.change.upper(w.alpha), threshold=w.allowed, n=w.change.seeds, reason=ruling.reason,
        rule=ruling.rule, detail=ruling.detail, more_seeds=ruling.more,
        warning=format_warnings(warnings)[0], warnings=tuple(w.code for w in warnings),
        **_asked(key, w.allowed, who),
    )  # fmt: skip


def _gone(key: Key, now: Iterable[Key]) -> str:
    name = dict(zip(_KEY, key, strict=True))["attack"]
    other = [k[-2] for k in now if k[:-2] == key[:-2] and k[-2] not in (None, key[-2])]
    if key[-2] is not None and other:
        here, there = other[0] or "nothing", key[-2] or "nothing"
        return (
            f"{name} was granted {there} beside known rows in the baseline and {here} now, which "
            "does not compare. If that is meant, renew the baseline with --update-baseline."
        )
    return (
        f"{name} has a figure in the baseline and none here, so a rise would go unseen. If that is "
        "meant, renew the baseline with --update-baseline."
    )


def _gate(allowed: float, who: str = "", **asked: Any) -> Gate:
    """What a verdict asks, and of which attack by whom, on which rows and after which phase."""
    name = f"advantage{who} does not rise against the baseline"
    return Gate(max=min(allowed, 0.99), name=name, **{k: v for k, v in asked.items() if v})


def _names(before: Iterable[Key]) -> dict[Key, str]:
    """What each point is of, in words: unlike for all points of one training."""
    phases: dict[Key, set[str]] = defaultdict(set)
    for key in before:
        phases[key[: len(TRAINING)]].add(key[_KEY.index("phase")])
    out = {}
    for key in before:
        p = dict(zip(_KEY, key, strict=True))
        who = f" of {p['attack']} by {p['adversary']}"
        who += f" on {p['split']} rows" if p["split"] else ""
        who += f" after {p['phase']}" if len(phases[key[: len(TRAINING)]]) > 1 else ""
        who += f" with {p['known_rows']:g} known rows" if p["known_rows"] else ""
        out[key] = who + (f" ({p['grants']})" if p["grants"] else "")
    return out


def _asked(key: Key, allowed: float, who: str) -> dict[str, Any]:
    """The gate that a point of the baseline is, and where."""
    p = dict(zip(_KEY, key, strict=True))
    attack = {k: p[k] for k in ("attack", "adversary", "phase", "split")}
    where = {k: p[k] for k in TRAINING}
    return {"gate": _gate(allowed, who, **attack), "origin": Origin.BASELINE, **where, **attack}
