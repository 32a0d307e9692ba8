"""What `vflsec new` leaves to be filled in must not be left."""

from __future__ import annotations

from pathlib import Path

PLACEHOLDERS = {
    "ONE SENTENCE": "a summary", "AUTHORS": "authors", '"TITLE"': "a title",
    "VENUE YEAR": "a venue", "arXiv:NUMBER": "a preprint, or nothing",
    "section N": "a section", "becomes ...": "a formula", "r_i = ...": "a formula",
    "stop: ...": "what it does not stop", "work: ...": "where it fails",
}  # fmt: skip
"""Marks of the templates, and what belongs in their place."""


def assert_filled(path: Path) -> None:
    """Every mark of the template in the file at `path` was replaced.

    Raises:
        AssertionError: naming the file, the line and what belongs there.
    """
    for i, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        for mark, what in PLACEHOLDERS.items():
            assert mark not in line, f"{path}:{i}: replace {mark!r} by {what}."
