"""From a scenario to cells: what will run, what cannot and why, and about how much it costs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vflsec.audit.alignment import find_alignment
from vflsec.audit.exposure import Protocol
from vflsec.audit.leakage import defense_point
from vflsec.config.components import flat_params
from vflsec.config.problems import Problem, ScenarioError
from vflsec.config.scenario import Scenario
from vflsec.config.sections import Algorithm, Data
from vflsec.config.sections import Attack as AttackSection
from vflsec.core.attack import Attack
from vflsec.data.load import load_source
from vflsec.data.prepare import build_schema
from vflsec.data.source import Source
from vflsec.data.table_spec import TABLE_KEYS, name_tables
from vflsec.data.table_warnings import count_missing, list_warnings
from vflsec.plan.cells import REFERENCES, Cells
from vflsec.plan.estimate import estimate, read_settings
from vflsec.plan.feasible import (
    find_excess,
    find_unanswered,
    find_undrawable,
    find_unmade_baseline,
    list_servers,
    unfit_defenses,
    unknown_columns,
    unknown_parties,
)
from vflsec.plan.observe import (
    System,
    check_divisible,
    choose_attacker,
    count_labelled_rows,
    count_spare_rows,
    drop_column_names,
    find_refusal,
    warn_of_few_left,
    warn_of_few_tested,
    warn_of_membership,
)
from vflsec.plan.room import warn_of_room
from vflsec.plan.strong import SEEDS, STRONG, Chosen, list_alternatives, make_world, note
from vflsec.plan.values import TUNING, DataInfo, Group, Plan, Refused, Setting
from vflsec.plugins import registry
from vflsec.plugins.loading import allow_imports, contain
from vflsec.runtime.plain_values import Table
from vflsec.specs import OF_THE_LABELS, AttackSpec, CellSpec, DefenseSpec, Params, list_victims

Phases = dict[str, tuple[str, ...]]
"""Names of the phases after which attacks are made, by cohort, where they are known."""

Trial = Callable[["Scenario", Sequence[Group], Mapping[str, "Source"], Phases], Iterable[Problem]]
"""Tries out whether the trainings of a plan can begin and fills in the phases; given by the engine,
which can train."""

_CONTROLS: tuple[Params, ...] = ({}, {"positive_rate": 0.15})  # a rare class for guesses of labels
_CONTROL_SEEDS = 5
_CONTROL_ALIGNED = 0.5  # for algorithms that cannot train without rows that have no partner


def make_plan(
    scenario: Scenario,
    *,
    load: Callable[[Table, int, Path], Source] | None = None,
    trial: Trial | None = None,
    chosen: Chosen | None = None,
) -> Plan:
    """Plan an audit; loads the data sets.

    Args:
        scenario: a valid scenario.
        load: instead of `vflsec.data.load.load_source`.
        trial: finds trainings that cannot begin; None takes it on trust that all can.
        chosen: the settings that a strong attacker found; None plans the trainings to find them, if
            the scenario asks for such an attacker.

    Raises:
        ScenarioError: a party is named that a data set does not have, a defense cannot protect a
            data set, or a training cannot begin.
        DataError: a table cannot be used.
    """
    allow_imports(scenario.base)
    planner = _Planner(scenario, load or load_source, chosen)
    with contain("planning the audit"):
        groups = tuple(planner.groups())
        if not planner.problems:
            phases: Phases = {}
            if trial is not None:
                planner.problems += trial(scenario, groups, planner.sources, phases)
            planner.problems += find_excess(scenario, groups)
            planner.problems += find_unmade_baseline(scenario, groups)
            planner.problems += find_unanswered(scenario, groups, planner.refused, phases)
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
        visibility=_list_protocols(groups),
        tried=tuple(planner.tried),
    )


def _list_protocols(groups: Sequence[Group]) -> tuple[Protocol, ...]:
    """Who will hold what: an entry for each algorithm and stack of defenses that says it itself."""
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


class _Planner:
    def __init__(
        self, scenario: Scenario, load: Callable[..., Source], chosen: Chosen | None = None
    ) -> None:
        self.scenario, self.root, self.load = scenario, scenario.root, load
        self.chosen: Chosen = chosen or {}
        self.tunes = chosen is None and self.root.audit.attacker == STRONG
        self.tried: list[Setting] = []
        self.problems: list[Problem] = []
        self.refused: list[Refused] = []
        self.notes: list[str] = []
        self.seen: set[tuple[str, str]] = set()
        self.sources: dict[str, Source] = {}
        self.cells = Cells(self.root, self.notes)
        self.grid: list[tuple[DefenseSpec, ...]] = []

    def groups(self) -> Iterator[Group]:
        loaded = [self._info(d) for d in self.root.data]
        infos = []
        for info, _ in loaded:  # settings tell those apart that share a name
            alike = [other for other, _ in loaded if other.name == info.name]
            infos.append(info if len(alike) == 1 else _with_settings(info, alike))
        self.sources = {i.name: source for i, (_, source) in zip(infos, loaded, strict=True)}
        self.problems += unknown_parties(self.scenario, infos)
        self.problems += unfit_defenses(self.scenario, infos, self.notes)
        self.problems += find_undrawable(self.scenario)
        self.problems += unknown_columns(self.scenario, self.sources.values())
        if self.problems:
            return
        seeds, self.grid = self.root.audit.seeds, self.cells.grid()
        gates = self.scenario.list_gates()
        for info in infos:
            source = self.sources[info.name]
            check_divisible(source, info.split, seeds)
            tested = warn_of_few_tested(source, info.name, info.split)
            self.notes += filter(None, [tested, self._sampled(info)])
            self.notes += warn_of_room(gates, info, source, self.root.audit.sample or 0)
        titled = list(zip(self.root.algorithm, self.cells.titles(), strict=True))
        for info, (algorithm, title) in itertools.product(infos, titled):
            params = flat_params(algorithm)
            cells = self.cells.make("audit", info, algorithm.name, params, seeds, self.grid)
            yield from self._attacked("audit", info, cells, info, title)
        if self.tunes:
            yield from self._tuning(infos, titled)
        for info in infos:
            yield from self._references(info, seeds)
        self._canaries()
        planted = self.root.audit.positive_control
        if planted and (self.root.gate or planted == "always") and self.root.attack:
            kinds: dict[tuple[Any, ...], DataInfo] = {}
            for info in infos:
                kinds.setdefault((info.label.name, info.labels), info)
            for info in kinds.values():
                yield from self._controls(info)

    def _sampled(self, info: DataInfo) -> str:
        """How many rows attacks guess, where these are not all; else ''."""
        some = self.root.audit.sample
        if not some or info.labelled <= some:
            return ""
        said = (
            f"{info.name}: attacks guess {some:,} of {info.labelled:,} training rows and at most "
            "as many test rows, drawn anew for each seed (audit.sample)."
        )
        if self.root.audit.messages == "all":
            return said
        whole = dict.fromkeys(a.name for a in self.root.attack if self._is_given_all(a))
        said += " They are given messages of these and of granted rows alone (audit.messages)"
        return f"{said}, but {', '.join(whole)} of all rows." if whole else f"{said}."

    def _is_given_all(self, section: AttackSection) -> bool:
        """Whether an attack is given messages of all rows under ``messages = "sample"``, too."""
        attack: Any = registry.attacks.create(section.name, flat_params(section))
        sees = bool(self._rows_guessed(attack))
        spec = AttackSpec(section.name, over_time=section.over_time, sees_sample=sees)
        return not attack.sees_sample(spec)

    def _rows_guessed(self, attack: Any) -> int:
        """Of how many rows an attack is asked, 0 for all: a share is one answer about all that it
        is given messages of.
        """
        whole = attack.target == "property" and self.root.audit.messages == "all"
        return 0 if whole else self.root.audit.sample or 0

    def _info(self, data: Data) -> tuple[DataInfo, Source]:
        section = data.model_dump(exclude_defaults=True)
        section.setdefault("name", name_tables(data.file or data.files))
        if data.shuffle_labels:
            self.notes.append(
                f"{section['name']}: shuffle_labels: nothing can leak from permuted labels."
            )
        info, source = self._of_section(section)
        self.notes += [f"{info.name}: {remark}" for remark in list_warnings(source)]
        return info, source

    def _of_section(self, section: Table) -> tuple[DataInfo, Source]:
        info = DataInfo(str(section["name"]), section, (), 0, 0, "")
        source = self.load(info.source, 0, self.scenario.base)
        others = [p for p in source.parties if p != source.active]
        labelled, rarest = count_labelled_rows(source, info.split)
        info = replace(
            info,
            parties=(source.active, *others),
            classes=source.classes,
            labels=source.labels,
            rows=len(source.y),
            digest=source.digest,
            missing=count_missing(source),
            tables=replace(
                source.facts.tables,
                alignment=tuple(find_alignment(source, self.root.audit.confidence)),
            ),
            labelled=labelled,
            rarest=rarest,
            spare=count_spare_rows(source, info.split),
            label_holder=source.label_holder,
            width=max(build_schema(p).width for p in source.parties.values()),
        )
        return info, source

    def _attacked(
        self, role: str, info: DataInfo, cells: Sequence[CellSpec], like: DataInfo, title: str,
        targets: Collection[str] = (),
    ) -> Iterator[Group]:  # fmt: skip
        """Groups of `cells` with every attack that can run; `like` has the scenario's parties.

        With `targets` only attacks on these, and no group without any.
        """
        for members in _by_cohort(cells, self.seen, role):
            made = registry.algorithms.create(members[0].algorithm, members[0].params)
            self.notes += filter(None, [made.settled() if role == "audit" else ""])
            system = System(info, members[0])
            passive: list[AttackSpec] = []
            apart: list[AttackSpec] = []
            for spec in self._attacks(info, like, title, system):
                if not {*spec.adversary} <= {*info.parties, *made.servers}:
                    continue  # no such server here
                attack = _made(spec)
                if targets and attack.target not in targets:
                    continue
                refusal = find_refusal(attack, spec, system)
                if role == "audit" and not refusal:
                    self.notes += filter(None, [warn_of_few_left(attack, spec, info)])
                    source = self.sources[info.name]
                    self.notes += warn_of_membership(attack, source, info, members)
                if refusal:
                    keys = tuple(c.key for c in members)
                    whose = list_victims(attack.target, spec.adversary, info.parties, spec.victim)
                    self.refused.append(
                        Refused(role, info.name, title, spec, refusal.status, refusal.reason,
                                attack.target, whose, keys)
                    )  # fmt: skip
                else:
                    (apart if attack.needs_own_training else passive).append(spec)
            if passive or apart or not targets:  # a cell is whole with its main task alone
                yield Group(role, info, members, tuple(passive), title=title)
            for spec in apart:
                yield Group(role, info, members, (spec,), main=False, title=title)

    def _attacks(
        self, info: DataInfo, like: DataInfo, title: str, system: System
    ) -> list[AttackSpec]:
        """Attacks as they are written, each followed by the settings that were chosen for it."""
        dataset = info.name if info is like else ""
        out: dict[str, AttackSpec] = {}
        for i, spec in self._written(info, like, system):
            for params in (spec.params, *self._added(i, title, dataset)):
                one = replace(spec, params=params)
                one = one if info is like else drop_column_names(one)
                out.setdefault(one.key, one)
        return list(out.values())

    def _written(
        self, info: DataInfo, like: DataInfo, system: System
    ) -> Iterator[tuple[int, AttackSpec]]:
        """Attacks as they are written, with the numbers of their sections."""
        servers = list_servers(self.root)
        for i, section in enumerate(self.root.attack):
            kind: Any = registry.attacks.get(section.name)
            entry = registry.attacks.entry(section.name)
            own: dict[str, Any] = {}  # on the control any other party is the victim
            if info is like:
                own = {
                    "victim": section.victim if section.victim in info.parties else "",
                    "over_time": section.over_time, "pictures": section.pictures,
                    "dosing": tuple(sorted(section.dosing)),
                }  # fmt: skip
            params = flat_params(section)
            given = section.adversary or choose_attacker(
                registry.attacks.create(entry.name, params), system
            )
            whom = _adversaries(given, info, like, servers)
            labels = kind.each_label(info.labels, info.classes)
            sample = self._rows_guessed(kind)
            for adversary, label in itertools.product(whom, labels):
                yield i, AttackSpec(
                    name=entry.name, params=params, adversary=adversary,
                    known_rows=section.known_rows, prior=section.prior, aux_rows=section.aux_rows,
                    peer_model=section.peer_model, code=entry.code,
                    timeout=self.root.audit.timeout, of_label=label,
                    sample=sample, sees_sample=sample > 0 and self.root.audit.messages == "sample",
                    **own,
                )  # fmt: skip

    def _added(self, section: int, title: str, dataset: str) -> list[Params]:
        """Settings chosen for an attack; on the control, where `dataset` is '', those of all."""
        return [
            params
            for (name, algorithm, i), found in self.chosen.items()
            if (algorithm, i) == (title, section) and dataset in ("", name)
            for params in found
        ]

    def _tuning(
        self, infos: Sequence[DataInfo], titled: Sequence[tuple[Algorithm, str]]
    ) -> Iterator[Group]:
        """On drawn worlds, under every defense: what the attacks reach with other settings."""
        trainings = 0
        for info in infos:
            made, why = make_world(info, self.sources[info.name], self.load, self.scenario.base)
            if made is None:
                self.notes.append(
                    f"attacker strong: no world of the shape of {info.name} can be drawn: {why}"
                )
                continue
            for algorithm, title in titled:
                params = flat_params(algorithm)
                cells = self.cells.make(TUNING, made, algorithm.name, params, SEEDS, self.grid)
                for group in self._searched(made, cells, title):
                    trainings += len(group.cells)
                    yield group
        self.notes.append(note(self.tried, trainings))

    def _searched(self, info: DataInfo, cells: Sequence[CellSpec], title: str) -> Iterator[Group]:
        """Groups of `cells` with every setting of every attack that has several."""
        for members in _by_cohort(cells, set(), TUNING):
            keys = tuple(c.key for c in members)
            system = System(info, members[0])
            specs: dict[str, AttackSpec] = {}
            for i, asked in self._written(info, info, system):
                written = replace(asked, over_time=False, dosing=(), pictures=0)
                others = list_alternatives(written.name, written.params)
                several = [written, *(replace(written, params=p) for p in others)]
                fit = [s for s in several if not find_refusal(_made(s), s, system)]
                if fit == [written]:
                    continue
                for spec in fit:
                    self.tried.append(Setting(info.name, title, i, spec is written, spec, keys))
                    specs[spec.key] = spec
            if not specs or (TUNING, members[0].key) in self.seen:
                continue  # the latter: other data of the same shape
            self.seen |= {(TUNING, key) for key in keys}
            apart = [s for s in specs.values() if _made(s).needs_own_training]
            passive = tuple(s for s in specs.values() if s not in apart)
            for attacks in filter(None, [passive, *((s,) for s in apart)]):
                yield Group(TUNING, info, members, attacks, main=False, title=title)

    def _references(self, info: DataInfo, seeds: Sequence[int]) -> Iterator[Group]:
        for reference in self.root.audit.references:
            name, why = REFERENCES[reference], ""
            if name not in registry.algorithms.names():
                self.notes.append(f"reference {reference!r} is left out: no algorithm {name!r}.")
                continue
            kind: Any = registry.algorithms.get(name)
            if not info.label.fits(getattr(kind, "quantities", False)):
                why = f"{name} learns classes"
            elif info.label_holder and not getattr(kind, "label_holder", False):
                why = f"{info.active} has no column to train on"
            if why:
                self.notes.append(f"reference {reference!r} is left out on {info.name}: {why}.")
                continue
            params = self.cells.reference_params(name)
            cells = self.cells.make("reference", info, name, params, seeds)
            for members in _by_cohort(cells, self.seen, "reference"):
                yield Group("reference", info, members, title=name)

    def _canaries(self) -> None:
        """Say whether claims of epsilon will be tested, and what that costs."""
        names = dict.fromkeys(n for stack in self.grid for n in self.cells.claimants(stack))
        if names:
            on = self.root.audit.canaries
            how = "tested by trainings with canaries" if on else "not tested"
            self.notes.append(
                f"claims of {', '.join(names)} are {how} ([audit] canaries = {str(on).lower()})."
            )
        self.notes += [
            f"{name}: claims of {', '.join(names)} are of one row; of a group (up to {many} rows) "
            f"epsilon is up to {many} times that, and delta more."
            for name, source in self.sources.items()
            if names and (many := source.largest_group) > 1
        ]

    def _controls(self, like: DataInfo) -> Iterator[Group]:
        """The undefended planted leak, balanced and rare, by the same algorithms and attacks.

        Its label is of the kind of the first data set of that kind, `like`. A rare class changes
        what labels leak; attacks on anything else are made on balanced classes alone.
        """
        name = like.label.control
        if name not in registry.datasets.names():
            self.notes.append(f"no positive control: the data set {name!r} is missing.")
            return
        told = {"labels": list(like.labels)} if like.labels else {}
        for rare in _CONTROLS[: None if like.label.rare else 1]:
            section: dict[str, Any] = {"name": name}
            if rare or told:
                section["params"] = {**rare, **told}
            whole = _with_settings(self._of_section(section)[0])
            part = _with_settings(self._of_section(section | {"aligned": _CONTROL_ALIGNED})[0])
            for algorithm, title in zip(self.root.algorithm, self.cells.titles(), strict=True):
                params = flat_params(algorithm)
                cls = registry.algorithms.get(algorithm.name)
                info = part if getattr(cls, "unaligned", False) else whole
                seeds = range(_CONTROL_SEEDS)
                cells = self.cells.make("control", info, algorithm.name, params, seeds)
                of = OF_THE_LABELS if rare else ()
                yield from self._attacked("control", info, cells, like, title, of)


def _made(spec: AttackSpec) -> Attack:
    attack: Attack = registry.attacks.create(spec.name, spec.params)
    return attack


def _with_settings(info: DataInfo, alike: Sequence[DataInfo] = ()) -> DataInfo:
    """The same, with its settings added to its name.

    What is said of own tables is left out where all that are called `alike` say the same.
    """
    settings: dict[str, object] = {
        k: v
        for k, v in info.section.items()
        if k not in ("name", "params")
        and (k not in TABLE_KEYS or any(other.section.get(k) != v for other in alike))
    }
    for key in ("params", "divide"):
        below = info.section.get(key)
        if isinstance(below, Mapping) and (key == "params" or settings.pop(key, None)):
            settings |= below
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
    given: str | Sequence[str], info: DataInfo, like: DataInfo, servers: Collection[str] = ()
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
        elif word in info.parties or word in servers:
            parties.append(word)
        elif info is not like and word in like.parties:
            parties += [info.active] if word == like.active else info.passive[:1]
    coalition = tuple(dict.fromkeys(parties))
    return [coalition] if coalition else []
