"""What is run, as values: a cell is identified by a hash of its whole specification.

Nothing here imports torch, so that planning and listing stay fast.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, TypeAlias

from vflsec._version import __version__
from vflsec.runtime.plain_values import Table

Params: TypeAlias = Table
"""Hyper-parameters, by name."""

QUESTIONS: Mapping[str, float] = MappingProxyType(
    {"far from the median": 0.5, "largest tenth": 0.1, "smallest tenth": 0.1}
)
"""Yes/no questions about a quantity, which its order hardly tells, each with the share of rows of
which the answer is yes: see `vflsec.core.quantity_questions`."""


WHICHEVER = "*"
"""A column's name that stands for the question about any column that an attack is told best."""


def format_question(question: str) -> str:
    """What it asks of a value or of rows: ``far from the median``, ``in the largest tenth``."""
    return f"in the {question}" if question.endswith("tenth") else question


def hash_value(value: Any) -> str:
    """Hash of a plain value: 24 hexadecimal digits, the same in every process."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=list)
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


_LATER = ("code", "dosing", "pictures", "untested", "of_label", "sample", "sees_sample")


def _identity(spec: Any) -> dict[str, Any]:
    """All fields that a result depends on, in new dictionaries; later ones only if set."""
    out = {f.name: getattr(spec, f.name) for f in fields(spec)}
    out.pop("timeout", None)
    if "defenses" in out:
        out["defenses"] = [{f.name: getattr(d, f.name) for f in fields(d)} for d in spec.defenses]
    return {k: v for k, v in out.items() if v or k not in _LATER}


@dataclass(frozen=True)
class DefenseSpec:
    """One defense at one strength.

    Attributes:
        name: registered name.
        params: hyper-parameters except the strength.
        party: whose policy it is; ``""`` means the party the defense is made for.
        strength: the swept number, None if the defense has none.
    """

    name: str
    params: Params = field(default_factory=dict)
    party: str = ""
    strength: float | None = None


def number_repeats(names: Iterable[str]) -> list[str]:
    """Names of the defenses of one stack, in their order; the second of a name is ``NAME #2``."""
    seen: Counter[str] = Counter()
    out = []
    for name in names:
        seen[name] += 1
        out.append(name if seen[name] == 1 else f"{name} #{seen[name]}")
    return out


@dataclass(frozen=True)
class AttackSpec:
    """One attack by one adversary with its grants.

    Attributes:
        name: registered name.
        params: hyper-parameters.
        adversary: party names; more than one is a coalition.
        known_rows: how many labelled rows the adversary was granted (also to its controls).
        prior: whether the class shares are granted.
        aux_rows: how many training rows of the victims' columns the adversary was granted.
        peer_model: whether it was granted the victims' models (white box).
        victim: whose columns are attacked; ``""`` means every party that is not the adversary.
        over_time: also score what the attack knew after every epoch (messages only): measures whose
            phase is ``PHASE@EPOCH``, with the epoch in their notes.
        code: hash of the source of an attack that does not come with the package.
        timeout: seconds after which the attack on one cell is given up, 0 = never; no part of the
            key.
        dosing: shares of rows over which a planted leak is laid, to learn what the attack would
            have found: measures whose phase is ``PHASE@dose=SHARE``.
        pictures: of how many rows of images the answer and the truth are kept, for reports.
        of_label: which of several labels is attacked, or which of :data:`QUESTIONS` about a
            quantity; ``""`` where there is one label.
        sample: of more training or test rows than this so many are guessed; 0 = all.
        sees_sample: whether it is given the messages of the rows that it guesses or was granted
            alone (:func:`vflsec.train.views.keep_asked`).
    """

    name: str
    params: Params = field(default_factory=dict)
    adversary: tuple[str, ...] = ()
    known_rows: int = 20
    prior: bool = True
    aux_rows: int = 0
    peer_model: bool = False
    victim: str = ""
    over_time: bool = False
    code: str = ""
    timeout: float = 0.0
    dosing: tuple[float, ...] = ()
    pictures: int = 0
    of_label: str = ""
    sample: int = 0
    sees_sample: bool = False

    @cached_property
    def key(self) -> str:
        """Identity of this attack within a cell."""
        return hash_value(_identity(self))

    @cached_property
    def stream(self) -> str:
        """Name of what it draws: of its settings alone, so that an edit of its source that changes
        nothing changes no figure.
        """
        return replace(self, code="").key

    @property
    def label(self) -> str:
        """Name with the parameters that were set, and the one label of several, for tables."""
        set_ = [f"{k}={v}" for k, v in sorted(self.params.items())]
        what = "question" if self.of_label in QUESTIONS else "label"
        inner = ", ".join([*set_, *([f"{what}={self.of_label}"] if self.of_label else [])])
        return f"{self.name}({inner})" if inner else self.name

    @property
    def grants(self) -> dict[str, Any]:
        """What is unusual in whom it attacks and what it was granted beside known rows."""
        usual = {"victim": "", "aux_rows": 0, "peer_model": False, "prior": True}
        return {k: getattr(self, k) for k, v in usual.items() if getattr(self, k) != v}


