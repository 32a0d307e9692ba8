"""What is known of the trainings behind the figures: data sets, versions and costs, as values."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from vflsec.audit.point import Training
from vflsec.audit.record import ROLES, AuditRecord
from vflsec.runtime.typed_values import read_as
from vflsec.specs import CellResult, Claim, LedgerRow, TaskFacts


def describe_older(made: Iterable[Mapping[str, str]], now: Mapping[str, str]) -> str:
    """What trainings were made with, where that is not what runs now; or ''.

    Args:
        made: versions by name, of each training.
        now: the same of the audit.
    """
    found: dict[str, dict[str, None]] = {k: {} for k in now}
    for of in made:
        for name in now:
            if of.get(name, now[name]) != now[name]:
                found[name][of[name]] = None
    said = [f"{k} {', '.join(v)} ({now[k]} now)" for k, v in found.items() if v and k != "code"]
    return ", ".join([*said, *(["other code of vflsec"] if found.get("code") else [])])


@dataclass(frozen=True)
class DatasetFacts(TaskFacts):
    """What is known of a data set, with the seeds that were trained."""

    seeds: tuple[int, ...] = ()


def describe_datasets(
    record: AuditRecord, results: Sequence[CellResult]
) -> dict[str, DatasetFacts]:
    """What is known of each data set that is audited."""
    out: dict[str, DatasetFacts] = {}
    for at, result, _ in record.locate(results, "audit"):
        of = out.get(at.dataset) or read_as(DatasetFacts, vars(result.facts))
        seeds = tuple(dict.fromkeys((*of.seeds, result.spec.seed)))
        out[at.dataset] = replace(of, seeds=seeds)
    return out


@dataclass(frozen=True, slots=True)
class PointCost(Training):
    """What one training cost with its attacks, means over seeds.

    Attributes:
        role: ``audit``, ``reference`` or ``control``.
        cells: how many were trained.
        seconds: of one.
        traffic: what was sent, by direction.
        unread: messages (kind, name) that no attack could read.
        undeclared: messages (kind, sender, receiver) that the algorithm does not name.
        encryption: seconds by operation on ciphertexts; empty where none was made.
        guarantees: of each defense what every cell keeps: the largest epsilon, and none where one
            cell claims none.
    """

    role: str = ""
    cells: int = 0
    seconds: float = 0.0
    traffic: tuple[LedgerRow, ...] = ()
    unread: tuple[tuple[str, ...], ...] = ()
    undeclared: tuple[tuple[str, ...], ...] = ()
    encryption: Mapping[str, float] = field(default_factory=dict)
    guarantees: tuple[Claim, ...] = ()


def collect_costs(record: AuditRecord, results: Sequence[CellResult]) -> list[PointCost]:
    """What each point cost: seconds and traffic by direction, means over its seeds."""
    by_point: dict[tuple[str, Training], list[CellResult]] = defaultdict(list)
    for training, result, role in record.locate(results, *ROLES):
        by_point[role, training].append(result)
    return [
        PointCost(
            **training.as_dict(), role=role, cells=len(of),
            seconds=sum(r.seconds for r in of) / len(of), traffic=_traffic(of),
            unread=tuple(sorted({(k, n) for r in of for k, n in r.facts.unread})),
            undeclared=tuple(sorted({x for r in of for x in r.facts.undeclared})),
            encryption=_encryption(of), guarantees=_weakest(of),
        )
        for (role, training), of in by_point.items()
    ]  # fmt: skip


def _weakest(of: Sequence[CellResult]) -> tuple[Claim, ...]:
    """What every cell of a point promises, defense by defense: counts differ by seed, so that it is
    the largest epsilon, and none where one cell claims none.
    """
    every = zip(*(r.guarantees for r in of), strict=True)
    return tuple(max(each, key=lambda c: (c.epsilon is None, c.epsilon or 0.0)) for each in every)


def _encryption(of: Sequence[CellResult]) -> dict[str, float]:
    """Seconds by operation that ciphertexts took, mean over cells; empty where none was made."""
    found: dict[str, float] = defaultdict(float)
    for result in of:
        for what, seconds in result.facts.encryption.items():
            found[what] += seconds / len(of)
    return dict(found)


def _traffic(of: Sequence[CellResult]) -> tuple[LedgerRow, ...]:
    total: dict[tuple[str, str, str, str, str], list[float]] = defaultdict(lambda: [0.0] * 4)
    for result in of:
        for row in result.ledger:
            sums = total[row.phase, row.kind, row.name, row.sender, row.receiver]
            for i, value in enumerate((row.messages, row.elements, row.bytes, row.rounds)):
                sums[i] += value / len(of)
    return tuple(LedgerRow(*key, *sums) for key, sums in total.items())
