"""Who is told what happens during an audit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vflsec.audit.result_row import ResultRow
    from vflsec.plan.values import Plan, Work

NOTE = -1.0
"""In the place of a share done: what is told is a sentence for the user."""


class Reporter:
    """Told what happens during an audit; this one is silent."""

    def open(self) -> None:
        """Called first, before tables are read."""

    def plan(self, plan: Plan, folder: Path, works: Sequence[Work]) -> None:
        """Called before the first training with the work that is missing."""

    def begin(self, work: Work) -> None:
        """A piece of work starts."""

    def step(self, work: Work, event: str, fraction: float) -> None:
        """It is `fraction` done; `event` says what it is at."""

    def finish(self, work: Work) -> None:
        """A piece of work is in the store."""

    def note(self, text: str) -> None:
        """Something that the user should know, one sentence."""

    def results(self, rows: Sequence[ResultRow]) -> None:
        """The exports were rewritten with these rows."""

    def close(self) -> None:
        """Nothing more will come."""
