"""Audits of recorded traces: attacks and controls on their views, then scores against the truth.

The two halves need not be at one place: :func:`infer` is for whoever holds the trace, :func:`score`
for whoever holds the labels. Between them stand frozen guesses.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from vflsec.core import check
from vflsec.core.attack import Attack
from vflsec.core.source import Given
from vflsec.core.view import Need, View, as_needs
from vflsec.core.visibility import OPAQUE, looked_at
from vflsec.engine import trace_positive_control
from vflsec.engine.trace_scores import score
from vflsec.errors import ConfigError, drop_remedy
from vflsec.measure.attack import Answer, Bench
from vflsec.measure.guess_files import Planted, Source, freeze
from vflsec.measure.prepared import Prepared, prepare
from vflsec.plugins import registry
from vflsec.specs import AttackSpec, LedgerRow
from vflsec.trace.completeness import find_copies
from vflsec.trace.limits import Limits, check_new
from vflsec.trace.manifest import Manifest
from vflsec.trace.reader import Trace
from vflsec.trace.validate import validate_in_subprocess
from vflsec.trace.views import Evidence, Factory, read_granted

Progress = Callable[[str, float], None]

__all__ = ["infer", "score", "specs_for"]

_ACTS = "act during training or ask its system"


def specs_for(
    traces: Sequence[Trace],
    names: Sequence[str] = (),
    known_rows: int | None = None,
    together: Sequence[Sequence[str]] = (),
) -> list[AttackSpec]:
    """Every attack that a finished trace can be asked for, by every observer that all traces have.

    Args:
        traces: of one system.
        names: only these attacks; all passive ones if empty.
        known_rows: most labelled rows to use; None takes what all traces grant.
        together: observers that put together what they know, beside each one by itself.

    Raises:
        ConfigError: the traces have no observer in common, or an attack is named that a finished
            training cannot be asked for.
    """
    _check_asked(traces, names, together)
    shared = set(traces[0].observers).intersection(*(t.observers for t in traces))
    out = []
    for who in [*((p,) for p in sorted(shared)), *map(tuple, together)]:
        granted = _grant(traces, who, known_rows)
        for name in names or registry.attacks.names():
            attack = registry.attacks.create(name)
            if not _is_active(attack):
                out += _specs_of(traces, name, attack, granted)
    return out


def _check_asked(
    traces: Sequence[Trace], names: Sequence[str], together: Sequence[Sequence[str]]
) -> None:
    """Refuse attacks that act, traces without a common observer, and observers that are none."""
    acting = [n for n in names if _is_active(registry.attacks.create(n))]
    if acting:
        raise ConfigError(f"--attack: {', '.join(acting)} {_ACTS}. Leave it out.")
    shared = set(traces[0].observers).intersection(*(t.observers for t in traces))
    if not shared:
        raise ConfigError("the traces share no observer.")
    for who in together:
        for party in who:
            check.one_of("--together", party, sorted(shared))
        if len(set(who)) < max(2, len(who)):
            raise check.fail("--together", "two different observers or more", "+".join(who))


def _grant(traces: Sequence[Trace], who: Sequence[str], most: int | None) -> AttackSpec:
    """What every trace grants an adversary: rows it knows, class shares, models of others."""
    sides = [[t.observer(p) for p in who] for t in traces]
    known = min(0 if (k := read_granted(of)) is None else len(k) for of in sides)
    aux = [[len(o.aux(v)[0]) for o in of for v in o.info.aux if v not in who] for of in sides]
    return AttackSpec(
        "",
        adversary=tuple(who),
        known_rows=known if most is None else min(known, most),
        prior=all(any(o.info.prior for o in of) for of in sides),
        aux_rows=min(min(rows, default=0) for rows in aux),
        peer_model=all(
            any(e.party not in who for m in of[0].info.moments for e in m.models) for of in sides
        ),
    )


def _specs_of(
    traces: Sequence[Trace], name: str, attack: Attack, granted: AttackSpec
) -> list[AttackSpec]:
    """One attack by one adversary: as often as there are ways to read what came, and questions."""
    who, needs = granted.adversary, {n.what for n in as_needs(attack.needs)}
    read = [{}, attack.any_scale] if attack.any_scale and _is_scale_unknown(traces, who) else [{}]
    read += [p for p in attack.other_kinds if _is_readable(traces, who, name, p)]
    asked = attack.each_label((), traces[0].manifest.classes or 2) or ("",)
    bare = replace(
        granted, name=name, aux_rows=granted.aux_rows * ("aux_rows" in needs),
        peer_model=granted.peer_model and "peer_model" in needs,
    )  # fmt: skip
    return [
        replace(bare, params=params, of_label=question) for params in read for question in asked
    ]


def _is_scale_unknown(traces: Sequence[Trace], who: Sequence[str]) -> bool:
    """Whether somebody else's training told not all that its gradients were multiplied by."""
    return any(not t.is_ours and t.observer(p).untold() for t in traces for p in who)


