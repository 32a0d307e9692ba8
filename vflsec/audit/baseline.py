"""Did leakage rise against stored results? A regression gate on the mean advantage.

A baseline holds the advantage of every attack over every control by seed. The same point (data,
algorithm, defense, strength, phase, adversary, attack, rows, metric) is compared, paired by seed
where both have the seed; attacks that only their grants tell apart are never taken together, and
one that has other grants now than in the baseline is not the same. A rise is beyond what is
tolerated if it exceeds max(0.03, 2.5 sd / sqrt(n)) with the baseline's spread over seeds: libraries
drift, and the noise of a few seeds is no change.

FAIL: beyond that, and above 0 for sure over all controls (:mod:`vflsec.audit.compare`, Holm over
all points). INCONCLUSIVE: beyond that but not for sure, or the attack is gone, failed, is no longer
shown to work, now ranks in reverse, or the evidence is thin as under a gate. PASS: within; it warns
where the baseline is of other data. An attack that was not shown to work then or now gets no
verdict unless it rose, or evidence is missing that would show it.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from vflsec.audit import intervals, result_row, verdict_text
from vflsec.audit.compare import Change, Seeds, compute_change, find_least
from vflsec.audit.gate import (
    MIN_ROWS,
    MIN_SEEDS,
    Gate,
    Origin,
    Reason,
    Rule,
    Ruling,
    Shortfall,
    Verdict,
    Warn,
    format_warnings,
)
from vflsec.audit.gate_candidate import COUNTED, DECIDES
from vflsec.audit.gate_selection import is_selected
from vflsec.audit.metrics import ERROR_REMOVED, find_best, find_reach, metric_name
from vflsec.audit.point import Identity, Point, Training
from vflsec.audit.record import AttackFacts
from vflsec.audit.result_row import ResultRow
from vflsec.audit.rounding import show_both
from vflsec.audit.validated import NO_EVIDENCE, Validated, Validation
from vflsec.errors import ConfigError, format_count
from vflsec.runtime.atomic_files import json_text, read_text, write_atomic
from vflsec.runtime.grouping import group_by
from vflsec.specs import OF_THE_LABELS

if TYPE_CHECKING:
    from vflsec.audit.result import Audit

BASELINE_VERSION = 3
_ADVICE = "Make one with: vflsec gate DIR --baseline FILE --update-baseline"
_RENEW = "If that is meant: --update-baseline."
LEAST = 0.03
SPREAD = 2.5
_WRITTEN = ("dataset", "algorithm", "defense", "strength", "phase", "adversary", "attack",
            "known_rows", "target", "split", "metric", "grants", "attack_key")  # fmt: skip
"""Fields of a key that a baseline has."""


@dataclass(frozen=True, slots=True)
class Key(Identity):
    """Identity of a point of a baseline, which knows neither label nor victim.

    Attributes:
        grants: what the attack was granted beside known rows, in words.
    """

    grants: str = ""

    @classmethod
    def of_row(cls, row: ResultRow) -> Key:
        """That of a row of results."""
        return cls(**row.without("of_label", "victim").as_dict(), grants=row.grants)


Values: TypeAlias = Mapping[Key, Mapping[str, Seeds]]
"""Advantages by point, control and seed."""


class Baseline(dict[Key, Mapping[str, Seeds]]):
    """The values of an earlier audit, and the hashes of its data by data set where they are known.

    Attributes:
        data: hashes by name.
        silent: points whose attack was not shown to work.
    """

    def __init__(
        self, points: Values, data: Mapping[str, str] | None = None, silent: Iterable[Key] = ()
    ) -> None:
        super().__init__(points)
        self.data = dict(data or {})
        self.silent = frozenset(silent)

    def others(self, data: Mapping[str, str]) -> dict[str, Reason]:
        """By data set, that it is not the one of the baseline; without those that are."""
        return {
            name: Reason.warning(Warn.OTHER_DATA, f"{name}; --update-baseline renews it")
            for name, made in self.data.items()
            if data.get(name, made) != made
        }


def make_baseline(of: Baseline, scenario_hash: str, version: str) -> dict[str, Any]:
    """What ``baseline.json`` holds: the advantage of every attack, by point and seed.

    Args:
        of: the values, see :func:`build_baseline`.
        scenario_hash, version: to say in a report what the baseline was made from.

    Raises:
        ConfigError: no attack has an advantage.
    """
    if not of:
        raise _refuse("these results", "no attack has an advantage")
    points = [
        {k: getattr(key, k) for k in _WRITTEN}
        | {"validated": key not in of.silent}
        | {"advantage": {c: {str(s): v for s, v in by.items()} for c, by in by_control.items()}}
        for key, by_control in of.items()
    ]
    return {
        "baseline_version": BASELINE_VERSION,
        "vflsec": version,
        "scenario_hash": scenario_hash,
        "data": {k: v for k, v in of.data.items() if k in {p["dataset"] for p in points}},
        "points": points,
    }


def find_unchanged(now: Values, before: Baseline, data: Mapping[str, str]) -> Values:
    """The figures of a baseline whose points changed by no more than it tolerates, up or down.

    Those of other data, with other controls or with fewer seeds than now are left out.
    """
    others = before.others(data)
    return {
        key: was
        for old, key in _same(now, before).items()
        if (was := before[old]).keys() == (of := now[key]).keys()
        and key.dataset not in others
        and len(was[find_least(was)]) >= len(of[find_least(of)])
        and abs(compute_change(of, was).mean) <= _allowed(was)
    }


def add_grants(rows: Iterable[ResultRow], attacks: Mapping[str, AttackFacts]) -> list[ResultRow]:
    """The rows with what each attack was granted beside known rows, in words (``grants``).

    Args:
        rows: of :func:`vflsec.audit.leakage.complete_rows`.
        attacks: what attacks are, by key.
    """
    return [replace(r, grants=_grants(r, attacks.get(r.attack_key))) for r in rows]


def _grants(row: ResultRow, spec: AttackFacts | None) -> str:
    if spec is None:
        return ""
    words = {
        f"{spec.aux_rows} auxiliary rows": spec.aux_rows,
        "the others' models": spec.peer_model,
        "no class shares": not spec.prior,
        f"against {row.victim}": row.victim and row.target not in OF_THE_LABELS,
    }
    return ", ".join(text for text, about in words.items() if about)


def group_advantages(rows: Iterable[ResultRow]) -> dict[Key, dict[str, dict[int, float]]]:
    """The advantage of every attack by point, control and seed, in its primary metric."""
    every = _audited(rows)
    return _advantages(_main_rows(every), result_row.find_declined(every))


def _advantages(
    rows: Mapping[Key, Sequence[ResultRow]], declined: Mapping[Identity, Collection[int]]
) -> dict[Key, dict[str, dict[int, float]]]:
    found = {key: result_row.read_advantages(of, declined)[0] for key, of in rows.items()}
    return {key: of for key, of in found.items() if of}


def _main_rows(rows: Iterable[ResultRow]) -> dict[Key, list[ResultRow]]:
    """Rows in the metric that verdicts rest on, by point."""
    return group_by((r for r in rows if r.is_main), Key.of_row)


def _rankings(rows: Iterable[ResultRow]) -> dict[Identity, float]:
    """Mean advantage of the answers with their labels flipped, by answer."""
    pairs = (
        (r.answer, (r.control_value if r.chance is None else 1 - r.control_value) - r.value)
        for r in rows
        if r.attack and r.is_ranking and r.status == "ok"
        if r.value is not None and r.control_value is not None
    )  # fmt: skip
    found = group_by(pairs, lambda pair: pair[0])
    return {at: float(np.mean([gain for _, gain in of])) for at, of in found.items()}


def _audited(rows: Iterable[ResultRow]) -> list[ResultRow]:
    return [r for r in rows if r.role != "control"]


def _same(now: Iterable[Key], before: Iterable[Key]) -> dict[Key, Key]:
    """Points of the baseline with their like now: by the attack's key, else if it is the only one.

    A key also changes with what changes no figure (dosing, an attack's source).
    """
    out = {k: k for k in before if k in set(now)}
    old, new = (
        group_by((k for k in keys if k not in out), lambda k: replace(k, attack_key=""))
        for keys in (before, now)
    )
    return out | {of[0]: new[k][0] for k, of in old.items() if len(of) == len(new.get(k, ())) == 1}


def read_baseline(path: Path) -> Baseline:
    """The values by point and seed in a file that :func:`make_baseline` made.

    Raises:
        ConfigError: it is no such file.
    """
    try:
        found = json.loads(read_text(path))
    except (OSError, ValueError, RecursionError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not JSON"
        raise _refuse(path, why, _ADVICE) from None
    version = found.get("baseline_version") if isinstance(found, dict) else None
    if version != BASELINE_VERSION:
        why = f"baseline_version must be {BASELINE_VERSION}, got {version!r}"
        raise _refuse(path, why, _ADVICE)
    try:
        points = [_read_point(p) for p in found["points"]]
        if len(dict(points)) < len(points):
            raise ValueError  # of a file merged by hand the last of two would count
        data = {str(k): str(v) for k, v in found["data"].items()}
        silent = [key for (key, _), p in zip(points, found["points"]) if not p["validated"]]
        return Baseline(dict(points), data, silent)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise _refuse(path, "a point is malformed", _ADVICE) from None


def _refuse(where: object, why: object, cure: str = "") -> ConfigError:
    """The error for what cannot serve as a baseline."""
    return ConfigError(f"{where}: cannot serve as --baseline: {why}. {cure}".rstrip())


def _read_point(p: Mapping[str, Any]) -> tuple[Key, dict[str, dict[int, float]]]:
    """One point of a file.

    Raises:
        ValueError: it is malformed, as do the others that :func:`read_baseline` catches.
    """
    of = {str(c): {int(s): float(v) for s, v in by.items()} for c, by in p["advantage"].items()}
    figures = [v for by_seed in of.values() for v in by_seed.values()]
    if not of or not all(of.values()) or not all(map(math.isfinite, figures)):
        raise ValueError
    if any(isinstance(p[k], str | bool) for k in ("strength", "known_rows")):
        raise ValueError
    if not all(isinstance(p[k], str) for k in ("grants", "attack_key")):
        raise ValueError
    if not isinstance(p["validated"], bool):
        raise ValueError
    return Key(**{k: p[k] for k in _WRITTEN}), of


def refuse_failed(where: Path | None, rows: Iterable[ResultRow]) -> None:
    """Refuse as a baseline what lacks an attack that was run, for its rise would go unseen.

    Raises:
        ConfigError: an attack has no figure at a place where it, or its training, failed.
    """
    ran = [r for r in _audited(rows) if r.attack]
    measured = {r.run.without("phase") for r in ran if r.status != "error" and r.value is not None}
    for r in ran:
        if r.status == "error" and r.run.without("phase") not in measured:
            at = ", ".join(str(x) for x in astuple(r.training) if x is not None)
            why = f"{r.attack} by {r.adversary} failed at [{at}] ({r.reason})"
            raise _refuse(where, why, "Mend it or leave it out, and audit again.")


def build_baseline(audit: Audit) -> Baseline:
    """The values of an audit that is whole, as a file of it would have them.

    Raises:
        ConfigError: an attack failed on every seed, so its rise would go unseen.
    """
    rows = add_grants(audit.rows, audit.found.attacks)
    refuse_failed(audit.folder, rows)
    points = group_advantages(rows)
    silent = {of.place for of in audit.found.alive.values() if not of.validated}
    return Baseline(points, audit.found.data, (k for k in points if k.place in silent))


class Written(NamedTuple):
    """What a baseline file holds.

    Attributes:
        seeds: the fewest behind a figure; :data:`vflsec.audit.gate.MIN_SEEDS` are needed.
        figures: how many it has.
        kept: how many of them are those of the file that was there.
    """

    seeds: int
    figures: int
    kept: int


def write_baseline(path: Path, audit: Audit) -> Written:
    """Keep the advantages of an audit as the file to compare later ones with.

    Of a file that is there, figures that changed by no more than it tolerates are kept: small rises
    add up, however often it is renewed, until they are beyond that.

    Raises:
        ConfigError: the audit is unfinished or has no advantage, an attack failed on every seed, or
            the file cannot be written.
    """
    if not audit.found.complete:
        raise _refuse(audit.folder, "it is not complete", "Run the audit again.")
    before = read_baseline(path) if path.exists() else None  # nothing else is overwritten
    now, about = build_baseline(audit), audit.found
    kept = find_unchanged(now, before, now.data) if before else {}
    values = Baseline({**now, **kept}, now.data, now.silent)
    text = json_text(make_baseline(values, about.scenario_hash, about.versions["vflsec"]))
    write_atomic(path, lambda p: p.write_text(text, encoding="utf-8"))
    seeds = min(len(by_seed) for of in values.values() for by_seed in of.values())
    return Written(seeds, len(values), len(kept))


def judge_regressions(
    results: Iterable[ResultRow],
    before: Baseline,
    validated: Validated,
    confidence: float = 0.95,
    points: Sequence[Point] = (),
    data: Mapping[str, str] | None = None,
    gates: Sequence[Gate] = (),
) -> list[Verdict]:
    """One verdict for every point of the baseline that ever worked, or may hide a rise.

    Args:
        results: as they are now, of :func:`vflsec.audit.leakage.complete_rows`, with
            :func:`add_grants`.
        before: of :func:`read_baseline`.
        validated: of :func:`vflsec.audit.validated.find_validated`.
        confidence: of the one-sided bounds.
        points: summary of `results`; with it a PASS warns where the system learned nothing.
        data: hashes by data set now; where the baseline's are others, a PASS warns.
        gates: judged beside it. What has no room to rise passes where one limits exposed rows.
    """
    every = _audited(results)
    rows = _main_rows(every)
    now = _advantages(rows, result_row.find_declined(every))
    planned = Counter(at for at, _ in {(r.training, r.seed) for r in every})
    lost, worth, reverse = _lost(every), _worth(points), _rankings(every)
    others, limited = before.others(data or {}), _find_limited(points, gates)
    same, names = _same(now, before), _names(before)
    changes = {k: compute_change(now[other], before[k]) for k, other in same.items()}
    p = intervals.holm([c.p_above_zero() for c in changes.values()])
    alpha = 1 - confidence
    out = []
    for (k, c), x in zip(changes.items(), p, strict=True):
        of = rows[same[k]]
        one, allowed = of[0], _allowed(before[k])
        short = _find_shortfall(
            of,
            len(now[same[k]][find_least(now[same[k]])]),
            planned[one.training],
            len(before[k][find_least(before[k])]),
        )
        warned = worth.get(one.training), others.get(one.dataset)
        weighed = _Weighed(
            c, allowed, x < alpha, alpha, reverse.get(one.answer, -math.inf),
            one.attack, validated.get(one.place, NO_EVIDENCE),
            short or lost.get(one.run)
            or _find_any_rise_tolerated(of, c, allowed, is_limited=one.answer in limited),
            tuple(w for w in warned if w is not None),
        )  # fmt: skip
        ruling, quiet = _decide(weighed), k in before.silent and weighed.shortfall is None
        if ruling.rule is not Rule.NOT_VALIDATED or not quiet:
            out.append(_verdict(k, one.identity, weighed, ruling, names[k]))
    gone: list[tuple[Training, Gate, Ruling]] = [
        (k, _ask(k, LEAST, names[k]), Ruling(Rule.NO_LONGER_MEASURED, _gone(k, now)))
        for k in before if k not in same
    ]  # fmt: skip
    if not out and not gone:
        none = Ruling(Rule.NOTHING_SELECTED, "The earlier audit holds no validated attack.")
        gone = [(Training(), _gate(LEAST), none)]
    return out + [Verdict.about(*of, origin=Origin.BASELINE) for of in gone]


def _lost(rows: Iterable[ResultRow]) -> dict[Identity, Reason]:
    """By attack, that it or its training failed on some seeds."""
    failed = group_by((r for r in rows if r.attack and r.status == "error"), lambda r: r.run)
    found = {}
    for run, of in failed.items():
        seeds = format_count(len({r.seed for r in of}), "seed")
        found[run] = Reason(Shortfall.FAILED_SEEDS, f"it failed on {seeds}: {of[0].reason}")
    return found


def _worth(points: Sequence[Point]) -> dict[Training, Reason | None]:
    """By training, why what passes there tells nothing of a system that works; None if it does."""
    guessing = verdict_text.Guessing.by_algorithm(points)
    return {
        p.training: verdict_text.find_worthless(p, _gate(LEAST), guessing.get(p.system))
        for p in points
        if p.attack
    }


def _allowed(before: Mapping[str, Seeds]) -> float:
    old = np.array(list(before[find_least(before)].values()))
    spread = float(old.std(ddof=1)) if len(old) > 1 else 0.0
    return max(LEAST, SPREAD * spread / math.sqrt(len(old)))


def _find_limited(points: Iterable[Point], gates: Iterable[Gate]) -> set[Identity]:
    """Answers of attacks that a gate limits by what stands in where an advantage has no room."""
    deciding = [g for g in gates if g.limits_leaks and g.of in (DECIDES, ERROR_REMOVED)]
    return {p.answer for p in points for g in deciding if p.status == "ok" and is_selected(p, g)}


def _find_any_rise_tolerated(
    rows: Sequence[ResultRow], c: Change, allowed: float, *, is_limited: bool
) -> Reason | None:
    """That no rise could be beyond what is tolerated; None if one could be.

    Beyond what the baseline's spread tolerates, or what the control leaves above the advantage that
    there was. An advantage that was itself beyond what is tolerated is a known leak, and is passed
    where it rises no more.
    """
    metric = rows[0].metric
    far, cure = find_reach("advantage", metric)[1], "is possible. Add seeds to the earlier audit"
    if c.before <= allowed < far:
        gained, own = result_row.read_advantages(rows)
        reached = intervals.mean_of(list(own[find_least(gained)].values()))
        room = abs(find_best(metric) - reached) - c.before
        if room <= allowed:
            if is_limited:
                return None
            decider = DECIDES if rows[0].target in COUNTED else ERROR_REMOVED
            cure = f'is left above its baseline. Add a gate with of = "{decider}"'
            far = max(room, 0.0)
    least, most = show_both(allowed, far, ".3g", ".3g")
    unit = metric_name(metric)
    text = f"no rise could be seen: {least} is tolerated, and at most {most} of {unit} {cure}"
    return None if allowed < far else Reason(Shortfall.ANY_RISE_TOLERATED, text)


def _find_shortfall(
    rows: Sequence[ResultRow], seeds: int, planned: int, before: int
) -> Reason | None:
    """What is missing from the least evidence for a PASS; None if nothing is.

    A baseline of two seeds tolerates whatever their spread happens to be.
    """
    fewest = min(r.n for r in rows)
    return verdict_text.find_lack(
        (Shortfall.MISSING_SEEDS, "it", seeds, planned),
        (Shortfall.FEW_SEEDS, "it", seeds, MIN_SEEDS),
        (Shortfall.BASELINE_FEW_SEEDS, "the earlier audit", before, MIN_SEEDS),
        (Shortfall.FEW_ROWS, "it", fewest, MIN_ROWS),
    )


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
        return show_both(self.change.mean, self.allowed, "+.3f")

    @property
    def said(self) -> str:
        """By how much it changed."""
        return (
            f"The advantage of {self.attack} changed by {self.shown[0]} over {self.change.seeds} "
            "seeds"
        )


def _decide(w: _Weighed) -> Ruling:
    """What the first rule that holds says; their order is the policy."""
    rose, most = w.change.mean > w.allowed, w.shown[1]
    if rose and w.significant:
        return Ruling(Rule.REGRESSION, f"{w.said}; {most} is tolerated.")
    if rose:
        more = w.change.more_seeds(w.alpha)
        cure = verdict_text.format_seeds(more)
        beyond = f"beyond the tolerated {most}, not significant"
        return Ruling(Rule.UNDECIDED, f"{w.said}, {beyond}; {cure}.", more)
    if w.reversed > max(w.change.before, 0.0) + w.allowed:
        flipped = f"but with labels flipped {w.reversed:.3f}"
        return Ruling(Rule.REVERSED_RANKING, f"{w.said}, {flipped}.")
    why = w.validation
    if not why.validated:
        reason = verdict_text.format_not_validated(w.attack, why.text)
        return Ruling(Rule.NOT_VALIDATED, reason, detail=why.code)
    if w.shortfall is not None:
        reason = f"{w.said}, but {w.shortfall.text}."
        return Ruling(Rule.UNDERPOWERED, reason, detail=w.shortfall.code)
    reason = f"{w.said}, within the tolerated {most}.{format_warnings(w.warnings)}"
    return Ruling(Rule.WITHIN, reason, warnings=w.warnings)


def _verdict(key: Key, at: Identity, w: _Weighed, ruling: Ruling, who: str) -> Verdict:
    """The verdict on a point of the baseline, which `at` is called now."""
    return Verdict.about(
        at, _ask(key, w.allowed, who), ruling, value=w.change.mean,
        low=w.change.lower(w.alpha), high=w.change.upper(w.alpha), threshold=w.allowed,
        n=w.change.seeds, origin=Origin.BASELINE,
    )  # fmt: skip


def _gone(key: Key, now: Iterable[Key]) -> str:
    like = (
        k.grants
        for k in now
        if replace(k, attack_key="", grants="") == replace(key, attack_key="", grants="")
    )
    if other := [grants for grants in like if grants != key.grants]:
        here, there = other[0] or "nothing", key.grants or "nothing"
        return f"{key.attack} was granted {there} in the earlier audit and {here} now. {_RENEW}"
    return f"{key.attack} has a figure in the earlier audit and none here. {_RENEW}"


def _gate(allowed: float, who: str = "") -> Gate:
    """What a verdict asks."""
    return Gate(max=min(allowed, 0.99), name=f"no rise since the earlier audit{who}")


def _names(before: Iterable[Key]) -> dict[Key, str]:
    """What each point is of, in words: unlike for all points of one training."""
    trainings = group_by(dict.fromkeys((k.training, k.phase) for k in before), lambda of: of[0])
    out = {}
    for key in before:
        who = f": {key.attack} by {key.adversary}"
        who += f" on {key.split} rows" if key.split else ""
        who += f" after {key.phase}" if len(trainings[key.training]) > 1 else ""
        who += f", {key.known_rows:g} labelled rows" if key.known_rows else ""
        out[key] = who + (f", {key.grants}" if key.grants else "")
    return out


def _ask(key: Key, allowed: float, who: str) -> Gate:
    """The gate that a point of the baseline is: of which attack by whom, on which rows and when."""
    at = {k: x for k in ("attack", "adversary", "phase", "split") if (x := getattr(key, k))}
    return replace(_gate(allowed, who), **at)
