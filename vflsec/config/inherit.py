"""One flat scenario from a file that inherits, shares, sweeps and has several forms.

In this order: ``extends`` puts a file under this one; ``form = "NAME"`` lays ``[forms.NAME]`` over
it, after the ``form`` that this one may name in turn; ``--set`` changes single values;
``[shared.SECTION]`` is put under every section of that name; ``[grid.SECTION.WHICH]`` makes copies
of sections, one for each combination of its values. Tables merge key by key; all else, lists of
sections too, is replaced as a whole. What comes out has none of these keys; every value in it still
has the place where it was written.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from vflsec.config.problems import UNEQUAL, Place, Problem, ScenarioError, Written
from vflsec.config.schema import SHARED, SWEPT
from vflsec.config.toml_text import path_text
from vflsec.core import check

DEFAULT_FORM = "reduced"
MOST_FILES, MOST_SECTIONS = 20, 10_000
"""How many files may extend one another, and how many sections a sweep may make."""

Reader = Callable[[Path, str], Written]
Inner = tuple[str, ...]
"""A key's path within its section."""


def apply_extends(
    tree: Written, folder: Path, packaged: Mapping[str, Path], read: Reader, chain: tuple[Path, ...]
) -> Written:
    """A scenario over the file that it extends, and that over its own.

    Args:
        tree: one file.
        folder: where relative paths of ``extends`` start.
        packaged: files that come with the package, by name.
        read: reads a file under the name that errors shall give it.
        chain: the files that led here.

    Raises:
        ScenarioError: the file is not there, cannot be read, or extends itself.
    """
    extends = tree.below("extends")
    if extends is None:
        return tree
    name = extends.plain()
    path = folder / str(name)
    if not path.is_file():
        path = packaged.get(str(name), path)
    if not path.is_file():
        rule = f"be a path from {folder} or a packaged name"
        hint = check.choices(name, packaged, "vflsec list scenarios")
        raise extends.refuse(check.must(rule, name, hint))
    path = path.resolve()
    if path in chain or len(chain) > MOST_FILES:
        led = " -> ".join(p.name for p in (*chain, path))
        raise extends.refuse(
            check.must(f"lead to at most {MOST_FILES} files and not in a circle", led)
        )
    base = apply_extends(read(path, name), path.parent, packaged, read, (*chain, path))
    base.value.pop("name", None)  # a name says which file this is
    return tree.over(base)


def apply_form(tree: Written, asked: str | None = None) -> Written:
    """The keys with the form laid over them that ``form``, or `asked` from ``--set``, names.

    Raises:
        ScenarioError: there is no such form, or forms are laid over one another in a circle.
    """
    keys = dict(tree.value)
    forms, form = keys.pop("forms", None), keys.pop("form", None)
    known = forms.value if forms is not None else {}
    if not isinstance(known, dict) or not all(isinstance(f.value, dict) for f in known.values()):
        raise forms.refuse(_need_table("forms.NAME"))
    name = asked if asked is not None else DEFAULT_FORM if form is None else form.value
    plain = Written(keys, tree.place)
    if isinstance(name, str) and name in known:
        layer, of = dict(known[name].value), {n: f for n, f in known.items() if n != name}
        if "form" in layer:  # which it is laid over
            under = {**keys, "form": layer.pop("form"), "forms": Written(of, known[name].place)}
            plain = apply_form(Written(under, tree.place))
        return Written(Written(layer, known[name].place).over(plain).value, tree.place)
    if name == DEFAULT_FORM:
        return plain
    rule = check.must_be_of([DEFAULT_FORM, *known], name)
    raise (
        ScenarioError([Problem("--set", 0, "form", name, rule)])
        if form is None or asked is not None
        else form.refuse(rule)
    )


def expand(tree: Written, problems: list[Problem]) -> Written:
    """Sections with what they share, one for each point of their grid.

    Args:
        tree: the keys, overrides applied.
        problems: to which what is wrong is added.
    """
    keys = dict(tree.value)
    shared = _read_tables(keys.pop("shared", None), SHARED, problems)
    grid = _read_tables(keys.pop("grid", None), SWEPT, problems)
    for name in dict.fromkeys((*shared, *grid)):
        found = keys.get(name, Written([], Place(tree.place.file, 0, (name,))))
        sections = found.tables
        if not sections and found.value != []:
            continue  # the model says what is wrong with them
        axes = _find_axes(sections, grid.get(name), problems)
        count = sum(math.prod(len(axis) for axis in of) for of in axes)
        if count > MOST_SECTIONS:
            rule = check.must(f"make at most {MOST_SECTIONS} sections", count)
            problems.append(grid[name].problem((), rule))
            continue
        made = []
        for own, swept in zip(sections, axes, strict=True):
            section = own.over(shared[name]) if name in shared else own
            for point in itertools.product(*swept):
                copy = section
                for inner, value in point:
                    copy = _put(copy, inner, value)
                made.append(copy)
        keys[name] = Written(made, found.place)
    return Written(keys, tree.place)


