"""Why claims do not hold: what the figures say, and trials with more of what is short."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from seeds.claims import WORLDS
from seeds.figures import completed, counted, reached, utility
from vflsec.audit.intervals import t_interval

__all__ = ["parts_of_cap", "why"]

Rows = tuple[str, Sequence[str], Iterator[str]]


def why(found: pd.DataFrame) -> list[str]:
    """The section, a table for each question that there are figures for."""
    tables: list[Rows] = [
        (CAPS, ("where", "against", "CAP", "through the main task", "through completion"),
         _caps(found)),
        (LABELS, ("where", "Local there", "with more labels", "difference [interval]"),
         _labels(found)),
        (ALIGNED, ("where", "VFLHLP - Local-A [interval]"), _aligned(found)),
        (RATES_OF_BYTES, ("where", "rate of both", "bytes of FedBCD [interval]", "never there"),
         _rates(found)),
    ]  # fmt: skip
    out: list[str] = []
    for head, columns, lines in tables:
        if rows := list(lines):
            bar = "|---" * len(columns) + "|"
            out += [head, "", f"| {' | '.join(columns)} |", bar, *rows, ""]
    return ["## Why not", "", "Intervals at 0.95.", "", *out] if out else []


CAPS = (
    "**CAP of FedHSSL.** Its main task is better, and so is the attack, for the encoder serves "
    "both. The difference in CAP is the sum of the two parts."
)
LABELS = (
    "**FPD and JPL.** A student answers from the active party's columns alone. *Local* with more "
    "labels shows what these columns still hold. Its test rows are others (Welch's interval)."
)
ALIGNED = (
    "**VFLHLP against Local-A.** Local-A learns from the labels of all own rows, the last stage of "
    "VFLHLP from those of aligned rows only. With more aligned rows:"
)
RATES_OF_BYTES = (
    "**Bytes of FedBCD.** The claim lets each system choose its rate. At one rate for both, to the "
    "same target:"
)


def _caps(found: pd.DataFrame) -> Iterator[str]:
    for name in [n for n, w in WORLDS.items() if w.family == "fedhssl"]:
        for other in ("FedLocalSSL", "FedSplitNN"):
            cut = parts_of_cap(found, name, "FedHSSL", other)
            if len(cut) > 1:
                cells = " | ".join(_told(cut[c]) for c in ("whole", "utility", "attack"))
                yield f"| {name} | {other} | {cells} |"


def parts_of_cap(found: pd.DataFrame, name: str, better: str, worse: str) -> pd.DataFrame:
    """By seed: the difference in CAP, and its parts by the main task and by completion.

    With U the main task and A the attack, U (1 - A) - V (1 - B) is
    (U - V) (1 - (A + B) / 2) - (A - B) (U + V) / 2, exactly.
    """
    (u, a), (v, b) = (completed(found, name, t) for t in (better, worse))
    seeds = u.index.intersection(v.index)
    u, a, v, b = (t.reindex(seeds) for t in (u, a, v, b))
    parts = pd.DataFrame({
        "whole": (u * (1 - a) - v * (1 - b)).mean(axis=1),
        "utility": ((u - v) * (1 - (a + b) / 2)).mean(axis=1),
        "attack": (-(a - b) * (u + v) / 2).mean(axis=1),
    })  # fmt: skip
    return counted(parts, name)


def _labels(found: pd.DataFrame) -> Iterator[str]:
    for name in [n for n, w in WORLDS.items() if w.family == "jpl"]:
        more = f"{name.split(',')[0]}, own labels"
        few, many = (utility(found, n, "Local") for n in (name, more))
        few = counted(few, name)
        if len(few) > 1 and len(many) > 1:
            drawn = "" if WORLDS[name].real else " (drawn)"
            low, high = _welch(many.to_numpy(), few.to_numpy())
            gap = many.mean() - few.mean()
            yield (f"| {WORLDS[more].words}{drawn} | {few.mean():.3f} | {many.mean():.3f} | "
                   f"{gap:+.3f} [{low:+.3f}, {high:+.3f}] |")  # fmt: skip


def _aligned(found: pd.DataFrame) -> Iterator[str]:
    for name in ("credit, 200 aligned", "credit, 1,000 aligned", "credit, 4,000 aligned"):
        better, worse = (utility(found, name, t) for t in ("VFLHLP", "Local-A"))
        seeds = better.index.intersection(worse.index)
        if len(seeds) > 1:
            yield f"| {name} | {_told(better[seeds] - worse[seeds])} |"


def _rates(found: pd.DataFrame) -> Iterator[str]:
    for name in [n for n, w in WORLDS.items() if w.family == "fedbcd"]:
        for rate, settings in ((0.001, range(10)), (0.003, range(10, 20))):
            slow, fast = (reached(found, name, t, settings)
                          for t in ("FedSplitNN", "FedBCD, Q = 5"))  # fmt: skip
            ratio = slow[0].fillna(slow[1]) / fast[0].fillna(fast[1])
            ratio = np.log(ratio.dropna().to_numpy(float))
            if len(ratio) > 1:
                low, high = t_interval(ratio)
                told = (math.exp(v) for v in (ratio.mean(), low, high) if v is not None)
                mean, least, most = told
                never = f"{int(fast[0].isna().sum())} of {len(ratio)}"
                yield (f"| {name} | {rate:g} | 1/{mean:.2f} [1/{least:.2f}, 1/{most:.2f}] | "
                       f"{never} seeds |")  # fmt: skip


def _told(by_seed: pd.Series) -> str:
    low, high = t_interval(by_seed.to_numpy())
    return f"{by_seed.mean():+.3f} [{low:+.3f}, {high:+.3f}]"


def _welch(a: np.ndarray, b: np.ndarray) -> tuple[float, float]:
    """0.95 interval of the difference of two means (Welch, 1947)."""
    from scipy import stats

    found = stats.ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
    return float(found.low), float(found.high)
