"""Names and hyper-parameters of a scenario, checked against the registered classes.

Importing a class imports torch, so only what is going to be run, or checked, comes through here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from pydantic import BaseModel

from vflsec.config.gates import check_gates
from vflsec.config.problems import Problem, Written, list_tables, unknown_key
from vflsec.config.sections import Algorithm, Attack, Defense
from vflsec.config.toml_text import Path
from vflsec.core import check
from vflsec.errors import ConfigError, VflsecError
from vflsec.plugins import registry
from vflsec.runtime.plain_values import Plain, Table

_KINDS: dict[str, tuple[registry.Registry, type[BaseModel]]] = {
    "algorithm": (registry.algorithms, Algorithm),
    "attack": (registry.attacks, Attack),
    "defense": (registry.defenses, Defense),
}


class _Given(NamedTuple):
    """A parameter as it is written: its path within the section, and its value."""

    path: Path
    value: Plain


def flat_params(section: Algorithm | Attack | Defense) -> dict[str, Any]:
    """The hyper-parameters of a section; ``phases.NAME.KEY`` means the parameter ``NAME_KEY``."""
    out = dict(section.model_extra or {})
    for phase, values in getattr(section, "phases", {}).items():
        out.update({f"{phase}_{key}": value for key, value in values.items()})
    return out


def natural_strengths(section: Defense) -> tuple[list[float] | None, dict[str, Any]]:
    """The swept strengths of a defense and its hyper-parameters.

    A defense may name other numbers to sweep (``epsilon = [8, 2, 1]``), which are turned into
    strengths here and are no hyper-parameters; see :attr:`vflsec.core.policy.Policy.natural`.
    """
    cls = registry.defenses.get(section.name)
    params = flat_params(section)
    strengths = None if section.strength is None else list(section.strength)
    for key in [k for k in params if k in getattr(cls, "natural", {})]:
        given = params.pop(key)
        values = given if isinstance(given, list) else [given]
        strengths = [cls.from_natural(key, v) for v in values]  # type: ignore[attr-defined]
    return strengths, params


def check_components(tree: Written, normal: Table) -> list[Problem]:
    """Unknown names, unknown or missing parameters, wrong types, values a class refuses."""
    out: list[Problem] = []
    for key, (known, model) in _KINDS.items():
        for i, section in list_tables(normal, key):
            here = tree.at((key, i))
            given = {k: _Given((k,), v) for k, v in section.items() if k not in model.model_fields}
            if key == "algorithm":
                given |= _list_phases(section)
            if key == "defense":
                out += _check_natural(here, known, section, given)
            out += _check_component(here, known, section.get("name"), given, model)
            if key == "defense":
                out += _check_strength(here, known, section)
    out += check_gates(tree, normal)
    for i, section in list_tables(normal, "data"):
        if not section.get("file") and not section.get("files"):
            params = section.get("params")
            params = params if isinstance(params, Mapping) else {}
            given = {str(k): _Given(("params", k), v) for k, v in params.items()}
            here = tree.at(("data", i))
            out += _check_component(here, registry.datasets, section.get("name"), given)
    return out


def _list_phases(section: Table) -> dict[str, _Given]:
    phases = section.get("phases")
    return {
        f"{phase}_{key}": _Given(("phases", phase, key), value)
        for phase, values in (phases.items() if isinstance(phases, Mapping) else ())
        for key, value in (values.items() if isinstance(values, Mapping) else ())
    }


def _check_component(
    here: Written, known: registry.Registry, name: Plain, given: Mapping[str, _Given],
    model: type[BaseModel] | None = None,
) -> list[Problem]:  # fmt: skip
    """Problems of one component in a section of `model`."""
    if not isinstance(name, str) or not name:
        return []
    try:
        cls = known.get(name)
    except (ConfigError, ImportError) as error:
        names = known.names()
        what = "used" if isinstance(error, ConfigError) else "imported"
        rule = f"cannot be {what}: {error}"
        if isinstance(error, ConfigError) and name not in names:
            hint = check.choices(name, names, f"vflsec list {known.kind}s")
            rule = check.must(f"be a registered {known.kind}", name, hint)
        return [here.problem(("name",), rule, name)]
    params = {k: v for k, (_, v) in given.items()}
    wrong = registry.find_problems(cls, params)
    parameters = list(registry.list_parameters(cls))
    out = []
    for key, rule in wrong.items():
        path, value = given[key]
        if key not in parameters:
            own = [*model.model_fields] if model is not None and len(path) == 1 else []
            rule = unknown_key(key, value, [*own, *parameters])
        out.append(here.problem(path, rule, value))
    if known.kind == "algorithm" and params.get("epochs") == 0:
        rule = check.must("be >= 1", 0)
        out.append(here.problem(given["epochs"].path, rule, 0))
    if wrong:
        return out
    try:
        known.create(name, params)
    except VflsecError as error:
        called = known.entry(name).name
        blamed = next((k for k in given if error.what == f"{called}.{k}"), "")
        path, value = given.get(blamed, _Given((), name))
        out.append(here.problem(path, f"is refused: {error}", value))
    return out


def _check_natural(
    here: Written, known: registry.Registry, section: Table, given: dict[str, _Given]
) -> list[Problem]:
    """Take numbers that stand for a strength out of `given`, and judge them."""
    try:
        cls: Any = known.get(str(section.get("name")))
    except (ConfigError, ImportError):
        return []  # reported with the name
    named = [k for k in given if k in getattr(cls, "natural", {})]
    out = []
    for key in named:
        path, found = given.pop(key)
        both = [k for k in (*named, "strength") if k in section and k != key]
        if both:
            rule = f"must be left out where {both[0]} is given."
            out.append(here.problem(path, rule, found))
            continue
        for value in found if isinstance(found, list) else [found]:
            try:
                cls.from_natural(key, value)
            except ConfigError as error:
                out.append(here.problem(path, error.demand, value))
        if found == []:
            out.append(here.problem(path, "must have a value.", found))
    return out


def _check_strength(here: Written, known: registry.Registry, section: Table) -> list[Problem]:
    """Strengths of a defense that sweeps nothing, and those that it refuses."""
    if "strength" not in section:
        return []
    params = {k: v for k, v in section.items() if k not in Defense.model_fields}
    try:
        policy = known.create(str(section.get("name")), params)
    except (VflsecError, ImportError):
        return []  # reported with the name or the parameter
    grid = section["strength"]
    if not policy.strengths:
        rule = f"must be left out: {section['name']} has none."
        return [here.problem(("strength",), rule, grid)]
    out = []
    for j, strength in enumerate(grid if isinstance(grid, list) else ()):
        if not check.is_number(strength) or not 0 <= strength < float("inf"):
            continue  # reported by its type or its range
        try:
            policy.check_strength(float(strength))
        except VflsecError as error:
            out.append(here.problem(("strength", j), f"is refused: {error}", strength))
    return out
