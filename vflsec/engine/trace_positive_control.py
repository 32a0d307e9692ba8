"""The positive control of recorded traces: a leak that is planted over what they hold.

Nothing can be planted in a training that is over, but what an attack reads of it can be replaced.
Labels are drawn anew for all rows but the known ones, with one class rare. Every gradient that came
and every own embedding carries the drawn label and nothing else, as a dose does
(:mod:`vflsec.audit.planted_leak`), and of one class an entry is exactly 0. Then the attack is made
again with the same grants. Found, it shows that the attack works on rows, batches and grants like
these; whether messages are those of the rows that the trace names, it cannot show. So it counts
only beside an attack on gradients by the same party that finds the leak of the recorded system
without a defense (:func:`find_shown`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from vflsec.audit.leakage import complete_rows, summarise
from vflsec.audit.planted_leak import plant_leak
from vflsec.audit.point import UNDEFENDED
from vflsec.audit.result_row import ResultRow
from vflsec.audit.validated import find_validated
from vflsec.core.attack import Attack
from vflsec.core.guess import Truth
from vflsec.core.quantity_questions import answer_question
from vflsec.core.rng import generator
from vflsec.core.view import Table, View, as_needs
from vflsec.label import make_label
from vflsec.measure.attack import Answer
from vflsec.measure.guess_files import Planted
from vflsec.measure.prepared import Prepared
from vflsec.trace.manifest import Manifest

NAME = "a leak planted over the recording"
"""What the control is called where a data set's name stands."""

MOST = 20_000_000
"""Rows times classes of a trace in which a leak is planted: as many numbers are held at a time."""


ROWS = 10_000
"""Rows to guess that are kept of a larger trace; known ones stay beside them."""


def is_possible(manifest: Manifest) -> bool:
    """Whether a leak is planted in a trace: of classes, in a run without a defense."""
    many = manifest.rows * (manifest.classes or 0)
    return manifest.run.defense in ("", UNDEFENDED) and 0 < many <= MOST


def choose_shares(classes: int) -> Tensor:
    """Class shares (C,) of the drawn labels: no two alike, of two classes the second one rare."""
    if classes == 2:
        return torch.tensor([0.85, 0.15], dtype=torch.float64)
    falling = torch.arange(classes, 0, -1, dtype=torch.float64)
    return falling / falling.sum()


def can_plant(attack: Attack) -> bool:
    """Whether a leak of labels can be planted in what an attack reads."""
    needs = as_needs(attack.looks_at)
    return attack.target == "label" and any(
        n.what == "model" or (n.kind == "gradient" and not n.sent) for n in needs
    )


def draw_labels(rows: int, classes: int, seed: int) -> Tensor:
    """The labels (N,) that are planted in a trace of so many rows, of a run of this seed.

    Of a quantity (1 class): values, normal.
    """
    rng = generator(seed, "planted")
    return make_label(classes).draw(rows, choose_shares(classes), rng)


def lay_leak(view: View, y: Tensor, seed: int) -> View:
    """A view with the leak planted; known rows keep the labels that are known of them.

    Args:
        view: of an attack that :func:`can_plant` what can be replaced.
        y: of :func:`draw_labels`.
        seed: of the recorded run.
    """
    view = _some(view, seed)
    label, known = view.facts.label, view.known
    prior = choose_shares(label.sides)
    question = view.facts.extra.get("question")
    if question is not None:
        y = answer_question(question, y, y)
        prior = torch.bincount(y, minlength=2).double() / len(y)
    if known is not None:
        y = y.clone()
        y[known.rows] = known.labels.to(y)
    told = replace(view, prior=None if view.prior is None else prior)
    every = Truth(label.target, torch.arange(len(y)), y)
    full = plant_leak(told, every, prior.tolist(), 1.0, generator(seed, "planted", "laid"))
    none = torch.zeros(len(y), dtype=torch.bool)
    rare = none if label.floating else y == label.sides - 1
    for key, table in full.tables.items():
        if key[:2] == ("received", "gradient"):
            _mark(table, rare)
    return full


def _some(view: View, seed: int) -> View:
    """The view of some of its rows to guess, and of the known ones, if there are many."""
    kept, rng = {}, generator(seed, "planted", "rows")
    for split in sorted(view.targets):
        rows = view.targets[split]
        kept[split] = rows[torch.randperm(len(rows), generator=rng)[:ROWS].sort().values]
    if all(len(kept[s]) == len(rows) for s, rows in view.targets.items()):
        return view
    here = torch.cat([*kept.values(), *([] if view.known is None else [view.known.rows])])
    tables = {
        key: table.take((table.rows < 0) | torch.isin(table.rows, here))
        for key, table in view.tables.items()
    }
    return replace(view, targets=kept, tables=tables)


def _mark(table: Table, rare: Tensor) -> None:
    """An entry of exactly 0 for rows (N,) of the rare class, in messages that were laid."""
    flat, named = table.tensor.flatten(1), table.rows >= 0
    if flat.shape[1] > 1:
        flat[named & rare[table.rows.clamp_min(0)], 0] = 0.0


def join_answers(made: Sequence[Answer], y: Tensor, target: str) -> Planted | None:
    """Answers of one trace with the labels that were planted in the rows that they guess.

    Args:
        made: the answers.
        y: (N,) the labels.
        target: what their truth is called (:class:`vflsec.core.guess.Truth`).
    """
    if not made:
        return None
    some = [r for a in made for r in a.view.targets.values()]
    rows = torch.cat(some).unique()
    return Planted(made, Truth(target, rows, y[rows]))


def find_shown(
    measured: Sequence[ResultRow], asked: Iterable[Prepared], confidence: float
) -> set[str]:
    """Adversaries of whom an attack on gradients alone finds the leak without a defense.

    So gradients are of the rows that the trace names, and the truth is. An attack that has own
    columns beside could find it by those. Of several systems (data sets, algorithms) it finds the
    leak of each: a positive control speaks of all.

    Args:
        measured: of what was really recorded.
        asked: every attack.
        confidence: of the audit.
    """
    needs = {p.spec.key: as_needs(p.attack.needs) for p in asked}
    alone = {
        key for key, of in needs.items()
        if any(n.kind == "gradient" and not n.sent for n in of)
        and not any(n.what == "model" for n in of)
    }  # fmt: skip
    rows = complete_rows(r for r in measured if r.attack_key in alone)
    if not rows:
        return set()
    shown = find_validated(summarise(rows, confidence), confidence=1 - (1 - confidence) / 2)
    works = [place for place, found in shown.items() if found.validated]
    found = {(p.adversary, (p.dataset, p.algorithm)) for p in works}
    systems = {(r.dataset, r.algorithm) for r in measured}
    return {who for who, _ in found if all((who, system) in found for system in systems)}
