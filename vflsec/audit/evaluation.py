"""What the stored figures say, and what it cost to get them, as values."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import pandas as pd

from vflsec.specs import CellResult

if TYPE_CHECKING:
    from vflsec.audit.dosing import Dose
    from vflsec.audit.findings import Finding
    from vflsec.audit.gate import Gate, Verdict
    from vflsec.audit.point import Point, Training
    from vflsec.audit.record import AuditRecord
    from vflsec.audit.tradeoff_curves import Curve
    from vflsec.audit.validated import Validated

__all__ = ["Evaluation", "costs", "made_before"]


@dataclass
class Evaluation:
    """What the stored figures say.

    Attributes:
        frame: one row for each measure, with ``role`` (``audit``, ``reference``, ``control``).
        points: means over seeds with intervals.
        curves: of each defense and attack, with CAP.
        validated: what is shown to work at every place, and the evidence.
        verdicts: of every gate.
        exit_code: of the verdicts.
        findings: what was found, see :func:`vflsec.audit.findings.build_findings`.
        partial: more cells are to come.
        asked: the gates of the scenario, in its order.
        over_time: points as the attacks would have been after each epoch.
        dosing: what was found of each planted dose, see :func:`vflsec.audit.dosing.curve`.
        labels: of several labels the mean and the most told, see
            :func:`vflsec.audit.multilabel.by_label`.
    """

    frame: pd.DataFrame
    points: Sequence[Point]
    curves: Sequence[Curve]
    validated: Validated = field(default_factory=dict)
    verdicts: Sequence[Verdict] = ()
    exit_code: int = 0
    findings: Sequence[Finding] = ()
    partial: bool = False
    asked: Sequence[Gate] = ()
    over_time: Sequence[Point] = ()
    dosing: Sequence[Dose] = ()
    labels: Sequence[Mapping[str, Any]] = ()
    grid: Sequence[Mapping[str, Any]] = ()


def made_before(made: Iterable[Mapping[str, str]], now: Mapping[str, str]) -> str:
    """What trainings were made with, where that is not what runs now; or ''.

    Args:
        made: versions by name, of each training.
        now: the same of the audit.
    """
    found: dict[str, dict[str, None]] = {k: {} for k in now}
    for of in made:
        for name in now:
            if of.get(name, now[name]) != now[name]:
                found[name][of[name]] = None
    said = [f"{k} {', '.join(v)} ({now[k]} now)" for k, v in found.items() if v and k != "code"]
    return ", ".join([*said, *(["other code of vflsec"] if found.get("code") else [])])


def costs(record: AuditRecord, results: Sequence[CellResult]) -> list[dict[str, Any]]:
    """What each point cost: seconds and traffic by direction, means over its seeds."""
    by_point: dict[tuple[str, Training], list[CellResult]] = defaultdict(list)
    for result in results:
        for role in ("audit", "reference", "control"):
            if (training := record.training(role, result)) is not None:
                by_point[role, training].append(result)
                break
    return [
        {"role": role}
        | asdict(training)
        | {
            "cells": len(of),
            "seconds": sum(r.seconds for r in of) / len(of),
            "traffic": _traffic(of),
            "unread": sorted({(k, n) for r in of for k, n in r.facts.get("unread", ())}),
            "undeclared": sorted({tuple(x) for r in of for x in r.facts.get("undeclared", ())}),
            "encryption": _encryption(of),
            "guarantees": _weakest(of),
        }
        for (role, training), of in by_point.items()
    ]


def _weakest(of: Sequence[CellResult]) -> list[Mapping[str, Any]]:
    """What every cell of a point promises, defense by defense: counts differ by seed, so that it is
    the largest epsilon, and none where one cell claims none.
    """

    def weak(g: Mapping[str, Any]) -> tuple[bool, float]:
        return g.get("epsilon") is None, g.get("epsilon") or 0.0

    return [max(each, key=weak) for each in zip(*(r.guarantees for r in of), strict=True)]


def _encryption(of: Sequence[CellResult]) -> dict[str, float]:
    """Seconds by operation that ciphertexts took, mean over cells; empty where none was made."""
    found: dict[str, float] = defaultdict(float)
    for result in of:
        for what, seconds in result.facts.get("he.seconds", {}).items():
            found[what] += seconds / len(of)
    return dict(found)


def _traffic(of: Sequence[CellResult]) -> list[dict[str, Any]]:
    total: dict[tuple[str, ...], list[float]] = defaultdict(lambda: [0.0] * 4)
    for result in of:
        for row in result.ledger:
            sums = total[row.phase, row.kind, row.name, row.sender, row.receiver]
            for i, value in enumerate((row.messages, row.elements, row.bytes, row.rounds)):
                sums[i] += value / len(of)
    names = ("phase", "kind", "name", "sender", "receiver")
    units = ("messages", "elements", "bytes", "rounds")
    return [
        dict(zip(names, key, strict=True)) | dict(zip(units, sums, strict=True))
        for key, sums in total.items()
    ]
