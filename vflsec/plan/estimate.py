"""About how much a plan will cost, before it is run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vflsec.audit.leakage import defense_point
from vflsec.core.message_kinds import KINDS
from vflsec.core.needs import as_needs
from vflsec.core.phase import expect_epochs
from vflsec.plan.cells import list_claimants
from vflsec.plan.observe import System
from vflsec.plan.values import Encryption, Group, Price, Work, split_chunks
from vflsec.plugins import registry
from vflsec.specs import AttackSpec, left_out


@dataclass(frozen=True)
class Tried:
    """What the first steps of a cohort showed.

    Attributes:
        passes: steps of each pass that are expected, and the processor seconds of one of two
            replicas.
        looks: phases after which it is attacked.
    """

    passes: Sequence[tuple[float, float]]
    looks: int = 1


Timed = dict[str, Tried]
"""By cohort."""

_STEPS_PER_SECOND = 1500.0  # small models on one CPU thread, measured: 700 to 9000
_STEPS_OF_ATTACK = 75
_KEPT_TIMES = 3
"""Numbers of a cut that are kept a row: its embedding at both ends, and the gradient."""
_KEPT_SHARE = 0.82  # that compression leaves of them, measured
_KEPT_BESIDE = 100_000  # bytes of models and own columns of a small table, measured


def compute_weight(group: Group | Work) -> float:
    """About how much work costs beside other work, in optimiser steps: one for all machines."""
    attacks = sum(1 + len(a.dosing) for a in group.attacks)
    return len(group.cells) * (_count_steps(group) + _STEPS_OF_ATTACK * attacks + 1)


def read_settings(group: Group | Work) -> Mapping[str, Any]:
    """The settings of a group's algorithm, defaults included."""
    cls = registry.algorithms.get(group.cells[0].algorithm)
    given = {k: p.default for k, p in registry.list_parameters(cls).items()}
    return given | dict(group.cells[0].params)


def _count_trained(group: Group | Work) -> float:
    """Epochs of all phases, as far as they are trained: those of `epochs` stop by `patience`."""
    given = read_settings(group)
    every = [v for k, v in given.items() if k.endswith("epochs") and isinstance(v, int | float)]
    epochs = given.get("epochs") or 0
    stopped = expect_epochs(epochs, int(given.get("patience") or 0), _count_batches(group))
    return sum(every) - epochs + stopped


def _count_batches(group: Group | Work) -> int:
    """Batches of an epoch; 0 where the algorithm has none."""
    batch = read_settings(group).get("batch_size")
    if not isinstance(batch, int) or batch < 1:
        return 0
    return math.ceil(_count_labelled(group) / batch)


def _count_steps(group: Group | Work) -> int:
    """Optimiser steps of one cell, as far as it is trained."""
    return int(_count_trained(group) * _count_batches(group))


def _count_trained_beside(spec: AttackSpec, group: Group) -> int:
    """Trainings that an attack takes for each one that it attacks, its controls' among them."""
    attack = registry.attacks.create(spec.name, spec.params)
    spare, trained = group.data.spare, group.data.labelled
    if attack.target != "membership" or spare is None:
        return attack.trains
    rest = group.data.rows - trained - spare
    asked = min(trained, rest, int(getattr(attack, "queries", rest)))
    return attack.trains + left_out(asked, spare)


def _count_labelled(group: Group | Work) -> float:
    """Labelled rows of the training."""
    labelled = group.data.section.get("labelled", 0.7)
    assert isinstance(labelled, int | float)
    rows = labelled if isinstance(labelled, int) else labelled * group.data.rows
    return float(min(rows, group.data.rows))


@dataclass(frozen=True)
class Machine:
    """What estimates need to know of a machine.

    Attributes:
        slowness: seconds that work takes here where it takes one on the machine of the constants.
        call: seconds of a step that do not grow with its replicas.
        start: of a command, with its reports; the plan comes on top.
        attack, per_row: of scoring one answer, and more for each row.
        controls, control_row: of one seed's controls for two classes, and more for each row.
        cell_row: of preparing and predicting a row for one training.
    """

    slowness: float = 1.0
    call: float = 1.5e-3
    start: float = 10.0
    attack: float = 0.02
    per_row: float = 3e-6
    controls: float = 0.7
    control_row: float = 1e-5
    cell_row: float = 2e-6

    def step(self, two: float, replicas: int) -> float:
        """Seconds of a step of so many replicas, from that of two."""
        fixed = min(self.call * self.slowness, 0.8 * two)
        return fixed + (two - fixed) * replicas / 2


