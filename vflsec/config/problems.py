"""Everything that is wrong with a scenario, at once, each with its place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vflsec.config.toml_text import Path, find_line, path_text
from vflsec.core import check
from vflsec.errors import ConfigError

__all__ = ["Origin", "Problem", "ScenarioError", "unknown_key"]


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong.

    Attributes:
        file: the scenario file, or ``--set`` / ``<scenario>`` where there is none.
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


@dataclass(frozen=True)
class Origin:
    """Where the values of a scenario came from.

    Attributes:
        file: as the user named it.
        lines: line of every key path in that file.
        overrides: key paths set by ``--set``.
        singles: sections written as one table (``[data]``) though the model holds a list.
        scalars: key paths written as one value though the model holds a list.
        files: file of key paths that stand in another file than `file`.
        places: where values of the model were written, if it is elsewhere: by path, for all below.
    """

    file: str = "<scenario>"
    lines: Mapping[Path, int] = field(default_factory=dict)
    overrides: frozenset[Path] = frozenset()
    singles: frozenset[str] = frozenset()
    scalars: frozenset[Path] = frozenset()
    files: Mapping[Path, str] = field(default_factory=dict)
    places: Mapping[Path, Path] = field(default_factory=dict)

    def problem(self, path: Path, rule: str, value: Any = None) -> Problem:
        """A problem at `path`, a path in the model."""
        path = next((s for s in self.scalars if path[: len(s)] == s), path)
        for end in range(len(path), 0, -1):
            if path[:end] in self.places:
                path = (*self.places[path[:end]], *path[end:])
                break
        if len(path) > 1 and path[0] in self.singles and path[1] == 0:
            path = (path[0], *path[2:])
        line = find_line(self.lines, path)
        inside = any(path[: len(o)] == o for o in self.overrides)
        above = not line and any(o[: len(path)] == path for o in self.overrides)
        if path and (inside or above):
            return Problem("--set", 0, path_text(path), value, rule)
        known = next(
            (path[:end] for end in range(len(path), 0, -1) if path[:end] in self.lines), ()
        )
        return Problem(self.files.get(known, self.file), line, path_text(path), value, rule)


def unknown_key(key: str, value: Any, known: Sequence[str]) -> str:
    """The rule that an unknown key breaks, with the nearest known one."""
    hint = check.nearest(key, known)
    text = f"is not a known key (value {check.shown(value)}). {hint} "
    text += f"Known: {', '.join(known) or 'none'}."
    return text.replace("  ", " ")
