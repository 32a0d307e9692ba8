"""What is known of one attack, or of the main task, at one training: a point, as a typed value.

An identity is compared whole. What differs in some of its fields alone is found by
:meth:`Identity.without`, so that no field is forgotten.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from vflsec.audit import defense_label
from vflsec.audit.controls import Leakage
from vflsec.audit.exposed import Exposed
from vflsec.audit.metrics import RANKINGS
from vflsec.runtime.typed_values import read_as

if TYPE_CHECKING:
    import pandas as pd

UNDEFENDED = "none"
"""Name of having no defense."""
SPLITS = ("test", "validation", "train")
"""Rows that figures are of, the usual ones first."""


def clean(value: Any) -> Any:
    """The value, or None for NaN, which tables hold where there is no number."""
    return None if isinstance(value, float) and math.isnan(value) else value


@dataclass(frozen=True, slots=True)
class Training:
    """Identity of a training: everything but its seed.

    Attributes:
        dataset: name of the data set.
        algorithm: what the training is called, its name and settings.
        defense: label of the stack of defenses (:mod:`vflsec.audit.defense_label`), or "none".
        strength: the swept number in the units of its defense; None where no defense has one.
    """

    dataset: str = ""
    algorithm: str = ""
    defense: str = ""
    strength: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """The fields by name."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @property
    def training(self) -> Training:
        """The training alone."""
        return Training(self.dataset, self.algorithm, self.defense, self.strength)

    @property
    def system(self) -> Training:
        """What is trained on which data, whatever defends it."""
        return Training(self.dataset, self.algorithm)

    @property
    def is_undefended(self) -> bool:
        """Whether there is no defense, or each of a stack has strength 0, the exact identity.

        The swept strength is that of one defense; the label tells those of the others. A defense
        without a strength is always on.
        """
        if self.defense == UNDEFENDED or self.strength != 0:
            return self.defense == UNDEFENDED
        return defense_label.count_on(self.defense) <= 1


@dataclass(frozen=True, slots=True)
class Place:
    """Where an attack is judged.

    Attributes:
        budget: its known rows, None where they are not told.
        section: :attr:`vflsec.specs.AttackSpec.key`, which holds the attack's settings and all its
            grants; '' where that is not told.
    """

    dataset: str = ""
    algorithm: str = ""
    adversary: str = ""
    attack: str = ""
    budget: float | None = None
    section: str = ""


@dataclass(frozen=True, slots=True)
class Grants:
    """What an attacker was granted beside known rows, and whom it attacks; by default the usual.

    Attributes: see :class:`vflsec.specs.AttackSpec`.
    """

    victim: str = ""
    aux_rows: int = 0
    peer_model: bool = False
    prior: bool = True


@dataclass(frozen=True, slots=True)
class Identity(Training):
    """Identity of a point: everything of a measure but its seed and its figures.

    Attributes:
        phase: of the training, after which it was measured.
        adversary: its parties, joined by "+"; "" for the main task, as in what follows.
        attack: the attack's label.
        attack_key: :attr:`vflsec.specs.AttackSpec.key`, which holds all its settings and grants.
        of_label: which of several labels, or which question about a quantity.
        known_rows: labelled rows that were granted; None where that is not known.
        target: what is guessed, as ``label`` or ``feature``: :data:`vflsec.core.attack.TARGETS`.
        victim: parties whose data that is, joined by "+".
        split: ``train``, ``validation`` or ``test``.
        metric: see :mod:`vflsec.audit.metrics`; "" where nothing was measured.
    """

    phase: str = ""
    adversary: str = ""
    attack: str = ""
    attack_key: str = ""
    of_label: str = ""
    known_rows: float | None = None
    target: str = ""
    victim: str = ""
    split: str = ""
    metric: str = ""

    @property
    def identity(self) -> Identity:
        """The identity alone."""
        return Identity(*_read_identity(self))

    @property
    def place(self) -> Place:
        """Where its attack is judged."""
        budget = None if self.known_rows is None else float(self.known_rows)
        who = (self.dataset, self.algorithm, self.adversary, self.attack)
        return Place(*who, budget, self.attack_key)

    @property
    def answer(self) -> Identity:
        """What identifies the guesses behind a figure, whatever they are scored by."""
        return self.without("metric")

    @property
    def run(self) -> Identity:
        """Which attack was made where: all that a row without a figure is sure to tell."""
        return self.without("of_label", "known_rows", "target", "victim", "split", "metric")

    def keep(self, *names: str) -> Identity:
        """The identity with these fields alone, by which points that have them in common agree."""
        return Identity(**{name: getattr(self, name) for name in names})

    def without(self, *names: str) -> Identity:
        """The identity with these fields empty, by which points that differ in them alone agree."""
        return replace(self.identity, **{name: _EMPTY[name] for name in names})


