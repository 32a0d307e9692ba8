"""What is kept beside the results of an audit, so that they can be judged without its data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vflsec.audit.exposure import Protocol
from vflsec.audit.gate import LEAST_CONFIDENCE, Gate
from vflsec.audit.leakage import defense_point
from vflsec.audit.looks import Looks
from vflsec.audit.point import Grants, Training
from vflsec.data.table_facts import UserTables
from vflsec.runtime.typed_values import read_as, write_plain
from vflsec.specs import OF_THE_LABELS, CellResult

ROLES = ("audit", "reference", "control")
"""What a cell is trained for; a control is a planted leak."""


@dataclass(frozen=True)
class AttackFacts:
    """An attack of the audit: who makes it, wanting what, with which means.

    Attributes:
        params: its settings; None in summaries that do not tell them.
        family: published family.
        needs: what it needs of a View.
        active: whether it may change its own training.
        summary, source: what it does, and where it was published.
        every_label: its label without the one of several labels that it is on, else ''.
        section: its key without that label, which it shares with those on the others.
    """

    name: str = ""
    label: str = ""
    params: Mapping[str, Any] | None = None
    adversary: tuple[str, ...] = ()
    known_rows: int = 0
    prior: bool = False
    aux_rows: int = 0
    peer_model: bool = False
    target: str = ""
    family: str = ""
    needs: tuple[str, ...] = ()
    active: bool = False
    summary: str = ""
    source: str = ""
    every_label: str = ""
    section: str = ""


@dataclass(frozen=True)
class Described:
    """What a defense does, and where it comes from."""

    summary: str = ""
    source: str = ""


@dataclass(frozen=True)
class ScenarioSource:
    """A scenario's file: its path as seen from the results, what it held, and changes to it."""

    path: str = ""
    digest: str = ""
    overrides: tuple[str, ...] = ()


@dataclass(frozen=True)
class Command:
    """What was typed: the scenario's file, changes to it, the results directory, and whether the
    gate too, which is then none of the scenario's.
    """

    scenario: str = ""
    set: tuple[str, ...] = ()
    folder: str = ""
    gate: bool = False


@dataclass(frozen=True, slots=True)
class Choice(Training):
    """The best setting of an attack at one point, on drawn worlds.

    Attributes:
        section: number of the attack's section in the scenario.
        adversary, attack, split: whose, the name, and the rows that are guessed.
        written, chosen: labels; the former is empty where what is written cannot run.
        written_advantage, advantage: their means over the worlds; None without a figure.
        params: of the chosen one.
        joins: whether it is another than is written.
    """

    section: int = 0
    adversary: str = ""
    attack: str = ""
    split: str = ""
    written: str = ""
    written_advantage: float | None = None
    chosen: str = ""
    advantage: float | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    joins: bool = False


@dataclass(frozen=True)
class Attacker:
    """Which attacker it was: as written, or with settings tried on drawn worlds.

    Attributes:
        name: ``default`` or ``strong``.
        identity: hash of what was tried.
        seeds: of the worlds.
        trainings, seconds: what the search took.
        tried: labels of all settings by the attack's name.
        choices: at every point.
    """

    name: str = "default"
    identity: str = ""
    seeds: tuple[int, ...] = ()
    trainings: int = 0
    seconds: float = 0.0
    tried: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    choices: tuple[Choice, ...] = ()


