"""A label that is a quantity in a trace: known values as an attacker holds them."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from vflsec.core.quantity_questions import answers
from vflsec.core.view import Facts, Known
from vflsec.specs import QUESTIONS, asked

__all__ = ["LEAST", "derive_facts", "derive_known", "standard"]

LEAST = 10
"""Known values from which on a tenth of them is one: with fewer no question is asked."""


def standard(values: Tensor) -> Tensor:
    """Values (q,) in standard deviations from their mean; that of training is not known here."""
    sd = values.std(correction=0)
    return (values - values.mean()) / sd if float(sd) > 0 else values * 0


def derive_known(known: Known, question: str) -> Known:
    """Known values as they are guessed, or answers to a question about them.

    Cut points are those of the known values: what the tails of all are, nobody granted.
    """
    values = standard(known.labels)
    if not question:
        return Known(known.rows, values)
    return Known(known.rows, answers(question, values, values), values)


def derive_facts(facts: Facts, known: Known | None, question: str) -> dict[str, Any]:
    """What changes in public facts where a question is asked."""
    few = 0 if known is None else len(known)
    why = "" if few >= LEAST else (
        f"whether a value is {asked(question)} is asked with {LEAST} known values or more, there "
        f"are {few}."
    )  # fmt: skip
    assert question in QUESTIONS
    return {"classes": 2, "extra": {**facts.extra, "question": question, "unclear": why}}
