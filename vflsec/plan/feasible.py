"""What keeps cells from being trained, found before anything runs: each takes its first steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from vflsec import registry
from vflsec.config.components import natural_strengths
from vflsec.config.problems import Problem
from vflsec.errors import ConfigError, VflsecError

if TYPE_CHECKING:
    from vflsec.cell import CellSpec
    from vflsec.config.scenario import Scenario
    from vflsec.data.source import Source
    from vflsec.plan.planner import DataInfo, Group
    from vflsec.task import Task

__all__ = ["obstacles", "unfit_defenses", "unknown_parties"]


def unknown_parties(scenario: Scenario, infos: Sequence[DataInfo]) -> Iterator[Problem]:
    """Names of parties that no data set has."""
    root = scenario.root
    every = {p for i in infos for p in i.parties}
    listed = ", ".join(sorted(every))
    named: list[tuple[tuple[str | int, ...], str]] = [(("parties", p), p) for p in root.parties]
    for i, attack in enumerate(root.attack):
        words = [attack.adversary] if isinstance(attack.adversary, str) else attack.adversary
        if attack.victim:
            named.append((("attack", i, "victim"), attack.victim))
        named += [(("attack", i, "adversary"), w) for w in words if w not in ("passive", "active")]
    for i, defense in enumerate(root.defense):
        if defense.party not in ("", "passive", "active", "all"):
            named.append((("defense", i, "party"), defense.party))
    for path, party in named:
        if party not in every:
            yield scenario.error(path, f"must name a party ({listed}), got {party!r}.", party)


def unfit_defenses(scenario: Scenario, infos: Sequence[DataInfo]) -> Iterator[Problem]:
    """Defenses that cannot protect a data set, as they say themselves."""
    for i, section in enumerate(scenario.root.defense):
        policy = registry.defenses.create(section.name, natural_strengths(section)[1])
        for info in infos:
            try:
                policy.check_task(info.classes)
            except ConfigError as error:
                rule = f"cannot be put on data {info.name}: {error}"
                yield scenario.error(("defense", i), rule, section.name)


def obstacles(
    scenario: Scenario,
    groups: Sequence[Group],
    sources: Mapping[str, Source],
    phases: dict[str, tuple[str, ...]],
) -> Iterator[Problem]:
    """Audited groups whose training cannot begin.

    Args:
        scenario: what was planned.
        groups: of its plan.
        sources: the loaded data by `DataInfo.name`.
        phases: is filled with the names of the attacked phases, by cohort.

    What only shows later than in the first step of a phase is not found. Cells under real
    encryption, whose setup starts processes and makes keys, are left out.
    """
    from vflsec.data.prepare import make_task

    tasks: dict[str, Task] = {}
    for group in groups:
        cell, name = group.cells[-1], group.data.name
        if group.role != "audit" or _encrypts(cell):
            continue
        if name not in tasks:
            tasks[name] = make_task(sources[name], 0, **group.data.split)
        reason = _obstacle(cell, tasks[name], phases)
        if reason:
            under = " with ".join([group.title, *(d.name for d in cell.defenses)])
            rule = f"cannot be trained ({under} on {name}): {reason}"
            i = [registry.algorithms.entry(a.name).name for a in scenario.root.algorithm].index(
                cell.algorithm
            )
            yield scenario.error(("algorithm", i), rule, group.title)


def _encrypts(cell: CellSpec) -> bool:
    """Whether training takes longer by its defenses, which encryption alone does."""
    policies = [registry.defenses.create(d.name, d.params) for d in cell.defenses]
    return any(p.step_cost(64, 2, cell.params).spent > 0 for p in policies)


def _obstacle(cell: CellSpec, task: Task, phases: dict[str, tuple[str, ...]]) -> str:
    from vflsec.train.cohort import first_step

    try:
        phases[cell.cohort] = first_step(cell, task)
    except VflsecError as error:
        return str(error)
    return ""
