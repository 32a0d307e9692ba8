"""JPL, joint privileged learning: a student at the active party that imagines the absent partner.

Two classes. Stage ``teacher`` and the last upload are FPD's. Stage ``student``: the
active party alone trains, all on x_A: f_A^S (its own representation h_A), f_B^S (an imitation of
the partner's, h_B), and the heads g_A(h_A), g_B(h_B) and g_Fed(h_A, h_B), by

    L = L_imitate + L_de + L_prc + beta (L_csi + L_de' + L_prc')      (aligned; unaligned)

with L_imitate the CME family on f_B^S against the partner's embeddings (eqs. 3-5), L_de the
discrimination equivalence (6), L_csi similarity consistency (8), L_de' three cross entropies (9-10)
and L_prc pairwise ranking between the A and the Fed head (13, 14). As printed g_A gets no label at
all and g_Fed none on aligned rows; cross entropy and distillation for both are added behind weights
of their own (``a_*``, ``fed_*``). Inference is sigma((y_A + y_Fed) / 2), without the partner.

The paper has one partner. Several passive parties are taken as one here, whose representation is
theirs side by side: h_B = [h_2, ..., h_K], in every term above; with one it is the paper's.

Messages: as FPD: labels leak through the gradients of stage ``teacher`` only; [N_o, d_B] up once;
nothing after, and none at inference.

Source: Li, Yao, Liu, "Vertical semi-federated learning for efficient online advertising",
arXiv:2209.15635 (2022), equations 3 to 16. Our readings: off-diagonal bCME; r the identity; CSI
summed over rows as printed, its temperature 0.1 (none is given; as a mean at temperature 1 its
gradient is 1e-5 of CME's, which does nothing); PRC's weight 0.1 (printed are 1 all round), its last
term normalised (``printed_prc`` for the literal form); no gradient into g_B(h_B^T) inside the
second KL of (6); the norm of the embeddings is weight decay.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from vflsec.algorithms.fpd import FPD
from vflsec.core import check
from vflsec.core.federation import Federation
from vflsec.errors import ConfigError
from vflsec.inference.distillation import csi, imitation, kl, prc
from vflsec.nn.models import TabularInput, mlp
from vflsec.nn.replicas import Replicas
from vflsec.plugins import registry

_WEIGHTS = (
    "imitate", "equivalence", "similarity", "own_labels", "ranking",
    "a_labels", "a_teacher", "a_own", "fed_labels", "fed_teacher",
)  # fmt: skip


@registry.algorithm
@dataclass(frozen=True)
class JPL(FPD):
    """Hyper-parameters beside FPD's.

    Attributes:
        alpha: weight of the teacher's KL in eq. 6 (not FPD's meaning), in [0, 1].
        beta: weight of everything on unaligned rows: a number, 0 leaves them out; ``auto`` is their
            number divided by that of the aligned rows.
        tau: temperature of CSI.
        csi_reduction: CSI over the unaligned rows of a batch: their ``sum`` (printed) or ``mean``.
        cme: ``dcme``, ``bcme`` or ``cme``.
        imitate, equivalence, similarity, own_labels, ranking: weights of the printed terms:
            CME, eq. 6, CSI, eqs. 9-10, PRC on both sets. Printed are weights of 1; on tables of
            some thousand rows a ranking weight of 1 makes the lowest validation loss keep a bad
            epoch, and JPL fall below FPD (docs/evidence/defaults.md).
        a_labels, a_teacher, a_own: added for the A head: labels and teacher on aligned rows, labels
            on unaligned rows (inside beta).
        fed_labels, fed_teacher: added for the Fed head on aligned rows.
        teacher_first: both KL terms of eq. 6 with the teacher as reference; as printed they have
            opposite directions.
        printed_prc: PRC's last term without normalisation.
        warm_start: f_A^S starts from the teacher's f_A instead of fresh weights.
        shared_embedding: f_A^S and f_B^S read one table of learned vectors e_A of the categorical
            columns instead of one each.
        answer: which logits predict: ``mean`` of A and Fed, ``a`` or ``fed``.
    """

    tau: check.Positive = 0.1
    csi_reduction: Literal["sum", "mean"] = "sum"
    cme: Literal["dcme", "bcme", "cme"] = "dcme"
    imitate: check.NonNegative = 1.0
    equivalence: check.NonNegative = 1.0
    similarity: check.NonNegative = 1.0
    own_labels: check.NonNegative = 1.0
    ranking: check.NonNegative = 0.1
    a_labels: check.NonNegative = 1.0
    a_teacher: check.NonNegative = 0.0
    a_own: check.NonNegative = 1.0
    fed_labels: check.NonNegative = 1.0
    fed_teacher: check.NonNegative = 1.0
    teacher_first: bool = False
    printed_prc: bool = False
    warm_start: bool = False
    shared_embedding: bool = False
    answer: Literal["mean", "a", "fed"] = "mean"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not any(getattr(self, name) for name in _WEIGHTS):
            raise ConfigError(f"jpl: at least one of {', '.join(_WEIGHTS)} must be above 0.")

    def build(self, fed: Federation) -> None:
        if len(fed.parties) < 2:
            raise check.fail("jpl: the number of parties", "at least 2", len(fed.parties))
        if fed.classes != 2:
            raise check.fail("jpl: the number of classes", "2", fed.classes, "Use fpd for more.")
        active = fed.active.name
        table = bool(fed.stack.first.schema[active].cardinalities)
        if self.shared_embedding and ("module" in self.parties.get(active, {}) or not table):
            raise ConfigError(
                f"jpl: shared_embedding needs a table and the built-in bottom at {active!r}. Set "
                "shared_embedding = false."
            )
        super().build(fed)

    @property
    def student_parts(self) -> tuple[str, ...]:
        shared = ("embedding",) if self.shared_embedding else ()
        return (*shared, *super().student_parts, "imitation", "imitation_top", "joint_top")

    def add_student(self, fed: Federation) -> None:
        super().add_student(fed)
        active, kept = fed.active.name, fed.extra["kept"]
        mine, theirs = kept[0].shape[-1], sum(h.shape[-1] for h in kept[1:])
        if self.shared_embedding:
            schema = fed.stack.first.schema[active]
            fed.add(
                active,
                "embedding",
                lambda: TabularInput(schema, self.embedding, self.embedding_rows),
            )
        fed.add(active, "imitation", self.student_bottom(fed, theirs))
        fed.add(active, "imitation_top", lambda: mlp([theirs, *self.top, fed.classes]))
        fed.add(active, "joint_top", lambda: mlp([mine + theirs, *self.top, fed.classes]))
        if self.warm_start:
            self._warm(fed.active.modules)

    def student_bottom(self, fed: Federation, width: int) -> Callable[[], nn.Module]:
        build = super().student_bottom(fed, width)
        if not self.shared_embedding:
            return build
        return lambda: build()[1:]  # type: ignore[index]  # without the table, which is shared

    def _warm(self, modules: dict[str, Replicas]) -> None:
        taught = modules["bottom"].state()
        if self.shared_embedding:
            table = {k.removeprefix("0."): taught.pop(k) for k in list(taught) if k[:2] == "0."}
            modules["embedding"].load(table)
        modules["student"].load(taught)

    def student_loss(self, fed: Federation, aligned: Tensor, own: Tensor | None) -> Tensor:
        live = [w * t for w, t in self.terms(fed, aligned, own).values() if w > 0]
        return torch.stack(live).sum(0) if len(live) > 1 else live[0]

    def terms(
        self, fed: Federation, aligned: Tensor, own: Tensor | None
    ) -> dict[str, tuple[float, Tensor]]:
        """Weight and loss (R,) of every term, by the name of its weight; ``own.`` before those on
        unaligned rows, whose weights include beta.
        """
        terms = self._aligned_terms(fed, aligned)
        if own is not None:
            beta = self.own_weight(fed)
            found = self._own_terms(fed, aligned, own)
            terms |= {f"own.{k}": (beta * w, t) for k, (w, t) in found.items()}
        return terms

    def _aligned_terms(self, fed: Federation, rows: Tensor) -> dict[str, tuple[float, Tensor]]:
        """Terms on aligned rows (R, b)."""
        y, labels = fed.targets(rows), hard(fed.targets(rows))
        h_a, h_b = self.imagine(fed, rows, train=True)
        alone, guess, joint = self.heads(fed, h_a, h_b, train=True)
        kept_a, kept_b = self._recall(fed, rows)
        taught = self.recall(fed, fed.extra["teacher"], rows)
        imagined = self._teach(fed, kept_a, h_b)
        true = fed.active.modules["imitation_top"](kept_b)
        first = kl(taught, imagined) if self.teacher_first else kl(imagined, taught)
        same = (
            self.alpha * first + kl(true.detach(), guess) + fed.loss(true, y) + fed.loss(guess, y)
        )
        return {
            "a_labels": (self.a_labels, fed.loss(alone, y)),
            "a_teacher": (self.a_teacher, kl(taught, alone)),
            "imitate": (self.imitate, imitation(h_b, kept_b, labels, self.cme)),
            "equivalence": (self.equivalence, same),
            "ranking": (self.ranking, self._prc(alone, joint, labels)),
            "fed_labels": (self.fed_labels, fed.loss(joint, y)),
            "fed_teacher": (self.fed_teacher, kl(taught, joint)),
        }

    def _own_terms(
        self, fed: Federation, aligned: Tensor, rows: Tensor
    ) -> dict[str, tuple[float, Tensor]]:
        """Terms on unaligned labelled rows (R, m)."""
        y, labels = fed.targets(rows), hard(fed.targets(rows))
        u_a, u_b = self.imagine(fed, rows, train=True)
        alone, guess, joint = self.heads(fed, u_a, u_b, train=True)
        with torch.no_grad():
            x = fed.columns(fed.active.name, rows)
            seen = fed.active.modules["bottom"](x, train=False)
        kept_a, kept_b = self._recall(fed, aligned)
        imagined = self._teach(fed, seen, u_b)
        labelled = fed.loss(guess, y) + fed.loss(imagined, y) + fed.loss(joint, y)
        similar = csi(seen, kept_a, u_b, kept_b, self.tau, self.csi_reduction)
        return {
            "a_own": (self.a_own, fed.loss(alone, y)),
            "similarity": (self.similarity, similar),
            "own_labels": (self.own_labels, labelled),
            "ranking": (self.ranking, self._prc(joint, alone, labels)),
        }

    def _recall(self, fed: Federation, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The teacher's h_A (R, b, d_A) and h_B (R, b, d_B) of aligned rows."""
        own, *others = (self.recall(fed, kept, rows) for kept in fed.extra["kept"])
        return own, torch.cat(others, dim=-1)

    def _teach(self, fed: Federation, h_a: Tensor, h_b: Tensor) -> Tensor:
        """What the frozen teacher's head makes of representations, (R, b, 2)."""
        widths = [kept.shape[-1] for kept in fed.extra["kept"][1:]]
        return self.logits(fed, [h_a, *h_b.split(widths, dim=-1)], train=False)

    def _prc(self, learner: Tensor, guide: Tensor, labels: Tensor) -> Tensor:
        mine, theirs = (y[..., 1] - y[..., 0] for y in (learner, guide))
        return prc(mine, theirs, labels, normalised=not self.printed_prc)

    def imagine(self, fed: Federation, rows: Tensor, *, train: bool) -> tuple[Tensor, Tensor]:
        """The student's h_A (R, b, d_A) and its imitation of h_B (R, b, d_B), from x_A alone."""
        x = fed.columns(fed.active.name, rows, train=train)
        modules = fed.active.modules
        if self.shared_embedding:
            x = modules["embedding"](x, train=train)
        return modules["student"](x, train=train), modules["imitation"](x, train=train)

    def heads(
        self, fed: Federation, h_a: Tensor, h_b: Tensor, *, train: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Logits (R, b, 2) of the heads A, B and Fed."""
        modules = fed.active.modules
        both = torch.cat([h_a, h_b], dim=-1)
        return (
            modules["student_top"](h_a, train=train),
            modules["imitation_top"](h_b, train=train),
            modules["joint_top"](both, train=train),
        )

    def student(self, fed: Federation, rows: Tensor, *, train: bool) -> Tensor:
        alone, _, joint = self.heads(fed, *self.imagine(fed, rows, train=train), train=train)
        return {"mean": (alone + joint) / 2, "a": alone, "fed": joint}[self.answer]


def hard(y: Tensor) -> Tensor:
    """Classes (R, b) of labels (R, b) or of class shares (R, b, C)."""
    return y if y.dim() == 2 else y.argmax(-1)
