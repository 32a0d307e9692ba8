"""The files of a trace that were checked, and what was found on the way of reading them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vflsec.core.view import Known
from vflsec.errors import TraceError
from vflsec.trace.grants import grant_of
from vflsec.trace.limits import Limits
from vflsec.trace.manifest import Manifest
from vflsec.trace.missing_rows import Prints
from vflsec.trace.traffic import Key

__all__ = ["TraceFiles"]


@dataclass
class TraceFiles:
    """Files whose names, sizes and hashes were checked; tables are checked as they are read.

    Attributes:
        folder: of the trace.
        manifest: public facts.
        files: size by relative path, without those of ``truth/``.
        sealed: whether counts and hashes stand outside the files.
        payloads: hashes of the tables of messages' numbers, if it is sealed.
        notes: what a reader should know, one sentence each.
        gaps: by observer, why its recording carries no pass, a clause each.
        prints: by observer, fingerprints of its messages, once they were read.
        crossed: what its messages came to, see :class:`vflsec.trace.traffic.Crossed`.
        unread: (kind, name) of messages that no attack looked at, see
            `vflsec.core.channel.Recorder`.
        granted: by hash of the labels, rows of which an adversary was granted them.
    """

    folder: Path
    manifest: Manifest
    files: dict[str, int]
    sealed: bool
    limits: Limits
    notes: list[str] = field(default_factory=list)
    payloads: tuple[str, ...] = ()
    gaps: dict[str, list[str]] = field(default_factory=dict)
    prints: dict[str, Prints] = field(default_factory=dict)
    crossed: dict[Key, list[int]] = field(default_factory=dict)
    unread: set[tuple[str, str]] = field(default_factory=set)
    granted: dict[str, NDArray[np.int64]] = field(default_factory=dict)
    _rows: dict[str, int] = field(default_factory=dict)

    def grant(self, known: Known) -> None:
        """Keep which labels an adversary was granted, by their hash."""
        rows = known.rows.numpy()
        self.granted[grant_of(rows, known.labels.numpy())] = rows

    def lack(self, observer: str, clauses: Sequence[str]) -> None:
        """Note why what was recorded of an observer carries no pass."""
        held = self.gaps.setdefault(observer, []) if clauses else []
        for clause in clauses:
            if clause not in held:
                held.append(clause)
                self.notes.append(f"what was recorded of {observer} carries no pass: {clause}.")

    def counted(self, path: str, rows: int) -> None:
        """Compare the rows of a table with the seal.

        Raises:
            TraceError: they differ.
        """
        if self._rows.get(path, rows) != rows:
            raise TraceError(f"{path}: has {rows} rows; the seal says {self._rows[path]}.")
