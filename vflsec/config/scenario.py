"""Read a scenario: strict TOML, every problem at once, each with file, line, key path and remedy.

``--set a.b=value`` overrides go through the same door. Imports neither torch nor any component
unless the hyper-parameters are to be checked (`components=True`).
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from vflsec.config.cross_checks import check_across, check_name
from vflsec.config.inherit import apply_extends, apply_form, expand
from vflsec.config.overrides import asked_form, override
from vflsec.config.problems import (
    SEEDS,
    Place,
    Problem,
    ScenarioError,
    Written,
    build_tree,
    describe_beyond,
    find_bad_values,
    find_deep_key,
    locate,
    unknown_key,
)
from vflsec.config.schema import SECTIONS
from vflsec.config.sections import Gates, Root
from vflsec.config.toml_text import Path as KeyPath
from vflsec.config.toml_text import format_toml, key_lines
from vflsec.core import check
from vflsec.runtime.plain_values import Plain, Table
from vflsec.specs import hash_value

if TYPE_CHECKING:
    from vflsec.audit.gate import Gate

_FOLDER = Path(__file__).resolve().parent.parent / "scenarios"
_LISTS = ("data", "algorithm")
_Model = TypeVar("_Model", bound=BaseModel)
_TABLES = (".csv", ".csv.gz", ".tsv", ".parquet", ".pq", ".xls", ".xlsx")  # no scenario ends so
_MOST_BESIDE = 200  # files among which a misspelt name is looked for


@dataclass(frozen=True)
class Scenario:
    """A valid scenario.

    Attributes:
        name: of the file, unless the scenario names itself.
        root: the validated sections.
        base: folder that relative paths start from.
        origin: every value as it was written, with its place, for later error messages.
        overrides: texts of ``--set`` that were applied.
        files: that were read, its own first, then those that it extends.
    """

    name: str
    root: Root
    base: Path
    origin: Written = field(compare=False)
    overrides: tuple[str, ...] = field(default=(), compare=False)
    files: tuple[Path, ...] = field(default=(), compare=False)

    def resolved(self) -> dict[str, Any]:
        """Every section with every default filled in, as plain values (None left out)."""
        dumped = self.root.model_dump(exclude={"name"}, exclude_none=True)
        audit = dumped.pop("audit")
        return {"name": self.name, **_without_empty(dumped), "audit": audit}

    @property
    def hash(self) -> str:
        """Identity of the resolved scenario."""
        return hash_value(self.resolved())

    def to_toml(self) -> str:
        """The resolved scenario as TOML that loads to the same scenario."""
        resolved = self.resolved()
        for name in _LISTS:
            found, written = resolved[name], self.origin.find((name, 0)).path
            if isinstance(found, list) and len(found) == 1 and written == (name,):
                resolved[name] = found[0]
        return format_toml(resolved)

    def list_gates(self) -> tuple[Gate, ...]:
        """Its gates, with the confidence of the audit where they have none.

        Each has its line in the scenario's own file. One of a file that this extends has the line
        which names that file.
        """
        from vflsec.audit.gate import Gate

        own, above = self.origin.place.file, self.origin.find(("extends",)).line
        made = []
        for i, section in enumerate(self.root.gate):
            at = self.origin.find(("gate", i))
            line = at.line if at.file == own or not at.line else above
            given = section.model_dump(exclude_none=True)
            made.append(Gate.from_section(given, self.root.audit.confidence, line))
        return tuple(made)

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


def list_files(name: str | Path, overrides: Sequence[str]) -> list[Path]:
    """What a scenario is read from: its file, those that it extends, its tables; only its own file
    where it cannot be used.

    Raises:
        ScenarioError: there is no such file.
    """
    path = find_scenario(name)
    try:
        loaded = load_scenario(name, overrides, components=False)
    except ScenarioError:
        return [path]
    tables = [t for data in loaded.root.data for t in (data.file, *data.files.values()) if t]
    return [*loaded.files, *(loaded.base / t for t in dict.fromkeys(tables))]


def find_scenario(name: str | Path) -> Path:
    """The file of a scenario named by path or by its packaged name.

    Raises:
        ScenarioError: there is no such file.
    """
    path, shown = Path(name), str(name)
    try:
        if path.is_file():
            if shown.lower().endswith(_TABLES):
                said = "is a table, not a scenario. Run `vflsec init`."
                raise ScenarioError([Problem(shown, 0, "", None, said)])
            return path
        what = "is a folder" if path.is_dir() else "is not a file"
    except OSError as error:  # for example a name that is too long
        what = f"is not a file ({error.strerror})"
    packaged = packaged_scenarios()
    if shown in packaged:
        return packaged[shown]
    hint = check.choices(name, [*_list_scenarios(path), *packaged], "vflsec list scenarios")
    shown = shown if len(shown) < 200 else f"{shown[:200]}..."
    raise ScenarioError([Problem(shown, 0, "", None, f"{what}. {hint}")])


def _list_scenarios(path: Path) -> list[str]:
    """Scenario files in the folder of a file that is not there."""
    try:
        return sorted(str(p) for p in path.parent.glob("*.toml"))[:_MOST_BESIDE]
    except (OSError, ValueError):
        return []


def load_scenario(
    source: str | Path | Table | Scenario, overrides: Iterable[str] = (), *,
    components: bool = True, base: Path | None = None,
) -> Scenario:  # fmt: skip
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
    overrides = tuple(overrides)
    chain: tuple[Path, ...] = ()
    extended: list[Path] = []

    def read(path: Path, file: str) -> Written:
        extended.append(path)
        return _read(path, file)

    if isinstance(source, Scenario):
        if not overrides:
            return source
        where, default = source.base, source.name
        tree = build_tree(source.resolved(), source.origin.find)
    elif isinstance(source, Mapping):
        where, default = base or Path.cwd(), "scenario"
        tree = _build(_read_plain(source), "<scenario>", {})
    else:
        path = find_scenario(source)
        where, default, file = path.resolve().parent, path.stem, str(source)
        if path != Path(source):
            file = f"{path.stem}.toml"
        chain = (path.resolve(),)
        tree = _read(path, file)
    problems: list[Problem] = []
    form, texts = asked_form(overrides)
    tree = apply_form(apply_extends(tree, where, packaged_scenarios(), read, chain), form)
    override(tree, texts, problems)
    tree = _spell_out(expand(tree, problems))
    normal = tree.plain()
    if tree.find(("extends",)).file != "--set":  # of a file it was followed
        normal.pop("extends", None)
    problems += find_bad_values(tree, normal)
    problems += check_across(tree, normal)
    root = _validate(Root, tree, normal, problems)
    if root is not None:
        problems += check_name(tree, root.name, default)
    if components:
        from vflsec.config.components import check_components
        from vflsec.plugins.loading import allow_imports

        allow_imports(where)
        problems += check_components(tree, normal)
    if problems or root is None:
        raise ScenarioError(sorted(problems, key=lambda p: (p.file, p.line)))
    return Scenario(root.name or default, root, where, tree, overrides, (*chain, *extended))


def load_gates(source: Path | Sequence[Table], confidence: float) -> tuple[Gate, ...]:
    """Gates that stand by themselves, by the rules of those of a scenario.

    Args:
        source: a file with ``[[gate]]`` sections, or the sections.
        confidence: of those that have none.

    Raises:
        ScenarioError: with all problems.
    """
    from vflsec.audit.gate import Gate
    from vflsec.config.gates import check_gates

    if isinstance(source, Path):
        tree = _read(source, str(source))
        tree = Written({k: v for k, v in tree.value.items() if k == "gate"}, tree.place)
    else:
        raw = _read_plain({"gate": list(source)})
        tree = build_tree(raw, lambda path: Place("gate", 0, path[2:]))
    normal = tree.plain()
    problems = find_bad_values(tree, normal)
    found = _validate(Gates, tree, normal, problems)
    problems += check_gates(tree, normal)
    if problems or found is None:
        raise ScenarioError(problems)
    given = (section.model_dump(exclude_none=True) for section in found.gate)
    return tuple(Gate.from_section(section, confidence) for section in given)


def _build(raw: Table, file: str, lines: Mapping[KeyPath, int]) -> Written:
    """What was read, with its places."""
    if deep := find_deep_key(raw):
        raise ScenarioError([Problem(file, 0, deep[:80], None, describe_beyond(RecursionError()))])
    return build_tree(raw, locate(file, lines))


def _read_plain(source: Table) -> Table:
    try:
        return dict(json.loads(json.dumps(source, default=_make_plain)))
    except (TypeError, ValueError, RecursionError) as error:
        raise ScenarioError([Problem("<scenario>", 0, "", None, f"{error}.")]) from None


def _make_plain(value: Any) -> Any:
    """Write what JSON has no word for as a list of its items, as a number, else as text."""
    if isinstance(value, Iterable) and not isinstance(value, bytes):
        return list(value)
    return value.item() if hasattr(value, "item") else str(value)


_HINTS = (
    (r"=\s*[-+]?(\.[0-9]|[0-9]+\.(\D|$))", "Write 0.5."),
    (r"=\s*[-+]?[0-9]+,[0-9]+\s*(#|$)", "Write 0.5, with a point."),
    (r"=\s*(?i:true|false)\s*(#|$)", "Write true or false."),
    ("", "Strings need quotes; lists need [ ]."),
)
"""What is usually wrong with a line that looks so."""


def _read(path: Path, file: str) -> Written:
    line = 0
    try:
        text = path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
        raw = tomllib.loads(text)
        return _build(raw, file, {} if find_deep_key(raw) else key_lines(text))
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        rule = check.must("be UTF-8", error.object[error.start : error.end], "Save it as UTF-8.")
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"\(at line (\d+), column (\d+)\)", str(error))
        line = int(found.group(1)) if found else text.count("\n") + 1
        said = "".join(text.splitlines()[line - 1 : line])
        hint = next(hint for pattern, hint in _HINTS if re.search(pattern, said))
        rule = f"not valid TOML: {error}. {hint}"
    except ScenarioError:
        raise
    except (RecursionError, ValueError) as error:
        long = None if isinstance(error, RecursionError) else re.search(r"\d{1000}", text)
        line, rule = text.count("\n", 0, long.start()) + 1 if long else 0, describe_beyond(error)
    except OSError as error:
        rule = f"cannot be read: {error.strerror}."
    raise ScenarioError([Problem(file, line, "", None, rule)])


def _spell_out(tree: Written) -> Written:
    """Short forms spelled out: one table for a list of one, a number for a grid or for n seeds."""
    keys = dict(tree.value)

    def wrap(place: Place, values: Iterable[Any]) -> Written:
        return Written([Written(v, place) for v in values], place)

    for name in _LISTS:
        if name in keys and isinstance(keys[name].value, dict):
            keys[name] = Written([keys[name]], keys[name].place)
    defenses = keys.get("defense")
    if defenses is not None and isinstance(defenses.value, list):
        keys["defense"] = Written([*defenses.value], defenses.place)
        for i, defense in enumerate(defenses.value):
            strength = defense.below("strength")
            if strength is not None and check.is_number(strength.value):
                grid = {"strength": wrap(strength.place, [strength.value])}
                keys["defense"].value[i] = Written(defense.value | grid, defense.place)
    audit = keys.get("audit")
    seeds = audit.below("seeds") if audit is not None else None
    if audit is not None and seeds is not None and _is_count(seeds.value):
        several = wrap(seeds.place, range(seeds.value))
        keys["audit"] = Written(audit.value | {"seeds": several}, audit.place)
    return Written(keys, tree.place)


def _is_count(value: Plain) -> bool:
    return isinstance(value, int) and check.is_number(value) and 1 <= value <= 10_000


def _validate(
    model: type[_Model], tree: Written, normal: Table, problems: list[Problem]
) -> _Model | None:
    try:
        return model.model_validate(normal)
    except ValidationError as error:
        grouped: dict[KeyPath, list[ErrorDetails]] = {}
        for item in error.errors(include_url=False):
            grouped.setdefault(_fitting(normal, item["loc"]), []).append(item)
        for path, items in grouped.items():
            problem = tree.problem(path, *_rule(path, items))
            if problem.path not in {p.path for p in problems if p.value is not None}:
                problems.append(problem)
        return None


def _fitting(value: Plain, loc: Sequence[str | int]) -> KeyPath:
    """The part of pydantic's location that is a key path (it adds names of union members)."""
    path: list[str | int] = []
    for i, part in enumerate(loc):
        in_list = isinstance(value, list) and isinstance(part, int) and part < len(value)
        if in_list or (isinstance(value, Mapping) and part in value):
            value = value[part]  # type: ignore[index, call-overload]
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
    "seeds": SEEDS,
}


