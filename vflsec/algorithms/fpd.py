"""FPD, federated privileged distillation: a joint teacher, then a student that needs no partner.

Stage ``teacher``: FedSplitNN on the aligned rows. Then the passive parties upload the embeddings of
all aligned rows once more, with their final weights, and the active party keeps them. Stage
``student``: the active party alone trains s(x_A) with the teacher frozen,

    L = beta CE(unaligned) + alpha CE(aligned) + (1 - alpha) KL[teacher || s](aligned),

on its aligned and on its labelled unaligned rows. An epoch passes once over the set in use that has
more batches; batches of the other are drawn with replacement. ``beta = "auto"`` is N_n / N_o, with
which every labelled row counts alike however often it is drawn: at 1 a small unaligned set, drawn
again and again, has as much to say as a large aligned one.

Messages: in stage ``teacher`` those of FedSplitNN, so the gradients tell labels to the passive
parties as they do there; at the start of stage ``student`` one embedding [N_o, d_k] up by passive
party; then none, and none at inference. The active party keeps what the passive ones uploaded.

Source: the baseline "FPD" of "Semi-VFL" (Li, Yao, Liu, "Vertical semi-federated learning for
efficient online advertising", arXiv:2209.15635), section 4, alpha in {0.1, ..., 0.9}, both
batches 5,000; beta, and direction and temperature of the distillation term, are not given there:
teacher first, temperature 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor, nn

from vflsec.algorithms.splitnn import SplitNN
from vflsec.core import check
from vflsec.core.federation import Federation, Pass, Phase
from vflsec.core.rng import Streams
from vflsec.core.view import Facts
from vflsec.errors import ConfigError
from vflsec.inference.distillation import kl
from vflsec.nn.models import mlp
from vflsec.plugins import registry


@registry.algorithm
@dataclass(frozen=True)
class FPD(SplitNN):
    """Hyper-parameters beside FedSplitNN's, which hold for both stages.

    Attributes:
        lr, patience: FedSplitNN's three times over, as a student's validation loss can stand still
            for some epochs at first.
        alpha: weight of the aligned rows' labels, in [0, 1]; the teacher gets 1 - alpha.
        beta: weight of the unaligned labelled rows: a number, 0 leaves them out; ``auto`` is their
            number divided by that of the aligned rows.
        student_epochs: of stage ``student``; `patience` and `select` hold for it too.
        own_batch_size: unaligned rows in a step of stage ``student``; 0 takes as many as aligned
            ones, whose number is `batch_size`.
    """

    lr: check.Positive = 3e-3
    patience: check.Whole = 15
    alpha: check.Unit = 0.5
    beta: Annotated[float | Literal["auto"], check.non_negative] = "auto"
    student_epochs: check.Whole = 30
    own_batch_size: check.Whole = 0

    quantities: ClassVar[bool] = False
    label_holder: ClassVar[bool] = False
    unaligned: ClassVar[bool] = True
    own_top: ClassVar[bool] = False
    world = {
        "task": {"unaligned": 80, "signal": 0.5}, "student_epochs": 10,
    }  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        self.need_head()

    @property
    def uses_own(self) -> bool:
        """True if stage ``student`` trains on unaligned rows too."""
        return self.beta == "auto" or self.beta > 0

    def own_weight(self, fed: Federation) -> float:
        """The number that `beta` stands for."""
        if self.beta != "auto":
            return self.beta
        aligned, own = fed.extra["sides"]
        return float(own.shape[1] / aligned.shape[1])

    def build(self, fed: Federation) -> None:
        if self.uses_own and fed.stack.unaligned_labelled().shape[1] == 0:
            raise ConfigError(
                f"{self.name}: needs labelled rows of the active party without a partner (or "
                "beta = 0). Set data.aligned, and leave data.labelled out."
            )
        super().build(fed)

    def phases(self, fed: Federation) -> list[Phase]:
        self.intersect(fed, "teacher")
        return [self.split_phase(fed, "teacher", self.epochs), self._student_phase(fed)]

    def _student_phase(self, fed: Federation) -> Phase:
        aligned = fed.stack.rows("labelled")
        own = fed.stack.unaligned_labelled() if self.uses_own else aligned[:, :0]
        fed.extra["sides"] = (aligned, own)
        walks_own = self._walks_own(fed)
        rows = own if walks_own else aligned
        size = (self.own_batch_size or self.batch_size) if walks_own else self.batch_size
        walk = Pass("train", rows, size, lambda batch: self.student_step(fed, batch), self.smallest)
        return Phase(
            "student", rows, size, self.student_epochs, walk.step,
            select=self.select, select_by=self.select_by, patience=self.patience, passes=(walk,),
            before=lambda: self.begin(fed),
            drawn=(aligned if rows is own else own,),
        )  # fmt: skip

    def _walks_own(self, fed: Federation) -> bool:
        """True if the unaligned rows have more batches than the aligned ones."""
        aligned, own = fed.extra["sides"]
        size = self.own_batch_size or self.batch_size
        return bool(own.shape[1] * self.batch_size > aligned.shape[1] * size)

    @property
    def student_parts(self) -> tuple[str, ...]:
        """Modules of the active party that stage ``student`` trains."""
        return ("student", "student_top")

    def add_student(self, fed: Federation) -> None:
        """Give the active party its student, with fresh weights."""
        active = fed.active.name
        width = self.width(active, fed.classes)
        fed.add(active, "student", self.student_bottom(fed, width))
        fed.add(active, "student_top", lambda: mlp([width, *self.top, fed.classes]))

    def student_bottom(self, fed: Federation, width: int) -> Callable[[], nn.Module]:
        """How a bottom of the active party's columns is made in stage ``student``."""
        active = fed.active.name
        return self._made(fed.stack.first.schema[active], width, self.parties.get(active, {}))

    @torch.no_grad()
    def begin(self, fed: Federation) -> None:
        """The last upload, the teacher's answers, and a fresh student."""
        rows = fed.stack.rows("labelled")
        self.number(fed, rows)
        kept = []
        for party in (fed.active, *self.passive(fed)):
            h = party.modules["bottom"](fed.columns(party.name, rows), train=False)
            if not party.active:
                link = fed.link(party.name)
                if "embedding" in link.replaces:
                    h = link.up(fed, h, rows)
                else:
                    h = fed.send("embedding", party.name, fed.active.name, h, rows, name="cache")
            kept.append(h)
        fed.extra["kept"] = kept
        fed.extra["teacher"] = self.logits(fed, kept, train=False)
        self.add_student(fed)
        fed.active.start(self.optimizer, self.lr, self.weight_decay, embedding_l2=self.embedding_l2)

    def student_step(self, fed: Federation, rows: Tensor) -> None:
        """One update of the student on a batch of the set that is walked (R, b) and one drawn from
        the other.
        """
        aligned, own = fed.extra["sides"]
        batch: tuple[Tensor, Tensor | None]
        if self._walks_own(fed):
            size = self.batch_size if self.own_batch_size else rows.shape[1]
            batch = (self._drawn(fed, aligned, size), rows)
        else:
            size = self.own_batch_size or rows.shape[1]
            batch = (rows, self._drawn(fed, own, size) if own.shape[1] else None)
        total = self.student_loss(fed, *batch).sum()
        params = fed.active.parameters(self.student_parts)
        grads = torch.autograd.grad(total, params, allow_unused=True)
        fed.active.update(grads, self.student_parts)

    def _drawn(self, fed: Federation, rows: Tensor, count: int) -> Tensor:
        draws = fed.extra.setdefault(
            "drawn", Streams(fed.seeds, "batches", "other", device=fed.stack.device)
        )
        return rows.gather(1, draws.integers(rows.shape[1], (count,)))

    def student_loss(self, fed: Federation, aligned: Tensor, own: Tensor | None) -> Tensor:
        """Loss (R,) on aligned rows (R, b) and on unaligned labelled rows, if any."""
        logits = self.student(fed, aligned, train=True)
        terms = []
        if self.alpha > 0:
            terms.append(self.alpha * fed.loss(logits, fed.targets(aligned)))
        if self.alpha < 1:
            taught = self.recall(fed, fed.extra["teacher"], aligned)
            terms.append((1 - self.alpha) * kl(taught, logits))
        if own is not None:
            labelled = fed.loss(self.student(fed, own, train=True), fed.targets(own))
            terms.append(self.own_weight(fed) * labelled)
        return torch.stack(terms).sum(0) if len(terms) > 1 else terms[0]

    def student(self, fed: Federation, rows: Tensor, *, train: bool) -> Tensor:
        """The student's logits (R, b, C)."""
        modules = fed.active.modules
        x = fed.columns(fed.active.name, rows, train=train)
        return modules["student_top"](modules["student"](x, train=train), train=train)

    @torch.no_grad()
    def predict(self, fed: Federation, rows: Tensor) -> Tensor:
        if fed.phase == "teacher":
            return super().predict(fed, rows)
        return self.student(fed, rows, train=False)

    def facts(self, fed: Federation) -> Facts:
        facts = super().facts(fed)
        return replace(facts, epochs=self.student_epochs) if fed.phase == "student" else facts

    def planned_facts(self, active: str, parties: tuple[str, ...], classes: int) -> Facts:
        return replace(super().planned_facts(active, parties, classes), phase="teacher")
