"""CAP and DCS of every privacy-utility curve, as the reports print them. Reported, never gated."""

from __future__ import annotations

from collections.abc import Iterator

from vflsec.audit.tradeoff_curves import Curve
from vflsec.report.numbers import format_number
from vflsec.report.summary import Summary
from vflsec.report.tree import Folded, Paragraph, Table, Tone, View, make_columns

CAP_MEANS = (
    "CAP (He et al. 2022): mean of utility x (1 - attack) over the strengths, of one grid alone."
)
DCS_MEANS = (
    "DCS (Zou et al. 2024): 1 / (1 + root mean square of attack and utility lost); 1 is best."
)
_FILES = frozenset({View.PAGE, View.SUMMARY})


def format_phase(phase: str) -> str:
    """Which phase a figure was taken after, to be said where there are several."""
    return f", after {phase}" if phase else ""


def build_scores(name: str, summary: Summary) -> Folded | None:
    """CAP and DCS of each defended curve of a data set; None where no curve has any."""
    rows = tuple(_rows(name, summary))
    if not rows:
        return None
    numbers = ("Strengths", "CAP", "DCS")
    heads = make_columns("Defense", "Strengths", "Attack", "By", "CAP", "DCS",
                         "Rows", "Metric", "Training", name="Attack", numbers=numbers)  # fmt: skip
    table = Table("CAP and DCS", heads, rows, f"CAP and DCS on {name}",
                  "summary.json")  # fmt: skip
    means = (Paragraph(text, Tone.SOFT, views=_FILES) for text in (CAP_MEANS, DCS_MEANS))
    title = "CAP and DCS (reported, never gated)"
    return Folded(title, (*means, table), views=_FILES | {View.WHOLE})


def find_scored(name: str, summary: Summary) -> Iterator[tuple[Curve, str, str]]:
    """Each defended curve of a data set that has a CAP or a DCS, what trains, and its grid."""
    several = len({c.phase for c in summary.curves}) > 1
    for c in summary.curves:
        known = any(x is not None for x in (c.cap, *_dcs(c)))
        if c.dataset == name and c.defense != "none" and known:
            grid = ", ".join("-" if s is None else f"{s:g}" for s in c.cap_strengths)
            yield c, c.algorithm + (format_phase(c.phase) if several else ""), grid


def _dcs(c: Curve) -> list[float | None]:
    by_strength = dict(zip(c.strengths, c.dcs, strict=False))
    return [by_strength.get(s) for s in c.cap_strengths]


def _rows(name: str, summary: Summary) -> Iterator[tuple[str, ...]]:
    for c, training, grid in find_scored(name, summary):
        yield (c.defense, grid, c.attack, c.adversary, format_number(c.cap),
               ", ".join(map(format_number, _dcs(c))), c.split, c.metric, training)  # fmt: skip
