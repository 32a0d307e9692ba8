"""``--set KEY.PATH=VALUE``: single values of a scenario as options, in TOML syntax."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from typing import Any

from vflsec.config.limits import beyond
from vflsec.config.problems import Problem
from vflsec.config.toml_text import Path as KeyPath

__all__ = ["asked_form", "override"]


def asked_form(texts: Iterable[str]) -> tuple[Any, list[str]]:
    """The form that ``--set form=NAME`` asks for, or None, and the other texts."""
    given = [t.partition("=") for t in texts]
    names = [value.strip().strip("\"'") for key, _, value in given if key.strip() == "form"]
    others = ["".join(t) for t in given if t[0].strip() != "form"]
    return (names[-1] if names else None), others


def override(raw: dict[str, Any], texts: Iterable[str], problems: list[Problem]) -> list[KeyPath]:
    """Apply ``--set`` texts in order; what cannot be applied becomes a problem."""
    touched = []
    for text in texts:
        key, equals, written = text.partition("=")
        try:
            tree = tomllib.loads(f"{key} = 0")
        except (tomllib.TOMLDecodeError, RecursionError, ValueError):
            tree = {}
        names: list[str] = []
        while isinstance(tree, dict) and len(tree) == 1:
            name, tree = next(iter(tree.items()))
            names.append(name)
        if not equals or not names or "\n" in text:
            rule = "must be KEY.PATH=VALUE, for example audit.seeds=3 or defense.0.strength=[0, 1]"
            problems.append(Problem("--set", 0, repr(text), text, f"{rule}."))
            continue
        try:
            value = tomllib.loads(f"v = {written}")["v"]
        except tomllib.TOMLDecodeError:
            value = written.strip()  # a bare word is a string: shells eat quotes
        except (RecursionError, ValueError) as error:
            problems.append(Problem("--set", 0, key.strip()[:80], None, beyond(error)))
            continue
        why = _assign(raw, names, value)
        path = _indexed(raw, names)
        if why:
            problems.append(Problem("--set", 0, key.strip(), value, why))
        else:
            touched.append(path)
    return touched


def _indexed(raw: Any, names: Sequence[str]) -> KeyPath:
    """A key path with numbers where it goes through a list."""
    path: list[str | int] = []
    for name in names:
        key = int(name) if isinstance(raw, list) and _is_index(name) else name
        path.append(key)
        try:
            raw = raw[key]
        except (KeyError, IndexError, TypeError):
            raw = None
    return tuple(path)


def _assign(raw: dict[str, Any], names: list[str], value: Any) -> str:
    """Put `value` where `names` point; '' or why it cannot be done."""
    spot: Any = raw
    for i, name in enumerate(names):
        last = i == len(names) - 1
        key: Any = name
        if isinstance(spot, list):
            if not _is_index(name) or int(name) >= len(spot):
                shown = name if len(name) < 40 else f"{name[:40]}..."
                where = ".".join(names[:i])
                most = f"from 0 to {len(spot) - 1}" if spot else "but it is empty"
                return f"needs an index: {where} is a list of {len(spot)}, {most}, got {shown!r}."
            key = int(name)
        elif not isinstance(spot, dict):
            return f"goes into {'.'.join(names[:i])}, which is a value and has no keys."
        if last:
            spot[key] = value
        else:
            spot = spot.setdefault(key, {}) if isinstance(spot, dict) else spot[key]
    return ""


def _is_index(name: str) -> bool:
    return name.isascii() and name.isdecimal() and len(name) < 10
