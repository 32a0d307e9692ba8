"""What a scenario names that its data sets do not have or cannot be protected by."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

from vflsec.audit.gate_selection import Planned, list_unanswerable
from vflsec.audit.leakage import defense_point
from vflsec.audit.metrics import choose_primary
from vflsec.audit.truth import MEMBERSHIP
from vflsec.config.components import flat_params, natural_strengths
from vflsec.config.problems import Problem
from vflsec.config.scenario import Scenario
from vflsec.config.sections import Root
from vflsec.core.algorithm import Algorithm
from vflsec.core.check import must_be_of, nearest
from vflsec.data.source import Source
from vflsec.errors import ConfigError
from vflsec.label import Classes, make_label
from vflsec.plan.cells import list_claimants
from vflsec.plan.observe import System
from vflsec.plan.values import TUNING, DataInfo, Group, Refused
from vflsec.plugins import registry
from vflsec.specs import WHICHEVER, AttackSpec

_MOST_NAMED = 30


def list_servers(root: Root) -> set[str]:
    """Names of the servers of a scenario's algorithms, which may attack."""
    return {p for algorithm in _make_algorithms(root) for p in algorithm.servers}


def _make_algorithms(root: Root) -> list[Algorithm]:
    return [registry.algorithms.create(a.name, flat_params(a)) for a in root.algorithm]


def unknown_parties(scenario: Scenario, infos: Sequence[DataInfo]) -> Iterator[Problem]:
    """Names of parties that no data set has."""
    root = scenario.root
    every = {p for i in infos for p in i.parties}
    listed = ", ".join(sorted(every))
    known = {"passive", "active", *list_servers(root)}
    named: list[tuple[tuple[str | int, ...], str]] = [(("parties", p), p) for p in root.parties]
    for i, attack in enumerate(root.attack):
        words = [attack.adversary] if isinstance(attack.adversary, str) else attack.adversary
        if attack.victim:
            named.append((("attack", i, "victim"), attack.victim))
        if attack.adversary:  # else who receives what is read attacks
            named += [(("attack", i, "adversary"), w) for w in words if w not in known]
    for i, defense in enumerate(root.defense):
        if defense.party not in ("", "passive", "active", "all"):
            named.append((("defense", i, "party"), defense.party))
    for i, info in enumerate(infos):
        ambiguous = {
            "all": "all" in info.parties,
            "active": "active" in info.passive,
            "passive": info.active == "passive"
            or ("passive" in info.passive and len(info.passive) > 1),
        }
        for word in (w for w, wrong in ambiguous.items() if wrong):
            rule = f"must not call a party {word!r}: a role."
            yield scenario.error(("data", i), rule, info.name)
    for path, party in named:
        if party not in every:
            rule = f"must name a party ({listed}), got {party!r}.{_as_list(party, every | known)}"
            yield scenario.error(path, rule, party)


def _as_list(written: str, known: Set[str]) -> str:
    """How parties are named together that were written as reports print them, or ''."""
    several = written.split("+")
    return f" Several are a list: {json.dumps(several)}." if known >= {*several} else ""


def unfit_defenses(
    scenario: Scenario, infos: Sequence[DataInfo], notes: list[str]
) -> Iterator[Problem]:
    """Defenses that cannot protect a data set, or that change nothing under any algorithm.

    Args:
        scenario, infos: what is planned, and its data sets.
        notes: gets a sentence for each algorithm under which a defense changes nothing.
    """
    algorithms = _make_algorithms(scenario.root)
    for i, section in enumerate(scenario.root.defense):
        policy = registry.defenses.create(section.name, natural_strengths(section)[1])
        owner = section.party
        roles = {"active" if owner == d.active else "passive" for d in infos if owner in d.parties}
        if not roles and owner not in ("", "active", "passive", "all"):
            continue  # no party: an error of its own
        told = [[a.explain_unfit(policy, r) for r in sorted(roles or {owner})] for a in algorithms]
        why = [of[0] if all(of) else "" for of in told]  # a party may be active on one table alone
        if all(why):
            yield scenario.error(("defense", i), f"has no effect: {why[0]}", section.name)
        notes += filter(None, why)
        for info in infos:
            try:
                policy.check_label(info.classes)
            except ConfigError as error:
                rule = f"cannot be put on data {info.name}: {error}"
                yield scenario.error(("defense", i), rule, section.name)


