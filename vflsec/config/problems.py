"""Values of a scenario with the places where they were written, and all that is wrong with them."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from vflsec.config.toml_text import Path, find_line, path_text
from vflsec.core import check
from vflsec.errors import ConfigError
from vflsec.runtime.plain_values import Plain, Table


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong.

    Attributes:
        file: the scenario file, or an option or ``<scenario>`` where there is none.
        line: line in that file from 1, 0 where there is none.
        path: key path such as ``attack.0.known_rows``, ``""`` for the whole file.
        value: what stands there, None if the key is missing.
        rule: what is wrong and what is allowed.
    """

    file: str
    line: int
    path: str
    value: Any
    rule: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        return f"{place}: {self.path}{' ' if self.path else ''}{self.rule}"


class ScenarioError(ConfigError):
    """A scenario cannot be used; `problems` lists why, all of it."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        unique = list(dict.fromkeys(str(p) for p in problems))
        self.problems = tuple({str(p): p for p in problems}.values())
        head = "" if len(unique) == 1 else f"{len(unique)} problems in the scenario:\n"
        super().__init__(head + "\n".join(unique))


class Place(NamedTuple):
    """Where something was written: file (or option), line (0 = none), key path."""

    file: str
    line: int
    path: Path


@dataclass
class Written:
    """A value, or a table or list of such, with its place.

    A value keeps its place wherever inheriting, sharing and sweeping put it.

    Attributes:
        value: a scalar, or ``{key: Written}``, or ``[Written]``.
    """

    value: Any
    place: Place

    @property
    def tables(self) -> list[Written]:
        """The tables of a list of tables, or the one table that stands for them; else none."""
        found = self.value if isinstance(self.value, list) else [self]
        return found if all(isinstance(t.value, dict) for t in found) else []

    def plain(self) -> Any:
        """The value without places."""
        if isinstance(self.value, dict):
            return {k: v.plain() for k, v in self.value.items()}
        return [v.plain() for v in self.value] if isinstance(self.value, list) else self.value

    def below(self, key: str | int) -> Written | None:
        """What stands under a key or an index."""
        if isinstance(self.value, list):
            return self.value[key] if isinstance(key, int) and key < len(self.value) else None
        return self.value.get(key) if isinstance(self.value, dict) else None

    def at(self, path: Path) -> Written:
        """What stands at a path that is there."""
        here: Written | None = self
        for key in path:
            here = here.below(key) if here is not None else None
        assert here is not None, path
        return here

    def find(self, path: Path) -> Place:
        """The place of what a path leads to; of what is not there, that of the section around it.

        The key path is the one that was written.
        """
        here = self
        for i, key in enumerate(path):
            found = here.below(key)
            if found is None:
                return here.place._replace(path=(*here.place.path, *path[i:]))
            here = found
        return here.place

    def problem(self, path: Path, rule: str, value: Any = None) -> Problem:
        """A problem at `path` below this."""
        file, line, written = self.find(path)
        return Problem(file, line, path_text(written), value, rule)

    def refuse(self, rule: str) -> ScenarioError:
        """The error for this value alone."""
        return ScenarioError([self.problem((), rule, self.plain())])

    def over(self, base: Written) -> Written:
        """This value over `base`: tables key by key, all else as a whole."""
        if not (isinstance(self.value, dict) and isinstance(base.value, dict)):
            return self
        own = {k: v.over(base.value[k]) if k in base.value else v for k, v in self.value.items()}
        return Written(base.value | own, self.place)


def build_tree(value: Plain, locate: Callable[[Path], Place], path: Path = ()) -> Written:
    """Plain values with the places that `locate` gives for their paths."""
    made: Any = value
    if isinstance(value, Mapping):
        made = {k: build_tree(v, locate, (*path, k)) for k, v in value.items()}
    elif isinstance(value, list | tuple):
        made = [build_tree(v, locate, (*path, i)) for i, v in enumerate(value)]
    return Written(made, locate(path))


def locate(file: str, lines: Mapping[Path, int]) -> Callable[[Path], Place]:
    """The places in a file, by the lines of its keys."""
    return lambda path: Place(file, find_line(lines, path), path)


SEEDS, UNEQUAL = "1 to 10000 or a list of seeds", "not repeat a value"


def unknown_key(key: str, value: Any, known: Sequence[str]) -> str:
    """The rule that an unknown key breaks, with the nearest known one."""
    one = "One table has no index: leave it out." if key.isdecimal() else ""
    hint = check.nearest(key, known) or one
    text = f"is not a known key (value {check.shown(value)}). {hint} "
    text += f"Known: {', '.join(known) or 'none'}."
    return text.replace("  ", " ")


def list_tables(normal: Table, key: str) -> list[tuple[int, Table]]:
    """The tables of a section that may be written several times, with their indices."""
    found = normal.get(key)
    found = found if isinstance(found, list) else []
    return [(i, s) for i, s in enumerate(found) if isinstance(s, Mapping)]


DEEPEST = 20


def describe_beyond(error: Exception) -> str:
    """Why a text that may be TOML is not read: Python has limits that TOML has not."""
    if isinstance(error, RecursionError):
        return f"must not be nested deeper than {DEEPEST}."
    return "must be an integer of 64 bits."


def find_deep_key(raw: Table) -> str:
    """The key below which values are nested too deep; '' where none is. Does not recurse."""
    for key, value in raw.items():
        level: list[Plain] = [value]
        for _ in range(DEEPEST):
            inner = [v.values() if isinstance(v, Mapping) else v for v in level
                     if isinstance(v, Mapping | list)]  # fmt: skip
            level = [v for values in inner for v in values]
            if not level:
                break
        else:
            return key
    return ""


def find_bad_values(tree: Written, value: Plain, path: Path = ()) -> list[Problem]:
    """Numbers that are not finite or too large for TOML, and dates, wherever they stand."""
    if isinstance(value, Mapping | list):
        if len(path) > DEEPEST:
            return [tree.problem(path[:4], describe_beyond(RecursionError()), "...")]
        inner = value.items() if isinstance(value, Mapping) else enumerate(value)
        return [p for k, v in inner for p in find_bad_values(tree, v, (*path, k))]
    if isinstance(value, float) and not math.isfinite(value):
        return [tree.problem(path, check.must("be a finite number", value), value)]
    if isinstance(value, int) and abs(value) >= 2**63:
        return [tree.problem(path, describe_beyond(ValueError()), 0)]
    if isinstance(value, datetime.date | datetime.time):
        return [tree.problem(path, check.must("not be a date", str(value)), str(value))]
    return []
