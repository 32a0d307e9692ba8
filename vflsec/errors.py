"""What can go wrong, by kind. Every message says what, where, what is allowed and what to do.

Errors a user can cause derive from :class:`VflsecError`; the command line prints them without a
traceback and exits with 2. Anything else is a defect of vflsec and exits with 4.
"""

from __future__ import annotations

from typing import Self


class VflsecError(Exception):
    """Base of every error that a user can cause and mend."""

    @classmethod
    def must(cls, what: object, rule: str, got: object, remedy: str = "") -> Self:
        """The error ``WHAT must RULE, got GOT. REMEDY``."""
        return cls(f"{what} must {rule}, got {got}.{' ' * bool(remedy)}{remedy}")

    @classmethod
    def damaged(cls, path: object, why: BaseException | str) -> Self:
        """The error for a file that cannot be read as what it should be."""
        return cls(f"{path}: is damaged ({first_line(why)}).")


def first_line(why: BaseException | str, most: int = 160) -> str:
    """What an error of a library says, on one line of bounded length."""
    lines = str(why).splitlines() or [type(why).__name__]
    return lines[0].rstrip(".")[:most]


class ConfigError(VflsecError, ValueError):
    """A scenario, an option or a hyper-parameter is not usable."""


class DataError(VflsecError, ValueError):
    """A table or a data set is not usable."""


def data_error(where: object, name: str, rule: str, got: str, remedy: str = "") -> DataError:
    """The error for something in a table: ``WHERE: NAME must RULE, got GOT. REMEDY``."""
    place = str(where) if str(where).isprintable() else repr(str(where))
    return DataError.must(f"{place}: {name}", rule, got, remedy)


class ShapeError(VflsecError, ValueError):
    """A tensor does not have the shape that was agreed."""


class ThreatModelError(VflsecError, ValueError):
    """An attack asks for what its adversary does not have."""


class TraceError(VflsecError, ValueError):
    """A recorded trace is damaged, incomplete where it must not be, or not safe to read."""


class CiphertextError(VflsecError, ValueError):
    """An encrypted message is damaged, or belongs to another key."""


class PolicyError(VflsecError, ValueError):
    """A policy met something that it covers but cannot treat; passing it on would fail open."""


class MissingDependencyError(VflsecError, ImportError):
    """An optional package is needed and not installed."""