def _read_tables(
    given: Written | None, known: Iterable[str], problems: list[Problem]
) -> dict[str, Written]:
    """The tables of ``shared`` or ``grid`` by section."""
    if given is None:
        return {}
    (key,) = given.place.path[-1:]
    if not isinstance(given.value, dict):
        rule = _need_table(f"{key}.{next(iter(known))}")
        problems.append(given.problem((), rule, given.plain()))
        return {}
    out = {}
    for name, table in given.value.items():
        if name not in known:
            problems.append(table.problem((), check.must_be_of(known, name), name))
        elif not isinstance(table.value, dict):
            problems.append(table.problem((), _need_table(f"{key}.{name}"), table.plain()))
        else:
            out[name] = table
    return out


def _need_table(example: str) -> str:
    """The rule of what must be a table and is none."""
    return f"must be a table: [{example}]."


class Point(NamedTuple):
    """One value of a swept key."""

    inner: Inner
    value: Written


Axis = list[Point]


def _find_axes(
    sections: list[Written], grid: Written | None, problems: list[Problem]
) -> list[list[Axis]]:
    """The swept keys of each section."""
    out: list[list[Axis]] = [[] for _ in sections]
    for which, table in grid.value.items() if grid is not None else ():
        name = str(table.place.path[-2])
        if not isinstance(table.value, dict):
            rule = _need_table(f"grid.{name}.{which}")
            problems.append(table.problem((), rule, table.plain()))
            continue
        chosen = _choose(name, sections, which, table, problems)
        for inner, values in _list_leaves(table, ()):
            if not _is_swept(values, problems):
                continue
            wrong = []
            for i in chosen:
                if _is_set(sections[i], inner):
                    wrong.append(f"is also set in [[{name}]] {i} ({path_text(inner)}). Keep one.")
                if any(inner == other[0].inner for other in out[i]):
                    wrong.append(f"is swept twice for [[{name}]] {i}.")
                out[i].append([Point(inner, v) for v in values.value])
            problems += [values.problem((), rule, values.plain()) for rule in wrong]
    return out


def _choose(
    name: str, sections: list[Written], which: str, table: Written, problems: list[Problem]
) -> list[int]:
    """The sections that a grid's key names."""
    names = [s.value["name"].plain() if "name" in s.value else None for s in sections]
    chosen = [i for i, own in enumerate(names) if which in ("*", str(i), own)]
    if not chosen:
        known = [str(own) for own in names if own is not None]
        rule = check.must_be_of(["*", *map(str, range(len(sections))), *known], which)
        problems.append(table.problem((), rule, which))
    return chosen


def _is_swept(values: Written, problems: list[Problem]) -> bool:
    """Whether these are values to try."""
    plain = values.plain()
    if not isinstance(plain, list) or not plain:
        rule = check.must("be a list of values", plain)
        problems.append(values.problem((), rule, plain))
        return False
    if any(v in plain[:k] for k, v in enumerate(plain)):
        rule = check.must(UNEQUAL, plain)
        problems.append(values.problem((), rule, plain))
    return True


def _list_leaves(table: Written, inner: Inner) -> Iterator[tuple[Inner, Written]]:
    for key, found in table.value.items():
        if isinstance(found.value, dict):
            yield from _list_leaves(found, (*inner, key))
        else:
            yield (*inner, key), found


def _is_set(section: Written | None, inner: Inner) -> bool:
    for key in inner:
        section = section.below(key) if section is not None else None
    return section is not None


def _put(section: Written, inner: Inner, value: Written) -> Written:
    """A section with a value at a path within it."""
    (key, *rest) = inner
    keys = dict(section.value)
    if rest:
        below = keys.get(key)
        if below is None or not isinstance(below.value, dict):
            below = Written({}, value.place)
        value = _put(below, tuple(rest), value)
    return Written(keys | {key: value}, section.place)
