"""What attacks of one label are called, so that each is told apart from the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from vflsec.audit.point import Grants, Identity
from vflsec.runtime.grouping import group_by

_GRANTED = {
    "victim": "against {}", "aux_rows": "with {} auxiliary rows",
    "peer_model": "with the others' models", "prior": "without class shares",
}  # fmt: skip


def find_attack(at: Identity) -> Identity:
    """Which attack on whom it is, wherever it is made and scored."""
    return at.keep("dataset", "adversary", "attack", "attack_key", "known_rows", "victim")


def tell_apart(
    points: Iterable[Identity], grants: Mapping[str, Grants] | None = None
) -> dict[Identity, str]:
    """What to say behind the name of each attack, as ``against shop``, by its :func:`find_attack`.

    It is '' where no other attack of its adversary has its label.

    Args:
        points: of attacks.
        grants: what is not usual of them, by their keys.
    """
    known = grants or {}
    attacks = dict.fromkeys(map(find_attack, points))
    alike = group_by(attacks, lambda at: (at.dataset, at.adversary, at.attack))
    found: dict[Identity, str] = {}
    for of in alike.values():
        given = [replace(known.get(at.attack_key, Grants()), victim=at.victim) for at in of]
        said = [[*_list_known(at, of), *list_granted(mine, given)]
                for at, mine in zip(of, given, strict=True)]  # fmt: skip
        for at, words in zip(of, said, strict=True):
            key = [f"[{at.attack_key[:8]}]"] if said.count(words) > 1 else []
            found[at] = " ".join([*words, *key])
    return found


def _list_known(at: Identity, among: Sequence[Identity]) -> list[str]:
    if at.known_rows is None or len({other.known_rows for other in among}) == 1:
        return []
    return [f"with {at.known_rows:g} labelled rows"]


def list_granted(mine: Grants, among: Sequence[Grants]) -> list[str]:
    """What an attacker was granted that is not usual, and that others were not, in words."""
    usual = Grants()
    return [
        text.format(value) for key, text in _GRANTED.items()
        if (value := getattr(mine, key)) != getattr(usual, key)
        and len({getattr(one, key) for one in among}) > 1
    ]  # fmt: skip
