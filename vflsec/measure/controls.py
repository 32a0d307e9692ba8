"""Controls: what the same attacker reaches without the federation, on the same known rows.

Every leakage figure stands beside its controls, and is a leak only over all of them: the class
majority; learners on the adversary's own columns (:mod:`vflsec.measure.own_classifiers`); the
adversary's own architecture trained from scratch on the known rows; the same attack on the bottom
as it was before training, where the attack needs no message (it may work on what a random network
makes of own columns); an attack of another package on messages dealt out anew among the rows, for
it may learn from own columns in ways that no learner here does. Where the algorithm pre-trains
without labels, also model completion on the bottom that the adversary could have pre-trained alone
(the prior attacker of He, Kang et al., arXiv:2208.08934, section VI). A control sees own columns,
the known rows and the class shares, and no message of the row that it guesses.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vflsec.core.attack import Attack, describe_scoring
from vflsec.core.guess import Guess
from vflsec.core.quantity_questions import compute_figure
from vflsec.core.view import Known, View, as_needs, deal_out
from vflsec.inference.adversary_model import own_model, own_rows
from vflsec.inference.attribute_share import estimate_share
from vflsec.inference.completion import Fit, Problem
from vflsec.inference.embedding_readout import by_product, pair_columns
from vflsec.inference.inference_heads import HeadSettings, fit_networks
from vflsec.inference.ridge_regression import (
    Regression,
    by_entry,
    choose_best,
    fit_regressors,
    fit_ridges,
    of_columns,
)
from vflsec.measure.observed_rows import drop_unobserved_rows
from vflsec.measure.own_classifiers import fit_learners, from_randomised, value_learners
from vflsec.plugins import registry

Way = Callable[[torch.Tensor], torch.Tensor]
"""Numbers (m, p) of rows (m,)."""

LABELLED = "labelled, "
"""Before the names of learners that start from own columns and own labels."""


@dataclass(frozen=True)
class Control:
    """One control's answer.

    Attributes:
        name: ``majority``, ``logistic`` (C = 1, others in brackets), ``principal``, ``trees``,
            ``boosting``, ``scratch``, ``untrained``, ``shuffled``, ``reassigned``, ``randomised``
            or ``alone``; ``mean``, ``linear``, ``network``, ``chosen`` among these, or ``entry``
            for features, which attributes have too; ``mean``, ``linear``, ``network``, ``trees`` or
            ``principal`` for a quantity, and these after ``value, `` for a question about it;
            ``sample`` or ``logistic`` for a share. After
            ``labelled, `` the same beside own labels (``labelled`` alone is linear). Of membership
            ``left out`` alone (:mod:`vflsec.engine.membership_queries`).
        guess: log class shares (n, C) of all target rows, or features (n, d).
        cv: cross-validated score on the known rows (AUC for two classes, accuracy for more), by
            which one control is named beforehand, without the truth of the target rows; NaN where
            there is none.
        alone: whether it is the only baseline: of its figure there is no level of chance.
        figures: what it was scored to already, by a hash of what it was scored against.
    """

    name: str
    guess: Guess
    cv: float
    alone: bool = False
    figures: dict[bytes, dict[str, float | None]] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )


def share_rows(controls: Sequence[Control]) -> None:
    """Let controls of the same rows, as most are, have one array of them."""
    for c in controls[1:]:
        if np.array_equal(c.guess.rows, controls[0].guess.rows):
            object.__setattr__(c.guess, "rows", controls[0].guess.rows)


def controls_for(
    attack: Attack,
    views: Sequence[View],
    rngs: Sequence[torch.Generator],
    alone: Sequence[nn.Module] = (),
) -> list[list[Control]]:
    """The controls of `attack` for each view: the same grants, and no message.

    `alone` gives the bottoms that adversaries could have trained without the federation.
    """
    if attack.target in ("membership", "presence"):
        known: dict[str, Any] = {} if attack.target == "membership" else {"prior": None}
        sides = (replace(v, facts=replace(v.facts, classes=2), **known) for v in views)
        return [[guess_majority(v)] for v in sides]
    if attack.target == "property":
        return [guess_shares(v, attack) for v in views]
    if attack.target == "feature":
        return feature_controls(views, rngs)
    if views and attack.target == "label" and views[0].facts.label.numeric:
        return value_controls(views, rngs)
    if attack.target == "attribute":
        views = [v.for_attribute(*describe_scoring(attack)) for v in views]
    found = make_controls(views, rngs, alone)
    if attack.target == "attribute":
        found = [[*of, *by_pairs(v)] for of, v in zip(found, views, strict=True)]
    if views and "question" in views[0].facts.extra:
        beside = of_values(views, rngs)
        return [of_question(*both) for both in zip(views, found, beside, strict=True)]
    return found


def by_pairs(view: View) -> list[Control]:
    """The one own column, or product of two, that tells known rows apart best.

    Embeddings are read by products of their entries, so that those which hold own columns alone
    would tell what own columns are not asked.
    """
    known = view.require_known()
    if len(known) < 2:
        return []
    every = torch.cat([known.rows, view.target_rows])
    out = []
    for way, of in _ways(view).items():
        fit = by_product(pair_columns(of(every).double()), known, view.facts.classes, f"{way}entry")
        out.append(_control(view, fit))
    return out


def of_question(view: View, told: Sequence[Control], values: Sequence[Control]) -> list[Control]:
    """Controls of a question about a quantity: learners of the answer, and of the value behind it.

    A few known rows hold two or three of a tenth, by which no learner can be named; so it is named
    by how well values are told, and by having no column where they are not told at all.

    Args:
        view: with known values.
        told, values: of :func:`make_controls` and :func:`of_values`.
    """
    question, known = str(view.facts.extra["question"]), view.known
    unnamed = [replace(c, cv=0.0 if c.name == "majority" else math.nan) for c in told]
    if known is None or known.values is None:
        return unnamed
    middle = known.values.median()
    for c in values:
        scores = compute_figure(question, torch.as_tensor(c.guess.scores), middle.cpu())
        unnamed.append(Control(f"value, {c.name}", Guess("label", c.guess.rows, scores), c.cv))
    return unnamed


_OF_VALUES = {
    "linear": "logistic", "network": "scratch", "trees": "trees", "principal": "principal",
}  # fmt: skip
"""Learners of a value, and those of an answer that stand for them where there is no value."""


def name_alike(found: Sequence[Control]) -> list[Control]:
    """The controls of one question, under the names that those of any other question have too.

    An attack that chooses its question may choose another on every seed, and only some ask about a
    value. Where none is behind the question, the learner of the answer stands for that of the
    value, so that each name is a control on every seed.
    """
    names = {c.name: c for c in found}
    out = list(found)
    for way in ("", *([LABELLED] if any(n.startswith(LABELLED) for n in names) else [])):
        for value, answer in _OF_VALUES.items():
            like = next((names[n] for n in (way + answer, answer, "majority") if n in names), None)
            if like is not None and (name := f"value, {way}{value}") not in names:
                out.append(Control(name, like.guess, like.cv))
    return out


def make_controls(
    views: Sequence[View],
    rngs: Sequence[torch.Generator],
    alone: Sequence[nn.Module] = (),
) -> list[list[Control]]:
    """The controls of each view, in the same order; known rows must be equal in number.

    Without known rows, without columns, or where those were not recorded, only the majority
    remains. `alone` gives for each view the bottom that its adversary could have trained without
    the federation; empty if there is no such thing.
    """
    out = [[guess_majority(v)] for v in views]
    if not views or views[0].known is None or len(views[0].known) < 2:
        return out
    ways = [_ways(v) for v in views]
    if not ways[0]:
        return out
    for view, mine, fit in zip(views, out, _fit_from_scratch(views, rngs), strict=False):
        mine.append(_control(view, fit))
    for view, mine, of, rng in zip(views, out, ways, rngs, strict=True):
        for way, inputs in of.items():
            mine += [_control(view, fit, way) for fit in fit_learners(view, rng, inputs)]
    if alone:
        for mine, control in zip(out, _complete_local_bottoms(views, rngs, alone), strict=True):
            mine.append(control)
    return out


def _control(view: View, fit: Fit, way: str = "") -> Control:
    rows = view.target_rows.cpu().numpy()
    return Control(way + fit.variant, Guess("label", rows, fit.scores), fit.cv)


def _ways(view: View) -> dict[str, Way]:
    """What of rows a learner may start from, as numbers: own columns, and with own labels beside.

    By what stands before the learner's name. None where own columns were not recorded.
    """
    if any(p not in view.columns for p in view.adversary):
        return {}
    out: dict[str, Way] = {"": view.design} if view.holders else {}
    return out if view.labels is None else out | {LABELLED: view.own}


def guess_majority(view: View) -> Control:
    """Every row gets the class shares, which ranks nothing and decides for the largest class."""
    classes = view.facts.classes
    rows = view.target_rows.cpu().numpy()
    prior = np.full(classes, 1.0 / classes) if view.prior is None else view.prior.cpu().numpy()
    scores = np.broadcast_to(np.log(np.clip(prior, 1e-12, None)), (len(rows), classes))
    cv = 0.5 if classes == 2 else float(prior.max())
    return Control("majority", Guess("label", rows, scores.copy()), cv)


def guess_shares(view: View, attack: Attack) -> list[Control]:
    """The share of an attribute by the auxiliary rows alone, and by what they say of own columns.

    The one of the least standard error is named beforehand.
    """
    seen, rows = view.for_attribute(*describe_scoring(attack)), view.targets["train"]
    known, value = seen.require_known(), int(getattr(attack, "value", 1))
    every = torch.cat([known.rows, rows])
    told: dict[str, list[Callable[[], torch.Tensor]]] = {"sample": []}
    told |= {f"{way}logistic": [partial(of, every)] for way, of in _ways(seen).items()}
    out = []
    for name, inputs in told.items():
        found = estimate_share(known, inputs, seen.facts.classes, value)
        guess = Guess("property", rows.cpu().numpy(), np.full(len(rows), found.share))
        out.append(Control(name, guess, found.error))
    return out


def _fit_from_scratch(views: Sequence[View], rngs: Sequence[torch.Generator]) -> list[Fit]:
    """A fit for each view; none if one of them has no model to start from."""
    bottoms = [m for v in views if (m := own_model(v, "initial")) is not None]
    if len(bottoms) < len(views):
        return []
    knowns = [v.require_known() for v in views]
    found = fit_networks(
        "scratch",
        bottoms,
        Problem(
            [own_rows(v, k.rows) for v, k in zip(views, knowns, strict=True)],
            knowns,
            [own_rows(v, v.target_rows) for v in views],
            views[0].facts.classes,
        ),
        rngs,
        HeadSettings(hidden=(32,), lr_bottom=1e-2),
    )
    return found.fits(range(len(views)))


def guess_randomised(view: View, labels: torch.Tensor) -> Control:
    """Own columns trained on the randomised labels (N,) of all other rows; -1 where unknown."""
    return _control(view, from_randomised(view, labels))


def guess_untrained(
    attack: Attack, views: Sequence[View], rngs: Sequence[torch.Generator]
) -> list[list[Control]]:
    """The same attack on each adversary's bottom as it was before training."""
    before = [
        {p: m["initial"] for p in v.holders if "initial" in (m := v.models[p])} for v in views
    ]
    return guess_on_others("untrained", attack, views, rngs, before)


