"""From stored cells to figures, verdicts and findings: the one place that calls the statistics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from vflsec.audit import dosing, leakage
from vflsec.audit import gate as gates
from vflsec.audit.baseline import Baseline, add_grants
from vflsec.audit.baseline_verdicts import judge_regressions
from vflsec.audit.dosing import Dose
from vflsec.audit.findings import Finding, FindingKind, build_findings
from vflsec.audit.judge import judge
from vflsec.audit.multilabel import LabelRow, build_label_findings, by_label
from vflsec.audit.point import Identity, Point, Training
from vflsec.audit.record import ROLES, AuditRecord
from vflsec.audit.result_row import ResultRow
from vflsec.audit.strength_grid import GridRow, build_grid
from vflsec.audit.tradeoff_curves import Curve, Improvement, build_curves, find_improvements
from vflsec.audit.validated import Validated, find_validated
from vflsec.epsilon.claimed_vs_measured import Claimed, judge_claims
from vflsec.specs import CellResult, Claim, number_repeats


@dataclass
class Evaluation:
    """What the stored figures say.

    Attributes:
        rows: one for each measure.
        points: means over seeds with intervals.
        curves: of each defense and attack, with CAP.
        improvements: of trainings over the baseline, if any is named.
        validated: what is shown to work at every place, and the evidence.
        verdicts: of every gate.
        exit_code: of the verdicts; 3 while more cells are to come.
        findings: what was found, see :func:`vflsec.audit.findings.build_findings`.
        partial: more cells are to come.
        over_time: points as the attacks would have been after each epoch.
        dosing: what was found of each planted dose, see :func:`vflsec.audit.dosing.build_curve`.
        labels: of attacks on several labels.
        grid: every training under every gate.
    """

    rows: Sequence[ResultRow]
    points: Sequence[Point]
    curves: Sequence[Curve]
    improvements: Sequence[Improvement] = ()
    validated: Validated = field(default_factory=dict)
    verdicts: Sequence[gates.Verdict] = ()
    exit_code: int = 0
    findings: Sequence[Finding] = ()
    partial: bool = False
    over_time: Sequence[Point] = ()
    dosing: Sequence[Dose] = ()
    labels: Sequence[LabelRow] = ()
    grid: Sequence[GridRow] = ()


def evaluate(
    record: AuditRecord,
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
        partial: more is to come, so judge nothing: whoever stops where some results suit errs more
            often than by one look at all of them.
        also: gates beside those of the scenario. Each has its share of the error where seeds were
            added until gates were decided.
        only: leave the gates of the scenario out.
        before: a baseline that advantages must not exceed, of
            :func:`vflsec.audit.baseline.read_baseline`.
    """
    if partial:
        also, only, before = (), True, None
    confidence, looks, level = record.confidence, record.looks, record.level
    every = leakage.complete_rows(_rows(record, results, ("audit", "reference")))
    own, timed, dosed = _by_moment(every)
    planted = leakage.complete_rows(_rows(record, results, ("control",)))
    points = _with_gaps(record, results, leakage.summarise(own, level, shares=True))
    validated = find_validated(
        points, leakage.summarise(planted, level) or None, level,
        _active(record, results), record.grants, record.classes, record.planted_as,
    )  # fmt: skip
    doses = dosing.build_curve(leakage.summarise(dosed, level), level)
    least = dosing.find_least_dose(doses)
    every_gate = [
        replace(g, confidence=looks.narrow(g.confidence))
        for g in (*(() if only else record.gates), *also)
    ]
    own_systems = {at.system for at, *_ in record.locate(results, "audit")}
    audited = [p for p in points if p.system in own_systems]  # others by a gate that names them
    others: list[gates.Verdict] = []
    if not only:
        others += judge_claims(own, _claims(record, results), confidence, looks.share)
    if before is not None:
        now = add_grants(own, record.attacks)
        others += judge_regressions(now, before, validated, level, points, record.data, every_gate)
    verdicts = [
        v for g in every_gate
        for v in judge(audited if g.algorithm == "*" else points, [g], validated, least)
    ]  # fmt: skip
    verdicts += others
    labels = by_label(own, record.attacks, level)
    found = build_findings(points, verdicts, level, record.grants) if points else []
    of_section = {
        a.section: record.grants[k] for k, a in record.attacks.items() if k in record.grants
    }
    found = [*build_label_findings(labels, of_section), *found, *_idle(record, results)]
    return Evaluation(
        rows=_with_roles(record, every, planted),
        points=points,
        over_time=leakage.summarise(timed, level),
        curves=build_curves(points),
        improvements=find_improvements(points, record.baseline),
        validated=validated,
        verdicts=verdicts,
        exit_code=3 if partial else gates.exit_code(verdicts),
        findings=[] if partial else found,
        partial=partial,
        dosing=doses,
        labels=labels,
        grid=[] if partial else build_grid(audited, every_gate, validated, least, others),
    )


