"""Boosting on small tables with a sender that keeps what is sent."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vflsec.core.policy import RowSets
from vflsec.core.rng import numpy_generator
from vflsec.label import Classes, Label
from vflsec.trees.bins import cut_columns
from vflsec.trees.boosting import Boosting, Rules
from vflsec.trees.profiles import PROFILES


@dataclass
class Kept:
    """Keeps every message, and forbids what a rule forbids."""

    rule: Any = None
    sent: list[tuple[str, str, str, np.ndarray, Any, int]] = field(default_factory=list)

    @property
    def is_guarded(self) -> bool:
        return self.rule is not None

    def shows(self, sets: RowSets) -> np.ndarray:
        if self.rule is None:
            return np.ones(sets.counts.shape[:-1], dtype=bool)
        return np.asarray(self.rule(sets))

    def change_pairs(self, party: str, values: np.ndarray) -> np.ndarray:
        return values

    def derive(self, *args: Any, **about: Any) -> None:
        pass

    def change_sums(self, party: str, values: np.ndarray, *names: object) -> np.ndarray:
        return values

    def rng(self, *names: object) -> np.random.Generator:
        return numpy_generator(0, *names)

    def send(self, kind: str, sender: str, receiver: str, payload: Any, rows: Any = None,
             *, name: str = "", step: int = 0, phase: str = "") -> None:  # fmt: skip
        if phase != "predict":
            self.sent.append((kind, sender, receiver, np.asarray(payload), rows, step))


def make_table(seed: int = 0, n: int = 600, d: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """Numbers (n, d), and classes (n,) that need columns of every party."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d))
    y = (x[:, 0] + x[:, d - 1] * x[:, d // 2] + 0.7 * rng.normal(size=n) > 0).astype(np.int64)
    return x, y


def boost(
    x: np.ndarray, y: np.ndarray, cuts: tuple[int, ...] = (), *, rounds: int = 10,
    profile: str = "fate-2", label: Label | None = None, rule: Any = None,
    sender: Kept | None = None, **rules: Any,
) -> Boosting:  # fmt: skip
    """Train on all rows of a table whose columns are cut into parties before these places."""
    rows, made = np.arange(len(x)), Rules(**rules)
    parts = np.split(x, list(cuts), axis=1)
    names = [f"p{k}" for k in range(len(parts))]
    codes = {p: cut_columns(part, rows, made.bins)[0] for p, part in zip(names, parts, strict=True)}
    of = Boosting(
        names, codes, label or Classes(2), y, rows, made, PROFILES[profile], sender or Kept(rule)
    )
    for _ in range(rounds):
        of.take_round()
    return of


def find_leaves(of: Boosting, t: int) -> np.ndarray:
    """The leaf of each row in tree `t`."""
    return of.find_leaves(of.trees[t], of.codes)
