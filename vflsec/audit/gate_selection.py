"""Which points of an audit a gate asks about: one rule for plans, verdicts and reports."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from vflsec.audit import defense_label
from vflsec.audit.gate import EPSILON, TASK, Gate
from vflsec.audit.metrics import METRICS, find_reach
from vflsec.audit.point import IDENTITY, UNDEFENDED, Identity, Point, Training
from vflsec.audit.result_row import ResultRow
from vflsec.audit.rounding import show_exact
from vflsec.core import check
from vflsec.runtime.grouping import group_by


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
    asked = [p for p in points if p.status == "ok" and _here(p, gate) and _attacked(p, gate)]
    judged = {p.answer for p in asked if is_weighed(p, gate)}
    left = group_by((p for p in asked if p.answer not in judged), lambda p: p.training)
    return {
        training: list(dict.fromkeys(f"{p.attack} ({p.primary})" for p in of))
        for training, of in left.items()
    }


_OF_TRAININGS = ("dataset", "algorithm", "defense")
_OF_ATTACKS = ("attack", "adversary", "phase", "split", "target")


class Problem(StrEnum):
    """Why no result answers a gate."""

    NO_ATTACK = "no_attack"
    UNKNOWN_NAME = "unknown_name"
    UNKNOWN_STRENGTH = "unknown_strength"
    NO_SUCH_POINT = "no_such_point"
    NO_CLAIM = "no_claim"
    NO_DEFENSE = "no_defense"
    NO_UNDEFENDED_RUN = "no_undefended_run"
    METRIC_NOT_MEASURED = "metric_not_measured"
    LIMIT_OUT_OF_REACH = "limit_out_of_reach"


@dataclass(frozen=True)
class Unanswerable:
    """What is wrong with a gate.

    Attributes:
        code: of the problem.
        key: of the gate; '' where it is no single one.
        value: that it has.
        rule: that it breaks, for people.
    """

    code: Problem
    key: str
    value: str | float | None
    rule: str


def list_measured(results: Iterable[ResultRow]) -> list[Planned]:
    """What was measured, by which a gate is checked; without positive controls.

    Args:
        results: one row for each measure.
    """
    return [
        Planned(**{k: getattr(r, k) for k in IDENTITY}, primary=r.primary,
                metrics=(r.metric,) if r.metric else ())
        for r in results if r.role != "control"
    ]  # fmt: skip


def list_unanswerable(gate: Gate, rows: Sequence[Planned]) -> list[Unanswerable]:
    """What keeps every result from answering the gate.

    Args:
        gate: what is asked.
        rows: what is, or will be, measured; phase and split are "" where any is possible.
    """
    there = [r for r in rows if r.attack] if _is_about_attacks(gate) else list(rows)
    return next(filter(None, (list(find(gate, there)) for find in _CHECKS)), [])


def _is_about_attacks(gate: Gate) -> bool:
    return gate.metric not in (*TASK, EPSILON)


def _find_no_attack(gate: Gate, there: Sequence[Planned]) -> Iterator[Unanswerable]:
    if not there and _is_about_attacks(gate):
        rule = "needs an attack. Take utility, or add an [[attack]]."
        yield Unanswerable(Problem.NO_ATTACK, "metric", gate.metric, rule)


def _find_unknown_names(gate: Gate, there: Sequence[Planned]) -> Iterator[Unanswerable]:
    for key in (*_OF_TRAININGS, *_OF_ATTACKS):
        named = [r for r in there if r.attack] if key in _OF_ATTACKS else there
        wanted, asked = getattr(gate, key), _only(gate, key)
        if wanted != "*" and not any(is_selected(r, asked) for r in named):
            rule = check.must_be_of(_names(key, named), wanted)
            yield Unanswerable(Problem.UNKNOWN_NAME, key, wanted, rule)


def _find_unknown_strength(gate: Gate, there: Sequence[Planned]) -> Iterator[Unanswerable]:
    asked = _only(gate, "defense")
    grid = sorted({r.strength for r in there if r.strength is not None and is_selected(r, asked)})
    if gate.strength is not None and gate.strength not in grid:
        rule = check.must_be_of(map(show_exact, grid), gate.strength)
        yield Unanswerable(Problem.UNKNOWN_STRENGTH, "strength", gate.strength, rule)


def _find_no_such_point(gate: Gate, there: Sequence[Planned]) -> Iterator[Unanswerable]:
    if not _asked_about(gate, there):
        keys = [k for k in (*_OF_TRAININGS, *_OF_ATTACKS) if getattr(gate, k) != "*"]
        keys += ["strength"] if gate.strength is not None else []
        said = ", ".join(f"{k} = {getattr(gate, k)!r}" for k in keys)
        rule = f"asks for {said}, which no point has together."
        yield Unanswerable(Problem.NO_SUCH_POINT, "", None, rule)


def _find_no_claim(gate: Gate, there: Sequence[Planned]) -> Iterator[Unanswerable]:
    """An epsilon that is not tested."""
    if gate.metric == EPSILON and not any(r.claims for r in _asked_about(gate, there)):
        rule = "needs a defense that claims an epsilon, and [audit] canaries = true."
        yield Unanswerable(Problem.NO_CLAIM, "metric", gate.metric, rule)


def _find_no_loss(gate: Gate, there: Sequence[Planned]) -> Iterator[Unanswerable]:
    """A loss of utility without an undefended run or a defended one."""
    if gate.metric != "utility_drop":
        return
    asked = _asked_about(gate, there)
    defended = {r.system for r in asked if not r.is_undefended}
    if asked and not defended:
        rule = "needs a defense. Add one, or gate the utility."
        yield Unanswerable(Problem.NO_DEFENSE, "metric", gate.metric, rule)
    elif not defended & {r.system for r in there if r.is_undefended}:
        rule = "needs an undefended run. Add strength 0 to the grid."
        yield Unanswerable(Problem.NO_UNDEFENDED_RUN, "metric", gate.metric, rule)


def _find_unmeasured(gate: Gate, there: Sequence[Planned]) -> Iterator[Unanswerable]:
    """A metric that does not fit what is guessed, such as R^2 of classes."""
    asked, rows = gate.of or gate.metric, _asked_about(gate, there)
    if not _is_about_attacks(gate) or asked not in METRICS or METRICS[asked].measure is None:
        return
    names = dict.fromkeys(name for r in rows for name in r.metrics or ())
    if names and asked not in names and all(r.metrics is not None for r in rows):
        key, rule = "of" if gate.of else "metric", check.must_be_of(names, asked)
        yield Unanswerable(Problem.METRIC_NOT_MEASURED, key, asked, rule)


def _find_out_of_reach(gate: Gate, there: Sequence[Planned]) -> Iterator[Unanswerable]:
    """A limit that no primary metric's advantage can exceed, which a gate alone cannot know."""
    if not gate.limits_leaks or gate.of:
        return
    primaries = [r.primary for r in _asked_about(gate, there)]
    ends = {primary: find_reach("advantage", primary)[1] for primary in primaries}
    most = max(ends.values())
    if gate.threshold >= most:
        rule = (f"must be below {most:g}, the most that {' or '.join(ends)} can reach, got "
                f"{show_exact(gate.threshold)}.")  # fmt: skip
        yield Unanswerable(Problem.LIMIT_OUT_OF_REACH, "max", gate.threshold, rule)


_CHECKS: tuple[Callable[[Gate, Sequence[Planned]], Iterator[Unanswerable]], ...] = (
    _find_no_attack, _find_unknown_names, _find_unknown_strength, _find_no_such_point,
    _find_no_claim, _find_no_loss, _find_unmeasured, _find_out_of_reach,
)  # fmt: skip
"""In order: the first that finds something is what is said."""


def _asked_about(gate: Gate, there: Sequence[Planned]) -> list[Planned]:
    return [r for r in there if is_selected(r, gate)]


def _only(gate: Gate, key: str) -> Gate:
    """The gate with one of its conditions, on whatever may be measured."""
    metric = "advantage" if key in _OF_ATTACKS else "utility"
    return Gate(metric=metric, max=0.0, **{key: getattr(gate, key)})


def _names(key: str, rows: Iterable[Planned]) -> list[str]:
    found = list(dict.fromkeys(str(name) for r in rows if (name := getattr(r, key))))
    if key == "defense" and any(r.is_undefended for r in rows) and UNDEFENDED not in found:
        found.append(UNDEFENDED)
    return found
