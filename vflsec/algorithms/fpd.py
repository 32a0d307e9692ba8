"""FPD, federated privileged distillation: a joint teacher, then a student that needs no partner.

Stage ``teacher``: FedSplitNN on the aligned rows. Then the passive parties upload the embeddings of
all aligned rows once more, with their final weights, and the active party keeps them. Stage
``student``: the active party alone trains s(x_A) with the teacher frozen,

    L = beta CE(unaligned) + alpha CE(aligned) + (1 - alpha) KL[teacher || s](aligned),

on its aligned and on its labelled unaligned rows. An epoch passes once over the larger of the two
sets that are in use; batches of the other are drawn with replacement.

Messages: in stage ``teacher`` those of FedSplitNN, so the gradients tell labels to the passive
parties as they do there; at the start of stage ``student`` one embedding [N_o, d_k] up by passive
party; then none, and none at inference. The active party keeps what the passive ones uploaded.

Source: the baseline "FPD" of "Semi-VFL" (Li, Yao, Liu, "Vertical semi-federated learning for
efficient online advertising", arXiv:2209.15635), section 4; direction and temperature of the
distillation term are not given there: teacher first, temperature 1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from vflsec import check, registry
from vflsec.algorithms.splitnn import SplitNN
from vflsec.errors import ConfigError
from vflsec.federation import Federation, Pass, Phase
from vflsec.nn.imitation import kl
from vflsec.nn.models import mlp
from vflsec.rng import Streams
from vflsec.view import Facts


@registry.algorithm
@dataclass(frozen=True)
class FPD(SplitNN):
    """Hyper-parameters beside FedSplitNN's, which hold for both stages.

    Attributes:
        alpha: weight of the aligned rows' labels, in [0, 1]; the teacher gets 1 - alpha.
        beta: weight of the unaligned labelled rows; 0 leaves them out.
        student_epochs: of stage ``student``; `patience` and `select` hold for it too.
    """

    alpha: float = 0.5
    beta: float = 1.0
    student_epochs: int = 30

    unaligned: ClassVar[bool] = True
    world: ClassVar[dict[str, Any]] = {
        "task": {"unaligned": 80, "signal": 0.5}, "student_epochs": 10,
    }  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        check.in_unit(f"{self.name}.alpha", self.alpha)
        check.non_negative(f"{self.name}.beta", self.beta)
        check.integer(f"{self.name}.student_epochs", self.student_epochs, low=0)
        if not self.has_top:
            raise ConfigError(
                f"{self.name}: must have a head that works without the passive parties, got "
                "top = [] and linear_top = false. Leave linear_top at true."
            )

    def build(self, fed: Federation) -> None:
        if self.beta > 0 and fed.stack.unaligned_labelled().shape[1] == 0:
            raise ConfigError(
                f"{self.name}: needs labelled rows of the active party without a partner (or "
                "beta = 0), got none. Set data.aligned to a share or number of rows, and leave "
                "data.labelled out: it takes the labels of all other rows away."
            )
        super().build(fed)

    def phases(self, fed: Federation) -> list[Phase]:
        self.intersect(fed, "teacher")
        return [self.split_phase(fed, "teacher", self.epochs), self._student_phase(fed)]

    def _student_phase(self, fed: Federation) -> Phase:
        aligned = fed.stack.rows("labelled")
        own = fed.stack.unaligned_labelled() if self.beta > 0 else aligned[:, :0]
        fed.extra["sides"] = (aligned, own)
        rows = own if own.shape[1] > aligned.shape[1] else aligned
        walk = Pass("train", rows, self.batch_size, lambda batch: self.student_step(fed, batch))
        return Phase(
            "student", rows, self.batch_size, self.student_epochs, walk.step,
            select=self.select, select_by=self.select_by, patience=self.patience, passes=(walk,),
            before=lambda: self.begin(fed),
            drawn=(aligned if rows is own else own,),
        )  # fmt: skip

    @property
    def student_parts(self) -> tuple[str, ...]:
        """Modules of the active party that stage ``student`` trains."""
        return ("student", "student_top")

    def add_student(self, fed: Federation) -> None:
        """Give the active party its student, with fresh weights."""
        active = fed.active.name
        width = self.width(active, fed.classes)
        fed.add(active, "student", self._bottom(fed, active, width))
        fed.add(active, "student_top", lambda: mlp([width, *self.top, fed.classes]))

    @torch.no_grad()
    def begin(self, fed: Federation) -> None:
        """The last upload, the teacher's answers, and a fresh student."""
        rows = fed.stack.rows("labelled")
        place = torch.zeros(fed.labels.shape[:2], dtype=torch.int64, device=rows.device)
        order = torch.arange(rows.shape[1], device=rows.device)
        fed.extra["place"] = place.scatter(1, rows, order.expand_as(rows))
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
        fed.active.start(self.optimizer, self.lr, self.weight_decay)

    def recall(self, fed: Federation, what: Tensor, rows: Tensor) -> Tensor:
        """Kept values (R, N_o, d) of aligned rows (R, b), (R, b, d)."""
        place = fed.extra["place"].gather(1, rows).unsqueeze(2)
        return what.gather(1, place.expand(-1, -1, what.shape[2]))

    def student_step(self, fed: Federation, rows: Tensor) -> None:
        """One update of the student on a batch of the larger set (R, b) and one of the other."""
        aligned, own = fed.extra["sides"]
        batch: tuple[Tensor, Tensor | None]
        if own.shape[1] > aligned.shape[1]:
            batch = (self._drawn(fed, aligned, rows.shape[1]), rows)
        else:
            batch = (rows, self._drawn(fed, own, rows.shape[1]) if own.shape[1] else None)
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
            terms.append(self.beta * fed.loss(self.student(fed, own, train=True), fed.targets(own)))
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
