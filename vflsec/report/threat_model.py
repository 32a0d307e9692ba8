"""What findings mean to a reviewer: the threat model in words, and the means that were assumed."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from vflsec.audit.record import Attacker, AttackFacts
from vflsec.audit.summary import Summary
from vflsec.core.message_kinds import KINDS
from vflsec.core.needs import Need, as_needs
from vflsec.label import make_label
from vflsec.report import first_screen, tree
from vflsec.report.coverage import NO_PROOF, OUTSIDE, find_ran, list_sent
from vflsec.report.numbers import format_number
from vflsec.report.taxonomies import TAGS, TAXONOMIES, list_read
from vflsec.report.tree import Paragraph, Section, View, make_columns
from vflsec.report.verdicts import format_place
from vflsec.specs import LedgerRow

_TAGS = {tag.id: tag for tag in TAGS}
_NAMES = {of.key: of.name for of in TAXONOMIES}
_POINTERS = (
    "GDPR, recital 26: compare these with all the means reasonably likely to be used.",
    *(f"{_NAMES[tag.taxonomy]}, {tag.ref}: {tag.name}."
      for tag in map(_TAGS.__getitem__, ("edpb-tests", "ieee-evaluation", "ieee-tradeoff"))),
)  # fmt: skip
"""Where a reviewer may read on; not legal advice."""

_SEES = {
    **{name: f"the {kind.words} it receives" for name, kind in KINDS.items() if kind.words},
    **{f"sent.{name}": f"the {kind.words} it sends" for name, kind in KINDS.items() if kind.words},
    "model": "its own model",
    "parameter_gradient": "its own model's gradients",
}
_WANTS = {
    "label": "the labels",
    "feature": "another party's features",
    "attribute": "an attribute that was not shared",
    "integrity": "a prediction of its choice",
    "membership": "which rows were trained on",
    "property": "the share of rows with an attribute",
    "presence": "which of its rows all other parties have",
}


def describe_threats(summary: Summary) -> list[tuple[str, str]]:
    """Each attack that gave a figure: who, wants what, sees what, knows how much."""
    sent = list_sent(summary)
    return [
        (spec.label, _threat(spec, _list_seen(spec, sent), _known(spec, summary)))
        for spec in find_ran(summary).values()
    ]  # fmt: skip


def _threat(spec: AttackFacts, sees: Sequence[str], known: Sequence[str]) -> str:
    who = " and ".join(spec.adversary) or "someone"
    seen = _list([*dict.fromkeys(sees)]) or "nothing it receives"
    one = len(spec.adversary) < 2
    s, together = ("s", "") if one else ("", ", together,")
    verb = "may change its own training" if spec.active else f"keep{s} to the protocol"
    return (
        f"{who}{together} want{s} {_WANTS.get(spec.target, spec.target)}, {verb}, use{s} {seen} "
        f"and was granted {_list(known) or 'nothing'}."
    )


def _known(spec: AttackFacts, summary: Summary) -> list[str]:
    """What the attacker was granted."""
    if spec.target == "membership":
        return ["the records it asks about"]
    return (_labels(spec, summary) if _takes_labels(spec, summary) else []) + _columns(spec)


def _takes_labels(spec: AttackFacts, summary: Summary) -> bool:
    """Whether labels are granted: not to who holds them, nor where membership is asked about."""
    holders = {of.parties[0] for of in summary.parties.values() if of.parties}
    return spec.target != "membership" and not holders & set(spec.adversary)


def _columns(spec: AttackFacts) -> list[str]:
    """What somebody was granted beside labels."""
    known = [f"{spec.aux_rows} rows of the others' columns"] if spec.aux_rows else []
    return known + (["the others' models"] if spec.peer_model else [])


def _labels(spec: AttackFacts, summary: Summary) -> list[str]:
    """What somebody without labels was told of them."""
    chosen = " of the tails and the middle" if "(question=" in spec.label else ""
    out = [f"{spec.known_rows} labelled rows{chosen}"] if spec.known_rows else []
    shares = spec.prior and not only_quantities(summary)
    return out + (["the class shares"] if shares else [])


def only_quantities(summary: Summary) -> bool:
    """Whether every label is a quantity, so that nothing can be said of classes."""
    found = [facts.classes for facts in summary.parties.values()]
    return bool(found) and all(make_label(c).sides == 1 for c in found)


def _list(parts: Sequence[str]) -> str:
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


WORDS = {
    "baseline": "the best that the same attacker infers without the federation, from its own "
    "columns and labelled rows",
    "advantage": "how much better the attack does than its baseline, on the same rows",
    "AUC": "how well scores rank: 0.5 is guessing, 1 is without error; of a quantity, the "
    "concordance",
    "R²": "share of a column's variance that is inferred",
    "family": "published attacks that infer one target in one way",
    "significant": "the interval is above 0, corrected for the number of tests",
    "utility": "how well the trained system does its own task",
    "local, pooled_logistic, pooled_boosting": "references for utility that nobody attacks: the "
    "label party's own columns, and all columns in one place",
    "seed": "one run with its own split, training and labelled rows",
}
"""Words of the report that a reader may not know."""


def describe_assumed(summary: Summary) -> list[tuple[str, str, str]]:
    """The attacker's means, those that this audit assumed, and those that it did not try.

    For the comparison with all the means reasonably likely to be used.
    """
    specs = list(find_ran(summary).values())
    if not specs:
        return []
    together = max(len(s.adversary) for s in specs)
    joined = f"up to {together} parties" if together > 1 else "nobody"
    active = ", ".join(sorted({s.label for s in specs if s.active}))
    told = [s for s in specs if _takes_labels(s, summary)]
    every = AttackFacts(
        known_rows=max((s.known_rows for s in told), default=0), prior=any(s.prior for s in told),
        aux_rows=max(s.aux_rows for s in specs), peer_model=any(s.peer_model for s in specs),
    )  # fmt: skip
    sent = list_sent(summary)
    seen = _list(sorted({w for s in specs for w in _list_seen(s, sent)}))
    return [
        ("known labels", _list(_labels(every, summary)) or "none", "more, from a leak"),
        ("what is seen", seen or "nothing", "what other parties store or log"),
        ("departures from the protocol", active or "none", "others"),
        ("joining forces", joined, "larger coalitions"),
        ("further knowledge", _list(["its own columns", *_columns(every)]),
         "other data on the same people"),
    ]  # fmt: skip


def _list_seen(spec: AttackFacts, sent: Sequence[LedgerRow]) -> list[str]:
    """What an attack looks at beside what was granted, in words.

    Of kinds of messages those that came to its attacker or left it; all of them where nothing is
    known of what was sent.
    """
    seen = [n for n in as_needs(spec.needs) if not n.is_grant]
    return [_SEES.get(n.what, n.what.replace("_", " ")) for n in seen
            if not sent or _was_seen(n, spec.adversary, sent)]  # fmt: skip


def _was_seen(need: Need, who: Collection[str], sent: Sequence[LedgerRow]) -> bool:
    """Whether an attacker saw what its attack looks at; what is no kind of message it has."""
    if need.sent:
        return any(t.kind == need.kind and t.sender in who for t in sent)
    if need.what not in KINDS:
        return True
    if KINDS[need.what].opened_by == "key":  # a ciphertext; the key is another party's
        return len(who) > 1
    read = list_read([need.what])
    return not read or any(t.kind in read and t.receiver in who for t in sent)


def build_threats(summary: Summary) -> Section:
    """Who holds what, who attacks with which means, and the words that the report uses."""
    blocks: list[tree.Block] = []
    found = describe_threats(summary)
    if found:
        more = (tree.Column(name, tree.Kind.PROSE, View.PAGE) for name in ("How", "Source"))
        heads = (*make_columns("Attack", "Attacker", name="Attack", prose=("Attacker",)), *more)
        rows = tuple(
            (*t, spec.summary, spec.source)
            for t, spec in zip(found, find_ran(summary).values(), strict=True)
        )
        caption = "Who attacks"
        blocks.append(tree.Table(caption, heads, rows))
    else:
        blocks.append(Paragraph("No attack was made."))
    blocks.append(Paragraph(first_screen.describe_attacker(summary)))
    blocks += _build_choices(summary.attacker)
    prose = ("What it does", "Source")
    heads = make_columns("Defense", *prose, name="Defense", prose=prose)
    words = tuple((n, d.summary, d.source) for n, d in summary.defenses.items())
    blocks.append(tree.Table("Defenses in words", heads, words, views=View.PAGE))
    terms = tree.Facts(tuple(tree.Fact(word, meaning) for word, meaning in WORDS.items()))
    blocks.append(tree.Folded("Words", (terms,), views=View.PAGE))
    title = "Threat model"
    return Section(title, tuple(blocks), nav=title)


def _build_choices(attacker: Attacker) -> list[tree.Block]:
    """What a strong attacker's settings reached on drawn worlds, where several were tried."""
    choices = attacker.choices
    if not choices:
        return []
    heads = make_columns("Data", "Training", "Defense", "By", "Rows", "Written", "Advantage",
                         "Taken", "Advantage", name="Written", numbers=("Advantage",))  # fmt: skip
    table = tree.Table(
        f"Mean advantage over {len(attacker.seeds)} worlds; a clearly better setting joins",
        heads,
        tuple(
            (r.dataset, r.algorithm, format_place(r), r.adversary, r.split,
             r.written or "cannot run", format_number(r.written_advantage),
             r.chosen if r.joins else "as written", format_number(r.advantage))
            for r in choices
        ),
        "Settings tried",
    )  # fmt: skip
    tried = "; ".join(", ".join(labels) for labels in attacker.tried.values())
    title = "Settings tried on drawn worlds"
    return [tree.Folded(title, (table, Paragraph(f"Tried: {tried}.")), views=View.PAGE)]


def build_placing(summary: Summary) -> Section:
    """What the findings mean beside all the means that somebody could use."""
    names = ("Means", "Assumed here", "Not tried; likely for you?")
    heads, rows = make_columns(*names, name="Means", prose=names), tuple(describe_assumed(summary))
    caption, title = "The attacker's means", "Placing the findings"
    return Section(
        title,
        (
            Paragraph(NO_PROOF),
            tree.Table(caption, heads, rows),
            Paragraph("Not audited here:"),
            tree.Bullets(OUTSIDE),
            Paragraph("Read on (not legal advice):"),
            tree.Bullets(_POINTERS),
        ),
        nav=title,
    )  # fmt: skip
