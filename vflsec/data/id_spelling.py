"""Ids of one row that two tables write otherwise: how they differ, and how they can be matched.

Ids are compared as trimmed text. Nothing else is matched unless the user asks for it (`id_match`),
since two persons may have such ids; that they look alike is said.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import pandas as pd

from vflsec.data.dates import text_days
from vflsec.data.read_table import Frame
from vflsec.data.table_spec import IdMatch
from vflsec.errors import format_list, write_setting

RESPELLED = 0.05
"""Of the rows of the smaller table: from this share on it is said that ids look alike."""

_DIGESTS = {32: ("md5",), 40: ("sha1",), 64: ("sha256", "sha3_256")}
"""Hash functions by the hexadecimal digits of their values."""

_LONG = 16  # digits from which on a float rounds whole numbers


def _strip(text: str) -> str:
    """An id by its letters: of each the one code, without blanks and marks that are not shown."""
    if text.isascii() and text.isalnum():
        return text
    text = unicodedata.normalize("NFKC", text)
    return "".join(c for c in text if not c.isspace() and unicodedata.category(c) != "Cf")


def _unpunctuated(text: str) -> str:
    if text.isascii() and text.isalnum():
        return text
    return "".join(c for c in text if unicodedata.category(c)[0] != "P") or text


MATCHES: dict[IdMatch, Callable[[str], str]] = {
    "strip": _strip,
    "punctuation": _unpunctuated,
    "casefold": str.casefold,
    "zeros": lambda text: text.lstrip("0") or text[-1:],
}
"""What ids may differ in and still match, by its name, in the order in which it is taken off."""


def _rounded(text: str) -> str:
    """A long number as a float keeps it; '' for any other id."""
    if not re.fullmatch(r"\d{16,}|\d\.\d+[eE]\+?\d\d", text):
        return ""
    return str(int(float(text)))


class Respelled(NamedTuple):
    """Ids of two tables that would match if they were written alike.

    Attributes:
        parties: the two.
        how: names of :data:`MATCHES`; or ``rounded``, ``date``, ``prefix``, or a hash function.
        alike: pairs of such ids.
        example: a pair, with 9 for a digit and x for a letter.
    """

    parties: tuple[str, str]
    how: tuple[str, ...]
    alike: int
    example: tuple[str, str]

    @property
    def can_match(self) -> bool:
        """Whether `id_match` would join them."""
        return all(name in MATCHES for name in self.how)


def respell(ids: pd.Index, names: Sequence[str]) -> pd.Index:
    """Ids (n,) by what they are but for the ways of writing in `names`, see :data:`MATCHES`."""
    for name, key in MATCHES.items():
        if name in names:
            ids = pd.Index([key(text) for text in ids], dtype=object)
    return ids


def match_ids(frame: Frame, column: str, ids: pd.Index, names: Sequence[str]) -> pd.Index:
    """:func:`respell`, where no two ids of the table become one.

    Raises:
        DataError: two do.
    """
    found = respell(ids, names)
    twice = found.duplicated(keep=False)
    if twice.any():
        same = ids[twice & (found == found[twice][0])]
        rule = f"have ids that differ in more than id_match = {format_list(names)}"
        got = format_list(same, 3)
        raise frame.refuse_column("id", column, rule, got)
    return found


def find_respelled(
    index: Mapping[str, pd.Index], order: Sequence[str],
    shared: Mapping[str, int] = MappingProxyType({}),
) -> list[Respelled]:  # fmt: skip
    """Which ids that are in one table only would match if they were written alike.

    Args:
        index: ids by party, each once.
        order: the parties; each is compared with the first.
        shared: how many ids of a party the first has, where that is known.
    """
    first, out = index[order[0]], []
    for p in (p for p in order[1:] if index[p] is not first):
        least = max(1.0, RESPELLED * min(len(first), len(index[p])))
        if min(len(first), len(index[p])) - shared.get(p, 0) < least:
            continue
        mine = first.difference(index[p], sort=False)
        its = index[p].difference(first, sort=False)
        out += [Respelled((order[0], p), *found) for found in [_compare(mine, its, least)] if found]
    return out


_Pairs = list[tuple[str, str]]
_Found = tuple[tuple[str, ...], int, tuple[str, str]]


def _compare(mine: pd.Index, its: pd.Index, least: float) -> _Found | None:
    """How at least so many of two tables' ids differ, where it is in spelling only."""
    if min(len(mine), len(its)) < least:
        return None
    pairs = _pair(mine, respell(mine, [*MATCHES]), its, respell(its, [*MATCHES]))
    if len(pairs) >= least:
        how = _needed(pairs)
        return how, len(pairs), _mask(pairs, how)
    for name, read in (("rounded", _find_rounded), ("date", _find_days), ("prefix", _find_prefix)):
        pairs = read(mine, its)
        if len(pairs) >= least:
            return (name,), len(pairs), _mask(pairs, ())
    for one, other, turned in ((mine, its, False), (its, mine, True)):
        for name in _DIGESTS.get(len(other[0]), ()):
            hashed = pd.Index([hashlib.new(name, t.encode()).hexdigest() for t in one])
            pairs = _pair(one, hashed, other, respell(other, ["casefold"]))
            if len(pairs) >= least:
                a, b = _mask(pairs, ())
                return (name,), len(pairs), (b, a) if turned else (a, b)
    return None


