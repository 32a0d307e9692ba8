"""Which points of an audit a gate asks about: one rule for plans, verdicts and reports."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from vflsec.audit import defense_label
from vflsec.audit.gate import EPSILON, TASK, Gate
from vflsec.audit.point import UNDEFENDED, Identity, Point, Training


@dataclass(frozen=True, slots=True)
class Planned(Identity):
    """What is, or will be, measured, as far as a gate can tell it apart; its figure is open.

    Attributes:
        primary: the metric that verdicts rest on, where it is known.
        metrics: by what it is measured; None where that is not known.
        claims: whether an epsilon may be claimed and tested there.
    """

    primary: str = ""
    metrics: tuple[str, ...] | None = None
    claims: bool = True


def strip_label(label: str) -> str:
    """The registered name in the label of an attack.

    All after the first bracket are parameters, be it of a column that is called ``a) + b``.
    """
    return label.partition("(")[0]


def is_named(label: str, wanted: str) -> bool:
    """Whether the label of an attack is wanted, by itself or by the bare name."""
    return wanted in ("*", label, strip_label(label))


def is_stack_named(label: str, wanted: str) -> bool:
    """Whether the label of a stack is wanted: by itself, by its bare names ``iso + noise``, or by
    the bare name of one of it whose strength the label does not fix, as of the swept one.
    """
    return wanted in (
        "*",
        label,
        defense_label.list_names(label),
        *defense_label.list_unfixed(label),
    )


def is_selected(row: Point | Planned, gate: Gate) -> bool:
    """Whether a gate asks about a point.

    One that is not ``ok`` needs no figure of the gate's metric; one that is only planned, or that
    failed, may name neither phase nor split.
    """
    return _here(row, gate) and is_weighed(row, gate)


def is_weighed(row: Point | Planned, gate: Gate) -> bool:
    """Whether a gate that judges the training of a point asks about that point."""
    if isinstance(row, Planned):
        return gate.metric in (*TASK, EPSILON) or _attacked(row, gate)
    if gate.metric == EPSILON:
        return row.metric == gate.metric
    if gate.metric in TASK:
        return not row.attack and row.metric == row.utility_metric
    if not _attacked(row, gate):
        return False
    wanted = gate.metric if gate.metric != "advantage" else gate.of or row.primary
    return row.status != "ok" or row.metric == wanted


def _here(row: Training, gate: Gate) -> bool:
    """Whether a gate asks about a training."""
    if gate.defense in ("defended", UNDEFENDED):
        if row.is_undefended != (gate.defense == UNDEFENDED):
            return False
    elif not is_stack_named(row.defense, gate.defense):
        return False
    if gate.strength not in (None, row.strength):
        return False
    return gate.dataset in ("*", row.dataset) and gate.algorithm in ("*", row.algorithm)


def _attacked(row: Point | Planned, gate: Gate) -> bool:
    """Whether a gate on attacks asks about the attack of a point, by whatever it is scored."""
    if not row.attack or not is_named(row.attack, gate.attack):
        return False
    unsplit = isinstance(row, Planned) or row.status == "error"
    return all(
        wanted in ("*", here) or (unsplit and not here)
        for wanted, here in (
            (gate.adversary, row.adversary), (gate.phase, row.phase), (gate.split, row.split),
            (gate.target, row.target),
        )
    )  # fmt: skip


def left_out(points: Iterable[Point], gate: Gate) -> dict[Training, list[str]]:
    """Attacks that a gate on one metric would ask about and that are not scored by it.

    Args:
        points: of :func:`vflsec.audit.leakage.summarise`.
        gate: of one that names what is attacked (`attack`, `target`) nothing is left out unsaid.

    Returns:
        by training their labels with what they are scored by.
    """
    if gate.metric in (*TASK, EPSILON) or (gate.attack, gate.target) != ("*", "*"):
        return {}
    asked: dict[Identity, str] = {}
    judged = set()
    for p in points:
        if p.status == "ok" and _here(p, gate) and _attacked(p, gate):
            asked.setdefault(p.answer, p.primary)
            if is_weighed(p, gate):
                judged.add(p.answer)
    out: dict[Training, dict[str, None]] = {}
    for at, primary in asked.items():
        if at not in judged:
            out.setdefault(at.training, {})[f"{at.attack} ({primary})"] = None
    return {training: list(names) for training, names in out.items()}
