"""What can be named in a scenario: attacks, defenses, algorithms, data sets.

Discovery lists files, it does not import them: names, summaries and sources come from module
docstrings, so listing is fast and a broken module cannot hide another. A class is imported when it
is used. Files beside a scenario in which a decorator of this module begins a line belong to it.
Outside packages join through the entry-point groups ``vflsec.attacks``,
``vflsec.defenses``, ``vflsec.algorithms`` and ``vflsec.datasets`` (name: the module's stem, value:
``package.module``).
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import importlib.util
import inspect
import os
import re
import sys
import typing
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.metadata import EntryPoint, distributions
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from vflsec.core import check
from vflsec.errors import ConfigError, MissingDependencyError, VflsecError
from vflsec.plugins.loading import (
    contain,
    describe_error,
    find_base,
    hash_source,
    parse_source,
)
from vflsec.specs import hash_value

if TYPE_CHECKING:
    from pydantic import TypeAdapter


T = TypeVar("T", bound=type)


@dataclass(frozen=True)
class Entry:
    """One registered thing, as far as it is known without importing it.

    Attributes:
        kind: ``attack``, ``defense``, ``algorithm`` or ``dataset``.
        name: the registered name, equal to the file's stem.
        module: import path.
        path: the source file.
        doc: the module docstring.
        aliases: other names (acronyms of the papers).
        package: name and version of the outside package it comes from, ``""`` for our own.
        family: of attacks, the key of the published family, its ``FAMILY``; ``""`` if none.
    """

    kind: str
    name: str
    module: str
    path: Path
    doc: str
    aliases: tuple[str, ...] = ()
    package: str = ""
    family: str = ""

    @property
    def code(self) -> str:
        """Hash of source and version of what comes from elsewhere.

        Of our own it is ``""``, except in a checkout, where files change and the version stays.

        Raises:
            ConfigError: its source has changed since this process imported it.
        """
        source = hash_source([self.module])
        return source and hash_value([self.package, source])

    @property
    def summary(self) -> str:
        """First sentence of the docstring."""
        first = " ".join(self.doc.strip().split("\n\n")[0].split())
        return re.split(r"(?<=[.!?])\s+(?=[A-Z])", first, maxsplit=1)[0]

    @property
    def source(self) -> str:
        """The ``Source:`` paragraph of the docstring, on one line."""
        found = re.search(r"^Source:\s*(.+?)(?:\n\s*\n|\Z)", self.doc, re.S | re.M)
        return " ".join(found.group(1).split()) if found else ""

    def load(self) -> type:
        """The registered class.

        Raises:
            ConfigError: the module is broken, registers nothing, or more than one class.
            MissingDependencyError: the module imports what is not installed.
        """
        return _load(self.kind, self.name, self.module, str(self.path))


@cache
def _load(kind: str, name: str, module: str, path: str) -> type:
    hash_source([module])  # from here on it is known as code from elsewhere
    try:
        passing = (SyntaxError, ImportError)
        with contain(f"importing {kind} {name!r}", lambda error: isinstance(error, passing)):
            loaded = importlib.import_module(module)
    except VflsecError:
        raise
    except SyntaxError as error:
        raise ConfigError(f"{path}:{error.lineno}: is not Python: {error.msg}.") from error
    except ImportError as error:
        text = f"{path}: {kind} {name!r} cannot be imported: {error}. Install what it needs."
        raise MissingDependencyError(text) from error
    except Exception as error:
        text = f"{path}: {kind} {name!r} cannot be imported: {describe_error(error)}."
        raise ConfigError(text) from error
    found = [
        v
        for k, v in vars(loaded).items()
        if isinstance(v, type) and v.__module__ == module and "_vflsec_kind" in v.__dict__
        if k == v.__name__  # a second name of one class is no second class
    ]
    if len(found) != 1 or found[0].__dict__["_vflsec_kind"] != kind:
        names = ", ".join(c.__name__ for c in found) or "nothing"
        raise ConfigError(
            f"{path}: must register exactly one {kind} with @registry.{kind}, found {names}."
        )
    return found[0]


class _Head(NamedTuple):
    """What a component's file says of itself: docstring, ``ALIASES`` and ``FAMILY``."""

    doc: str
    aliases: tuple[str, ...] = ()
    family: str = ""