def _is_readable(
    traces: Sequence[Trace], who: Sequence[str], name: str, params: Mapping[str, object]
) -> bool:
    """Whether messages that an attack of `params` reads passed at parties without labels.

    What it reads of messages that a party sent is how rows were asked for, which those that came
    back tell too: only where some trace has none of the kind that it reads else.
    """
    asks = [n for n in as_needs(registry.attacks.create(name, params).needs) if n.kind]
    plain = [n for n in as_needs(registry.attacks.create(name).needs) if n.kind]
    if any(t.manifest.active in who for t in traces):
        return False
    if any(n.sent for n in asks) and all(_has_messages(t, who, plain) for t in traces):
        return False
    return all(_has_messages(t, who, asks) for t in traces)


def _has_messages(trace: Trace, who: Sequence[str], needs: Sequence[Need]) -> bool:
    """Whether messages of all kinds that are asked for passed at some of the parties."""
    there = {
        (way, h.kind)
        for p in who for h in trace.observer(p).info.have if h.values
        for way, end in (("sent", h.sender), ("received", h.receiver)) if end == p
    }  # fmt: skip
    return {("sent" if n.sent else "received", n.kind) for n in needs} <= there


def _is_active(attack: Attack) -> bool:
    """Whether an attack takes part in a training or asks its system."""
    return attack.needs_own_training or attack.target == "integrity"


_RECORDED_AS = {
    "grad_scale": "with grad_scale=1 where there is no factor",
    "loss_reduction": 'with loss_reduction="mean" or "sum"',
}
"""What to record, where gradients' scale is not known."""


def _list_notes(traces: Sequence[Trace], specs: Sequence[AttackSpec], *, of_all: bool) -> list[str]:
    """What was not assessed, or was read twice, and why, a sentence each; and what traces note."""
    active = [n for n in registry.attacks.names() if _is_active(registry.attacks.create(n))]
    scales = {s.name: registry.attacks.create(s.name).any_scale for s in specs}
    twice = sorted({s.name for s in specs if s.params and dict(s.params) == scales[s.name]})
    m, who = traces[0].manifest, {p for s in specs for p in s.adversary}
    vague = any(t.manifest.loss_reduction == "unknown" for t in traces)
    missing = "loss_reduction" if vague else "grad_scale"
    silent = [p for p in m.names if p not in who and p != m.active]
    found = {
        f"not assessed: {', '.join(active)}, which {_ACTS}.": active if of_all else [],
        f"{missing} is not known: {', '.join(twice)} read gradients as they came and again with "
        f"every batch brought to one size. Record {_RECORDED_AS[missing]}.": twice,
        f"not assessed: {', '.join(silent)}, whose messages are not in every trace.": silent,
    }
    notes = [sentence for sentence, about in found.items() if about]
    return notes + [f"{t.folder.name}: {n}" for t in traces for n in dict.fromkeys(t.notes)]


def infer(
    folders: Sequence[str | Path],
    out: str | Path,
    *,
    attacks: Sequence[str] = (),
    known_rows: int | None = None,
    together: Sequence[Sequence[str]] = (),
    classes: int | None = None,
    limits: Limits | None = None,
    models: Mapping[str, Factory] | None = None,
    progress: Progress = lambda *_: None,
) -> Path:
    """Make every attack that the evidence allows, and freeze the guesses; opens no truth.

    Args:
        folders: traces of one system; those that differ in the seed of their run are repetitions.
        out: a new folder for the guesses.
        attacks: only these; all that can be made on a finished trace if empty.
        known_rows: most labelled rows to use.
        together: observers of one trace that put together what they know, see
            :func:`vflsec.trace.validate.join`.
        classes: number of classes, for traces that do not say it.
        limits: how traces are read.
        models: {party: factory(schema)} for models that the trace cannot describe.
        progress: called with (what is being done, share done).

    Raises:
        TraceError: a trace is damaged.
        ConfigError: the traces are not of one system, or say another number of classes, or `out` is
            not empty.
    """
    check_new(out)
    limits = limits or Limits()
    checks = [validate_in_subprocess(f, limits) for f in folders]
    traces = [Trace.open(f, limits, verify=limits.trusted) for f in folders]
    if classes is not None:
        for trace in traces:
            trace.manifest = _with_classes(trace, classes)
    _check_system(traces)
    specs = specs_for(traces, attacks, known_rows, together)
    asked = prepare(specs)
    answers, plants = [], {}
    for i, (trace, found) in enumerate(zip(traces, checks, strict=True)):
        made = _TraceAttacks(trace, models or {})
        answers.append(made.answers(asked, _count_part(progress, i, len(traces))))
        if of := made.joined():
            plants[i] = of
        _note_unread(trace, answers[-1], of_all=not attacks)
        _note_copies(trace, traces[:i])
        trace.notes += [n for n in found.notes if n not in trace.notes]
    notes = _list_notes(traces, specs, of_all=not attacks)
    return freeze(out, [_describe_source(t) for t in traces], answers, notes, plants)


