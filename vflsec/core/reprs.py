"""How values show themselves in a notebook."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape


def as_table(title: str, rows: Iterable[tuple[str, str]]) -> str:
    """An HTML table of two columns under a title; all text is escaped."""
    lines = "".join(f"<tr><th>{escape(k)}</th><td>{escape(v)}</td></tr>" for k, v in rows)
    return f"<table><caption>{escape(title)}</caption><tbody>{lines}</tbody></table>"
