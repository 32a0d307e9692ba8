"""Published families of attacks: what each reads, where it stands, what other taxonomies call it.

A family's members are the attacks whose file says ``FAMILY = "KEY"``; here stands only what is said
of all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from vflsec.core.message_kinds import KINDS
from vflsec.plugins import registry
from vflsec.report.taxonomies import read_entries

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
_NAMES = {f.key: f.name for f in FAMILIES}

_THROUGH = {
    "model": ("gradient",), "parameter_gradient": ("gradient", "masked_sum"),
    **{name: kind.made_of for name, kind in KINDS.items() if kind.made_of},
}  # fmt: skip
_GRANTED = ("known_rows", "prior", "aux_rows", "peer_model", "labels", "output_gradient")


def list_read(needs: Iterable[str]) -> set[str]:
    """Kinds of the messages from which an attack of these needs takes what it knows.

    What a party trained or worked out counts as the messages that it came from; messages that it
    sent itself are its own. Lists of ids say which rows a message is about, and nothing more.
    """
    words = {n.partition(":")[0] for n in needs}
    words = {w for w in words if w not in (*_GRANTED, "ids") and not w.startswith("sent.")}
    return {kind for w in words for kind in _THROUGH.get(w, (w,))}


def name_family(key: str) -> str:
    """What reports call the family that an attack's ``FAMILY`` names; :data:`OTHERS` if none."""
    return _NAMES.get(key, OTHERS)


def group_members(listed: Mapping[str, Iterable[str]] | None = None) -> dict[str, list[str]]:
    """Registered attacks by family; those of no known family are :data:`OTHERS`.

    Args:
        listed: the families of an audit, as its summary has them; None, as in one of an earlier
            version, for what is registered here.
    """
    pairs: list[tuple[str, str]]
    if listed is None:
        pairs = [(name_family(e.family), e.name) for e in registry.attacks.entries().values()]
    else:
        pairs = [(family, name) for family, names in listed.items() for name in names]
    known = {f.name for f in FAMILIES}
    found: dict[str, list[str]] = {f.name: [] for f in FAMILIES}
    for family, name in pairs:
        found.setdefault(family if family in known else OTHERS, []).append(name)
    return {family: sorted(names) for family, names in found.items()}
