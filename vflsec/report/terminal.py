"""Where people read."""

from __future__ import annotations

import os

from rich.console import Console

WIDTH = 100
"""Columns of what is no terminal, and the most of one."""


def console_for() -> Console:
    """Standard output; as wide as the terminal, up to a limit."""
    console = Console(
        soft_wrap=False, highlight=False, markup=False, emoji=False,
        force_terminal=False if os.environ.get("NO_COLOR") else None,  # no escape sequence then
    )  # fmt: skip
    if not console.is_terminal or console.width > WIDTH:
        console.width = WIDTH
    return console