OF_THE_LABELS = ("label", "integrity", "membership")
"""Targets of attacks on the party with the labels, whether it has columns or not."""


def list_victims(
    target: str, adversary: Sequence[str], parties: Sequence[str], named: str = ""
) -> tuple[str, ...]:
    """The parties whose data an attack is after.

    Args:
        target: what is guessed. Labels, predictions that are forced, and what was trained on are
            the active party's; anything else is the columns or embeddings of the others.
        adversary: party names.
        parties: all party names, the active one first.
        named: the one party whose columns are attacked, ``""`` for every other one.
    """
    if target in OF_THE_LABELS:
        return (parties[0],)
    return (named,) if named else tuple(p for p in parties if p not in adversary)


def find_own_secret(target: str, spec: AttackSpec, parties: Sequence[str]) -> str:
    """Why an attack is none: all that it is after its own adversary holds; or ''.

    Args:
        target: what is guessed.
        spec: by whom, and of whom.
        parties: all party names, the active one first.
    """
    whose = list_victims(target, spec.adversary, parties, spec.victim)
    if not whose or not {*whose} <= {*spec.adversary}:
        return ""
    who = "+".join(spec.adversary)
    return f"{spec.name} attacks {'+'.join(whose)}, which {who} has among its parties."


def find_exhausted(spec: AttackSpec, labelled: int) -> str:
    """Why the grants leave no training row to guess, or ''; `labelled` is 0 if it is not known."""
    granted = spec.known_rows + spec.aux_rows
    if not labelled or granted < labelled:
        return ""
    of = "known_rows" if not spec.aux_rows else "known_rows + aux_rows"
    return (
        f"{spec.name}: {of} must be < {labelled}, the number of labelled training rows, got "
        f"{granted}."
    )


LEFT_OUT = "left out"
"""The control of membership where test rows may be of another kind: the same attack on systems that
leave the rows out. It stands alone: neither guessing nor chance is a baseline there.
"""


def left_out(asked: int, spare: int) -> int:
    """In how many parts the rows that membership asks about are left out of a training, one each.

    So many that `spare` rows can be trained on instead of a part: with fewer rows to learn from, a
    system answers worse than the audited one would. At most ten.
    """
    return min(10, max(2, math.ceil(asked / max(spare, 1))))


@dataclass(frozen=True)
class CellSpec:
    """One training: (data, algorithm, defenses with strengths, seed).

    Attributes:
        data: the resolved ``[data]`` section with ``name`` and the content's ``digest``.
        algorithm: registered name.
        params: hyper-parameters of the algorithm.
        defenses: applied in this order.
        seed: drives split, initialisation, batches and every stream of the cell.
        dtype: of the training.
        code: hash of the source that the cell runs and that does not come with the package.
        untested: the epsilons that its defenses claim are not measured by canaries.
    """

    data: Mapping[str, Any]
    algorithm: str
    params: Params = field(default_factory=dict)
    defenses: tuple[DefenseSpec, ...] = ()
    seed: int = 0
    dtype: str = "float32"
    code: str = ""
    untested: bool = False

    @cached_property
    def key(self) -> str:
        """Hash of the whole specification and the package version."""
        return hash_value({"cell": _identity(self), "version": __version__})

    @cached_property
    def cohort(self) -> str:
        """Cells with the same cohort differ in seed and strengths only and train as one model."""
        spec = _identity(self)
        spec.pop("seed")
        for d in spec["defenses"]:
            d["strength"] = None if d["strength"] is None else "swept"
        return hash_value(spec)

    @cached_property
    def undefended(self) -> str:
        """Identity of the training but for its seed and its defenses."""
        spec = _identity(self)
        return hash_value({k: v for k, v in spec.items() if k not in ("seed", "defenses", "code")})