def _count_part(progress: Progress, part: int, parts: int) -> Progress:
    """Progress of one of several parts, told as that of all."""
    return lambda text, share: progress(text, (part + share) / parts)


def _describe_source(trace: Trace) -> Source:
    """What guesses keep of the trace that they are about."""
    about = "seal.json" if trace.sealed else "manifest.json"  # a seal has a hash of each file
    digest = hashlib.sha256((trace.folder / about).read_bytes()).hexdigest()
    granted = [(rows, h) for h, rows in trace.granted.items()]
    crossed = [LedgerRow(*key, **size._asdict()) for key, size in trace.crossed.items()]
    return Source(trace.manifest, digest, granted, trace.gaps, crossed, sorted(trace.unread))


def _with_classes(trace: Trace, classes: int) -> Manifest:
    """The trace's manifest, which says how many classes there are."""
    check.integer("--classes", classes, low=2, high=100_000)
    found = trace.manifest.classes
    if found not in (None, classes):
        raise ConfigError.must("--classes", f"be {found}, as in {trace.folder}", classes)
    return trace.manifest.model_copy(update={"classes": classes})


def _check_system(traces: Sequence[Trace]) -> None:
    first = traces[0].manifest
    seen: dict[Any, Path] = {}
    held: dict[str, Path] = {}
    for trace in traces:
        m = trace.manifest
        if (m.names, m.active, m.classes) != (first.names, first.active, first.classes):
            joined = shlex.join([str(t.folder) for t in traces])
            raise ConfigError.must(
                f"{trace.folder}: parties and classes",
                f"be {', '.join(first.names)} and {first.classes} as in {traces[0].folder}",
                f"{', '.join(m.names)} and {m.classes}",
                f"Join traces of one run first: vflsec trace join {joined} --out joined.",
            )
        key = (m.run.dataset, m.run.algorithm, m.run.defense, m.run.strength, m.run.seed)
        if key in seen:
            where = f"{trace.folder} and {seen[key]}"
            raise ConfigError(
                f"{where} have seed {m.run.seed}. Give each repetition its own seed, and each data "
                "set its own name."
            )
        seen[key] = trace.folder
        for digest in trace.payloads:
            if held.get(digest, trace.folder) != trace.folder:  # its own sides may say the same
                where = f"{trace.folder} and {held[digest]}"
                raise ConfigError(f"{where} hold the same messages. A copy is no repetition.")
            held[digest] = trace.folder


def _note_copies(trace: Trace, before: Sequence[Trace]) -> None:
    """Note where a trace holds most of another one's messages: their spread says nothing."""
    run = trace.manifest.run
    for other in before:
        if other.manifest.run.model_copy(update={"seed": run.seed}) != run:
            continue  # of another defense, which may begin with the same weights
        for who, (same, most) in find_copies(trace.prints, other.prints).items():
            text = f"{same} of {most} messages are those of seed {other.manifest.run.seed}"
            trace.lack(who, [f"{text}: no repetition"])


def _note_unread(trace: Trace, answers: Sequence[Answer], *, of_all: bool) -> None:
    """Say which messages came that no attack which made a guess reads.

    Where all attacks were asked for, nothing else could have read them, and nothing passes; where
    some were chosen, it is a note.
    """
    read = {
        (party, need.kind) for a in answers if a.guess is not None
        for party in a.of.spec.adversary for need in as_needs(a.of.attack.looks_at) if not need.sent
    }  # fmt: skip
    for party in dict.fromkeys(p for a in answers for p in a.of.spec.adversary):
        info = trace.observer(party).info
        phases = tuple(m.phase for m in info.moments)
        for kind in sorted({
            h.kind for h in info.have
            if h.receiver == party and h.values and h.kind not in OPAQUE
            and looked_at(h.kind, h.phase, phases) and (party, h.kind) not in read
        }):  # fmt: skip
            why = f"{kind} messages came to {party}, read by no attack that made a guess"
            if of_all:
                trace.lack(party, [why])
            else:
                trace.notes.append(f"{why}: leave --attack out, or add one that does.")