@dataclass(frozen=True)
class Acting:
    """The defenses that act on one kind of message.

    Attributes:
        tuned: those that have a strength, first those that treat the message itself.
        fixed: those that have none.
        by_labels: those of both that change it through labels alone, and so hide no columns.
    """

    tuned: tuple[str, ...] = ()
    fixed: tuple[str, ...] = ()
    by_labels: tuple[str, ...] = ()

    def list_hiding(self, targets: Iterable[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Tuned and fixed ones that may hide from attacks on any of these what they are after."""
        known = {*targets} - {""}
        gone = self.by_labels if known and known.isdisjoint(OF_THE_LABELS) else ()
        return (tuple(n for n in self.tuned if n not in gone),
                tuple(n for n in self.fixed if n not in gone))  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """What is kept of an audit, and told in its summary as it is.

    Attributes:
        name: of the scenario.
        scenario_hash: of the resolved scenario; "" where recordings were audited.
        data: hashes by data set.
        when, who: of the audit, the time in UTC.
        command: what to ask for the same audit by.
        scenario_file: where the scenario lies, as a build sees it.
        attacker: whose settings attacks have, see `vflsec.engine.strong_attacker.choose_attacker`.
        attacks: what each attack of the audit is and needs, by its key.
        families: every attack by its family.
        runnable: the attacks that could run on some training; None of recordings.
        defenses: what each defense of the audit is, by name.
        acting: the defenses that act on a kind of message, by its name.
        notes: sentences about the plan.
    """

    name: str = ""
    scenario_hash: str = ""
    data: Mapping[str, str] = field(default_factory=dict)
    when: str = ""
    who: str = ""
    command: Command = Command()
    scenario_file: str = ""
    attacker: Attacker = Attacker()
    attacks: Mapping[str, AttackFacts] = field(default_factory=dict)
    families: Mapping[str, Sequence[str]] = field(default_factory=dict)
    runnable: Sequence[str] | None = None
    defenses: Mapping[str, Described] = field(default_factory=dict)
    acting: Mapping[str, Acting] = field(default_factory=dict)
    notes: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class AuditRecord(Recorded):
    """An audit as its results directory keeps it.

    Attributes:
        scenario_toml: the resolved scenario; "" where recordings were audited.
        confidence: of the audit.
        baseline: what trains the AUC that relative improvement is over; None if nothing.
        gates: of the scenario.
        datasets: name of the data set by "ROLE:CELL", see :data:`ROLES`.
        algorithms: what the training is called, by the same.
        wanted: keys of attacks by the key of a cell.
        known_rows: labelled rows that were granted, by the key of an attack.
        of_label: which of several labels an attack is on, by its key.
        grants: what is not usual of them, by the same (:attr:`vflsec.specs.AttackSpec.grants`).
        planted_as: what an attack is called on a planted leak, where that is another name.
        scenario_source: where the scenario lies, as seen from the results, and what it held.
        files: hashes of the tables, by path.
        looks: how often the gates were judged while seeds were added.
        classes: number of classes by data set, 1 for a quantity and 0 for several labels.
        tables: what is known of the tables, by data set.
        refused: attacks that did not run, with the reason.
        visibility: what stays visible under each defense, see `vflsec.plan.planner`.
        device, versions: that it ran on.
        shard: which part of an audit this is; "" for all of it.
    """

    scenario_toml: str
    confidence: float
    gates: tuple[Gate, ...]
    datasets: Mapping[str, str]
    wanted: Mapping[str, Sequence[str]]
    known_rows: Mapping[str, int]
    refused: Sequence[Mapping[str, Any]]
    device: str
    versions: Mapping[str, str]
    baseline: str | None = None
    algorithms: Mapping[str, str] = field(default_factory=dict)
    of_label: Mapping[str, str] = field(default_factory=dict)
    grants: Mapping[str, Grants] = field(default_factory=dict)
    planted_as: Mapping[str, str] = field(default_factory=dict)
    scenario_source: ScenarioSource = field(default_factory=ScenarioSource)
    files: Mapping[str, str] = field(default_factory=dict)
    looks: Looks = field(default_factory=Looks)
    classes: Mapping[str, int] = field(default_factory=dict)
    tables: Mapping[str, UserTables] = field(default_factory=dict)
    visibility: tuple[Protocol, ...] = ()
    shard: str = ""

    @property
    def level(self) -> float:
        """The confidence of what the last look says: each has its share of the audit's error."""
        return self.looks.narrow(self.confidence)

    def locate(
        self, results: Iterable[CellResult], *roles: str
    ) -> Iterator[tuple[Training, CellResult, str]]:
        """The cells that have one of these roles, each with its training in the first of them."""
        for result in results:
            found = (role for role in roles if f"{role}:{result.key}" in self.datasets)
            if role := next(found, ""):
                at = f"{role}:{result.key}"
                title = self.algorithms.get(at, result.spec.algorithm)
                point = defense_point(result.spec.defenses)
                yield Training(self.datasets[at], title, *point), result, role


_NEEDED: dict[str, type] = {
    "name": str, "scenario_hash": str, "scenario_toml": str, "confidence": float, "gates": list,
    "datasets": dict, "wanted": dict, "known_rows": dict, "data": dict, "refused": list,
    "notes": list, "device": str, "versions": dict,
}  # fmt: skip


def read_record(found: Any) -> AuditRecord:
    """The record in a plain value; what it may lack has its default.

    Raises:
        ValueError: it is no record; the message says what it lacks.
    """
    if not isinstance(found, dict):
        raise ValueError("keys")
    wrong = [k for k, kind in _NEEDED.items() if not isinstance(found.get(k), kind)]
    if wrong:
        raise ValueError(", ".join(wrong))
    try:
        sure = max(found["confidence"], LEAST_CONFIDENCE)  # of gates that had none of their own
        gates = [{"confidence": sure, **g} for g in found["gates"]]
        return read_as(AuditRecord, {**found, "gates": gates})
    except (AttributeError, KeyError, TypeError):
        raise ValueError("values") from None


def write_record(record: AuditRecord) -> dict[str, Any]:
    """The record as plain values."""
    plain: dict[str, Any] = write_plain(record)
    return plain
