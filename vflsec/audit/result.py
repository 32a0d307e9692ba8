"""A finished audit, as a value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vflsec.audit.point import Point

if TYPE_CHECKING:
    import pandas as pd


@dataclass
class Audit:
    """A finished audit.

    Attributes:
        folder: the results directory.
        results: one row for each measure, see `vflsec.audit.result_row.COLUMNS`, and ``role``.
        summary: what ``summary.json`` and ``points.parquet`` hold.
        verdicts: one for each gate.
        exit_code: 0 passed, 1 a gate failed, 3 inconclusive (or not all was measured).
    """

    folder: Path
    results: pd.DataFrame
    summary: dict[str, Any]
    verdicts: Sequence[Any]
    exit_code: int

    @property
    def points(self) -> list[Point]:
        """Means over seeds of what is audited, without references."""
        own = self.results[self.results["role"] == "audit"]
        audited = {*zip(own["dataset"], own["algorithm"], strict=True)}
        found = (Point.read(row) for row in self.summary["points"])
        return [p for p in found if (p.dataset, p.algorithm) in audited]

    @property
    def findings(self) -> list[str]:
        """What was found, one sentence each, the largest leaks first."""
        return [found["text"] for found in self.summary.get("findings", ())]
