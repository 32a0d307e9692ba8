"""About how much a plan will cost, before it is run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vflsec import registry
from vflsec.audit.leakage import defense_point
from vflsec.plan.cells import claimants

if TYPE_CHECKING:
    from vflsec.plan.values import Group, Work

__all__ = ["estimate", "weight"]

_STEPS_PER_SECOND = 1500.0  # small models on one CPU thread, measured: 700 to 9000
_STEPS_OF_ATTACK = 75
_CONTROLS_SECONDS = 0.5
"""Of all controls of one seed, adversary and budget of known rows; they are made once."""

_KEPT_TIMES = 3
"""Numbers of a cut that are kept a row: its embedding at both ends, and the gradient."""
_KEPT_SHARE = 0.82  # that compression leaves of them, measured
_KEPT_BESIDE = 100_000  # bytes of models and own columns of a small table, measured


def weight(group: Group | Work) -> float:
    """About how much work costs beside other work, in optimiser steps: one for all machines."""
    attacks = sum(1 + len(a.dosing) for a in group.attacks)
    return len(group.cells) * (_steps(group) + _STEPS_OF_ATTACK * attacks + 1)


def _settings(group: Group | Work) -> dict[str, Any]:
    """The settings of a group's algorithm, defaults included."""
    cls = registry.algorithms.get(group.cells[0].algorithm)
    given = {k: p.default for k, p in registry.parameters(cls).items()}
    return given | dict(group.cells[0].params)


def _steps(group: Group | Work) -> int:
    """Optimiser steps of one cell."""
    given = _settings(group)
    epochs = sum(v for k, v in given.items() if k.endswith("epochs") and isinstance(v, int | float))
    batch = given.get("batch_size")
    if not epochs or not isinstance(batch, int) or batch < 1:
        return 0
    return int(epochs * math.ceil(_labelled(group) / batch))


def _labelled(group: Group | Work) -> float:
    """Labelled rows of the training."""
    labelled = group.data.section.get("labelled", 0.7)
    rows = labelled if isinstance(labelled, int) else labelled * group.data.rows
    return float(min(rows, group.data.rows))


def estimate(groups: Sequence[Group]) -> dict[str, Any]:
    """A rough estimate: optimiser steps of all replicas at a typical speed of one CPU thread.

    ``encryption`` has an entry for every defense of a group that costs something on top: seconds
    by operation and bytes of one batch, batches of an epoch, and of all trainings.
    ``views_bytes`` is what ``--keep-views`` would keep.
    """
    steps, sealed, sent, kept = 0, 0.0, 0, 0.0
    encryption: list[dict[str, Any]] = []
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
        tested = group.role == "audit" and group.main and not group.cells[0].untested
        steps += more * (2 if tested and claimants(group.cells[0].defenses) else 1)
        if group.role != "reference" and group.main:
            width = given.get("embedding") or given.get("cut") or 0
            size = 8 if group.cells[0].dtype == "float64" else 4
            numbers = epochs * min(rows, group.data.rows) * width * len(group.data.passive)
            one = _KEPT_TIMES * _KEPT_SHARE * size * numbers + _KEPT_BESIDE
            kept += one * len(group.cells)
        for d in group.cells[0].defenses:
            policy = registry.defenses.create(d.name, d.params)
            found = policy.step_cost(batch, group.data.classes, given)
            parties = 1 if d.party in group.data.passive else len(group.data.passive)
            sealed += found.spent * more * parties
            sent += found.bytes * more * parties
            if found.bytes:
                per_epoch = math.ceil(min(rows, group.data.rows) / batch) * parties
                encryption.append(
                    {"dataset": group.data.name, "algorithm": group.title,
                     "defense": defense_point([d])[0],
                     "computed": found.computed, "seconds": dict(found.seconds),
                     "bytes": found.bytes, "per_epoch": per_epoch, "in_all": more * parties}
                )  # fmt: skip
    trainings = sum(len(g.cells) for g in groups)
    attacks = sum(len(g.cells) * len(g.attacks) for g in groups)
    budgets = {
        (g.data.name, cell.seed, a.adversary, a.known_rows)
        for g in groups
        for cell in g.cells
        for a in g.attacks
        if a.known_rows
    }
    doses = sum(len(g.cells) * len(a.dosing) for g in groups for a in g.attacks)
    controls = round(_CONTROLS_SECONDS * len(budgets), 1)
    return {
        "trainings": trainings,
        "steps": steps,
        "attacks": attacks,
        "seconds": round(
            steps / _STEPS_PER_SECOND + 0.05 * (attacks + doses) + sealed + controls, 1
        ),
        "control_seconds": controls,
        "encryption_seconds": round(sealed, 1),
        "ciphertext_bytes": sent,
        "encryption": encryption,
        "views_bytes": int(kept),
    }