def guess_on_others(
    name: str,
    attack: Attack,
    views: Sequence[View],
    rngs: Sequence[torch.Generator],
    bottoms: Sequence[Mapping[str, nn.Module]],
) -> list[list[Control]]:
    """The same attack without messages and with other bottoms.

    What it reaches on those that the federation trained on labels dealt out anew (``reassigned``)
    comes from features that any task would have taught, and not from the labels. Empty lists where
    there is no such thing: the attack needs more than its own bottom and grants, or one is missing.

    Args:
        bottoms: of each view's adversaries, by party.
    """
    whats, usual = {n.what for n in as_needs(attack.needs)}, {"model", "known_rows", "prior"}
    lacks = any(p not in by for v, by in zip(views, bottoms, strict=True) for p in v.holders)
    if lacks or attack.target != "label" or "model" not in whats or whats - usual:
        return [[] for _ in views]
    placed = [
        replace(
            v,
            models={p: {**m, "bottom": by[p]} if p in by else m for p, m in v.models.items()},
            encoders={},
            tables={},
            updates={},
        )
        for v, by in zip(views, bottoms, strict=True)
    ]
    guesses = attack.infer_many(placed, rngs)
    return [[Control(name, g, math.nan)] for g in guesses]


def guess_shuffled(
    attack: Attack, view: View, rng: torch.Generator, of_attack: torch.Generator
) -> list[Control]:
    """The same attack on messages dealt out anew, and on own bottoms as before training.

    What it reaches there it learnt from own columns and granted rows. That nothing came of a row
    is dealt out, too, for an attack that reads it. Messages of no row are left out, granted models
    of others stay. Empty where there is no such thing: the attack is made on own gradients of
    parameters, or on an own bottom of which nobody kept what it was before training, or it guesses
    what all rows together show.

    Args:
        attack: on labels, columns or one column.
        view: with all rows that are guessed.
        rng: deals the messages out.
        of_attack: the attack's own random numbers.
    """
    whats = {n.what for n in as_needs(attack.needs)}
    own = {p: m for p, m in view.models.items() if p in view.adversary and "bottom" in m}
    lost = "model" in whats and any("initial" not in m for m in own.values())
    rowwise = attack.target in ("label", "attribute", "feature")
    if lost or not rowwise or "parameter_gradient" in whats:
        return []
    seen = drop_unobserved_rows(attack, view)
    before = {p: {**m, "bottom": m["initial"]} for p, m in own.items() if "initial" in m}
    models = {p: m for p, m in view.models.items() if p not in own} | before
    tables = deal_out(seen.tables, _group_rows(seen), rng)
    dealt = replace(seen, tables=tables, models=models, encoders={}, updates={})
    (guess,) = attack.infer_many([dealt], [of_attack])
    return [Control("shuffled", guess, math.nan)]


