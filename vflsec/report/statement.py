"""The page that a data-protection officer signs: no attack, statistic or parameter above its
appendix.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from vflsec.audit.leakage_claims import LeakageClaim, Quantity, Significance, format_secret
from vflsec.audit.point import Identity, Point, Training
from vflsec.audit.strength_grid import GridRow, find_cheapest
from vflsec.audit.summary import Summary
from vflsec.errors import format_count
from vflsec.label import make_label
from vflsec.report import tree
from vflsec.report.coverage import NO_PROOF, NOT_SAFE, OUTSIDE, list_untested, name_untested
from vflsec.report.tree import Cell, Paragraph, Section, Tone
from vflsec.report.ungated_leaks import find_deployed
from vflsec.report.verdicts import (
    NO_GATE,
    NO_RISE,
    find_judged,
    format_headline,
    format_place,
    name_rows,
)
from vflsec.runtime.grouping import group_by

_MEANS = {
    "PASS": "Every limit holds for what was tested",
    "FAIL": "At least one limit does not hold",
    "INCONCLUSIVE": "No limit is shown to be broken, and not all are shown to hold",
    NO_GATE: "No limit was set",
    NO_RISE: "Nothing rose above an earlier audit. No limit was set",
    "UNFINISHED": "Not everything planned was measured",
}
_INFERS = "Can infer it"
_SINGLE = "Can infer it about single rows"
_FEW = 0.1
"""Below this share of rows that are named it is inferred about single rows."""
_FLIPPED = "Can infer it, once it knows which label is which"
_NOT_SHOWN = "Not shown"
_LESS = "Not shown, and less than without"
_NOT_LESS = "Not shown to be less than without"
_UNKNOWN = "Unknown"
_TOO_FEW = "Unknown: too few repetitions"
_UNTESTED = "Not tested"
_COUNTED = {"auc": "pairs of rows", "accuracy": "rows"}
"""What a figure counts 100 of, where a reader can count it."""
_PAIR = "A pair has one row of each class. A guess is right for 50 of 100 pairs."


def build_tested(summary: Summary) -> Section:
    """What was tested, and the verdict in plain words."""
    found, _ = format_headline(summary)
    when = f" on {summary.when[:10]}" if summary.when else ""
    seeds = max((len(p.seeds) for p in summary.parties.values()), default=0)
    how = "repeated" if summary.scenario else "recorded"
    text = (
        f"The training on {', '.join(summary.parties) or 'no data'} was audited{when}, {how} "
        f"{format_count(seeds, 'time')}. Parties tried to infer what others hold from the "
        "messages they receive, beyond what they already knew."
    )
    warned = found == "PASS" and any(v.warnings for v in summary.gates)
    limits = f"{_MEANS[found]}{', with warnings (Appendix D)' if warned else ''}."
    leaks = any(c.is_leak for c in summary.claims if c.is_undefended)
    if found == "PASS" and _judged(summary) and leaks:
        limits += " Without the protection of Appendix D, the system leaks."
    if find_deployed(summary):
        limits += " Something also leaks for which no limit was set."
    return Section("What was tested", (
        Paragraph(text), Paragraph(f": {limits}", strong=found, tone=Tone.LEAD)
    ))  # fmt: skip


def _judged(summary: Summary) -> set[Training]:
    """Trainings with a protection that a limit is about."""
    return {t for t in find_judged(summary) if not t.is_undefended}


def build_receivers(summary: Summary) -> Section:
    """For each receiver: what it can infer about whom, above what it knew."""
    judged = _judged(summary)
    heads = ("Receiver", "What, and whose", "Without protection",
             *(["With the protection"] if judged else []))  # fmt: skip
    tables = tuple(
        tree.Table(
            f"{name}: what each receiver can infer",
            tree.make_columns(*heads, name="Receiver"), tuple(_receivers(name, judged, summary)),
        )
        for name in summary.parties
    )  # fmt: skip
    pairs = any(p.metric == "auc" and p.attack for p in summary.points)
    said = [Paragraph(_PAIR, Tone.SOFT)] if pairs else []
    return Section("What was found", (*tables, *said))


def _receivers(
    name: str, judged: set[Training], summary: Summary
) -> Iterator[tuple[Cell | str, ...]]:
    claims = [c for c in summary.claims if c.dataset == name]
    pairs = dict.fromkeys((c.adversary, format_secret(c)) for c in claims)
    points = {p.identity: p for p in summary.points}
    for who, what in pairs:
        mine = [c for c in claims if (c.adversary, format_secret(c)) == (who, what)]
        before = [c for c in mine if c.is_undefended]
        after = [c for c in mine if c.training in judged]
        cells = [_infers(before, points)]
        cells += [_still_infers(after, before, points)] if judged else []
        yield who.replace("+", " and "), what + _format_asked([*before, *mine]), *cells
    attackers = {p for who, _ in pairs for p in who.split("+")}
    for party in summary.parties[name].parties:
        if party not in attackers:
            yield party, "anything", *([_UNTESTED] * (2 if judged else 1))


def _format_asked(claims: Iterable[LeakageClaim]) -> str:
    """What the attack of the first claim chose to ask about, after what it infers; or ''."""
    return next((f" ({c.asked})" for c in claims if c.asked), "")


def _still_infers(
    after: Sequence[LeakageClaim], before: Sequence[LeakageClaim], points: Mapping[Identity, Point]
) -> Cell | str:
    """What claims with a protection come to, beside those without."""
    found = _infers(after, points)
    if found not in (_NOT_SHOWN, _TOO_FEW) or not any(c.is_leak for c in before):
        return found
    return _LESS if _is_less(after, before) else _NOT_LESS


def _is_less(after: Sequence[LeakageClaim], before: Sequence[LeakageClaim]) -> bool:
    """Whether all that leaked was tested again, and every interval lies below those of the leaks.

    A leak that is shown before and not after may be as large: Gelman and Stern, "The difference
    between significant and not significant is not itself statistically significant", The American
    Statistician 60 (2006).
    """
    for leak in (c for c in before if c.is_leak):
        same = [c for c in after if (c.quantity, c.algorithm) == (leak.quantity, leak.algorithm)]
        if not same or any(c.tried < leak.tried for c in same):
            return False
        if any(c.most is None or c.most >= (leak.low or 0.0) for c in same):
            return False
    return True


def _infers(claims: Sequence[LeakageClaim], points: Mapping[Identity, Point]) -> Cell | str:
    """What claims about one receiver and target come to, the strongest word first, and how much."""
    leaks = {c.quantity: points[c.identity] for c in claims if c.is_leak}
    single = leaks[Quantity.EXPOSED].exposed if Quantity.EXPOSED in leaks else None
    named = _SINGLE if single is None or single.share < _FEW else _INFERS
    words = {Quantity.LEAKAGE: _INFERS, Quantity.REVERSED: _FLIPPED, Quantity.EXPOSED: named}
    found = next((text for quantity, text in words.items() if quantity in leaks), "")
    if found:
        much = (_count(quantity, p) for quantity, p in leaks.items())
        return Cell("; ".join((found, *filter(None, much))), Tone.LEAK)
    if not claims:
        return _UNTESTED
    known = [c for c in claims if c.significance is not Significance.NO_INTERVAL]
    if not known:
        return _UNKNOWN
    return _TOO_FEW if all(c.is_open for c in known) else _NOT_SHOWN


def _count(quantity: Quantity, p: Point) -> str:
    """How much that is beside what the receiver knew, in rows; "" where nobody can count it."""
    if quantity is Quantity.EXPOSED and p.exposed is not None:
        named, own = 1000 * (p.exposed.share + p.exposed.own), 1000 * p.exposed.own
        whom = name_rows(is_part=p.exposed.is_part)
        return f"names {named:,.0f} of 1,000 {whom}, {own:,.0f} from what it knew"
    value, own_value, of = p.value.mean, p.control_value.mean, _COUNTED.get(p.metric)
    if quantity is not Quantity.LEAKAGE or of is None or value is None or own_value is None:
        return ""
    return f"right for {100 * value:.0f} of 100 {of}, {100 * own_value:.0f} from what it knew"


def build_price(summary: Summary) -> Section:
    """What stops it at what cost, for each data set."""
    units = {p.dataset: _COUNTED.get(p.utility_metric) for p in summary.points}
    judged = _judged(summary)
    asked = [r for r in summary.grid if r.is_undefended or r.training in judged]
    items = [f"{name}: {_price([r for r in asked if r.dataset == name], units.get(name))}."
             for name in summary.parties]  # fmt: skip
    return Section("What stops it, and at what cost", (tree.Bullets(tuple(items)),))


def _price(rows: Sequence[GridRow], unit: str | None) -> str:
    cheapest = find_cheapest(rows)
    best = [r for r in rows if r.training in cheapest]
    if all(r.is_undefended for r in rows) and not best:
        return "no costs were compared"
    by_system = group_by(rows, lambda r: r.algorithm).values()
    if not all(any(r.passed == r.gates for r in of) for of in by_system):
        return "the protection of Appendix D is not shown to meet every limit"
    if len(best) < len(by_system):
        return "the protection of Appendix D meets every limit. Its cost was not measured"
    if all(r.is_undefended for r in best):
        return "every limit is met without a protection"
    lost = 100 * max(0.0, *(r.utility_drop or 0.0 for r in best))
    cost = f"the model is right for {lost:.1f} fewer of 100 {unit}" if unit else "Appendix E has it"
    return f"the protection of Appendix D meets every limit. Its cost: {cost}"


def build_conditions(summary: Summary) -> Section:
    """Under which conditions the findings hold, so that a change asks for another audit."""
    items = (
        "For these rows, columns, training and software (Appendix H).",
        "For receivers that know no more than Appendix C says, and share nothing beyond it.",
        *(["With the protection of Appendix D."] if _judged(summary) else []),
        "Until a new attack is published.",
    )  # fmt: skip
    return Section("When this holds", (tree.Bullets(items),))


def build_left(summary: Summary) -> Section:
    """What was not tested."""
    said = list_untested(summary)
    left = [*said[:-1], *(f"{last} (Appendix G)" for last in said[-1:]), *OUTSIDE]
    return Section("What was not tested", (Paragraph(f"{name_untested(left)} {NOT_SAFE}"),))


def build_systems(summary: Summary) -> Section:
    """Data set by data set: who holds what, what trains, under which defenses."""
    out = []
    for name, of in summary.parties.items():
        here = [p for p in summary.points if p.dataset == name and p.attack]
        parties = of.parties
        held = make_label(of.classes, of.labels).held
        first_ = (parties[0] if parties else "not recorded") + (f" ({held})" if held else "")
        rows = ", ".join(f"{_rows_of(k)} {n}" for k, n in of.rows.items())
        guessed = {p.split: p.n for p in sorted(here, key=lambda p: p.n) if p.n}
        facts = (
            tree.Fact("Holds the labels", first_),
            tree.Fact("Hold further columns", ", ".join(parties[1:]) or "nobody"),
            tree.Fact("Trained by", "; ".join(dict.fromkeys(p.algorithm for p in here))
                 or "nothing"),
            tree.Fact("Defenses", ", ".join(dict.fromkeys(map(format_place, here)))),
            tree.Fact("Rows", rows),
            tree.Fact("Rows that attacks guess", ", ".join(f"{k} {n}" for k, n in guessed.items())
                 or "none"),
            tree.Fact("Seeds", ", ".join(map(str, of.seeds))),
        )  # fmt: skip
        out.append(Section(name, (tree.Facts(facts),)))
    return Section("System", tuple(out))


def build_signatures() -> Section:
    """Where to sign, and what that confirms."""
    who = ("Who ran the audit", "Data-protection officer", "For the controller")
    confirms = Paragraph(
        f"{NO_PROOF} Signing says that this page was read, not that the system is anonymous.",
        Tone.SOFT,
    )  # fmt: skip
    lines = tree.Signatures(tuple(f"{name}: name, date, signature" for name in who))
    return Section("Signatures", (confirms, lines))


def _rows_of(key: str) -> str:
    """A row set's key in words."""
    what, _, party = key.partition(":")
    return f"all training rows of {party}" if what == "local" and party else key