def _pair(mine: pd.Index, my_keys: pd.Index, its: pd.Index, its_keys: pd.Index) -> _Pairs:
    """Ids that have the same key, where that is of one id of each table alone."""
    one, other = (
        pd.Series(ids.to_numpy(), index=keys)[~keys.duplicated(keep=False)]
        for ids, keys in ((mine, my_keys), (its, its_keys))
    )
    both = one.index.intersection(other.index, sort=False)
    both = both[both != ""]
    return list(zip(one[both], other[both], strict=True))


def _needed(pairs: _Pairs) -> tuple[str, ...]:
    """The least ways of writing by which all pairs match."""
    needed = list(MATCHES)
    one, other = (pd.Index(side, dtype=object) for side in zip(*pairs, strict=True))
    for name in MATCHES:
        fewer = [n for n in needed if n != name]
        if (respell(one, fewer) == respell(other, fewer)).all():
            needed = fewer
    return tuple(needed)


def _find_rounded(mine: pd.Index, its: pd.Index) -> _Pairs:
    """Pairs of which one id is the other after it was a float; several may round to one."""
    if len(mine[0]) < _LONG and len(its[0]) < _LONG:
        return []
    keys = {key: text for text in its if (key := _rounded(text))}
    return [(text, keys[key]) for text in mine if (key := _rounded(text)) in keys]


def _find_days(mine: pd.Index, its: pd.Index) -> _Pairs:
    days = [text_days(ids.tolist())[0] for ids in (mine, its)]
    if days[0] is None or days[1] is None:
        return []
    one, other = (pd.Index(np.char.mod("%.6f", d), dtype=object) for d in days)
    return _pair(mine, one, its, other)


def _find_prefix(mine: pd.Index, its: pd.Index) -> _Pairs:
    """Pairs that match without what all ids of either table begin with, digits excepted."""
    one, other = (len(_first_letters(ids)) for ids in (mine, its))
    if not one and not other:
        return []
    shorter = (pd.Index([t[k:] for t in ids]) for ids, k in ((mine, one), (its, other)))
    keys = [respell(ids, [*MATCHES]) for ids in shorter]
    return _pair(mine, keys[0], its, keys[1])


def _first_letters(ids: pd.Index) -> str:
    one, other = min(ids), max(ids)  # what these two begin with, all do
    return "".join(
        a
        for a, _ in takewhile(
            lambda pair: pair[0] == pair[1] and not pair[0].isdigit(), zip(one, other)
        )
    )


def _mask(pairs: _Pairs, how: Sequence[str]) -> tuple[str, str]:
    """An example for reports that others read; one whose ids differ in all ways, if there is."""

    def rank(pair: tuple[str, str]) -> int:
        return sum(MATCHES[n](pair[0]) != pair[0] or MATCHES[n](pair[1]) != pair[1] for n in how)  # type: ignore[index]

    a, b = max(pairs, key=rank)
    return _masked(a), _masked(b)


def _masked(text: str) -> str:
    """An id with leading zeros and case only."""
    zeros = text[: len(text) - len(text.lstrip("0"))] if text.strip("0") else ""
    rest = text[len(zeros) :]
    return zeros + "".join(
        "9" if c.isdigit() else "X" if c.isupper() else "x" if c.isalpha() else c for c in rest
    )


ALIKE = "Write them alike."
_WORDS = {
    "strip": "blanks or encoding",
    "punctuation": "punctuation",
    "casefold": "case",
    "zeros": "leading zeros",
}


def describe_difference(found: Respelled) -> str:
    """How ids differ, in a sentence."""
    said = f"{found.alike} ids of {' and '.join(found.parties)}"
    if found.how == ("rounded",):  # whose pattern shows nothing
        return f"{said} match only rounded."
    example = " and ".join(ascii(text) for text in found.example)
    if found.can_match:
        words = [_WORDS[n] for n in found.how]
        ways = " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
        how = f"differ only in {ways}"
    else:
        how = {"date": "are the same days", "prefix": "differ only in how all begin"}.get(
            found.how[0], f"are {found.how[0].upper()} values of each other's text"
        )
    return f"{said} {how}, as {example} (9 and x: any digit and letter)."


def describe_respelled(found: Respelled) -> str:
    """How ids of tables differ, and what the user can do."""
    if found.can_match:
        remedy = (
            "They are not joined. If they are of the same rows: "
            f"{write_setting('id_match', found.how, '--id-match ' + ','.join(found.how))}."
        )
    else:
        remedies = {"rounded": "Export them as text.", "date": ALIKE, "prefix": ALIKE}
        remedy = remedies.get(found.how[0], "Hash both in the same way.")
    return f"{describe_difference(found)} {remedy}"
