"""Views from a trace: what a live run would have given the same adversary, by the same folds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from types import MappingProxyType
from typing import TypeVar

import torch
from torch import Tensor, nn

from vflsec.core.attack import Attack
from vflsec.core.channel import Recorder
from vflsec.core.duplicate_rows import has_distinct_column
from vflsec.core.message import Message
from vflsec.core.message_kinds import KINDS, find_kinds
from vflsec.core.quantity_questions import answer_question
from vflsec.core.source import Ended, Given, Source
from vflsec.core.view import Facts, Known, Schema, Table, Update, View, as_needs
from vflsec.core.visibility import looked_at
from vflsec.errors import ThreatModelError, TraceError
from vflsec.specs import QUESTIONS, AttackSpec, format_question
from vflsec.trace.completeness import Watch
from vflsec.trace.limits import OTHER_WIDTH, UNSEEN
from vflsec.trace.manifest import Moment, ObserverInfo
from vflsec.trace.reader import Observer, Trace

LEAST = 10
"""Known values from which on a tenth of them is one: with fewer no question is asked."""


def derive_known(known: Known, question: str) -> Known:
    """Known values in standard deviations from their mean, or answers to a question about them.

    Mean and cut points are those of the known values: what those of all are, nobody granted.
    """
    sd = known.labels.std(correction=0)
    values = (known.labels - known.labels.mean()) / sd if float(sd) > 0 else known.labels * 0
    if not question:
        return Known(known.rows, values)
    return Known(known.rows, answer_question(question, values, values), values)


def derive_facts(facts: Facts, known: Known | None, question: str) -> Facts:
    """Public facts where a question is asked."""
    few = 0 if known is None else len(known)
    why = "" if few >= LEAST else (
        f"'{format_question(question)}' needs {LEAST} known values, there are {few}."
    )  # fmt: skip
    assert question in QUESTIONS
    extra = {**facts.extra, "question": question, "unclear": why}
    return replace(facts, classes=2, extra=extra)


def number_passes(table: Table) -> Table:
    """A table in the form ``all`` of messages without epochs, numbered by passes over its rows.

    A pass ends before the batch that has a row of it again. Only where every pass is whole (each
    row once, but for fewer rows than the largest batch, which may be left out) is it an epoch; else
    the table is returned as it is.
    """
    if not len(table) or len(table.epoch.unique()) > 1:
        return table
    rows, place = table.rows.unique(return_inverse=True)
    _, batch, many = table.step.unique(return_inverse=True, return_counts=True)
    if len(table) <= len(rows) or int(rows[0]) < 0:
        return table
    order = torch.argsort(place * len(many) + batch, stable=True)  # of each row batch by batch
    again = place[order][1:] == place[order][:-1]
    last = torch.full((len(many),), -1, dtype=torch.int64)
    now, before = batch[order][1:][again], batch[order][:-1][again]
    last.scatter_reduce_(0, now[now > before], before[now > before], "amax")
    epochs, begun, held = [0] * len(many), 0, [0]
    for b, seen in enumerate(last.tolist()):
        if seen >= begun:
            begun = b
            held.append(0)
        epochs[b] = len(held) - 1
        held[-1] += int(many[b])
    whole = len(rows) - int(many.max())
    if any(not whole < size <= len(rows) for size in held):
        return table
    return replace(table, epoch=torch.tensor(epochs)[batch])


def read_granted(observers: Sequence[Observer]) -> Known | None:
    """What observers who put together what they know were granted, in order; None if nothing.

    Raises:
        TraceError: two of them were granted different labels of a row.
    """
    out: Known | None = None
    for observer in observers:
        more = observer.known()
        if out is None or more is None:
            out = out if more is None else more
            continue
        labels = dict(zip(out.rows.tolist(), out.labels.tolist(), strict=True))
        mine = dict(zip(more.rows.tolist(), more.labels.tolist(), strict=True))
        odd = [r for r in labels.keys() & mine.keys() if labels[r] != mine[r]]
        if odd:
            names = " and ".join(o.name for o in observers)
            rule, got = "agree on the labels of granted rows", f"{len(odd)} rows that differ"
            remedy = "Row k must be the same sample for all of them."
            raise TraceError.must(names, rule, f"{got} (first: {min(odd)})", remedy)
        fresh = ~torch.isin(more.rows, out.rows)
        pairs = ((out.rows, more.rows), (out.labels, more.labels))
        out = Known(*(torch.cat([a, b[fresh]]) for a, b in pairs))
    return out


def find_same_samples(
    own: Mapping[str, tuple[Tensor, Tensor] | None], who: Sequence[str], known: Known | None
) -> Tensor:
    """Row ids that have, number for number, the columns of a known row: that sample by another id.

    Where no column tells most rows apart rows are equal by chance, and none is meant.

    Args:
        own: by party, columns (N, ...) and which rows are held (N,), or None.
        who: parties that put their columns together.
        known: rows whose labels they know.
    """
    none = torch.empty(0, dtype=torch.int64)
    parts = [held for p in who if (held := own[p]) is not None]
    if known is None or not parts:
        return none
    there = torch.stack([present for _, present in parts]).all(0)
    rows = there.nonzero().squeeze(1)
    if not any(x.dim() > 2 or has_distinct_column(x[rows].numpy()) for x, _ in parts):
        return none
    whole = torch.cat([x[rows].flatten(1) for x, _ in parts], 1) + 0.0  # -0.0 is 0.0
    mine = torch.isin(rows, known.rows)
    of = {row.tobytes() for row in whole[mine].numpy()}
    same = [row.tobytes() in of for row in whole.numpy()]
    return rows[torch.tensor(same, dtype=torch.bool) & ~mine]


_EVERY_ROW = find_kinds(lambda kind: kind.has_every_row)

Key = tuple[str, str, str, str]
Factory = Callable[[Schema], nn.Module]
"""Makes a model for rows of a layout."""


def find_wanted(attacks: Iterable[tuple[AttackSpec, Attack]]) -> list[Key]:
    """What the attacks need to be folded while a trace is read, as for a live run."""
    found = {
        key
        for spec, attack in attacks
        for party in spec.adversary
        for need in as_needs(attack.looks_at)
        if (key := Recorder.wants(party, need)) is not None and key[1] != "own"
    }
    return sorted(found)


def fold_messages(
    trace: Trace,
    observers: Mapping[str, Observer],
    wanted: Sequence[Key],
    phase: str = "",
    own: Mapping[str, tuple[Tensor, Tensor] | None] = MappingProxyType({}),
) -> Recorder:
    """Folds the observers' messages, up to the moment after `phase`, exactly as a live channel.

    Of somebody else's training, what is named apart stands side by side (`Recorder.towers`): its
    names say nothing, and a leak in the second tower would not be looked at. What its messages do
    not show, or contradicts its `own` columns (N, ...) and which rows are held (N,), is noted.

    Raises:
        TraceError: messages that must make one table have rows of several shapes.
    """
    ours = trace.is_ours
    recorder = Recorder(wanted, 1, trace.manifest.rows, towers=not ours)
    shapes: dict[tuple[str, ...], tuple[int, ...]] = {}
    for name, observer in observers.items():
        recorder.expected = observer.expected()
        moment = observer.moment(phase)
        watch = Watch(observer.info, moment, trace.manifest.rows)
        turns = Counter[tuple[str, ...]]()
        for i, found in enumerate(observer.messages()):
            if watch.over(i):
                break
            if not watch.looks(i, found):
                continue
            message = found.message()
            watch.add(found, message is not None)
            if message is not None:
                if message.rows is not None:
                    if not message.rows.numel():
                        continue
                    if not KINDS[message.kind].is_encrypted:  # of any size
                        where = f"view/{name}: message {found.fields.msg}"
                        _check_shape(shapes, message, where)
                ways = ("sent",) if message.sender == name else ("received",)
                timed = found.fields.step is not None
                if not timed:  # each is a batch of its own
                    m = message
                    key = (m.phase, m.sender, m.receiver, m.kind, m.name)
                    message = replace(m, step=turns[key])
                    turns[key] += 1
                recorder.add(message, None, ways, timed=timed)
        status, held = trace.manifest.status, own.get(name)
        trace.lack(name, watch.clauses(status, sealed=trace.sealed, ours=ours, own=held))
        trace.prints[name] = watch.prints
        for way, size in watch.looked.sizes.items():  # both ends may have seen a message
            trace.crossed[way] = max(size, trace.crossed.get(way, size))
    return recorder


def _check_shape(
    shapes: dict[tuple[str, ...], tuple[int, ...]], message: Message, where: str
) -> None:
    m, shape = message, tuple(message.tensor.shape[2:])
    first = shapes.setdefault((m.phase, m.sender, m.receiver, m.kind, m.name), shape)
    if shape != first:
        where = f"{where}: a row of this {m.kind} from {m.sender} to {m.receiver}"
        raise TraceError.shaped(where, first, shape, OTHER_WIDTH)


def _describe_unread(kind: str, name: str, phase: str) -> str:
    """What the messages `name` in `Recorder.left_out` are."""
    first, again, turn = name.partition("#")
    which = f"named {first!r}"
    if again:
        which = f"that came for a row {turn} times in a step" + (f" ({which})" if first else "")
    return (
        f"{kind} messages {which} do not fit the first ones in phase {phase!r}: {UNSEEN}. "
        "Record both as one message, or each in a trace of its own"
    )


def _match_dtype(x: Tensor, bottom: nn.Module | None) -> Tensor:
    """Columns in the number type of the model that takes them, as in the loop that was recorded."""
    types = (
        () if bottom is None else (p.dtype for p in bottom.parameters() if p.is_floating_point())
    )
    return x.to(next(iter(types), x.dtype))


V = TypeVar("V")


_NO_OWN = "own columns were not recorded"


class _Recorded(dict[str, V]):
    """By party; asking for a party whose columns were not recorded is said in words."""

    def __missing__(self, party: str) -> V:
        raise ThreatModelError(f"{party!r}: {_NO_OWN}.")


def _ungranted(spec: AttackSpec, what: str, there: int, asked: int) -> ThreatModelError:
    rule = f"be <= {there}, which the trace grants"
    return ThreatModelError.must(f"{spec.name}: {what}", rule, asked)


class Evidence(Source):
    """What one adversary has of a trace at one moment, read once, for the views of its attacks.

    Args:
        trace: opened.
        attacks: (specification, attack) of one adversary, whose needs decide what is folded.
        phase: after which phase; the last one if empty.
        models: {party: factory(schema) -> module} for models that the trace cannot describe.

    Raises:
        TraceError: the trace is damaged, or the adversary is no observer of it.
    """

    def __init__(
        self,
        trace: Trace,
        attacks: Sequence[tuple[AttackSpec, Attack]],
        phase: str = "",
        *,
        models: Mapping[str, Factory] | None = None,
    ) -> None:
        self.trace, self.factories = trace, dict(models or {})
        (self.who,) = {spec.adversary for spec, _ in attacks}
        self.observers = {p: trace.observer(p) for p in sorted(self.who)}
        self.phase = next(iter(self.observers.values())).moment(phase).phase
        self.own = {p: o.own() for p, o in self.observers.items()}
        self.recorder = fold_messages(
            trace, self.observers, find_wanted(attacks), self.phase, self.own
        )
        self.granted = read_granted([self.observers[p] for p in self.who])
        self._attacks = {spec.key: attack for spec, attack in attacks}
        self._modules: dict[tuple[str, str, str], nn.Module] = {}

    @property
    def moment(self) -> Moment:
        """The moment as the first of its parties knows it."""
        return self.observers[self.who[0]].moment(self.phase)

    @property
    def facts(self) -> Facts:
        """What is public then."""
        return self.moment.facts.facts(self.trace.manifest, self.phase)

    @cached_property
    def same_samples(self) -> Tensor:
        """Ids of rows that have the very columns of a known row; of strangers' traces they are no
        rows to guess.
        """
        return find_same_samples(self.own, self.who, self.granted)

    def note_own_columns(self) -> None:
        """Note what own columns cannot be compared with, or tell of rows by themselves."""
        trace, who = self.trace, self.who
        bare = [n for n, o in self.observers.items() if o.info.own == "none"]
        if bare:
            trace.notes.append(
                f"{', '.join(bare)}: {_NO_OWN}. The only baseline is the class majority (of "
                "columns their mean), and what own columns reveal counts as leaked."
            )
        if twins := len(self.same_samples):
            trace.notes.append(
                f"{twins} rows equal a known row of {'+'.join(who)} in every own column: " + (
                    "known rows may be scored." if trace.is_ours else "neither guessed nor scored."
                )
            )  # fmt: skip

    @cached_property
    def tables(self) -> dict[Key, Table]:
        """What passed; what no attack looked at is noted.

        Of somebody else's training with epochs, where it was not told which.
        """
        found, trace = self.recorder.tables(0, self.who, self.phase), self.trace
        left = [_describe_unread(kind, n, self.phase) for kind, n in sorted(self.recorder.left_out)]
        trace.unread |= self.recorder.left_out | self.recorder.passed
        for party in self.who:
            trace.lack(party, [*left, *find_elsewhere(self.observers[party].info)])
        if trace.is_ours:
            return found
        return {k: number_passes(t) if k[2].startswith("all") else t for k, t in found.items()}

    def _parts(self, observer: str, party: str) -> dict[str, nn.Module]:
        """The modules of a party that an observer has, by part."""
        out: dict[str, nn.Module] = {}
        for entry in self.observers[observer].moment(self.phase).models:
            factory = self.factories.get(party)
            if entry.party != party or (entry.layers is None and factory is None):
                continue
            key = (observer, party, entry.part)
            if key not in self._modules:
                chosen = factory if entry.part in ("bottom", "initial") else None
                self._modules[key] = self.observers[observer].model(entry, chosen)
            out.setdefault(entry.part, self._modules[key])
        return out

    def known(self, spec: AttackSpec) -> Known | None:
        """The granted labelled rows of `spec`: the first of what the trace grants its parties.

        Raises:
            ThreatModelError: it grants fewer.
        """
        if not spec.known_rows:
            return None
        there = 0 if self.granted is None else len(self.granted)
        if self.granted is None or there < spec.known_rows:
            raise _ungranted(spec, "known_rows", there, spec.known_rows)
        rows, labels = (x[: spec.known_rows] for x in (self.granted.rows, self.granted.labels))
        some = Known(rows, labels)
        self.trace.grant(some)
        return derive_known(some, spec.of_label) if self.trace.manifest.label.numeric else some

    def _aux(self, spec: AttackSpec) -> dict[str, tuple[Tensor, Tensor]] | None:
        if not spec.aux_rows:
            return None
        found: dict[str, tuple[Tensor, Tensor]] = {}
        for observer in (self.observers[p] for p in self.who):
            for victim in observer.info.aux:
                if victim not in self.who and spec.victim in ("", victim):
                    rows, x = observer.aux(victim)
                    if len(rows) < spec.aux_rows:
                        what = f"aux_rows of {victim}"
                        raise _ungranted(spec, what, len(rows), spec.aux_rows)
                    found[victim] = (rows[: spec.aux_rows], x[: spec.aux_rows])
        if not found:
            raise _ungranted(spec, "aux_rows", 0, spec.aux_rows)
        return {p: found[p] for p in self.trace.manifest.names if p in found}

    def give(self, spec: AttackSpec, attack: Attack) -> Given:
        """The view with the grants of `spec`, and why it is not enough for the attack."""
        try:
            view = self.view(spec)
            lack = find_lack(self, spec, attack, view)
        except ThreatModelError as why:
            view, lack = (
                View(self.who, {}, {}, {}, {}, {}, self.facts, {}),
                (_UNGRANTED, why.reason),
            )
        return Given([view], [self.trace.manifest.run.seed], Ended(self.phase), lack)

    def view(self, spec: AttackSpec) -> View:
        """The view of the adversary with the grants of `spec`.

        Raises:
            ThreatModelError: a grant is not in the trace.
            TraceError: what is there is damaged.
        """
        tables = self.tables
        known, aux = self.known(spec), self._aux(spec)
        targets = self._find_targets(spec, known, aux)
        if known is not None and not bool((some := self._find_whole(spec, known.rows)).all()):
            known = known.take(some)
        models = {p: self._parts(p, p) for p in self.who}
        others = [
            p for p in self.trace.manifest.names
            if p not in self.who and spec.victim in ("", p)
        ]  # fmt: skip
        if spec.peer_model:
            models |= {p: self._parts(self.who[0], p) for p in others}
        schema, columns, present = self._read_columns(spec, models, others)
        prior = next((s for p in self.who if (s := self.observers[p].info.prior)), None)
        facts = self.facts
        if spec.of_label:
            facts = derive_facts(facts, known, spec.of_label)
        return View(
            adversary=self.who,
            columns=columns,
            present=present,
            schema=schema,
            tables=tables,
            models=models,
            facts=facts,
            targets=targets,
            known=known,
            prior=torch.tensor(prior, dtype=torch.float64) if spec.prior and prior else None,
            updates=self._updates,
            aux=aux,
        )

    @cached_property
    def _updates(self) -> dict[str, list[Update]]:
        found = {
            p: self.observers[p].updates(self.observers[p].moment(self.phase)) for p in self.who
        }
        return {p: steps for p, steps in found.items() if steps}

    def _find_targets(
        self, spec: AttackSpec, known: Known | None, aux: Mapping[str, tuple[Tensor, Tensor]] | None
    ) -> dict[str, Tensor]:
        """Rows to guess: those that were trained on and evaluated, without those granted.

        A trace that names none has those whose messages passed. Of somebody else's training answers
        may come of rows that were trained on, of rows of which nothing else was recorded, and of
        some of those that were evaluated: an attack that reads answers guesses rows that got one.
        """
        train, test = (self._read_named(split) for split in ("train", "test"))
        if train is None:
            ids = [t.rows for (_, kind, _, _), t in self.tables.items() if kind in _EVERY_ROW]
            every = torch.cat(ids) if ids else torch.empty(0, dtype=torch.int64)
            train = every[every >= 0].unique()
        train = train[self._find_whole(spec, train)]
        ours = self.trace.is_ours
        asks = any(n.kind == "prediction" for n in as_needs(self._attacks[spec.key].needs))
        if asks and not ours:
            said = self.tables.get(("received", "prediction", "last", self.who[0]))
            test = None if said is None else said.rows[said.rows >= 0].unique()
        test = train[:0] if test is None else test
        out = [] if known is None else [known.rows]
        out += [] if aux is None else [next(iter(aux.values()))[0]]
        if not ours:  # of ours views are those of a live run
            out += [] if known is None else [self.same_samples]
            test = test[~torch.isin(test, torch.cat([*out, test[:0]]))]
            out.append(test)
        return {"train": train[~torch.isin(train, torch.cat([*out, train[:0]]))], "test": test}

    def _read_named(self, split: str) -> Tensor | None:
        """Rows to guess that the trace names, None if it does not."""
        found = (self.observers[p].targets(split) for p in self.who)
        return next((rows for rows in found if rows is not None), None)

    def _find_whole(self, spec: AttackSpec, rows: Tensor) -> Tensor:
        """Which of `rows` have every kind of message that the attack of `spec` reads, (n,).

        A stranger's loop may pass rows forward alone (evaluation that keeps gradients, a step that
        is skipped, numbers that are none). The others are no rows of that attack; that is noted.
        """
        whole = torch.ones(len(rows), dtype=torch.bool)
        needs = as_needs(self._attacks[spec.key].looks_at)
        uses = {("sent" if n.sent else "received", n.kind) for n in needs if n.kind in _EVERY_ROW}
        for (way, kind, _, party), table in self.tables.items():
            if (way, kind) in uses and not self.trace.is_ours:  # ours: as a live run has it
                there = torch.isin(rows, table.rows)
                whole &= there
                if not bool(there.all()):
                    self.trace.notes.append(
                        f"{int((~there).sum())} of {len(rows)} rows of {party} lack the {kind} "
                        f"that it {way}: attacks on it leave them out."
                    )
        return whole

    def _read_columns(
        self,
        spec: AttackSpec,
        models: Mapping[str, Mapping[str, nn.Module]],
        others: Sequence[str],
    ) -> tuple[_Recorded[Schema], _Recorded[Tensor], dict[str, Tensor]]:
        """(layout, own columns, which rows are held) by party."""
        schema, columns, present = _Recorded[Schema](), _Recorded[Tensor](), dict[str, Tensor]()
        for p in self.who:
            held = self.own[p]
            if held is None and spec.aux_rows:  # as of a server, which has none
                n = self.trace.manifest.rows
                columns[p], present[p] = torch.zeros(n, 0), torch.ones(n, dtype=torch.bool)
                schema[p] = Schema.numbers((0,))
            elif held is not None:
                columns[p], present[p] = _match_dtype(held[0], models[p].get("bottom")), held[1]
                schema[p] = self.observers[p].info.layouts[p].as_schema()
        layouts = self.observers[self.who[0]].info.layouts
        if spec.aux_rows or spec.peer_model:
            schema |= {p: layouts[p].as_schema() for p in others if p in layouts}
        return schema, columns, present


def find_elsewhere(info: ObserverInfo) -> list[str]:
    """What came to a party in phases after which no attack looks, a clause each."""
    phases = tuple(m.phase for m in info.moments)
    found = {
        (h.kind, h.phase) for h in info.have
        if h.receiver == info.party and h.kind not in ("ids", "signal")
        and not looked_at(h.kind, h.phase, phases)
    }  # fmt: skip
    return [
        f"{kind} messages of phase {phase!r} came to {info.party}: {UNSEEN} on "
        f"phase {' and '.join(map(repr, phases))}. Record them under that name, or in another trace"
        for kind, phase in sorted(found)
    ]


def _describe_lost(evidence: Evidence) -> str:
    """What of own models and columns a trace does not have, and what would give it."""
    for p in evidence.who:
        models = evidence.observers[p].moment(evidence.phase).models
        if any(e.party == p and e.part == "bottom" and e.layers is None for e in models):
            return f"name its class (--model {p}=package.module:Name)"
    return "it lacks columns or model (arguments of vflsec.record)"


def _has_model(view: View) -> bool:
    return all(p in view.columns and "bottom" in view.models.get(p, {}) for p in view.adversary)


_UNSEEN, _UNGRANTED = "not-observable", "not-applicable"
_LACKS: dict[str, tuple[Callable[[View], bool], str, str]] = {
    "model": (_has_model, _UNSEEN, "{who}'s own model and columns"),
    "parameter_gradient": (
        lambda v: bool(v.updates), _UNSEEN, "own optimisation steps",
    ),
    "labels": (
        lambda v: v.labels is not None, _UNSEEN, "labels of its own",
    ),
    "known_rows": (
        lambda v: v.known is not None, _UNGRANTED, "known_rows",
    ),
    "prior": (
        lambda v: v.prior is not None, _UNGRANTED, "the class prior",
    ),
    "aux_rows": (lambda v: v.aux is not None, _UNGRANTED, "aux_rows"),
    "peer_model": (
        lambda v: any(v.models.get(p) for p in v.victims), _UNGRANTED,
        "the victim's model",
    ),
}  # fmt: skip
"""By what an attack needs: whether a view has it, and status and reason where it has not."""


def find_lack(evidence: Evidence, spec: AttackSpec, attack: Attack, view: View) -> tuple[str, str]:
    """(status, reason) if the evidence does not allow the attack, else two empty strings.

    ``not-observable`` means that it was not recorded: nothing follows about safety.
    """
    who = "+".join(spec.adversary)
    seen = {(way, kind) for way, kind, _, _ in view.tables}
    for need in as_needs(attack.needs):
        way = "sent" if need.sent else "received"
        if need.kind and (way, need.kind) not in seen:
            where = f"that {who} {way} in phase {evidence.phase!r}"
            return _UNSEEN, f"{spec.name} needs {need.kind!r} messages {where}; there are none."
        has, status, what = _LACKS.get(need.what, (bool, "", ""))
        if what and not has(view):
            why = "not granted" if status == _UNGRANTED else "not recorded"
            why = _describe_lost(evidence) if need.what == "model" else why
            return status, f"{spec.name} needs {what.format(who=who)}: {why}."
    if evidence.trace.manifest.classes is None and attack.target == "label":
        remedy = "Record with classes=N, or say --classes N."
        return _UNGRANTED, f"{spec.name} needs the number of classes. {remedy}"
    reason = attack.pointless(view.facts) or attack.explain_grant(view)
    return (_UNGRANTED, reason) if reason else ("", "")
