"""Asks the trained system about records that were trained on and records that were not.

The one who asks has the records' columns and labels, and is not told which were in the training:
its View holds the answers and, if the attack trains references, theirs. Asking changes what
policies draw and count, so such an attack has a training of its own.

Where the data set says which rows are for training (`Task.fixed`), those that were not trained on
may be of another kind, so that chance is no baseline. There the same attack, with the references
that it has, also reads systems that were not trained on the rows that it asks about. What it tells
there is no membership, and all that it tells of the audited system beyond that is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from weakref import proxy

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vflsec.core.rng import derive, generator
from vflsec.core.source import Given
from vflsec.core.task import Task
from vflsec.core.view import Known, References, Table, View
from vflsec.measure.attack import Answer
from vflsec.measure.controls import Control
from vflsec.measure.prepared import Prepared
from vflsec.specs import LEFT_OUT, CellSpec, left_out
from vflsec.train.cohort import Moment, Training
from vflsec.train.loop import predict


def asked_rows(task: Task, seed: int, most: int) -> Tensor:
    """Sample ids of as many rows trained on as test rows, mixed (2 m,)."""
    g = generator(seed, "membership", "asked")
    sides = [task.sets[name] for name in ("labelled", "test")]
    m = min(most, *(len(s) for s in sides))
    rows = torch.cat([s[torch.randperm(len(s), generator=g)[:m]] for s in sides])
    return rows[torch.randperm(len(rows), generator=g)]


def exchange(task: Task, out: Tensor, into: Tensor, side: str, back: Tensor) -> Task:
    """`task` that trains on `into` instead of `out`; its row set `side` has `back` for `into`."""

    def moved(of: Tensor) -> Tensor:
        if not bool(torch.isin(task.sets["labelled"], of).all()):
            return of
        return torch.cat([of[~torch.isin(of, out)], into]).sort().values

    sets = {k: moved(v) for k, v in task.sets.items() if k not in ("test", "validation")}
    rest = task.sets[side]
    rest = torch.cat([rest[~torch.isin(rest, into)], back]).sort().values
    return replace(
        task,
        sets={**task.sets, **sets, side: rest},
        active_labelled=moved(task.active_labelled),
    )


def reference_task(task: Task, rows: Tensor, seed: int) -> tuple[Task, Tensor]:
    """`task` with another random half of `rows` in the training, and which half (2 m,) bool."""
    g = generator(seed, "membership", "half")
    chosen = torch.zeros(len(rows), dtype=torch.bool)
    chosen[torch.randperm(len(rows), generator=g)[: len(rows) // 2]] = True
    was = torch.isin(rows, task.sets["labelled"])
    out = rows[was & ~chosen]
    return exchange(task, out, rows[chosen & ~was], "test", out), chosen


def tasks_without(task: Task, rows: Tensor, seed: int) -> tuple[list[Task], Tensor]:
    """`task` without a part of the `rows` that it trains on, for each of a few parts.

    Validation rows of the same classes are trained on instead, where seeds draw these: then each is
    the task as another seed deals it out, with as many rows, and a system that keeps nothing of
    single rows answers alike. Where there are too few, nothing is trained on instead.

    Returns:
        the tasks, and which rows each leaves out (k, 2 m) bool.
    """
    g = generator(seed, "membership", "spare")
    spare = task.sets["validation"]
    spare = spare[torch.randperm(len(spare), generator=g)]
    spare = spare[:0] if "validation" in task.fixed else spare
    trained = rows[torch.isin(rows, task.sets["labelled"])]
    k = left_out(len(trained), len(spare))
    made, gone = [], []
    for i in range(k):
        out, into, back = [], [], []
        for c in task.y[trained].unique():
            mine = trained[task.y[trained] == c]
            size = math.ceil(len(mine) / k)  # the same for every part, so the last may overlap
            out.append(mine[min(i * size, len(mine) - size) :][:size])
            into.append(spare[task.y[spare] == c][:size])
            back.append(out[-1][: len(into[-1])])
        left, *swapped = (torch.cat(of) for of in (out, into, back))
        made.append(exchange(task, left, swapped[0], "validation", swapped[1]))
        gone.append(torch.isin(rows, left))
    return made, torch.stack(gone)


def compare_within(scores: NDArray[np.float64], gone: NDArray[np.bool_], test: NDArray[np.bool_]
                   ) -> NDArray[np.float64]:  # fmt: skip
    """One score (n,) for each row, by which rows of one system are compared among themselves alone.

    A row that was left out is put where it stands among the test rows, in the answers of the system
    that leaves it out (the mean, if several do). So its figures are means of those of all systems.
    Scores of two systems compared with each other would blur what rows differ by.

    Args:
        scores: (k, n) by the answers of each system.
        gone: (k, n) which rows each leaves out.
        test: (n,) which are test rows.
    """
    if not np.isfinite(scores).all():
        return np.full(scores.shape[1], np.nan)
    ranks = []
    for of in scores:
        known = np.sort(of[test])
        below, upto = (np.searchsorted(known, of, side) for side in ("left", "right"))
        ranks.append((below + upto) / 2)
    place = np.average(ranks, axis=0, weights=np.where(test, 1, gone))
    place[np.flatnonzero(test)[np.argsort(place[test])]] = np.arange(test.sum()) + 0.5
    return place


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
        self._without: dict[str, tuple[Tensor, Tensor]] = {}

    def beside(self, answer: Answer, r: int) -> Answer:
        """An answer beside what the attack makes of systems without the rows, and nothing else.

        Of data that say themselves which rows are tested on: what tells these apart without any
        membership is the baseline, and guessing is none.
        """
        if answer.guess is None or not self.training.task(r).fixed:
            return answer
        view, (phase, _, epoch) = answer.view, answer.phase.partition("@")

        def controls() -> list[Control]:
            heard, gone = self._answered(r, phase)
            blind = [replace(self._view(view, a, r), references=view.references) for a in heard]
            blind = [v.until(int(epoch)) for v in blind] if epoch else blind
            rng = generator(self.training.cells[r].seed, "membership", LEFT_OUT)
            guesses = [self.of.attack.infer(v, rng) for v in blind]
            test = torch.isin(self.rows[r], self.training.task(r).sets["test"])
            scores = np.stack([g.scores for g in guesses])
            scores = compare_within(scores, gone.numpy(), test.numpy())
            return [Control(LEFT_OUT, replace(guesses[0], scores=scores), math.nan, alone=True)]

        return replace(answer, controls=controls)

    def _answered(self, r: int, phase: str) -> tuple[Tensor, Tensor]:
        """Answers (k, T, n, C) of systems like replica `r` that each leave out a part of the rows,
        and which (k, n).
        """
        cell = self.training.cells[r]
        key = f"{cell.key} {phase}"
        if key not in self._without:
            made, gone = tasks_without(self.training.task(r), self.rows[r], cell.seed)
            self._without[key] = self._trained(cell, r, made, phase, LEFT_OUT), gone
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
