"""From stored cells to figures, verdicts and findings: the one place that calls the statistics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import pandas as pd

from vflsec.audit import dosing, leakage
from vflsec.audit import gate as gates
from vflsec.audit.baseline import Baseline, granted, regressions
from vflsec.audit.evaluation import Evaluation, title_of
from vflsec.audit.findings import Finding, FindingKind, Location, build_findings
from vflsec.audit.judge import judge
from vflsec.audit.multilabel import by_label, in_words
from vflsec.audit.point import Point, Training
from vflsec.audit.strength_grid import grid
from vflsec.audit.tradeoff_curves import curves
from vflsec.audit.validated import find_validated
from vflsec.epsilon import claimed_vs_measured
from vflsec.specs import CellResult, told_apart

__all__ = ["evaluate"]


def evaluate(
    record: Mapping[str, Any],
    results: Sequence[CellResult],
    *,
    partial: bool = False,
    also: Sequence[gates.Gate] = (),
    only: bool = False,
    before: Baseline | None = None,
) -> Evaluation:
    """Judge stored cells.

    Args:
        record: what the store keeps about the audit.
        results: its finished cells.
        partial: leave the gates out.
        also: gates beside those of the scenario; where seeds were added until gates were decided,
            these too take their share of the error.
        only: leave the gates of the scenario out.
        before: a baseline that advantages must not exceed, of
            :func:`vflsec.audit.baseline.read_baseline`.
    """
    confidence = float(record["confidence"])
    looks = int(record.get("looks", 1))
    strict = 1 - (1 - confidence) / looks
    made = list(_records(record, results, ("audit", "reference")))
    every = leakage.results_frame(made)
    moments = every.phase.str.contains("@") if len(every) else pd.Series(dtype=bool)
    own, timed = (every[~moments], every[moments]) if len(every) else (every, every)
    marked = timed.phase.str.contains(dosing.MARK, regex=False) if len(timed) else moments[:0]
    doses, timed = (timed[marked], timed[~marked]) if len(timed) else (timed, timed)
    planted = leakage.results_frame(_records(record, results, ("control",)))
    points = _with_gaps(record, results, leakage.summarise(own, confidence))
    control = leakage.summarise(planted, confidence) or None
    found_curves = curves(points) if points else pd.DataFrame()
    grants = record.get("grants", {})
    sides, classes = _active(record, results), record.get("classes", {})
    as_ = record.get("planted_as", {})
    validated = find_validated(points, control, confidence, sides, grants, classes, as_)
    found = dosing.curve(leakage.summarise(doses, confidence), confidence) if len(doses) else []
    asked = [] if only else [_gate(g, confidence, looks) for g in record["gates"]]
    least = dosing.least_found(found)
    every_gate = [*asked, *(_shared(g, looks) for g in also)]
    rows = _gated(record, results, points)
    verdicts = [] if partial else [
        v for g in every_gate
        for v in judge(rows if g.algorithm == "*" else points, [g], validated, least)
    ]  # fmt: skip
    beside: list[gates.Verdict] = []
    if not partial and not only:
        notes = [made[i]["notes"] for i in own.index]
        heard = own.assign(
            claimant=[str(n.get("defense", "")) for n in notes],
            undefended=[n.get("undefended") for n in notes],
            looks=[n.get("looks") for n in notes],
            sure=[n.get("confidence") for n in notes],
        )
        beside += claimed_vs_measured.contradictions(
            heard, _claims(record, results), confidence, looks
        )
    if before is not None:
        now = granted(own, record.get("attacks", {}))
        others = before.others(record["data"])
        beside += regressions(now, before, validated, strict, points, others)
    verdicts += beside
    told = by_label(own, record.get("attacks", {}), confidence) if len(own) else []
    found_out = [] if partial or not len(points) else build_findings(points, verdicts, confidence)
    said = [] if partial else [*in_words(told), *found_out, *_idle(record, results)]
    return Evaluation(
        frame=_with_roles(record, every, planted),
        points=points,
        over_time=leakage.summarise(timed, confidence),
        curves=found_curves,
        validated=validated,
        verdicts=verdicts,
        exit_code=gates.exit_code(verdicts),
        findings=said,
        partial=partial,
        asked=asked,
        dosing=found,
        labels=told,
        grid=[] if partial else grid(rows, every_gate, validated, least, beside),
    )


def _with_gaps(
    record: Mapping[str, Any], results: Sequence[CellResult], points: list[Point]
) -> list[Point]:
    """The points with why what their adversary was seen to get carries no pass (`gap`)."""
    found: dict[tuple[Training, str], dict[str, set[int]]] = {}
    for r in results:
        dataset = record["datasets"].get(f"audit:{r.key}")
        if dataset is None:
            continue
        title = title_of(record, "audit", r)
        at = Training(dataset, title, *leakage.defense_point(r.spec.defenses))
        for who, clauses in r.facts.get("gaps", {}).items():
            for clause in clauses:
                found.setdefault((at, who), {}).setdefault(clause, set()).add(r.spec.seed)
    return [replace(p, gap=_gap(p, found)) for p in points] if found else points


def _gap(point: Point, found: Mapping[tuple[Training, str], Mapping[str, set[int]]]) -> str:
    """Why what was recorded of its adversary carries no pass, or ''."""
    at = point.training
    of = {c: s for p in point.adversary.split("+") for c, s in found.get((at, p), {}).items()}
    clauses = [f"{c} (seed {', '.join(map(str, sorted(s)))})" for c, s in of.items()]
    start = f"what was recorded of {point.adversary} carries no pass: "
    return start + "; ".join(clauses) if clauses else ""


def _gated(
    record: Mapping[str, Any], results: Sequence[CellResult], points: Sequence[Point]
) -> list[Point]:
    """The points of what is audited: a reference is judged only by a gate that names it."""
    own = {
        (record["datasets"][f"audit:{r.key}"], title_of(record, "audit", r))
        for r in results
        if f"audit:{r.key}" in record["datasets"]
    }
    return [p for p in points if (p.dataset, p.algorithm) in own]


def _records(
    record: Mapping[str, Any], results: Sequence[CellResult], roles: Sequence[str]
) -> Iterator[dict[str, Any]]:
    for result in results:
        for role in roles:
            dataset = record["datasets"].get(f"{role}:{result.key}")
            if dataset is None:
                continue
            algorithm = title_of(record, role, result)
            for row in leakage.records(result):
                known = record["known_rows"].get(row["attack_key"])
                label = record.get("of_label", {}).get(row["attack_key"], "")
                yield row | {
                    "dataset": dataset, "algorithm": algorithm, "known_rows": known,
                    "of_label": label,
                }  # fmt: skip
            break


def _active(record: Mapping[str, Any], results: Sequence[CellResult]) -> dict[str, str]:
    """Name of the active party of every data set."""
    out: dict[str, str] = {}
    for result in results:
        parties = result.facts.get("parties", ())
        for role in ("audit", "reference", "control"):
            dataset = record["datasets"].get(f"{role}:{result.key}")
            if dataset is not None and parties:
                out.setdefault(dataset, str(parties[0]))
    return out


def _with_roles(
    record: Mapping[str, Any], own: pd.DataFrame, planted: pd.DataFrame
) -> pd.DataFrame:
    """Both frames in one; a cell that is both audited and a control is shown once."""
    here = own.assign(
        role=["audit" if f"audit:{c}" in record["datasets"] else "reference" for c in own["cell"]]
    )
    there = planted[~planted["cell"].isin(set(own["cell"]))].assign(role="control")
    both = [f for f in (here, there) if len(f)]
    return pd.concat(both, ignore_index=True) if both else here


def _gate(section: Mapping[str, Any], confidence: float, looks: int = 1) -> gates.Gate:
    """A gate of the scenario; each of several looks at it gets its share of the error."""
    known = {f.name for f in fields(gates.Gate)}
    given = {"confidence": confidence} | {k: v for k, v in section.items() if k in known}
    return _shared(gates.Gate(**given), looks)


def _shared(gate: gates.Gate, looks: int) -> gates.Gate:
    return replace(gate, confidence=1 - (1 - gate.confidence) / looks)


def _claims(record: Mapping[str, Any], results: Sequence[CellResult]) -> list[dict[str, Any]]:
    """The claimed epsilon of every point and defense; counts differ by seed, so the largest."""
    out: dict[tuple[Any, ...], dict[str, Any]] = {}
    for result in results:
        dataset = record["datasets"].get(f"audit:{result.key}")
        if dataset is None:
            continue
        defense, strength = leakage.defense_point(result.spec.defenses)
        title = title_of(record, "audit", result)
        point = {"dataset": dataset, "algorithm": title, "defense": defense, "strength": strength}
        names = told_apart(g.get("defense", "") for g in result.guarantees)
        for name, g in zip(names, result.guarantees, strict=True):
            key = (*point.values(), name)
            if g.get("called") is False:
                out[key] = point | {"epsilon": None, "idle": name}
            if g.get("epsilon") is not None:
                before = out.get(key, {})
                best = max(float(g["epsilon"]), before.get("epsilon") or 0.0)
                delta = max(float(g.get("delta") or 0.0), before.get("delta") or 0.0)
                sure = {"confidence": g["confidence"]} if "confidence" in g else {}
                chances = g.get("chance"), before.get("chance", 0.0)
                chance = None if None in chances else max(chances)
                more = {"delta": delta, "by": name, "chance": chance}
                out[key] = point | {"epsilon": best} | more | sure
    return list(out.values())


def _idle(record: Mapping[str, Any], results: Sequence[CellResult]) -> list[Finding]:
    """Which defenses are there by name alone."""
    out: dict[str, Finding] = {}
    for result in results:
        dataset = record["datasets"].get(f"audit:{result.key}")
        for g in result.guarantees if dataset is not None else ():
            if g.get("idle"):
                title = title_of(record, "audit", result)
                text = (
                    f"{g['defense']} did nothing on {dataset} under {title}: none of its hooks "
                    "changed anything there, and figures beside it are those without it."
                )
                where = Location(dataset, title, g["defense"])
                out[text] = Finding(FindingKind.DEFENSE_IDLE, text, where)
    return list(out.values())
