"""What was tested and what was not: by family of attacks, and by message that crossed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from vflsec.audit.facts import DatasetFacts
from vflsec.audit.gate import WordedCode
from vflsec.audit.leakage_claims import USUAL
from vflsec.audit.record import AttackFacts
from vflsec.audit.summary import Summary
from vflsec.core.visibility import looked_at
from vflsec.errors import format_count
from vflsec.label import make_label
from vflsec.report import tree
from vflsec.report.taxonomies import FAMILIES, OTHERS, group_members, list_read
from vflsec.report.tree import Cell, Column, Kind, Tone, View
from vflsec.runtime.grouping import group_by
from vflsec.specs import WHICHEVER, LedgerRow


class State(WordedCode):
    """What an audit knows of a family of attacks, or of a message."""

    TESTED = "tested", "tested"
    NOT_TESTED = "not_tested", "not tested"
    NOT_MADE = "not_made", "not possible in this setup"
    NOT_SENT = "not_sent", "messages not sent"
    NO_ATTACK = "no_attack", "no attack exists here"


OUTSIDE = (
    "side channels such as timing",
    "other departures from the protocol",
)
"""What no attack here tries."""
NO_PROOF = "An audit cannot show that no attack exists."
NOT_SAFE = "What was not tested is not known to be safe."


@dataclass(frozen=True)
class FamilyState:
    """A published family.

    Attributes:
        state: whether it was tested, and if not, why; no attack may exist for this kind of label.
        tried, refused: attacks of it that gave a figure, and those asked for that gave none.
        members: all of them.
        source: where it was published.
    """

    family: str
    state: State
    tried: tuple[str, ...]
    refused: tuple[str, ...]
    members: tuple[str, ...]
    source: str


@dataclass(frozen=True)
class MessageState:
    """A kind of message, the attacks that read it where it arrived, and others that could.

    `phase` is set where no attack is made after its phase.
    """

    kind: str
    name: str
    sender: str
    receiver: str
    phase: str
    tried: tuple[str, ...] = ()
    others: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """Kind, name, and the phase in which no attack looks."""
        text = f"{self.kind} ({self.name})" if self.name else self.kind
        return f"{text} in {self.phase}" if self.phase else text

    @property
    def state(self) -> State:
        """Tested, not tested, or that no attack exists."""
        if self.tried:
            return State.TESTED
        return State.NOT_TESTED if self.others else State.NO_ATTACK


def find_ran(summary: Summary) -> dict[str, AttackFacts]:
    """Attacks that gave a figure, by key."""
    found = {p.attack_key for p in summary.points if p.attack and p.status == "ok"}
    return {k: s for k, s in summary.attacks.items() if k in found}


def list_sent(summary: Summary) -> list[LedgerRow]:
    """What crossed in the audited trainings."""
    return [t for c in summary.cost.points if c.role == "audit" for t in c.traffic]


def list_families(summary: Summary) -> list[FamilyState]:
    """Every published family with the attacks of it that gave a figure, or why none did."""
    made = {s.name for s in find_ran(summary).values()}
    of = group_members(summary.families)
    listed = {n for names in of.values() for n in names}
    every = dict.fromkeys(s.name for s in summary.attacks.values())
    of[OTHERS] = [*of.get(OTHERS, []), *(n for n in every if n not in listed)]
    published = {f.name: f.published for f in FAMILIES}
    sent = _find_sent(summary, of)
    out = []
    for family, names in of.items():
        tried = tuple(n for n in names if n in made)
        refused = tuple(n for n in names if n in every and n not in made)
        if family != OTHERS or tried or refused:
            state = State.TESTED
            if not tried:
                state = _explain_untested(names, refused, family in sent)
            source = published.get(family, "this scenario")
            out.append(FamilyState(family, state, tried, refused, tuple(names), source))
    return out


def _explain_untested(names: Iterable[str], refused: Iterable[str], sent: bool) -> State:
    """Why no attack of a family gave a figure; what was sent decides, whatever was refused."""
    if not names:
        return State.NO_ATTACK
    if not sent:
        return State.NOT_SENT
    return State.NOT_MADE if refused else State.NOT_TESTED


def _find_sent(summary: Summary, of: Mapping[str, Sequence[str]]) -> set[str]:
    """Families whose messages were sent: to whoever was asked to attack, else to anybody.

    Of a family that is not published nothing says what it reads; it counts as sent.
    """
    arrived = {(t.kind, t.receiver) for t in list_sent(summary)}
    kinds, needed = {kind for kind, _ in arrived}, {f.name: {*f.reads} for f in FAMILIES}
    found = {OTHERS} | {name for name, of in needed.items() if of & kinds}
    for family, names in of.items():
        asked = [a for a in summary.attacks.values() if a.name in names]
        if asked and not any(_is_reached(a, arrived) for a in asked):
            found.discard(family)
    return found


def _is_reached(attack: AttackFacts, arrived: Iterable[tuple[str, str]]) -> bool:
    """Whether messages came to an attacker that its attack reads; True if it reads none."""
    read = list_read(attack.needs)
    return not read or any(kind in read and to in attack.adversary for kind, to in arrived)


def list_messages(summary: Summary) -> list[MessageState]:
    """Every kind of message that crossed, who got it, and which attacks read it there.

    Of several names of one kind those count as not read that were not kept whole, and so does what
    crossed in a phase after which no attack is made.
    """
    of, kinds = group_members(summary.families), defaultdict[str, set[str]](set)
    for f in FAMILIES:
        for kind in f.reads:
            kinds[kind].update(of[f.name])
    unkept = {(k, n) for c in summary.cost.points if c.role == "audit" for k, n in c.unread}
    ran = [(s.name, list_read(s.needs), s.adversary) for s in find_ran(summary).values()]
    out = []
    for m in _crossed(summary, kinds, unkept):
        if not m.phase and (m.kind, m.name) not in unkept:
            used = {name for name, read, who in ran if m.kind in read and m.receiver in who}
            others = kinds.get(m.kind, set()) - used
            m = replace(m, tried=tuple(sorted(used)), others=tuple(sorted(others)))
        out.append(m)
    return out


def _crossed(
    summary: Summary, kinds: Mapping[str, set[str]], unread: Iterable[tuple[str, str]]
) -> list[MessageState]:
    """Every kind of message, each once; a second exchange of a step has no traffic of its own."""
    found: dict[MessageState, None] = {}
    attacked = _attacked(summary)
    for c in summary.cost.points:
        for t in c.traffic if c.role == "audit" else ():
            after = attacked[c.algorithm] or {t.phase}
            looked = t.kind not in kinds or looked_at(t.kind, t.phase, after)
            phase = "" if looked else t.phase
            found[MessageState(t.kind, t.name, t.sender, t.receiver, phase)] = None
    for m in [*found]:
        for again in sorted(n for k, n in unread if k == m.kind and n.startswith(f"{m.name}#")):
            found[replace(m, name=again)] = None
    return [*found]


def _attacked(summary: Summary) -> Mapping[str, set[str]]:
    """The phases after which attacks are made, by algorithm."""
    found: dict[str, set[str]] = defaultdict(set)
    for p in summary.points:
        if p.attack and p.phase:
            found[p.algorithm].add(p.phase.partition("@")[0])
    return found


def find_uncovered(summary: Summary) -> list[str]:
    """One attack of each family that was not tested: it could run, and reads what was sent."""
    readable = {n for m in list_messages(summary) for n in m.others}
    if summary.runnable is not None:
        readable &= {*summary.runnable}
    every = [f.members for f in list_families(summary) if f.state == State.NOT_TESTED]
    return [found[0] for of in every if (found := [n for n in of if n in readable])]


def list_untested(summary: Summary) -> list[str]:
    """How many families that read something that was sent were not tested, and how many kinds of
    messages; nothing of what all were.
    """
    every, sent = list_families(summary), list_messages(summary)
    if sent:  # else it is not known
        every = [f for f in every if f.state is not State.NOT_SENT]
    where = " whose messages were sent" if sent else ""
    return [
        f"{left} of {what}"
        for of, what in (
            (every, f"{len(every)} attack families{where}"),
            (sent, f"{format_count(len(sent), 'kind')} of messages"),
        )
        if (left := sum(x.state is not State.TESTED for x in of))
    ]


def name_untested(what: Sequence[str]) -> str:
    """All of these in a sentence: what is not named would be taken for tested."""
    return f"The audit did not test {', '.join(what)}."


def list_gaps(summary: Summary) -> list[str]:
    """What the verdict does not speak of, one line each: first-class, for silence is no proof."""
    every = list_families(summary)
    out = []
    for state in (s for s in State if s != State.TESTED):
        of = [f.family for f in every if f.state == state]
        if of:
            what = state.words.capitalize()
            out.append(f"{what} ({len(of)} of {len(every)} families): {_list(of)}.")
    return [*out, *list_unread(summary), *_find_unsaid(summary)]


def _find_unsaid(summary: Summary) -> list[str]:
    """What no table of families and messages holds."""
    return [*_undeclared(summary), *find_unasked(summary)]


def list_unread(summary: Summary) -> list[str]:
    """Messages of which no verdict speaks, one line for each reason why."""
    crossed, out = list_messages(summary), []
    for state, what in (
        (State.NOT_TESTED, "Messages that no attack read"),
        (State.NO_ATTACK, "Messages without an attack"),
    ):
        here = (m for m in crossed if m.state == state)
        to = group_by(here, lambda m: f"{m.words} from {m.sender}")
        said = [f"{words} to {_name_receivers(of)}" for words, of in to.items()]
        out += [f"{what}: {_list(said)}."] if said else []
    return out


def _name_receivers(of: Iterable[MessageState]) -> str:
    return " and ".join(dict.fromkeys(m.receiver for m in of))


def find_older(summary: Summary) -> list[str]:
    """That trainings are those of other code or versions, a line; or none."""
    made = summary.made_before
    return [f"Trainings of {made}; --fresh trains again."] if made else []


def _undeclared(summary: Summary) -> list[str]:
    """The messages sent that the algorithm's `sends`, by which attacks are planned, lacks."""
    found = dict.fromkeys(
        (c.algorithm, f"{kind} from {sender} to {receiver}")
        for c in summary.cost.points if c.role == "audit" for kind, sender, receiver in c.undeclared
    )  # fmt: skip
    return [
        f"Missing from `sends` of {algorithm}: {_list(said for _, said in of)}."
        for algorithm, of in group_by(found, lambda pair: pair[0]).items()
    ]


