"""Views from a trace: what a live run would have given the same adversary, by the same folds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from vflsec.core.attack import Attack
from vflsec.core.channel import Recorder
from vflsec.core.message import Message
from vflsec.core.message_kinds import KINDS, find_kinds
from vflsec.core.view import Known, Schema, Table, Update, View, as_needs
from vflsec.core.visibility import looked_at
from vflsec.errors import ThreatModelError, TraceError
from vflsec.specs import AttackSpec
from vflsec.trace import quantity
from vflsec.trace.infer_epochs import Steps, numbered
from vflsec.trace.known_labels import find_same_samples, read_granted
from vflsec.trace.manifest import Moment
from vflsec.trace.missing_rows import Late, Prints, Unanswered, Unread, find_gaps
from vflsec.trace.observer_reader import Observer
from vflsec.trace.reader import Trace
from vflsec.trace.row_alignment import Sent
from vflsec.trace.traffic import Crossed

__all__ = ["OURS", "Evidence", "find_lack", "find_wanted", "fold_messages"]

_EVERY_ROW = find_kinds(lambda kind: kind.has_every_row)

Key = tuple[str, str, str, str]
OURS = "vflsec.train.export"
"""The adapter that writes our own simulations, of which views must be those of a live run."""


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
    nonfinite: str = "refuse",
    own: Mapping[str, tuple[Tensor, Tensor] | None] = MappingProxyType({}),
) -> Recorder:
    """Folds the observers' messages, up to the moment after `phase`, exactly as a live channel.

    Of somebody else's training, what is named apart stands side by side (`Recorder.towers`): its
    names say nothing, and a leak in the second tower would not be looked at. What its messages do
    not show, or contradicts its `own` columns (N, ...) and which rows are held (N,), is noted.

    Raises:
        TraceError: messages that must make one table have rows of several shapes.
    """
    ours = trace.manifest.adapter.name == OURS
    recorder = Recorder(wanted, 1, trace.manifest.rows, towers=not ours)
    shapes: dict[tuple[str, ...], tuple[int, ...]] = {}
    for name, observer in observers.items():
        recorder.expected = observer.expected()
        moment = observer.moment(phase)
        unread, sent = Unread(name, moment.phase), Sent(name, moment.phase)
        unanswered = Unanswered(name, moment.phase, trace.manifest.rows)
        prints, crossed, steps = Prints(name), Crossed(), Steps()
        late = Late(observer.info, moment)
        for i, found in enumerate(observer.messages(nonfinite)):
            if late.over(i):
                break
            if not late.add(i, found):
                continue
            message = found.message()
            crossed.add(found.fields)
            unread.add(found, message is not None)
            prints.add(found)
            sent.add(found)
            unanswered.add(found)
            if message is not None:
                if message.rows is not None:
                    if not message.rows.numel():
                        continue
                    if not KINDS[message.kind].is_encrypted:  # of any size
                        where = f"view/{name}: message {found.fields.msg}"
                        _check_shape(shapes, message, where)
                ways = ("sent",) if message.sender == name else ("received",)
                timed = found.fields.step is not None
                recorder.add(message if timed else steps.timed(message), None, ways, timed=timed)
        trace.lack(name, [*find_gaps(observer.info, trace.manifest.status), *unread.clauses()])
        trace.lack(name, late.clauses(sealed=trace.sealed))
        trace.lack(name, [] if ours else [*sent.clauses(own.get(name)), *unanswered.clauses()])
        trace.prints[name], trace.crossed = prints, crossed.merge(trace.crossed)
    return recorder


def _check_shape(
    shapes: dict[tuple[str, ...], tuple[int, ...]], message: Message, where: str
) -> None:
    m, shape = message, tuple(message.tensor.shape[2:])
    first = shapes.setdefault((m.phase, m.sender, m.receiver, m.kind, m.name), shape)
    if shape != first:
        raise TraceError(
            f"{where}: a row of this {m.kind} from {m.sender} to {m.receiver} has the shape "
            f"{shape}, of those before {first}. Record what has another width under another name "
            "(name=...), or of one shape, as by padding."
        )


def _describe_unread(kind: str, name: str, phase: str) -> str:
    """What the messages `name` in `Recorder.left_out` are."""
    first, again, turn = name.partition("#")
    which = f"that came for a row {turn} times in a step" if again else f"named {name!r}"
    which += f" (named {first!r})" * bool(first and again)
    return (
        f"{kind} messages {which} are of other rows or steps than the first ones in phase "
        f"{phase!r}, or too many: no attack looked at them. Record both as one message, or each in "
        "a trace of its own"
    )


def _match_dtype(x: Tensor, bottom: nn.Module | None) -> Tensor:
    """Columns in the number type of the model that takes them, as in the loop that was recorded."""
    types = (
        () if bottom is None else (p.dtype for p in bottom.parameters() if p.is_floating_point())
    )
    return x.to(next(iter(types), x.dtype))


V = TypeVar("V")


class _Recorded(dict[str, V]):
    """By party; asking for a party whose columns were not recorded is said in words."""

    def __missing__(self, party: str) -> V:
        raise ThreatModelError(f"own columns of {party!r} are not in this trace.")


class Evidence:
    """A trace at one moment, read once, from which the views of several attacks are made.

    Args:
        trace: opened.
        attacks: (specification, attack), whose needs decide what is folded.
        phase: after which phase; the last one if empty.
        models: {party: factory(schema) -> module} for models that the trace cannot describe.
        nonfinite: as in :meth:`vflsec.trace.observer_reader.Observer.messages`.

    Raises:
        TraceError: the trace is damaged, or an adversary is no observer of it.
    """

    def __init__(
        self,
        trace: Trace,
        attacks: Sequence[tuple[AttackSpec, Attack]],
        phase: str = "",
        *,
        models: Mapping[str, Any] | None = None,
        nonfinite: str = "refuse",
    ) -> None:
        self.trace, self.factories = trace, dict(models or {})
        names = sorted({p for spec, _ in attacks for p in spec.adversary})
        self.observers = {p: trace.observer(p) for p in names}
        first = next(iter(self.observers.values()))
        self.phase = first.moment(phase).phase
        self._values = trace.manifest.label.numeric
        self._own = {p: o.own() for p, o in self.observers.items()}
        self.recorder = fold_messages(
            trace, self.observers, find_wanted(attacks), self.phase, nonfinite, self._own
        )
        self._uses = {
            spec.key: {
                ("sent" if n.sent else "received", n.kind) for n in as_needs(attack.looks_at)
            }
            for spec, attack in attacks
        }
        self._answers = {
            spec.key for spec, attack in attacks
            if any(n.kind == "prediction" for n in as_needs(attack.needs))
        }  # fmt: skip
        whos = dict.fromkeys(spec.adversary for spec, _ in attacks)
        self._known = {who: read_granted([self.observers[p] for p in who]) for who in whos}
        self._twins: dict[tuple[str, ...], Tensor] = {}
        self._tables: dict[tuple[str, ...], dict[Key, Table]] = {}
        self._models: dict[tuple[str, str, str], nn.Module] = {}
        self._updates: dict[str, list[Update]] = {}

    def _module(self, observer: str, party: str, part: str) -> nn.Module | None:
        key = (observer, party, part)
        if key not in self._models:
            entries = self.observers[observer].moment(self.phase).models
            entry = next((e for e in entries if (e.party, e.part) == (party, part)), None)
            factory = self.factories.get(party)
            if entry is None or (entry.layers is None and factory is None):
                return None
            chosen = factory if part in ("bottom", "initial") else None
            self._models[key] = self.observers[observer].model(entry, chosen)
        return self._models[key]

    def _parts(self, observer: str, party: str) -> dict[str, nn.Module]:
        entries = self.observers[observer].moment(self.phase).models
        found = {e.part: self._module(observer, party, e.part) for e in entries if e.party == party}
        return {k: m for k, m in found.items() if m is not None}

    def known(self, spec: AttackSpec) -> Known | None:
        """The granted labelled rows of `spec`: the first of what the trace grants its parties.

        Raises:
            ThreatModelError: it grants fewer.
            TraceError: two of its parties were granted different labels of a row.
        """
        if not spec.known_rows:
            return None
        found = self._known[spec.adversary]
        if found is None or len(found) < spec.known_rows:
            there = 0 if found is None else len(found)
            raise ThreatModelError(
                f"{spec.name}: known_rows must be <= {there}, which the trace grants, got "
                f"{spec.known_rows}."
            )
        some = Known(found.rows[: spec.known_rows], found.labels[: spec.known_rows])
        self.trace.grant(some)
        return quantity.derive_known(some, spec.of_label) if self._values else some

    def twins(self, who: tuple[str, ...]) -> Tensor:
        """Ids of rows that have the very columns of a known row of `who`; of strangers' traces they
        are no rows to guess.
        """
        if who not in self._twins:
            self._twins[who] = find_same_samples(self._own, who, self._known[who])
        return self._twins[who]

    def _aux(self, spec: AttackSpec) -> dict[str, tuple[Tensor, Tensor]] | None:
        if not spec.aux_rows:
            return None
        found: dict[str, tuple[Tensor, Tensor]] = {}
        for party in spec.adversary:
            observer = self.observers[party]
            for victim in observer.info.aux:
                if victim not in spec.adversary and spec.victim in ("", victim):
                    rows, x = observer.aux(victim)
                    if len(rows) < spec.aux_rows:
                        raise ThreatModelError(
                            f"{spec.name}: aux_rows must be <= {len(rows)}, which the trace "
                            f"grants of {victim}, got {spec.aux_rows}."
                        )
                    found[victim] = (rows[: spec.aux_rows], x[: spec.aux_rows])
        if not found:
            raise ThreatModelError(f"{spec.name}: the trace grants no columns of another party.")
        ordered = {p: found[p] for p in self.trace.manifest.names if p in found}
        return ordered

    def _targets(self, spec: AttackSpec, split: str) -> Tensor | None:
        for party in spec.adversary:
            rows = self.observers[party].targets(split)
            if rows is not None:
                return rows
        return None

    def _tested(self, spec: AttackSpec, tables: Mapping[Key, Table], none: Tensor) -> Tensor:
        """Rows that were evaluated only; for an attack that reads answers those that got one.

        Of somebody else's training answers may come of rows that were trained on, of rows of which
        nothing else was recorded, and of some of those that were evaluated.
        """
        if spec.key in self._answers and self.trace.manifest.adapter.name != OURS:
            found = tables.get(("received", "prediction", "last", spec.adversary[0]))
            return none if found is None else found.rows[found.rows >= 0].unique()
        rows = self._targets(spec, "test")
        return none if rows is None else rows

    def _seen(self, tables: Mapping[Key, Table]) -> Tensor:
        """Rows whose messages passed, ascending: what can be guessed if the trace names none."""
        ids = [t.rows for (_, kind, _, _), t in tables.items() if kind in _EVERY_ROW]
        every = torch.cat(ids) if ids else torch.empty(0, dtype=torch.int64)
        return every[every >= 0].unique()

    def _made(self, tables: dict[Key, Table]) -> dict[Key, Table]:
        """The tables; of somebody else's training with epochs, where it was not told which."""
        if self.trace.manifest.adapter.name == OURS:
            return tables
        return {k: numbered(t) if k[2].startswith("all") else t for k, t in tables.items()}

    def _whole(self, spec: AttackSpec, rows: Tensor, tables: Mapping[Key, Table]) -> Tensor:
        """Which of `rows` have every kind of message that the attack of `spec` reads, (n,).

        A stranger's loop may pass rows forward alone (evaluation that keeps gradients, a step that
        is skipped, numbers that are none). The others are no rows of that attack; that is noted.
        """
        whole = torch.ones(len(rows), dtype=torch.bool)
        if self.trace.manifest.adapter.name == OURS:
            return whole  # as a live run has it
        for (way, kind, _, party), table in tables.items():
            if (way, kind) in self._uses.get(spec.key, ()) and kind in _EVERY_ROW:
                there = torch.isin(rows, table.rows)
                whole &= there
                if not bool(there.all()):
                    self.trace.notes.append(
                        f"{int((~there).sum())} of {len(rows)} rows of {party} passed without a "
                        f"{kind} that it {way}: attacks that read it neither use nor guess them."
                    )
        return whole

    def _elsewhere(self, party: str) -> list[str]:
        """What came to a party in phases after which no attack looks, a clause each."""
        info = self.observers[party].info
        phases = tuple(m.phase for m in info.moments)
        found = {
            (h.kind, h.phase) for h in info.have
            if h.receiver == party and h.kind not in ("ids", "signal")
            and not looked_at(h.kind, h.phase, phases)
        }  # fmt: skip
        return [
            f"{kind} messages of phase {phase!r} came to {party}: attacks look at phase "
            f"{' and '.join(map(repr, phases))} alone, so no attack looked at them. Record under "
            "that name what they shall look at, or each phase in a trace of its own"
            for kind, phase in sorted(found)
        ]

    def view(self, spec: AttackSpec) -> View:
        """The view of `spec.adversary` with the grants of `spec`.

        Raises:
            ThreatModelError: a grant is not in the trace.
            TraceError: what is there is damaged.
        """
        mine = spec.adversary
        tables = self._read_tables(mine)
        known, aux = self.known(spec), self._aux(spec)
        targets = self._find_targets(spec, tables, known, aux)
        known = None if known is None else self._keep_whole(spec, known, tables)
        models = {p: self._parts(p, p) for p in mine}
        others = tuple(
            p for p in self.trace.manifest.names
            if p not in mine and spec.victim in ("", p)
        )  # fmt: skip
        if spec.peer_model:
            models |= {p: self._parts(mine[0], p) for p in others}
        schema, columns, present = self._read_columns(spec, models, others)
        moment = self.observers[mine[0]].moment(self.phase)
        prior = next((s for p in mine if (s := self.observers[p].info.prior)), None)
        facts = moment.facts.facts(self.trace.manifest, self.phase)
        if spec.of_label:
            facts = replace(facts, **quantity.derive_facts(facts, known, spec.of_label))
        return View(
            adversary=mine,
            columns=MappingProxyType(columns),
            present=MappingProxyType(present),
            schema=MappingProxyType(schema),
            tables=MappingProxyType(tables),
            models=MappingProxyType(models),
            facts=facts,
            targets=MappingProxyType(targets),
            known=known,
            prior=torch.tensor(prior, dtype=torch.float64) if spec.prior and prior else None,
            updates=MappingProxyType(self._steps(mine)),
            aux=None if aux is None else MappingProxyType(aux),
        )

    def _read_tables(self, mine: tuple[str, ...]) -> dict[Key, Table]:
        """What passed `mine`, made once; what no attack looked at is noted."""
        if mine not in self._tables:
            self._tables[mine] = self._made(self.recorder.tables(0, mine, self.phase))
            self.trace.unread |= self.recorder.left_out | self.recorder.passed
            left = [
                _describe_unread(kind, n, self.phase) for kind, n in sorted(self.recorder.left_out)
            ]
            for party in mine:
                self.trace.lack(party, [*left, *self._elsewhere(party)])
        return self._tables[mine]

    def _find_targets(
        self,
        spec: AttackSpec,
        tables: Mapping[Key, Table],
        known: Known | None,
        aux: Mapping[str, tuple[Tensor, Tensor]] | None,
    ) -> dict[str, Tensor]:
        """Rows to guess: those that were trained on and evaluated, without those granted."""
        train = self._targets(spec, "train")
        if train is None:
            train = self._seen(tables)
        train = train[self._whole(spec, train, tables)]
        test = self._tested(spec, tables, train[:0])
        out = [] if known is None else [known.rows]
        out += [] if aux is None else [next(iter(aux.values()))[0]]
        if self.trace.manifest.adapter.name != OURS:  # of ours views are those of a live run
            out += [] if known is None else [self.twins(spec.adversary)]
            test = test[~torch.isin(test, torch.cat([*out, test[:0]]))]
            out.append(test)
        return {"train": train[~torch.isin(train, torch.cat([*out, train[:0]]))], "test": test}

    def _keep_whole(self, spec: AttackSpec, known: Known, tables: Mapping[Key, Table]) -> Known:
        """The granted rows of which every message came that the attack reads."""
        some = self._whole(spec, known.rows, tables)
        if bool(some.all()):
            return known
        values = None if known.values is None else known.values[some]
        return Known(known.rows[some], known.labels[some], values)

    def _read_columns(
        self,
        spec: AttackSpec,
        models: Mapping[str, Mapping[str, nn.Module]],
        others: Sequence[str],
    ) -> tuple[_Recorded[Schema], _Recorded[Tensor], dict[str, Tensor]]:
        """(layout, own columns, which rows are held) by party."""
        mine = spec.adversary
        schema, columns, present = _Recorded[Schema](), _Recorded[Tensor](), dict[str, Tensor]()
        for p in mine:
            held = self._own[p]
            if held is None and spec.aux_rows:  # as of a server, which has none
                n = self.trace.manifest.rows
                columns[p], present[p] = torch.zeros(n, 0), torch.ones(n, dtype=torch.bool)
                schema[p] = Schema.numbers((0,))
            elif held is not None:
                columns[p], present[p] = _match_dtype(held[0], models[p].get("bottom")), held[1]
                schema[p] = self.observers[p].info.layouts[p].as_schema()
        layouts = self.observers[mine[0]].info.layouts
        if spec.aux_rows or spec.peer_model:
            schema |= {p: layouts[p].as_schema() for p in others if p in layouts}
        return schema, columns, present

    def _steps(self, mine: Sequence[str]) -> dict[str, list[Update]]:
        for p in mine:
            if p not in self._updates:
                observer = self.observers[p]
                moment: Moment = observer.moment(self.phase)
                self._updates[p] = observer.updates(moment)
        return {p: self._updates[p] for p in mine if self._updates[p]}


