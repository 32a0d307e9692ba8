"""From a scenario to cells: what will run, what cannot and why, and about how much it costs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vflsec import registry
from vflsec.audit.exposure import tables
from vflsec.cell import AttackSpec, CellSpec, DefenseSpec, digest, victims
from vflsec.config.components import flat_params, natural_strengths
from vflsec.config.problems import Problem, ScenarioError
from vflsec.config.sections import Data
from vflsec.data.load import load_source
from vflsec.data.remarks import missing_by_column, remarks
from vflsec.plan.estimate import estimate
from vflsec.plan.feasible import unfit_defenses, unknown_parties
from vflsec.plan.gates import unanswered
from vflsec.plan.observe import labelled_rows, refusal
from vflsec.plan.values import DataInfo, Group, Plan, Refused
from vflsec.plugins import contained, importable, source_key

if TYPE_CHECKING:
    from vflsec.config.scenario import Scenario
    from vflsec.data.source import Source

__all__ = ["Trial", "make_plan"]

Phases = dict[str, tuple[str, ...]]
"""Names of the phases after which attacks are made, by cohort, where they are known."""

Trial = Callable[["Scenario", Sequence[Group], Mapping[str, "Source"], Phases], Iterable[Problem]]
"""Tries out whether the trainings of a plan can begin and fills in the phases; given by the engine,
which can train."""

_REFERENCES = {"local": "local", "logistic": "pooled_logistic", "boosting": "pooled_boosting"}
_ABSENT = object()
_CONTROLS: tuple[Mapping[str, Any], ...] = ({}, {"positive_rate": 0.15})
_CONTROL_SEEDS = 5
_CONTROL_ALIGNED = 0.5  # for algorithms that cannot train without rows that have no partner


def make_plan(
    scenario: Scenario,
    *,
    load: Callable[[Mapping[str, Any], int, Path], Source] | None = None,
    trial: Trial | None = None,
) -> Plan:
    """Plan an audit; loads the data sets.

    Args:
        scenario: a valid scenario.
        load: instead of `vflsec.data.load.load_source`.
        trial: finds trainings that cannot begin; None takes it on trust that all can.

    Raises:
        ScenarioError: a party is named that a data set does not have, a defense cannot protect a
            data set, or a training cannot begin.
        DataError: a table cannot be used.
    """
    importable(scenario.base)
    planner = _Planner(scenario, load or load_source)
    with contained("planning the audit"):
        groups = tuple(planner.groups())
        if not planner.problems:
            phases: Phases = {}
            if trial is not None:
                planner.problems += trial(scenario, groups, planner.sources, phases)
            planner.problems += unanswered(scenario, groups, planner.refused, phases)
    if planner.problems:
        raise ScenarioError(planner.problems)
    return Plan(
        name=scenario.name,
        scenario_hash=scenario.hash,
        confidence=scenario.root.audit.confidence,
        groups=groups,
        refused=tuple(planner.refused),
        notes=tuple(dict.fromkeys(planner.notes)),
        cost=estimate(groups),
        base=scenario.base,
        visibility=tables(groups),
    )


class _Planner:
    def __init__(self, scenario: Scenario, load: Callable[..., Source]) -> None:
        self.scenario, self.root, self.load = scenario, scenario.root, load
        self.problems: list[Problem] = []
        self.refused: list[Refused] = []
        self.notes: list[str] = []
        self.seen: set[tuple[str, str]] = set()
        self.sources: dict[str, Source] = {}
        self.codes: dict[tuple[str, ...], str] = {}
        self.registered: dict[str, str] = {}

    def groups(self) -> Iterator[Group]:
        loaded = [self._info(d) for d in self.root.data]
        infos = _distinct([info for info, _ in loaded])
        self.sources = {i.name: source for i, (_, source) in zip(infos, loaded, strict=True)}
        self.problems += unknown_parties(self.scenario, infos)
        self.problems += unfit_defenses(self.scenario, infos)
        if self.problems:
            return
        seeds = self.root.audit.seeds
        titled = list(zip(self.root.algorithm, self._titles(), strict=True))
        for info, (algorithm, title) in itertools.product(infos, titled):
            params = flat_params(algorithm)
            cells = [
                self._cell("audit", info, algorithm.name, params, defenses, seed)
                for defenses in self._grid()
                for seed in seeds
            ]
            yield from self._attacked("audit", info, cells, info, title)
        for info in infos:
            yield from self._references(info, seeds)
        if self.root.audit.positive_control and self.root.gate and self.root.attack:
            yield from self._controls(infos[0])

    def _info(self, data: Data) -> tuple[DataInfo, Source]:
        section = data.model_dump(exclude_defaults=True)
        file = Path(data.file or next(iter(data.files.values()), ""))
        section.setdefault("name", file.name.split(".")[0])
        return self._of_section(section)

    def _of_section(self, section: Mapping[str, Any]) -> tuple[DataInfo, Source]:
        info = DataInfo(str(section["name"]), section, (), 0, 0, "")
        source = self.load(info.source, 0, self.scenario.base)
        others = [p for p in source.parties if p != source.active]
        self.notes += [f"{info.name}: {remark}" for remark in remarks(source)]
        info = replace(
            info,
            parties=(source.active, *others),
            classes=len(source.class_names),
            rows=len(source.y),
            digest=source.digest,
            missing=missing_by_column(source),
            tables=tuple(source.facts.get("tables", ())),
            overlap=source.facts.get("parties", {}),
            labelled=labelled_rows(source, info.split),
        )
        return info, source

    def _grid(self) -> list[tuple[DefenseSpec, ...]]:
        axes: dict[str, list[DefenseSpec]] = {}
        for section in self.root.defense:
            name = registry.defenses.entry(section.name).name
            swept = getattr(registry.defenses.get(name), "strengths", "")
            strengths: list[float | None] = [None]
            grid, params = natural_strengths(section)
            if swept:
                strengths = list(dict.fromkeys(grid or [0.0]))
                if grid is None:
                    self.notes.append(f"defense {name} has no strength grid, so it runs at 0: off.")
            spec = DefenseSpec(name, params, section.party)
            axis = axes.setdefault(section.choice or f"#{len(axes)}", [])
            axis += [replace(spec, strength=s) for s in strengths]
        return [tuple(combination) for combination in itertools.product(*axes.values())]

    def _cell(
        self,
        role: str,
        info: DataInfo,
        algorithm: str,
        params: Mapping[str, Any],
        defenses: tuple[DefenseSpec, ...],
        seed: int,
    ) -> CellSpec:
        params = dict(params)
        own = {p: s for p, s in self.root.parties.items() if p in info.parties}
        if own and role != "control":
            if "parties" not in registry.parameters(registry.algorithms.get(algorithm)):
                self.notes.append(f"{algorithm} has no settings by party; [parties] is ignored.")
            else:
                set_ = {p: s.model_dump(exclude_defaults=True) for p, s in own.items()}
                params["parties"] = {**set_, **params.get("parties", {})}
        return CellSpec(
            data={**info.section, "digest": info.digest},
            algorithm=self._registered(algorithm),
            params=params,
            defenses=defenses,
            seed=seed,
            dtype=self.root.audit.dtype,
            code=self._code(info, algorithm, params, defenses),
        )

    def _registered(self, algorithm: str) -> str:
        """The registered name; looked up once, for grids may have thousands of cells."""
        if algorithm not in self.registered:
            self.registered[algorithm] = registry.algorithms.entry(algorithm).name
        return self.registered[algorithm]

    def _code(
        self,
        info: DataInfo,
        algorithm: str,
        params: Mapping[str, Any],
        defenses: Sequence[DefenseSpec],
    ) -> str:
        """Identity of the source that a cell runs and that does not come with the package."""
        own = [p for p in params.get("parties", {}).values() if isinstance(p, Mapping)]
        modules = [str(p["module"]).partition(":")[0] for p in own if p.get("module")]
        asked = (
            "" if info.section.get("file") or info.section.get("files") else info.section["name"],
            algorithm, *dict.fromkeys(d.name for d in defenses), *modules,
        )  # fmt: skip
        if asked not in self.codes:
            entries = [registry.algorithms.entry(algorithm)]
            entries += [registry.datasets.entry(asked[0])] if asked[0] else []
            entries += [registry.defenses.entry(d.name) for d in defenses]
            found = [c for c in (*(e.code for e in entries), source_key(modules)) if c]
            self.codes[asked] = digest(found) if found else ""
        return self.codes[asked]

    def _attacked(
        self, role: str, info: DataInfo, cells: Sequence[CellSpec], like: DataInfo, title: str
    ) -> Iterator[Group]:
        """Groups of `cells` with every attack that can run; `like` has the scenario's parties."""
        for members in _by_cohort(cells, self.seen, role):
            passive, active = [], []
            for spec in self._attacks(info, like):
                attack = registry.attacks.create(spec.name, spec.params)
                status, reason = refusal(attack, spec, info, members[0])
                if status:
                    keys = tuple(c.key for c in members)
                    whose = victims(attack.target, spec.adversary, info.parties, spec.victim)
                    self.refused.append(
                        Refused(role, info.name, title, spec, status, reason,
                                attack.target, whose, keys)
                    )  # fmt: skip
                elif attack.policy() is None:
                    passive.append(spec)
                else:
                    active.append(spec)
            yield Group(role, info, members, tuple(passive), title=title)
            for spec in active:
                yield Group(role, info, members, (spec,), main=False, title=title)

    def _attacks(self, info: DataInfo, like: DataInfo) -> list[AttackSpec]:
        out: dict[str, AttackSpec] = {}
        for section in self.root.attack:
            for adversary in _adversaries(section.adversary, info, like):
                spec = AttackSpec(
                    name=registry.attacks.entry(section.name).name,
                    params=flat_params(section),
                    adversary=adversary,
                    known_rows=section.known_rows,
                    prior=section.prior,
                    aux_rows=section.aux_rows,
                    peer_model=section.peer_model,
                    victim=_victim(section.victim, info, like),
                    over_time=section.over_time and info is like,
                    code=registry.attacks.entry(section.name).code,
                    timeout=self.root.audit.timeout,
                    dosing=tuple(sorted(section.dosing)) if info is like else (),
                )
                out.setdefault(spec.key, spec)
        return list(out.values())

    def _references(self, info: DataInfo, seeds: Sequence[int]) -> Iterator[Group]:
        for reference in self.root.audit.references:
            name = _REFERENCES[reference]
            if name not in registry.algorithms.names():
                self.notes.append(f"reference {reference!r} is left out: no algorithm {name!r}.")
                continue
            params = self._reference_params(name)
            cells = [self._cell("reference", info, name, params, (), seed) for seed in seeds]
            for members in _by_cohort(cells, self.seen, "reference"):
                yield Group("reference", info, members, title=name)

    def _reference_params(self, name: str) -> dict[str, Any]:
        """Those of the first algorithm that a reference has too."""
        cls = registry.algorithms.get(name)
        fields = registry.parameters(cls)
        given = {k: v for k, v in flat_params(self.root.algorithm[0]).items() if k in fields}
        params = {k: v for k, v in given.items() if not registry.problems(cls, {k: v})}
        return {} if registry.problems(cls, params) else params

    def _titles(self) -> list[str]:
        """Names of the algorithm sections, with the settings that differ where several share one.

        A section named like a reference that the audit makes counts as sharing its name.
        """
        sections = [
            (registry.algorithms.entry(a.name).name, flat_params(a)) for a in self.root.algorithm
        ]
        names = {_REFERENCES[r] for r in self.root.audit.references}
        made = {n: self._reference_params(n) for n in names & {name for name, _ in sections}}
        titles = []
        for i, (name, params) in enumerate(sections):
            same = [p for j, (other, p) in enumerate(sections) if other == name and j != i]
            same += [made[name]] if name in made else []
            own = {k: v for k, v in params.items() if any(p.get(k, _ABSENT) != v for p in same)}
            inner = ", ".join(f"{k}={v}" for k, v in own.items())
            titles.append(f"{name}({inner})" if inner else name)
        return titles

    def _controls(self, like: DataInfo) -> Iterator[Group]:
        """The undefended planted leak, balanced and rare, by the same algorithms and attacks."""
        if "control_gaussian" not in registry.datasets.names():
            self.notes.append("no positive control: the data set 'control_gaussian' is missing.")
            return
        for params in _CONTROLS:
            section: dict[str, Any] = {"name": "control_gaussian"}
            if params:
                section["params"] = dict(params)
            whole = _with_settings(self._of_section(section)[0])
            part = _with_settings(self._of_section(section | {"aligned": _CONTROL_ALIGNED})[0])
            for algorithm, title in zip(self.root.algorithm, self._titles(), strict=True):
                params = flat_params(algorithm)
                cls = registry.algorithms.get(algorithm.name)
                info = part if getattr(cls, "unaligned", False) else whole
                cells = [
                    self._cell("control", info, algorithm.name, params, (), seed)
                    for seed in range(_CONTROL_SEEDS)
                ]
                yield from self._attacked("control", info, cells, like, title)