def _compute_training(group: Group, timed: Timed, machine: Machine) -> float:
    """Seconds of all trainings of a group: by its own steps, or by those of the same algorithm."""
    mine = timed.get(group.cells[0].cohort)
    if mine is None:
        return _count_steps(group) * len(group.cells) * machine.slowness / _STEPS_PER_SECOND
    parts = [len(part) for part in split_chunks(group.cells, 32)]
    return sum(n * machine.step(two, part) for part in parts for n, two in mine.passes)


def _compute_attacking(
    groups: Sequence[Group], timed: Timed, machine: Machine
) -> tuple[float, float]:
    """Seconds of all answers with their scores, and of the same attacks on untrained bottoms."""
    answers, untrained, known = 0.0, 0.0, set()
    for group in groups:
        tried = timed.get(group.cells[0].cohort)
        looks = tried.looks if tried else 1
        for spec in group.attacks:
            attack = registry.attacks.create(spec.name, spec.params)
            one = attack.seconds * math.sqrt(max(1, group.data.classes / 2))
            rows = min(group.data.rows, 2 * spec.sample or group.data.rows)
            one += machine.attack + machine.per_row * rows
            made = 2 if registry.attacks.entry(spec.name).package else 1  # again, as its control
            answers += len(group.cells) * looks * (1 + len(spec.dosing)) * one * made
            if any(n.what == "model" for n in as_needs(attack.needs)):
                for cell in group.cells:
                    again = (group.data.name, group.title, cell.seed, spec.key)
                    untrained += one * (again not in known)
                    known.add(again)
    return machine.slowness * answers, machine.slowness * untrained


def _fill_from_like(groups: Sequence[Group], timed: Timed) -> Timed:
    """Times of cohorts that were not tried out, from the same algorithm with other defenses."""
    out = dict(timed)
    by_title: dict[tuple[str, str], Tried] = {}
    for g in groups:
        found = timed.get(g.cells[0].cohort)
        if found is not None:
            by_title.setdefault((g.data.name, g.title), found)
    for g in groups:
        same = by_title.get((g.data.name, g.title))
        if same is not None:
            out.setdefault(g.cells[0].cohort, same)
    return out


@dataclass(frozen=True)
class _Cost:
    """What the trainings of one group cost.

    Attributes:
        steps: optimiser steps, of all that is trained beside it too.
        kept: bytes that ``--keep-views`` would keep.
        sealed: seconds of encryption.
        sent: bytes of ciphertexts.
        encryption: what each defense costs.
    """

    steps: int = 0
    kept: float = 0.0
    sealed: float = 0.0
    sent: int = 0
    encryption: tuple[Encryption, ...] = ()


def _compute_cost(group: Group) -> _Cost:
    given, steps = read_settings(group), _count_steps(group) * len(group.cells)
    if not steps:
        return _Cost()
    batch = given["batch_size"]
    batches = math.ceil(_count_labelled(group) / batch)
    sealed, sent, entries = 0.0, 0, []
    for d in group.cells[0].defenses:
        found = registry.defenses.create(d.name, d.params).step_cost(
            batch, group.data.classes, given
        )
        parties = 1 if d.party in group.data.passive else len(group.data.passive)
        sealed += found.spent * steps * parties
        sent += found.bytes * steps * parties
        if found.bytes:
            entries.append(
                Encryption(
                    group.data.name, group.title, defense_point([d])[0], found.computed,
                    found.seconds, found.bytes, batches * parties, steps * parties,
                )
            )  # fmt: skip
    return _Cost(
        steps * _count_trainings(group), _compute_kept(group, given), sealed, sent, tuple(entries)
    )


def _count_trainings(group: Group) -> int:
    """How often each cell is trained: for attacks, and once more to test what claims say."""
    tested = group.role == "audit" and group.main and not group.cells[0].untested
    own = sum(_count_trained_beside(a, group) for a in group.attacks)
    return own + (2 if tested and list_claimants(group.cells[0].defenses) else 1)


def _compute_kept(group: Group, given: Mapping[str, Any]) -> float:
    """Bytes of Views that ``--keep-views`` would keep of a group."""
    if group.role == "reference" or not group.main:
        return 0.0
    width = given.get("cut") or 0
    size = 8 if group.cells[0].dtype == "float64" else 4
    numbers = _count_trained(group) * _count_labelled(group) * width * len(group.data.passive)
    one = _KEPT_TIMES * _KEPT_SHARE * size * numbers + _KEPT_BESIDE
    return one * len(group.cells)


def _compute_controls(groups: Sequence[Group], machine: Machine) -> float:
    """Seconds of all controls: one set for each seed, adversary and grant of a data set."""
    budgets = {
        (g.data.name, cell.seed, a.adversary, a.known_rows, a.of_label)
        for g in groups
        for cell in g.cells
        for a in g.attacks
        if a.known_rows
    }
    rows = {g.data.name: g.data.rows for g in groups}
    fits = {g.data.name: max(1, g.data.classes / 2) for g in groups}
    return machine.slowness * sum(
        machine.controls * fits[name] + machine.control_row * rows[name] for name, *_ in budgets
    )


