"""What can go wrong, by kind. Every message says what, where, what is allowed and what to do.

Errors a user can cause derive from :class:`VflsecError`; the command line prints them without a
traceback and exits with 2. Anything else is a defect of vflsec and exits with 4.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Sequence
from typing import Self

_MOST = 5  # names that a remedy repeats
AGAIN = "Run the same command again."
AUDIT_AGAIN = "Run the same `vflsec audit` again."
"""What mends an error that another run would not have."""
EDITED = "it was edited or damaged since vflsec wrote it"
"""Of what has another hash than stands beside it, or none. No key is in a hash: it finds damage and
edits by hand, and is no proof against somebody who writes such files with a program of their own.
"""


class Remediable(str):
    """What is wrong and what to do about it, as one text; for those who cannot, the first part.

    Attributes:
        bare: what is wrong, without the remedy.
    """

    bare: str

    def __new__(cls, bare: str, remedy: str = "") -> Self:
        made = super().__new__(cls, f"{bare} {remedy}".rstrip())
        made.bare = bare
        return made


def drop_remedy(text: str) -> str:
    """What is wrong, without what to do about it where that is known apart."""
    return text.bare if isinstance(text, Remediable) else text


class VflsecError(Exception):
    """Base of every error that a user can cause and mend.

    Attributes:
        what, rule: of :meth:`must`, what is wrong, and what is asked of it.
    """

    what: str = ""
    rule: str = ""

    @property
    def reason(self) -> str:
        """Its text, a :class:`Remediable` if it was given as one."""
        return self.args[0] if self.args and isinstance(self.args[0], str) else str(self)

    @property
    def demand(self) -> str:
        """Its text without what is wrong: ``must RULE, got GOT. REMEDY``."""
        return str(self).removeprefix(self.what).lstrip()

    @classmethod
    def must(cls, what: object, rule: str, got: object, remedy: str = "") -> Self:
        """The error ``WHAT must RULE, got GOT. REMEDY``."""
        made = cls(Remediable(f"{what} must {rule}, got {got}.", remedy))
        made.what, made.rule = str(what), rule
        return made

    @classmethod
    def at_most(cls, what: object, most: object, got: object, remedy: str = "") -> Self:
        """The error for more than `most`."""
        return cls.must(what, f"be at most {most}", got, remedy)

    @classmethod
    def between(cls, what: object, low: object, high: object, got: object) -> Self:
        """The error for something outside `low` to `high`, both allowed."""
        return cls.must(what, f"be {low} to {high}", got)

    @classmethod
    def shaped(cls, what: object, shape: object, got: object, remedy: str = "") -> Self:
        """The error for numbers of another shape."""
        return cls.must(what, f"have the shape {shape}", got, remedy)

    @classmethod
    def lacks(cls, what: object, package: str, extra: str = "", remedy: str = "") -> Self:
        """The error for a package that is not installed; it comes with `extra` of vflsec."""
        how = f"'vflsec[{extra}]'" if extra else package
        return cls(f"{what}: needs {package}. Run: pip install {how} {remedy}".rstrip())

    @classmethod
    def taken(cls, path: object, holds: str, remedy: str = "Name another folder.") -> Self:
        """The error for a place that is in use: ``PATH: holds HOLDS. REMEDY``."""
        return cls(f"{path}: holds {holds}. {remedy}")

    @classmethod
    def unreadable(cls, path: object, why: BaseException | str, remedy: str = "") -> Self:
        """The error for a file or a module that cannot be read."""
        text = getattr(why, "strerror", None) or first_line(why)
        return cls(f"{path}: cannot be read ({text}). {remedy}".rstrip())

    @classmethod
    def damaged(cls, path: object, why: BaseException | str) -> Self:
        """The error for a file that cannot be read as what it should be."""
        return cls(f"{path}: is damaged ({first_line(why)}).")


def first_line(why: BaseException | str, most: int = 160) -> str:
    """What an error of a library says, on one line of bounded length."""
    lines = str(why).splitlines() or [type(why).__name__]
    return lines[0].rstrip(".")[:most]


def format_list(names: Iterable[object], most: int = 12) -> str:
    """Up to `most` names in quotes, and how many more there are."""
    return join_some([repr(str(n) if isinstance(n, str) else n) for n in names], most)


def join_some(texts: Sequence[str], most: int = 4) -> str:
    """Up to `most` texts, and how many more there are."""
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return ", ".join(texts[:most]) + more


def repeat_set(texts: Iterable[str]) -> list[str]:
    """The words that give the same overrides to another command."""
    return [word for text in texts for word in ("--set", text)]


def format_count(n: int, what: str) -> str:
    """``1 test``, ``2 tests``."""
    return f"{n:,} {what}{'s' if n != 1 else ''}"


def capitalise(text: str) -> str:
    """The text with its first letter as a capital, the others as they are."""
    return text[:1].upper() + text[1:]


class ConfigError(VflsecError, ValueError):
    """A scenario, an option or a hyper-parameter is not usable."""


class DataError(VflsecError, ValueError):
    """A table or a data set is not usable."""


def data_error(where: object, name: str, rule: str, got: str, remedy: str = "") -> DataError:
    """The error for something in a table: ``WHERE: NAME must RULE, got GOT. REMEDY``."""
    return DataError.must(f"{show_place(where)}: {name}", rule, got, remedy)


def show_place(where: object) -> str:
    """A path or a key as a message shows it."""
    return str(where) if str(where).isprintable() else repr(str(where))


def write_setting(key: str, value: object = None, option: str = "") -> str:
    """A setting of the user's tables, with the option that drafts it: part of a remedy."""
    setting = key if value is None else f"{key} = {json.dumps(value)}"
    return f"{setting} under [data]" + (f" (or {add_option(option)})" if option else "")


def write_drop(names: Sequence[str]) -> str:
    """The setting, and the option, that leave columns out: part of a remedy."""
    option = " ".join(f"--drop {shlex.quote(n)}" for n in names) if len(names) <= _MOST else ""
    return write_setting("drop", names, option)


def add_option(option: str) -> str:
    """How to draft a scenario again with one more option: part of a remedy."""
    return f"add `{option}` to your `vflsec init`"


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