RATES = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5)
"""Rates of false alarms at which a trade-off curve is given."""
DECLINED = "declined"
"""Status of an attack that could make nothing of what it was given."""

UNMADE = ("not-observable", "not-applicable", DECLINED)
"""Statuses of attacks that could not be made."""

TIED = "tied"
"""Key of a measure's notes: true where the attack has one answer for all rows."""

TURNED = "turned"
"""Key of a measure's notes: its figure of the answer turned round, where the value tells it not."""

BY_CLASS = "by_class"
"""Key of a measure's notes: of exposed rows, how many of each class, as plain values."""

NAMED = "named_column"
"""Key of a guess's notes: which of the columns that it answers the attack itself takes to be told
best by what it received, named before any answer is compared with the truth."""

ORIENTED_BY = "oriented_by"
"""Key of a guess's notes, of two classes: the row by whose label, one bit that is granted for it,
the answer is turned round if need be; which row was chosen without a label, and it is not ranked.
"""


@dataclass(frozen=True)
class Measure:
    """One number of a cell: a main-task metric, or an attack's score, with its interval.

    Attributes:
        phase: training phase after which it was taken.
        split: ``train``, ``validation`` or ``test``.
        metric: see `vflsec.audit.metrics`.
        value, low, high, n, chance: the figure, its exact interval, rows, and the level of chance.
        adversary: ``"+"``-joined parties; ``""`` for main-task metrics.
        attack: the attack's label; ``""`` for main-task metrics.
        attack_key: :attr:`AttackSpec.key`, ``""`` for main-task metrics.
        target: what was attacked (``label``), ``""`` for main-task metrics.
        victim: the ``"+"``-joined parties whose data that is; ``""`` for main-task metrics.
        controls: {control name: {"value": same metric on the same rows, "cv": cross-validated score
            on the known rows, or None}}.
        status: ``ok``, one of :data:`UNMADE`, or ``error``.
        reason: why the status is not ``ok``.
        notes: how the answer came about.
    """

    phase: str
    split: str
    metric: str
    value: float | None
    low: float | None = None
    high: float | None = None
    n: int = 0
    chance: float | None = None
    adversary: str = ""
    attack: str = ""
    attack_key: str = ""
    target: str = ""
    victim: str = ""
    controls: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)
    status: str = "ok"
    reason: str = ""
    notes: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def missing(
        cls, of: AttackSpec, status: str, reason: str, *, phase: str = "", target: str = "",
        victim: str = "",
    ) -> Measure:  # fmt: skip
        """The row of an attack that has no figure, and why."""
        return cls(
            phase, "", "", None, adversary="+".join(of.adversary), attack=of.label,
            attack_key=of.key, target=target, victim=victim, status=status, reason=reason,
        )  # fmt: skip


@dataclass(frozen=True)
class LedgerRow:
    """Messages of one kind from one party to another in one phase of one cell.

    `rounds` counts distinct steps at which such a message passed. Counts are whole numbers, but for
    means over cells.
    """

    phase: str
    kind: str
    name: str
    sender: str
    receiver: str
    messages: float
    elements: float
    bytes: float
    rounds: float


