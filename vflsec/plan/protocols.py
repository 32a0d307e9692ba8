"""Who will hold what under the defenses of a plan, as these say it themselves."""

from __future__ import annotations

from collections.abc import Sequence

from vflsec.audit.exposure import Protocol
from vflsec.audit.leakage import defense_point
from vflsec.plan.estimate import read_settings
from vflsec.plan.values import Group
from vflsec.plugins import registry


def list_protocols(groups: Sequence[Group]) -> tuple[Protocol, ...]:
    """One entry for each algorithm and stack of defenses that has a protocol of its own."""
    found: dict[tuple[str, str], Protocol] = {}
    for group in groups:
        cell = group.cells[0]
        label, _ = defense_point(cell.defenses)
        if group.role != "audit" or (group.title, label) in found:
            continue
        for d in cell.defenses:
            policy = registry.defenses.create(d.name, d.params)
            lines = policy.visibility()
            if not lines:
                continue
            hides, leaves = policy.bought(read_settings(group))
            names = tuple(d.name for d in cell.defenses)
            found[group.title, label] = Protocol(
                group.title, label, names, tuple(lines), hides, leaves
            )
    return tuple(found.values())
