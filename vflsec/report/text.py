"""Names that users gave, made harmless for the place they are printed in."""

from __future__ import annotations

import re

__all__ = ["annotation", "clean", "markdown"]

# Controls, lone surrogates, non-characters, and marks that reorder or hide text.
_HARMFUL = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff"
    "\ufffe\uffff\ud800-\udfff\ufdd0-\ufdef]"
    "|[\U0001fffe\U0001ffff\U0002fffe\U0002ffff\U0010fffe\U0010ffff]"
)
_BREAK = re.compile(r"[\r\n\t\u2028\u2029]+")


def clean(text: object) -> str:
    """One line without control characters; an escape sequence or a hidden mark cannot survive."""
    return _HARMFUL.sub("", _BREAK.sub(" ", str(text)))


def markdown(text: object) -> str:
    """`text` as it stands, inside Markdown: no link, mention, tag or table cell."""
    inner = clean(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    inner = re.sub(r"([\\`*_{}\[\]|~#$])", r"\\\1", inner)
    return inner.replace("@", "@\u2060").replace("://", ":\u2060//")


def annotation(text: object, *, field: bool = False) -> str:
    """`text` inside a GitHub workflow command; as the value of a property if `field`."""
    out = clean(text).replace("%", "%25")
    return out.replace(":", "%3A").replace(",", "%2C") if field else out
