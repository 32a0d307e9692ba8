"""What ``summary.json`` holds, as typed values: what reports read, live and stored alike.

Fields are called as the keys of the file. :func:`read_summary` is the one place where its
dictionaries are looked into; keys that a file of an earlier version lacks take their default.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from vflsec.audit.point import Identity, Point, read_points
from vflsec.core.visibility import Line

__all__ = [
    "AttackFacts", "Attacker", "Choice", "Claim", "Command", "Cost", "CurveRow", "DatasetFacts",
    "Dose", "GateAsked", "GridRow", "Judged", "LabelRow", "Located", "Picture", "PointCost",
    "Protocol", "Sent", "Strongest", "Summary", "UserTable", "UserTables", "read_as",
    "read_strongest", "read_summary",
]  # fmt: skip

Row = Mapping[str, Any]
"""An object of the file."""

T = TypeVar("T")


@cache
def _reader(kind: Any) -> Callable[[Any], Any]:
    """What reads a plain value of JSON as `kind`: dataclasses, tuples and mappings of them."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        some = _reader(next(k for k in inner if k is not type(None)))
        return lambda value: None if value is None else some(value)
    if origin is tuple:
        if len(inner) == 2 and inner[1] is Ellipsis:
            each = _reader(inner[0])
            return lambda value: tuple(map(each, value))
        return tuple
    if origin is dict:
        each = _reader(inner[1])
        return lambda value: {k: each(v) for k, v in value.items()}
    if kind is Point:
        return lambda row: read_points([row])[0]
    if isinstance(kind, type) and hasattr(kind, "read"):
        read: Callable[[Any], Any] = kind.read
        return read
    if is_dataclass(kind):
        return _row_reader(kind)
    return lambda value: value


def _row_reader(kind: Any) -> Callable[[Row], Any]:
    hints = get_type_hints(kind)
    readers = {f.name: _reader(hints[f.name]) for f in fields(kind)}

    def read(row: Row | None) -> Any:
        return kind(**{k: of(row[k]) for k, of in readers.items() if k in row}) if row else kind()

    return read


@dataclass(frozen=True)
class Located:
    """A training: data set, algorithm, label of the defenses and the swept strength."""

    dataset: str = ""
    algorithm: str = ""
    defense: str = ""
    strength: float | None = None


@dataclass(frozen=True)
class Strongest(Identity):
    """The strongest attack on a secret, see :func:`vflsec.audit.strongest_attack.strongest`."""

    control: str = ""
    advantage: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    tried: int = 0
    attacks: int = 0
    at: str = ""

    def __getitem__(self, column: str) -> Any:
        """A field by its name, as the audit reads rows."""
        return getattr(self, column)

    def get(self, column: str, default: Any = None) -> Any:
        """A field by its name, or `default`."""
        return getattr(self, column, default)


@dataclass(frozen=True)
class CurveRow(Located):
    """One attack against one defense, over its strengths, see
    :mod:`vflsec.audit.tradeoff_curves`.
    """

    phase: str = ""
    adversary: str = ""
    attack: str = ""
    split: str = ""
    metric: str = ""
    strengths: tuple[float | None, ...] = ()
    cap: float | None = None
    cap_strengths: tuple[float | None, ...] = ()
    dcs: tuple[float | None, ...] = ()


@dataclass(frozen=True)
class Dose(Located):
    """What was found of a planted leak, see :func:`vflsec.audit.dosing.curve`."""

    attack: str = ""
    adversary: str = ""
    split: str = ""
    share: float = 0.0
    planted: float | None = None
    chance: float | None = None
    advantage: float | None = None
    low: float | None = None
    high: float | None = None
    found: bool = False


@dataclass(frozen=True)
class LabelRow(Located):
    """Of several labels the mean and the most told, see
    :func:`vflsec.audit.multilabel.by_label`.
    """

    attack: str = ""
    adversary: str = ""
    split: str = ""
    labels: int = 0
    left_out: tuple[str, ...] = ()
    value: float | None = None
    low: float | None = None
    high: float | None = None
    control_value: float | None = None
    most: str = ""
    most_value: float | None = None
    most_control: float | None = None


@dataclass(frozen=True)
class Picture(Located):
    """Images and what an attack made of them, see :mod:`vflsec.audit.image_samples`."""

    party: str = ""
    attack: str = ""
    adversary: str = ""
    seed: int = 0
    shape: tuple[int, ...] = ()
    rows: tuple[int, ...] = ()
    truth: tuple[Any, ...] = ()
    guess: tuple[Any, ...] = ()


@dataclass(frozen=True)
class GridRow(Located):
    """A point of the grid: how many gates it passes, and what it costs."""

    gates: int = 0
    passed: int = 0
    utility_drop: float | None = None
    utility_drop_low: float | None = None
    utility_drop_high: float | None = None
    cheapest: bool = False


