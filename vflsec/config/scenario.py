"""Read a scenario: strict TOML, every problem at once, each with file, line, key path and remedy.

``--set a.b=value`` overrides go through the same door. Imports neither torch nor any component
unless the hyper-parameters are to be checked (`components=True`).
"""

from __future__ import annotations

import datetime
import json
import math
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from vflsec.config.cross_checks import check_across, naming
from vflsec.config.inherit import Written, apply_extends, apply_form, expand
from vflsec.config.limits import beyond, find_deep_key
from vflsec.config.overrides import asked_form, override
from vflsec.config.problems import Origin, Problem, ScenarioError, unknown_key
from vflsec.config.sections import Root
from vflsec.config.toml_text import Path as KeyPath
from vflsec.config.toml_text import format_toml, key_lines
from vflsec.core import check
from vflsec.specs import digest

__all__ = ["Scenario", "find_scenario", "load_scenario", "packaged_scenarios"]

_FOLDER = Path(__file__).resolve().parent.parent / "scenarios"
_LISTS = ("data", "algorithm")
_TABLES = (".csv", ".csv.gz", ".tsv", ".parquet", ".pq", ".xls", ".xlsx")  # no scenario ends so
_DEPTH = 20  # of tables and lists in each other
_MOST_BESIDE = 200  # files among which a misspelt name is looked for


@dataclass(frozen=True)
class Scenario:
    """A valid scenario.

    Attributes:
        name: of the file, unless the scenario names itself.
        root: the validated sections.
        base: folder that relative paths start from.
        origin: where each value stands, for later error messages.
        overrides: texts of ``--set`` that were applied.
    """

    name: str
    root: Root
    base: Path
    origin: Origin = field(default_factory=Origin, compare=False)
    overrides: tuple[str, ...] = field(default=(), compare=False)

    def resolved(self) -> dict[str, Any]:
        """Every section with every default filled in, as plain values (None left out)."""
        dumped = self.root.model_dump(exclude={"name"}, exclude_none=True)
        audit = dumped.pop("audit")
        return {"name": self.name, **_without_empty(dumped), "audit": audit}

    @property
    def hash(self) -> str:
        """Identity of the resolved scenario."""
        return digest(self.resolved())

    def to_toml(self) -> str:
        """The resolved scenario as TOML that loads to the same scenario."""
        resolved = self.resolved()
        for name in _LISTS:
            if name in self.origin.singles and len(resolved[name]) == 1:
                resolved[name] = resolved[name][0]
        return format_toml(resolved)

    def error(self, path: KeyPath, rule: str, value: Any = None) -> Problem:
        """A problem found after loading, with its place in the file."""
        return self.origin.problem(path, rule, value)


def _without_empty(value: Any) -> Any:
    """Nested tables and lists without their empty strings, lists and tables."""
    if isinstance(value, Mapping):
        kept = {k: _without_empty(v) for k, v in value.items()}
        return {k: v for k, v in kept.items() if v not in ("", [], {})}
    return [_without_empty(v) for v in value] if isinstance(value, list) else value


def packaged_scenarios() -> dict[str, Path]:
    """Scenarios that come with the package, by name."""
    return {p.stem: p for p in sorted(_FOLDER.glob("*.toml"))}


def find_scenario(name: str | Path) -> Path:
    """The file of a scenario named by path or by its packaged name.

    Raises:
        ScenarioError: there is no such file.
    """
    path, shown = Path(name), str(name)
    try:
        if path.is_file():
            if shown.lower().endswith(_TABLES):
                said = "is a table, not a scenario. `vflsec init` with all tables writes one."
                raise ScenarioError([Problem(shown, 0, "", None, said)])
            return path
        what = "is a folder, not a scenario file" if path.is_dir() else "is not a file"
    except OSError as error:  # for example a name that is too long
        what = f"is not a file ({error.strerror})"
    packaged = packaged_scenarios()
    if shown in packaged:
        return packaged[shown]
    hint = check.nearest(name, [*packaged, *_list_scenarios(path)])
    shown = shown if len(shown) < 200 else f"{shown[:200]}..."
    raise ScenarioError(
        [
            Problem(
                shown, 0, "", None,
                f"{what}, and no scenario of that name comes with vflsec. {hint} "
                f"Packaged: {', '.join(packaged) or 'none'}.".replace("  ", " "),
            )
        ]
    )  # fmt: skip


