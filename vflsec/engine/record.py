"""What is kept beside the results of an audit, so that they can be judged without its data."""

from __future__ import annotations

import platform
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vflsec import registry
from vflsec._version import __version__
from vflsec.plan.values import Plan
from vflsec.view import as_needs

if TYPE_CHECKING:
    from vflsec.config.scenario import Scenario

__all__ = ["record_of"]


def record_of(scenario: Scenario, plan: Plan, device: str, looks: int) -> dict[str, Any]:
    """What judging the results later needs, as plain values: no data is read again for it.

    Args:
        scenario, plan: what is audited.
        device: where it runs.
        looks: how often the gates are judged before they must be decided.
    """
    wanted: dict[str, dict[str, None]] = {}
    known_rows: dict[str, int] = {}
    datasets: dict[str, str] = {}
    algorithms: dict[str, str] = {}
    for group in plan.groups:
        for cell in group.cells:
            wanted.setdefault(cell.key, {}).update(dict.fromkeys(a.key for a in group.attacks))
            datasets.setdefault(f"{group.role}:{cell.key}", group.data.name)
            algorithms.setdefault(f"{group.role}:{cell.key}", group.title)
        known_rows.update({a.key: a.known_rows for a in group.attacks})
    for refused in plan.refused:
        known_rows[refused.attack.key] = refused.attack.known_rows
        for key in refused.cells:
            wanted.setdefault(key, {})[refused.attack.key] = None
    return {
        "name": scenario.name,
        "scenario_hash": scenario.hash,
        "scenario_toml": scenario.to_toml(),
        "confidence": plan.confidence,
        "gates": [g.model_dump(exclude_none=True) for g in scenario.root.gate],
        "datasets": datasets,
        "algorithms": algorithms,
        "wanted": {cell: list(keys) for cell, keys in wanted.items()},
        "known_rows": known_rows,
        "attacks": _threats(plan),
        "defenses": _defenses(plan),
        "scenario_file": _shown(scenario.origin.file),
        "looks": looks,
        "gate_lines": [
            scenario.error(("gate", i), "").line for i in range(len(scenario.root.gate))
        ],
        "when": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S"),
        "data": {g.data.name: g.data.digest for g in plan.groups},
        "tables": {
            g.data.name: {"tables": list(g.data.tables), "overlap": dict(g.data.overlap)}
            for g in plan.groups
            if g.data.tables
        },
        "refused": [asdict(r) for r in plan.refused],
        "notes": list(plan.notes),
        "visibility": list(plan.visibility),
        "device": device,
        "versions": _versions(),
    }


def _shown(file: str) -> str:
    """A scenario's path as a build sees it: relative to where the audit runs, if it is below."""
    path = Path(file)
    if not path.is_absolute():
        return path.as_posix()
    below = path.is_relative_to(Path.cwd())
    return (path.relative_to(Path.cwd()) if below else Path(path.name)).as_posix()


def _threats(plan: Plan) -> dict[str, dict[str, Any]]:
    """What every attack is and needs, by key, so that a report can say it without importing it."""
    every = [a for g in plan.groups if g.role == "audit" for a in g.attacks]
    every += [r.attack for r in plan.refused if r.role == "audit"]
    out = {}
    for spec in every:
        entry = registry.attacks.entry(spec.name)
        attack = registry.attacks.create(spec.name, spec.params)
        out[spec.key] = {
            "name": spec.name,
            "label": spec.label,
            "adversary": list(spec.adversary),
            "known_rows": spec.known_rows,
            "prior": spec.prior,
            "target": attack.target,
            "needs": sorted(str(n) for n in as_needs(attack.needs)),
            "active": attack.policy() is not None,
            "summary": entry.summary,
            "source": entry.source,
        }
    return out


def _defenses(plan: Plan) -> dict[str, dict[str, str]]:
    """What every defense of the audit is, by name."""
    used = {d.name for g in plan.groups for c in g.cells for d in c.defenses}
    entries = {name: registry.defenses.entry(name) for name in sorted(used)}
    return {n: {"summary": e.summary, "source": e.source} for n, e in entries.items()}


def _versions() -> dict[str, str]:
    import numpy
    import torch

    return {
        "vflsec": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": numpy.__version__,
    }
