"""Gates of a scenario that nothing planned will answer, and a baseline that nothing trains."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vflsec.audit.gate import Gate
from vflsec.audit.gate_checks import list_unanswerable
from vflsec.audit.gate_selection import Planned
from vflsec.audit.leakage import defense_point
from vflsec.audit.metrics import choose_primary
from vflsec.audit.truth import MEMBERSHIP
from vflsec.config.problems import Problem
from vflsec.core.check import must_be_of
from vflsec.label import Classes, make_label
from vflsec.plan.cells import list_claimants
from vflsec.plan.values import TUNING
from vflsec.plugins import registry

if TYPE_CHECKING:
    from vflsec.config.scenario import Scenario
    from vflsec.plan.values import Group, Refused
    from vflsec.specs import AttackSpec


def find_unanswered(
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
        for wrong in list_unanswerable(gate, rows):
            yield scenario.error(
                ("gate", i, *([wrong.key] if wrong.key else [])), wrong.rule, wrong.value
            )


def find_unmade_baseline(scenario: Scenario, groups: Sequence[Group]) -> Iterator[Problem]:
    """The problem of a baseline of relative improvement that nothing planned trains."""
    named = scenario.root.audit.baseline
    made = sorted({g.title for g in groups if g.role in ("audit", "reference")})
    if named is not None and named not in made:
        yield scenario.error(("audit", "baseline"), must_be_of(made, named), named)


def _rows(
    groups: Sequence[Group], refused: Sequence[Refused], phases: Mapping[str, tuple[str, ...]]
) -> Iterator[Planned]:
    """One row for each figure that will be measured, as far as a gate can tell them apart."""
    points: dict[str, Planned] = {}
    classes = {group.data.name: group.data.classes for group in groups}
    for group in groups:
        if group.role in ("control", TUNING):
            continue
        first = group.cells[0]
        tested = () if first.untested or group.role != "audit" else list_claimants(first.defenses)
        for cell in group.cells:
            claims = any(d.name in tested and d.strength != 0 for d in cell.defenses)
            points[cell.key] = Planned(
                group.data.name, group.title, *defense_point(cell.defenses), claims=claims
            )
        attacks = [(_attack(a, group.data.classes), _splits(a)) for a in group.attacks]
        for point in dict.fromkeys(points[c.key] for c in group.cells):
            yield point
            for of, splits in attacks:
                for split in splits:
                    for phase in phases.get(first.cohort) or ("",):
                        yield replace(point, **of, phase=phase, split=split)
    for r in refused:
        of = _attack(r.attack, classes.get(r.dataset, 0))
        for key in r.cells if r.role != "control" else ():
            yield replace(points[key], **of)


def _attack(spec: AttackSpec, classes: int) -> dict[str, Any]:
    """An attack, and what it is measured by as far as the kind of label tells it, as fields."""
    target = registry.attacks.create(spec.name, spec.params).target
    main, metrics = "", tuple[str, ...]()
    if target in ("membership", "presence"):
        main, metrics = choose_primary(2), MEMBERSHIP
    elif target == "label":
        label = Classes(2) if spec.of_label else make_label(classes)
        main, known = label.plan_metrics()
        metrics = tuple(known)
    return {
        "attack": spec.label, "adversary": "+".join(spec.adversary), "target": target,
        "primary": main, "metrics": metrics or None,
    }  # fmt: skip


def _splits(spec: AttackSpec) -> tuple[str, ...]:
    attack = registry.attacks.create(spec.name, spec.params)
    fixed = {"integrity": ("test",), "embedding": ("train",)}
    return fixed.get(attack.target, tuple(attack.splits))
