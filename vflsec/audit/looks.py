"""How often the gates of an audit were judged at other seeds, and what each look may err.

Whoever judges again and again, and stops at the first verdict that suits, errs more often than in
one look. So each look gets half of the error that is left, 1/2, 1/4, 1/8, ... of it, and all of
them together err no more often than one look at the audit's confidence (the union bound). Where no
further look was planned the first had the whole error, and all together err at most 1.5 times as
often. A share depends on the looks before it alone. So a budget may grow, two runs are as good as
one, and who looks once more at the same seeds sees the same verdict.

Source: Lan, DeMets, "Discrete sequential boundaries for clinical trials", Biometrika 70 (1983), on
spending an error level look by look; here without the looks' correlation.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from vflsec.core import check


@dataclass(frozen=True)
class Looks:
    """The looks at one audit; kept with its results.

    Attributes:
        seeds: those of each, in turn.
        planned: whether further looks were to come when the first was; else it had the whole error.
        after: how many of them came after the one that is made now: 0, unless one is made again.

    Raises:
        ConfigError: there is one without seeds, or the same twice, or fewer than came after one.
    """

    seeds: tuple[tuple[int, ...], ...] = ()
    planned: bool = True
    after: int = 0

    def __post_init__(self) -> None:
        if not all(self.seeds) or len({*self.seeds}) < len(self.seeds):
            raise check.fail("looks", "lists of seeds, each another", self.seeds)
        check.integer("looks: after", self.after, low=0, high=max(len(self.seeds) - 1, 0))

    def __str__(self) -> str:
        return ", ".join(str(len(of)) for of in self.seeds) or "none"

    @property
    def now(self) -> tuple[int, ...]:
        """The seeds of this look; none where nobody looked."""
        return self.seeds[-1 - self.after] if self.seeds else ()

    @property
    def share(self) -> float:
        """What part of the error this look may make."""
        number = len(self.seeds) - self.after
        return 1.0 if number == 1 and not self.planned else 0.5**number

    def narrow(self, confidence: float) -> float:
        """The confidence of this look's bounds, where all looks together have `confidence`."""
        return 1 - (1 - confidence) * self.share

    def add(self, seeds: Iterable[int]) -> Looks:
        """With a look at these seeds, which is made again where they were looked at."""
        look = tuple(seeds)
        if look in self.seeds:
            return replace(self, after=len(self.seeds) - 1 - self.seeds.index(look))
        return replace(self, seeds=(*self.seeds, look), after=0)

    def plan(self, first: int, most: int) -> list[int]:
        """Numbers of seeds at which to look: first where the last look was, then doubling.

        Args:
            first: seeds to begin with, where nobody has looked.
            most: the budget.
        """
        last = len(self.seeds[-1]) if self.seeds else first
        out = [min(max(first, last), most)]
        while out[-1] < most:
            out.append(min(2 * out[-1], most))
        return out


def join_looks(each: Iterable[Looks]) -> Looks:
    """All looks at the parts of one audit; unplanned if those at some part were."""
    parts = sorted(each, key=lambda looks: len(looks.seeds), reverse=True)
    every = Looks(planned=all(looks.planned for looks in parts))
    for seeds in (seeds for looks in parts for seeds in looks.seeds):
        every = every.add(seeds)
    return every.add(parts[0].now) if every.seeds else every
