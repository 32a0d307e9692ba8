"""Asks the trained system about records that were trained on and records that were not.

The one who asks has the records' columns and labels, and is not told which were in the training:
its View holds the answers and, if the attack trains references, theirs. Asking changes what
policies draw and count, so such an attack has a training of its own.

Where a column of the table says which rows are for training, the same rows are asked about on every
seed, and those that were not trained on may be of another kind. So the same attack also reads
systems that were not trained on the rows that it asks about: what it tells there is no membership.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from weakref import proxy

import torch
from torch import Tensor

from vflsec.core.rng import derive, generator
from vflsec.core.source import Given
from vflsec.core.task import Task
from vflsec.core.view import Known, References, Table, View
from vflsec.measure.attack import Answer
from vflsec.measure.controls import Control
from vflsec.measure.prepared import Prepared
from vflsec.specs import CellSpec, left_out
from vflsec.train.cohort import Moment, Training
from vflsec.train.loop import predict


def asked_rows(task: Task, seed: int, most: int) -> Tensor:
    """Sample ids of as many rows trained on as test rows, mixed (2 m,)."""
    g = generator(seed, "membership", "asked")
    sides = [task.sets[name] for name in ("labelled", "test")]
    m = min(most, *(len(s) for s in sides))
    rows = torch.cat([s[torch.randperm(len(s), generator=g)[:m]] for s in sides])
    return rows[torch.randperm(len(rows), generator=g)]


def reference_task(task: Task, rows: Tensor, seed: int) -> tuple[Task, Tensor]:
    """`task` with another random half of `rows` in the training, and which half (2 m,) bool."""
    g = generator(seed, "membership", "half")
    chosen = torch.zeros(len(rows), dtype=torch.bool)
    chosen[torch.randperm(len(rows), generator=g)[: len(rows) // 2]] = True
    was = torch.isin(rows, task.sets["labelled"])

    def moved(of: Tensor) -> Tensor:
        if not bool(torch.isin(rows[was], of).all()):
            return of
        kept = of[~torch.isin(of, rows)]
        return torch.cat([kept, rows[chosen]]).sort().values

    sets = {k: moved(v) for k, v in task.sets.items() if k not in ("test", "validation")}
    test = task.sets["test"]
    out = torch.cat([test[~torch.isin(test, rows)], rows[~chosen]]).sort().values
    changed = replace(
        task,
        sets={**task.sets, **sets, "test": out},
        active_labelled=moved(task.active_labelled),
    )
    return changed, chosen


def tasks_without(task: Task, rows: Tensor) -> tuple[list[Task], Tensor]:
    """`task` without a part of the `rows` that it trains on, for each of a few parts.

    Rows stand in a random order. Nothing is trained on in their place, and test rows stay what they
    are.

    Returns:
        the tasks, and which of them answers for each row (2 m,): one that leaves it out, and for
            test rows any.
    """
    inside = torch.isin(rows, task.sets["labelled"])
    trained = rows[inside]
    k = left_out(len(trained), len(task.sets["labelled"]))
    size = math.ceil(len(trained) / k)  # the same for every part, so the last ones may overlap
    asked = torch.arange(len(rows)) % k
    asked[inside] = (torch.arange(len(trained)) // size).clamp_max(k - 1)
    made = []
    for i in range(k):
        out = trained[min(i * size, len(trained) - size) :][:size]

        def without(of: Tensor, out: Tensor = out) -> Tensor:
            return of[~torch.isin(of, out)]

        sets = {name: of if name in ("test", "validation") else without(of)
                for name, of in task.sets.items()}  # fmt: skip
        made.append(replace(task, sets=sets, active_labelled=without(task.active_labelled)))
    return made, asked


class Asking:
    """Questions to the replicas of one training; make it before the training runs.

    Args:
        training: which is asked.
        of: the attack, of target ``membership``.
    """

    def __init__(self, training: Training, of: Prepared) -> None:
        self.training, self.of = training, of
        most = int(getattr(of.attack, "queries", 1000))
        self.every = getattr(of.attack, "signal", "") == "trajectory"
        self.rows = [
            asked_rows(training.task(r), seed, most) for r, seed in enumerate(training.seeds)
        ]
        self._heard = _Heard(training, torch.stack(self.rows), self.every)
        self._made: dict[str, References] = {}
        self._without: dict[str, Tensor] = {}

    def beside(self, answer: Answer, r: int) -> Answer:
        """An answer with what the attack makes of systems without the rows among its controls.

        Of tables that say themselves which rows are for training, where nothing else compares each
        row with itself.
        """
        cell = self.training.cells[r]
        if answer.guess is None or self.of.attack.trains or not cell.data.get("split"):
            return answer

        def controls() -> list[Control]:
            phase = answer.phase.partition("@")[0]
            blind = self._view(answer.view, self._answered(cell, r, phase), r)
            rng = generator(cell.seed, "membership", "left out")
            guess = self.of.attack.infer(blind, rng)
            return [*answer.controls(), Control("left out", guess, math.nan)]

        return replace(answer, controls=controls)

    def _answered(self, cell: CellSpec, r: int, phase: str) -> Tensor:
        """Answers (T, n, C) about each row of a system like replica `r` that leaves it out."""
        key = f"{cell.key} {phase}"
        if key not in self._without:
            made, asked = tasks_without(self.training.task(r), self.rows[r])
            heard = self._trained(cell, r, made, phase, "left out")  # (k, T, n, C)
            self._without[key] = heard[asked, :, torch.arange(len(asked))].transpose(0, 1)
        return self._without[key]

    def give(self, moment: Moment) -> Given:
        """What the one who asks has of each replica after a phase."""
        return Given(self._views(moment), moment.seeds, moment.phase)

    def _views(self, moment: Moment) -> list[View]:
        spec, phase = self.of.spec, moment.phase
        views = moment.views(spec)
        told = {w for v in views for w, kind, _, _ in v.tables if kind == "prediction"}
        if not (phase.predicts and "received" in told):
            return [replace(v, tables={}) for v in views]
        answers = self._heard.after(phase.name)
        return [
            replace(self._view(v, answers[r], r), references=self._references(r, phase.name))
            for r, v in enumerate(views)
        ]

    def _view(self, view: View, answers: Tensor, r: int) -> View:
        """Answers (T, n, C) about the records, and nothing that the party had in the training."""
        rows, training = self.rows[r], self.training
        t, n = answers.shape[:2]
        ids, when = rows.repeat(t), torch.arange(t).repeat_interleave(n)
        every = Table(answers.flatten(0, 1), ids, when, when)
        last = Table(answers[-1], rows, when[-n:], when[-n:])
        tables = {("received", "prediction", "last", view.party): last}
        if self.every:
            tables["received", "prediction", "all", view.party] = every
        y = training.stack.labels()[r].cpu()[rows]
        return replace(
            view,
            columns={}, present={}, models={}, encoders={}, updates={}, prior=None, aux=None,
            tables=tables, targets={"train": rows}, known=Known(rows, y), references=None,
        )  # fmt: skip

    def _references(self, r: int, phase: str) -> References | None:
        """Systems trained like replica `r`, each on another half; made once for equal cells."""
        k = self.of.attack.trains
        cell = self.training.cells[r]
        if not k:
            return None
        if cell.key not in self._made:
            self._made[cell.key] = self._train(cell, r, k, phase)
        return self._made[cell.key]

    def _train(self, cell: CellSpec, r: int, k: int, phase: str) -> References:
        task, rows = self.training.task(r), self.rows[r]
        seeds = [derive(cell.seed, "membership", i) % 2**31 for i in range(k)]
        made = [reference_task(task, rows, s) for s in seeds]
        heard = self._trained(cell, r, [t for t, _ in made], phase)
        return References(rows, heard, torch.stack([chosen for _, chosen in made]))

    def _trained(
        self, cell: CellSpec, r: int, made: Sequence[Task], phase: str, *names: str
    ) -> Tensor:
        """Answers (k, T, n, C) of systems trained like replica `r` on other tasks."""
        seeds = [derive(cell.seed, "membership", *names, i) % 2**31 for i in range(len(made))]
        cells = [replace(cell, seed=s) for s in seeds]
        twin = Training(cells, (), dict(zip(seeds, made, strict=True)), self.training.device)
        heard = _Heard(twin, self.rows[r].expand(len(twin.cells), -1), self.every)
        for moment in twin.run(predictions=False):
            if moment.phase.name == phase:
                break
        return heard.after(phase)[: len(made)]


class _Heard:
    """What each replica answers about its rows (R, n): at the end, or after every epoch."""

    def __init__(self, training: Training, rows: Tensor, every: bool) -> None:
        self.training: Training = proxy(training)  # which holds what it tells
        self.rows, self.every = rows, every
        self.heard: dict[str, list[Tensor]] = {}
        if every:
            training.watchers.append(self._epoch)

    def _epoch(self, phase: str) -> None:
        """After an epoch; a replica that has stopped answers as it did when it stopped."""
        now, before = self._ask(), self.heard.setdefault(phase, [])
        alive = self.training.fed.channel.alive_mask
        if alive is not None and before:
            now = torch.where(alive.cpu().reshape(-1, 1, 1), now, before[-1])
        before.append(now)

    def after(self, phase: str) -> Tensor:
        """Log shares (R, T, n, C)."""
        return torch.stack([*self.heard.get(phase, []), self._ask()], dim=1)

    @torch.no_grad()
    def _ask(self) -> Tensor:
        t = self.training
        logits = t.fed.decode(predict(t.algorithm, t.fed, self.rows.to(t.device)))
        return torch.log_softmax(logits.double(), dim=-1).cpu()