@dataclass(frozen=True)
class GateAsked:
    """A gate as it was asked, see :class:`vflsec.audit.gate.Gate`."""

    metric: str = "advantage"
    max: float | None = None
    min: float | None = None
    attack: str = "*"
    adversary: str = "*"
    dataset: str = "*"
    algorithm: str = "*"
    phase: str = "*"
    split: str = "*"
    target: str = "*"
    defense: str = "*"
    strength: float | None = None
    of: str = ""
    confidence: float | None = None
    detect: float | None = None
    name: str = ""


@dataclass(frozen=True)
class AttackPlace:
    """Where an attack is judged, see :class:`vflsec.audit.validated.Place`."""

    dataset: str = ""
    algorithm: str = ""
    adversary: str = ""
    attack: str = ""
    budget: float | None = None
    section: str = ""


@dataclass(frozen=True)
class Judged(Located):
    """A verdict, see :class:`vflsec.audit.gate.Verdict`, with its label and line."""

    gate: GateAsked = GateAsked()
    verdict: str = ""
    value: float | None = None
    low: float | None = None
    high: float | None = None
    threshold: float = 0.0
    n: int = 0
    reason: str = ""
    rule: str = ""
    detail: str = ""
    attack: str = ""
    adversary: str = ""
    phase: str = ""
    split: str = ""
    more_seeds: int | None = None
    attacks: tuple[str, ...] = ()
    detectable: dict[str, float] = field(default_factory=dict)
    warning: str = ""
    warnings: tuple[str, ...] = ()
    dead: tuple[AttackPlace, ...] = ()
    stuck: bool = False
    label: str = ""
    line: int = 0


@dataclass(frozen=True)
class Shown:
    """Whether an attack is shown to work at a place, and by what."""

    alive: bool = False
    evidence: str = ""
    code: str = ""
    place: AttackPlace = AttackPlace()


@dataclass(frozen=True)
class Found:
    """A finding, see :class:`vflsec.audit.findings.Finding`."""

    kind: str = ""
    text: str = ""


@dataclass(frozen=True)
class AttackFacts:
    """An attack of the scenario: who makes it, wanting what, with which means."""

    name: str = ""
    label: str = ""
    params: dict[str, Any] | None = None
    adversary: tuple[str, ...] = ()
    known_rows: int = 0
    prior: bool = False
    aux_rows: int = 0
    peer_model: bool = False
    target: str = ""
    needs: tuple[str, ...] = ()
    active: bool = False
    summary: str = ""
    source: str = ""


@dataclass(frozen=True)
class DatasetFacts:
    """Parties of a data set, the active one first, with sizes and the seeds that were trained."""

    parties: tuple[str, ...] = ()
    classes: int | None = None
    labels: tuple[str, ...] = ()
    rows: dict[str, int] = field(default_factory=dict)
    columns: dict[str, int] = field(default_factory=dict)
    seeds: tuple[int, ...] = ()


@dataclass(frozen=True)
class Described:
    """What a defense does, and where it comes from."""

    summary: str = ""
    source: str = ""


@dataclass(frozen=True)
class Sent:
    """Messages of one kind in one direction: counts of one training, means over seeds."""

    phase: str = ""
    kind: str = ""
    name: str = ""
    sender: str = ""
    receiver: str = ""
    messages: float = 0.0
    elements: float = 0.0
    bytes: float = 0.0
    rounds: float = 0.0


@dataclass(frozen=True)
class Claim(Located):
    """What a defense promises by its accountant.

    Attributes:
        says: the promise in words.
        counted: whether the file says how often the defense was called.
    """

    epsilon: float | None = None
    delta: float = 0.0
    accountant: str = ""
    says: str = ""
    counted: bool = False
    idle: bool = False

    @classmethod
    def read(cls, row: Row) -> Claim:
        """From a row of the file, also of an earlier version."""
        made = {f.name: row[f.name] for f in fields(cls) if f.name in row}
        says = row.get("says") or row.get("covers", "")
        return cls(**made | {"says": says, "counted": "called" in row})


@dataclass(frozen=True)
class PointCost(Located):
    """What one training cost with its attacks, means over seeds."""

    role: str = ""
    cells: int = 0
    seconds: float = 0.0
    traffic: tuple[Sent, ...] = ()
    unread: tuple[tuple[str, ...], ...] = ()
    undeclared: tuple[tuple[str, ...], ...] = ()
    encryption: dict[str, float] = field(default_factory=dict)
    guarantees: tuple[Claim, ...] = ()


@dataclass(frozen=True)
class Cost:
    """What an audit cost; seconds are None where they were not taken."""

    training_seconds: float = 0.0
    cpu_seconds: float | None = None
    run_seconds: float | None = None
    points: tuple[PointCost, ...] = ()


@dataclass(frozen=True)
class Cells:
    """How many trainings were planned, and how many are finished."""

    planned: int = 0
    finished: int = 0


