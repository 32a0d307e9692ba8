"""What a trace's messages came to, by kind and ends, as the ledger of a training counts them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from vflsec.specs import LedgerRow

__all__ = ["Crossed", "Key", "ledger"]

Key = tuple[str, str, str, str, str]


class Crossed:
    """Counts messages, numbers, bytes on the wire and steps by (phase, kind, name, ends)."""

    def __init__(self) -> None:
        self.counts: dict[Key, list[int]] = {}
        self._last: dict[Key, Any] = {}

    def add(self, fields: Mapping[str, Any]) -> None:
        """Count a message by its checked fields."""
        f = fields
        key = (f["phase"], f["kind"], f["name"], f["sender"], f["receiver"])
        held = self.counts.setdefault(key, [0, 0, 0, 0])
        size = f["wire_bytes"]
        elements = math.prod(f["shape"])
        when = (f["epoch"], f["step"])
        more = (1, elements, 4 * elements if size is None else size,
                int(f["step"] is None or self._last.get(key) != when))  # fmt: skip
        self.counts[key] = [a + b for a, b in zip(held, more, strict=True)]
        self._last[key] = when

    def merge(self, other: Mapping[Key, list[int]]) -> dict[Key, list[int]]:
        """With what another reading counted; of a message that both ends saw, the larger count."""
        out = dict(other)
        for key, mine in self.counts.items():
            out[key] = max(mine, out.get(key, mine))
        return out


def ledger(counts: Mapping[Key, list[int]]) -> list[LedgerRow]:
    """The counts as rows of a ledger."""
    return [
        LedgerRow(*key, messages=m, elements=e, bytes=b, rounds=r)
        for key, (m, e, b, r) in counts.items()
    ]
