"""Where a Guess meets the Truth: an attack's answer and those of its controls become measures."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from vflsec.audit import image_samples
from vflsec.audit.exposed import EXPOSED
from vflsec.audit.metrics import Score, list_default, score
from vflsec.audit.truth import (
    ONE_COLUMN,
    SCORED,
    Goal,
    choose_goal,
    label_truth,
    with_columns,
)
from vflsec.core.guess import Guess, Truth
from vflsec.core.task import Task
from vflsec.core.view import Table, View
from vflsec.measure.attack import Answer
from vflsec.measure.controls import Control
from vflsec.measure.prepared import Prepared
from vflsec.plugins.loading import attempt_call
from vflsec.runtime.out_of_memory import Passing, nothing
from vflsec.specs import BY_CLASS, NAMED, ORIENTED_BY, TIED, TURNED, Measure, list_victims

DIVERGED = "the training diverged: its numbers are not finite"
"""Why such a training has no figure of the main task, and passes no gate."""


def main_task(
    phase: str, predictions: Mapping[str, tuple[Tensor, Tensor]], tasks: Sequence[Task],
    diverged: Sequence[bool] = (),
) -> list[list[Measure]]:  # fmt: skip
    """Main-task figures of each replica after a phase.

    Args:
        phase: that has ended.
        predictions: by split: sample ids (R, n) and log shares (R, n, C), values (R, n, 1), or a
            logit for each of several labels (R, n, L).
        tasks: of each replica.
        diverged: by replica, whether its training did: it has errors instead of figures.
    """
    out: list[list[Measure]] = [[] for _ in tasks]
    for split, (rows, logits) in predictions.items():
        for r, (task, found) in enumerate(zip(tasks, out, strict=True)):
            truth, failed = label_truth(task), bool(diverged) and diverged[r]
            said = logits[r].new_zeros(logits[r].shape) if failed else logits[r]
            guess = Guess(truth.target, rows[r], said)
            prior = task.prior.numpy()
            usual = list_default(task.classes, truth.target, groups=False)
            names = [m for m in usual if m not in EXPOSED]
            scores = score(
                guess, truth, guess.rows, classes=task.classes, prior=prior, metrics=names
            )
            base = Measure(phase, split, "", None)
            if failed:
                scores = [replace(s, value=None, low=None, high=None) for s in scores]
                base = replace(base, status="error", reason=DIVERGED)
            else:
                base = replace(base, notes=_of_each_label(guess, task))
            found += [_measure(base, s) for s in scores]
    return out


def _measure(base: Measure, s: Score, **more: Any) -> Measure:
    """The measure of an answer that `base` describes, with its score."""
    return replace(
        base, metric=s.metric, value=s.value, low=s.low, high=s.high, n=s.n, chance=s.chance, **more
    )


def _of_each_label(guess: Guess, task: Task) -> dict[str, Any]:
    """The AUC of each of several labels, and which have one value only, so that a mean over labels
    leaves them out.
    """
    if not task.labels:
        return {}
    auc: dict[str, float | None] = {}
    for k, name in enumerate(task.labels):
        alone = task.of_label(name)
        one = Guess("label", guess.rows, guess.scores[:, k])
        (found,) = score(
            one, label_truth(alone), guess.rows, classes=2, prior=alone.prior.numpy(),
            metrics=["auc"],
        )  # fmt: skip
        auc[name] = found.value
    return {"auc": auc, "left_out": [name for name, value in auc.items() if value is None]}


def make_unscored(
    of: Prepared, phase: str, parties: Sequence[str], status: str, why: str
) -> Measure:
    """The row of an attack that has no figure after a phase.

    Args:
        of: the attack.
        phase: that has ended.
        parties: of the system, the active one first.
        status, why: why there is none.
    """
    spec, target = of.spec, of.attack.target
    whose = "+".join(list_victims(target, spec.adversary, parties, spec.victim))
    return Measure.missing(spec, status, why, phase=phase, target=str(target), victim=whose)


def score_answer(
    answer: Answer, task: Task, embeddings: Callable[[], Table] | None = None,
    passing: Passing = nothing,
) -> list[Measure]:  # fmt: skip
    """The measures of one answer: every metric on every split, or one that says why there is none.

    Args:
        answer: with the controls beside it.
        task: where the truth is; of several labels the one that was attacked counts.
        embeddings: gives what the victim sent, for attacks that recover it.
        passing: which errors are raised; an answer that cannot be scored has status ``error``.
    """
    found, why = attempt_call(
        lambda: list(_score(answer, task, embeddings)),
        f"scoring attack {answer.of.spec.label!r}", passing=passing,
    )  # fmt: skip
    why = why or "no figure came out."
    return found or [make_unscored(answer.of, answer.phase, task.parties, "error", why)]


def _score(answer: Answer, task: Task, embeddings: Callable[[], Table] | None) -> Iterator[Measure]:
    guess, target = answer.guess, answer.of.attack.target
    task = task.of_label(answer.of.spec.of_label)
    status, why = answer.status, answer.reason
    if guess is not None and target not in (*SCORED, "embedding"):
        status = "not-applicable"
        why = f"no truth about {target!r} is kept."
    base = make_unscored(answer.of, answer.phase, task.parties, status, why)
    if target in ONE_COLUMN:
        base = replace(base, victim=with_columns(base.victim.split("+"), task))
    if guess is None or why:
        yield base
    elif target == "embedding":
        assert embeddings is not None
        for one, beside, notes in score_embedding(embeddings(), answer.view, guess):
            yield _measure(base, one, split="train", controls=beside, notes=notes)
    else:
        yield from _by_split(answer, guess, task, base)


def _by_split(answer: Answer, guess: Guess, task: Task, base: Measure) -> Iterator[Measure]:
    goal = choose_goal(answer.of.attack, answer.of.spec, task, guess.rows)
    guess = orient(guess, goal.truth)
    yield from _compared(answer, guess, goal, task, base)
    place = guess.notes.get(NAMED)
    if goal.truth.target != "feature" or isinstance(place, bool) or not isinstance(place, int):
        return
    if 0 <= place < goal.truth.values.shape[1]:
        values = goal.truth.values[:, [place]]
        truth = replace(goal.truth, values=values, columns=np.array([place]))
        one = replace(goal, truth=truth, metrics=("r2_column",), column=place)
        yield from _compared(answer, guess, one, task, base)


def orient(guess: Guess, truth: Truth) -> Guess:
    """The guess as the one bit that was granted for it says, without what is said of that row."""
    at = np.flatnonzero(guess.rows == guess.notes.get(ORIENTED_BY, -1))
    label = truth.values[np.isin(truth.rows, guess.rows[at])]
    if guess.scores.ndim != 1 or not len(at) or not len(label):
        return guess
    sign = (2 * int(label[0]) - 1) * np.sign(guess.scores[at[0]])
    scores = guess.scores * sign
    scores[at] = 0.0
    return replace(guess, scores=scores)


def _compared(
    answer: Answer, guess: Guess, goal: Goal, task: Task, base: Measure
) -> Iterator[Measure]:
    """The measures of an answer beside its controls, of the part of each that is compared."""
    guess = goal.select(guess)
    targets = {s: answer.view.targets[s].cpu().numpy() for s in answer.of.attack.splits}
    targets = {s: rows for s, rows in targets.items() if len(rows)}
    controls = answer.controls() if targets else ()
    for split, rows in targets.items():
        found = _score_rows(guess, goal, rows, goal.metrics)
        if any(control.alone for control in controls):
            found = [replace(s, chance=None) for s in found]
        names = [_same(s.metric) for s in found]
        beside = _score_controls(controls, goal, rows, names)
        notes = guess.notes
        if answer.of.spec.pictures and goal.truth.target == "feature" and not goal.metrics:
            notes = {**notes, "pictures": _pictures(answer, guess, goal.truth, task, rows)}
        for s in found:
            yield _measure(
                base, s, split=split, controls=beside.get(_same(s.metric), {}),
                notes={**notes, **_note(s, beside)},
            )  # fmt: skip
            notes = guess.notes


def _score_controls(
    controls: Sequence[Control], goal: Goal, rows: NDArray[np.int64], names: Sequence[str]
) -> dict[str, dict[str, dict[str, float | None]]]:
    """By metric and control its figure, and its cross-validated score."""
    beside: dict[str, dict[str, dict[str, float | None]]] = {}
    asked = _asked(goal, rows, names)
    for control in controls:
        if asked not in control.figures:  # it stands beside many strengths and attacks
            told = _score_rows(goal.select(control.guess), goal, rows, names)
            control.figures[asked] = {s.metric: s.value for s in told} | {
                key: value for s in told for c in s.by_class
                for key, value in zip(_of_class(s.metric, c.label), (c.share, c.sure), strict=True)
            }  # fmt: skip
        cv = control.cv if math.isfinite(control.cv) else None
        for name, value in control.figures[asked].items():
            beside.setdefault(name, {})[control.name] = {"value": value, "cv": cv}
    return beside


def _score_rows(
    guess: Guess, goal: Goal, rows: NDArray[np.int64], metrics: Sequence[str] | None
) -> list[Score]:
    return score(
        guess, goal.truth, rows, classes=goal.classes, prior=goal.prior, quota=True, metrics=metrics
    )


def _asked(goal: Goal, rows: NDArray[np.int64], names: Sequence[str]) -> bytes:
    """A hash of all that a score depends on but the answer, of which a column may be meant."""
    made = hashlib.sha256(repr((goal.truth.target, goal.classes, list(names))).encode())
    of, none = goal.truth, np.empty(0)
    columns, people = (none if x is None else x for x in (of.columns, of.people))
    for x in (goal.prior, rows, of.rows, of.values, columns, people):
        made.update(f"{x.dtype.str} {x.shape}".encode())
        made.update(np.ascontiguousarray(x).reshape(-1).view(np.uint8).data)
    return made.digest()


def _pictures(
    answer: Answer, guess: Guess, truth: Truth, task: Task, rows: NDArray[np.int64]
) -> list[dict[str, Any]]:
    spec = answer.of.spec
    parties = [
        (p, task.schema[p].design(task.x[p][:1]).shape[1], task.schema[p].shape)
        for p in list_victims("feature", spec.adversary, task.parties, spec.victim)
    ]
    return image_samples.pair_images(guess, truth, rows, parties, spec.pictures)


def _note(s: Score, beside: Mapping[str, Mapping[str, Mapping[str, float | None]]]
          ) -> dict[str, Any]:  # fmt: skip
    """What a score says beside its figure, with what controls name of each class."""
    out: dict[str, Any] = {} if s.turned is None else {TURNED: s.turned}
    out |= {TIED: True} if s.tied else {}
    classes = []
    for c in s.by_class:
        own, own_sure = (
            {k: of["value"] for k, of in beside.get(key, {}).items() if of["value"] is not None}
            for key in _of_class(s.metric, c.label)
        )
        classes.append(c.write(own, own_sure))
    return out | ({BY_CLASS: classes} if classes else {})


def _of_class(metric: str, label: int) -> tuple[str, str]:
    """What a control is kept under that is scored on one class, on all rows and the surest."""
    return f"{metric} {label}", f"{metric} {label} surest"


def _same(metric: str) -> str:
    """The metric in which a control is scored beside one of an attack."""
    return "auc" if metric == "leak_auc" else metric


_OF_EMBEDDINGS = ("r2", "relative_error")
_Scored = tuple[Score, dict[str, dict[str, float | None]], dict[str, Any]]


def score_embedding(table: Table, view: View, guess: Guess) -> list[_Scored]:
    """Scores with controls and notes, on the rows that were guessed.

    The truth is `table`: what each row's embedding was when it was last sent. Controls: the
    constant 0, and the column means (which no attacker knows, so the comparison is conservative).
    The notes give the error of the best linear guess from the layer's output, fitted to the truth
    itself: what no linear attack on z alone can beat.
    """
    held = table.tensor.double().cpu().numpy()
    truth = Truth("feature", table.rows, held)
    rows = guess.rows
    mean = np.broadcast_to(held.mean(0), (len(rows), held.shape[1]))
    beside = {"mean": (mean, 0.0), "zero": (np.zeros_like(mean), -1.0)}
    shares = np.full(2, 0.5)

    def scored(values: np.ndarray) -> dict[str, Score]:
        found = score(
            Guess("feature", rows, values),
            truth,
            rows,
            classes=2,
            prior=shares,
            metrics=_OF_EMBEDDINGS,
        )
        return {s.metric: s for s in found}

    controls = {name: (scored(values), cv) for name, (values, cv) in beside.items()}
    notes = {**guess.notes, **_best_linear(view, rows, truth)}
    return [
        (s, {n: {"value": c[m].value, "cv": cv} for n, (c, cv) in controls.items()}, notes)
        for m, s in scored(guess.scores).items()
    ]


def _best_linear(view: View, rows: np.ndarray, truth: Truth) -> dict[str, Any]:
    import torch

    if not any(key[:2] == ("received", "activation") for key in view.tables):
        return {}
    form = next(k[2] for k in view.tables if k[:2] == ("received", "activation"))
    z = view.received("activation", form)
    if form == "all":
        z = z.take(z.epoch == int(z.epoch.max()))
    asked = torch.from_numpy(rows).to(z.rows.device)
    design = z.of_rows(asked).double().cpu().numpy()
    design = np.hstack([design, np.ones((len(design), 1))])
    order = np.argsort(truth.rows)
    h = truth.values[order[np.searchsorted(truth.rows[order], rows)]]
    fit = design @ np.linalg.lstsq(design, h, rcond=None)[0]
    return {"best_linear_error": round(float(np.linalg.norm(fit - h) / np.linalg.norm(h)), 5)}
