"""Where Views come from: what attacks, controls and scores know of a training.

A live cohort, kept Views and a recorded trace are sources. What makes attacks, lays planted leaks
over Views or compares guesses with a truth takes what a source gives, and cannot tell which it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from vflsec.core.attack import Attack
    from vflsec.core.phase import Phase
    from vflsec.core.task import Task
    from vflsec.core.view import Table, View
    from vflsec.specs import AttackSpec


class Ended(NamedTuple):
    """A phase that has ended, and how many epochs of it an attack may look back at."""

    name: str
    epochs: int = 0


TRAINED = Ended("train")


@dataclass(frozen=True)
class Given:
    """What an attack is made on.

    Attributes:
        views: of the adversary, one for each training.
        seeds: of the trainings.
        phase: that has ended.
        lack: (status, reason) if they are not enough for the attack, else two empty strings.
    """

    views: Sequence[View]
    seeds: Sequence[int]
    phase: Ended | Phase = TRAINED
    lack: tuple[str, str] = ("", "")


class Source(Protocol):
    """Trainings side by side after a phase, as whoever attacks them has them."""

    def give(self, spec: AttackSpec, attack: Attack) -> Given:
        """What the adversary has, with the grants of `spec`."""


class Simulated(Source):
    """Trainings of our own, of which the scorer's side is known too.

    Attributes:
        phase: that has ended.
    """

    phase: Ended | Phase

    @property
    def seeds(self) -> Sequence[int]:
        """Of the trainings."""
        raise NotImplementedError("abstract")

    def view(self, spec: AttackSpec, r: int) -> View:
        """What the adversary has of training `r`, with the grants of `spec`."""
        raise NotImplementedError("abstract")

    def views(self, spec: AttackSpec) -> list[View]:
        """The views of all trainings."""
        return [self.view(spec, r) for r in range(len(self.seeds))]

    def give(self, spec: AttackSpec, attack: Attack) -> Given:
        return Given(self.views(spec), self.seeds, self.phase)

    def task(self, r: int) -> Task:
        """Who holds which rows in training `r`, and the truth."""
        raise NotImplementedError("abstract")

    def randomised(self, r: int) -> Tensor | None:
        """The labels (N,) that training `r` had where they are not the true ones, else None."""
        raise NotImplementedError("abstract")

    def embeddings(self, spec: AttackSpec, r: int) -> Table:
        """What each row's embedding was when its owner last sent it behind an encrypted layer.

        Raises:
            ThreatModelError: there are none.
        """
        raise NotImplementedError("abstract")
