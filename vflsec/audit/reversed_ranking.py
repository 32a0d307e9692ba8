"""Answers with their labels flipped, which are a leak to whoever knows which way round they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from vflsec.audit.controls import Leakage, Paired
from vflsec.audit.metrics import RANKINGS

_SHARES = ("accuracy", "balanced_accuracy")


class _Measured(Protocol):
    """A figure, and the metric that verdicts rest on."""

    @property
    def attack(self) -> str: ...
    @property
    def metric(self) -> str: ...
    @property
    def primary(self) -> str: ...


def is_reversible(at: _Measured) -> bool:
    """Whether an answer with its labels flipped would have 1 less this figure.

    So has a ranking, of each of several classes too, and with two classes a share of right answers.
    """
    return at.metric in RANKINGS or (at.metric in _SHARES and at.primary in RANKINGS)


def is_ranking(at: _Measured) -> bool:
    """Whether it is by this figure that an answer is looked at with its labels flipped.

    That is the one that verdicts rest on, or with several classes the AUC of each against the rest.
    """
    return is_reversible(at) and at.metric == ("auc" if at.primary in _SHARES else at.primary)


def flip_figures(
    point: _Measured, values: Mapping[int, float], measured: Mapping[int, float]
) -> dict[int, float]:
    """By seed the figure of the answer with its labels flipped; empty where there is no such thing.

    Args:
        point: of an attack, else there is none.
        values: by seed.
        measured: by seed what was measured of that answer, where the value does not tell it.
    """
    if not point.attack:
        return {}
    return {s: 1 - v for s, v in values.items()} if is_reversible(point) else dict(measured)


def flip_advantages(
    flipped: Mapping[int, float], own: Paired, leak: Leakage | None
) -> dict[int, float]:
    """By seed its advantage over the control that was named beforehand.

    Args:
        flipped: of :func:`flip_figures`.
        own: figures of the controls by name and seed.
        leak: over all controls; None where there is none.
    """
    if leak is None:
        return {}
    control = own[leak.ahead.name]
    return {s: v - control[s] for s, v in flipped.items() if s in control}
