"""A finished audit, as a value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vflsec.audit.gate import Verdict
from vflsec.audit.point import Point
from vflsec.audit.result_row import ResultRow, results_table
from vflsec.audit.summary import Summary, read_summary

if TYPE_CHECKING:
    import pandas as pd


@dataclass
class Audit:
    """A finished audit.

    Attributes:
        folder: the results directory.
        read: gives :attr:`rows`; asked once, by whoever wants them first.
        summary: what ``summary.json`` and ``points.parquet`` hold.
    """

    folder: Path
    read: Callable[[], Sequence[ResultRow]]
    summary: dict[str, Any]

    @cached_property
    def found(self) -> Summary:
        """The summary as typed values."""
        return read_summary(self.summary)

    @property
    def verdicts(self) -> Sequence[Verdict]:
        """One for each gate."""
        return self.found.gates

    @property
    def exit_code(self) -> int:
        """0 passed, 1 a gate failed, 3 inconclusive (or not all was measured)."""
        return self.found.exit_code

    @cached_property
    def rows(self) -> Sequence[ResultRow]:
        """One for each measure."""
        return self.read()

    @cached_property
    def results(self) -> pd.DataFrame:
        """The rows as a table, see `vflsec.audit.result_row.COLUMNS`."""
        return results_table(self.rows)

    @property
    def points(self) -> list[Point]:
        """Means over seeds of what is audited, without references."""
        audited = {r.system for r in self.rows if r.role == "audit"}
        found = (Point.read(row) for row in self.summary["points"])
        return [p for p in found if p.system in audited]

    @property
    def findings(self) -> list[str]:
        """What was found, one sentence each, the largest leaks first."""
        return [finding.text for finding in self.found.findings]
