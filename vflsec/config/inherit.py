"""One flat scenario from a file that inherits, shares, sweeps and has several forms.

In this order: ``extends`` puts a file under this one; ``form = "NAME"`` lays ``[forms.NAME]`` over
it; ``--set`` changes single values; ``[shared.SECTION]`` is put under every section of that name;
``[grid.SECTION.WHICH]`` makes copies of sections, one for each combination of its values. Tables
merge key by key; all else, lists of sections too, is replaced as a whole. What comes out has none
of these keys; places in it lead back to where a value was written.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from vflsec.config.problems import Origin, Problem, ScenarioError
from vflsec.config.toml_text import Path as KeyPath
from vflsec.config.toml_text import path_text
from vflsec.core import check

__all__ = ["Written", "apply_extends", "apply_form", "expand"]

SECTIONS = ("data", "algorithm", "defense", "attack", "gate")
SWEPT = ("data", "algorithm", "attack")
DEFAULT_FORM = "reduced"
MOST_FILES, MOST_SECTIONS = 20, 10_000
"""How many files may extend one another, and how many sections a sweep may make."""

Reader = Callable[[Path, str], tuple[dict[str, Any], str, dict[KeyPath, int]]]


@dataclass
class Written:
    """The keys of one or several files, with their places.

    Attributes:
        raw: nested tables as read.
        file: of places that `files` does not name.
        lines: line of every key path.
        files: file of every key path that another file than `file` has.
    """

    raw: dict[str, Any]
    file: str
    lines: dict[KeyPath, int] = field(default_factory=dict)
    files: dict[KeyPath, str] = field(default_factory=dict)

    def problem(self, path: KeyPath, rule: str, value: Any = None) -> Problem:
        """A problem at a written path."""
        return Origin(self.file, self.lines, files=self.files).problem(path, rule, value)

    def over(self, base: Written) -> Written:
        """These keys over those of `base`."""
        replaced: list[KeyPath] = []
        raw = _merge(base.raw, self.raw, (), replaced)
        names = {p: base.files.get(p, base.file) for p in base.lines}
        stale = {p for p in base.lines for r in replaced if p[: len(r)] == r}
        lines = {p: n for p, n in base.lines.items() if p not in stale}
        files = {p: n for p, n in names.items() if p not in stale}
        own = {p: self.files.get(p, self.file) for p in self.lines}
        files = {p: n for p, n in (files | own).items() if n != self.file}
        return Written(raw, self.file, lines | self.lines, files)


def _merge(
    base: Mapping[str, Any], own: Mapping[str, Any], path: KeyPath, replaced: list[KeyPath]
) -> dict[str, Any]:
    out = dict(base)
    for key, value in own.items():
        if isinstance(value, Mapping) and isinstance(base.get(key), Mapping):
            out[key] = _merge(base[key], value, (*path, key), replaced)
        else:
            replaced.append((*path, key))
            out[key] = copy.deepcopy(value)
    return out


def apply_extends(
    written: Written,
    folder: Path,
    packaged: Mapping[str, Path],
    read: Reader,
    chain: tuple[Path, ...],
) -> Written:
    """`written` over the file that it extends, and that over its own.

    Args:
        written: one file.
        folder: where relative paths of ``extends`` start.
        packaged: files that come with the package, by name.
        read: reads a file under the name that errors shall give it.
        chain: the files that led here.

    Raises:
        ScenarioError: the file is not there, cannot be read, or extends itself.
    """
    if "extends" not in written.raw:
        return written
    name = written.raw["extends"]
    if not isinstance(name, str) or not name:
        rule = f"must be a path or the name of a packaged scenario in quotes, got {name!r}."
        raise ScenarioError([written.problem(("extends",), rule, name)])
    path = folder / name
    if not path.is_file():
        path = packaged.get(name, path)
    if not path.is_file():
        rule = (
            f"must be the path of a scenario, from {folder}, or a packaged name, got {name!r}. "
            f"{check.nearest(name, packaged)} Packaged: {', '.join(packaged) or 'none'}."
        )
        raise ScenarioError([written.problem(("extends",), rule.replace("  ", " "), name)])
    path = path.resolve()
    if path in chain:
        circle = " -> ".join(p.name for p in (*chain[chain.index(path) :], path))
        rule = f"must not lead back to a file that extends this one, got {circle}."
        raise ScenarioError([written.problem(("extends",), rule, name)])
    if len(chain) > MOST_FILES:
        rule = f"must not lead through more than {MOST_FILES} files. Put some of them together."
        raise ScenarioError([written.problem(("extends",), rule, name)])
    base = apply_extends(Written(*read(path, name)), path.parent, packaged, read, (*chain, path))
    base.raw.pop("name", None)  # a name says which file this is
    own = {k: v for k, v in written.raw.items() if k != "extends"}
    return Written(own, written.file, written.lines, written.files).over(base)


def apply_form(written: Written, asked: Any = None) -> Written:
    """The keys with the form laid over them that ``form``, or `asked` from ``--set``, names.

    Raises:
        ScenarioError: there is no such form.
    """
    raw = dict(written.raw)
    forms, name = raw.pop("forms", {}), raw.pop("form", DEFAULT_FORM)
    if not isinstance(forms, Mapping) or not all(isinstance(f, Mapping) for f in forms.values()):
        rule = "must be tables of keys: [forms.NAME]."
        raise ScenarioError([written.problem(("forms",), rule, forms)])
    name = name if asked is None else asked
    if not isinstance(name, str):
        rule = f"must be the name of a form in quotes, got {name!r}."
        raise ScenarioError([written.problem(("form",), rule, name)])
    plain = Written(raw, written.file, written.lines, written.files)
    if name not in forms and name != DEFAULT_FORM:
        known = [DEFAULT_FORM, *(f for f in forms if f != DEFAULT_FORM)]
        rule = f"must be one of {', '.join(known)}, got {name!r}. {check.nearest(name, known)}"
        problem = written.problem(("form",), rule.rstrip(), name)
        if asked is not None:
            problem = Problem("--set", 0, "form", name, rule.rstrip())
        raise ScenarioError([problem])
    if name not in forms:
        return plain
    here = ("forms", name)
    inside = {p: n for p, n in written.lines.items() if p[:2] == here and len(p) > 2}
    files = {p[2:]: written.files.get(p, written.file) for p in inside}
    own = Written(
        dict(forms[name]), written.file, {p[2:]: n for p, n in inside.items()},
        {p: n for p, n in files.items() if n != written.file},
    )  # fmt: skip
    return own.over(plain)


def expand(raw: Mapping[str, Any], say: Say) -> tuple[dict[str, Any], dict[KeyPath, KeyPath]]:
    """Sections with what they share, one for each point of their grid.

    Args:
        raw: the keys, overrides applied.
        say: takes problems: written path, rule, value.

    Returns:
        The flat keys, and for places in them that were written elsewhere where that is.
    """
    out, places = dict(raw), dict[KeyPath, KeyPath]()
    shared = _read_tables(out.pop("shared", {}), "shared", SECTIONS, say)
    grid = _read_tables(out.pop("grid", {}), "grid", SWEPT, say)
    for name in dict.fromkeys((*shared, *grid)):
        single = isinstance(out.get(name), Mapping)
        sections = [out[name]] if single else out.get(name, [])
        if not isinstance(sections, list) or not all(isinstance(s, Mapping) for s in sections):
            continue  # the model says what is wrong with them
        under = shared.get(name, {})
        axes = _find_axes(name, sections, grid.get(name, {}), say)
        count = sum(math.prod(len(axis) for axis in of) for of in axes)
        if count > MOST_SECTIONS:
            rule = f"must make at most {MOST_SECTIONS} sections, got {count}. Sweep fewer values."
            say(("grid", name), rule, None)
            continue
        made: list[dict[str, Any]] = []
        for i, own in enumerate(sections):
            for point in itertools.product(*axes[i]):
                here = (name, len(made))
                places[here] = (name, i)
                section = _merge(under, own, (), [])
                places |= _find_shared(under, own, here, ("shared", name))
                for one in point:
                    _put(section, one.inner, one.value)
                    places[(*here, *one.inner)] = one.place
                made.append(section)
        out[name] = made
    return out, places


def _read_tables(given: Any, key: str, known: Iterable[str], say: Say) -> dict[str, dict[str, Any]]:
    if not isinstance(given, Mapping):
        say((key,), f"must be tables: [{key}.{next(iter(known))}].", given)
        return {}
    out = {}
    for name, table in given.items():
        if name not in known:
            rule = f"must be one of {', '.join(known)}, got {name!r}. {check.nearest(name, known)}"
            say((key, name), rule.rstrip(), name)
        elif not isinstance(table, Mapping):
            say((key, name), f"must be a table: [{key}.{name}].", table)
        else:
            out[name] = dict(table)
    return out


def _find_shared(
    under: Mapping[str, Any], own: Mapping[str, Any], here: KeyPath, there: KeyPath
) -> dict[KeyPath, KeyPath]:
    out: dict[KeyPath, KeyPath] = {}
    for key, value in under.items():
        if key not in own:
            out[(*here, key)] = (*there, key)
        elif isinstance(value, Mapping) and isinstance(own[key], Mapping):
            out |= _find_shared(value, own[key], (*here, key), (*there, key))
    return out


Say = Callable[[KeyPath, str, Any], None]


class Point(NamedTuple):
    """One value of a swept key: where it is written, its path within the section, the value."""

    place: KeyPath
    inner: tuple[str, ...]
    value: Any


Axis = list[Point]


def _find_axes(
    name: str, sections: list[Any], grid: Mapping[str, Any], say: Say
) -> list[list[Axis]]:
    """The swept keys of each section."""
    out: list[list[Axis]] = [[] for _ in sections]
    for which, table in grid.items():
        here = ("grid", name, which)
        if not isinstance(table, Mapping):
            say(here, f"must be a table of lists: [grid.{name}.{which}].", table)
            continue
        chosen = _choose(name, sections, which, say)
        for inner, values in _list_leaves(table, ()):
            at = (*here, *inner)
            if not _is_swept(at, values, say):
                continue
            axis = [Point((*at, k), inner, v) for k, v in enumerate(values)]
            for i in chosen:
                if _is_set(sections[i], inner):
                    rule = f"is set in [[{name}]] number {i} too ({path_text(inner)}). Keep one."
                    say(at, rule, values)
                if any(inner == other[0].inner for other in out[i]):
                    say(at, f"is swept twice for [[{name}]] number {i}. Keep one.", values)
                out[i].append(axis)
    return out


def _choose(name: str, sections: list[Any], which: str, say: Say) -> list[int]:
    """The sections that a grid's key names."""
    chosen = [i for i, s in enumerate(sections) if which in ("*", str(i)) or s.get("name") == which]
    if not chosen:
        known = [str(s["name"]) for s in sections if "name" in s]
        names = ", ".join(dict.fromkeys(known)) or "the names"
        rule = (
            f'matches no [[{name}]]: must be "*", an index from 0 to {len(sections) - 1}, or '
            f"one of {names}. {check.nearest(which, known)}"
        )
        say(("grid", name, which), rule.rstrip(), which)
    return chosen


def _is_swept(at: KeyPath, values: Any, say: Say) -> bool:
    """Whether these are values to try."""
    if not isinstance(values, list) or not values:
        say(at, f"must be a list of the values to try, got {values!r}.", values)
        return False
    if any(v in values[:k] for k, v in enumerate(values)):
        say(at, f"must not list a value twice, got {values!r}.", values)
    return True


def _list_leaves(
    table: Mapping[str, Any], path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _list_leaves(value, (*path, key))
        else:
            yield (*path, key), value


def _is_set(section: Any, inner: tuple[str, ...]) -> bool:
    for key in inner:
        if not isinstance(section, Mapping) or key not in section:
            return False
        section = section[key]
    return True


def _put(section: dict[str, Any], inner: tuple[str, ...], value: Any) -> None:
    for key in inner[:-1]:
        below = section.get(key)
        section[key] = dict(below) if isinstance(below, Mapping) else {}
        section = section[key]
    section[inner[-1]] = value