def _rule(path: KeyPath, items: Sequence[ErrorDetails]) -> tuple[str, Any]:
    """One sentence for what pydantic says at one path."""
    first = items[0]
    if first["type"] == "extra_forbidden":
        model: type[BaseModel] = SECTIONS[str(path[0])] if len(path) > 1 else Root
        for part in path[1:-1]:  # of a table within the section
            held = get_args(getattr(model.model_fields.get(str(part)), "annotation", None))
            model = next((a for a in held if isinstance(a, type(BaseModel))), model)
        known = list(model.model_fields)
        return unknown_key(str(path[-1]), first["input"], known), first["input"]
    if first["type"] == "missing":
        example = {"data": '[data] with name = "..."', "algorithm": '[algorithm] name = "..."',
                   "gate": "[[gate]] with max = ..."}  # fmt: skip
        return f"is missing. Add {example.get(str(path[-1]), f'{path[-1]} = ...')}.", None
    value = first["input"]
    rule = _SHORT.get(str(path[-1])) if first["type"] == "list_type" else ""
    rule = rule or " or ".join(dict.fromkeys(w for w in map(_allowed, items) if w))
    hint = ""
    if first["type"] == "literal_error":
        hint = check.nearest(value, re.findall(r"'([^']+)'", first["ctx"]["expected"]))
    return check.must(f"be {rule}", value, hint), value


def _allowed(item: ErrorDetails) -> str:
    kind, ctx = item["type"], item.get("ctx", {})
    for key, sign in (("ge", ">="), ("gt", ">"), ("le", "<="), ("lt", "<")):
        if key in ctx:
            return f"a number {sign} {ctx[key]:g}"
    if kind == "literal_error":
        return f"one of {ctx['expected']}"
    if kind == "too_short":
        return f"a list of at least {ctx['min_length']}"
    return _TYPES.get(kind, str(item["msg"]))