@dataclass(frozen=True)
class Promise:
    """What a defense promises of one execution.

    Words are parts of a sentence: they begin small and end without a full stop.

    Attributes:
        protects: ``"label"``, ``"row"`` (of one party or of all, see `what`) or ``"none"``.
        epsilon: the accountant's epsilon, or None where nothing is claimed.
        delta: the accountant's delta (0 for pure guarantees).
        accountant: which accountant computed it, ``""`` for none.
        releases: over how many uses of one row it composes, as counted.
        what: what is protected, for example ``"the label of a row"``.
        neighbours: the neighbouring relation, for example ``"its replacement by another class"``.
        against: who may look at what.
        over: what it composes over, with the counts.
        given: what is taken as known and fixed; ``""`` if nothing.
        provided: what has to be so for it to hold; ``""`` if nothing.
        leaves: what is not covered.
        reason: why nothing is claimed; ``""`` where an epsilon is.
        covers: whole sentences instead of the above, for a policy that protects without an epsilon.
        group: the most rows of one group, as of a person.
    """

    protects: str = "none"
    epsilon: float | None = None
    delta: float = 0.0
    accountant: str = ""
    releases: int = 0
    what: str = ""
    neighbours: str = ""
    against: str = ""
    over: str = ""
    given: str = ""
    provided: str = ""
    leaves: str = ""
    reason: str = "it is noise without an accountant"
    covers: str = ""
    group: int = 1


@dataclass(frozen=True)
class Claim(Promise):
    """The promise of one defense of a training, and what came of it.

    Attributes:
        defense, strength: whose promise it is.
        says: the promise in words.
        hits, group_hits: the largest shares of hits at `RATES` of false alarms, of one row and of
            all rows of the largest group; none where no epsilon is claimed.
        called: whether the hook that it counts was called; None of one that counts none.
        idle: whether none of its hooks did anything.
        planned: uses of a row that were planned, 0 where none were.
        untested: why canaries did not measure it, ``""`` where they did or there is no epsilon.
        confidence: of measured bounds, where it is not that of the audit.
    """

    defense: str = ""
    strength: float | None = None
    says: str = ""
    hits: tuple[float, ...] = ()
    group_hits: tuple[float, ...] = ()
    called: bool | None = None
    idle: bool = False
    planned: int = 0
    untested: str = ""
    confidence: float | None = None

    @property
    def hits_by_rows(self) -> dict[int, tuple[float, ...]]:
        """Those of :attr:`hits` that there are, by how many rows they are about."""
        found = {self.group: self.group_hits, 1: self.hits}
        return {rows: of for rows, of in sorted(found.items()) if of}


@dataclass(frozen=True)
class TaskFacts:
    """What is known of a task: its parties, the active one first, its labels and its sizes.

    Attributes:
        parties, class_names: of the task.
        classes: the kind of its label, see :func:`vflsec.label.make_label`.
        labels: names, where a row has several labels.
        rows: how many, by row set.
        columns: how many, by party.
    """

    parties: tuple[str, ...] = ()
    classes: int = 0
    class_names: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    rows: Mapping[str, int] = field(default_factory=dict)
    columns: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class CellFacts(TaskFacts):
    """What is known of a finished training beside its figures.

    Attributes:
        unread: (kind, name) of messages that no attack reads.
        undeclared: (kind, role of the sender, role of the receiver) of messages that were sent and
            are not declared.
        gaps: by party, why what it was seen to get carries no pass.
        epochs, kept: by phase, the epochs that were trained, and the one whose weights were kept.
        encryption: seconds by operation on ciphertexts.
        cpu_seconds: that processors worked on it; None if it was not timed.
        versions: of the software that trained it, by name.
    """

    unread: tuple[tuple[str, ...], ...] = ()
    undeclared: tuple[tuple[str, ...], ...] = ()
    gaps: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    epochs: Mapping[str, int] = field(default_factory=dict)
    kept: Mapping[str, int] = field(default_factory=dict)
    encryption: Mapping[str, float] = field(default_factory=dict)
    cpu_seconds: float | None = None
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass
class CellResult:
    """Everything a finished cell leaves behind."""

    key: str
    spec: CellSpec
    measures: list[Measure] = field(default_factory=list)
    ledger: list[LedgerRow] = field(default_factory=list)
    guarantees: list[Claim] = field(default_factory=list)
    facts: CellFacts = field(default_factory=CellFacts)
    seconds: float = 0.0
    device: str = "cpu"