@cache
def _read(path: Path, changed_ns: int) -> _Head:
    """The head of a file; one that is not Python stops no list."""
    try:
        tree = parse_source(path.read_text(encoding="utf-8"), str(path))
    except (SyntaxError, UnicodeDecodeError, ValueError) as error:
        return _Head(f"Broken: {path} is not Python ({error}).")
    head = _Head(ast.get_docstring(tree) or "")
    for node in tree.body:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        names = [getattr(t, "id", "") for t in targets]
        if not {"ALIASES", "FAMILY"} & set(names):
            continue
        value: Any = None
        with suppress(ValueError):
            value = ast.literal_eval(node.value)
        said = f"got {ast.unparse(node.value)}."
        if "FAMILY" in names:
            if not isinstance(value, str) or not value.strip():
                raise ConfigError(f"{path}:{node.lineno}: FAMILY must be a string literal, {said}")
            head = head._replace(family=value)
        elif "ALIASES" in names:
            if not isinstance(value, tuple | list) or not all(isinstance(v, str) for v in value):
                where = f"{path}:{node.lineno}: ALIASES"
                raise ConfigError(f"{where} must be a tuple of string literals, {said}")
            head = head._replace(aliases=tuple(value))
    return head


_TAKEN = {"defense": ("none", "defended")}
"""Words that name others where a gate names one."""


