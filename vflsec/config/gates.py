"""Gates as they are written, in a scenario or by themselves: what is wrong with them."""

from __future__ import annotations

from pydantic import ValidationError

from vflsec.config.problems import Problem, Written, list_tables
from vflsec.config.sections import Gate
from vflsec.config.toml_text import Path
from vflsec.errors import ConfigError
from vflsec.runtime.plain_values import Plain, Table


def check_gates(tree: Written, normal: Table) -> list[Problem]:
    """What gates refuse of their fields, with the confidence of the audit where they have none."""
    audit = normal.get("audit")
    usual = audit.get("confidence") if isinstance(audit, dict) else None
    out: list[Problem] = []
    names: list[Plain] = []
    for i, section in list_tables(normal, "gate"):
        here: Path = ("gate", i)
        if (name := section.get("name")) and name in names:
            out.append(tree.problem((*here, "name"), "must be no other gate's.", name))
        if (section.get("max") is None) == (section.get("min") is None):
            out.append(tree.problem(here, "needs one of max = ... and min = ..."))
        names.append(name)
        found = _check_gate(tree, here, section)
        if "confidence" not in section and _is_typed("confidence", usual):
            found += _try_gate(tree, ("audit",), {"max": 0.0, "confidence": usual})
        out += [p for p in found if p not in out]
    return out


def _check_gate(tree: Written, here: Path, section: Table) -> list[Problem]:
    """What a gate refuses of its fields: each by itself, then all together."""
    typed = {key: value for key, value in section.items() if _is_typed(key, value)}
    limits = typed.keys() & {"max", "min"}
    alone = [{"max": 0.0, key: value} for key, value in typed.items() if key not in limits]
    wrong = [p for fields in alone for p in _try_gate(tree, here, fields)]
    return wrong if wrong or len(limits) != 1 else _try_gate(tree, here, typed)


def _is_typed(key: str, value: Plain) -> bool:
    """Whether a value is of its key's type; what is not is reported by its section."""
    try:
        Gate.model_validate({key: value})
    except ValidationError:
        return False
    return value is not None


def _try_gate(tree: Written, here: Path, fields: Table) -> list[Problem]:
    """What is wrong with a gate of these fields, which stand at `here`."""
    from vflsec.audit import gate as gates

    try:
        gates.Gate(**fields)  # type: ignore[arg-type]
    except ConfigError as error:
        key = error.what.removeprefix(gates.WHERE)
        return [tree.problem((*here, key), error.demand, fields[key])]
    return []
