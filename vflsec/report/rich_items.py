"""What the pages of a terminal share: how wide they are, a hanging indent, a defense's name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

__all__ = ["WIDTH", "item", "strength_of"]

WIDTH = 100
"""Columns of what is no terminal, and the most of one."""


def item(head: str, body: Text, style: str = "") -> Table:
    """A hanging indent: `head`, then `body` wrapped beside it."""
    table = Table.grid(padding=0)
    table.add_column(width=len(head))
    table.add_column()
    table.add_row(Text(head, style=style), body)
    return table


def strength_of(row: Mapping[str, Any]) -> str:
    """The defense and its strength: ``iso 5``, ``no defense``."""
    if row["defense"] == "none":
        return "no defense"
    return row["defense"] if row["strength"] is None else f"{row['defense']} {row['strength']:g}"
