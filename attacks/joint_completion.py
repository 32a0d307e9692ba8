"""Joint completion: whatever messages say of a row beside own columns, and a few known labels.

A message that is too noisy to beat own columns may still add to them. Own columns x and the own
embedding z give log-odds o_i by logistic regression of the known labels (blocks of equal variance,
penalty by cross-validation), so shares p_i = softmax(o_i). Each reading R of messages is projected,
in five folds, on what goes with the shares on the other rows,
    q_i = R_i d / |d|,  d = sum_j (p_j - mean p) R_j ,
and counts if q goes with p, and with the known labels, by more than 3 standard errors together.
    score_i = o_i + w q_i ,  w the logistic regression of p on all q that count, known rows thrice,
and p is made anew from it, three times. In the end w is multiplied by the factor, 0 or 1/16 to 8,
under which the known labels are likeliest. Where own columns hardly tell these (TOLD) it is also
begun from them alone, and the likelier of both answers. If none counts, the score is that of own
columns. What is found of rows with messages teaches own columns for those without (rows of the
future): these are answered by the linear discriminant of x on p.
Readings: the figures of `message_completion` (mean, change, spread, sizes, ... of a row's
messages; not ``batchwise``, which beside others blurred an answer) and the counts of `zero_pattern`
(zeros, visits, order, ...), of gradients, embeddings and states alike, and predictions that came
back, whose direction is known.

Attacker: any passive party with columns that receives messages of rows; any number of classes.
Needs: known rows of every class, its own columns and trained model; of the messages those that
come.
Known failure cases: where own columns tell next to nothing and few rows are known, shares are no
labels, and other attacks are better; a message that only repeats own columns may count and then
blurs them a little; randomised labels count as if they were true, so that it falls below own
columns; of gradients alone, attacks made for them find more; what says nothing of the label itself,
but corrects own columns, is not seen, nor what a logistic regression of own columns misses.

Source: this package's own combination of published parts: Nigam, McCallum, Thrun, Mitchell, "Text
classification from labeled and unlabeled documents using EM", Machine Learning 2000; two views of a
row: Blum, Mitchell, "Combining labeled and unlabeled data with co-training", COLT 1998.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from vflsec.attacks.message_completion import figures
from vflsec.attacks.zero_pattern import counts
from vflsec.inference import batch_order
from vflsec.inference.joint_features import (
    Reading,
    find_evidence,
    find_weight,
    fit_discriminant,
    fit_head,
    own_blocks,
    placed,
)
from vflsec.plugin import (
    Attack,
    Facts,
    Guess,
    Known,
    Table,
    View,
    check,
    registry,
)

ALIASES = ("beside_columns",)
FAMILY = "messages_and_columns"
ROWWISE = ("gradient", "embedding", "state")
TOLD = 2.0
"""Log likelihood ratio of known labels to equal shares that own columns take to be the start."""
LEAST = 1e-4  # share below which a prediction's logarithm says no more


@registry.attack
@dataclass(frozen=True)
class JointCompletion(Attack):
    """Hyper-parameters.

    Attributes:
        steps: how often shares are made anew.
    """

    steps: check.Count = 3
    needs = frozenset({"known_rows", "model"})
    optional = frozenset({"prediction:all", *(f"{kind}:all+" for kind in ROWWISE)})
    splits: ClassVar[tuple[str, ...]] = ("train", "test")
    labelwise: ClassVar[bool] = True
    seconds: ClassVar[float] = 0.3

    def applicable(self, facts: Facts) -> str:
        heard = {k for k, _, to in facts.sends if to != facts.active}
        if facts.sends and not heard & {*ROWWISE, "prediction"}:
            return f"{self.name} reads messages of rows; no passive party gets any."
        return ""

    def declines(self, view: View) -> str:
        """That no message of rows came, or ''."""
        if any(True for _ in _tables(view)):
            return ""
        return "no message of rows was received."

    def infer(self, view: View, rng: torch.Generator) -> Guess:
        known, classes = view.require_known(), view.facts.classes
        lacking = classes - len(known.labels.unique())
        if lacking:
            raise self.lacks_class(f"{classes - lacking} of {classes}")
        if not view.holders:
            raise self.lacks("own columns", "none", "")
        readings = dict(_readings(view))
        rows = torch.cat([view.target_rows, known.rows]).unique()
        found = placed(readings, rows, known)
        at = torch.searchsorted(rows, known.rows)
        blocks = own_blocks(view, rows)
        fit = fit_head(blocks, at, known, classes)
        own = torch.from_numpy(fit.scores).to(blocks[0])
        held = None if fit.held is None else torch.from_numpy(fit.held).to(own)
        starts = [find_evidence(found, rows, own, known, self.steps)]
        weights, nothing = [(1.0, 0.0)], torch.zeros_like(own)
        if held is not None:
            weights = [find_weight(held, starts[0][0][at], known.labels)]
            told = find_weight(held, nothing[at], known.labels)[1] + len(at) * math.log(classes)
            if told < TOLD:
                starts.append(find_evidence(found, rows, nothing, known, self.steps))
                weights.append(find_weight(held, starts[1][0][at], known.labels))
        best = max(range(len(starts)), key=lambda k: weights[k][1])
        (added, used), times = starts[best], weights[best][0]
        score = own + times * added
        if used and times:
            of = [readings[k].rows for k in used]
            score = _teach(score, torch.isin(rows, torch.cat(of)), blocks[1], at, known)
        score = score[:, 1] - score[:, 0] if classes == 2 else score
        keep = torch.ones(len(rows), dtype=torch.bool, device=rows.device)
        keep[at] = False
        notes = {"cv": round(fit.cv, 4), "readings": used, "weight": times}
        return Guess(self.target, rows[keep], score[keep], notes=notes)


def _teach(score: Tensor, told: Tensor, x: Tensor, at: Tensor, known: Known) -> Tensor:
    """Scores (n, C) with those of rows that no message told by what the others teach own columns.

    Args:
        told: (n,) bool.
        x: own columns (n, p).
        at: places (q,) of the known rows.
    """
    share = torch.softmax(score, dim=1)
    share[at] = torch.nn.functional.one_hot(known.labels, score.shape[1]).to(share)
    weights, intercepts = fit_discriminant(x[told], share[told])
    return torch.where(told.unsqueeze(1), score, x @ weights + intercepts)


def _tables(view: View) -> Iterator[tuple[str, Table]]:
    """Messages of rows that its parties received, with their kind, in a fixed order."""
    for way, kind, form, party in sorted(view.tables):
        if way == "received" and form == "all" and kind in (*ROWWISE, "prediction"):
            table = view.received(kind, "all" if kind == "prediction" else "all+", party)
            table = table.of_samples()  # parameters are of no row
            if len(table):
                yield kind, table


def _readings(view: View) -> Iterator[tuple[str, Reading]]:
    for i, (kind, table) in enumerate(_tables(view)):
        rows, made = figures(table, mean=True, turned=False)
        if kind == "prediction":
            last = table.folded("last")
            shares = last.tensor.flatten(1).double().nan_to_num().clamp(LEAST, 1)
            yield f"{kind} {i}: log shares", Reading(rows, shares.log(), told=True)
            made = {name: made[name] for name in ("mean",) if name in made}
        else:
            made |= _counted(view, table, rows)
        for name, value in made.items():
            yield f"{kind} {i}: {name}", Reading(rows, value)


def _counted(view: View, table: Table, rows: Tensor) -> dict[str, Tensor]:
    """What `zero_pattern` counts of messages, (n, k) by name."""
    out = {c.name: c.value for c in counts(view, table, table.by_row[1], len(rows))}
    known = view.require_known().among(rows)
    return out | dict(batch_order.single_epochs(table, known))
