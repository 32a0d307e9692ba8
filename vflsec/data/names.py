"""Which names may stand in reports, in tables and on a terminal, and what may be a label."""

from __future__ import annotations

from typing import Any

FORMULA = "=+-@"
"""A text that begins so is a formula to spreadsheets that open ``results.csv``."""

UNSEEN = "\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0"
"""Letters and signs that count as printable and show nothing: two names would look the same."""

_MOST = 200


def find_unshowable(name: str) -> str:
    """What a name would have to do to be shown, in words; '' if it may be shown as it is."""
    if name[:1] in tuple(FORMULA):
        return "begin with a letter or a digit"
    if not name.isprintable() or set(name) & set(UNSEEN):
        return "be printable"
    if len(name) > _MOST:
        return f"have at most {_MOST} characters"
    return ""


def label_rule(label: Any, task: str | None) -> str:
    """What a label must be for this task where it is something else, else ''."""
    several = isinstance(label, list | tuple)
    if task == "multilabel" and (not several or len(label) < 2):
        return 'be a list of two columns or more (task = "multilabel")'
    if task != "multilabel" and several:
        return 'be one column; several need task = "multilabel"'
    return ""


def party_names(parties: int) -> tuple[str, ...]:
    """``active, passive`` for two parties, else ``active, passive1, passive2, ...``."""
    if parties == 2:
        return ("active", "passive")
    return ("active", *(f"passive{i}" for i in range(1, parties)))
