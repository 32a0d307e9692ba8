"""``--set KEY.PATH=VALUE``: single values of a scenario as options, in TOML syntax."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from typing import Any, Self

from vflsec.config.problems import (
    DEEPEST,
    Place,
    Problem,
    Written,
    build_tree,
    describe_beyond,
    find_deep_key,
    locate,
)
from vflsec.config.toml_text import Path
from vflsec.runtime.plain_values import Plain


class Option(str):
    """A ``KEY.PATH=VALUE`` text that an option of its own stands for: errors name that option."""

    name: str

    def __new__(cls, text: str, name: str = "--set") -> Self:
        """The text, and the option as it is typed: ``--seeds``."""
        made = super().__new__(cls, text)
        made.name = name
        return made


def ask_seeds(seeds: int | Iterable[int]) -> Option:
    """The override that ``--seeds`` stands for; a list that counts from 0 is its length."""
    listed = [] if isinstance(seeds, int) else list(seeds)
    counted = listed and listed == list(range(len(listed)))
    return Option(f"audit.seeds={len(listed) if counted else listed or seeds}", "--seeds")


def asked_form(texts: Iterable[str]) -> tuple[str | None, list[str]]:
    """The form that ``--set form=NAME`` asks for, or None, and the other texts."""
    given = [(t, *t.partition("=")) for t in texts]
    names = [value.strip().strip("\"'") for _, key, _, value in given if key.strip() == "form"]
    others = [text for text, key, *_ in given if key.strip() != "form"]
    return (names[-1] if names else None), others


def override(tree: Written, texts: Iterable[str], problems: list[Problem]) -> None:
    """Apply ``--set`` texts in order; what cannot be applied becomes a problem."""
    for text in texts:
        key, equals, written = text.partition("=")
        names = _split_key(key)
        source = text.name if isinstance(text, Option) else "--set"
        if not equals or not names or "\n" in text:
            rule = "must be KEY.PATH=VALUE, for example audit.seeds=3."
            problems.append(Problem(source, 0, repr(text), text, rule))
            continue
        value: Plain = None
        try:
            value = tomllib.loads(f"v = {written}")["v"]
            why = _assign(tree, names, value, source)
        except tomllib.TOMLDecodeError:
            value = written.strip()  # a bare word is a string: shells eat quotes
            why = _assign(tree, names, value, source)
        except (RecursionError, ValueError) as error:
            why = describe_beyond(error)
        if why:
            problems.append(Problem(source, 0, key.strip()[:80], value, why))


def _split_key(key: str) -> list[str]:
    """The parts of a dotted key; none if it is no key."""
    names: list[str] = []
    try:
        tree: Plain = tomllib.loads(f"{key} = 0")
    except (RecursionError, ValueError):
        return names
    while isinstance(tree, dict) and len(tree) == 1:
        name, tree = next(iter(tree.items()))
        names.append(name)
    return names


def _assign(tree: Written, names: list[str], value: Plain, source: str) -> str:
    """Put `value` of the option `source` where `names` point; '' or why it cannot be done."""
    if len(names) > DEEPEST or find_deep_key({names[0]: value}):
        return describe_beyond(RecursionError())
    spot: Any = tree
    path: Path = ()
    for i, name in enumerate(names):
        key: Any = name
        if isinstance(spot.value, list):
            plain = name.isascii() and name.isdecimal() and len(name) < 10
            if not plain or int(name) >= len(spot.value):
                shown = name if len(name) < 40 else f"{name[:40]}..."
                where, count = ".".join(names[:i]), len(spot.value)
                return f"needs an index below {count} of {where}, got {shown!r}."
            key = int(name)
        elif not isinstance(spot.value, dict):
            return f"goes into {'.'.join(names[:i])}, which has no keys."
        path = (*path, key)
        if i == len(names) - 1:
            spot.value[key] = build_tree(value, locate(source, {}), path)
        elif isinstance(spot.value, dict):
            spot = spot.value.setdefault(key, Written({}, Place(source, 0, path)))
        else:
            spot = spot.value[key]
    return ""