def _list(parts: Iterable[str]) -> str:
    return "; ".join(p[0].lower() + p[1:] for p in parts)


def build_coverage(summary: Summary) -> tree.Section:
    """What could have been tested, and what was."""
    read = tree.Table(
        "Messages, and the attacks that read them",
        tree.make_columns("Message", "From", "To", "State", "Read by", "Not run", name="Message",
                          states=("State",)),
        tuple((m.words, m.sender, m.receiver, _state_cell(m.state), _join(m.tried),
               _join(m.others)) for m in list_messages(summary)),
    )  # fmt: skip
    tried = tree.Table(
        "Published attack families",
        (Column("Family", Kind.NAME), Column("State", Kind.STATE), Column("Attacks"),
         Column("Published", Kind.PROSE, View.PAGE)),
        tuple((f.family, _state_cell(f.state), _join((*f.tried, *f.refused)), f.source)
              for f in list_families(summary)),
    )  # fmt: skip
    unsaid = tree.Bullets(tuple(_find_unsaid(summary)))
    return tree.Section("Coverage", (unsaid, tried, read), nav="Coverage")


def _state_cell(state: State) -> Cell:
    return Cell(state.words, Tone.GOOD if state == State.TESTED else Tone.WARNING)


def _join(names: Iterable[str]) -> str:
    return ", ".join(names) or "–"