def _group_rows(view: View) -> list[Tensor]:
    """The rows of each split to guess; granted rows are among those of training."""
    granted = [] if view.known is None else [view.known.rows]
    granted += [rows for rows, _ in (view.aux or {}).values()]
    groups, seen = [], view.target_rows[:0]
    for split in sorted(view.targets, key=lambda split: split != "train"):
        mine = torch.cat([view.targets[split], *granted]).unique()
        groups.append(mine[~torch.isin(mine, seen)])
        seen, granted = torch.cat([seen, mine]), []
    return groups


def _complete_local_bottoms(
    views: Sequence[View], rngs: Sequence[torch.Generator], bottoms: Sequence[nn.Module]
) -> list[Control]:
    """Model completion, with all its variants, on bottoms trained without the federation."""
    attack = registry.attacks.create("model_completion")
    own = [
        replace(v, models={**v.models, v.party: {"bottom": bottom}}, encoders={})
        for v, bottom in zip(views, bottoms, strict=True)
    ]
    guesses = attack.infer_many(own, rngs)
    return [Control("alone", g, max(g.notes["cv"].values())) for g in guesses]


def value_controls(
    views: Sequence[View], rngs: Sequence[torch.Generator]
) -> list[list[Control]]:  # fmt: skip
    """Controls where the label is a quantity: the mean, and learners on own columns."""
    out = []
    for v, learnt in zip(views, of_values(views, rngs), strict=True):
        rows = v.target_rows
        known = None if v.known is None else v.known.labels
        mean = torch.full((len(rows),), v.facts.label.guess_mean(known))
        out.append([Control("mean", Guess("label", rows, mean), 0.0), *learnt])
    return out