def _list_scenarios(path: Path) -> list[str]:
    """Scenario files in the folder of a file that is not there."""
    try:
        return sorted(str(p) for p in path.parent.glob("*.toml"))[:_MOST_BESIDE]
    except (OSError, ValueError):
        return []


def load_scenario(
    source: str | Path | Mapping[str, Any] | Scenario,
    overrides: Iterable[str] = (),
    *,
    components: bool = True,
    base: Path | None = None,
) -> Scenario:
    """Read, inherit, override, share and sweep (:mod:`vflsec.config.inherit`), validate.

    Args:
        source: a path, the name of a packaged scenario, or the sections as a dictionary.
        overrides: ``a.b=value`` texts; values in TOML syntax, list elements by index as written.
            ``form=NAME`` chooses a form of the scenario.
        components: also check names and hyper-parameters of algorithms, attacks, defenses and
            data sets (imports them, and so torch).
        base: folder that relative paths of a dictionary start from; None is the working directory.

    Raises:
        ScenarioError: with all problems.
    """
    asked = overrides = tuple(overrides)
    places: Mapping[KeyPath, KeyPath] = {}
    chain: tuple[Path, ...] = ()
    if isinstance(source, Scenario):
        if not overrides:
            return source
        where, default, places = source.base, source.name, source.origin.places
        origin = source.origin
        found = Written(source.resolved(), origin.file, dict(origin.lines), dict(origin.files))
    elif isinstance(source, Mapping):
        where, default = base or Path.cwd(), "scenario"
        found = Written(_plain(source), "<scenario>")
    else:
        path = find_scenario(source)
        where, default, file = path.resolve().parent, path.stem, str(source)
        if path != Path(source):
            file = f"{path.stem}.toml"
        chain = (path.resolve(),)
        found = Written(*_read(path, file))
    problems: list[Problem] = []
    form, overrides = asked_form(overrides)
    _refuse_deep(found.raw, found.file)
    found = apply_extends(found, where, packaged_scenarios(), _read, chain)
    found = apply_form(found, form)
    touched = override(found.raw, overrides, problems)
    _refuse_deep(found.raw, found.file)
    singles = frozenset(s for s in _LISTS if isinstance(found.raw.get(s), Mapping))
    written = Origin(found.file, found.lines, frozenset(touched), singles, files=found.files)
    flat, moved = expand(found.raw, lambda *at: problems.append(written.problem(*at)))
    normal, scalars = _normalise(flat)
    origin = replace(written, scalars=scalars, places={**places, **moved})
    problems += _bad_values(origin, normal)
    problems += check_across(origin, normal)
    root = _validate(origin, normal, problems)
    if root is not None:
        problems += naming(origin, root.name, default)
    if components:
        from vflsec.config.components import check_components

        problems += check_components(origin, normal)
    if problems or root is None:
        raise ScenarioError(sorted(problems, key=lambda p: (p.file, p.line)))
    return Scenario(root.name or default, root, where, origin, asked)


def _refuse_deep(raw: Mapping[str, Any], file: str) -> None:
    """Before anything walks it: tables and lists without end.

    Raises:
        ScenarioError: naming the key.
    """
    deep = find_deep_key(raw)
    if deep:
        raise ScenarioError([Problem(file, 0, deep[:80], None, beyond(RecursionError()))])


