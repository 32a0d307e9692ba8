"""What no attack of an audit asked about: coalitions, single classes, single columns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping

from vflsec.audit.evaluation import DatasetFacts
from vflsec.audit.record import AttackFacts
from vflsec.label import make_label
from vflsec.report.summary import Summary
from vflsec.specs import WHICHEVER

USUAL = 0.1
"""The limit that drafts have, where no gate asks about columns."""

Ran = Mapping[str, AttackFacts]


def find_unasked(summary: Summary, ran: Ran) -> list[str]:
    """A sentence for each question that no attack that ran asks, each once.

    Args:
        summary: of the audit.
        ran: attacks that gave a figure, by key.
    """
    facts = summary.parties.values()
    whose = _victims(summary, ran)
    labels = (x for of in facts for x in (*_find_no_coalition(of, ran), *_labels(of, ran, summary)))
    columns = (
        x for of in facts
        for x in (*_mean_of_columns(of, ran, whose, summary), *_other_columns(of, ran, whose))
    )  # fmt: skip
    return [*dict.fromkeys(labels), *dict.fromkeys(columns)]


def _limits(summary: Summary, *targets: str) -> list[float]:
    """Maxima of an advantage that gates set, on these targets or on all."""
    gates = [v.gate for v in summary.gates]
    return [
        g.max for g in gates
        if g.metric == "advantage" and g.max is not None and (not targets or g.target in targets)
    ]  # fmt: skip


def _find_no_coalition(facts: DatasetFacts, ran: Ran) -> Iterator[str]:
    """That no parties attack together."""
    passive = facts.parties[1:]
    if len(passive) > 1 and ran and all(len(s.adversary) < 2 for s in ran.values()):
        yield (f"Not tested: coalitions ({', '.join(passive)}).")


def _labels(facts: DatasetFacts, ran: Ran, summary: Summary) -> Iterator[str]:
    """What labels may tell without being told, see :meth:`vflsec.label.kind.Label.find_unasked`."""
    if any(s.target == "label" for s in ran.values()):
        label = make_label(facts.classes or 0, facts.labels)
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
    limit = max(_limits(summary, "feature", "*"), default=USUAL)
    sizes = [
        sum(facts.columns.get(p, 0) for p in of)
        for k, of in whose.items() if ran[k].target == "feature"
    ]  # fmt: skip
    most = max(sizes, default=0)
    best = any(v.gate.of == "r2_column" for v in summary.gates)
    if most > 1 and limit >= 1 / most and not best:
        yield (
            f"Not tested: whether one column of {most} is revealed ({1 / most:.2g} of the mean R², "
            f'limit {limit:g}); set of = "r2_column".'
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
            f"Not tested: attribute attacks on the other {left - len(single)} of {left} "
            f'columns{what}; set column = "*".'
        )