def _describe_lost(evidence: Evidence, spec: AttackSpec) -> str:
    """What of own models and columns a trace does not have, and what would give it."""
    for p in spec.adversary:
        models = evidence.observers[p].moment(evidence.phase).models
        if any(e.party == p and e.part == "bottom" and e.layers is None for e in models):
            return f"name its class, which the trace cannot (--model {p}=package.module:Name)"
    return "this trace does not have both (arguments columns and model of vflsec.record)"


class _Lack(NamedTuple):
    """When a view lacks what an attack needs, and what follows."""

    is_lacking: Callable[[AttackSpec, View], bool]
    status: str
    reason: str


def _has_no_model(spec: AttackSpec, view: View) -> bool:
    return any(
        p not in view.columns or "bottom" not in view.models.get(p, {}) for p in spec.adversary
    )


_LACKS = {
    "model": _Lack(
        _has_no_model, "not-observable", "needs {who}'s own model and columns; {lost}."
    ),
    "parameter_gradient": _Lack(
        lambda spec, view: not view.updates, "not-observable",
        "needs own optimisation steps; none were recorded.",
    ),
    "labels": _Lack(
        lambda spec, view: view.labels is None, "not-observable",
        "needs labels of its own; a trace holds none.",
    ),
    "known_rows": _Lack(
        lambda spec, view: view.known is None, "not-applicable",
        "needs known_rows; none are granted.",
    ),
    "prior": _Lack(
        lambda spec, view: view.prior is None, "not-applicable",
        "needs the class prior; it is not granted.",
    ),
    "aux_rows": _Lack(
        lambda spec, view: view.aux is None, "not-applicable", "needs aux_rows; none are granted."
    ),
    "peer_model": _Lack(
        lambda spec, view: not any(view.models.get(p) for p in view.victims), "not-applicable",
        "needs the victim's model; it is not granted.",
    ),
}  # fmt: skip
"""By what an attack needs."""


