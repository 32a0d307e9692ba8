"""Frozen guesses against the truth: the label owner's half of an audit of recorded traces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vflsec.audit.gate import Gate
from vflsec.audit.gate_selection import list_measured, list_unanswerable
from vflsec.audit.leakage import complete_rows, defense_point, list_rows
from vflsec.audit.point import UNDEFENDED, Grants
from vflsec.audit.record import AuditRecord
from vflsec.audit.result_row import ResultRow
from vflsec.audit.scoring import make_unscored, score_answer
from vflsec.audit.truth import SCORED
from vflsec.config.scenario import load_gates
from vflsec.core import check
from vflsec.core.algorithm import Algorithm
from vflsec.core.guess import Truth
from vflsec.core.quantity_questions import find_unclear
from vflsec.core.task import Task
from vflsec.engine import trace_positive_control
from vflsec.engine.audit_record import list_families, list_threats, list_versions
from vflsec.engine.epsilon_observed_labels import make_guarantee, measure_epsilon
from vflsec.engine.evaluate_store import judge
from vflsec.engine.tune_advice import list_acting
from vflsec.errors import ConfigError, TraceError
from vflsec.label import Classes, make_label
from vflsec.measure.attack import Answer
from vflsec.measure.guess_files import Frozen, Source, thaw
from vflsec.measure.prepared import Prepared
from vflsec.plugins import registry
from vflsec.report.notebook import Audit
from vflsec.specs import CellFacts, CellResult, CellSpec, DefenseSpec, list_victims
from vflsec.storage.results_folder import claim, only_ours
from vflsec.storage.store import Store
from vflsec.trace.leaves import name_trees
from vflsec.trace.limits import Limits
from vflsec.trace.manifest import ClaimedPrivacy, Manifest
from vflsec.trace.tables import check_rows, hash_grant
from vflsec.trace.truth import Hidden, KnownTruth, read_truth
from vflsec.trees.profiles import PROFILES

_TELLS = 0.99  # a control beyond which nothing is left to be found
_BY = ("auc", "accuracy", "concordance")  # in these metrics


def score(
    guesses: str | Path,
    truths: Sequence[str | Path],
    out: str | Path,
    *,
    attacks: Sequence[str] = (),
    gates: Sequence[Mapping[str, Any] | Gate] = (),
    confidence: float = 0.95,
    claimed: tuple[float, float] | None = None,
    tau: float = 0.0,
    limits: Limits | None = None,
) -> Audit:
    """Compare frozen guesses with the truth, judge the gates, and write reports as any audit.

    Args:
        guesses: of :func:`infer`.
        truths: of each trace, in the order in which they were given there; one for all if they
            share their rows.
        out: results directory.
        attacks: only the guesses of these; all if empty. Fewer take fewer traces to be validated
            (:func:`vflsec.audit.validated.find_least_gain`): choose before any score is seen.
        gates: sections as in a scenario, or what they were read as.
        confidence: of intervals.
        claimed: (epsilon, delta) of the labels that is claimed; None takes what the traces say.
            It is checked against class shares in the truth, see :func:`write_truth`.
        tau: bound of the log odds by which those class shares may be off.

    Raises:
        ConfigError: a claim is given and the truth is a quantity or has no class shares.
        TraceError: guesses or truth are damaged, or do not belong together.
        ConfigError: a gate cannot be answered by them, or `out` holds files of somebody else.
    """
    only_ours(Path(out))
    asked = tuple(
        g for of in gates for g in ([of] if isinstance(of, Gate) else load_gates([of], confidence))
    )
    frozen = _choose(thaw(guesses, limits), attacks)
    if len(truths) not in (1, len(frozen.sources)):
        raise ConfigError.must("--truth", f"be one or {len(frozen.sources)}", len(truths))
    check.non_negative("tau", tau)
    found = [read_truth(t, limits) for t in truths]
    if claimed is not None and any(t.labels.target != Classes.target for t in found):
        raise ConfigError("--claimed-epsilon: is for classes, not a quantity. Leave it out.")
    if claimed is not None and not all(t.shares for t in found):
        raise ConfigError(
            f"--claimed-epsilon: {_NO_SHARES}. Run vflsec.write_truth(..., shares="
            "vflsec.epsilon.randomised_labels.cross_shares(columns, labels, classes))."
        )
    found = found * len(frozen.sources) if len(found) == 1 else found
    notes = list(frozen.notes)
    audited = [
        _Scored(_score_trace(frozen, i, truth, notes, claimed, tau), [a.of for a in of])
        for i, (truth, of) in enumerate(zip(found, frozen.answers, strict=True))
    ]
    rows = [row for s in audited for row in list_rows(s.result)]
    _refuse_unanswerable(asked, rows)
    controls = _score_controls(frozen, audited, rows, confidence)
    record = _make_record(frozen, audited, controls, asked, confidence, notes)
    # One transaction: a score that is killed leaves nothing that a second one would be refused for.
    with claim(Path(out)), Store(Path(out)) as store, store.transaction():
        if store.meta("audit") is not None:
            raise ConfigError.taken(out, "an audit")
        store.keep(record)
        for s in [*audited, *controls]:
            store.commit(s.result, list({p.spec.key: p.spec for p in s.asked}.values()))
        return judge(store)


def _choose(frozen: Frozen, attacks: Sequence[str]) -> Frozen:
    """The guesses of these attacks, with a note on what was left out; of all if none is named."""
    if not attacks:
        return frozen
    there = dict.fromkeys(a.of.spec.name for of in frozen.answers for a in of)
    names = {check.one_of("--attack", name, there) for name in attacks}

    def kept(of: Sequence[Answer]) -> list[Answer]:
        return [a for a in of if a.of.spec.name in names]

    planted = {i: replace(p, answers=kept(p.answers)) for i, p in frozen.planted.items()}
    left = [name for name in there if name not in names]
    notes = [f"not scored (--attack): {', '.join(left)}."] if left else []
    return replace(
        frozen, answers=[kept(of) for of in frozen.answers], planted=planted,
        notes=[*frozen.notes, *notes],
    )  # fmt: skip


class _Scored(NamedTuple):
    """What was measured on a trace, or on a leak that was planted over it, by which attacks."""

    result: CellResult
    asked: Sequence[Prepared]

    @property
    def classes(self) -> int:
        return self.result.facts.classes


def _score_controls(
    frozen: Frozen, audited: Sequence[_Scored], rows: Sequence[ResultRow], confidence: float
) -> list[_Scored]:
    """What attacks found of leaks that were planted, where that says something."""
    every = [p for s in audited for p in s.asked]
    shown = trace_positive_control.find_shown(rows, every, confidence)
    out = []
    for i, of in frozen.planted.items():
        kept = [a for a in of.answers if "+".join(a.of.spec.adversary) in shown]
        if kept:
            classes = audited[i].classes
            m, name = frozen.sources[i].manifest, trace_positive_control.NAME
            y = _read_planted(of.truth, m, classes)
            spec = CellSpec(
                {"name": name, "digest": frozen.sources[i].digest},
                audited[i].result.spec.algorithm, seed=m.run.seed,
            )  # fmt: skip
            task = _build_task(name, m.names, y, classes, of.truth.rows)
            facts = CellFacts(parties=tuple(m.names), classes=classes)
            result = CellResult(spec.key, spec, ledger=[], facts=facts)
            result.measures += [measure for a in kept for measure in score_answer(a, task)]
            out.append(_Scored(result, [a.of for a in kept]))
    return out


def _read_planted(truth: Truth, m: Manifest, classes: int) -> NDArray[Any]:
    """Planted labels by row, -1 where there is none.

    Raises:
        TraceError: a row that the trace does not have, or a label that is none.
    """
    check_rows("answers.json", truth.rows, m.rows)
    low, high = truth.values.min(initial=0), truth.values.max(initial=0)
    label = make_label(classes)
    odd = not np.isfinite([low, high]).all() if label.floating else low < 0 or high >= classes
    if odd or truth.target != label.target:
        raise TraceError.between("answers.json: planted labels", 0, classes - 1, f"{low} to {high}")
    y = np.full(int(truth.rows.max(initial=-1)) + 1, -1, truth.values.dtype)
    y[truth.rows] = truth.values
    return y


def _refuse_unanswerable(asked: Sequence[Gate], rows: Sequence[ResultRow]) -> None:
    """Refuse a gate that no result answers, if there are any, before any writing."""
    points = list_measured(complete_rows(rows))
    for wrong in (w for g in asked if points for w in list_unanswerable(g, points)):
        raise ConfigError(f"gate: {wrong.key + ' ' if wrong.key else ''}{wrong.rule}")


def _score_trace(
    frozen: Frozen, i: int, told: KnownTruth, notes: list[str],
    claimed: tuple[float, float] | None, tau: float,
) -> CellResult:  # fmt: skip
    truth = told.labels
    source = frozen.sources[i]
    m, run = source.manifest, source.manifest.run
    bare = run.defense in ("", "none")
    defenses = () if bare else (DefenseSpec(run.defense, strength=run.strength),)
    spec = CellSpec(
        {"name": run.dataset or "trace", "digest": source.digest}, run.algorithm or "recorded",
        defenses=defenses, seed=run.seed,
    )  # fmt: skip
    classes = _check_truth(told, m)
    label = make_label(classes)
    n = _find_extent(frozen, i, told)
    y = np.full(n, label.missing, truth.values.dtype)
    y[truth.rows] = truth.values
    there = np.zeros(n, bool)
    there[truth.rows] = True
    _check_grants(source, y, there, run.seed, notes)
    train = frozen.labelled[i]
    train = train if there[train].any() else truth.rows  # of predictions alone, say
    task = _build_task(run.dataset, m.names, y, classes, train[there[train]])
    known = _Known(task, told.hidden, torch.from_numpy(train))
    facts = CellFacts(
        parties=tuple(m.names), classes=classes, unread=tuple(source.unread),
        gaps={party: tuple(why) for party, why in source.gaps.items()},
    )  # fmt: skip
    result = CellResult(spec.key, spec, ledger=list(source.ledger), facts=facts)
    lost, judged = 0, []
    for answer in frozen.answers[i]:
        answer, against, without = known.match(answer)
        lost = max(lost, without)
        if answer.guess is None:
            missing = make_unscored(answer.of, answer.phase, m.names, answer.status, answer.reason)
            result.measures.append(missing)
            continue
        judged.append(answer)
        result.measures += score_answer(answer, against)
    said = m.claim if claimed is None else ClaimedPrivacy(epsilon=claimed[0], delta=claimed[1])
    why = "" if said is None else _check_claim(result, judged, y, told, said, tau)
    whys = [*([why] if why else []), *_describe_revealed(result)]
    notes += [f"seed {run.seed}: {text}" for text in whys]
    if lost:
        notes.append(f"seed {run.seed}: {lost} rows without a truth are left out.")
    return result


def _check_truth(told: KnownTruth, m: Manifest) -> int:
    """Number of classes (1 of a quantity); a truth of another trace is refused."""
    truth = told.labels
    if truth.target != m.label.target:
        mine, other = ("a quantity", "classes")[:: 1 if m.label.floating else -1]
        remedy = "Use write_truth(..., quantity=True) for traces with classes=1."
        raise TraceError.must("the truth's label", f"be {mine} as in the trace", other, remedy)
    classes = m.classes or int(truth.values.max(initial=1)) + 1
    for ids in (truth.rows, *(h.rows for h in told.hidden.values()), *(told.shares or ())[:1]):
        check_rows("the truth", ids, m.rows)
    label = make_label(classes)
    if not label.floating and truth.values.max(initial=0) >= classes:
        raise TraceError.between("labels of the truth", 0, classes - 1, truth.values.max())
    return classes


_NO_SHARES = "the truth has no class shares"


def _check_claim(
    result: CellResult, judged: Sequence[Answer], y: NDArray[Any], told: KnownTruth,
    said: ClaimedPrivacy, tau: float,
) -> str:  # fmt: skip
    """Hold a claimed epsilon against the guesses; why that says little, or ''."""
    said_so = f"claimed epsilon {said.epsilon:g} not checked:"
    if make_label(result.facts.classes).floating:
        return f"{said_so} it needs classes."
    if told.shares is None:
        return f"{said_so} {_NO_SHARES}."
    rows, shares = told.shares
    q = np.full((len(y), shares.shape[1]), np.nan)
    q[rows] = shares
    found, why = measure_epsilon(judged, y, q, said, result.spec.seed, tau)
    result.measures += found
    result.guarantees = [make_guarantee(said)]
    return why and f"{said_so} {why}."


def _build_task(
    name: str, parties: tuple[str, ...], y: NDArray[Any], classes: int, labelled: NDArray[Any]
) -> Task:
    """What answers are scored by: labels (N,), -1 where there is none, or values, NaN there."""
    rows = torch.from_numpy(labelled.copy())
    values = None
    label = make_label(classes)
    if label.floating:
        values = torch.from_numpy(y)
        of = values[rows] if len(rows) else values.new_zeros(1)
        values = (values - of.mean()) / of.std(correction=0).clamp_min(1e-300)
        y = np.where(np.isnan(y), -1, 0)
    return Task(
        name, parties, {}, {}, {}, torch.from_numpy(y), label, {"labelled": rows}, rows,
        values=values,
    )  # fmt: skip


def _find_extent(frozen: Frozen, i: int, told: KnownTruth) -> int:
    """One more than the largest row that is spoken of; a manifest may say many more.

    Raises:
        TraceError: a row that the trace does not have.
    """
    rows = [told.labels.rows, frozen.labelled[i], *(h.rows for h in told.hidden.values())]
    rows += [told.shares[0]] if told.shares is not None else []
    rows += [r for r, _ in frozen.sources[i].granted]
    for a in frozen.answers[i]:
        rows += [r.numpy() for r in a.view.targets.values()]
        rows += [] if a.guess is None else [a.guess.rows]
    low = min((int(r.min()) for r in rows if len(r)), default=0)
    high = max((int(r.max()) for r in rows if len(r)), default=0)
    most = frozen.sources[i].manifest.rows
    check_rows("answers.json", np.array([low, high]), most)
    return high + 1


def _check_grants(
    source: Source, y: NDArray[Any], there: NDArray[np.bool_], seed: int, notes: list[str]
) -> None:
    """Refuse a truth that contradicts the labels that were granted.

    Raises:
        TraceError: it does; the truth of other rows would find no leak anywhere.
    """
    for rows, digest in source.granted:
        if not there[rows].all():
            notes.append(
                f"seed {seed}: the truth lacks some of the {len(rows)} granted labels: its rows "
                "may not be those of the trace."
            )
        elif hash_grant(rows, y[rows]) != digest:
            rule = f"have the {len(rows)} labels that were granted"
            raise TraceError.must("the truth", rule, f"others (seed {seed})")


def _describe_revealed(result: CellResult) -> list[str]:
    """Whose own columns alone tell the labels, which leaves nothing for an attack to find."""
    out: dict[str, str] = {}
    for m in result.measures:
        best = max(((f["value"] or 0.0, name) for name, f in m.controls.items()), default=(0.0, ""))
        if m.target == "label" and m.metric in _BY and best[0] >= _TELLS:
            out[m.adversary] = (
                f"own columns of {m.adversary} reveal the labels (baseline {best[1]}: {m.metric} "
                f"{best[0]:.3f}), so no leak can be found. Is the label among them?"
            )
    return list(out.values())


@dataclass(frozen=True)
class _Known:
    """What answers about a trace are scored by.

    Attributes:
        task: with the labels (N,).
        hidden: columns by party.
        train: rows of training.
    """

    task: Task
    hidden: Mapping[str, Hidden]
    train: Tensor

    def find_task(self, of: Prepared) -> tuple[Task | None, Tensor]:
        """The task to score an attack by, None if there is none, and (N,) which rows it knows."""
        spec, target = of.spec, of.attack.target
        if target == "label":
            return self.task, self.task.y >= 0
        there = torch.ones_like(self.task.y, dtype=torch.bool)
        whose = list_victims("feature", spec.adversary, self.task.parties, spec.victim)
        whose = whose[:1] if target == "attribute" else whose
        if target not in SCORED or any(p not in self.hidden for p in whose):
            return None, there
        x, schema = {}, {}
        for p in whose:
            rows, values, schema[p] = self.hidden[p]
            index, held = torch.from_numpy(rows), torch.zeros_like(there)
            x[p] = values.new_zeros((len(there), *values.shape[1:]))
            x[p][index], held[index] = values, True
            there &= held
        labelled = {"labelled": self.train[there[self.train]]}
        return replace(self.task, x=x, schema=schema, sets=labelled), there

    def match(self, answer: Answer) -> tuple[Answer, Task, int]:
        """The answer on rows whose truth is known, what it is scored by, how many are not known."""
        if answer.guess is None:
            return answer, self.task, 0
        task, known = self.find_task(answer.of)
        if task is None:
            why = f"no truth about {answer.of.attack.target!r} is in the truth's folder."
            return replace(answer, guess=None, status="not-applicable", reason=why), self.task, 0
        targets = answer.view.targets
        kept = {split: rows[known[rows]] for split, rows in targets.items()}
        lost = sum(map(len, targets.values())) - sum(map(len, kept.values()))
        if not any(len(kept.get(s, ())) for s in answer.of.attack.splits):
            why = "no row that it guessed has a truth."
            return replace(answer, guess=None, status="error", reason=why), task, lost
        question, labelled = answer.of.spec.of_label, self.task.sets["labelled"]
        if question and (why := find_unclear(question, self.task.truth[labelled])):
            return replace(answer, guess=None, status="not-applicable", reason=why), self.task, 0
        return replace(answer, view=replace(answer.view, targets=kept)), task, lost


def _name_recording(spec: CellSpec) -> str:
    """A name for one trace among those of an audit."""
    defense, strength = defense_point(spec.defenses)
    at = "" if strength is None or defense == UNDEFENDED else f" {strength:g}"
    return f"{spec.data['name']}, defense {defense}{at}, seed {spec.seed}"


def _make_record(
    frozen: Frozen, audited: Sequence[_Scored], controls: Sequence[_Scored],
    gates: tuple[Gate, ...], confidence: float, notes: Sequence[str],
) -> AuditRecord:  # fmt: skip
    """What judging needs, in the form that an audit of trainings leaves."""
    every = {p.spec.key: p.spec for s in audited for p in s.asked}
    made = {f"audit:{s.result.key}": s for s in audited}
    made |= {f"control:{s.result.key}": s for s in controls}
    return AuditRecord(
        name=frozen.sources[0].manifest.run.dataset or "trace",
        scenario_hash="",
        scenario_toml="",
        confidence=confidence,
        gates=gates,
        datasets={at: s.result.spec.data["name"] for at, s in made.items()},
        algorithms={at: s.result.spec.algorithm for at, s in made.items()},
        wanted={
            s.result.key: list(dict.fromkeys(p.spec.key for p in s.asked)) for s in made.values()
        },
        when=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S"),
        data={_name_recording(s.result.spec): s.result.spec.data["digest"] for s in audited},
        classes={s.result.spec.data["name"]: s.classes for s in made.values()},
        families=list_families({s.classes for s in audited}),
        refused=[],
        notes=list(notes),
        device="cpu",
        versions=list_versions(),
        known_rows={k: a.known_rows for k, a in every.items()},
        of_label={k: a.of_label for k, a in every.items() if a.of_label},
        grants={k: Grants(**a.grants) for k, a in every.items() if a.grants},
        attacks=list_threats(every.values()),
        acting=list_acting(_list_systems(frozen)),
    )


def _list_systems(frozen: Frozen) -> list[Algorithm]:
    """The systems that were recorded, trees without a profile in each; none if one is unknown."""
    found: list[Algorithm] = []
    trees = "secureboost"
    for name in dict.fromkeys(s.manifest.run.algorithm for s in frozen.sources):
        like = [p for p in PROFILES if name in (name_trees(p), name_trees(""), trees)]
        if like:
            found += [registry.algorithms.create(trees, {"profile": p}) for p in like]
        elif name in registry.algorithms.names():
            found.append(registry.algorithms.create(name))
        else:
            return []
    return found
