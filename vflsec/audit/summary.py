"""A summary as typed values: what reports and commands read, live and stored alike.

Fields are called as the keys of ``summary.json``; points stand beside it, in ``points.parquet``.
Most are types of the audit, which writes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from vflsec.audit.attack_names import find_attack, tell_apart
from vflsec.audit.dosing import Dose
from vflsec.audit.exposure import Outcome
from vflsec.audit.facts import DatasetFacts, PointCost
from vflsec.audit.findings import Finding
from vflsec.audit.gate import Origin, Verdict
from vflsec.audit.image_samples import Picture
from vflsec.audit.leakage_claims import LeakageClaim, correct, find_claims
from vflsec.audit.multilabel import LabelRow
from vflsec.audit.point import Grants, Identity, Point
from vflsec.audit.record import Recorded
from vflsec.audit.strength_grid import GridRow
from vflsec.audit.tradeoff_curves import Curve, Improvement
from vflsec.audit.validated import Validation
from vflsec.data.table_facts import UserTables
from vflsec.runtime.typed_values import read_as


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
class Summary(Recorded):
    """What is known of an audit; its points have the one interval that every report prints."""

    tables: dict[str, UserTables] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    made_before: str = ""
    device: str = ""
    scenario: str = ""
    parties: dict[str, DatasetFacts] = field(default_factory=dict)
    confidence: float = 0.95
    cells: Cells = Cells()
    curves: tuple[Curve, ...] = ()
    improvements: tuple[Improvement, ...] = ()
    points: tuple[Point, ...] = ()
    over_time: tuple[Point, ...] = ()
    dosing: tuple[Dose, ...] = ()
    labels: tuple[LabelRow, ...] = ()
    pictures: tuple[Picture, ...] = ()
    grid: tuple[GridRow, ...] = ()
    alive: dict[str, Validation] = field(default_factory=dict)
    gates: tuple[Verdict, ...] = ()
    findings: tuple[Finding, ...] = ()
    visibility: tuple[Outcome, ...] = ()
    cost: Cost = Cost()
    complete: bool = True
    exit_code: int = 0
    shard: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "points", tuple(correct(self.points, self.gates, self.confidence)))

    @property
    def limits(self) -> list[Verdict]:
        """Verdicts of gates: a baseline and a claimed epsilon limit no leak."""
        return [v for v in self.gates if v.origin is Origin.GATE]

    @property
    def is_of_traces(self) -> bool:
        """Whether recordings were audited: nothing of the training can be set any more."""
        return not self.scenario and not self.scenario_file

    def name_attack(self, at: Identity) -> str:
        """The attack's label, with what tells it apart from others of that label and adversary."""
        return " ".join(filter(None, (at.attack, self._apart[find_attack(at)])))

    @cached_property
    def _apart(self) -> dict[Identity, str]:
        grants = {
            key: Grants(aux_rows=a.aux_rows, peer_model=a.peer_model, prior=a.prior)
            for key, a in self.attacks.items()
        }
        return tell_apart((p for p in self.points if p.attack), grants)

    @cached_property
    def claims(self) -> tuple[LeakageClaim, ...]:
        """What each attacker learns of each target under each training; nothing is claimed before
        all that was planned is measured.
        """
        points = self.points if self.complete else ()
        return tuple(find_claims(points, self.gates, self.confidence))


def read_summary(summary: Mapping[str, object]) -> Summary:
    """A summary as a typed value."""
    return read_as(Summary, summary)
