"""An attack, ready to be made, and what an answer to it must look like."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from vflsec.core.attack import Attack
from vflsec.core.guess import Guess
from vflsec.plugins import registry
from vflsec.specs import AttackSpec

_NOTES, _NOTES_DEEP = 100_000, 10
"""Most characters and numbers in the notes of a guess, and how deep they may be nested."""


@dataclass(frozen=True)
class Prepared:
    """One attack, ready to run: what was asked for, and the attack with its parameters."""

    spec: AttackSpec
    attack: Attack

    def resolved(self, guess: Guess) -> Prepared:
        """The same with the attack that its answer is compared as."""
        attack = self.attack.resolved(guess)
        return self if attack is self.attack else replace(self, attack=attack)


def prepare(specs: Sequence[AttackSpec]) -> list[Prepared]:
    """The attacks that `specs` name.

    Raises:
        ConfigError: an attack or a parameter of it does not exist.
    """
    return [Prepared(s, registry.attacks.create(s.name, s.params)) for s in specs]


def explain_misfit(guess: Any, of: Prepared) -> str:
    """Why what an attack returned is no answer, or ''."""
    if not isinstance(guess, Guess):
        return f"attack {of.spec.label!r} returned {type(guess).__name__}, no Guess."
    targets = (
        (of.attack.target, "label") if of.attack.target == "attribute" else (of.attack.target,)
    )
    if guess.target not in targets:
        return f"attack {of.spec.label!r} must guess {of.attack.target!r}, got {guess.target!r}."
    if not isinstance(guess.notes, dict) or not can_be_kept(guess.notes):
        rule = f"notes of at most {_NOTES:,} plain values by name"
        return f"attack {of.spec.label!r} must return {rule}."
    if not np.isfinite(guess.scores).all():
        return "the attack diverged: scores are not finite."
    return ""


def can_be_kept(notes: Mapping[Any, Any]) -> bool:
    """Whether notes are plain values of bounded size, so that they can be stored."""
    left = _NOTES
    level: list[Any] = [notes]
    for _ in range(_NOTES_DEEP):
        below: list[Any] = []
        for value in level:
            if isinstance(value, np.ndarray | np.generic | torch.Tensor):
                left -= math.prod(value.shape)
            elif isinstance(value, Mapping):
                left -= sum(len(str(k)) for k in value)
                below += value.values() if all(isinstance(k, str) for k in value) else [object()]
            elif isinstance(value, list | tuple):
                below += value
            elif isinstance(value, str) and not any("\ud800" <= c <= "\udfff" for c in value):
                left -= len(value)
            elif value is not None and not isinstance(value, int | float):
                return False
        left -= len(below)
        if left < 0:
            return False
        if not below:
            return True
        level = below
    return False