class _TraceAttacks:
    """What attacks make of one trace, and of a leak that is planted over it.

    Attributes:
        planted: labels (N,) of the leak that is planted, None where none is.
        found: answers to the planted leak.
    """

    def __init__(self, trace: Trace, models: Mapping[str, Factory]) -> None:
        self.trace, self.models = trace, models
        m = trace.manifest
        self.benches: dict[bytes, Bench] = {}
        self.found: list[Answer] = []
        self.planted: Tensor | None = None
        if m.classes is not None and trace_positive_control.is_possible(m):
            self.planted = trace_positive_control.draw_labels(m.rows, m.classes, m.run.seed)

    def joined(self) -> Planted | None:
        """What was found of the planted leak, with the truth of the rows that are guessed."""
        if self.planted is None:
            return None
        return trace_positive_control.join_answers(
            self.found, self.planted, self.trace.manifest.label.target
        )

    def answers(self, asked: Sequence[Prepared], progress: Progress) -> list[Answer]:
        """Of all attacks by every adversary after every phase."""
        out: list[Answer] = []
        parties = dict.fromkeys(p.spec.adversary for p in asked)
        phases = {who: [m.phase for m in self.trace.observer(who[0]).info.moments]
                  for who in parties}  # fmt: skip
        parts = [
            (phase, here) for phase in dict.fromkeys(name for of in phases.values() for name in of)
            for who in parties  # one after the other, since each one's messages fill memory
            if (here := [p for p in asked if p.spec.adversary == who and phase in phases[who]])
        ]  # fmt: skip
        for i, (phase, here) in enumerate(parts):
            out += self._of_party(here, phase, _count_part(progress, i, len(parts)))
        return out

    def _of_party(self, here: Sequence[Prepared], phase: str, progress: Progress) -> list[Answer]:
        """All attacks by one adversary after a phase; what it saw is let go of."""
        pairs = [(p.spec, p.attack) for p in here]
        evidence = Evidence(self.trace, pairs, phase, models=self.models)
        evidence.note_own_columns()
        found: list[Answer] = []
        for i, p in enumerate(here):
            who = "+".join(p.spec.adversary)
            progress(f"{self.trace.folder}: {p.spec.label} by {who}", i / len(here))
            given = evidence.give(p.spec, p.attack)
            # attacks on the same rows share controls; messages of two kinds may be of other rows
            bench = self.benches.setdefault(_hash_rows(given.views[0]), Bench())
            made = [_strip(a) for answers in bench.attack(p, given) for a in answers]
            found += made
            if self.planted is not None and any(a.guess is not None for a in made):
                self._plant(given, p, self.planted)
        return found

    def _plant(self, given: Given, p: Prepared, labels: Tensor) -> None:
        """Make an attack that found something to read on the planted leak, too.

        The labels are drawn, so no control on own columns tells them: chance stands for all.
        """
        if trace_positive_control.can_plant(p.attack):
            view = trace_positive_control.lay_leak(given.views[0], labels, given.seeds[0])
            for found in Bench().attack(p, replace(given, views=[view])):
                self.found += [_strip(replace(a, controls=tuple)) for a in found]


def _strip(answer: Answer) -> Answer:
    """The answer with its controls made, and nothing of what the adversary saw.

    Why there is none is said without a remedy: of a training that is over nothing can be set.
    """
    answer = replace(answer, reason=drop_remedy(answer.reason))
    try:
        controls = list(answer.controls()) if answer.guess is not None else []
    except ConfigError as why:  # one took too long, and without it a figure says more than it may
        answer, controls = replace(answer, guess=None, status="error", reason=str(why)), []
    view = answer.view
    kept = View(
        view.adversary, {}, {}, {}, {}, {}, view.facts, view.targets, known=view.known,
        aux=view.aux,
    )  # fmt: skip
    return replace(answer, view=kept, controls=lambda: controls)


def _hash_rows(view: View) -> bytes:
    """A hash of the rows that an attack guesses and of those that it knows."""
    known = [] if view.known is None else [view.known.rows]
    made = hashlib.sha256()
    for rows in (*(view.targets[s] for s in sorted(view.targets)), *known):
        made.update(len(rows).to_bytes(8) + rows.numpy().tobytes())
    return made.digest()
