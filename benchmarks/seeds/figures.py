"""Figures of a trial by seed: main task, CAP, bytes to a target; from what was written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import pandas as pd

from seeds.claims import FRESH
from seeds.run import GRID, chosen, main_task
from vflsec.audit.cap_score import cap

__all__ = [
    "SHORT", "bytes_of", "caps", "completed", "counted", "first", "reached", "to_target", "utility",
]  # fmt: skip

SHORT = 0.005
"""How far below the best validation AUC of FedSplitNN the target of bytes lies."""


def utility(found: pd.DataFrame, name: str, title: str) -> pd.Series:
    """The main task of a system with the setting that validation rows chose, by seed."""
    some = main_task(found, name, title, "settings")
    if some.empty:
        return pd.Series(dtype=float)
    kept = some[some.setting == chosen(found, name, title)]
    return kept.set_index("seed").value.sort_index()


BySeed = TypeVar("BySeed", pd.Series, pd.DataFrame)


def counted(by_seed: BySeed, name: str) -> BySeed:
    """The seeds that count: where more were run because a claim was open, those alone."""
    fresh = by_seed[by_seed.index >= FRESH.get(name, 0)]
    return fresh if len(fresh) else by_seed


def first(some: pd.DataFrame, name: str) -> pd.DataFrame:
    """Without the seeds that were run for open claims: these were not attacked by everything."""
    return some[some.seed < FRESH[name]] if name in FRESH else some


def completed(found: pd.DataFrame, name: str, title: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Main task, and accuracy of completion, on test rows by seed and noise of 1, 5 and 25.

    Seeds for which all of them were measured; none if it was not.
    """
    some = found[(found.world == name) & (found.system == title) & (found.stage == "leakage")]
    some = some[(some.split == "test") & (some.defense == "iso") & some.strength.isin(GRID[1:])]
    if some.empty:
        return pd.DataFrame(columns=GRID[1:]), pd.DataFrame(columns=GRID[1:])
    some = some[some.phase == some.phase.iloc[-1]]
    main, attack = some[some.attack == ""], some[some.attack.str.startswith("model_completion")]
    main = main[main.metric == ("auc" if (main.metric == "auc").any() else "accuracy")]
    best = attack[attack.metric == "accuracy"].groupby(["seed", "strength"]).value.max().unstack()
    u = main.pivot(index="seed", columns="strength", values="value")
    seeds = u.index.intersection(best.index)
    u, a = (t.reindex(index=seeds, columns=GRID[1:]) for t in (u, best))
    whole = u.notna().all(axis=1) & a.notna().all(axis=1)
    return u[whole], a[whole]


def caps(found: pd.DataFrame, name: str, title: str) -> pd.Series:
    """CAP over noise of 1, 5 and 25 on test rows, by seed; empty if it was not measured.

    Main task times one minus the accuracy of model completion, as in the paper's table XII.
    """
    u, a = completed(found, name, title)
    return pd.Series(
        {s: cap(u.loc[s].to_numpy(), a.loc[s].to_numpy()) for s in u.index}, dtype=float
    )


def to_target(found: pd.DataFrame, name: str, title: str) -> pd.Series:
    """-log(bytes) of the shortest training that reaches the target, by seed.

    A system that never reaches it counts with its longest training.
    """
    there, most = reached(found, name, title)
    return -np.log(there.fillna(most))


def reached(
    found: pd.DataFrame, name: str, title: str, settings: Sequence[int] | None = None
) -> tuple[pd.Series, pd.Series]:
    """By seed: fewest bytes that reach the target (NaN if none do), and most bytes of all.

    The target of a seed is :data:`SHORT` below the best validation AUC of FedSplitNN over all its
    settings; `settings` of the system are looked at, or all.
    """
    some = found[(found.world == name) & (found.stage == "settings") & (found.metric == "auc")]
    some = some[(some.attack == "") & (some.split == "validation")]
    goal = some[some.system == "FedSplitNN"].groupby("seed").value.max() - SHORT
    own = some[some.system == title]
    own = own if settings is None else own[own.setting.isin(settings)]
    most = own.groupby("seed").bytes.max()
    there = own[own.value >= own.seed.map(goal)].groupby("seed").bytes.min()
    return there.reindex(most.index), most


def bytes_of(found: pd.DataFrame, name: str, title: str) -> float:
    """Mean bytes of the trainings of the chosen setting."""
    some = main_task(found, name, title, "settings")
    return float(some[some.setting == chosen(found, name, title)].bytes.mean())
