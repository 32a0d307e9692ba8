"""The form that pages of evidence share: an answer, how it was measured in a fold, then tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["fold", "known", "opening", "table"]


def opening(title: str, answer: str, method: Sequence[str]) -> list[str]:
    """The head of a page.

    Args:
        title: of the page.
        answer: to the one question that the page answers.
        method: paragraphs on how it was measured.
    """
    return [f"# {title}", "", line(answer), "", *fold("How this was measured", method)]


def fold(title: str, paragraphs: Sequence[str]) -> list[str]:
    """Paragraphs that open on a click."""
    return [f'??? note "{title}"', "", *(t for p in paragraphs for t in ("    " + line(p), ""))]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table in Markdown, and the empty line after it."""
    return [f"| {' | '.join(head)} |", "|" + "---|" * len(head),
            *(f"| {' | '.join(r)} |" for r in rows), ""]  # fmt: skip


def known(values: Iterable[float | None]) -> list[float]:
    """Those that are there."""
    return [v for v in values if v is not None]


def line(text: str) -> str:
    """The text without its breaks."""
    return " ".join(text.split())
