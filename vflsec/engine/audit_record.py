"""What is kept beside the results of an audit, so that they can be judged without its data."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shlex
import tomllib
from collections.abc import Collection, Iterable
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import cache, partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vflsec._version import __version__
from vflsec.audit.looks import Looks
from vflsec.audit.point import Grants
from vflsec.audit.record import AttackFacts, AuditRecord, Command, Described, ScenarioSource
from vflsec.config.scenario import load_scenario, packaged_scenarios
from vflsec.data.load import table_files
from vflsec.data.table_facts import UserTables
from vflsec.errors import ConfigError, VflsecError, repeat_set
from vflsec.label import make_label
from vflsec.plan.observe import System, drop_column_names, find_refusal
from vflsec.plugins import registry
from vflsec.report.taxonomies import name_family
from vflsec.specs import QUESTIONS, AttackSpec

if TYPE_CHECKING:
    from vflsec.config.scenario import Scenario
    from vflsec.core.algorithm import Algorithm
    from vflsec.plan.values import Group, Plan

AUDITOR = "VFLSEC_AUDITOR"
"""The environment variable with the name of whoever runs the audit, for the signed page."""


def make_record(
    scenario: Scenario, plan: Plan, device: str, looks: Looks, folder: Path
) -> AuditRecord:
    """What judging the results later needs, but for what could run: no data is read again for it.

    Args:
        scenario, plan: what is audited.
        device: where it runs.
        looks: how often the gates were judged while seeds were added.
        folder: the results directory.
    """
    from vflsec.engine.tune_advice import list_acting

    attacks = {a.key: a for g in plan.groups for a in g.attacks}
    roles = _roles(plan)
    known_rows = {k: a.known_rows for k, a in attacks.items()}
    planted_as = {k: drop_column_names(a).label for k, a in attacks.items()}
    return AuditRecord(
        name=scenario.name,
        scenario_hash=scenario.hash,
        scenario_toml=scenario.to_toml(),
        confidence=plan.confidence,
        baseline=scenario.root.audit.baseline,
        gates=scenario.list_gates(),
        datasets={at: g.data.name for at, g in roles.items()},
        algorithms={at: g.title for at, g in roles.items()},
        wanted=_wanted(plan),
        known_rows=known_rows | {r.attack.key: r.attack.known_rows for r in plan.refused},
        of_label={k: a.of_label for k, a in attacks.items() if a.of_label},
        grants={k: Grants(**a.grants) for k, a in attacks.items() if a.grants},
        planted_as={k: name for k, name in planted_as.items() if name != attacks[k].label},
        attacks=_threats(plan),
        families=list_families({g.data.classes for g in plan.groups if g.role == "audit"}),
        defenses=_defenses(plan),
        acting=list_acting(_systems(plan)),
        scenario_file=_seen_from_build(scenario),
        scenario_source=_source(scenario, folder),
        looks=looks,
        who=os.environ.get(AUDITOR, ""),
        command=Command(_asked(scenario), tuple(scenario.overrides)),
        when=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S"),
        data={g.data.name: g.data.digest for g in plan.groups},
        classes={g.data.name: g.data.classes for g in plan.groups},
        files=_files(scenario, plan),
        tables=_tables(plan),
        refused=[asdict(r) for r in plan.refused],
        notes=list(plan.notes),
        visibility=plan.visibility,
        device=device,
        versions=list_versions(),
    )


def _roles(plan: Plan) -> dict[str, Group]:
    """The first group of each cell in each role, by "ROLE:CELL"."""
    out: dict[str, Group] = {}
    for group in plan.groups:
        for cell in group.cells:
            out.setdefault(f"{group.role}:{cell.key}", group)
    return out


def _systems(plan: Plan) -> list[Algorithm]:
    """The audited algorithms."""
    cells = {g.title: g.cells[0] for g in plan.groups if g.role == "audit"}
    return [registry.algorithms.create(c.algorithm, c.params) for c in cells.values()]


def _wanted(plan: Plan) -> dict[str, list[str]]:
    """Keys of attacks by the key of a cell, of those that do not run too.

    The cells are those of the plan's groups: one of which all attacks are refused may have none.
    """
    wanted: dict[str, dict[str, None]] = {}
    for group in plan.groups:
        for cell in group.cells:
            wanted.setdefault(cell.key, {}).update(dict.fromkeys(a.key for a in group.attacks))
    for refused in plan.refused:
        for key in refused.cells:
            if key in wanted:
                wanted[key][refused.attack.key] = None
    return {cell: list(keys) for cell, keys in wanted.items()}


def _tables(plan: Plan) -> dict[str, UserTables]:
    found = {g.data.name: g.data.tables for g in plan.groups}
    return {name: of for name, of in found.items() if of.tables or of.alignment}


def _source(scenario: Scenario, folder: Path) -> ScenarioSource:
    """Where the scenario's file is, seen from the results, and what it held; for `edited`."""
    path = scenario.base / Path(scenario.origin.place.file).name
    if not path.is_file():
        return ScenarioSource()
    try:
        there = os.path.relpath(path, folder.resolve())
    except ValueError:  # on another drive
        there = str(path)
    return ScenarioSource(there, _held(path), tuple(scenario.overrides))


