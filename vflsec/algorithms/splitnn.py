"""FedSplitNN: bottoms send embeddings up, the active party sends their gradients down.

K parties hold different columns of the same rows. Party k computes z^k = f^k(x^k) (b, d_k); the
passive parties send theirs. The active party fuses them, evaluates its top model and the loss,
updates its own models and sends G^k = dL/dz^k (b, d_k) to each passive party, which continues the
backward pass through f^k. Without a top model (`top = []` and `aggregation = "sum"`) the logits are
the sum of the embeddings, which then have one column a class: this is the setting in which the
direct attack reads labels from the sign of a gradient. An active party without columns has no
bottom; it holds the labels and the top.

Messages a step and passive party: one embedding up, one gradient down, plus the batch's sample ids;
once: the intersection of ids; each epoch with early stopping: one signal.

Source: Vepakomma, Gupta, Swedish, Raskar, "Split learning for health", arXiv:1812.00564 (2018);
He, Kang et al., "A hybrid self-supervised learning framework for vertical federated learning",
arXiv:2208.08934 (2022), section III.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from vflsec.algorithms._split_settings import SplitSettings
from vflsec.core import check
from vflsec.core.federation import Federation, Phase
from vflsec.core.link import WayBack
from vflsec.core.party import Party
from vflsec.core.view import Facts, Schema
from vflsec.errors import ConfigError, PolicyError
from vflsec.label import make_label
from vflsec.nn.images import BOTTOMS, image_bottom
from vflsec.nn.manual_backprop import follow, join, walked
from vflsec.nn.models import build_bottom, from_path, mlp, top_from_path
from vflsec.nn.replicas import Replicas
from vflsec.nn.rowwise import row_gradients, split_rows
from vflsec.nn.weights import starting_at
from vflsec.plugins import registry

ALIASES = ("fedsplitnn",)


@dataclass
class Exchange:
    """What one exchange on a batch leaves at the parties.

    Attributes:
        rows, y: sample ids (R, b), and what the active party trains on.
        x: own input rows by party, (R, b, ...).
        got: embeddings as the active party has them, itself first, (R, b, d_k).
        sent: the passive parties' embeddings with the way back.
        penalties: the passive parties' penalty terms (R,).
        logits: of the active party, (R, b, C), detached.
        gradients: of the embeddings, as delivered to the passive parties.
    """

    rows: Tensor
    y: Tensor
    x: dict[str, Tensor]
    got: dict[str, Tensor] = field(default_factory=dict)
    sent: dict[str, Tensor] = field(default_factory=dict)
    penalties: dict[str, Tensor | None] = field(default_factory=dict)
    logits: Tensor | None = None
    gradients: dict[str, Tensor] = field(default_factory=dict)


@registry.algorithm
@dataclass(frozen=True)
class SplitNN(SplitSettings):
    """Hyper-parameters: those of split training."""

    quantities: ClassVar[bool] = True
    label_holder: ClassVar[bool] = True
    sends: ClassVar[frozenset[tuple[str, str, str]]] = frozenset(
        {
            ("embedding", "passive", "active"),
            ("gradient", "active", "passive"),
            ("ids", "active", "passive"),
            ("signal", "active", "passive"),
        }
    )

    def build(self, fed: Federation) -> None:
        task = fed.stack.first
        for name in self.parties:
            check.one_of(f"{self.name}.parties: the party", name, task.parties)
        names = [p.name for p in self.holders(fed)]
        if self.encoder_kind in BOTTOMS and all(len(task.schema[p].shape) != 3 for p in names):
            got = ", ".join(f"{p} {task.schema[p].shape}" for p in names)
            where, rule = (
                f"{self.name}: encoder_kind {self.encoder_kind!r}",
                "have rows of images (c, h, w)",
            )
            raise ConfigError.must(where, rule, got, "Use 'mlp'.")
        if self.select and self.select_by == "auc" and fed.classes != 2:
            where = f"{self.name}.select_by"
            raise check.fail(where, "'loss' for more than two classes", self.select_by)
        widths = [self.width(p, fed.outputs) for p in names]
        for name, width in zip(names, widths, strict=True):
            fed.add(name, "bottom", self._bottom(fed, name, width))
        for i, name in enumerate(names):
            if name != task.active:
                fed.link(name).build(fed, widths[i])
                widths[i] = fed.link(name).width(widths[i])
        if self.aggregation != "concat" and len(set(widths)) > 1:
            where = f"{self.name}: widths under aggregation {self.aggregation!r}"
            raise check.fail(where, "one for all parties", widths)
        if self.has_top:
            fused = sum(widths) if self.aggregation == "concat" else widths[0]
            fed.add(
                task.active,
                "top",
                self._top(fused, fed.outputs),
                dict(zip(names, widths, strict=True)) if self.aggregation == "concat" else None,
            )
        self.restart(fed)

    def restart(self, fed: Federation) -> None:
        """Fresh optimizers for a new phase."""
        for party in (fed.active, *self.passive(fed)):
            party.start(self.optimizer, self.lr, self.weight_decay, embedding_l2=self.embedding_l2)

    def _bottom(self, fed: Federation, party: str, width: int) -> Callable[[], nn.Module]:
        schema = fed.stack.first.schema[party]
        own = self.parties.get(party, {})
        make = self._made(schema, width, own)
        if not own.get("weights"):
            return make
        return starting_at(own["weights"], f"weights of {party}", make)

    def _made(self, schema: Schema, width: int, own: Mapping[str, Any]) -> Callable[[], nn.Module]:
        if "module" in own:
            return lambda: from_path(own["module"], schema, width, own.get("args"))
        hidden = tuple(own.get("hidden", self.hidden))
        if self.encoder_kind in BOTTOMS and len(schema.shape) == 3:
            return lambda: image_bottom(
                self.encoder_kind, schema, hidden, width, depth=self.encoder_depth,
                dropout=self.dropout,
            )  # fmt: skip
        return lambda: build_bottom(
            schema, hidden, width, dropout=self.dropout, width=self.embedding,
            rows=self.embedding_rows,
        )  # fmt: skip

    def _top(self, fused: int, classes: int) -> Callable[[], nn.Module]:
        def make() -> nn.Module:
            if self.top_module:
                return top_from_path(self.top_module, fused, classes, self.top_args)
            return mlp([fused, *self.top, classes], dropout=self.dropout)

        return starting_at(self.top_weights, "top_weights", make) if self.top_weights else make

    def passive(self, fed: Federation) -> list[Party]:
        """The passive parties that take part."""
        return fed.passive

    def holders(self, fed: Federation) -> list[Party]:
        """The parties with a bottom: the active one, if it has columns, and the passive ones."""
        task = fed.stack.first
        own = [] if task.schema[task.active].empty else [fed.active]
        return [*own, *self.passive(fed)]

    def present(self, fed: Federation) -> list[Party]:
        """The parties whose columns are there at inference."""
        return self.holders(fed)

    def phases(self, fed: Federation) -> list[Phase]:
        self.intersect(fed, "train")
        return [self.split_phase(fed, "train", self.epochs)]

    def intersect(self, fed: Federation, phase: str) -> None:
        """Tell every passive party which sample ids all parties hold, at the start of `phase`."""
        fed.phase = phase
        for party in self.passive(fed):
            ids = fed.stack.rows("aligned")
            fed.send("ids", fed.active.name, party.name, ids, ids, name="intersection")

    def split_phase(self, fed: Federation, name: str, epochs: int) -> Phase:
        """Split training on the labelled rows, as a phase of this name."""
        return Phase(
            name, fed.stack.rows("labelled"), self.batch_size, epochs,
            partial(self.step, fed),
            select=self.select, select_by=self.select_by, patience=self.patience,
            listeners=tuple(p.name for p in self.passive(fed)), smallest=self.smallest,
        )  # fmt: skip

    @walked
    def fuse(self, parts: list[Tensor]) -> Tensor:
        """Embeddings (R, b, d_k) of all parties -> fused (R, b, d)."""
        return join(parts, self.aggregation)

    @walked
    def logits(self, fed: Federation, parts: list[Tensor], *, train: bool) -> Tensor:
        """Logits (R, b, C) at the active party from all embeddings."""
        fused = self.fuse(parts)
        if not self.has_top:
            return fused
        top = fed.active.modules["top"]
        return follow(top, fused) if train else top(fused, train=False)

    @walked
    def step(self, fed: Federation, rows: Tensor) -> None:
        """One split training step on sample ids (R, b)."""
        batch = self.up(fed, rows)
        own, cut = self.differentiate(fed, batch)
        self.down(fed, batch, cut)
        if fed.active.optimizer is not None:
            fed.active.update(own, rows=lambda: self.own_rows(fed, batch), ids=rows)

    @walked
    def up(self, fed: Federation, rows: Tensor) -> Exchange:
        """Embeddings of sample ids (R, b) of all parties meet at the active one."""
        active = fed.active
        x_active = fed.columns(active.name, rows)
        batch = Exchange(rows, fed.targets(rows), {active.name: x_active})
        if active in self.holders(fed):
            batch.got[active.name] = active.run("bottom", x_active, self)
        for party in self.passive(fed):
            fed.send("ids", active.name, party.name, rows, rows, name="batch")
            x = batch.x[party.name] = fed.columns(party.name, rows)
            z = batch.sent[party.name] = party.run("bottom", x, self)
            batch.penalties[party.name] = fed.penalty(party.name, x, {party.name: z}, None)
            batch.got[party.name] = fed.link(party.name).up(fed, z, rows).requires_grad_()
        return batch

    @walked
    def differentiate(
        self, fed: Federation, batch: Exchange
    ) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        """Gradients of the active party's loss: of its parameters, and of the passive parties'
        embeddings (R, b, d_k).
        """
        active = fed.active
        logits = self.logits(fed, list(batch.got.values()), train=True)
        batch.logits = logits.detach()
        extra = fed.penalty(active.name, batch.x[active.name], batch.got, batch.y)
        terms = [term for term in (extra, self.own_term(fed)) if term is not None]
        mine = active.parameters()
        grads = fed.descend(logits, batch.y, terms, [*mine, *(batch.got[p] for p in batch.sent)])
        return grads[: len(mine)], grads[len(mine) :]

    def own_rows(self, fed: Federation, batch: Exchange) -> list[Tensor]:
        """What each row adds to the gradients of the active party's parameters, (R, b, ...) each.

        Raises:
            PolicyError: something couples the rows of a batch or draws while the loss is taken.
        """
        active = fed.active
        for bound in active.bindings:
            policy = bound.policy
            coupled = policy.overrides("loss") and not policy.by_row
            if coupled or policy.overrides("penalty"):
                raise PolicyError(
                    f"{policy.name}: changes the loss of a batch, so gradients of rows cannot be "
                    "limited. Leave one of the two defenses out."
                )
        got = {p: split_rows(h.detach()) for p, h in batch.got.items()}
        x, (r, b) = split_rows(batch.x[active.name]), batch.rows.shape

        def total(wide: Mapping[str, Replicas]) -> Tensor:
            parts = [wide["bottom"](x) if p == active.name else h for p, h in got.items()]
            fused = self.fuse(parts)
            logits = wide["top"](fused) if self.has_top else fused
            return fed.loss(logits.reshape(r, b, -1), batch.y).sum()

        return row_gradients(active.modules, b, total)

    @walked
    def own_term(self, fed: Federation) -> Tensor | None:
        """What the active party adds to its loss for its own parameters, (R,), or None."""
        return None

    @walked
    def down(self, fed: Federation, batch: Exchange, cut: Sequence[Tensor]) -> None:
        """Gradients (R, b, d_k) of the embeddings go to their parties, which update on them."""
        assert batch.logits is not None  # set by `differentiate`, whose gradients these are
        for party, gradient in zip(self.passive(fed), cut, strict=True):
            way = WayBack(
                batch.sent[party.name], gradient, batch.penalties[party.name], batch.rows,
                batch.y, batch.logits, batch.x[party.name],
            )  # fmt: skip
            delivered = fed.link(party.name).down(fed, way)
            if delivered is not None:
                batch.gradients[party.name] = delivered

    @torch.no_grad()
    def represent(self, fed: Federation, party: Party, rows: Tensor) -> Tensor:
        """A party's own representations (R, n, d_k) of `rows`, in eval mode, in blocks."""
        bottom = party.modules["bottom"]
        blocks = [bottom(fed.columns(party.name, r), train=False) for r in rows.split(4096, dim=1)]
        return torch.cat(blocks, dim=1)

    def number(self, fed: Federation, rows: Tensor) -> None:
        """Note the order of rows (R, n) of which values are kept, for :meth:`recall`."""
        place = torch.zeros(fed.labels.shape[:2], dtype=torch.int64, device=rows.device)
        order = torch.arange(rows.shape[1], device=rows.device)
        fed.extra["place"] = place.scatter(1, rows, order.expand_as(rows))

    def recall(self, fed: Federation, what: Tensor, rows: Tensor) -> Tensor:
        """Kept values (R, n, d) of some of those rows (R, b), (R, b, d)."""
        place = fed.extra["place"].gather(1, rows).unsqueeze(2)
        return what.gather(1, place.expand(-1, -1, what.shape[2]))

    def infer(self, fed: Federation, rows: Tensor) -> Tensor:
        """Logits (R, b, C) at the active party for sample ids (R, b), from those who are there."""
        parts = []
        for party in self.present(fed):
            x = fed.columns(party.name, rows, train=False)
            z = party.modules["bottom"](x, train=False)
            if not party.active:
                z = fed.link(party.name).up(fed, z, rows, phase="predict")
            parts.append(z)
        return self.logits(fed, parts, train=False)

    @torch.no_grad()
    def predict(self, fed: Federation, rows: Tensor) -> Tensor:
        active = fed.active.name
        logits = self.infer(fed, rows)
        if self.returns_predictions:
            answers = fed.decode(logits)
            shares = self.shares(answers, fed.classes)
            for party in self.present(fed):
                if not party.active:
                    fed.send("prediction", active, party.name, shares, rows, phase="predict")
        return logits

    @staticmethod
    def shares(answers: Tensor, classes: int) -> Tensor:
        """What is sent back of answers: class shares, a quantity, or the share of each label."""
        return make_label(classes).form_predictions(answers)

    def facts(self, fed: Federation) -> Facts:
        task = fed.stack.first
        planned = self.planned_facts(task.active, task.parties, task.outputs)
        return fed.facts(
            algorithm=planned.algorithm, aggregation=planned.aggregation, top=planned.top,
            widths={p.name: planned.widths[p.name] for p in self.holders(fed)},
            batch_size=planned.batch_size, epochs=planned.epochs, extra=planned.extra,
        )  # fmt: skip

    def planned_facts(self, active: str, parties: tuple[str, ...], classes: int) -> Facts:
        return Facts(
            algorithm=self.name, phase="train", active=active, parties=parties, classes=classes,
            aggregation=self.aggregation, top=self.has_top,
            widths={p: self.width(p, classes) for p in parties},
            batch_size=self.batch_size, epochs=self.epochs,
            extra={"lr": self.lr, "optimizer": self.optimizer, "hidden": tuple(self.hidden),
                   "top": tuple(self.top)},
        )  # fmt: skip
