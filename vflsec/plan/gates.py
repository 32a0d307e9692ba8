"""Gates of a scenario that nothing planned will answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vflsec.audit.gate import Gate
from vflsec.audit.gate_checks import unanswerable
from vflsec.audit.leakage import defense_point
from vflsec.audit.metrics import primary
from vflsec.audit.truth import MEMBERSHIP
from vflsec.config.problems import Problem
from vflsec.label import Classes, make_label
from vflsec.plan.cells import claimants
from vflsec.plan.values import TUNING
from vflsec.plugins import registry

if TYPE_CHECKING:
    from vflsec.config.scenario import Scenario
    from vflsec.plan.values import Group, Refused
    from vflsec.specs import AttackSpec


def unanswered(
    scenario: Scenario,
    groups: Sequence[Group],
    refused: Sequence[Refused],
    phases: Mapping[str, tuple[str, ...]],
) -> Iterator[Problem]:
    """Gates that no planned result will answer, each with what there will be.

    Args:
        scenario: what was planned.
        groups, refused: of its plan.
        phases: names of the attacked phases by cohort, where they are known.
    """
    if not scenario.root.gate:
        return
    rows = list(_rows(groups, refused, phases))
    for i, section in enumerate(scenario.root.gate):
        gate = Gate(**section.model_dump(exclude_none=True))
        for wrong in unanswerable(gate, rows):
            yield scenario.error(
                ("gate", i, *([wrong.key] if wrong.key else [])), wrong.rule, wrong.value
            )


def _rows(
    groups: Sequence[Group], refused: Sequence[Refused], phases: Mapping[str, tuple[str, ...]]
) -> Iterator[dict[str, Any]]:
    """One row for each figure that will be measured, as far as a gate can tell them apart."""
    points: dict[str, dict[str, Any]] = {}
    classes = {group.data.name: group.data.classes for group in groups}
    for group in groups:
        if group.role in ("control", TUNING):
            continue
        where = {"dataset": group.data.name, "algorithm": group.title}
        first = group.cells[0]
        tested = () if first.untested or group.role != "audit" else claimants(first.defenses)
        for cell in group.cells:
            defense, strength = defense_point(cell.defenses)
            claims = any(d.name in tested and d.strength != 0 for d in cell.defenses)
            point = {**where, "defense": defense, "strength": strength, "claims": claims}
            points[cell.key] = point
        attacks = [
            (_who(spec) | _figures(spec, group.data.classes), _splits(spec))
            for spec in group.attacks
        ]
        distinct = {tuple(p.items()): p for p in (points[c.key] for c in group.cells)}
        for point in distinct.values():
            yield {**point, "attack": "", "adversary": "", "phase": "", "split": "", "target": ""}
            for who, splits in attacks:
                for split in splits:
                    for phase in phases.get(group.cells[0].cohort) or ("",):
                        yield {**point, **who, "phase": phase, "split": split}
    for r in refused:
        who = _who(r.attack) | _figures(r.attack, classes.get(r.dataset, 0))
        for key in r.cells if r.role != "control" else ():
            yield {**points[key], **who, "phase": "", "split": ""}


def _who(spec: AttackSpec) -> dict[str, Any]:
    attack = registry.attacks.create(spec.name, spec.params)
    return {
        "attack": spec.label, "adversary": "+".join(spec.adversary), "target": attack.target,
    }  # fmt: skip


def _figures(spec: AttackSpec, classes: int) -> dict[str, Any]:
    """What an attack is measured by, and of that what verdicts rest on, as far as the kind of label
    tells it; empty where it does not.
    """
    target = registry.attacks.create(spec.name, spec.params).target
    if target == "membership":
        return {"primary": primary(2), "metrics": MEMBERSHIP}
    if target == "label":
        label = Classes(2) if spec.of_label else make_label(classes)
        return dict(zip(("primary", "metrics"), label.plan_metrics(), strict=True))
    return {"primary": "", "metrics": ()}


def _splits(spec: AttackSpec) -> tuple[str, ...]:
    attack = registry.attacks.create(spec.name, spec.params)
    fixed = {"integrity": ("test",), "embedding": ("train",)}
    return fixed.get(attack.target, tuple(attack.splits))