def _by_moment(
    rows: Iterable[ResultRow],
) -> tuple[list[ResultRow], list[ResultRow], list[ResultRow]]:
    """What was measured after each phase, after each of its epochs, and of planted doses."""
    own: list[ResultRow] = []
    timed: list[ResultRow] = []
    dosed: list[ResultRow] = []
    for r in rows:
        (dosed if dosing.MARK in r.phase else timed if "@" in r.phase else own).append(r)
    return own, timed, dosed


def _with_gaps(
    record: AuditRecord, results: Sequence[CellResult], points: list[Point]
) -> list[Point]:
    """The points with why what their adversary was seen to get carries no pass (`gap`)."""
    found: dict[tuple[Training, str], dict[str, set[int]]] = {}
    for at, r, _ in record.locate(results, "audit"):
        for who, clauses in r.facts.gaps.items():
            for clause in clauses:
                found.setdefault((at, who), {}).setdefault(clause, set()).add(r.spec.seed)
    what = "what {} receives" if record.scenario_toml else "what was recorded of {}"
    return [replace(p, gap=_gap(p, found, what)) for p in points] if found else points


def _gap(
    point: Point, found: Mapping[tuple[Training, str], Mapping[str, set[int]]], what: str
) -> str:
    """Why what its adversary receives, or was recorded to, carries no pass; or ''."""
    at = point.training
    of = {c: s for p in point.adversary.split("+") for c, s in found.get((at, p), {}).items()}
    clauses = [f"{c} (seed {', '.join(map(str, sorted(s)))})" for c, s in of.items()]
    start = f"{what.format(point.adversary)} carries no pass: "
    return start + "; ".join(clauses) if clauses else ""


def _rows(
    record: AuditRecord, results: Sequence[CellResult], roles: Sequence[str]
) -> Iterator[ResultRow]:
    for at, result, _ in record.locate(results, *roles):
        yield from leakage.list_rows(
            result, at, known_rows=record.known_rows, of_label=record.of_label
        )


def _active(record: AuditRecord, results: Sequence[CellResult]) -> dict[str, str]:
    """Name of the active party of every data set."""
    every = (of for role in ROLES for of in record.locate(results, role))
    return {at.dataset: r.facts.parties[0] for at, r, _ in every if r.facts.parties}


def _with_roles(
    record: AuditRecord, own: Sequence[ResultRow], planted: Iterable[ResultRow]
) -> list[ResultRow]:
    """All rows; a cell that is both audited and a control is shown once."""
    shown = {r.cell for r in own}
    out = [r if f"audit:{r.cell}" in record.datasets else replace(r, role="reference") for r in own]
    return out + [replace(r, role="control") for r in planted if r.cell not in shown]


def _claims(record: AuditRecord, results: Sequence[CellResult]) -> list[Claimed]:
    """The claimed epsilon of every point and defense; counts differ by seed, so the largest."""
    out: dict[tuple[Training, str], Claimed] = {}
    for at, name, claim in _promises(record, results):
        if claim.called is False:
            out[at, name] = Claimed(**at.as_dict(), idle=name)
        if claim.epsilon is not None:
            before = out.get((at, name), Claimed())
            out[at, name] = Claimed(
                **at.as_dict(), epsilon=max(float(claim.epsilon), before.epsilon or 0.0),
                delta=max(claim.delta, before.delta), by=name, confidence=claim.confidence,
            )  # fmt: skip
    return list(out.values())


def _promises(
    record: AuditRecord, results: Sequence[CellResult]
) -> Iterator[tuple[Training, str, Claim]]:
    """What every defense promises at every audited training, by a name of its own there."""
    for at, result, _ in record.locate(results, "audit"):
        names = number_repeats(claim.defense for claim in result.guarantees)
        yield from ((at, *of) for of in zip(names, result.guarantees, strict=True))


def _idle(record: AuditRecord, results: Sequence[CellResult]) -> list[Finding]:
    """Which defenses are there by name alone."""
    out: dict[str, Finding] = {}
    for at, _, claim in _promises(record, results):
        if claim.idle:
            text = (
                f"{claim.defense} did nothing on {at.dataset} under {at.algorithm}: none of its "
                "hooks changed anything there, and figures beside it are those without it."
            )
            where = Identity(at.dataset, at.algorithm, claim.defense)
            out[text] = Finding(FindingKind.DEFENSE_IDLE, text, where)
    return list(out.values())
