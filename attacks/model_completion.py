"""Passive model completion: an own trained bottom, a small head, and a few labelled rows.

After training, the passive party puts an inference head h on its own bottom f and fits h (or h o f)
to the rows whose labels it knows; it then labels any row it holds, past or future. Four variants
are fitted: logistic regression and a small network as the head, each on the frozen embedding
z = f(x) or with f fine-tuned along. Two more are semi-supervised (MixMatch, which also uses all own
unlabelled rows): ``mixmatch`` with f fine-tuned, ``mixmatch_frozen`` without; they cost more and
are not among the default variants. The variant, and the penalty of the logistic regression (from
the difference of the class means, its limit under full shrinkage, to C = 10), are chosen by
stratified cross-validation on the known rows only; where these cannot tell two candidates apart (2
paired standard errors, of AUC by DeLong, of the Brier score beyond two classes), the simpler and
more shrunk one is taken.

Attacker: any passive party or coalition, after training; it does not deviate from the protocol.
Needs: its own bottom and columns, and known_rows labelled rows in all (classes balanced).
Known failure cases: fewer than about four rows a class; when the party's own columns predict the
label anyway there is nothing to gain over logistic regression on them, which is why that is a
control; few rows cannot show that a larger head is better, so it is then not used; longer MixMatch
runs can overfit a handful of rows. The frozen variants leave the bottom untouched; public
implementations freeze it by accident.

Source: Fu, Zhang, Ji, Chen, Wu, Guo, Zhou, Liu, Wang, "Label inference attacks against vertical
federated learning", USENIX Security 2022, section 5.1; He, Kang et al., arXiv:2208.08934 (2022),
section VI; another task as a control: Liu et al., arXiv:2603.18680 (2026); MixMatch: Berthelot et
al., NeurIPS 2019, arXiv:1905.02249; standard errors of paired AUC: DeLong, DeLong, Clarke-Pearson,
Biometrics 1988.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from vflsec import check, registry
from vflsec.attack import Attack
from vflsec.errors import ThreatModelError
from vflsec.guess import Guess
from vflsec.nn.columns import spread
from vflsec.nn.completion import SHRINKAGE, Fit, fit_networks, logistic_cv, simplest_fit
from vflsec.nn.joint import own_model, own_rows
from vflsec.nn.mixmatch import MixMatch, fit_mixmatch
from vflsec.view import View

ALIASES = ("pmc", "passive_model_completion")
FAMILY = "Labels by completing the own model"
DEFAULT = ("logistic", "mlp", "finetune", "finetune_mlp")
VARIANTS = (*DEFAULT, "mixmatch", "mixmatch_frozen")


@registry.attack
@dataclass(frozen=True)
class ModelCompletion(Attack):
    """Hyper-parameters.

    Attributes:
        variants: which of ``logistic``, ``mlp`` (frozen bottom), ``finetune``, ``finetune_mlp``
            (bottom trained along), ``mixmatch``, ``mixmatch_frozen`` compete in cross-validation;
            near-ties go to the earlier one.
        hidden: width of the network head's hidden layer.
        steps: full-batch Adam steps of the network variants.
        mixmatch: settings of MixMatch that differ from the cheap ones, see
            `vflsec.nn.mixmatch.MixMatch`; published: {"epochs": 25, "iterations": 1024}.
        part: the own module that is completed; ``bottom.cross`` and ``bottom.local`` are the single
            towers of the self-supervised methods, ``bottom`` is their pooling.
        reassigned: whether one more control stands beside it: the same completion of the bottom
            that the same federation trains on labels dealt out anew. What it reaches there, any
            task would have taught; the rest is what the labels left in the bottom. One training of
            each cell more.
    """

    variants: tuple[str, ...] = DEFAULT
    hidden: int = 32
    steps: int = 150
    mixmatch: dict[str, Any] = field(default_factory=dict)
    part: str = "bottom"
    reassigned: bool = False
    needs = frozenset({"model", "known_rows"})
    splits: ClassVar[tuple[str, ...]] = ("train", "test")
    quick: ClassVar[dict[str, Any]] = {"steps": 60}
    labelwise: ClassVar[bool] = True
    tries: ClassVar[tuple[dict[str, Any], ...]] = (
        {"variants": ["logistic"]}, {"variants": ["finetune"]}, {"variants": ["finetune_mlp"]},
    )  # fmt: skip
    seconds: ClassVar[float] = 0.5

    def __post_init__(self) -> None:
        if not self.variants:
            raise check.fail("model_completion.variants", "a list of at least one", self.variants)
        for v in self.variants:
            check.one_of("model_completion.variants", v, VARIANTS)
        check.integer("model_completion.hidden", self.hidden)
        check.integer("model_completion.steps", self.steps)
        for key in self.mixmatch:
            check.one_of("model_completion.mixmatch: the key", key, _SETTINGS)
        MixMatch(**self.mixmatch)

    @property
    def trains(self) -> int:
        return int(self.reassigned)

    def infer(self, view: View, rng: torch.Generator) -> Guess:
        return self.infer_many([view], [rng])[0]

    def infer_many(self, views: Sequence[View], rngs: Sequence[torch.Generator]) -> list[Guess]:
        rows = [v.target_rows for v in views]
        fits: dict[str, list[Fit]] = {}
        for variant in self.variants:
            found = self._fit(variant, views, rows, rngs)
            if found is not None:
                fits[variant] = found
        if not fits:
            raise ThreatModelError(
                f"none of the variants {', '.join(self.variants)} can run: the own embedding comes "
                "from more than one module, which cannot be fine-tuned here. Add logistic or mlp."
            )
        return [self._choose(r, v, rows[r], fits) for r, v in enumerate(views)]

    def _fit(
        self,
        variant: str,
        views: Sequence[View],
        rows: Sequence[torch.Tensor],
        rngs: Sequence[torch.Generator],
    ) -> list[Fit] | None:
        """One variant on all replicas, or None if this adversary has no model to fine-tune."""
        classes = views[0].facts.classes
        knowns = [v.require_known() for v in views]
        if variant in ("logistic", "mlp"):
            known = [
                v.embed(k.rows, part=self.part).flatten(1)
                for v, k in zip(views, knowns, strict=True)
            ]
            every = [
                v.embed(r, part=self.part).flatten(1) for v, r in zip(views, rows, strict=True)
            ]
            if variant == "logistic":
                trios = zip(known, every, knowns, strict=True)
                return [self._logistic(k, a, grant, classes) for k, a, grant in trios]
            frozen: list[nn.Module] = [nn.Identity() for _ in views]
            return fit_networks(
                variant, frozen, known, knowns, every, rngs, classes, hidden=(self.hidden,),
                steps=self.steps,
            )  # fmt: skip
        models = [m for v in views if (m := own_model(v, self.part)) is not None]
        if len(models) < len(views):
            return None
        known = [own_rows(v, k.rows) for v, k in zip(views, knowns, strict=True)]
        every = [own_rows(v, r) for v, r in zip(views, rows, strict=True)]
        if variant.startswith("mixmatch"):
            codes = any(views[0].schema[p].categorical for p in views[0].adversary)
            free = [own_rows(v, v.targets["train"]) for v in views]
            return fit_mixmatch(
                variant, models, known, knowns, free, every, rngs, classes,
                MixMatch(**self.mixmatch), finetune=variant == "mixmatch", mix_inputs=not codes,
            )  # fmt: skip
        hidden = (self.hidden,) if variant.endswith("mlp") else ()
        return fit_networks(
            variant, models, known, knowns, every, rngs, classes, hidden=hidden, steps=self.steps
        )

    @staticmethod
    def _logistic(z: torch.Tensor, z_all: torch.Tensor, known: object, classes: int) -> Fit:
        sd, mean = spread(z_all)
        sd = sd.clamp_min(1e-6)
        return logistic_cv(
            ((z - mean) / sd).double().cpu().numpy(),
            known,  # type: ignore[arg-type]
            ((z_all - mean) / sd).double().cpu().numpy(),
            classes,
            "logistic",
            SHRINKAGE,
        )

    def _choose(self, r: int, view: View, rows: torch.Tensor, fits: dict[str, list[Fit]]) -> Guess:
        competing = [of[r] for of in fits.values()]
        chosen = simplest_fit(competing, view.require_known().labels)
        notes: dict[str, Any] = {
            "variant": chosen.variant, "cv": {fit.variant: round(fit.cv, 4) for fit in competing},
        }  # fmt: skip
        if chosen.penalty is not None:
            notes["c"] = chosen.penalty
        return Guess(self.target, rows.cpu().numpy(), np.asarray(chosen.scores), notes=notes)


_SETTINGS = tuple(f.name for f in fields(MixMatch))