def _files(scenario: Scenario, plan: Plan) -> dict[str, str]:
    """What the tables held, by path as seen from the scenario's file; for `edited_tables`."""
    paths = {
        path: None for g in plan.groups if g.data.tables.tables
        for path in table_files(g.data.section, Path())
    }  # fmt: skip
    return {str(p): _held(scenario.base / p) for p in paths if (scenario.base / p).is_file()}


def _held(path: Path) -> str:
    """A hash of what a file holds."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, partial(hashlib.blake2b, digest_size=12)).hexdigest()


def _asked(scenario: Scenario) -> str:
    """What to call it by on the command line; '' if it never was a file."""
    file = Path(scenario.origin.place.file)
    if file.is_file():
        return str(file)
    return file.stem if file.stem in packaged_scenarios() else ""


def find_edited(record: AuditRecord, folder: Path) -> Path | None:
    """The scenario's file, if it is still there and holds something else than was audited."""
    source = record.scenario_source
    path = folder / source.path
    if not source.path or not path.is_file() or _held(path) == source.digest:
        return None
    return Path(os.path.relpath(path))


def edited_tables(record: AuditRecord, folder: Path) -> list[Path]:
    """The tables that are still there and hold something else than was audited."""
    source = record.scenario_source
    base = (folder / source.path).parent
    held = {base / name: digest for name, digest in record.files.items()}
    return [
        Path(os.path.relpath(path)) for path, digest in held.items()
        if source.path and path.is_file() and os.access(path, os.R_OK) and _held(path) != digest
    ]  # fmt: skip


def replace_gates(record: AuditRecord, scenario: str) -> AuditRecord:
    """The record with the gates of an edited scenario.

    Args:
        record: of a finished audit.
        scenario: the edited file; the audit's own ``--set`` apply to it too.

    Raises:
        ConfigError: more than gates was edited, so that the results are not those of it.
    """
    loaded = load_scenario(scenario, list(record.scenario_source.overrides))
    before, after = tomllib.loads(record.scenario_toml), loaded.resolved()
    after = json.loads(json.dumps(after))
    same = ("name", "gate")
    changed = [k for k in {**before, **after} if k not in same]
    changed = [k for k in changed if _listed(before.get(k)) != _listed(after.get(k))]
    if changed:
        given = repeat_set(record.scenario_source.overrides)
        command = shlex.join(["vflsec", "audit", str(scenario), *given])
        raise ConfigError(
            f"{scenario}: {', '.join(changed)} differ from the audit. Run `{command}`."
        )
    return replace(
        record,
        gates=loaded.list_gates(),
        command=replace(record.command, scenario=_asked(loaded)),
        scenario_toml=loaded.to_toml(),
        scenario_hash=loaded.hash,
        scenario_file=_seen_from_build(loaded),
    )


def _listed(value: Any) -> Any:
    """A section as a list, as which it may be written or not."""
    return value if isinstance(value, list) or value is None else [value]


def _seen_from_build(scenario: Scenario) -> str:
    """A scenario's file as a build sees it; "" if it was made in memory or named from the package.

    Relative to the checkout of a GitHub job, else to where the audit runs, if it lies below; else
    absolute, since a relative path would name another file.
    """
    given = Path(scenario.origin.place.file)
    if not given.is_file() or given.resolve().parent != scenario.base:
        return ""
    path = given.parent.resolve() / given.name
    for folder in (os.environ.get("GITHUB_WORKSPACE"), Path.cwd()):
        if folder and path.is_relative_to(base := Path(folder).resolve()):
            return path.relative_to(base).as_posix()
    return path.as_posix()


