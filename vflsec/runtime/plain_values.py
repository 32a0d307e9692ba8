"""The values that TOML and JSON know, as they are read from files and written to them."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

Scalar: TypeAlias = str | int | float | datetime.date | datetime.time | None
"""A text, a number, a truth value, a date, or nothing."""

if TYPE_CHECKING:
    Plain: TypeAlias = "Scalar | Sequence[Plain] | Mapping[str, Plain]"
    """A scalar, or a list or table of such values."""
else:  # dataclasses look types up when the program runs, and a recursive one cannot be
    Plain = object

Table: TypeAlias = Mapping[str, Plain]
"""A TOML table or a JSON object."""
