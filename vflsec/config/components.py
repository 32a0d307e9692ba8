"""Names and hyper-parameters of a scenario, checked against the registered classes.

Importing a class imports torch, so only what is going to be run, or checked, comes through here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from vflsec.config.problems import Origin, Problem, unknown_key
from vflsec.config.sections import Algorithm, Attack, Defense
from vflsec.config.toml_text import Path
from vflsec.core import check
from vflsec.errors import ConfigError, VflsecError
from vflsec.plugins import registry

__all__ = ["check_components", "flat_params", "natural_strengths"]

_OWN: dict[str, type[BaseModel]] = {"algorithm": Algorithm, "attack": Attack, "defense": Defense}


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


def check_components(origin: Origin, normal: Mapping[str, Any]) -> list[Problem]:
    """Unknown names, unknown or missing parameters, wrong types, values a class refuses."""
    out: list[Problem] = []
    kinds = (
        ("algorithm", registry.algorithms),
        ("attack", registry.attacks),
        ("defense", registry.defenses),
    )
    for key, known in kinds:
        for i, section in _list_tables(normal, key):
            own = _OWN[key].model_fields
            params: dict[str, tuple[Path, Any]] = {
                k: ((k,), v) for k, v in section.items() if k not in own
            }
            if key == "algorithm":
                params |= _list_phases(section)
            if key == "defense":
                out += _check_natural(origin, known, i, section, params)
            out += _check_component(origin, known, (key, i), section.get("name"), params)
            if key == "defense":
                out += _check_strength(origin, known, i, section)
    out += _check_gates(origin, normal)
    for i, section in _list_tables(normal, "data"):
        name = section.get("name")
        if name and not any(section.get(k) for k in ("file", "files")):
            given = section.get("params")
            given = given if isinstance(given, Mapping) else {}
            params = {k: (("params", str(k)), v) for k, v in given.items()}
            out += _check_component(origin, registry.datasets, ("data", i), name, params)
    return out


def _check_gates(origin: Origin, normal: Mapping[str, Any]) -> list[Problem]:
    out: list[Problem] = []
    audit = normal.get("audit")
    default = audit.get("confidence") if isinstance(audit, Mapping) else None
    named: set[str] = set()
    for i, section in _list_tables(normal, "gate"):
        out += _check_name(origin, i, section.get("name"), named)
        found = _check_gate(origin, i, section, default)
        out += [p for p in found if p not in out]
    return out


def _check_name(origin: Origin, i: int, name: Any, named: set[str]) -> list[Problem]:
    """Refuse a gate's name that is among those `named`, to which it then belongs."""
    if not isinstance(name, str):
        return []
    again = bool(name) and name in named
    named.add(name)
    rule = (
        "must be no other gate's: a CI server shows two cases of one name as one. Give each gate "
        "its own."
    )
    return [origin.problem(("gate", i, "name"), rule, name)] if again else []


def _check_gate(origin: Origin, i: int, section: Mapping[str, Any], default: Any) -> list[Problem]:
    """What a gate refuses of its fields: each by itself, then those that depend on each other."""
    here: Path = ("gate", i)
    texts = {k: section[k] for k in ("metric", "of", "target") if isinstance(section.get(k), str)}
    limits = {k: section[k] for k in ("max", "min") if check.is_number(section.get(k))}
    wrong: list[Problem] = []
    for key, value in texts.items():
        wrong += _try_gate(origin, (*here, key), value, {"max": 0.0, key: value})
    if not wrong and len(limits) == 1:
        for key, value in limits.items():
            wrong += _try_gate(origin, (*here, key), value, texts | {key: value})
    detect = section.get("detect")
    for key, value in limits.items() if check.is_number(detect) and not wrong else ():
        wrong += _try_gate(
            origin, (*here, "detect"), detect, texts | {key: value, "detect": detect}
        )
    own = section.get("confidence")
    place: Path = ("audit", "confidence") if own is None else (*here, "confidence")
    sure = default if own is None else own
    if isinstance(sure, int | float) and 0.5 < sure < 1:
        wrong += _try_gate(origin, place, sure, {"max": 0.0, "confidence": sure})
    return wrong


def _try_gate(origin: Origin, path: Path, value: Any, fields: Mapping[str, Any]) -> list[Problem]:
    """What is wrong with a gate of these fields, said at `path`."""
    from vflsec.audit import gate as gates

    try:
        gates.Gate(**fields)
    except ConfigError as error:
        return [origin.problem(path, re.sub(r"^gate: \w+ ", "", str(error)), value)]
    return []