Ran = Mapping[str, AttackFacts]


def find_unasked(summary: Summary) -> list[str]:
    """A sentence for each question about coalitions, classes or columns that no attack asked."""
    facts, ran = summary.parties.values(), find_ran(summary)
    whose = _victims(summary, ran)
    labels = (x for of in facts for x in (*_find_no_coalition(of, ran), *_labels(of, ran, summary)))
    columns = (
        x for of in facts
        for x in (*_mean_of_columns(of, ran, whose, summary), *_other_columns(of, ran, whose))
    )  # fmt: skip
    return [f"Not tested: {said}" for said in dict.fromkeys((*labels, *columns))]


def _limits(summary: Summary, *targets: str) -> list[float]:
    """Maxima of an advantage that gates set, on these targets or on all."""
    gates = [v.gate for v in summary.limits]
    return [
        g.max for g in gates
        if g.metric == "advantage" and g.max is not None and (not targets or g.target in targets)
    ]  # fmt: skip


def _find_no_coalition(facts: DatasetFacts, ran: Ran) -> Iterator[str]:
    """That no parties attack together."""
    passive = facts.parties[1:]
    if len(passive) > 1 and ran and all(len(s.adversary) < 2 for s in ran.values()):
        yield (f"coalitions ({', '.join(passive)}).")


