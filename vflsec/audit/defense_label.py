"""How a stack of defenses is called in results, and what such a label says.

``mid(beta=1) + iso(party=shop)`` names each defense with its settings. A setting that is text and
holds a mark of this grammar, such as a party called ``a)``, stands in double quotes as in JSON, so
that no name can look like a defense, or like the strength of one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

_MARKS = frozenset("()+,=\"'\\")
_QUOTED = re.compile(r'(?<==)"(?:[^"\\]|\\.)*"')
_FIXED = re.compile(r"[( ]strength=")
_OFF = re.compile(r"[( ]strength=-?0(\.0*)?[,)]")
"""A defense in the label of a stack that is off; the swept one has no strength there."""


def format_defense(name: str, settings: Mapping[str, object]) -> str:
    """One defense with its settings: ``iso(party=shop, strength=0.5)``."""
    inner = ", ".join(f"{k}={_shown(v)}" for k, v in sorted(settings.items()))
    return f"{name}({inner})" if inner else name


def _shown(value: Any) -> str:
    if isinstance(value, str) and _MARKS & set(value):
        return json.dumps(value, ensure_ascii=False)
    return str(value)


@lru_cache(maxsize=4096)
def _members(label: str) -> tuple[str, ...]:
    """The defenses of a label, without texts in quotes."""
    return tuple(_QUOTED.sub("", label).split(" + "))


def count_on(label: str) -> int:
    """How many defenses of a stack do not have strength 0 in its label."""
    return sum(not _OFF.search(one) for one in _members(label))


def list_unfixed(label: str) -> tuple[str, ...]:
    """The registered names of a stack but for those whose strength stands in its label."""
    return tuple(one.partition("(")[0] for one in _members(label) if not _FIXED.search(one))


def split_names(label: str) -> tuple[str, ...]:
    """The registered names in the label of a stack."""
    return tuple(one.partition("(")[0] for one in _members(label))


def list_names(label: str) -> str:
    """The registered names in the label of a stack: ``mid + iso``."""
    return " + ".join(split_names(label))