def _plain(source: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return dict(json.loads(json.dumps(source, default=str)))
    except (TypeError, ValueError, RecursionError) as error:
        raise ScenarioError([Problem("<scenario>", 0, "", None, f"{error}.")]) from None


def _toml_hint(lines: Sequence[str], line: int) -> str:
    """What is usually wrong with a value as it stands in that line."""
    said = lines[line - 1] if 0 < line <= len(lines) else ""
    if re.search(r"=\s*[-+]?(\.[0-9]|[0-9]+\.(\D|$))", said):
        return "A number has a digit before and after its point: 0.5."
    if re.search(r"=\s*[-+]?[0-9]+,[0-9]+\s*(#|$)", said):
        return "A number has a point, not a comma: 0.5."
    if re.search(r"=\s*(true|false)\s*(#|$)", said, re.IGNORECASE):
        return "Write true and false in small letters."
    return "Strings need quotes; lists need [ ]."


def _read(path: Path, file: str) -> tuple[dict[str, Any], str, dict[KeyPath, int]]:
    try:
        text = path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
        raw = tomllib.loads(text)
        return raw, file, {} if find_deep_key(raw) else key_lines(text)
    except UnicodeDecodeError as error:
        rule = f"must be UTF-8 text, but byte {error.start} is not. Save the file as UTF-8."
        raise ScenarioError([Problem(file, 0, "", None, rule)]) from None
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"\(at line (\d+), column (\d+)\)", str(error))
        line = int(found.group(1)) if found else text.count("\n") + 1
        rule = f"not valid TOML: {error}. {_toml_hint(text.splitlines(), line)}"
        raise ScenarioError([Problem(file, line, "", None, rule)]) from None
    except (RecursionError, ValueError) as error:
        long = None if isinstance(error, RecursionError) else re.search(r"\d{1000}", text)
        line = text.count("\n", 0, long.start()) + 1 if long else 0
        raise ScenarioError([Problem(file, line, "", None, beyond(error))]) from None
    except OSError as error:
        raise ScenarioError(
            [Problem(file, 0, "", None, f"cannot be read: {error.strerror}.")]
        ) from None


def _normalise(raw: Mapping[str, Any]) -> tuple[dict[str, Any], frozenset[KeyPath]]:
    """Short forms spelled out: one table for a list of one, a number for a grid or for n seeds.

    Also returns the paths of the numbers that became lists.
    """
    out = dict(raw)
    scalars: set[KeyPath] = set()
    for name in _LISTS:
        if isinstance(out.get(name), Mapping):
            out[name] = [out[name]]
    if isinstance(out.get("defense"), list):
        out["defense"] = list(out["defense"])
        for i, defense in enumerate(out["defense"]):
            if isinstance(defense, Mapping) and _is_number(defense.get("strength")):
                out["defense"][i] = {**defense, "strength": [defense["strength"]]}
                scalars.add(("defense", i, "strength"))
    audit = out.get("audit")
    if isinstance(audit, Mapping):
        seeds = audit.get("seeds")
        if isinstance(seeds, int) and not isinstance(seeds, bool) and 1 <= seeds <= 10_000:
            out["audit"] = {**audit, "seeds": list(range(seeds))}
            scalars.add(("audit", "seeds"))
    return out, frozenset(scalars)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _bad_values(origin: Origin, value: Any, path: KeyPath = ()) -> list[Problem]:
    """Numbers that are not finite or too large for TOML, and dates, wherever they stand."""
    if isinstance(value, Mapping | list) and len(path) > _DEPTH:
        return [origin.problem(path[:4], f"must not be nested deeper than {_DEPTH}.", "...")]
    if isinstance(value, Mapping):
        return [p for k, v in value.items() for p in _bad_values(origin, v, (*path, k))]
    if isinstance(value, list):
        return [p for i, v in enumerate(value) for p in _bad_values(origin, v, (*path, i))]
    if isinstance(value, float) and not math.isfinite(value):
        return [origin.problem(path, f"must be a finite number, got {value!r}.", value)]
    if isinstance(value, int) and abs(value) >= 2**63:
        shown = f"an integer of {len(str(abs(value)))} digits" if abs(value) < 10**4000 else "more"
        return [origin.problem(path, f"must be an integer of 64 bits, got {shown}.", 0)]
    if isinstance(value, datetime.date | datetime.time):
        return [origin.problem(path, f"must not be a date, got {value!s}.", str(value))]
    return []


