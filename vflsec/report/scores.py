"""CAP and DCS of every privacy-utility curve, as the reports print them. Reported, never gated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vflsec.report.numbers import number

__all__ = ["CAP_MEANS", "DCS_MEANS", "scores"]

CAP_MEANS = (
    "CAP, the calibrated averaged performance (He et al. 2022), is the mean over the strengths of "
    "utility times (1 - attack): larger is better. It depends on the grid, so compare it only "
    "between curves of one data set and one grid."
)
DCS_MEANS = (
    "DCS, the defense capability score (Zou et al. 2024), is 1 / (1 + the root mean square of the "
    "attack's figure and of the utility lost) at each strength: 1 leaves the attack nothing and "
    "costs nothing, but it is not corrected for chance, so a coin flip between two classes still "
    "scores 0.74."
)


def scores(summary: Mapping[str, Any], dataset: str | None = None) -> list[dict[str, str]]:
    """One row for each defended curve that has a CAP or a DCS.

    Args:
        summary: what ``summary.json`` holds.
        dataset: only this one; None takes all.

    Returns:
        rows of texts: dataset, training, defense, attack, adversary, split, metric, ``grid`` (the
        strengths), ``cap`` and ``dcs`` (one figure for each strength of the grid).
    """
    out = []
    for c in summary["curves"]:
        used = c["cap_strengths"]
        by_strength = dict(zip(c["strengths"], c.get("dcs", ()), strict=False))
        figures = [by_strength.get(s) for s in used]
        known = c["cap"] is not None or any(x is not None for x in figures)
        if c["defense"] == "none" or not known or dataset not in (None, c["dataset"]):
            continue
        row = {k: str(c[k]) for k in ("dataset", "defense", "attack", "adversary", "split")}
        row |= {
            "training": c["algorithm"],
            "metric": c["metric"],
            "grid": ", ".join("-" if s is None else f"{s:g}" for s in used),
            "cap": number(c["cap"]),
            "dcs": ", ".join(number(x) for x in figures),
        }
        out.append(row)
    return out