def estimate(
    groups: Sequence[Group],
    timed: Timed | None = None,
    machine: Machine | None = None,
    planned: float = 0.0,
) -> Price:
    """A rough estimate: seconds of one CPU thread.

    Trainings that were tried out cost their steps, as they were timed; others go at a typical
    speed. Attacks and controls cost what they did on the machine of the constants. An audit plans
    too, which reads the tables and takes the first steps of its trainings.

    Args:
        groups: of a plan.
        timed: steps of its cohorts.
        machine: this one.
        planned: seconds that making the plan took.
    """
    on = machine or Machine()
    known = _fill_from_like(groups, timed or {})
    costs = [_compute_cost(group) for group in groups]
    keeps = not any(group.data.label.floating for group in groups)
    sealed = sum((c.sealed for c in costs), 0.0)
    scored, untrained = _compute_attacking(groups, known, on)
    made = untrained + _compute_controls(groups, on)
    prepared = on.slowness * on.cell_row * sum(g.data.rows * len(g.cells) for g in groups)
    begun = on.start * on.slowness + planned
    trained = sum(_compute_training(g, known, on) for g in groups)
    return Price(
        trainings=sum(len(g.cells) for g in groups),
        steps=sum(c.steps for c in costs),
        attacks=sum(len(g.cells) * len(g.attacks) for g in groups),
        seconds=round(begun + trained + scored + prepared + sealed + made, 1),
        training_seconds=round(trained, 1),
        control_seconds=round(made, 1),
        encryption_seconds=round(sealed, 1),
        ciphertext_bytes=sum(c.sent for c in costs),
        encryption=tuple(entry for c in costs for entry in c.encryption),
        views_bytes=int(sum(c.kept for c in costs)) if keeps else 0,
        memory_bytes=_compute_memory(groups),
    )


_BASE = 450_000_000  # bytes of an audit of tiny tables: the libraries
_COLUMNS = 60
"""Numbers of a row that are held at once in tables, designs and answers of attacks; assumed."""
_HELD = 25
"""Numbers of a row that a training holds by itself: labels, columns, orders, predictions."""
_ANSWERS = 20
"""Answers on all columns of a party that are held at once: an attack's fits, and its baselines;
measured."""


def _compute_memory(groups: Sequence[Group]) -> int:
    """Bytes: the libraries, the tables and answers, and what the largest cohort holds.

    Tables of each seed are held twice, in float32, by the columns of the party that has most.
    """
    largest = 0.0
    for g in groups:
        size, stacked = 8 if g.cells[0].dtype == "float64" else 4, min(32, len(g.cells))
        seeds = len({cell.seed for cell in g.cells[:32]})
        needed: float = g.data.rows * 8 * (_COLUMNS + seeds * g.data.width)
        needed += size * stacked * (g.data.rows * _HELD + _count_recorded(g))
        asked = [
            min(_count_labelled(g), a.sample or math.inf)
            for a in g.attacks
            if registry.attacks.create(a.name, a.params).target == "feature"
        ]  # fmt: skip
        needed += 8 * max(asked, default=0) * g.data.width * (_ANSWERS + stacked)
        largest = max(largest, needed)
    return int(_BASE + largest)


def _count_recorded(group: Group) -> float:
    """Numbers that are recorded for attacks in each training, and given to them once more.

    Of a message the payload, and how often and when it came; of every message of every epoch also
    whose it is. Where one of a row is kept, there is room for all rows that an attack sees.
    Messages about no row are few beside these.
    """
    system = System(group.data, group.cells[0])
    passed = group.data.labelled or group.data.rows
    times = _count_trained(group) or getattr(system.algorithm, "rounds", 0)
    cut = (read_settings(group).get("cut") or 8) * max(1, len(group.data.passive))
    kept: dict[tuple[tuple[str, ...], str], float] = {}
    for spec in group.attacks:
        attack = registry.attacks.create(spec.name, spec.params)
        some = spec.sample if attack.sees_sample(spec) else math.inf
        for need in as_needs(attack.looks_at):
            if not system.records(need, spec.adversary):
                continue
            kind = KINDS[need.kind]
            width = cut if kind.comes_again else 1
            if spec.over_time or need.is_every:
                numbers = 2 * min(some, passed) * times * (width + 6)
            else:
                room = min(some if kind.has_every_row else 2 * some, group.data.rows)
                numbers = (room + min(some, passed)) * (width + 3)
            key = spec.adversary, str(need)
            kept[key] = max(kept.get(key, 0.0), numbers)
    return sum(kept.values())
