"""Names and hyper-parameters of a scenario, checked against the registered classes.

Importing a class imports torch, so only what is going to be run, or checked, comes through here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from vflsec import check, registry
from vflsec.engine.problems import Origin, Problem, unknown_key
from vflsec.engine.sections import Algorithm, Attack, Defense
from vflsec.engine.toml_text import Path
from vflsec.errors import ConfigError, VflsecError

__all__ = ["check_components", "flat_params"]

_OWN = {"algorithm": Algorithm, "attack": Attack, "defense": Defense}


def flat_params(section: Algorithm | Attack | Defense) -> dict[str, Any]:
    """The hyper-parameters of a section; ``phases.NAME.KEY`` means the parameter ``NAME_KEY``."""
    out = dict(section.model_extra or {})
    for phase, values in getattr(section, "phases", {}).items():
        out.update({f"{phase}_{key}": value for key, value in values.items()})
    return out


def check_components(origin: Origin, normal: Mapping[str, Any]) -> list[Problem]:
    """Unknown names, unknown or missing parameters, wrong types, values a class refuses."""
    out: list[Problem] = []
    kinds = (
        ("algorithm", registry.algorithms),
        ("attack", registry.attacks),
        ("defense", registry.defenses),
    )
    for key, known in kinds:
        for i, section in _tables(normal, key):
            own = _OWN[key].model_fields
            params = {k: ((k,), v) for k, v in section.items() if k not in own}
            if key == "algorithm":
                params |= _phases(section)
            out += _check(origin, known, (key, i), section.get("name"), params)
            if key == "defense":
                out += _strength(origin, known, i, section)
    out += _gates(origin, normal)
    for i, section in _tables(normal, "data"):
        name = section.get("name")
        if name and not any(section.get(k) for k in ("file", "files")):
            given = section.get("params")
            given = given if isinstance(given, Mapping) else {}
            params = {k: (("params", k), v) for k, v in given.items()}
            out += _check(origin, registry.datasets, ("data", i), name, params)
    return out


def _gates(origin: Origin, normal: Mapping[str, Any]) -> list[Problem]:
    from vflsec import gate as gates

    out = []
    for i, section in _tables(normal, "gate"):
        known = {k: section[k] for k in ("metric", "of") if isinstance(section.get(k), str)}
        for key, value in known.items():
            try:
                gates.Gate(**{"max": 0.0, key: value})
            except ConfigError as error:
                rule = re.sub(r"^gate: \w+ ", "", str(error))
                out.append(origin.problem(("gate", i, key), rule, value))
    return out


def _tables(normal: Mapping[str, Any], key: str) -> list[tuple[int, Mapping[str, Any]]]:
    found = normal.get(key)
    found = found if isinstance(found, list) else []
    return [(i, s) for i, s in enumerate(found) if isinstance(s, Mapping)]


def _phases(section: Mapping[str, Any]) -> dict[str, tuple[Path, Any]]:
    phases = section.get("phases")
    return {
        f"{phase}_{key}": (("phases", phase, key), value)
        for phase, values in (phases.items() if isinstance(phases, Mapping) else ())
        for key, value in (values.items() if isinstance(values, Mapping) else ())
    }


def _check(
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
    wrong = registry.problems(cls, given)
    parameters = list(registry.parameters(cls))
    out = []
    for key, rule in wrong.items():
        place, value = params[key]
        if key not in parameters:
            if len(place) > 1:
                rule = unknown_key(key, value, parameters)
            else:
                rule = unknown_key(key, value, [*_OWN[str(here[0])].model_fields, *parameters])
        out.append(origin.problem((*here, *place), rule, value))
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


def _strength(
    origin: Origin, known: registry.Registry, i: int, section: Mapping[str, Any]
) -> list[Problem]:
    if "strength" not in section:
        return []
    try:
        cls = known.get(str(section.get("name")))
    except (ConfigError, ImportError):
        return []  # reported with the name
    if getattr(cls, "strengths", ""):
        return []
    rule = f"must be left out: {section['name']} has nothing to sweep."
    return [origin.problem(("defense", i, "strength"), rule, section["strength"])]
