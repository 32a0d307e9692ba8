"""What `vflsec new` leaves to be filled in must not be left."""

from __future__ import annotations

from pathlib import Path

PLACEHOLDERS = {
    "ONE SENTENCE": "what it does, in plain words, as the first line of the docstring",
    "AUTHORS": "who published it, in the Source paragraph",
    '"TITLE"': "the title of the publication, in the Source paragraph",
    "VENUE YEAR": "where and when it was published, in the Source paragraph",
    "arXiv:NUMBER": "the number of the preprint, or nothing, in the Source paragraph",
    "section N": "the section or equation that the file implements, in the Source paragraph",
    "becomes ...": "the formula, with shapes",
    "r_i = ...": "the formula, with shapes",
    "stop: ...": "a case that it does not stop",
    "work: ...": "a case in which it does not work",
}
"""Marks of the templates, and what belongs in their place."""


def assert_filled(path: Path) -> None:
    """Every mark of the template in the file at `path` was replaced.

    Raises:
        AssertionError: naming the file, the line and what belongs there.
    """
    for i, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        for mark, what in PLACEHOLDERS.items():
            assert mark not in line, f"{path}:{i}: replace {mark!r} by {what}."
