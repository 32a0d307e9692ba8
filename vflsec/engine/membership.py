"""Asks the trained system about records that were trained on and records that were not.

The one who asks has the records' columns and labels, and is not told which were in the training:
its View holds the answers and, if the attack trains references, theirs. Asking changes what
policies draw and count, so such an attack has a training of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import torch
from torch import Tensor

from vflsec.cell import CellSpec
from vflsec.measure.attack import Prepared
from vflsec.references import References
from vflsec.rng import derive, generator
from vflsec.task import Task
from vflsec.train.cohort import Moment, Training
from vflsec.train.loop import predict
from vflsec.view import Known, Table, View

__all__ = ["Asking", "asked_rows", "reference_task"]


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

    def views(self, moment: Moment) -> list[View]:
        """What the one who asks has of each replica after a phase."""
        spec, phase = self.of.spec, moment.phase
        views = moment.views(spec)
        told = {w for v in views for w, kind, _, _ in v.tables if kind == "prediction"}
        if not (phase.predicts and "received" in told):
            return [replace(v, tables=MappingProxyType({})) for v in views]
        answers = self._heard.after(phase.name)
        return [self._view(v, answers[r], r, phase.name) for r, v in enumerate(views)]

    def _view(self, view: View, answers: Tensor, r: int, phase: str) -> View:
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
            columns=MappingProxyType({}), present=MappingProxyType({}), models=MappingProxyType({}),
            encoders=MappingProxyType({}), updates=MappingProxyType({}), prior=None, aux=None,
            tables=MappingProxyType(tables), targets=MappingProxyType({"train": rows}),
            known=Known(rows, y), references=self._references(r, phase),
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
        made = {s: reference_task(task, rows, s) for s in seeds}
        tasks: Mapping[int, Task] = {s: t for s, (t, _) in made.items()}
        twin = Training([replace(cell, seed=s) for s in seeds], (), tasks, self.training.device)
        heard = _Heard(twin, rows.expand(k, -1), self.every)
        for moment in twin.run(predictions=False):
            if moment.phase.name == phase:
                break
        trained = torch.stack([chosen for _, chosen in made.values()])
        return References(rows, heard.after(phase), trained)


class _Heard:
    """What each replica answers about its rows (R, n): at the end, or after every epoch."""

    def __init__(self, training: Training, rows: Tensor, every: bool) -> None:
        self.training, self.rows, self.every = training, rows, every
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