_EMPTY: dict[str, Any] = {f.name: "" for f in fields(Identity)} | {
    "strength": None, "known_rows": None,
}  # fmt: skip
IDENTITY = tuple(_EMPTY)
"""Names of the fields of an identity, which are columns of results."""
_read_identity = attrgetter(*IDENTITY)


_SHARES = ("accuracy", "balanced_accuracy")


class Scored:
    """What a figure with an :class:`Identity` says by its metric and the one verdicts rest on."""

    __slots__ = ()
    attack: str
    metric: str
    primary: str
    status: str

    @property
    def is_main(self) -> bool:
        """Whether it is an attack's answer in the metric that verdicts rest on, with a figure."""
        return bool(self.attack) and self.status == "ok" and self.metric == self.primary

    @property
    def is_reversible(self) -> bool:
        """Whether the answer with its labels flipped would have 1 less this figure.

        So has a ranking, of each of several classes too, and with two classes a share of right
        answers.
        """
        return self.metric in RANKINGS or (self.metric in _SHARES and self.primary in RANKINGS)

    @property
    def is_ranking(self) -> bool:
        """Whether it is by this figure that an answer is looked at with its labels flipped.

        That is the one that verdicts rest on, or with several classes the AUC of each against the
        rest. Flipped labels are a leak to whoever knows which way round they are.
        """
        wanted = "auc" if self.primary in _SHARES else self.primary
        return self.is_reversible and self.metric == wanted


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over seeds with its t bounds, in the units of the metric.

    Attributes:
        mean: None where no seed has a figure.
        sd: standard deviation over seeds (n - 1); None for one seed, as are all bounds.
        low, high: two-sided bounds at the confidence of the audit.
        lower, upper: one-sided bounds at the same confidence.
        seeds: how many have a figure.
    """

    mean: float | None = None
    sd: float | None = None
    low: float | None = None
    high: float | None = None
    lower: float | None = None
    upper: float | None = None
    seeds: int = 0


@dataclass(frozen=True, slots=True)
class Point(Identity, Scored):
    """One attack, or one metric of the main task, at one training, over its seeds.

    Attributes:
        primary: the metric that verdicts rest on.
        n, n_least: the most and the fewest rows that were scored on a seed.
        tied: whether the attack has one answer for all rows, on every seed.
        chance: the metric's level of chance; None where it has none.
        leakage: the advantage over each control; None where there is none, as for the main task.
        planned: seeds of the training.
        seeds: seeds with a figure.
        failed: seeds on which it ended in an error.
        failed_trainings: seeds on which the training did.
        status: ``ok`` if a seed is, else why there is no figure.
        reason: why a seed has none, in words; "" where each has one.
        asked: what the attack chose by itself, with the number of seeds where these differ.
        bytes, messages: what all parties sent in training, means over seeds.
        value: the attack's figure, or that of the main task.
        control_value: of the control that leaves the least advantage.
        advantage: over all controls, paired by seed, signed so that more is worse for privacy.
        worst_seed: the largest advantage over all controls in a single seed.
        turned: the figure of the answer turned round, where there is such a thing.
        mirrored: its advantage over the control that was named beforehand.
        utility_metric: the main task's metric.
        utility: its figure under this training.
        utility_drop: undefended less defended, paired by seed.
        exposed: who is named with certainty, in the metrics of that; None in all others.
        gap: why what the adversary was seen to get carries no pass; "" where it does.
        unscored: seeds on which there was nothing to score, such as no row of a rare class.
    """

    primary: str = ""
    n: int = 0
    n_least: int = 0
    tied: bool = False
    chance: float | None = None
    leakage: Leakage | None = None
    planned: int = 0
    seeds: int = 0
    failed: int = 0
    failed_trainings: int = 0
    status: str = "ok"
    reason: str = ""
    asked: str = ""
    bytes: float | None = None
    messages: float | None = None
    value: Estimate = field(default_factory=Estimate)
    control_value: Estimate = field(default_factory=Estimate)
    advantage: Estimate = field(default_factory=Estimate)
    worst_seed: float | None = None
    turned: Estimate = field(default_factory=Estimate)
    mirrored: Estimate = field(default_factory=Estimate)
    utility_metric: str = ""
    utility: Estimate = field(default_factory=Estimate)
    utility_drop: Estimate = field(default_factory=Estimate)
    exposed: Exposed | None = None
    gap: str = ""
    unscored: int = 0

    @property
    def control(self) -> str:
        """Name of the control with the least mean advantage, or ""."""
        return self.leakage.least.name if self.leakage else ""

    @property
    def named(self) -> str:
        """Name of the control that was named beforehand, or ""."""
        return self.leakage.ahead.name if self.leakage else ""

    @classmethod
    def read(cls, row: Mapping[str, Any]) -> Point:
        """From a row of a summary or of a frame."""
        people = row.get("exposed")
        given: dict[str, Any] = {
            "leakage": Leakage.of(row),
            "exposed": read_as(Exposed, people) if isinstance(people, Mapping) else None,
        }
        for f in fields(cls):
            if f.type == "Estimate":
                found = {e: clean(row.get(c)) for c, e in zip(_columns(f.name), _ENDS, strict=True)}
                given[f.name] = Estimate(**found | {"seeds": int(found["seeds"] or 0)})
            elif f.name in row and f.name not in given:
                given[f.name] = clean(row[f.name])
        return cls(**given)


_ENDS = tuple(f.name for f in fields(Estimate))
_SELDOM = ("gap", "unscored")
_PLAIN = tuple(f for f in fields(Point) if f.name not in ("leakage", "exposed", *_SELDOM))


def _columns(name: str) -> list[str]:
    """The columns of an estimate, in the order of its fields."""
    return [name if end == "mean" else f"{name}_{end}" for end in _ENDS]


def write_points(points: Sequence[Point]) -> list[dict[str, Any]]:
    """Rows of a summary: one plain value for each column, None where there is no number."""
    seldom = [name for name in _SELDOM if any(getattr(p, name) for p in points)]
    people = any(p.exposed for p in points)
    return [
        _row(p) | {name: getattr(p, name) for name in seldom}
        | ({"exposed": p.exposed and asdict(p.exposed)} if people else {})
        for p in points
    ]  # fmt: skip


def _row(point: Point) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for f in _PLAIN:
        value = getattr(point, f.name)
        if isinstance(value, Estimate):
            ends = (getattr(value, end) for end in _ENDS)
            out |= zip(_columns(f.name), ends, strict=True)
        else:
            out[f.name] = value
        if f.name == "chance":
            every = point.leakage.as_dict() if point.leakage else {}
            out |= {"control": point.control, "named": point.named, "controls": every}
    return out


def points_frame(points: Sequence[Point]) -> pd.DataFrame:
    """The points as a table, NaN where there is no number; without columns where there is none."""
    return build_frame(write_points(points))


def build_frame(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Rows of :func:`write_points` as a table."""
    import pandas as pd

    columns: dict[str, Any] = {
        name: [row[name] for row in rows] for name in (rows[0] if rows else {})
    }
    for name in columns.keys() & _NUMBERS:
        columns[name] = np.array(columns[name], dtype=np.float64)  # None is NaN
    return pd.DataFrame(columns)


_NUMBERS = {
    column for f in fields(Point) for column in (_columns(f.name)[:-1] if f.type == "Estimate" else
    [f.name] if f.type == "float | None" else [])
}  # fmt: skip
