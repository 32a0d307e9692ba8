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

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vflsec.inference.adversary_model import own_model, own_rows
from vflsec.inference.completion import (
    SHRINKAGE,
    Fit,
    Fitted,
    Problem,
    logistic_cv,
    simplest_good,
)
from vflsec.inference.inference_heads import HeadSettings, Standardise, fit_networks, make_fronts
from vflsec.inference.joint_features import fit_head, own_blocks
from vflsec.inference.mixmatch import MixMatch, fit_mixmatch
from vflsec.nn.rows import ROWS
from vflsec.plugin import Attack, Guess, Plain, ThreatModelError, View, check, registry

ALIASES = ("pmc", "passive_model_completion")
FAMILY = "model_completion"
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
            `vflsec.inference.mixmatch.MixMatch`; published: {"epochs": 25, "iterations": 1024}.
        columns: give the logistic regression the own columns beside the embedding, in blocks of
            equal variance (`vflsec.inference.joint_features.fit_head`), for bottoms that learnt
            less than a few labels tell of own columns; drafts do. The published attack does not.
        part: the own module that is completed; ``bottom.cross`` and ``bottom.local`` are the single
            towers of the self-supervised methods, ``bottom`` is their pooling.
        reassigned: whether one more control stands beside it: the same completion of the bottom
            that the same federation trains on labels dealt out anew. What it reaches there, any
            task would have taught; the rest is what the labels left in the bottom. One training of
            each cell more.
    """

    variants: Annotated[tuple[str, ...], check.some_of(VARIANTS)] = DEFAULT
    hidden: check.Count = 32
    steps: check.Count = 150
    mixmatch: dict[str, Any] = field(default_factory=dict)
    columns: bool = False
    part: str = "bottom"
    reassigned: bool = False
    needs = frozenset({"model", "known_rows"})
    splits: ClassVar[tuple[str, ...]] = ("train", "test")
    quick = {"steps": 60}
    labelwise: ClassVar[bool] = True
    tries = (
        {"variants": ["logistic"]}, {"variants": ["finetune"]}, {"variants": ["finetune_mlp"]},
    )  # fmt: skip
    seconds: ClassVar[float] = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in self.mixmatch:
            check.one_of("model_completion.mixmatch: the key", key, _SETTINGS)
        MixMatch(**self.mixmatch)

    @property
    def trains(self) -> int:
        return int(self.reassigned)

    def infer_many(self, views: Sequence[View], rngs: Sequence[torch.Generator]) -> list[Guess]:
        ground = _Ground(views, self.part)
        fitted = [f for v in self.variants if (f := self._fit(v, ground, rngs)) is not None]
        if not fitted:
            raise ThreatModelError(
                f"{', '.join(self.variants)}: the own embedding is of several modules, which "
                "cannot be fine-tuned. Add logistic or mlp."
            )
        chosen = [_simplest(fitted, r, k.labels) for r, k in enumerate(ground.knowns)]
        guesses: dict[int, Guess] = {}
        for i in set(chosen):  # only what was chosen answers, for all its replicas at once
            which = [r for r, of in enumerate(chosen) if of == i]
            for r, fit in zip(which, fitted[i].fits(which), strict=True):
                guesses[r] = self._guess(
                    ground.rows[r], fit, [(f.variant, f.cv[r]) for f in fitted]
                )
        return [guesses[r] for r in range(len(views))]

    def _fit(self, variant: str, ground: _Ground, rngs: Sequence[torch.Generator]) -> Fitted | None:
        """One variant on all replicas, or None if this adversary has no model to fine-tune."""
        classes, knowns = ground.views[0].facts.classes, ground.knowns
        if variant == "logistic":
            return ground.logistic_beside_columns() if self.columns else ground.logistic()
        hidden = (self.hidden,) if variant.endswith("mlp") else ()
        settings = HeadSettings(hidden, self.steps)
        if variant == "mlp":
            frozen: list[nn.Module] = [nn.Identity() for _ in ground.views]
            problem = Problem(ground.frozen_known, knowns, ground.frozen, classes)
            return fit_networks(variant, frozen, problem, rngs, settings, ground.frozen_fronts)
        if len(ground.models) < len(ground.views):
            return None
        problem = Problem(ground.own_known, knowns, ground.own, classes)
        if variant.startswith("mixmatch"):
            first = ground.views[0]
            codes = any(first.schema[p].categorical for p in first.adversary)
            free = [own_rows(v, v.targets["train"]) for v in ground.views]
            return fit_mixmatch(
                variant, ground.models, problem, free, rngs, MixMatch(**self.mixmatch),
                finetune=variant == "mixmatch", mix_inputs=not codes,
            )  # fmt: skip
        return fit_networks(variant, ground.models, problem, rngs, settings, ground.fronts)

    def _guess(self, rows: Tensor, fit: Fit, tried: Sequence[tuple[str, float]]) -> Guess:
        notes: dict[str, Plain] = {
            "variant": fit.variant, "cv": {variant: round(cv, 4) for variant, cv in tried},
        }  # fmt: skip
        if fit.penalty is not None:
            notes["c"] = fit.penalty
        return Guess(self.target, rows.cpu().numpy(), np.asarray(fit.scores), notes=notes)


class _Ground:
    """What the variants start from, made once for all of them: R of each, in the views' order."""

    def __init__(self, views: Sequence[View], part: str) -> None:
        self.views, self.part = views, part
        self.rows = [v.target_rows for v in views]
        self.knowns = [v.require_known() for v in views]

    def _embedded(self, rows: Sequence[Tensor]) -> list[Tensor]:
        pairs = zip(self.views, rows, strict=True)
        return [v.embed(r, part=self.part).flatten(1) for v, r in pairs]

    @cached_property
    def frozen(self) -> list[Tensor]:
        """Embeddings of the rows to answer, (n, d)."""
        return self._embedded(self.rows)

    @cached_property
    def frozen_known(self) -> list[Tensor]:
        """Embeddings of the known rows, (q, d)."""
        return self._embedded([k.rows for k in self.knowns])

    @cached_property
    def frozen_fronts(self) -> list[Standardise]:
        """What standardises them."""
        return make_fronts(self.frozen)

    @cached_property
    def models(self) -> list[nn.Module]:
        """Own models that can be trained along; fewer than R if a view has none."""
        return [m for v in self.views if (m := own_model(v, self.part)) is not None]

    @cached_property
    def own(self) -> list[Tensor]:
        """Inputs of these models for the rows to answer."""
        return [own_rows(v, r) for v, r in zip(self.views, self.rows, strict=True)]

    @cached_property
    def own_known(self) -> list[Tensor]:
        """Inputs of these models for the known rows."""
        return [own_rows(v, k.rows) for v, k in zip(self.views, self.knowns, strict=True)]

    @property
    def fronts(self) -> list[Standardise] | None:
        """What standardises the embeddings that these models start with, if those are the same."""
        return None if any(v.encoders for v in self.views) else self.frozen_fronts

    def logistic(self) -> Fitted:
        """Logistic regression on standardised embeddings."""

        def standard(r: int, z: Tensor) -> NDArray[np.float64]:
            return self.frozen_fronts[r](z).double().cpu().numpy()  # type: ignore[no-any-return]

        def pieces(r: int) -> Iterator[NDArray[np.float64]]:
            return (standard(r, z) for z in self.frozen[r].split(ROWS))

        classes = self.views[0].facts.classes
        found = [
            logistic_cv(standard(r, z), known, partial(pieces, r), classes, "logistic", SHRINKAGE)
            for r, (z, known) in enumerate(zip(self.frozen_known, self.knowns, strict=True))
        ]
        return Fitted(
            "logistic", [c.cv for c in found], [c.held for c in found], [c.penalty for c in found],
            lambda some: [found[r].scores for r in some],
        )  # fmt: skip

    def logistic_beside_columns(self) -> Fitted:
        """The same on own columns too."""
        fits = []
        for v, rows, known in zip(self.views, self.rows, self.knowns, strict=True):
            blocks = own_blocks(v, torch.cat([known.rows, rows]), self.part)
            at = torch.arange(len(known), device=rows.device)
            fit = fit_head(blocks, at, known, v.facts.classes)
            fits.append(replace(fit, made=fit.scores))  # what answers holds all rows
        return Fitted(
            "logistic", [f.cv for f in fits], [f.held for f in fits], [f.penalty for f in fits],
            lambda some: [fits[r].scores[len(self.knowns[r]) :] for r in some],
        )  # fmt: skip


def _simplest(fitted: Sequence[Fitted], r: int, labels: Tensor) -> int:
    """Which variant replica `r` answers by: the first (the simplest) that its known rows cannot
    tell from the best; without folds the first.
    """
    held = [h for f in fitted if (h := f.held[r]) is not None]
    return simplest_good(held, labels.cpu().numpy()) if len(held) == len(fitted) else 0


_SETTINGS = tuple(f.name for f in fields(MixMatch))
