"""Sealed toy world: labels independent of every column, so nothing can be learnt about test rows.

It has the shape of the leaky world, but the labels are drawn by themselves.

What a sound audit finds: the federation is at chance on test rows, and so is every attack that
guesses test rows. On training rows an attack must be at chance as long as it reads features only;
gradients of training rows (and a model that memorised them) carry their labels in any world, so
there the sealed world is no negative control: permute the truth instead.

Source: this package's own test bed.
"""

from __future__ import annotations

from dataclasses import dataclass

from vflsec.data.sets._worlds import half_space
from vflsec.data.sets.leaky import Leaky
from vflsec.data.source import Source
from vflsec.plugins import registry


@registry.dataset
@dataclass(frozen=True)
class Sealed(Leaky):
    """A fresh world for each seed; parameters are those of leaky."""

    def load(self, seed: int) -> Source:
        """Draw the world of `seed`."""
        return half_space(self, seed, active=0.0, passive=0.0)
