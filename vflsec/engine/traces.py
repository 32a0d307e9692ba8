"""Audits of recorded traces: attacks and controls on their views, then scores against the truth.

The two halves need not be at one place: :func:`infer` is for whoever holds the trace, :func:`score`
for whoever holds the labels. Between them stand frozen guesses.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vflsec import registry
from vflsec.audit.answerable import unanswerable
from vflsec.audit.gate import Gate
from vflsec.audit.leakage import defense_point
from vflsec.audit.scoring import scored
from vflsec.cell import AttackSpec, CellResult, CellSpec, DefenseSpec, Measure, victims
from vflsec.engine.folder import claim, only_ours
from vflsec.engine.record import threats, versions
from vflsec.engine.run import judge
from vflsec.engine.store import Store
from vflsec.errors import ConfigError, ThreatModelError, TraceError
from vflsec.guess import Truth
from vflsec.measure.attack import Answer, Bench, Prepared, prepared
from vflsec.measure.guesses import Frozen, Source, freeze, thaw
from vflsec.report.notebook import Audit
from vflsec.task import Task
from vflsec.trace.apart import validate_apart
from vflsec.trace.limits import Limits
from vflsec.trace.reader import Trace
from vflsec.trace.truth import read_truth
from vflsec.trace.views import Evidence, lacking
from vflsec.view import View, as_needs

__all__ = ["infer", "score", "specs_for"]


def specs_for(
    traces: Sequence[Trace], names: Sequence[str] = (), known_rows: int | None = None
) -> list[AttackSpec]:
    """Every attack that a finished trace can be asked for, by every observer that all traces have.

    Args:
        traces: of one system.
        names: only these attacks; all passive ones if empty.
        known_rows: most labelled rows to use; None takes what all traces grant.

    Raises:
        ConfigError: the traces have no observer in common.
    """
    shared = set(traces[0].observers).intersection(*(t.observers for t in traces))
    if not shared:
        raise ConfigError("the traces have no observer in common, so nothing can be audited.")
    out = []
    for party in sorted(shared):
        infos = [t.observer(party).info for t in traces]
        known = min(i.known for i in infos)
        known = known if known_rows is None else min(known, known_rows)
        aux = min((_aux(t, party) for t in traces), default=0)
        peers = all(
            any(e.party != party for m in i.moments for e in m.models) for i in infos
        )  # fmt: skip
        grants: dict[str, Any] = {
            "adversary": (party,), "known_rows": known, "prior": all(i.prior for i in infos),
        }  # fmt: skip
        for name in names or registry.attacks.names():
            attack = registry.attacks.create(name)
            if attack.policy() is not None or attack.target == "integrity":
                continue
            needs = {n.what for n in as_needs(attack.needs)}
            more: dict[str, Any] = {"aux_rows": aux} if "aux_rows" in needs else {}
            more |= {"peer_model": peers} if "peer_model" in needs else {}
            out.append(AttackSpec(name, **grants, **more))
    return out


def _aux(trace: Trace, party: str) -> int:
    observer = trace.observer(party)
    return min((len(observer.aux(v)[0]) for v in observer.info.aux), default=0)


def infer(
    folders: Sequence[str | Path],
    out: str | Path,
    *,
    attacks: Sequence[str] = (),
    known_rows: int | None = None,
    limits: Limits | None = None,
    nonfinite: str = "refuse",
    models: Mapping[str, Any] | None = None,
    trusted: bool = False,
    progress: Any = lambda *_: None,
) -> Path:
    """Make every attack that the evidence allows, and freeze the guesses; opens no truth.

    Args:
        folders: traces of one system; those that differ in the seed of their run are repetitions.
        out: a new folder for the guesses.
        attacks: only these; all that can be made on a finished trace if empty.
        known_rows: most labelled rows to use.
        limits, nonfinite: as for reading a trace.
        models: {party: factory(schema)} for models that the trace cannot describe.
        trusted: skip the check in a process of its own.
        progress: called with (what is being done, share done).

    Raises:
        TraceError: a trace is damaged.
        ConfigError: the traces are not of one system.
    """
    checks = [
        {} if trusted else validate_apart(f, limits, nonfinite=nonfinite) for f in folders
    ]  # fmt: skip
    traces = [Trace.open(f, limits, verify=trusted) for f in folders]
    _one_system(traces)
    asked = prepared(specs_for(traces, attacks, known_rows))
    answers, sources = [], []
    for i, (trace, found) in enumerate(zip(traces, checks, strict=True)):
        progress(str(trace.folder), i / len(traces))
        answers.append(_answers(trace, asked, nonfinite, models))
        manifest = (trace.folder / "manifest.json").read_bytes()
        sources.append(Source(trace.manifest, hashlib.sha256(manifest).hexdigest()))
        trace.notes += [n for n in found.get("notes", ()) if n not in trace.notes]
    notes = [f"{t.folder.name}: {n}" for t in traces for n in dict.fromkeys(t.notes)]
    return freeze(out, sources, answers, notes)


def _one_system(traces: Sequence[Trace]) -> None:
    first = traces[0].manifest
    seen: dict[Any, Path] = {}
    for trace in traces:
        m = trace.manifest
        if (m.names, m.active, m.classes) != (first.names, first.active, first.classes):
            raise ConfigError(
                f"{trace.folder}: has the parties {', '.join(m.names)} and {m.classes} classes, "
                f"{traces[0].folder} has {', '.join(first.names)} and {first.classes}. Audit one "
                "system at a time."
            )
        key = (m.run.dataset, m.run.algorithm, m.run.defense, m.run.strength, m.run.seed)
        if key in seen:
            raise ConfigError(
                f"{trace.folder} and {seen[key]} say that they are the same run (seed "
                f"{m.run.seed}). Record every repetition with its own seed."
            )
        seen[key] = trace.folder


def _answers(
    trace: Trace, asked: Sequence[Prepared], nonfinite: str, models: Mapping[str, Any] | None
) -> list[Answer]:
    out: list[Answer] = []
    bench = Bench()
    parties = dict.fromkeys(p.spec.adversary for p in asked)
    phases = dict.fromkeys(
        m.phase for (party,) in parties for m in trace.observer(party).info.moments
    )
    for phase in phases:
        here = [
            p for p in asked
            if any(m.phase == phase for m in trace.observer(p.spec.adversary[0]).info.moments)
        ]  # fmt: skip
        pairs = [(p.spec, p.attack) for p in here]
        evidence = Evidence(trace, pairs, phase, models=models, nonfinite=nonfinite)
        bare = [n for n, o in evidence.observers.items() if o.info.own == "none"]
        if bare:
            trace.notes.append(
                f"own columns of {', '.join(bare)} were not recorded, so the only control is the "
                "class majority: what those columns tell by themselves counts as leaked."
            )
        for p in here:
            out += _one(bench, evidence, p, trace.manifest.run.seed)
    return out


def _one(bench: Bench, evidence: Evidence, p: Prepared, seed: int) -> list[Answer]:
    facts = evidence.observers[p.spec.adversary[0]].moment(evidence.phase).facts
    bare = View(
        p.spec.adversary, {}, {}, {}, {}, {},
        facts.facts(evidence.trace.manifest, evidence.phase), {},
    )  # fmt: skip
    try:
        view = evidence.view(p.spec)
        status, why = lacking(evidence, p.spec, p.attack, view)
    except ThreatModelError as refused:
        return [Answer(p, evidence.phase, bare, status="not-applicable", reason=str(refused))]
    if why:
        return [Answer(p, evidence.phase, view, status=status, reason=why)]
    return [a for found in bench.attack(p, [view], [seed], evidence.phase) for a in found]


def score(
    guesses: str | Path,
    truths: Sequence[str | Path],
    out: str | Path,
    *,
    gates: Sequence[Mapping[str, Any]] = (),
    confidence: float = 0.95,
    limits: Limits | None = None,
) -> Audit:
    """Compare frozen guesses with the truth, judge the gates, and write reports as any audit.

    Args:
        guesses: of :func:`infer`.
        truths: of each trace, in the order in which they were given there; one for all if they
            share their rows.
        out: results directory.
        gates: sections as in a scenario.
        confidence: of intervals.

    Raises:
        TraceError: guesses or truth are damaged, or do not belong together.
        ConfigError: a gate cannot be answered by them, or `out` holds files of somebody else.
    """
    only_ours(Path(out))
    frozen = thaw(guesses, limits)
    if len(truths) not in (1, len(frozen.sources)):
        raise ConfigError(
            f"--truth: give one for all traces or one for each of the {len(frozen.sources)}, got "
            f"{len(truths)}."
        )
    found = [read_truth(t, limits) for t in truths]
    found = found * len(frozen.sources) if len(found) == 1 else found
    notes = list(frozen.notes)
    results = [_cell(frozen, i, truth, notes) for i, truth in enumerate(found)]
    attacks = [[a.of for a in of] for of in frozen.answers]
    _answerable(results, gates)
    with claim(Path(out)), Store(Path(out)) as store:
        if store.meta("audit") is not None:
            raise ConfigError(f"{out}: holds an audit already. Give a new folder.")
        store.set_meta("audit", _record(frozen, results, attacks, gates, confidence, notes))
        for result, of in zip(results, attacks, strict=True):
            store.commit(result, list({p.spec.key: p.spec for p in of}.values()))
        return judge(store)


def _answerable(results: Sequence[CellResult], gates: Sequence[Mapping[str, Any]]) -> None:
    """Refuse a gate that no result answers, before anything is written."""
    rows = []
    for result in results:
        defense, strength = defense_point(result.spec.defenses)
        where = {"dataset": result.spec.data["name"], "algorithm": result.spec.algorithm,
                 "defense": defense, "strength": strength}  # fmt: skip
        rows += [
            {**where, "attack": m.attack, "adversary": m.adversary, "phase": m.phase,
             "split": m.split}
            for m in result.measures
        ]  # fmt: skip
    for section in gates:
        for key, _, rule in unanswerable(Gate(**section), rows):
            raise ConfigError(f"gate: {key + ' ' if key else ''}{rule}")


def _cell(frozen: Frozen, i: int, truth: Truth, notes: list[str]) -> CellResult:
    source = frozen.sources[i]
    m, run = source.manifest, source.manifest.run
    bare = run.defense in ("", "none")
    defenses = () if bare else (DefenseSpec(run.defense, strength=run.strength),)
    spec = CellSpec(
        {"name": run.dataset or "trace", "digest": source.digest}, run.algorithm or "recorded",
        defenses=defenses, seed=run.seed,
    )  # fmt: skip
    classes = m.classes or int(truth.values.max(initial=1)) + 1
    if len(truth.rows) and not 0 <= truth.rows.min() <= truth.rows.max() < m.rows:
        raise TraceError(
            f"the truth has row ids {truth.rows.min()}..{truth.rows.max()}; the trace has rows "
            f"0..{m.rows - 1}. It belongs to another trace."
        )
    if truth.values.max(initial=0) >= classes:
        raise TraceError(f"the truth has labels up to {truth.values.max()}; there are {classes}.")
    y = np.full(m.rows, -1, np.int64)
    y[truth.rows] = truth.values
    train = frozen.labelled[i]
    sets = {"labelled": torch.from_numpy(train[y[train] >= 0])}
    task = Task(
        run.dataset, m.names, {}, {}, {}, torch.from_numpy(y), classes, sets, sets["labelled"]
    )
    result = CellResult(spec.key, spec, facts={"parties": list(m.names), "classes": classes})
    lost = 0
    for answer in frozen.answers[i]:
        answer, without = _with_truth(answer, y)
        lost = max(lost, without)
        result.measures += scored(answer, task) if answer.guess is not None else [_none(answer, m)]
    if lost:
        notes.append(f"seed {run.seed}: {lost} rows without a truth are left out.")
    return result


def _with_truth(answer: Answer, y: np.ndarray[Any, Any]) -> tuple[Answer, int]:
    """The answer on rows whose truth is known, and how many are not."""
    if answer.guess is None:
        return answer, 0
    if answer.of.attack.target != "label":
        why = f"no truth about {answer.of.attack.target!r} is in the truth's folder."
        return replace(answer, guess=None, status="not-applicable", reason=why), 0
    kept, lost = {}, 0
    for split, rows in answer.view.targets.items():
        there = torch.from_numpy(y[rows.numpy()] >= 0)
        kept[split], lost = rows[there], lost + int((~there).sum())
    if not any(len(kept.get(s, ())) for s in answer.of.attack.splits):
        why = "no row that it guessed has a truth."
        return replace(answer, guess=None, status="error", reason=why), lost
    return replace(answer, view=replace(answer.view, targets=kept)), lost


def _none(answer: Answer, m: Any) -> Measure:
    spec = answer.of.spec
    whose = victims(answer.of.attack.target, spec.adversary, m.names, spec.victim)
    return Measure(
        answer.phase, "", "", None, adversary="+".join(spec.adversary), attack=spec.label,
        attack_key=spec.key, target=answer.of.attack.target, victim="+".join(whose),
        status=answer.status, reason=answer.reason,
    )  # fmt: skip


def _record(
    frozen: Frozen,
    results: Sequence[CellResult],
    attacks: Sequence[Sequence[Prepared]],
    gates: Sequence[Mapping[str, Any]],
    confidence: float,
    notes: Sequence[str],
) -> dict[str, Any]:
    """What judging needs, in the form that an audit of trainings leaves."""
    every = {p.spec.key: p for of in attacks for p in of}
    return {
        "name": frozen.sources[0].manifest.run.dataset or "trace",
        "scenario_hash": "",
        "scenario_toml": "",
        "confidence": confidence,
        "gates": [dict(g) for g in gates],
        "datasets": {f"audit:{r.key}": r.spec.data["name"] for r in results},
        "algorithms": {f"audit:{r.key}": r.spec.algorithm for r in results},
        "wanted": {
            r.key: list(dict.fromkeys(p.spec.key for p in of))
            for r, of in zip(results, attacks, strict=True)
        },
        "known_rows": {k: p.spec.known_rows for k, p in every.items()},
        "attacks": threats(p.spec for p in every.values()),
        "defenses": {},
        "scenario_file": "",
        "looks": 1,
        "gate_lines": [],
        "when": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S"),
        "data": {r.spec.data["name"]: r.spec.data["digest"] for r in results},
        "refused": [],
        "notes": list(notes),
        "visibility": [],
        "device": "cpu",
        "versions": versions(),
    }