def _distinct(infos: Sequence[DataInfo]) -> list[DataInfo]:
    """The same, with the settings added to names that several data sections share."""
    names = [i.name for i in infos]
    return [i if names.count(i.name) == 1 else _with_settings(i) for i in infos]


def _with_settings(info: DataInfo) -> DataInfo:
    settings = {k: v for k, v in info.section.items() if k not in ("name", "params")}
    settings |= info.section.get("params", {})
    inner = ", ".join(f"{k}={v}" for k, v in settings.items())
    return replace(info, name=f"{info.name}({inner})" if inner else info.name)


def _by_cohort(
    cells: Sequence[CellSpec], seen: set[tuple[str, str]], role: str
) -> list[tuple[CellSpec, ...]]:
    """Distinct cells not seen in this role, by cohort, in order."""
    out: dict[str, list[CellSpec]] = {}
    for cell in cells:
        if (role, cell.key) not in seen:
            seen.add((role, cell.key))
            out.setdefault(cell.cohort, []).append(cell)
    return [tuple(members) for members in out.values()]


def _adversaries(
    given: str | Sequence[str], info: DataInfo, like: DataInfo
) -> list[tuple[str, ...]]:
    """Coalitions that a scenario's `adversary` means on a data set.

    On the control (`info` differs from `like`) a party stands for its role.
    """
    if given == "passive":
        return [(p,) for p in info.passive]
    words = [given] if isinstance(given, str) else list(given)
    parties: list[str] = []
    for word in words:
        if word == "active":
            parties.append(info.active)
        elif word == "passive":
            parties += info.passive
        elif word in info.parties:
            parties.append(word)
        elif info is not like and word in like.parties:
            parties += [info.active] if word == like.active else info.passive[:1]
    coalition = tuple(dict.fromkeys(parties))
    return [coalition] if coalition else []


def _victim(given: str, info: DataInfo, like: DataInfo) -> str:
    """The victim on a data set; on the control (`info` differs from `like`) any other party."""
    return given if info is like and given in info.parties else ""
