"""The advantages of an earlier audit, and the file that keeps them for later ones.

A baseline holds the advantage of every attack over every control by seed. The same point (data,
algorithm, defense, strength, phase, adversary, attack, rows, metric) is compared, paired by seed
where both have the seed; attacks that only their grants tell apart are never taken together, and
one that has other grants now than in the baseline is not the same. A rise is beyond what is
tolerated if it exceeds max(0.03, 2.5 sd / sqrt(n)) with the baseline's spread over seeds: libraries
drift, and the noise of a few seeds is no change.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from vflsec.audit import result_row
from vflsec.audit.compare import Seeds, compute_change, find_least
from vflsec.audit.gate import Reason, Warn
from vflsec.audit.point import Identity
from vflsec.audit.record import AttackFacts
from vflsec.audit.result_row import ResultRow
from vflsec.errors import ConfigError
from vflsec.runtime.atomic_files import json_text, read_text, write_atomic
from vflsec.runtime.grouping import group_by
from vflsec.specs import OF_THE_LABELS

if TYPE_CHECKING:
    from vflsec.audit.result import Audit

BASELINE_VERSION = 3
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
        for old, key in match_points(now, before).items()
        if (was := before[old]).keys() == (of := now[key]).keys()
        and key.dataset not in others
        and len(was[find_least(was)]) >= len(of[find_least(of)])
        and abs(compute_change(of, was).mean) <= compute_tolerance(was)
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
    every = list_audited(rows)
    return compute_advantages(group_rows(every), result_row.find_declined(every))


def compute_advantages(
    rows: Mapping[Key, Sequence[ResultRow]], declined: Mapping[Identity, Collection[int]]
) -> dict[Key, dict[str, dict[int, float]]]:
    """Advantages by point, control and seed; `declined` as of `find_declined`."""
    found = {key: result_row.read_advantages(of, declined)[0] for key, of in rows.items()}
    return {key: of for key, of in found.items() if of}


def group_rows(rows: Iterable[ResultRow]) -> dict[Key, list[ResultRow]]:
    """Rows in the metric that verdicts rest on, by point."""
    return group_by((r for r in rows if r.is_main), Key.of_row)


def list_audited(rows: Iterable[ResultRow]) -> list[ResultRow]:
    """Those that are not of a planted leak."""
    return [r for r in rows if r.role != "control"]


def compute_tolerance(before: Mapping[str, Seeds]) -> float:
    """How far an advantage over controls by seed may rise: libraries drift, seeds spread."""
    old = np.array(list(before[find_least(before)].values()))
    spread = float(old.std(ddof=1)) if len(old) > 1 else 0.0
    return max(LEAST, SPREAD * spread / math.sqrt(len(old)))


def match_points(now: Iterable[Key], before: Iterable[Key]) -> dict[Key, Key]:
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
    make = shlex.join(["vflsec", "gate", "DIR", "--baseline", str(path), "--update-baseline"])
    advice = f"To make one of the audit in DIR: {make}"
    try:
        found = json.loads(read_text(path))
    except (OSError, ValueError, RecursionError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not JSON"
        raise _refuse(path, why, advice) from None
    version = found.get("baseline_version") if isinstance(found, dict) else None
    if version != BASELINE_VERSION:
        why = f"baseline_version must be {BASELINE_VERSION}, got {version!r}"
        raise _refuse(path, why, advice)
    try:
        points = [_read_point(p) for p in found["points"]]
        if len(dict(points)) < len(points):
            raise ValueError  # of a file merged by hand the last of two would count
        data = {str(k): str(v) for k, v in found["data"].items()}
        silent = [key for (key, _), p in zip(points, found["points"]) if not p["validated"]]
        return Baseline(dict(points), data, silent)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise _refuse(path, "a point is malformed", advice) from None


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
    ran = [r for r in list_audited(rows) if r.attack]
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