def _labels(facts: DatasetFacts, ran: Ran, summary: Summary) -> Iterator[str]:
    """What labels may tell without being told, see :meth:`vflsec.label.kind.Label.find_unasked`."""
    if any(s.target == "label" for s in ran.values()):
        label = make_label(facts.classes, facts.labels)
        questions = any("question=" in s.label for s in ran.values())
        left = label.find_unasked(questions, max(_limits(summary), default=None))
        if left:
            yield left


def _victims(summary: Summary, ran: Ran) -> Mapping[str, set[str]]:
    """The parties each attack that ran is after, by its key."""
    found: dict[str, set[str]] = defaultdict(set)
    for p in summary.points:
        if p.attack_key in ran and p.victim:
            found[p.attack_key] |= set(p.victim.split("+"))
    return found


def _mean_of_columns(
    facts: DatasetFacts, ran: Ran, whose: Mapping[str, Collection[str]], summary: Summary
) -> Iterator[str]:
    """One of many columns whose mean is judged: one of d told wholly adds 1/d to their R²."""
    limits = _limits(summary, "feature", "*")
    sizes = [
        sum(facts.columns.get(p, 0) for p in of)
        for k, of in whose.items() if ran[k].target == "feature"
    ]  # fmt: skip
    most = max(sizes, default=0)
    best = any(v.gate.of == "r2_column" for v in summary.limits)
    if most > 1 and max(limits, default=USUAL) >= 1 / most and not best:
        asked = f", limit {max(limits):g}" if limits else ""
        yield (
            f"whether one column of {most} is revealed ({1 / most:.2g} of the mean R²{asked}); "
            'set of = "r2_column".'
        )


def _other_columns(
    facts: DatasetFacts, ran: Ran, whose: Mapping[str, Collection[str]]
) -> Iterator[str]:
    """The columns beside those that an attack looks at by itself."""
    alone = {k: ran[k].params or {} for k in whose if ran[k].target == "attribute"}
    single = [of for of in alone.values() if of.get("column") != WHICHEVER]
    every = {p for k, of in alone.items() if of.get("column") == WHICHEVER for p in whose[k]}
    looked = {p for k in whose if ran[k].target in ("feature", "attribute") for p in whose[k]}
    left = sum(d for p, d in facts.columns.items() if p in looked - every)
    if alone and left > len(single):
        tails = any(of.get("ask") or of.get("category") for of in alone.values())
        what = "" if tails else ", on tails or categories (ask, category)"
        yield (
            f"attribute attacks on the other {left - len(single)} of {left} "
            f'columns{what}; set column = "*".'
        )