def _validate(origin: Origin, normal: dict[str, Any], problems: list[Problem]) -> Root | None:
    try:
        return Root.model_validate(normal)
    except ValidationError as error:
        grouped: dict[KeyPath, list[Any]] = {}
        for item in error.errors(include_url=False):
            grouped.setdefault(_fitting(normal, item["loc"]), []).append(item)
        for path, items in grouped.items():
            problem = origin.problem(path, *_rule(path, items))
            if problem.path not in {p.path for p in problems if p.value is not None}:
                problems.append(problem)
        return None


def _fitting(value: Any, loc: Sequence[str | int]) -> KeyPath:
    """The part of pydantic's location that is a key path (it adds names of union members)."""
    path: list[str | int] = []
    for i, part in enumerate(loc):
        in_list = isinstance(value, list) and isinstance(part, int) and part < len(value)
        if in_list or (isinstance(value, Mapping) and part in value):
            value = value[part]
        elif isinstance(value, Mapping) and i == len(loc) - 1:
            return (*path, part)
        else:
            return tuple(path)
        path.append(part)
    return tuple(path)


_TYPES = {
    "int_type": "an integer", "int_from_float": "an integer", "float_type": "a number",
    "string_type": "a string in quotes", "bool_type": "true or false", "list_type": "a list",
    "dict_type": "a table", "model_type": "a table", "model_attributes_type": "a table",
    "finite_number": "a finite number", "string_too_short": "a name", "none_required": "",
}  # fmt: skip


_SHORT = {
    "strength": "a number >= 0 or a list of them",
    "seeds": "a number of seeds or a list of seeds",
}


def _rule(path: KeyPath, items: Sequence[Any]) -> tuple[str, Any]:
    """One sentence for what pydantic says at one path."""
    first = items[0]
    if first["type"] == "extra_forbidden":
        known = list(_model_at(path[:-1]).model_fields)
        return unknown_key(str(path[-1]), first["input"], known), first["input"]
    if first["type"] == "missing":
        example = {"data": '[data] with name = "..."', "algorithm": '[algorithm] name = "..."'}
        return f"is missing. Add {example.get(str(path[-1]), f'{path[-1]} = ...')}.", None
    value = first["input"]
    rule = _SHORT.get(str(path[-1])) if first["type"] == "list_type" else ""
    rule = rule or " or ".join(dict.fromkeys(w for w in map(_allowed, items) if w))
    hint = ""
    if first["type"] == "literal_error":
        hint = " " + check.nearest(value, re.findall(r"'([^']+)'", first["ctx"]["expected"]))
    return f"must be {rule}, got {value!r}.{hint.rstrip()}", value


def _allowed(item: Mapping[str, Any]) -> str:
    kind, ctx = item["type"], item.get("ctx", {})
    for key, sign in (("ge", ">="), ("gt", ">"), ("le", "<="), ("lt", "<")):
        if key in ctx:
            return f"a number {sign} {ctx[key]:g}"
    if kind == "literal_error":
        return f"one of {ctx['expected']}"
    if kind == "too_short":
        return f"a list of at least {ctx['min_length']}"
    return _TYPES.get(kind, str(item["msg"]))


def _model_at(path: KeyPath) -> type[BaseModel]:
    """The model of the section at `path`."""
    from vflsec.config import sections

    if not path:
        return Root
    by_name: dict[str, type[BaseModel]] = {
        "data": sections.Data,
        "parties": sections.Party,
        "gate": sections.Gate,
        "audit": sections.Audit,
    }
    return by_name.get(str(path[0]), Root)
