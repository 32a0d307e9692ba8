"""Where each key of a TOML text stands, and how a resolved scenario is written back.

`tomllib` gives values but no lines, and writes nothing. The finder below reads the same syntax
(headers, arrays of tables, dotted keys, inline tables, nested arrays) and keeps only positions; it
runs on text that `tomllib` has accepted. The writer is ours rather than a dependency: it needs
tables, arrays of tables and plain values, and nothing else.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Mapping
from typing import Any

__all__ = ["Path", "find_line", "format_toml", "key_lines", "pair", "path_text"]

Path = tuple[str | int, ...]

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_SCALAR = re.compile(r"[^,\]}#\r\n]+")


def key_lines(text: str) -> dict[Path, int]:
    """Line (from 1) of every key and every array element of a valid TOML text, by path."""
    return _Finder(text).run()


def find_line(lines: Mapping[Path, int], path: Path) -> int:
    """Line of `path`, else of the nearest section around it; 0 if nothing of it is there."""
    for end in range(len(path), 0, -1):
        if path[:end] in lines:
            return lines[path[:end]]
    return 0


def path_text(path: Path) -> str:
    """A key path as it is written after ``--set``: ``defense.0.strength``."""
    return ".".join(str(p) for p in path)


class _Finder:
    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self.starts = [0, *(m.end() for m in re.finditer("\n", text))]
        self.found: dict[Path, int] = {}
        self.counts: dict[Path, int] = {}

    def run(self) -> dict[Path, int]:
        section: Path = ()
        while True:
            self._blank()
            if self.at >= len(self.text):
                return self.found
            if self.text[self.at] == "[":
                section = self._header()
            else:
                self._pair(section)

    def _line(self) -> int:
        return bisect_right(self.starts, self.at)

    def _note(self, path: Path, line: int) -> None:
        for end in range(1, len(path) + 1):
            self.found.setdefault(path[:end], line)

    def _blank(self) -> None:
        """Skip white space, line ends and comments."""
        text = self.text
        while self.at < len(text):
            if text[self.at] in " \t\r\n":
                self.at += 1
            elif text[self.at] == "#":
                end = text.find("\n", self.at)
                self.at = len(text) if end < 0 else end
            else:
                return

    def _key(self) -> list[str]:
        parts = []
        while True:
            self._blank()
            if self.text[self.at] in "\"'":
                parts.append(self._string())
            else:
                match = _BARE.match(self.text, self.at)
                assert match is not None, "the text was accepted by tomllib"
                parts.append(match.group())
                self.at = match.end()
            self._blank()
            if self.at >= len(self.text) or self.text[self.at] != ".":
                return parts
            self.at += 1

    def _string(self) -> str:
        """The string at the cursor, raw; enough for keys, and to step over values."""
        text, quote = self.text, self.text[self.at]
        if text.startswith(quote * 3, self.at):
            end = self.at + 3
            while not text.startswith(quote * 3, end):
                end += 2 if quote == '"' and text[end] == "\\" else 1
            while text.startswith(quote, end + 3):  # up to two quotes may precede the closing ones
                end += 1
            body, self.at = text[self.at + 3 : end], end + 3
            return body
        end = self.at + 1
        while text[end] != quote:
            end += 2 if quote == '"' and text[end] == "\\" else 1
        body, self.at = text[self.at + 1 : end], end + 1
        return body

    def _header(self) -> Path:
        line = self._line()
        many = self.text.startswith("[[", self.at)
        self.at += 2 if many else 1
        path = self._resolve(self._key(), last=not many)
        self.at = self.text.index("]", self.at) + (2 if many else 1)
        if many:
            index = self.counts.get(path, 0)
            self.counts[path] = index + 1
            self._note(path, line)
            path = (*path, index)
            for known in [p for p in self.counts if p[: len(path)] == path]:
                del self.counts[known]
        self._note(path, line)
        return path

    def _resolve(self, parts: list[str], *, last: bool) -> Path:
        """Header parts as a path: a part that is an array of tables means its newest element."""
        path: Path = ()
        for i, part in enumerate(parts):
            path = (*path, part)
            if path in self.counts and (last or i < len(parts) - 1):
                path = (*path, self.counts[path] - 1)
        return path

    def _pair(self, section: Path) -> None:
        line = self._line()
        path: Path = (*section, *self._key())
        self._note(path, line)
        self.at += 1  # the equals sign
        self._value(path)

    def _value(self, path: Path) -> None:
        self._blank()
        char = self.text[self.at]
        if char in "\"'":
            self._string()
        elif char == "{":
            self._items(path, "}")
        elif char == "[":
            self._items(path, "]")
        else:
            match = _SCALAR.match(self.text, self.at)
            assert match is not None, "the text was accepted by tomllib"
            self.at = match.end()

    def _items(self, path: Path, close: str) -> None:
        self.at += 1
        index = 0
        while True:
            self._blank()
            if self.text[self.at] == close:
                self.at += 1
                return
            if self.text[self.at] == ",":
                self.at += 1
                continue
            if close == "}":
                self._pair(path)
            else:
                self._note((*path, index), self._line())
                self._value((*path, index))
                index += 1


def format_toml(table: Mapping[str, Any]) -> str:
    """A TOML text that `tomllib` reads back as `table` (None entries are left out)."""
    return "\n".join(_section((), table)).strip() + "\n"


def _section(path: tuple[str, ...], table: Mapping[str, Any]) -> list[str]:
    plain, nested = [], []
    for key, value in table.items():
        if value is None:
            continue
        shallow = isinstance(value, Mapping) and len(path) < 2
        if shallow or (_is_tables(value) and not path):
            nested.append((key, value))
        else:
            plain.append(pair(key, value))
    out = list(plain)
    for key, value in nested:
        head = ".".join(_name(p) for p in (*path, key))
        if isinstance(value, Mapping):
            out += ["", f"[{head}]", *_section((*path, key), value)]
        else:
            for item in value:
                # sub-tables of an element are written inline: no header can then be misread
                out += ["", f"[[{head}]]", *_section((*path, key, "[]"), item)]
    return out


def pair(key: str, value: Any) -> str:
    """``key = value`` on one line; tables are written inline."""
    return f"{_name(key)} = {_text(value)}"


def _is_tables(value: Any) -> bool:
    return (
        isinstance(value, list | tuple)
        and len(value) > 0
        and all(isinstance(v, Mapping) for v in value)
    )


def _name(key: str) -> str:
    return key if _BARE.fullmatch(key) else json.dumps(key)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, Mapping):
        inner = ", ".join(f"{_name(k)} = {_text(v)}" for k, v in value.items() if v is not None)
        return f"{{{inner}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(_text(v) for v in value)}]"
    raise TypeError(f"no TOML for {type(value).__name__} {value!r}")


def _quoted(value: str) -> str:
    """A basic string: JSON's escapes are TOML's, but for DEL and surrogate pairs."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
