"""Names that users gave, made harmless for the place they are printed in."""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import Any

from vflsec.data.names import UNSEEN

# Controls, lone surrogates, non-characters, and marks that reorder or hide text.
_HARMFUL = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff"
    "\ufff9-\ufffb\ufffe\uffff\ud800-\udfff\ufdd0-\ufdef\U000e0000-\U000e007f"
    f"{UNSEEN}]"
    "|[\U0001fffe\U0001ffff\U0002fffe\U0002ffff\U0010fffe\U0010ffff]"
)
_BREAK = re.compile(r"[\r\n\t\u2028\u2029]+")
_ANYWHERE = re.compile(r"##(?=\[|vso\[|teamcity\[)")
_FIRST = re.compile(r"(?:^|(?<=[\r\v\f\x85\u2028\u2029]))(\s*):(?=:)", re.M)
_JOINER = "\u2060"


def clean(text: object) -> str:
    """One line without control characters; an escape sequence or a hidden mark cannot survive.

    Nor can a command to a build server (:func:`disarm`).
    """
    return _cleaned(str(text))


@lru_cache(maxsize=8192)
def _cleaned(text: str) -> str:
    if text.isascii() and text.isprintable() and "##" not in text:  # as most are
        return text
    return _ANYWHERE.sub(f"#{_JOINER}#", _HARMFUL.sub("", _BREAK.sub(" ", text)))


def scenario_name(file: object) -> str:
    """A scenario's path as people read it: of one outside the working folder its name."""
    path = Path(clean(file))
    return path.name if path.is_absolute() else clean(file)


def disarm(text: str) -> str:
    """Output in which a build server finds no command: a joiner that is not shown breaks it.

    GitHub takes a line that begins with ``::`` for one, and ``##[`` anywhere, as Azure Pipelines
    does; Azure ``##vso[`` and TeamCity ``##teamcity[`` as well. A wrapped line may begin anywhere
    in a name.
    """
    return _FIRST.sub(rf"\1:{_JOINER}", _ANYWHERE.sub(f"#{_JOINER}#", text))


def escape_markdown(text: object) -> str:
    """`text` as it stands, inside Markdown: no link, mention, tag or table cell."""
    inner = clean(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    inner = re.sub(r"([\\`*_{}\[\]|~#$])", r"\\\1", inner)
    return inner.replace("@", "@\u2060").replace("://", ":\u2060//")


def escape_annotation(text: object, *, field: bool = False) -> str:
    """`text` inside a GitHub workflow command; as the value of a property if `field`."""
    out = clean(text).replace("%", "%25")
    return out.replace(":", "%3A").replace(",", "%2C") if field else out


def clean_tree(value: Any) -> Any:
    """A part of a report with every text freed of what could harm a reader, see :func:`clean`."""
    if isinstance(value, Enum):
        return value
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, tuple):
        return tuple(map(clean_tree, value))
    if isinstance(value, dict):
        return {key: clean_tree(inner) for key, inner in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return type(value)(**{f.name: clean_tree(getattr(value, f.name)) for f in fields(value)})
    return value