class Registry:
    """All entries of one kind."""

    def __init__(self, kind: str, package: str, group: str) -> None:
        self.kind, self.package, self.group = kind, package, group
        self._last: tuple[Any, dict[str, Entry]] = (None, {})
        self._changed: dict[str, int] = {}

    def entries(self) -> dict[str, Entry]:
        """Entries by name, sorted.

        Raises:
            ConfigError: two modules claim one name.
        """
        return dict(sorted((n, e) for n, e in self._claims().items() if n == e.name))

    def _claims(self) -> dict[str, Entry]:
        """Entries by each of their names; made again where a file or a package changed."""
        found = self._list_modules()
        if self._last[0] == found:
            return self._last[1]
        claims: dict[str, Entry] = {}
        times: dict[str, int] = {}
        for stem, module, path, package, changed in found:
            doc, aliases, family = _read(path, changed)
            entry = Entry(self.kind, stem, module, path, doc, aliases, package, family)
            for name in (stem, *aliases):
                self._check(name, entry)
                if name in claims:
                    paths = f"{claims[name].path} and {path}"
                    raise ConfigError(f"two {self.kind}s are called {name!r}: {paths}. Rename one.")
                claims[name] = entry
                times[name] = changed
        self._last, self._changed = (found, claims), times
        return claims

    def _check(self, name: str, entry: Entry) -> None:
        """Refuse a name that gates read as something else, or that a label cannot hold.

        A defense called ``none`` would be the undefended reference that it is compared with.
        """
        taken = _TAKEN.get(self.kind, ())
        if not re.fullmatch(r"\w[\w.-]*", name) or name in taken:
            rule = "made of letters, digits, '_', '.' and '-'"
            rule += "".join(f", and not {w!r}" for w in taken)
            where = f"{entry.path}: the name of the {self.kind}"
            raise check.fail(where, rule, name, "Rename its file, or its alias.")

    def _list_modules(self) -> list[tuple[str, str, Path, str, int]]:
        """Stem, import path, file, package and time of change: our own by name, then plug-ins."""
        spec = importlib.util.find_spec(self.package)
        found = []
        for folder in spec.submodule_search_locations or () if spec else ():
            with suppress(FileNotFoundError), os.scandir(folder) as files:
                found += [
                    (f.name[:-3], f"{self.package}.{f.name[:-3]}", Path(f.path), "",
                     f.stat().st_mtime_ns)
                    for f in files
                    if f.name.endswith(".py") and not f.name.startswith("_")
                ]  # fmt: skip
        others = [(*m, m[2].stat().st_mtime_ns) for m in find_modules(self.group)]
        known = {m[2].resolve() for m in others}
        beside = [m for m in _find_beside(self.kind) if m[2].resolve() not in known]
        return [*sorted(set(found)), *others, *beside]

    def names(self) -> list[str]:
        """Registered names, sorted."""
        return list(self.entries())

    def entry(self, name: str) -> Entry:
        """The entry of that name or alias.

        Raises:
            ConfigError: there is none; the message names the nearest.
        """
        entry, changed = self._last[1].get(name), self._changed.get(name)
        if entry is not None and not entry.package:  # of our own, as long as its file stays
            with suppress(OSError):
                if entry.path.stat().st_mtime_ns == changed:
                    return entry
        claims = self._claims()
        if name not in claims:
            hint = check.choices(name, claims, f"vflsec list {self.kind}s")
            raise ConfigError(f"unknown {self.kind} {name!r}. {hint}")
        return claims[name]

    def get(self, name: str) -> type:
        """The class of that name or alias."""
        return self.entry(name).load()

    def create(self, name: str, params: Mapping[str, object] | None = None) -> Any:
        """An instance with these hyper-parameters.

        Raises:
            ConfigError: unknown name, unknown parameter, or a value the class refuses.
        """
        cls = self.get(name)
        known, where = list_parameters(cls), f"{self.kind} {name!r}"
        given = {k: tuple(v) if isinstance(v, list) else v for k, v in (params or {}).items()}
        for key, value in given.items():
            if key not in known:
                raise ConfigError(
                    f"{where} has no parameter {key!r}. {check.nearest(key, known)} "
                    f"Parameters: {', '.join(known) or 'none'}.".replace("  ", " ")
                )
            _check_type(f"{where}: {key}", value, known[key].annotation)
        for key, parameter in known.items():
            if parameter.default is inspect.Parameter.empty and key not in given:
                raise ConfigError(f"{where} needs the parameter {key!r}.")
        with contain(f"making {self.kind} {name!r}"):
            made = cls(**given)
            if self.kind in ("attack", "defense", "algorithm"):
                made.check_declared()
            return made


def list_parameters(cls: type) -> dict[str, inspect.Parameter]:
    """The hyper-parameters of a registered class: its dataclass fields."""
    return dict(_read_fields(cls))


@cache
def _read_fields(cls: type) -> dict[str, inspect.Parameter]:
    hints = typing.get_type_hints(cls)
    out = {}
    for f in dataclasses.fields(cls):
        default: Any = inspect.Parameter.empty
        if f.default is not dataclasses.MISSING:
            default = f.default
        elif f.default_factory is not dataclasses.MISSING:
            default = f.default_factory()
        out[f.name] = inspect.Parameter(
            f.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hints[f.name]
        )
    return out


def find_problems(cls: type, given: Mapping[str, object]) -> dict[str, str]:
    """What is wrong with hyper-parameters, by key: unknown names and wrong types, all of them."""
    known = list_parameters(cls)
    out = {}
    for key, value in given.items():
        if key not in known:
            out[key] = f"is not a parameter, got {value!r}. {check.nearest(key, list(known))}"
            continue
        try:
            value = tuple(value) if isinstance(value, list) else value
            _check_type(key, value, known[key].annotation)
        except ConfigError as error:
            out[key] = error.demand
    return out