@dataclass(frozen=True)
class Choice(Located):
    """The written and the best setting of an attack on drawn worlds."""

    adversary: str = ""
    attack: str = ""
    split: str = ""
    written: str = ""
    written_advantage: float | None = None
    chosen: str = ""
    advantage: float | None = None
    joins: bool = False


@dataclass(frozen=True)
class Attacker:
    """Which attacker it was: as written, or with settings tried on drawn worlds."""

    name: str = "default"
    seeds: tuple[int, ...] = ()
    choices: tuple[Choice, ...] = ()
    tried: dict[str, tuple[str, ...]] = field(default_factory=dict)
    trainings: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Command:
    """What was typed: the scenario's file, changes to it, and the results directory."""

    scenario: str = ""
    set: tuple[str, ...] = ()
    folder: str = ""


@dataclass(frozen=True)
class Measured:
    """What an attack measured under encryption, beside the same attack without."""

    dataset: str = ""
    attack: str = ""
    adversary: str = ""
    metric: str = ""
    value: float | None = None
    value_low: float | None = None
    value_high: float | None = None
    control: float | None = None
    unencrypted: float | None = None
    change: float | None = None
    change_low: float | None = None
    change_high: float | None = None


@dataclass(frozen=True)
class Protocol:
    """Who holds what under one protocol, and what that leaves to attacks."""

    defense: str = ""
    algorithm: str = ""
    lines: tuple[Line, ...] = ()
    hides: str = ""
    leaves: str = ""
    sentences: tuple[tuple[str, str], ...] = ()
    measured: tuple[Measured, ...] = ()
    unseen: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class ColumnFacts:
    """A column of a user's table."""

    name: str = ""
    party: str = ""
    role: str = ""
    kind: str = ""
    distinct: int = 0
    missing: int = 0
    unit: str = ""
    warning: str = ""


@dataclass(frozen=True)
class UserTable:
    """A user's table."""

    file: str = ""
    parties: tuple[str, ...] = ()
    rows: int = 0
    read_as: str = ""
    columns: tuple[ColumnFacts, ...] = ()


@dataclass(frozen=True)
class Overlap:
    """How many rows a party has, shares, has labels of, and has alone."""

    rows: int = 0
    common: int = 0
    labelled: int = 0
    only_here: int = 0


@dataclass(frozen=True)
class Said:
    """What matching the rows tells, in a sentence."""

    says: str = ""


@dataclass(frozen=True)
class UserTables:
    """The tables of one data set, and what matching their rows tells."""

    tables: tuple[UserTable, ...] = ()
    overlap: dict[str, Overlap] = field(default_factory=dict)
    alignment: tuple[Said, ...] = ()


@dataclass(frozen=True)
class Summary:
    """An audit as reports read it."""

    name: str = ""
    scenario_hash: str = ""
    data: dict[str, str] = field(default_factory=dict)
    tables: dict[str, UserTables] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    made_before: str = ""
    device: str = ""
    when: str = ""
    who: str = ""
    command: Command = Command()
    scenario_file: str = ""
    scenario: str = ""
    parties: dict[str, DatasetFacts] = field(default_factory=dict)
    attacker: Attacker = Attacker()
    attacks: dict[str, AttackFacts] = field(default_factory=dict)
    families: dict[str, tuple[str, ...]] | None = None
    defenses: dict[str, Described] = field(default_factory=dict)
    treats: dict[str, tuple[str, ...]] = field(default_factory=dict)
    confidence: float = 0.95
    cells: Cells = Cells()
    curves: tuple[CurveRow, ...] = ()
    points: tuple[Point, ...] = ()
    leaks: tuple[Strongest, ...] | None = None
    strongest: tuple[Strongest, ...] = ()
    over_time: tuple[Point, ...] = ()
    dosing: tuple[Dose, ...] = ()
    labels: tuple[LabelRow, ...] = ()
    pictures: tuple[Picture, ...] = ()
    grid: tuple[GridRow, ...] = ()
    alive: dict[str, Shown] = field(default_factory=dict)
    gates: tuple[Judged, ...] = ()
    findings: tuple[Found, ...] = ()
    notes: tuple[str, ...] = ()
    visibility: tuple[Protocol, ...] = ()
    cost: Cost = Cost()
    complete: bool = True
    exit_code: int = 0
    shard: str = ""


def read_as(kind: type[T], value: Any) -> T:
    """A plain value of JSON as `kind`."""
    read: Callable[[Any], T] = _reader(cast("Any", kind))
    return read(value)


def read_summary(summary: Row) -> Summary:
    """The summary that ``summary.json`` holds as a typed value."""
    return read_as(Summary, summary)


def read_strongest(rows: Iterable[Row]) -> tuple[Strongest, ...]:
    """Rows of :mod:`vflsec.audit.strongest_attack` as typed values."""
    return tuple(map(_reader(Strongest), rows))
