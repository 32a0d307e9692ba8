"""About how much a plan will cost, before it is run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from vflsec import registry

if TYPE_CHECKING:
    from vflsec.engine.plan import Group

__all__ = ["estimate"]

_STEPS_PER_SECOND = 1500.0  # small models on one CPU thread, measured: 700 to 9000


def estimate(groups: Sequence[Group]) -> dict[str, float]:
    """A rough estimate: optimiser steps of all replicas at a typical speed of one CPU thread."""
    steps, sealed, sent = 0, 0.0, 0
    for group in groups:
        cls = registry.algorithms.get(group.cells[0].algorithm)
        given = {k: p.default for k, p in registry.parameters(cls).items()}
        given |= dict(group.cells[0].params)
        epochs = sum(
            v for k, v in given.items() if k.endswith("epochs") and isinstance(v, int | float)
        )
        batch = given.get("batch_size")
        if not epochs or not isinstance(batch, int) or batch < 1:
            continue
        labelled = group.data.section.get("labelled", 0.7)
        rows = labelled if isinstance(labelled, int) else labelled * group.data.rows
        more = int(epochs * math.ceil(min(rows, group.data.rows) / batch)) * len(group.cells)
        steps += more
        for d in group.cells[0].defenses:
            policy = registry.defenses.create(d.name, d.params)
            seconds, size = policy.step_cost(batch, group.data.classes, given)
            parties = 1 if d.party in group.data.passive else len(group.data.passive)
            sealed += seconds * more * parties
            sent += size * more * parties
    trainings = sum(len(g.cells) for g in groups)
    attacks = sum(len(g.cells) * len(g.attacks) for g in groups)
    return {
        "trainings": trainings,
        "steps": steps,
        "attacks": attacks,
        "seconds": round(steps / _STEPS_PER_SECOND + 0.05 * attacks + sealed, 1),
        "encryption_seconds": round(sealed, 1),
        "ciphertext_bytes": sent,
    }