def _list_tables(normal: Mapping[str, Any], key: str) -> list[tuple[int, Mapping[str, Any]]]:
    found = normal.get(key)
    found = found if isinstance(found, list) else []
    return [(i, s) for i, s in enumerate(found) if isinstance(s, Mapping)]


def _list_phases(section: Mapping[str, Any]) -> dict[str, tuple[Path, Any]]:
    phases = section.get("phases")
    return {
        f"{phase}_{key}": (("phases", phase, key), value)
        for phase, values in (phases.items() if isinstance(phases, Mapping) else ())
        for key, value in (values.items() if isinstance(values, Mapping) else ())
    }


def _check_component(
    origin: Origin,
    known: registry.Registry,
    here: Path,
    name: Any,
    params: Mapping[str, tuple[Path, Any]],
) -> list[Problem]:
    """Problems of one component; `params` gives for each parameter its place and value."""
    if not isinstance(name, str) or not name:
        return []
    try:
        cls = known.get(name)
    except ConfigError as error:
        names = known.names()
        if name in names:
            return [origin.problem((*here, "name"), f"cannot be used: {error}", name)]
        hint = check.nearest(name, names)
        rule = f"must be a registered {known.kind}, got {name!r}. {hint} "
        rule = f"{rule}Registered: {', '.join(names) or 'none'}.".replace("  ", " ")
        return [origin.problem((*here, "name"), rule, name)]
    except ImportError as error:
        return [origin.problem((*here, "name"), f"cannot be imported: {error}", name)]
    given = {k: v for k, (_, v) in params.items()}
    wrong = registry.find_problems(cls, given)
    parameters = list(registry.list_parameters(cls))
    out = []
    for key, rule in wrong.items():
        place, value = params[key]
        if key not in parameters:
            if len(place) > 1:
                rule = unknown_key(key, value, parameters)
            else:
                rule = unknown_key(key, value, [*_OWN[str(here[0])].model_fields, *parameters])
        out.append(origin.problem((*here, *place), rule, value))
    if here[0] == "algorithm" and given.get("epochs") == 0:
        rule = "must be >= 1, got 0: what is not trained leaks nothing and would pass every gate."
        out.append(origin.problem((*here, *params["epochs"][0]), rule, 0))
    if wrong:
        return out
    try:
        known.create(name, given)
    except VflsecError as error:
        text = str(error)
        blamed = next((k for k in given if re.search(rf"\b{re.escape(k)} must\b", text)), "")
        place = params[blamed][0] if blamed else ()
        out.append(origin.problem((*here, *place), f"is refused: {text}", given.get(blamed, name)))
    return out


def _check_natural(
    origin: Origin,
    known: registry.Registry,
    i: int,
    section: Mapping[str, Any],
    params: dict[str, Any],
) -> list[Problem]:
    """Take numbers that stand for a strength out of `params`, and judge them."""
    try:
        cls: Any = known.get(str(section.get("name")))
    except (ConfigError, ImportError):
        return []  # reported with the name
    named = [k for k in params if k in getattr(cls, "natural", {})]
    out = []
    for key in named:
        (_, given) = params.pop(key)
        both = [k for k in (*named, "strength") if k in section and k != key]
        if both:
            rule = f"must be left out where {both[0]} is given: both say how strong to be."
            out.append(origin.problem(("defense", i, key), rule, given))
            continue
        for value in given if isinstance(given, list) else [given]:
            try:
                cls.from_natural(key, value)
            except ConfigError as error:
                rule = str(error).partition(f"{key} ")[2]
                out.append(origin.problem(("defense", i, key), rule, value))
        if given == []:
            out.append(origin.problem(("defense", i, key), "must have a value.", given))
    return out


def _check_strength(
    origin: Origin, known: registry.Registry, i: int, section: Mapping[str, Any]
) -> list[Problem]:
    """Strengths of a defense that sweeps nothing, and those that it refuses."""
    if "strength" not in section:
        return []
    here: Path = ("defense", i, "strength")
    params = {k: v for k, v in section.items() if k not in Defense.model_fields}
    try:
        policy = known.create(str(section.get("name")), params)
    except (VflsecError, ImportError):
        return []  # reported with the name or the parameter
    if not policy.strengths:
        rule = f"must be left out: {section['name']} has nothing to sweep."
        return [origin.problem(here, rule, section["strength"])]
    grid = section["strength"]
    out = []
    for j, strength in enumerate(grid if isinstance(grid, list) else ()):
        if isinstance(strength, bool) or not isinstance(strength, int | float):
            continue  # reported by its type
        if not math.isfinite(strength) or strength < 0:
            continue  # reported by its range
        try:
            policy.check_strength(float(strength))
        except VflsecError as error:
            out.append(origin.problem((*here, j), f"is refused: {error}", strength))
    return out
