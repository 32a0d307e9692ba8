"""APC-VFL: one upload of representations learned alone, then distillation at the active party.

1. ``autoencoder:PARTY``: each party trains an autoencoder on all rows it has, alone: an encoder
   h_k = f_k(x_k) (b, d_k) and a decoder, by the reconstruction error of its columns.
2. Each passive party sends h_k (N_a, d_k) of the aligned rows, labelled or not, once.
3. ``teacher``: the active party trains a joint autoencoder on all h_k of these rows, side by side,
   its own among them. Its latent t (N_a, d) is the teacher's representation.
4. ``student``: it trains a student autoencoder of its own columns, with latent s (b, d), on all
   rows it has, by the mean over rows of

       reconstruction error + lambda |s - t|^2 / d, the latter for aligned rows only,

   with t in standard deviations from its mean.

5. ``classifier``: it trains a head on s, the encoder frozen, on all its labelled rows, and answers
   without a partner.

Messages: the aligned ids and one embedding up by passive party; no gradient and nothing at
inference, so that no label leaves, in any form. What a passive party has at the end is what it
could have trained alone, and no defense of labels or gradients has anything to protect. With
lambda = 0, without a partner or without aligned rows nothing is sent, and stages 1 to 3 are left
out. An autoencoder keeps what it can: h_k as wide as the columns is as good as these themselves to
whoever knows some rows. Behind an encrypted layer it passes one whose weights never train.

Source: Irureta, Imaz, Lojo, Fernandez-Marques, Marco, Gonzalez, Perona, "Towards active participant
centric vertical federated learning: some representations may be all you need", arXiv:2410.17648v2
(2025): the stages, one communication, autoencoders, distillation and serving alone. Our readings,
of what its abstract and summaries leave open: stage 1 on all rows (a summary says aligned ones),
the squared distance, h_k and t in standard deviations (a latent has no scale of its own), lambda,
widths and layers, a category as a one-hot vector that counts as one column, a share of rows held
out at home to stop each autoencoder, a head of one hidden layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Annotated, ClassVar, Protocol

import torch
from torch import Tensor, nn

from vflsec.algorithms.local import own_labelled
from vflsec.algorithms.splitnn import SplitNN
from vflsec.core import check
from vflsec.core.algorithm import Algorithm
from vflsec.core.federation import Federation, Pass, Phase
from vflsec.core.party import Party
from vflsec.core.phase import hold_out
from vflsec.core.view import Facts
from vflsec.nn.models import mlp
from vflsec.plugins import registry


class Losses(Protocol):
    """Losses (R, b) of rows (R, b), in training or to judge."""

    def __call__(self, rows: Tensor, *, train: bool) -> Tensor: ...


@registry.algorithm
@dataclass(frozen=True)
class APCVFL(SplitNN):
    """Hyper-parameters beside FedSplitNN's: `epochs`, `patience` and `select` are the classifier's,
    `cut` is the width of what is sent, `hidden` holds for all encoders, mirrored for decoders.

    Attributes:
        top: widths of the hidden layers of the head.
        aggregation: always side by side.
        returns_predictions: always False.
        joint: width d of the teacher's and the student's latent.
        distill: lambda; 0 trains a student that has heard nothing.
        autoencoder_epochs: the most passes of each autoencoder over its rows.
        autoencoder_patience: passes without a lower error on rows held out at home before one
            stops with its best weights; 0 trains all.
        held_out: share of its rows by which an autoencoder is judged so; 0 trains all passes.
        finetune: True trains the student's encoder with the head in stage 5.
    """

    top: tuple[check.Count, ...] = (64,)
    aggregation: Annotated[str, check.among("concat")] = "concat"
    returns_predictions: Annotated[bool, check.among(False)] = False
    joint: check.Count = 32
    distill: check.NonNegative = 1.0
    autoencoder_epochs: check.Whole = 30
    autoencoder_patience: check.Whole = 5
    held_out: check.BelowOne = 0.2
    finetune: bool = False

    sends: ClassVar[frozenset[tuple[str, str, str]]] = frozenset(
        {("embedding", "passive", "active"), ("ids", "active", "passive")}
    )
    label_holder: ClassVar[bool] = False
    world = {"task": {"unaligned": 40, "signal": 0.5}, "autoencoder_epochs": 10}

    def __post_init__(self) -> None:
        super().__post_init__()
        self.need_head()

    def build(self, fed: Federation) -> None:
        super().build(fed)
        active, wide = fed.active.name, 0
        for party in self.holders(fed):
            cut = self.width(party.name, fed.outputs)
            wide += cut if party.active else fed.link(party.name).width(cut)
            fed.add(party.name, "decoder", self._decoder(fed, party.name, cut))
        back = self.hidden[::-1]
        fed.add(active, "joint", lambda: mlp([wide, *self.hidden, self.joint]))
        fed.add(active, "joint_decoder", lambda: mlp([self.joint, *back, wide]))
        schema = fed.stack.first.schema[active]
        fed.add(active, "student", self._made(schema, self.joint, self.parties.get(active, {})))
        fed.add(active, "student_decoder", self._decoder(fed, active, self.joint))
        fed.add(active, "top", self._top(self.joint, fed.outputs))

    def _decoder(self, fed: Federation, party: str, width: int) -> Callable[[], nn.Module]:
        hidden = tuple(self.parties.get(party, {}).get("hidden", self.hidden))
        out = len(fed.stack.first.schema[party].design_places())
        return lambda: mlp([width, *hidden[::-1], out])

    def distils(self, fed: Federation) -> bool:
        """True if the student has a teacher."""
        aligned = fed.stack.rows("aligned").shape[1]
        return self.distill > 0 and bool(self.passive(fed)) and aligned > 0

    def phases(self, fed: Federation) -> list[Phase]:
        active = fed.active
        rows, parts = fed.stack.rows(f"local:{active.name}"), ("student", "student_decoder")
        student = self._fit(fed, active, "student", rows, parts, partial(self.student_losses, fed))
        classifier = self._classifier(fed)
        if not self.distils(fed):
            return [student, classifier]
        student.before = partial(self.teach, fed)
        self.intersect(fed, "teacher")
        rows, parts = fed.stack.rows("aligned"), ("joint", "joint_decoder")
        teacher = self._fit(fed, active, "teacher", rows, parts, partial(self.teacher_losses, fed))
        teacher = replace(teacher, before=partial(self.collect, fed), audited=True)
        alone = [self.autoencoder(fed, party) for party in self.holders(fed)]
        return [*alone, teacher, student, classifier]

    def autoencoder(self, fed: Federation, party: Party) -> Phase:
        """Stage 1 of one party."""
        name, rows = f"autoencoder:{party.name}", fed.stack.rows(f"local:{party.name}")
        losses = partial(self.own_losses, fed, party)
        return self._fit(fed, party, name, rows, ("bottom", "decoder"), losses)

    def _fit(
        self, fed: Federation, party: Party, name: str, rows: Tensor, parts: tuple[str, ...],
        losses: Losses,
    ) -> Phase:  # fmt: skip
        """Training of some modules of a party at home, on rows (R, n)."""
        walked, held = hold_out(rows, self.held_out)

        def step(batch: Tensor) -> None:
            total = losses(batch, train=True).mean(1).sum()
            party.update(torch.autograd.grad(total, party.parameters(parts)), parts)

        def regret() -> Tensor:
            found = [losses(some, train=False) for some in held.split(4096, dim=1)]
            return torch.cat(found, dim=1).mean(1)

        return Phase(
            name, walked, self.batch_size, self.autoencoder_epochs, step,
            judged={party.name: regret} if held.shape[1] else {},
            patience=self.autoencoder_patience, before=partial(self.restart, fed),
            audited=False, predicts=False, smallest=self.smallest,
        )  # fmt: skip

    def _coded(
        self, fed: Federation, party: Party, parts: tuple[str, str], rows: Tensor, *, train: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Columns x, their latent, and the error (R, b) of what is made of it: squares summed over
        :meth:`vflsec.core.view.Schema.design`, by column of x.
        """
        x = fed.columns(party.name, rows, train=train)
        z = party.modules[parts[0]](x, train=train)
        made, schema = party.modules[parts[1]](z, train=train), fed.stack.first.schema[party.name]
        wanted = schema.design(x.flatten(0, 1)).view_as(made)
        return x, z, (made - wanted).square().sum(-1) / math.prod(schema.shape)

    def own_losses(self, fed: Federation, party: Party, rows: Tensor, *, train: bool) -> Tensor:
        """Stage 1, on any rows of a party."""
        x, z, wrong = self._coded(fed, party, ("bottom", "decoder"), rows, train=train)
        if not train or party.active:  # whose penalties are on what is labelled
            return wrong
        penalty = fed.penalty(party.name, x, {party.name: z}, None)
        return wrong if penalty is None else wrong + penalty.unsqueeze(1)

    @torch.no_grad()
    def collect(self, fed: Federation) -> None:
        """Stage 2: the active party gets and keeps what all have of the aligned rows."""
        rows, kept = fed.stack.rows("aligned"), []
        self.number(fed, rows)
        for party in self.holders(fed):
            h = self.represent(fed, party, rows)
            kept.append(h if party.active else fed.link(party.name).up(fed, h, rows))
        fed.extra["kept"] = in_deviations(torch.cat(kept, dim=-1))
        none = torch.zeros(fed.labels.shape[:2], dtype=torch.bool, device=rows.device)
        fed.extra["aligned"] = none.scatter(1, rows, True)
        self.restart(fed)

    def teacher_losses(self, fed: Federation, rows: Tensor, *, train: bool) -> Tensor:
        """Stage 3, on aligned rows."""
        kept, modules = self.recall(fed, fed.extra["kept"], rows), fed.active.modules
        made = modules["joint_decoder"](modules["joint"](kept, train=train), train=train)
        return (made - kept).square().mean(-1)

    @torch.no_grad()
    def teach(self, fed: Federation) -> None:
        """Before stage 4: what the student is to come near to, for all aligned rows."""
        t = fed.active.modules["joint"](fed.extra["kept"], train=False)
        fed.extra["taught"] = in_deviations(t)
        self.restart(fed)

    def student_losses(self, fed: Federation, rows: Tensor, *, train: bool) -> Tensor:
        """Stage 4, on any rows of the active party."""
        parts = ("student", "student_decoder")
        _, s, wrong = self._coded(fed, fed.active, parts, rows, train=train)
        if not self.distils(fed):
            return wrong
        far = (s - self.recall(fed, fed.extra["taught"], rows)).square().mean(-1)
        return wrong + self.distill * far * fed.extra["aligned"].gather(1, rows)

    def _classifier(self, fed: Federation) -> Phase:
        rows, step = own_labelled(fed), partial(self.classifier_step, fed)
        walk = Pass("train", rows, self.batch_size, step, self.smallest)
        return Phase(
            "classifier", rows, self.batch_size, self.epochs, step, passes=(walk,),
            select=self.select, select_by=self.select_by, patience=self.patience,
            before=partial(self.restart, fed),
        )  # fmt: skip

    def classifier_step(self, fed: Federation, rows: Tensor) -> None:
        """Stage 5: one update of the head on labelled rows (R, b)."""
        active, y = fed.active, fed.targets(rows)
        parts = ("student", "top") if self.finetune else ("top",)
        x = fed.columns(active.name, rows)
        with torch.set_grad_enabled(self.finetune):
            s = active.modules["student"](x, train=self.finetune)
        total = fed.loss(active.modules["top"](s), y)
        penalty = fed.penalty(active.name, x, {active.name: s}, y)
        total = total if penalty is None else total + penalty
        active.update(torch.autograd.grad(total.sum(), active.parameters(parts)), parts)

    @torch.no_grad()
    def predict(self, fed: Federation, rows: Tensor) -> Tensor:
        x, modules = fed.columns(fed.active.name, rows, train=False), fed.active.modules
        return modules["top"](modules["student"](x, train=False), train=False)

    def facts(self, fed: Federation) -> Facts:
        facts = super().facts(fed)
        if fed.phase != "teacher":
            return facts
        return replace(facts, batch_size=fed.stack.rows("aligned").shape[1], epochs=1)

    def planned_facts(self, active: str, parties: tuple[str, ...], classes: int) -> Facts:
        facts = super().planned_facts(active, parties, classes)
        return replace(facts, phase="teacher", extra={**facts.extra, "top_input": "latents"})

    def local_training(self, party: str) -> Algorithm:
        return Alone(**{f.name: getattr(self, f.name) for f in fields(self)}, only=party)


@dataclass(frozen=True)
class Alone(APCVFL):
    """Stage 1 of one party, and nothing else: what it has without the federation.

    Attributes:
        only: that party.
    """

    only: str = ""

    def phases(self, fed: Federation) -> list[Phase]:
        return [self.autoencoder(fed, fed.parties[self.only])]


def in_deviations(h: Tensor) -> Tensor:
    """Representations (R, n, d) in standard deviations from their mean over rows."""
    return (h - h.mean(1, keepdim=True)) / h.std(1, keepdim=True).clamp_min(1e-6)
