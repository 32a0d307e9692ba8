"""Equation solving: with linear models, class scores are linear equations in the victim's columns.

The victims' part of the logits is z = W x + b with W (C, d). From a prediction v and its own part
s_B the attacker knows differences of it,
    (W_k - W_{k+1}) x = ln v_k - ln v_{k+1} - (s_B,k - s_B,k+1) - (b_k - b_{k+1}),
C - 1 equations for each row; from the received embedding itself it knows all C. Score: the solution
of smallest norm, x = A^+ a, which is exact if A has rank d, so if d <= C - 1 (or C).

A regression needs no inversion: the victim sends z = W x itself, in plain, with each row that is
predicted (``equations = "score"``). Auxiliary rows tell the way back,
    x = M z,    M^T = Z^+ X    for their scores Z and columns X,
which is exact for a column that W fixes, so if d <= rank W, and checked on rows beyond that rank.
Other columns are regressed on scores and own columns, if cross-validation finds that better.

Attacker: the active party, after training. White box (``peer_model = true``) with the received
embeddings of training rows, from which it computes the predictions, and no auxiliary row; for
scores with ``aux_rows`` and no model.
Does not apply: with hidden layers or a trainable top model; but for scores, on categorical columns,
whose embedding is not linear in their code.
Known failure cases: more columns than equations leave all but C - 1 directions unknown; early
stopping goes back to weights under which the recorded embeddings were not computed.

Source: Luo, Wu, Xiao, Ooi, "Feature inference attack on model predictions in vertical federated
learning", ICDE 2021, arXiv:2010.10152, section IV-A.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from vflsec.inference.gradient_replay import by_embedding
from vflsec.inference.ridge_regression import choose_best, fit_ridges, of_columns
from vflsec.plugin import Attack, Facts, Guess, ThreatModelError, View, registry

ALIASES = ("esa", "equality_solving")
FAMILY = "features"
TOLERANCE = 1e-9
"""Singular values of scores below this share of the largest, and such misfits, count as zero."""


@registry.attack
@dataclass(frozen=True)
class EquationSolving(Attack):
    """Hyper-parameters.

    Attributes:
        equations: ``prediction`` (C - 1 differences, as published), ``embedding`` (all C), or
            ``score`` (what a party of a regression sends).
    """

    equations: Literal["prediction", "embedding", "score"] = "prediction"
    other_kinds = ({"equations": "score"},)
    target: ClassVar[str] = "feature"
    world = {
        "hidden": (), "top": (), "linear_top": False, "aggregation": "sum",
    }  # fmt: skip

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        if self.equations == "score":
            return frozenset({"score:last", "aux_rows"})
        return frozenset({"embedding:last+", "peer_model"})

    def applicable(self, facts: Facts) -> str:
        if self.equations == "score":
            return ""
        if facts.extra.get("hidden"):
            return self.explain_need("linear bottoms", "Set hidden = [].")
        return self.explain_top(facts)

    @property
    def numeric_only(self) -> bool:  # type: ignore[override]
        return self.equations != "score"

    def infer(self, view: View, rng: torch.Generator) -> Guess:
        if self.equations == "score":
            return self._solve_scores(view)
        each = by_embedding(self, [view], [rng])
        if each is not None:
            return each[0]
        rows = view.targets["train"]
        layers = [_linear_layer(view, p) for p in view.victims]
        w = torch.cat([layer.weight.detach() for layer in layers], dim=1).double()  # (C, d)
        b = torch.stack([layer.bias.detach() for layer in layers]).sum(0).double()  # (C,)
        table = view.received("embedding", "last")
        parts = table.of_rows(rows).double().reshape(len(rows), len(layers), -1)
        z = parts.sum(1) - b  # (n, C), equal to W x
        if self.equations == "prediction":
            own = view.embed(rows, view.party).double()
            log_v = torch.log_softmax(parts.sum(1) + own, dim=1)
            z = differences(log_v - own - b)
            w = differences(w.T).T
        x = z @ torch.linalg.pinv(w).T  # (n, d)
        return Guess(self.target, rows, x, notes={"victim": "+".join(view.victims)})

    def _solve_scores(self, view: View) -> Guess:
        """The columns of training rows by their scores, and which of them are solved exactly."""
        (aux, values), rows = view.require_aux(), view.targets["train"]
        values, of = values.double(), view.aux_columns
        table = view.received("score", "last")
        z, asked = (table.of_rows(i).double().flatten(1) for i in (aux, rows))
        own, beside = view.own(aux).double(), view.own(rows).double()
        fits = fit_ridges("own", own, values, beside) if own.shape[1] else []
        fits += fit_ridges("scores", torch.cat([z, own], 1), values, torch.cat([asked, beside], 1))
        x = choose_best(of_columns(fits, values, of), values, of)[0].values.clone()
        back = torch.linalg.pinv(z, rtol=TOLERANCE) @ values  # (C, d)
        off = (z @ back - values).abs().amax(0)
        solved = (off < TOLERANCE * (1 + values.abs().amax(0))) & (_rank(z) < len(aux))
        x[:, solved] = (asked @ back)[:, solved]
        notes = {"victim": "+".join(view.victims), "solved": int(solved.sum())}
        return Guess(self.target, rows, x, notes=notes)


def _rank(z: Tensor) -> int:
    return int(torch.linalg.matrix_rank(z, rtol=TOLERANCE))


def differences(s: Tensor) -> Tensor:
    """s_k - s_{k+1} along the last axis."""
    return s[..., :-1] - s[..., 1:]


def _linear_layer(view: View, party: str) -> nn.Linear:
    """The one linear layer of a victim's bottom."""
    if "bottom" not in view.models.get(party, {}):
        raise ThreatModelError(f"equation_solving needs the model of {party}.")
    found = [m for m in view.models[party]["bottom"].modules() if isinstance(m, nn.Linear)]
    if len(found) != 1 or view.schema[party].categorical:
        raise ThreatModelError(
            f"equation_solving needs a linear bottom on numeric columns at {party}."
        )
    return found[0]