def find_lack(evidence: Evidence, spec: AttackSpec, attack: Attack, view: View) -> tuple[str, str]:
    """(status, reason) if the evidence does not allow the attack, else two empty strings.

    ``not-observable`` means that it was not recorded: nothing follows about safety.
    """
    who = "+".join(spec.adversary)
    seen = {(way, kind) for way, kind, _, _ in view.tables}
    for need in as_needs(attack.needs):
        way = "sent" if need.sent else "received"
        if need.kind and (way, need.kind) not in seen:
            return "not-observable", (
                f"{spec.name} needs {need.kind!r} messages; this trace has none that {who} {way} "
                f"in phase {evidence.phase!r}."
            )
        lack = _LACKS.get(need.what)
        if lack is not None and lack.is_lacking(spec, view):
            reason = lack.reason
            if need.what == "model":
                reason = reason.format(who=who, lost=_describe_lost(evidence, spec))
            return lack.status, f"{spec.name} {reason}"
    if evidence.trace.manifest.classes is None and attack.target == "label":
        return "not-applicable", (
            f"{spec.name} needs the number of classes, which the manifest does not say. Record "
            "with classes=N, or say it here (--classes N)."
        )
    reason = attack.pointless(view.facts)
    return ("not-applicable", reason) if reason else ("", "")
