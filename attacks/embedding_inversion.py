"""Embedding inversion: a decoder from received embeddings back to the sender's columns.

The active party sees z_i = f(x_i) of every training row. On q auxiliary rows whose columns x_i it
knows (common customers, a leaked file), it fits a decoder, and applies it to all other rows:
    linear:   ridge regression from [z, own columns]
    network:  a multilayer perceptron from [z, own columns], squared error, Adam
The variant with the larger cross-validated R^2 on the auxiliary rows answers. One-hot columns count
as numbers.

Attacker: the party that receives embeddings (the active party), honest but curious. Needs
``aux_rows`` auxiliary rows; black box otherwise. Its control is the same regression without z.
Known failure cases: an embedding narrower than the columns cannot hold them all, so look at R^2 by
what it adds to the control; fewer auxiliary rows than embedding columns; the embeddings used are
those of the last epoch, which early stopping may have discarded.

Source: He, Zhang, Lee, "Model inversion attacks against collaborative inference", ACSAC 2019,
section on inverse networks; Li et al., "ResSFL: A resistance transfer framework for defending model
inversion attack in split federated learning", CVPR 2022, arXiv:2205.04007 (decoder, 50 epochs,
1e-3).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from vflsec import check, registry
from vflsec.attack import Attack
from vflsec.guess import Guess
from vflsec.nn.regression import Regression, fit_regressors, ridge
from vflsec.view import View

ALIASES = ("decoder", "inversion", "model_inversion")
FAMILY = "Features of another party"
VARIANTS = ("linear", "network")


@registry.attack
@dataclass(frozen=True)
class EmbeddingInversion(Attack):
    """Hyper-parameters.

    Attributes:
        on: what is decoded: the ``embedding``, or the ``activation``, which is the output of an
            encrypted interactive layer where the embedding itself is never seen.
        variants: which of ``linear`` and ``network`` compete; ties go to the earlier one.
        hidden: widths of the network's hidden layers.
        steps, lr: of full-batch Adam.
    """

    on: Literal["embedding", "activation"] = "embedding"
    variants: tuple[str, ...] = VARIANTS
    hidden: tuple[int, ...] = (64,)
    steps: int = 300
    lr: float = 3e-3
    target: ClassVar[str] = "feature"
    seconds: ClassVar[float] = 0.1

    def __post_init__(self) -> None:
        if not self.variants:
            raise check.fail("embedding_inversion.variants", "a list of at least one", ())
        for v in self.variants:
            check.one_of("embedding_inversion.variants", v, VARIANTS)
        check.one_of("embedding_inversion.on", self.on, ("embedding", "activation"))
        for width in self.hidden:
            check.integer("embedding_inversion.hidden", width)
        check.integer("embedding_inversion.steps", self.steps)
        check.positive("embedding_inversion.lr", self.lr)

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        return frozenset({f"{self.on}:last+", "aux_rows"})

    def infer(self, view: View, rng: torch.Generator) -> Guess:
        return self.infer_many([view], [rng])[0]

    def infer_many(self, views: Sequence[View], rngs: Sequence[torch.Generator]) -> list[Guess]:
        known, asked, values, rows = [], [], [], []
        for view in views:
            table = view.received(self.on, "last+")
            aux, columns = view.require_aux()
            target = view.targets["train"]
            known.append(torch.cat([table.of_rows(aux).flatten(1), view.design(aux)], dim=1))
            asked.append(torch.cat([table.of_rows(target).flatten(1), view.design(target)], dim=1))
            values.append(columns)
            rows.append(target)
        fits: dict[str, list[Regression]] = {}
        for variant in self.variants:
            if variant == "linear":
                trios = zip(known, values, asked, strict=True)
                fits[variant] = [ridge(variant, x, y, t) for x, y, t in trios]
            else:
                fits[variant] = fit_regressors(
                    variant, known, values, asked, rngs,
                    hidden=self.hidden, steps=self.steps, lr=self.lr,
                )  # fmt: skip
        out = []
        for r, view in enumerate(views):
            cv = {v: fits[v][r].cv for v in self.variants}
            best = max(self.variants, key=cv.__getitem__)
            notes = {
                "variant": best,
                "victim": "+".join(view.victims),
                "cv": {v: round(cv[v], 4) for v in self.variants},
            }
            out.append(Guess(self.target, rows[r], fits[best][r].values, notes=notes))
        return out