def find_largest(defense: str, groups: Iterable[Group]) -> float:
    """The largest strength of a defense that has a meaning in some system that is audited."""
    kind: Any = registry.defenses.get(defense)
    systems = (System(g.data, g.cells[0]).facts for g in groups if g.role == "audit")
    largest = (kind.find_largest(f) if f else kind.largest for f in systems)
    return max(largest, default=kind.largest)


def find_excess(scenario: Scenario, groups: Sequence[Group]) -> Iterator[Problem]:
    """Strengths beyond the largest that has a meaning."""
    for i, section in enumerate(scenario.root.defense):
        strengths, largest = natural_strengths(section)[0], find_largest(section.name, groups)
        kind: Any = registry.defenses.get(section.name)
        if strengths and max(strengths) > largest:
            rule = f"must be at most {largest:g}, all there are ({kind.strengths})."
            yield scenario.error(("defense", i, "strength"), rule, max(strengths))


def unknown_columns(scenario: Scenario, sources: Iterable[Source]) -> Iterator[Problem]:
    """Columns that attacks are after and no data set has; found here, and not after training."""
    tables = [table for s in sources for table in s.parties.values()]
    names = list(dict.fromkeys(n for table in tables for n in table.names))
    for i, section in enumerate(scenario.root.attack):
        for key in registry.attacks.get(section.name).of_data:  # type: ignore[attr-defined]
            wanted = (section.model_extra or {}).get(key)
            known = ["", WHICHEVER, *names]
            if isinstance(wanted, str) and names and wanted not in known:
                more = ["..."] if len(names) > _MOST_NAMED else []
                listed = ", ".join([*names[:_MOST_NAMED], *more])
                rule = (
                    f"must be a column, got {wanted!r}. {nearest(wanted, names)} There are: "
                    f"{listed}."
                )
                yield scenario.error(("attack", i, key), rule.replace(".  ", ". "), wanted)


def find_undrawable(scenario: Scenario) -> Iterator[Problem]:
    """Attacks whose answers are no columns, and of which pictures are asked all the same."""
    for i, section in enumerate(scenario.root.attack):
        target = registry.attacks.get(section.name).target  # type: ignore[attr-defined]
        if section.pictures and target != "feature":
            rule = f"must be 0: {section.name} guesses {target!r}."
            yield scenario.error(("attack", i, "pictures"), rule, section.pictures)


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
    rows = list(_list_planned(groups, refused, phases))
    for i, gate in enumerate(scenario.list_gates()):
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


def _list_planned(
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
        attacks = [
            (_describe_attack(a, group.data.classes), _list_splits(a)) for a in group.attacks
        ]
        for point in dict.fromkeys(points[c.key] for c in group.cells):
            yield point
            for of, splits in attacks:
                for split in splits:
                    for phase in phases.get(first.cohort) or ("",):
                        yield replace(point, **of, phase=phase, split=split)
    for r in refused:
        of = _describe_attack(r.attack, classes.get(r.dataset, 0))
        for key in r.cells if r.role != "control" else ():
            yield replace(points[key], **of)


def _describe_attack(spec: AttackSpec, classes: int) -> dict[str, Any]:
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


def _list_splits(spec: AttackSpec) -> tuple[str, ...]:
    attack = registry.attacks.create(spec.name, spec.params)
    fixed = {"integrity": ("test",), "embedding": ("train",)}
    return fixed.get(attack.target, tuple(attack.splits))