@cache
def _make_adapter(hint: Any) -> TypeAdapter[Any]:
    from pydantic import ConfigDict, TypeAdapter

    return TypeAdapter(hint, config=ConfigDict(strict=True, arbitrary_types_allowed=True))


def _check_type(where: str, value: Any, hint: Any) -> None:
    from pydantic import ValidationError

    try:
        _make_adapter(hint).validate_python(value)
    except ValidationError:
        if typing.get_origin(hint) is typing.Literal:
            check.one_of(where, value, typing.get_args(hint))
        text = hint.__name__ if isinstance(hint, type) else str(hint).replace("typing.", "")
        raise check.fail(where, f"of type {text}", value) from None


def _base(cls: type, path: str) -> type | None:
    """The class `path` (``module.Class``) if `cls` derives from it; found without importing it."""
    return next((c for c in cls.__mro__[1:] if f"{c.__module__}.{c.__name__}" == path), None)


def _register(kind: str, wanted: Mapping[str, tuple[str, ...]], base: str = "") -> Callable[[T], T]:
    def decorate(cls: T) -> T:
        where = f"{inspect.getsourcefile(cls)}: class {cls.__name__}"
        options = cls.__dict__.get("__dataclass_params__")
        if options is None or not options.frozen:
            raise ConfigError(f"{where}: put @dataclass(frozen=True) below @registry.{kind}.")
        parent = _base(cls, base) if base else object
        if parent is None:
            raise ConfigError(f"{where}: must derive from {base}.")
        for method, names in (*wanted.items(), *_hooks(cls, parent)):
            shape = f"{method}({', '.join(names)})"
            either = (method, f"{method}_many")
            mine = any(getattr(cls, m, None) is not getattr(parent, m, None) for m in either)
            if method in wanted and not mine and getattr(cls, "target", "") != "integrity":
                raise ConfigError(f"{where}: must define {shape}.")
            found = tuple(inspect.signature(getattr(cls, method)).parameters)
            if found != names:
                raise ConfigError(f"{where}: {method}({', '.join(found)}) must be {shape}.")
        missing = [n for n in dir(cls) if getattr(getattr(cls, n), "__isabstractmethod__", False)]
        if missing:
            raise ConfigError(f"{where}: must define {', '.join(missing)}.")
        declared = vars(parent).get("__annotations__", {})
        for f in dataclasses.fields(cls):
            if f.name in declared:
                what, got = f"{where}: {f.name!r}", "a hyper-parameter"
                raise ConfigError.must(
                    what, "be a class attribute", got, "Annotate it as ClassVar."
                )
        stem = cls.__module__.rpartition(".")[2]
        cls.name = stem  # type: ignore[attr-defined]
        cls._vflsec_kind = kind  # type: ignore[attr-defined]
        return cls

    return decorate


def _hooks(cls: type, parent: type) -> list[tuple[str, tuple[str, ...]]]:
    """Public methods of `parent` that `cls` overrides, with the argument names they must have."""
    return [
        (name, tuple(inspect.signature(method).parameters))
        for name, method in vars(parent).items()
        if inspect.isfunction(method) and not name.startswith("_")
        if inspect.isfunction(getattr(cls, name)) and getattr(cls, name) is not method
    ]


def attack(cls: T) -> T:
    """Register the attack of this file: a frozen dataclass that derives from Attack.

    Raises:
        ConfigError: not so, or a method has other arguments than the base's.
    """
    return _register("attack", {"infer": ("self", "view", "rng")}, "vflsec.core.attack.Attack")(cls)


def defense(cls: T) -> T:
    """Register the defense of this file: a frozen dataclass that derives from Policy.

    Raises:
        ConfigError: not so, or a hook has other arguments than the base's.
    """
    return _register("defense", {}, "vflsec.core.policy.Policy")(cls)


def algorithm(cls: T) -> T:
    """Register the algorithm of this file: a frozen dataclass with ``build`` and ``phases``."""
    return _register("algorithm", {"build": ("self", "fed"), "phases": ("self", "fed")})(cls)