def of_values(views: Sequence[View], rngs: Sequence[torch.Generator]) -> list[list[Control]]:
    """What learners of known values on own columns answer, scores (n,) of all target rows; none
    without two known values or own columns.
    """
    if not views or views[0].known is None or len(views[0].known) < 2:
        return [[] for _ in views]
    knowns = [v.require_known() for v in views]
    asked = [
        v if k.values is None else replace(v, known=Known(k.rows, k.values))
        for v, k in zip(views, knowns, strict=True)
    ]
    ways, out = [_ways(v) for v in views], [list[Control]() for _ in views]
    for way in ways[0]:
        told = value_learners(asked, rngs, [of[way] for of in ways])
        for v, mine, fits in zip(views, out, told, strict=True):
            guesses = [Guess("label", v.target_rows, f.values.squeeze(1)) for f in fits]
            mine += [Control(way + f.variant, g, f.cv) for f, g in zip(fits, guesses, strict=True)]
    return out


def feature_controls(views: Sequence[View], rngs: Sequence[torch.Generator]) -> list[list[Control]]:
    """Controls of a feature attack: means of the granted rows, and regressions on own columns.

    Where auxiliary rows were granted: a linear one and a network, each column by what
    cross-validation finds best of these, as the attack answers that has embeddings too, and by the
    own column or product of two that goes with it most.

    Raises:
        ThreatModelError: no victim is in the view.
    """
    if any(not v.aux for v in views):
        return [[_zeros(v)] for v in views]
    rows, values = zip(*(v.require_aux() for v in views), strict=True)
    ways = [_ways(v) for v in views]
    every: list[list[Regression]] = [[] for _ in views]
    for way in ways[0]:
        known = [of[way](at) for of, at in zip(ways, rows, strict=True)]
        asked = [of[way](v.target_rows) for of, v in zip(ways, views, strict=True)]
        name = "labelled" if way else "linear"
        for k, network in enumerate(fit_regressors(f"{way}network", known, values, asked, rngs)):
            pairs, q = pair_columns(torch.cat([known[k], asked[k]]).double()), len(known[k])
            entry = by_entry(f"{way}entry", pairs.numbers(slice(q)), values[k],
                             partial(pairs.numbers, slice(q, None)))  # fmt: skip
            every[k] += [*fit_ridges(name, known[k], values[k], asked[k]), network, entry]
    return [
        [_on_columns("mean", v, of.mean(0).expand(len(v.target_rows), -1)),
         *(_on_columns(f.variant, v, f.values, f.cv) for f in _choose(v, of, plain))]
        for v, of, plain in zip(views, values, every, strict=True)
    ]  # fmt: skip


def _choose(view: View, values: Tensor, fits: Sequence[Regression]) -> list[Regression]:
    """The best fit of every kind, and what is best for each column of these."""
    columns = view.aux_columns
    fits = of_columns(fits, values, columns)
    best = {f.variant: f for f in sorted(fits, key=lambda f: f.cv)}
    for name, f in best.items():
        if name.endswith(("network", "entry")):  # far off, on one seed more than on another
            best[name] = replace(choose_best([f], values, columns)[0], variant=name)
    shown = [best[name] for name in dict.fromkeys(f.variant for f in fits)]
    return [*shown, choose_best(fits, values, columns)[0]] if fits else shown


def _on_columns(name: str, view: View, values: Tensor, cv: float = 0.0) -> Control:
    return Control(name, Guess("feature", view.target_rows, values), cv)


def _zeros(view: View) -> Control:
    """The mean of every prepared column, without a granted row."""
    width = sum(
        view.schema[p].design(torch.zeros(1, *view.schema[p].shape)).shape[1] for p in view.victims
    )
    return _on_columns("mean", view, torch.zeros(len(view.target_rows), width))
