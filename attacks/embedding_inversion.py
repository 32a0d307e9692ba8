"""Embedding inversion: a decoder from received embeddings back to the sender's columns.

The active party sees z_i = f(x_i) of every training row. On q auxiliary rows whose columns x_i it
knows (common customers, a leaked file), it fits decoders, and applies them to all other rows:
    linear:   ridge regression from [z, own columns]
    entry:    a line through the one number of z that goes with a column most
    network:  a multilayer perceptron from [z, own columns], squared error, Adam
    own:      ridge regression and such a network from own columns alone
The label party's own labels count among its own columns. Of z as it is read in several ways
(`vflsec.inference.embedding_readout`): the last, the first, and the mean over
epochs, for noise that is drawn anew in every epoch averages out, and a penalty on embeddings has
not acted yet when the first are sent; where embeddings of a batch, or those at one place in it,
share most of what they are (noise drawn once for all of them), the mean of what they do not share;
the last less the first, free of noise that is drawn once for a row; z / |z| and the products of two
entries of it, free of a factor drawn for each row; lengths, sizes and zeros, where a column may
stand that no entry tells; the last and the mean less what own columns tell of them; and the
products of an entry and an own column, for a column may be masked by what the receiver has. Of
single products one entry alone is tried. The network is fitted to the reading of which ``linear``
tells most. The fit with the largest cross-validated R^2 on the auxiliary rows answers, each column
also by the one that tells it best there, both as far as that is no luck.
One-hot columns count as numbers. Beside the mean R^2 over columns stands that of the one column
(``r2_column``) on which embeddings add most to own columns by cross-validation on auxiliary rows.

Attacker: the party that receives embeddings (the active party), honest but curious. Needs
``aux_rows`` auxiliary rows; black box otherwise. Its controls are the same regressions without z,
with own labels and without.
Known failure cases: an embedding narrower than the columns cannot hold them all, so look at R^2 by
what it adds to the control; fewer auxiliary rows than embedding columns; epochs between the first
and the last are seen in their mean alone; in a mean R^2 over many columns one is lost; what is
behind a sign or a rotation that is drawn for a batch.

Source: He, Zhang, Lee, "Model inversion attacks against collaborative inference", ACSAC 2019,
section on inverse networks; Li et al., "ResSFL: A resistance transfer framework for defending model
inversion attack in split federated learning", CVPR 2022, arXiv:2205.04007 (decoder, 50 epochs,
1e-3).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from vflsec.inference.embedding_readout import TIMES, list_readings, multiply_readings
from vflsec.inference.ridge_regression import (
    Regression,
    by_column,
    by_entry,
    choose_best,
    fit_regressors,
    fit_ridges,
    of_columns,
)
from vflsec.plugin import Attack, Guess, Plain, Table, View, check, registry
from vflsec.specs import NAMED

ALIASES = ("decoder", "inversion", "model_inversion")
FAMILY = "features"
VARIANTS = ("linear", "entry", "network")


@registry.attack
@dataclass(frozen=True)
class EmbeddingInversion(Attack):
    """Hyper-parameters.

    Attributes:
        on: what is decoded: the ``embedding``, or the ``activation``, which is the output of an
            encrypted interactive layer where the embedding itself is never seen.
        variants: which of ``linear``, ``entry`` and ``network`` compete; ties go to the earlier
            one.
        hidden: widths of the network's hidden layers.
        steps, lr: of full-batch Adam.
    """

    on: Literal["embedding", "activation"] = "embedding"
    variants: Annotated[tuple[str, ...], check.some_of(VARIANTS)] = VARIANTS
    hidden: tuple[check.Count, ...] = (64,)
    steps: check.Count = 300
    lr: check.Positive = 3e-3
    target: ClassVar[str] = "feature"
    seconds: ClassVar[float] = 0.25

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        return frozenset({*(f"{self.on}:{form}+" for form in TIMES), "aux_rows"})

    def infer_many(self, views: Sequence[View], rngs: Sequence[torch.Generator]) -> list[Guess]:
        return self.decode(views, rngs, TIMES)

    def decode(
        self, views: Sequence[View], rngs: Sequence[torch.Generator], times: Sequence[str]
    ) -> list[Guess]:
        """The answers from embeddings of `times`, some of :data:`TIMES`, the usual one first."""
        fits: list[list[Regression]] = [[] for _ in views]
        wide: list[tuple[str, Tensor, Tensor]] = []
        alone: list[tuple[str, Tensor, Tensor]] = []
        values = []

        @lru_cache(maxsize=1)  # readings of all views would not fit the memory
        def read(k: int) -> Mapping[str, Table]:
            return list_readings(views[k], self.on, times)

        def entries(k: int, form: str, rows: Tensor) -> Tensor:
            return read(k)[form].of_rows(rows).flatten(1)

        def beside(k: int, form: str, rows: Tensor, own: Tensor) -> Tensor:
            return torch.cat([entries(k, form, rows), own], dim=1)

        def picked(k: int, form: str, rows: Tensor, at: Tensor) -> Tensor:
            return entries(k, form, rows)[:, at]

        for k, (view, mine) in enumerate(zip(views, fits, strict=True)):
            target = view.targets["train"]
            aux, columns = view.require_aux()
            own, rest = view.own(aux), view.own(target)
            if own.shape[1]:
                mine += fit_ridges("own", own, columns, rest)
            tried = []
            for form in read(k):
                of = "" if form == times[0] else f", {form}"
                both, asked = beside(k, form, aux, own), partial(beside, k, form, target, rest)
                told = fit_ridges(f"linear{of}", both, columns, asked)
                tried.append((max(f.cv for f in told), (f"network{of}", both, asked)))
                mine += told if "linear" in self.variants else []
                if "entry" in self.variants:
                    z, there = entries(k, form, aux), partial(picked, k, form, target)
                    mine.append(by_entry(f"entry{of}", z, columns, there))
            if "entry" in self.variants and len(times) > 1:
                mine += self._by_product(view, aux, columns)
            name, both, asked = max(tried, key=lambda t: t[0])[1]
            wide.append((name, both, asked()))
            alone.append(("own, network", own, rest))
            values.append(columns)
        read.cache_clear()
        if "network" in self.variants:
            for inputs in (wide, alone) if alone[0][1].shape[1] else (wide,):
                self._networks(inputs, values, rngs, fits)
        return [
            self._answer(view, columns, mine)
            for view, columns, mine in zip(views, values, fits, strict=True)
        ]

    def _by_product(self, view: View, aux: Tensor, columns: Tensor) -> list[Regression]:
        q, rows = len(aux), torch.cat([aux, view.targets["train"]])

        def asked(name: str, at: Tensor) -> Tensor:
            return multiply_readings(view, self.on, rows)[name].numbers(slice(q, None), at)

        return [
            by_entry(f"entry, {name}", of.numbers(slice(q)), columns, partial(asked, name))
            for name, of in multiply_readings(view, self.on, rows).items()
        ]

    def _networks(
        self, inputs: Sequence[tuple[str, Tensor, Tensor]], values: Sequence[Tensor],
        rngs: Sequence[torch.Generator], fits: Sequence[list[Regression]],
    ) -> None:  # fmt: skip
        """Add a network to the fits of each view; those of one width are fitted as one."""
        for width in dict.fromkeys(x.shape[1] for _, x, _ in inputs):
            of = [r for r, (_, x, _) in enumerate(inputs) if x.shape[1] == width]
            found = fit_regressors(
                "network", [inputs[r][1] for r in of], [values[r] for r in of],
                [inputs[r][2] for r in of], [rngs[r] for r in of],
                hidden=self.hidden, steps=self.steps, lr=self.lr,
            )  # fmt: skip
            for r, fit in zip(of, found, strict=True):
                fits[r].append(replace(fit, variant=inputs[r][0]))

    def _answer(self, view: View, columns: Tensor, fits: Sequence[Regression]) -> Guess:
        of = view.aux_columns
        fits = of_columns(fits, columns, of)
        found, names = choose_best(fits, columns, of)
        notes: dict[str, Plain] = {
            "variant": max(names, key=names.count),
            "victim": "+".join(view.victims),
            "cv": {
                v: round(max(f.cv for f in fits if f.variant == v), 4)
                for v in dict.fromkeys(f.variant for f in fits)
            },
        }
        if found.held is not None:
            own = [by_column(f.held, columns) for f in fits
                   if f.held is not None and f.variant.startswith("own")]  # fmt: skip
            gain = by_column(found.held, columns)
            if own:
                gain = gain - torch.stack(own).amax(0).clamp_min(0)
            place = int(gain.argmax())
            titles = [n for p in view.aux or {} for n in view.schema[p].design_names()]
            notes |= {NAMED: place, "column": titles[place]}
        return Guess(self.target, view.targets["train"], found.values, notes=notes)
