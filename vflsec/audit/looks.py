"""How often the gates of an audit were judged while seeds were added, and what each look may err.

Whoever judges again and again, and stops at the first verdict that suits, errs more often than in
one look. So each look gets half of the error that is left, 1/2, 1/4, 1/8, ... of it, and all of
them together err no more often than one look at the audit's confidence (the union bound). A share
depends on the looks before it alone. So a budget may grow, and two runs are as good as one.

Source: Lan, DeMets, "Discrete sequential boundaries for clinical trials", Biometrika 70 (1983), on
spending an error level look by look; here without the looks' correlation.
"""

from __future__ import annotations

from dataclasses import dataclass

from vflsec.core import check


@dataclass(frozen=True)
class Looks:
    """The looks at one audit; kept with its results.

    Attributes:
        seeds: how many seeds there were at each, ascending; none where gates are judged once, at
            the audit's confidence.

    Raises:
        ConfigError: they do not ascend from 1.
    """

    seeds: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        rule = "ascending whole numbers from 1"
        if not all(type(n) is int for n in self.seeds) or not all(
            a < b for a, b in zip((0, *self.seeds), self.seeds, strict=False)
        ):
            raise check.fail("looks", rule, self.seeds)

    def __str__(self) -> str:
        return ", ".join(map(str, self.seeds)) or "none"

    @property
    def share(self) -> float:
        """What part of the error the last look may make."""
        return 0.5 ** len(self.seeds)

    def narrow(self, confidence: float) -> float:
        """The confidence of the last look's bounds, where all looks together have `confidence`."""
        return 1 - (1 - confidence) * self.share

    def add(self, seeds: int) -> Looks:
        """With a look at so many seeds; fewer than before are nothing new."""
        return self if seeds <= max(self.seeds, default=0) else Looks((*self.seeds, seeds))

    def plan(self, first: int, most: int) -> list[int]:
        """Numbers of seeds at which to look: first where the last look was, then doubling.

        Args:
            first: seeds to begin with, where nobody has looked.
            most: the budget.
        """
        out = [self.seeds[-1] if self.seeds else first]
        while out[-1] < most:
            out.append(min(2 * out[-1], most))
        return out
