"""Kinds of label: all that the package knows of classes, a quantity or several labels.

A kind is one frozen value. It travels and is stored as a whole number, ``classes``, with the names
of several labels beside it; :func:`make_label` makes the kind of these again. To add a kind, write
one file like ``quantity.py`` and name it in :data:`KINDS`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

from vflsec.label.classes import Classes
from vflsec.label.counts import Counts
from vflsec.label.kind import Label
from vflsec.label.multilabel import MultiLabel
from vflsec.label.quantity import Quantity

__all__ = [
    "KINDS",
    "PRIMARY",
    "Classes",
    "Counts",
    "Label",
    "MultiLabel",
    "Quantity",
    "TaskName",
    "find_label",
    "make_label",
    "make_named_label",
]  # fmt: skip

TaskName = Literal["classification", "regression", "multilabel", "counts"]
"""What ``task`` under ``[data]`` may be: the name of each kind."""

KINDS: tuple[type[Label], ...] = (Classes, Quantity, MultiLabel, Counts)
"""Every kind of label, classes first."""

PRIMARY = tuple(dict.fromkeys(metric for kind in KINDS for metric in kind.measures[:1]))
"""Metrics that verdicts rest on wherever a label has them: those of kinds that are no classes."""

_BY_NAME = {kind.name: kind for kind in KINDS}
_BY_TARGET = {kind.target: kind for kind in KINDS}


@lru_cache
def make_label(code: int, names: tuple[str, ...] = ()) -> Label:
    """The kind that is stored as `code`: C for classes, 1 for a quantity, 0 for several labels.

    Args:
        code: :attr:`Label.code`.
        names: of several labels, else empty.
    """
    return next((kind for kind in KINDS if code in kind.codes), Classes).build(code, names)


def make_named_label(name: str, classes: int, names: tuple[str, ...]) -> Label:
    """The kind that ``task`` calls `name`, of so many classes and with these names of labels."""
    return _BY_NAME[name].build(classes, names)


def find_label(target: str, classes: int = 2) -> Label | None:
    """The kind whose truth says `target`, of so many classes; None where that is no label.

    Args:
        target: of a :class:`vflsec.core.guess.Truth`.
        classes: C.
    """
    kind = _BY_TARGET.get(target)
    return None if kind is None else kind.build(classes, ())