def dataset(cls: T) -> T:
    """Register the data set of this file: a frozen dataclass with ``load(self, seed)``."""
    return _register("dataset", {"load": ("self", "seed")})(cls)


attacks = Registry("attack", "vflsec.attacks", "vflsec.attacks")
defenses = Registry("defense", "vflsec.defenses", "vflsec.defenses")
algorithms = Registry("algorithm", "vflsec.algorithms", "vflsec.algorithms")
datasets = Registry("dataset", "vflsec.data.sets", "vflsec.datasets")


_MODULE = re.compile(r"[\w.]+\s*(?::[\w.\s]*)?(?:\[.*\]\s*)?")


def find_modules(group: str) -> list[tuple[str, str, Path, str]]:
    """Name, module, source file, and package with its version, of a group's entry points, by name.

    Raises:
        ConfigError: one that names no module, or another one than it is called after.
    """
    out: list[tuple[str, str, Path, str]] = []
    packages: dict[int, str] = {}
    for point in sorted(_list_points(group), key=lambda e: e.name):
        stem = point.value.partition(":")[0].strip().rpartition(".")[2]
        spec = None
        if not point.name.isidentifier() or not _MODULE.fullmatch(point.value):
            wrong = "name a module by letters, digits and underscores"
        elif point.name != stem:
            wrong = f"name a module that is called {point.name!r}, one for each plug-in"
        else:
            wrong = "name a module that can be found"
            with suppress(ImportError):  # a parent package is absent
                spec = importlib.util.find_spec(point.module)
        if spec is None or spec.origin is None:
            what = f"entry point {point.name!r} of group {group!r}"
            remedy = "Correct that package's pyproject.toml, or reinstall it."
            raise ConfigError.must(what, wrong, repr(point.value), remedy)
        of = point.dist
        if of is not None and id(of) not in packages:  # each reads its metadata anew
            packages[id(of)] = f"{of.name} {of.version}"
        package = packages[id(of)] if of is not None else point.module
        out.append((point.name, point.module, Path(spec.origin), package))
    return out


def _find_beside(kind: str) -> list[tuple[str, str, Path, str, int]]:
    """The same, and when it changed, of files that lie beside a scenario, in no package."""
    base, found = find_base(), []
    with suppress(OSError), os.scandir(base) if base else nullcontext(()) as files:
        named = {f.name[:-3]: f for f in files if f.name.endswith(".py")}
        for stem, f in sorted(named.items()) if "__init__" not in named else ():
            path, changed = Path(f.path), f.stat().st_mtime_ns
            if stem.isidentifier() and kind in _list_kinds(path, changed):
                found.append((stem, stem, path, stem, changed))
    return found


@lru_cache(maxsize=4096)
def _list_kinds(path: Path, changed: int) -> set[str]:
    text = path.read_text(encoding="utf-8", errors="replace")
    return set(re.findall(r"^@registry\.(attack|defense|algorithm|dataset)\b", text, re.M))


def _list_points(group: str) -> list[EntryPoint]:
    """Entry points of a group; of two packages of one name the first on the path counts."""
    found: dict[str, tuple[EntryPoint, ...]] = {}
    for folder in sys.path:
        with suppress(OSError):
            for name, points in _read_folder(folder, os.stat(folder or ".").st_mtime_ns):
                found.setdefault(name, points)
    return [p for points in found.values() for p in points if p.group == group]


@lru_cache(maxsize=64)
def _read_folder(folder: str, changed: int) -> list[tuple[str, tuple[EntryPoint, ...]]]:
    """Packages in a folder by name, with their entry points; reads the metadata of each, so they
    are kept until one is installed there or removed.
    """
    return [
        (re.sub(r"[-_.]+", "-", d.name or "").lower(), tuple(d.entry_points))
        for d in distributions(path=[folder])
    ]
