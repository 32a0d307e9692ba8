"""What every hyper-parameter of every component takes and refuses, against an approved table."""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from typing import Any

import pytest

from vflsec.errors import ConfigError
from vflsec.plugins import registry

APPROVED = Path(__file__).with_name("fields.txt")
PROBES: tuple[Any, ...] = (-1, -0.5, 0, 0.0, 0.5, 1, 1.0, 1.5, 2, 4, float("nan"), float("inf"),
                           None, True, "sum", "no such value", ())  # fmt: skip
WITHIN = (*PROBES[:10], "sum")
KINDS = (registry.algorithms, registry.attacks, registry.defenses, registry.datasets)


def is_taken(cls: type, field: str, value: Any) -> bool:
    """Whether `field` holds by itself; what it may not be beside others is told otherwise."""
    try:
        cls(**{field: value})
    except ConfigError as error:
        return not str(error).startswith(f"{cls.name}.{field} must be")  # type: ignore[attr-defined]
    except Exception:  # another type than its annotation says, which a scenario refuses before
        return True
    return True


def table() -> str:
    """A line a hyper-parameter: those of `PROBES` that it takes, and takes before 2 in a tuple.

    One that takes them all is left out.
    """
    lines = []
    for kind in KINDS:
        for name in kind.names():
            cls = kind.get(name)
            for field in registry.list_parameters(cls):
                taken = [repr(p) for p in PROBES if is_taken(cls, field, p)]
                within = [repr(p) for p in WITHIN if is_taken(cls, field, (p, 2))]
                if (len(taken), len(within)) == (len(PROBES), len(WITHIN)):
                    continue
                lines.append(f"{name}.{field}: {' '.join(taken)} | {' '.join(within)}".rstrip())
    return "\n".join(lines) + "\n"


def test_every_field_takes_what_it_took_and_refuses_the_rest() -> None:
    """UPDATE_SCREENS=1 writes the table anew."""
    found = table()
    if os.environ.get("UPDATE_SCREENS"):
        APPROVED.write_text(found, encoding="utf-8")
    assert found.splitlines() == APPROVED.read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.kind)
def test_every_component_holds_its_fields(kind: Any) -> None:
    """A ``__post_init__`` that does not begin with its base's holds none of them."""
    for name in kind.names():
        cls = kind.get(name)
        for field in registry.list_parameters(cls):
            default = inspect.signature(cls).parameters[field].default
            assert default is inspect.Parameter.empty or is_taken(cls, field, default), field