def _threats(plan: Plan) -> dict[str, AttackFacts]:
    """What every attack of the audit is and needs, by key."""
    every = [a for g in plan.groups if g.role == "audit" for a in g.attacks]
    every += [r.attack for r in plan.refused if r.role == "audit"]
    return list_threats(every)


def list_threats(specs: Iterable[AttackSpec]) -> dict[str, AttackFacts]:
    """What attacks are and need, by key, so that a report can say it without importing them."""
    from vflsec.core.view import as_needs

    out = {}
    for spec in specs:
        entry = registry.attacks.entry(spec.name)
        attack = registry.attacks.create(spec.name, spec.params)
        one_of_several = spec.of_label and spec.of_label not in QUESTIONS
        section = replace(spec, of_label="")
        out[spec.key] = AttackFacts(
            name=spec.name, label=spec.label, params=dict(spec.params), adversary=spec.adversary,
            known_rows=spec.known_rows, prior=spec.prior, aux_rows=spec.aux_rows,
            peer_model=spec.peer_model, target=attack.target, family=name_family(entry.family),
            needs=tuple(sorted(str(n) for n in as_needs(attack.looks_at))),
            active=attack.policy() is not None, summary=entry.summary, source=entry.source,
            every_label=section.label if one_of_several else "", section=section.key,
        )  # fmt: skip
    return out


def list_families(kinds: Collection[int]) -> dict[str, list[str]]:
    """Every registered attack by the family that its file names.

    Those that suit the labels of no data set, as a quantity or several labels, do not exist.

    Args:
        kinds: numbers of classes of the data sets, 1 for a quantity and 0 for several labels.
    """
    out: dict[str, list[str]] = {}
    for entry in registry.attacks.entries().values():
        if not kinds or any(_suits(entry.name, classes) for classes in kinds):
            out.setdefault(name_family(entry.family), []).append(entry.name)
    return out


def find_runnable(plan: Plan) -> list[str]:
    """Registered attacks that could run on some training of the audit, whoever of one party
    attacks, if the grants they need are given.
    """
    out = []
    systems = [System(g.data, g.cells[0]) for g in plan.groups if g.role == "audit" and g.main]
    for name in registry.attacks.names():
        if any(_could_run(name, system) for system in systems):
            out.append(name)
    return out


def _could_run(name: str, system: System) -> bool:
    """Whether an attack at its defaults could; False of one that has none, or does not load."""
    data = system.info
    try:
        attack: Any = registry.attacks.create(name)
        labels = attack.each_label(data.labels, data.classes)
    except VflsecError:
        return False
    granted = [AttackSpec(name, aux_rows=1, peer_model=True, of_label=one) for one in labels[:1]]
    return any(
        find_refusal(attack, replace(spec, adversary=(party,)), system) is None
        for spec in granted
        for party in data.parties
    )


def _suits(name: str, classes: int) -> bool:
    """Whether an attack can be made on such a label; of one that does not load, yes."""
    label = make_label(classes)
    if not label.floating:
        return True
    try:
        attack = registry.attacks.create(name)
        return attack.suits(classes) or bool(label.questions and attack.questions)
    except VflsecError:
        return True


def _defenses(plan: Plan) -> dict[str, Described]:
    """What every defense of the audit is, by name."""
    used = {d.name for g in plan.groups for c in g.cells for d in c.defenses}
    entries = {name: registry.defenses.entry(name) for name in sorted(used)}
    return {n: Described(e.summary, e.source) for n, e in entries.items()}


def list_versions() -> dict[str, str]:
    """Of what figures depend on."""
    import numpy
    import torch

    return {
        "vflsec": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": numpy.__version__,
        "scikit-learn": metadata.version("scikit-learn"),
        "code": hash_source(),
    }


@cache
def hash_source() -> str:
    """Hash of the package's own Python files as they lie there, 12 hexadecimal digits.

    In a checkout they change while the version stays.
    """
    package = Path(__file__).parents[1]
    whole = hashlib.sha256()
    files = [
        Path(folder, name)
        for folder, _, names in os.walk(package, followlinks=True)
        for name in names
        if name.endswith(".py")
    ]
    for name, path in sorted((f.relative_to(package).as_posix(), f) for f in files):
        if path.is_file():  # editors leave links to nothing
            whole.update(f"{name}\0".encode() + path.read_bytes() + b"\0")
    return whole.hexdigest()[:12]
