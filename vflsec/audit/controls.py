"""The attacker without the federation: which control is the strongest, told without the truth.

A control picked by its score on the target rows is the maximum of several noisy numbers, hence
biased upwards, and hides leakage. So the choice rests on cross-validation on the adversary's own
known rows alone, and is made once for all seeds, strengths and defenses.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from typing import Any

import numpy as np

from vflsec.audit.metrics import METRICS

__all__ = ["CHANCE", "FALLBACK", "strongest", "strongest_by_set"]

FALLBACK = "majority"
"""The control that needs no known row; taken where no control could be cross-validated."""

CHANCE = "chance"
"""Name given to the level of chance where an attack came without any control."""

Controls = Mapping[str, Mapping[str, float | None]]


def strongest(seen: Iterable[tuple[int, Controls]], metric: str) -> str:
    """Name of the control with the best mean cross-validated score over seeds.

    Args:
        seen: (seed, controls) of every cell; the score of a seed is its mean over cells.
        metric: decides whether larger is better.

    Returns:
        the name (ties to the first by name); :data:`FALLBACK` where none has a cross-validated
        score; :data:`CHANCE` where there is no such control either.
    """
    by_control: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    names: set[str] = set()
    for seed, controls in seen:
        names.update(controls)
        for name, figures in controls.items():
            cv = figures.get("cv")
            if cv is not None and np.isfinite(cv):
                by_control[name][seed].append(float(cv))
    if not by_control:
        return FALLBACK if FALLBACK in names else CHANCE
    sign = 1 if metric not in METRICS or METRICS[metric].larger_is_better else -1
    mean = {
        name: sign * float(np.mean([np.mean(v) for v in seeds.values()]))
        for name, seeds in by_control.items()
    }
    return min(mean, key=lambda name: (-mean[name], name))


def control_set(record: Mapping[str, Any]) -> tuple[Hashable, ...]:
    """What shares one choice: data set, adversary, target, known rows, controls and metric.

    Records that do not say how many rows the adversary knows are told apart by attack.
    """
    known = record.get("known_rows")
    budget = known if known is not None and known == known else record.get("attack_key", "")
    return (
        record["dataset"],
        record.get("adversary", ""),
        record.get("target", ""),
        record["metric"],
        budget,
        tuple(sorted(record["controls"])),
    )


def strongest_by_set(records: Iterable[Mapping[str, Any]]) -> dict[tuple[Hashable, ...], str]:
    """The strongest control of each :func:`control_set`, over all seeds and cells alike."""
    seen: dict[tuple[Hashable, ...], list[tuple[int, Controls]]] = defaultdict(list)
    for record in records:
        seen[control_set(record)].append((int(record["seed"]), record["controls"]))
    return {key: strongest(found, str(key[3])) for key, found in seen.items()}


def as_json(controls: Controls) -> str:
    """Every control's own figures as text, for a column of the results."""
    return json.dumps({k: dict(v) for k, v in sorted(controls.items())}) if controls else ""
