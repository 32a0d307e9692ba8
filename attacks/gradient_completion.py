"""Gradient completion: gradients of all epochs, own embedding and columns, and a few labels.

Of two classes a received row is r_it = s_i a_it u_t + noise of variance v_t, with s_i = +1 or -1
the label, so the best weight of epoch t is a_it / v_t (matched filter). Where noise goes with the
largest gradient of a batch, it is measured by M, the root mean square row norm of the received
batch. Three forms:
    head:     logistic regression of the known labels on [mean of r / |r| over epochs, z, x], each
              block centred and divided by the root of its whole variance; penalty by
              cross-validation
    em:       all rows: with p_ic the share of class c (known rows keep their label), per epoch the
              class means m_tc of R = r / M, D_t a basis of what they span about their mean, v_t the
              mean square distance within classes for each direction of it,
              l_ic = - sum_t |D_t (R_ti - m_tc)|^2 / 2 v_t ; h_c the logistic regression of p_c on
              z; p_ic in proportion to exp(l_ic) sigmoid(h_ic); repeated, from the head
    average:  mean of both, each standardised over the rows
Twenty rows cannot tell which form is best: list all three, and judge by the largest. All of them
can do with the mean of R over epochs, as of one epoch (``epochs = "mean"``), which needs no memory
of every message but cancels directions that turn.
Where labels were randomised with a public epsilon (``epsilon``), em finds the released labels, with
chance P_i, and the score is the log-odds of the label itself: with k = e^epsilon / (1 + e^epsilon),
    logit((s_i - (1 - k)) / (2 k - 1)) + log[(k P_i + (1-k) (1-P_i)) / ((1-k) P_i + k (1-P_i))] ,
s_i the logistic regression of all released labels on own columns: the second term is never beyond
epsilon either way. Its sign is that of the known rows.

Attacker: any passive party that receives per-row gradients in training; any number of classes (two
where labels were randomised).
Needs: known rows of every class, its own columns and trained model.
Known failure cases: noise far above the gradients leaves the embedding alone, which the others
then dilute; em follows clusters that are not the classes if the head starts it there; without
``epsilon`` it stops at the released labels; encryption that hides rows leaves nothing to add.
Part of what the randomised form finds is what any n randomised labels say about the population,
which is no breach of their epsilon.

Source: this package's own combination. Matched filter: Turin, IRE Transactions on Information
Theory 1960; EM over unlabelled rows: Nigam, McCallum, Thrun, Mitchell, Machine Learning 2000; known
rows on gradients: Li et al., "Label leakage and protection in two-party split learning", ICLR 2022,
arXiv:2102.08504; randomised labels against their Bayes baseline: Wu et al., "Does label
differential privacy prevent label inference attacks?", AISTATS 2023, arXiv:2202.12968.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from vflsec.inference.completion import Fit
from vflsec.inference.gradient_history import History, em_scores, soft_logistic
from vflsec.inference.joint_features import fit_head
from vflsec.inference.score_orientation import find_orientation
from vflsec.plugin import (
    Attack,
    Facts,
    Guess,
    Known,
    Plain,
    View,
    check,
    registry,
)

ALIASES = ("fused_completion",)
FAMILY = "gradients_and_columns"
KINDS = ("average", "head", "em")


@registry.attack
@dataclass(frozen=True)
class GradientCompletion(Attack):
    """Hyper-parameters.

    Attributes:
        kind: ``average``, ``head`` or ``em``, see above.
        accumulate: how the head adds up epochs: ``unit`` (every row to length 1, which also drops
            how wrong the joint model is on the row), ``scaled`` (by the batch's root mean square
            row norm) or ``raw``.
        epochs: ``each`` by itself, or their ``mean``, of scaled rows.
        columns: give the head the own columns too.
        steps: of em.
        epsilon: the public epsilon of randomised labels of two classes; 0 if they are not
            randomised.
    """

    kind: Literal["average", "head", "em"] = "average"
    accumulate: Literal["unit", "scaled", "raw"] = "unit"
    epochs: Literal["each", "mean"] = "each"
    columns: bool = True
    steps: check.Count = 12
    epsilon: check.NonNegative = 0.0
    labelwise: ClassVar[bool] = True
    tries = (
        {"kind": "head"}, {"kind": "em"}, {"accumulate": "scaled"},
        {"kind": "head", "accumulate": "scaled"},
    )  # fmt: skip
    seconds: ClassVar[float] = 0.15

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        form = "all" if self.epochs == "each" else "scaled"
        return frozenset({f"gradient:{form}", "known_rows", "model"})

    def applicable(self, facts: Facts) -> str:
        if self.epsilon and facts.classes > 2:
            return self.explain_need("two classes for epsilon", "Leave epsilon out.")
        return ""

    def infer(self, view: View, rng: torch.Generator) -> Guess:
        known = view.require_known()
        history = (
            History.of(view.received("gradient", "all"))
            if self.epochs == "each"
            else History.folded(view.received("gradient", "scaled"))
        )
        rows = history.rows
        grant = known.among(rows)
        fixed = torch.searchsorted(rows, grant.rows)
        classes = view.facts.classes
        counts = torch.bincount(grant.labels, minlength=classes)
        if int(counts.min()) < 1:
            raise self.lacks_class(counts.tolist())
        z = view.embed(rows).flatten(1).double()
        x = view.design(rows).double()
        fit = self._head(history, z, x, fixed, grant, classes)
        score = torch.from_numpy(fit.scores).to(z)
        notes: dict[str, Plain] = {"cv": round(fit.cv, 4), "c": fit.penalty}
        if self.kind != "head" or self.epsilon:
            start = torch.softmax(score, dim=1)
            em = em_scores(history, z, start, fixed, grant.labels, steps=self.steps)
            score = em if self.kind == "em" else _standard(score) + _standard(em)
            if self.epsilon:
                odds = randomised(x, em[:, 1] - em[:, 0], self.epsilon)
                odds = find_orientation(odds, rows, grant) * odds
                score = torch.stack([torch.zeros_like(odds), odds], dim=1)
        keep = torch.ones(len(rows), dtype=torch.bool, device=rows.device)
        keep[fixed] = False
        score = score[:, 1] - score[:, 0] if classes == 2 else score
        return Guess(self.target, rows[keep], score[keep], notes=notes)

    def _head(
        self, history: History, z: Tensor, x: Tensor, fixed: Tensor, known: Known, classes: int
    ) -> Fit:
        how = self.accumulate if self.epochs == "each" else "scaled"
        blocks = [history.mean(how), z, *([x] if self.columns else [])]
        return fit_head(blocks, fixed, known, classes)


def randomised(x: Tensor, em: Tensor, epsilon: float) -> Tensor:
    """Log-odds (n,) of the label before randomised response at `epsilon`.

    Args:
        x: own columns (n, p).
        em: log-odds (n,) of the released label.
    """
    keep = math.exp(epsilon) / (1 + math.exp(epsilon))
    released = torch.sigmoid(em)
    own = x - x.mean(0)
    own = own / own.std(0, correction=0).clamp_min(1e-9)
    weights = soft_logistic(own, released, c=0.01)
    share = torch.sigmoid(own @ weights[:-1] + weights[-1])
    share = ((share - (1 - keep)) / (2 * keep - 1)).clamp(0.01, 0.99)
    return torch.logit(share) + torch.log(
        (keep * released + (1 - keep) * (1 - released))
        / ((1 - keep) * released + keep * (1 - released))
    )


def _standard(score: Tensor) -> Tensor:
    """Scores (n, C) without what all classes of a row share, of spread 1 over the rows."""
    score = score - score.mean(1, keepdim=True)
    return score / score.var(0, correction=0).mean().sqrt().clamp_min(1e-12)
