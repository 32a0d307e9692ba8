"""How one verdict is called and described in every report, and the section of the gates."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

from vflsec.audit.gate import FAIL, INCONCLUSIVE, PASS, Origin, Verdict
from vflsec.audit.gate_selection import is_weighed
from vflsec.audit.point import Point, Training
from vflsec.audit.summary import Summary
from vflsec.errors import format_count
from vflsec.report import tree
from vflsec.report.numbers import format_number
from vflsec.report.sanitize import clean, scenario_name
from vflsec.report.tree import EVERYWHERE, Paragraph, Tone, View
from vflsec.runtime.grouping import group_by
from vflsec.specs import Claim

GATE_RULE = (
    "A gate passes if the upper bound is within the limit and every attack is validated, and "
    "fails if the lower bound exceeds it."
)
"""How gates judge."""
BOUNDS = (
    "[a, b]: two-sided {level:g} % interval over seeds; that of an advantage is corrected for all "
    "tests of the same attacker and target. Gates use one-sided {level:g} % bounds. "
    f"{GATE_RULE}"
)
"""What every pair of bounds means, said once in each report."""
_OTHER_LEVEL = (
    " A line may name another level: a gate may set its own, and looks at other seeds divide "
    "the {error:g} % among them."
)


_BASELINE_RULE = "What already leaked then is not judged."
_LISTED = "Every figure: add --report DIR to `vflsec gate`."
_LISTING = View.PAGE | View.STATEMENT | View.WHOLE
"""Who is shown each figure of a baseline that did not rise; all others are told how many."""
NO_GATE, NO_RISE = "NO GATE", "NO RISE"
_NO_LIMIT = "No limit is set."


def format_place(row: Training | Claim) -> str:
    """The defense and its strength: ``iso 5``, ``no defense``."""
    if row.defense in ("", "none"):
        return row.defense and "no defense"
    return clean(row.defense if row.strength is None else f"{row.defense} {row.strength:g}")


def format_deployment(row: Training) -> str:
    """Where it stands in a sentence: ``without a defense``, ``with iso 5``."""
    return "without a defense" if row.is_undefended else f"with {format_place(row)}"


def find_asked(summary: Summary) -> list[Verdict]:
    """What a headline speaks of: limits; without any, rises above a baseline, or else claims."""
    placed = group_by((v for v in summary.gates if v.defense), lambda v: v.origin)
    return next((placed[origin] for origin in _ASKED if origin in placed), [])


def find_judged(summary: Summary) -> set[Training]:
    """Trainings that are judged; a claimed epsilon is judged wherever it is made."""
    return {v.training for v in find_asked(summary) if v.origin is not Origin.CLAIM}


def format_point(v: Verdict, *, training: bool = True) -> str:
    """Where it was judged: data, algorithm, defense and strength; empty if nowhere."""
    if not v.defense:
        return ""
    words = (v.dataset, v.algorithm if training else "", format_place(v))
    return ", ".join(filter(None, map(clean, words)))


def format_title(v: Verdict) -> str:
    """The gate and the point."""
    point = format_point(v)
    return clean(v.label) + (f" [{point}]" if point else "")


def format_titles(verdicts: Sequence[Verdict]) -> list[str]:
    """The title of each, unlike all others: a server shows two cases of one name as one.

    Two gates may be called alike as they are shown: a name may be that of another's rule, or differ
    from another in marks that cannot be seen.
    """
    seen: dict[str, int] = {}
    out = []
    for v in verdicts:
        name = format_title(v)
        while name in seen:
            seen[name] += 1
            name = f"{name} ({seen[name]})"
        seen[name] = 1
        out.append(name)
    return out


def hash_identity(v: Verdict, shown: str = "") -> str:
    """A short hash of what was asked and where: the same in every run of the same audit.

    Args:
        v: a verdict.
        shown: its name of :func:`format_titles`, where that is not its title alone.
    """
    text = "\x1f".join(map(str, (v.label, v.dataset, v.algorithm, v.defense, v.strength)))
    text += f"\x1f{shown}" if shown not in ("", format_title(v)) else ""
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=16).hexdigest()


def count_outcomes(verdicts: Sequence[Verdict]) -> dict[str, int]:
    """How many gates came out how."""
    return {name: sum(v.verdict == name for v in verdicts) for name in (PASS, INCONCLUSIVE, FAIL)}


def format_headline(summary: Summary) -> tuple[str, str]:
    """The verdict over all that was judged, and one sentence on how it came about.

    PASS is said of limits alone: a system that no gate limits passes nothing, though no leak rose
    above a baseline, or no claimed epsilon is contradicted.
    """
    if not summary.complete:
        return "UNFINISHED", find_unfinished(summary)
    n = count_outcomes(summary.gates)
    by = group_by(summary.gates, lambda v: v.origin)
    found = next((k for k in (FAIL, INCONCLUSIVE) if n[k]), PASS)
    if found == PASS and not summary.limits:
        found = NO_RISE if Origin.BASELINE in by else NO_GATE
    said = [_tally(by[origin], *words) for origin, words in _ASKED.items() if origin in by]
    if not said:
        return found, _NO_LIMIT
    said += [] if summary.limits else [_NO_LIMIT[0].lower() + _NO_LIMIT[1:-1]]
    return found, f"{'; '.join(said)}."


def _tally(verdicts: Sequence[Verdict], what: str, *words: str) -> str:
    """``1 of 3 gates failed, 1 inconclusive``: of what passed only where everything did."""
    n = count_outcomes(verdicts)
    named = zip((FAIL, INCONCLUSIVE, PASS), words, strict=True)
    first, *rest = [(k, n[k], word) for k, word in named if n[k]]
    more = [f"{count} {word}" for k, count, word in rest if k != PASS]
    return ", ".join([f"{first[1]} of {format_count(len(verdicts), what)} {first[2]}", *more])


def find_unfinished(summary: Summary) -> str:
    """Why an audit that is not complete has no verdict, one sentence."""
    if summary.shard:
        return f"Shard {summary.shard}: nothing is judged before `vflsec merge`."
    return (
        "Not everything planned was measured: nothing is judged before the audit is finished. A "
        "training that fails each time must be taken out of the scenario."
    )


_ASKED = {
    Origin.GATE: ("gate", "failed", "inconclusive", "passed"),
    Origin.BASELINE: ("figure", *(f"{came} the earlier audit" for came in (
        "rose since", "inconclusive beside", "did not rise since"))),
    Origin.CLAIM: ("claimed epsilon", "contradicted", "inconclusive", "not contradicted"),
}  # fmt: skip
"""Who asks, the limits first: what is counted, and what came of it as FAIL, open and PASS."""


def list_findings(summary: Summary) -> list[str]:
    """The findings that are no verdict, as sentences."""
    return [f.text for f in summary.findings if f.kind != "verdict"]


def name_rows(*, is_part: bool) -> str:
    """What a share of exposed rows is of."""
    return "rows outside the largest class" if is_part else "rows"


def find_weighed(v: Verdict, points: Iterable[Point]) -> list[Point]:
    """The points of attacks that a verdict speaks of."""
    here = v.training
    return [p for p in points if p.attack and p.training == here and is_weighed(p, v.gate)]


def describe_bounds(summary: Summary) -> str:
    """:data:`BOUNDS` at the confidence of this audit, and that gates have another."""
    level = summary.confidence
    others = {v.gate.confidence for v in summary.gates} - {level, None}
    said = BOUNDS + (_OTHER_LEVEL if others else "")
    return said.format(level=100 * level, error=100 * (1 - level))


def build_gates(summary: Summary) -> tree.Section:
    """Every gate at every point, and which attacks are shown to work."""
    verdicts = summary.gates
    page, pages = View.PAGE, View.PAGE | View.STATEMENT | View.SUMMARY
    why = _NO_LIMIT if summary.complete else find_unfinished(summary)
    blocks: list[tree.Block] = [Paragraph(why, views=pages)]
    if verdicts:
        several = len({v.algorithm for v in verdicts if v.algorithm}) > 1
        lines = tuple(_gate_line(v, several) for v in verdicts)
        blocks = [tree.Gates(lines, "Every gate at every point"), *_count_steady(verdicts)]
    blocks.append(Paragraph(describe_bounds(summary), Tone.SOFT, views=pages))
    heads = tree.make_columns("Attack", "Validated", "Evidence", name="Attack",
                              prose=("Evidence",))  # fmt: skip
    rows = ((k, "yes" if a.validated else "no", a.text) for k, a in summary.alive.items())
    blocks.append(tree.Table("Validation of attacks", heads, tuple(rows), views=page))
    return tree.Section("Gates", tuple(blocks), nav="Gates")


def is_steady(v: Verdict) -> bool:
    """Whether it says of one figure of a baseline that it did not rise."""
    return v.origin is Origin.BASELINE and v.passes


def describe_steady(verdicts: Iterable[Verdict]) -> str:
    """How many figures of a baseline did not rise, with what warns; '' without a baseline."""
    every = [v for v in verdicts if v.origin is Origin.BASELINE]
    steady = list(filter(is_steady, every))
    count = f"{len(steady)} of {format_count(len(every), 'figure')}"
    said = [f"{count} did not rise since the earlier audit."]
    for warning, of in group_by((v for v in steady if v.warning), lambda v: v.warning).items():
        said.append(f"{len(of)} warn: {warning}.")
    return " ".join(said) if every else ""


def _count_steady(verdicts: Sequence[Verdict]) -> list[Paragraph]:
    """The figures of a baseline that did not rise, counted, and what a baseline does not judge."""
    said = describe_steady(verdicts)
    if not said:
        return []
    listed = Paragraph(_LISTED, Tone.SOFT, views=EVERYWHERE & ~_LISTING)
    more = [listed] if any(map(is_steady, verdicts)) else []
    return [Paragraph(f"{said} {_BASELINE_RULE}"), *more]


def _gate_line(v: Verdict, several: bool) -> tree.GateLine:
    value, low, high = (format_number(x, limit=v.threshold) for x in (v.value, v.low, v.high))
    short = format_point(v, training=several)
    return tree.GateLine(
        v.verdict, v.label, format_point(v), short, v.reason, value, low, high, v.n, v.attack,
        v.adversary, v.split, _LISTING if is_steady(v) else EVERYWHERE,
    )  # fmt: skip


def judged_line(summary: Summary, edited: Path | None, folder: Path) -> str:
    """Whose gates are judged, and how to judge those of a file that was edited since."""
    file = scenario_name(summary.scenario_file or summary.name)
    when = f", audited {summary.when} UTC" if summary.when else ""
    digest = summary.scenario_hash[:8]  # of a trace there is none
    text = f"Gates of {file}{when}{f' (scenario {digest})' if digest else ''}."
    if edited is None:
        return text
    again = shlex.join(["vflsec", "gate", str(folder), "--scenario", str(edited)])
    return clean(f"{text} {edited} was edited since. To judge it: {again}")
