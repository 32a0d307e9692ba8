"""CAP and DCS of every privacy-utility curve, as the reports print them. Reported, never gated."""

from __future__ import annotations

from dataclasses import dataclass

from vflsec.audit.tradeoff_curves import Curve
from vflsec.report.numbers import number
from vflsec.report.summary import Summary

CAP_MEANS = (
    "CAP (He et al. 2022): mean over the strengths of utility times (1 - attack). Larger is "
    "better; compare it only on one data set and grid."
)
DCS_MEANS = (
    "DCS (Zou et al. 2024): 1 / (1 + the root mean square of the attack's value and the utility "
    "lost). 1 leaves the attack nothing at no cost; a coin flip of two classes scores 0.74."
)


@dataclass(frozen=True)
class Score:
    """CAP and DCS of one defended curve, as texts.

    Attributes:
        curve: which; its strengths are those of `grid`.
        training: what trains, with the phase where several are audited.
        dcs: one figure for each strength of the grid.
    """

    curve: Curve
    training: str
    grid: str
    cap: str
    dcs: str


def after(phase: str) -> str:
    """Which phase a figure was taken after, to be said where there are several."""
    return f", after {phase}" if phase else ""


def scores(summary: Summary, dataset: str) -> list[Score]:
    """One row for each defended curve of a data set that has a CAP or a DCS."""
    out = []
    several = len({c.phase for c in summary.curves}) > 1
    for c in summary.curves:
        by_strength = dict(zip(c.strengths, c.dcs, strict=False))
        figures = [by_strength.get(s) for s in c.cap_strengths]
        known = any(x is not None for x in (c.cap, *figures))
        if c.dataset == dataset and c.defense != "none" and known:
            training = c.algorithm + (after(c.phase) if several else "")
            grid = ", ".join("-" if s is None else f"{s:g}" for s in c.cap_strengths)
            out.append(Score(c, training, grid, number(c.cap), ", ".join(map(number, figures))))
    return out
