"""Public taxonomies and published families of attacks: what is audited here, as others call it.

``exact``: the taxonomy means what the family does. ``related``: it names something wider, narrower
or of another setting, and the difference is said. SARIF and the page of documentation are made from
one file, ``taxonomies.toml``.
"""

from __future__ import annotations

import tomllib
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from vflsec.core.message_kinds import KINDS
from vflsec.core.needs import as_needs
from vflsec.runtime.typed_values import read_as

Entry = TypeVar("Entry")


@dataclass(frozen=True)
class Taxonomy:
    """A published list of names.

    Attributes:
        key: short name.
        name, version, by: as its publisher writes them.
        url: where it is.
    """

    key: str
    name: str
    version: str
    by: str
    url: str


class Fit(StrEnum):
    """How closely an entry means what is audited here."""

    EXACT = "exact"
    RELATED = "related"


@dataclass(frozen=True)
class Tag:
    """One entry of a taxonomy.

    Attributes:
        id: ours.
        taxonomy: key of its :class:`Taxonomy`.
        ref: its id or place there.
        name: what it is called there.
        fit: ``exact`` or ``related``.
        why: where the fit ends, one sentence.
    """

    id: str
    taxonomy: str
    ref: str
    name: str
    fit: Fit
    why: str


def read_entries(kind: type[Entry], key: str) -> tuple[Entry, ...]:
    """The entries of ``taxonomies.toml`` below `key`."""
    return tuple(read_as(kind, entry) for entry in _FILE[key])


_FILE = tomllib.loads(Path(__file__).with_name("taxonomies.toml").read_text(encoding="utf-8"))
TAXONOMIES = read_entries(Taxonomy, "taxonomies")
TAGS = read_entries(Tag, "tags")


def _guid(*names: str) -> str:
    """A stable identity."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, "/".join(["vflsec", *names])))


def list_extensions(ids: Iterable[str]) -> list[dict[str, object]]:
    """The taxonomies of these tags as SARIF tool components, each with the taxa that are named."""
    wanted = set(ids)
    out = []
    for t in TAXONOMIES:
        of = [tag for tag in TAGS if tag.taxonomy == t.key and tag.id in wanted]
        if of:
            out.append(
                {
                    "name": t.name,
                    "version": t.version,
                    "organization": t.by,
                    "informationUri": t.url,
                    "guid": _guid(t.key),
                    "isComprehensive": False,
                    "taxa": [
                        {
                            "id": tag.ref, "guid": _guid(t.key, tag.id), "name": tag.name,
                            "shortDescription": {"text": tag.name},
                            "properties": {"fit": tag.fit, "why": tag.why},
                        }
                        for tag in of
                    ],
                }
            )  # fmt: skip
    return out


def list_references(ids: Iterable[str]) -> list[dict[str, object]]:
    """What a SARIF rule says of these tags: a reference to each taxon."""
    wanted, by_key = set(ids), {t.key: t for t in TAXONOMIES}
    return [
        {
            "target": {
                "id": tag.ref,
                "guid": _guid(tag.taxonomy, tag.id),
                "toolComponent": {
                    "name": by_key[tag.taxonomy].name, "guid": _guid(tag.taxonomy)
                },
            },
            "kinds": ["equal" if tag.fit is Fit.EXACT else "relevant"],
        }
        for tag in TAGS
        if tag.id in wanted
    ]  # fmt: skip


OTHERS = "Others"


@dataclass(frozen=True)
class Family:
    """One published family.

    Attributes:
        key: what ``FAMILY`` of its attacks says.
        name: what reports call it.
        published: where.
        reads: kinds of messages that its attacks use, directly or through the own trained model.
        tags: ids of :data:`vflsec.report.taxonomies.TAGS`.
    """

    key: str
    name: str
    published: str
    reads: tuple[str, ...]
    tags: tuple[str, ...]


FAMILIES = read_entries(Family, "families")
"""All that are known here, published first."""
_FAMILY_NAMES = {f.key: f.name for f in FAMILIES}

_THROUGH = {
    "model": ("gradient",), "parameter_gradient": ("gradient", "masked_sum"),
    **{name: kind.made_of for name, kind in KINDS.items() if kind.made_of},
}  # fmt: skip
_NOT_RECEIVED = ("labels", "output_gradient", "ids")


def list_read(needs: Iterable[str]) -> set[str]:
    """Kinds of the messages from which an attack of these needs takes what it knows.

    What a party trained or worked out counts as the messages that it came from; messages that it
    sent itself are its own. Lists of ids say which rows a message is about, and nothing more.
    """
    asked = (n for n in as_needs([*needs]) if not (n.is_grant or n.sent))
    words = {n.what for n in asked if n.what not in _NOT_RECEIVED}
    return {kind for w in words for kind in _THROUGH.get(w, (w,))}


def name_family(key: str) -> str:
    """What reports call the family that an attack's ``FAMILY`` names; :data:`OTHERS` if none."""
    return _FAMILY_NAMES.get(key, OTHERS)


def group_members(listed: Mapping[str, Iterable[str]]) -> dict[str, list[str]]:
    """The attacks of every family, as a summary lists them; of no known family: :data:`OTHERS`."""
    found: dict[str, list[str]] = {f.name: [] for f in FAMILIES}
    for family, names in listed.items():
        found.setdefault(family if family in found else OTHERS, []).extend(names)
    return {family: sorted(names) for family, names in found.items()}
