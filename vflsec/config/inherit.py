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
from typing import Any

from vflsec.config.problems import Origin, Problem, ScenarioError
from vflsec.config.toml_text import Path as KeyPath
from vflsec.config.toml_text import path_text
from vflsec.core import check

__all__ = ["Written", "chosen_form", "expand", "inherited"]

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
        raw = _merged(base.raw, self.raw, (), replaced)
        names = {p: base.files.get(p, base.file) for p in base.lines}
        stale = {p for p in base.lines for r in replaced if p[: len(r)] == r}
        lines = {p: n for p, n in base.lines.items() if p not in stale}
        files = {p: n for p, n in names.items() if p not in stale}
        own = {p: self.files.get(p, self.file) for p in self.lines}
        files = {p: n for p, n in (files | own).items() if n != self.file}
        return Written(raw, self.file, lines | self.lines, files)


def _merged(
    base: Mapping[str, Any], own: Mapping[str, Any], path: KeyPath, replaced: list[KeyPath]
) -> dict[str, Any]:
    out = dict(base)
    for key, value in own.items():
        if isinstance(value, Mapping) and isinstance(base.get(key), Mapping):
            out[key] = _merged(base[key], value, (*path, key), replaced)
        else:
            replaced.append((*path, key))
            out[key] = copy.deepcopy(value)
    return out


def inherited(
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
    base = inherited(Written(*read(path, name)), path.parent, packaged, read, (*chain, path))
    base.raw.pop("name", None)  # a name says which file this is
    own = {k: v for k, v in written.raw.items() if k != "extends"}
    return Written(own, written.file, written.lines, written.files).over(base)


def chosen_form(written: Written, asked: Any = None) -> Written:
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


def expand(
    raw: Mapping[str, Any], say: Callable[[KeyPath, str, Any], None]
) -> tuple[dict[str, Any], dict[KeyPath, KeyPath]]:
    """Sections with what they share, one for each point of their grid.

    Args:
        raw: the keys, overrides applied.
        say: takes problems: written path, rule, value.

    Returns:
        The flat keys, and for places in them that were written elsewhere where that is.
    """
    out, places = dict(raw), dict[KeyPath, KeyPath]()
    shared = _tables(out.pop("shared", {}), "shared", SECTIONS, say)
    grid = _tables(out.pop("grid", {}), "grid", SWEPT, say)
    for name in dict.fromkeys((*shared, *grid)):
        single = isinstance(out.get(name), Mapping)
        sections = [out[name]] if single else out.get(name, [])
        if not isinstance(sections, list) or not all(isinstance(s, Mapping) for s in sections):
            continue  # the model says what is wrong with them
        under = shared.get(name, {})
        axes = _axes(name, sections, grid.get(name, {}), say)
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
                section = _merged(under, own, (), [])
                places |= _from_shared(under, own, here, ("shared", name))
                for place, inner, value in point:
                    _put(section, inner, value)
                    places[(*here, *inner)] = place
                made.append(section)
        out[name] = made
    return out, places


def _tables(
    given: Any, key: str, known: Iterable[str], say: Callable[[KeyPath, str, Any], None]
) -> dict[str, dict[str, Any]]:
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


def _from_shared(
    under: Mapping[str, Any], own: Mapping[str, Any], here: KeyPath, there: KeyPath
) -> dict[KeyPath, KeyPath]:
    out: dict[KeyPath, KeyPath] = {}
    for key, value in under.items():
        if key not in own:
            out[(*here, key)] = (*there, key)
        elif isinstance(value, Mapping) and isinstance(own[key], Mapping):
            out |= _from_shared(value, own[key], (*here, key), (*there, key))
    return out


Axis = list[tuple[KeyPath, tuple[str, ...], Any]]


def _axes(
    name: str,
    sections: list[Any],
    grid: Mapping[str, Any],
    say: Callable[[KeyPath, str, Any], None],
) -> list[list[Axis]]:
    """For each section its swept keys: place of a value, path within the section, the value."""
    out: list[list[Axis]] = [[] for _ in sections]
    for which, table in grid.items():
        here = ("grid", name, which)
        if not isinstance(table, Mapping):
            say(here, f"must be a table of lists: [grid.{name}.{which}].", table)
            continue
        known = [str(s["name"]) for s in sections if "name" in s]
        chosen = [
            i for i, s in enumerate(sections) if which in ("*", str(i)) or s.get("name") == which
        ]
        if not chosen:
            names = ", ".join(dict.fromkeys(known)) or "the names"
            rule = (
                f'matches no [[{name}]]: must be "*", an index from 0 to {len(sections) - 1}, or '
                f"one of {names}. {check.nearest(which, known)}"
            )
            say(here, rule.rstrip(), which)
        for inner, values in _leaves(table, ()):
            at = (*here, *inner)
            if not isinstance(values, list) or not values:
                say(at, f"must be a list of the values to try, got {values!r}.", values)
                continue
            if any(v in values[:k] for k, v in enumerate(values)):
                say(at, f"must not list a value twice, got {values!r}.", values)
            for i in chosen:
                if _has(sections[i], inner):
                    rule = f"is set in [[{name}]] number {i} too ({path_text(inner)}). Keep one."
                    say(at, rule, values)
                if any(inner == axis[0][1] for axis in out[i]):
                    say(at, f"is swept twice for [[{name}]] number {i}. Keep one.", values)
                out[i].append([((*at, k), inner, v) for k, v in enumerate(values)])
    return out


def _leaves(
    table: Mapping[str, Any], path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, (*path, key))
        else:
            yield (*path, key), value


def _has(section: Any, inner: tuple[str, ...]) -> bool:
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
