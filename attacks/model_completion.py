"""Passive model completion: an own trained bottom, a small head, and a few labelled rows.

After training, the passive party puts an inference head h on its own bottom f and fits h (or h o f)
to the rows whose labels it knows; it then labels any row it holds, past or future. Four variants
are
fitted: logistic regression and a small network as the head, each on the frozen embedding z = f(x)
or with f fine-tuned along. The variant is chosen by stratified cross-validation on the known rows
only.

Attacker: any passive party, after training; it does not deviate from the protocol.
Needs: its own bottom and columns, and known_rows labelled rows in all (classes balanced).
Known failure cases: fewer than about four rows a class; when the party's own columns predict the
label anyway there is nothing to gain over logistic regression on them, which is why that is a
control. The frozen variants leave the bottom untouched; public implementations freeze it by
accident.

Source: Fu, Zhang, Ji, Chen, Wu, Guo, Zhou, Liu, Wang, "Label inference attacks against vertical
federated learning", USENIX Security 2022, section 5.1; He, Kang et al., arXiv:2208.08934 (2022),
section VI.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import nn

from vflsec import check, registry
from vflsec.attack import Attack
from vflsec.guess import Guess
from vflsec.nn.completion import Fit, fit_networks, logistic_cv
from vflsec.view import View

ALIASES = ("pmc", "passive_model_completion")
VARIANTS = ("logistic", "mlp", "finetune", "finetune_mlp")


@registry.attack
@dataclass(frozen=True)
class ModelCompletion(Attack):
    """Hyper-parameters.

    Attributes:
        variants: which of ``logistic``, ``mlp`` (frozen bottom), ``finetune``, ``finetune_mlp``
            (bottom trained along) compete in cross-validation; ties go to the earlier one.
        hidden: width of the network head's hidden layer.
        steps: full-batch Adam steps of the network variants.
        part: the own module that is completed; ``bottom.cross`` and ``bottom.local`` are the single
            towers of the self-supervised methods, ``bottom`` is their pooling.
    """

    variants: tuple[str, ...] = VARIANTS
    hidden: int = 32
    steps: int = 150
    part: str = "bottom"
    needs = frozenset({"model", "known_rows"})
    splits: ClassVar[tuple[str, ...]] = ("train", "test")

    def __post_init__(self) -> None:
        if not self.variants:
            raise check.fail("model_completion.variants", "a list of at least one", self.variants)
        for v in self.variants:
            check.one_of("model_completion.variants", v, VARIANTS)
        check.integer("model_completion.hidden", self.hidden)
        check.integer("model_completion.steps", self.steps)

    def infer(self, view: View, rng: torch.Generator) -> Guess:
        return self.infer_many([view], [rng])[0]

    def infer_many(self, views: Sequence[View], rngs: Sequence[torch.Generator]) -> list[Guess]:
        classes = views[0].facts.classes
        knowns = [v.require_known() for v in views]
        rows = [v.target_rows for v in views]
        z_known = [v.embed(k.rows, part=self.part) for v, k in zip(views, knowns, strict=True)]
        z_all = [v.embed(r, part=self.part) for v, r in zip(views, rows, strict=True)]
        fits: dict[str, list[Fit]] = {}
        for variant in self.variants:
            hidden = (self.hidden,) if variant.endswith("mlp") else ()
            if variant == "logistic":
                fits[variant] = [
                    self._logistic(k, a, known, classes)
                    for k, a, known in zip(z_known, z_all, knowns, strict=True)
                ]
            elif variant == "mlp":
                frozen: list[nn.Module] = [nn.Identity() for _ in views]
                fits[variant] = fit_networks(
                    variant, frozen, z_known, knowns, z_all, rngs, classes, hidden=hidden,
                    steps=self.steps,
                )  # fmt: skip
            else:
                fits[variant] = fit_networks(
                    variant,
                    [v.model(self.part) for v in views],
                    [v.columns[v.party][k.rows] for v, k in zip(views, knowns, strict=True)],
                    knowns,
                    [v.columns[v.party][r] for v, r in zip(views, rows, strict=True)],
                    rngs, classes, hidden=hidden, steps=self.steps,
                )  # fmt: skip
        return [self._choose(r, rows[r], fits) for r in range(len(views))]

    @staticmethod
    def _logistic(z: torch.Tensor, z_all: torch.Tensor, known: object, classes: int) -> Fit:
        sd, mean = torch.std_mean(z_all, dim=0, correction=0)
        sd = sd.clamp_min(1e-6)
        return logistic_cv(
            ((z - mean) / sd).double().cpu().numpy(),
            known,  # type: ignore[arg-type]
            ((z_all - mean) / sd).double().cpu().numpy(),
            classes,
            "logistic",
        )

    def _choose(self, r: int, rows: torch.Tensor, fits: dict[str, list[Fit]]) -> Guess:
        best = max(self.variants, key=lambda v: fits[v][r].cv)
        chosen = fits[best][r]
        notes = {"variant": best, "cv": {v: round(fits[v][r].cv, 4) for v in self.variants}}
        return Guess(self.target, rows.cpu().numpy(), np.asarray(chosen.scores), notes=notes)
