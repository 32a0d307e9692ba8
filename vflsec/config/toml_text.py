"""TOML texts: the line on which each key stands, and how a resolved scenario is written back.

`tomllib` gives values but no lines, and writes nothing. The finder below cuts a text that `tomllib`
has accepted into tokens and keeps only where keys stand.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from vflsec.runtime.plain_values import Plain, Table

Path = tuple[str | int, ...]

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_TOKEN = re.compile(
    r"[ \t\r\n]+|\#[^\n]*"
    r"|(?P<token>\"{3}(?:\\.|[^\\])*?\"{3,5}(?!\")|'{3}.*?'{3,5}(?!')"
    r"|\"(?:\\.|[^\"\\])*\"|'[^']*'|[\[\]{},=.]|[^\s\[\]{},=.\#\"']+)",
    re.DOTALL,
)


class _Token(NamedTuple):
    text: str
    line: int


def key_lines(text: str) -> dict[Path, int]:
    """Line (from 1) of every key and every array element of a valid TOML text, by path."""
    return _Finder(text).find()


def find_line(lines: Mapping[Path, int], path: Path) -> int:
    """Line of `path`, else of the nearest section around it; 0 if nothing of it is there."""
    return next((lines[path[:end]] for end in range(len(path), 0, -1) if path[:end] in lines), 0)


def path_text(path: Path) -> str:
    """A key path as it is written after ``--set``: ``defense.0.strength``."""
    return ".".join(str(p) for p in path)


def _cut(text: str) -> Iterator[_Token]:
    line = 1
    for match in _TOKEN.finditer(text):
        if match["token"]:
            yield _Token(match["token"], line)
        line += match[0].count("\n")
    yield _Token("", line)


class _Finder:
    def __init__(self, text: str) -> None:
        self.tokens = _cut(text)
        self.token = next(self.tokens)
        self.found: dict[Path, int] = {}
        self.last: dict[Path, int] = {}  # of each array of tables its newest element

    def find(self) -> dict[Path, int]:
        section: Path = ()
        while self.token.text:
            if self.token.text == "[":
                section = self._header()
            else:
                self._pair(section)
        return self.found

    def _take(self) -> _Token:
        taken, self.token = self.token, next(self.tokens, self.token)
        return taken

    def _note(self, path: Path, line: int) -> None:
        for end in range(1, len(path) + 1):
            self.found.setdefault(path[:end], line)

    def _key(self) -> list[str]:
        """The parts of a dotted key; of a quoted one what stands between the quotes."""
        parts = []
        while True:
            text = self._take().text
            parts.append(text[1:-1] if text[0] in "\"'" else text)
            if self.token.text != ".":
                return parts
            self._take()

    def _header(self) -> Path:
        line = self._take().line
        many = self.token.text == "["
        if many:
            self._take()
        path: Path = ()
        for part in self._key():
            if path in self.last:
                path = (*path, self.last[path])
            path = (*path, part)
        for _ in range(1 + many):
            self._take()
        if many:
            self._note(path, line)
            self.last[path] = self.last.get(path, -1) + 1
            path = (*path, self.last[path])
        self._note(path, line)
        return path

    def _pair(self, section: Path) -> None:
        line = self.token.line
        path: Path = (*section, *self._key())
        self._note(path, line)
        self._take()  # the equals sign
        self._value(path)

    def _value(self, path: Path) -> None:
        text, line = self._take()
        if text in ("[", "{"):
            index = 0
            while self.token.text not in ("]", "}"):
                if self.token.text == ",":
                    self._take()
                elif text == "{":
                    self._pair(path)
                else:
                    self._note((*path, index), self.token.line)
                    self._value((*path, index))
                    index += 1
            self._take()
        elif text[0] not in "\"'":  # a number or a date, which may hold a point and a blank
            while self.token.line == line and self.token.text not in ("", ",", "]", "}"):
                self._take()


def format_toml(table: Table) -> str:
    """A TOML text that `tomllib` reads back as `table` (None entries are left out).

    Tables within sections are written inline: no header can then be misread.
    """
    plain: list[str] = []
    headed: list[str] = []
    for key, value in table.items():
        items = value if isinstance(value, list | tuple) else []
        tables = [v for v in items if isinstance(v, Mapping)]
        if isinstance(value, Mapping):
            headed += ["", f"[{_name(key)}]", *_pairs(value)]
        elif tables and len(tables) == len(items):
            for item in tables:
                headed += ["", f"[[{_name(key)}]]", *_pairs(item)]
        elif value is not None:
            plain.append(format_pair(key, value))
    return "\n".join(plain + headed).strip() + "\n"


def _pairs(table: Table) -> list[str]:
    return [format_pair(key, value) for key, value in table.items() if value is not None]


def format_pair(key: str, value: Plain) -> str:
    """``key = value`` on one line; tables are written inline."""
    return f"{_name(key)} = {_text(value)}"


def _name(key: str) -> str:
    return key if _BARE.fullmatch(key) else json.dumps(key)


def _text(value: Plain) -> str:
    if isinstance(value, Mapping):
        return f"{{{', '.join(_pairs(value))}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_text, value))}]"
    # JSON's numbers and basic strings are TOML's, but for DEL
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
