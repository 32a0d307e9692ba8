"""Reads a whole trace as an audit would, and says what it holds or the one thing that is wrong."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vflsec.trace.limits import Limits
from vflsec.trace.manifest import Have
from vflsec.trace.message import Route
from vflsec.trace.missing_rows import find_miscounts
from vflsec.trace.reader import Trace
from vflsec.trace.seal import Passed, count_message, describe_have

__all__ = ["Report", "info", "validate"]


@dataclass
class Report:
    """What a trace holds.

    Attributes:
        trace: opened.
        messages: number of messages by observer.
        last_step: by observer, the last (phase, epoch, step) whose messages are all there.
        notes: what a reader should know, one sentence each.
    """

    trace: Trace
    messages: dict[str, int] = field(default_factory=dict)
    last_step: dict[str, tuple[str, int | None, int | None] | None] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def validate(
    folder: str | Path, limits: Limits | None = None, *, nonfinite: str = "refuse"
) -> Report:
    """Check a trace to the last row; needs memory for one row group at a time.

    Raises:
        TraceError: the first thing that is wrong, where, and what to do.
    """
    trace = Trace.open(folder, limits)
    report = Report(trace)
    for name in trace.observers:
        observer = trace.observer(name)
        seen: dict[Route, Passed] = {}
        kinds: dict[tuple[str, Any, Any], set[tuple[str, str]]] = defaultdict(set)
        count = 0
        for found in observer.messages(nonfinite):
            count_message(seen, found.fields)
            at = (found.phase, found.epoch, found.step)
            kinds[at].add((found.kind, found.sender))
            count += 1
        report.messages[name] = count
        report.last_step[name] = _find_last(kinds)
        _note_miscounts(trace, name, seen, observer.info.have)
        observer.own()
        observer.known()
        for split in observer.info.targets:
            observer.targets(split)
        for party in observer.info.aux:
            observer.aux(party)
        for moment in observer.info.moments:
            observer.updates(moment)
            for entry in moment.models:
                if entry.layers is not None:
                    observer.model(entry)
                else:
                    observer.weights(entry)
    if not trace.observers:
        trace.notes.append("no observer's folder is there: nothing can be audited.")
    report.notes = list(trace.notes)
    return report


def _find_last(kinds: dict[tuple[str, Any, Any], set[tuple[str, str]]]) -> Any:
    """The last training step with as many kinds of messages as the fullest of its phase."""
    full: dict[str, int] = defaultdict(int)
    for (phase, _, step), found in kinds.items():
        if step is not None:
            full[phase] = max(full[phase], len(found))
    whole = [at for at, found in kinds.items() if len(found) == full[at[0]] and at[2] is not None]
    trained = [at for at in whole if at[0] not in ("eval", "predict")]
    return (trained or whole)[-1] if whole else None


def _note_miscounts(
    trace: Trace, name: str, seen: dict[Route, Passed], declared: list[Have]
) -> None:
    if not trace.sealed:
        return
    found = find_miscounts(declared, describe_have(seen, []))
    trace.notes += [f"{name}: {clause}." for clause in found]


def info(folder: str | Path, limits: Limits | None = None) -> dict[str, Any]:
    """What a trace says about itself, as plain values; reads no tables.

    Raises:
        TraceError: it cannot be opened.
    """
    trace = Trace.open(folder, limits, verify=False)
    m = trace.manifest
    return {
        "folder": str(folder),
        "version": m.version,
        "status": m.status,
        "sealed": trace.sealed,
        "framework": f"{m.framework.name} {m.framework.version}".strip(),
        "parties": {p.name: p.role for p in m.parties},
        "rows": m.rows,
        "classes": m.classes,
        "run": m.run.model_dump(),
        "bytes": sum(trace.files.values()),
        "observers": {name: _observer(trace, name) for name in trace.observers},
        "notes": list(trace.notes),
    }


def _observer(trace: Trace, name: str) -> dict[str, Any]:
    found = trace.observer(name).info
    return {
        "complete": found.complete,
        "own": found.own,
        "known_rows": found.known,
        "prior": found.prior is not None,
        "aux": found.aux,
        "moments": [m.phase for m in found.moments],
        "models": sorted({f"{e.party}.{e.part}" for m in found.moments for e in m.models}),
        "have": [h.model_dump() for h in found.have],
    }
