"""U-shaped split: the passive party trains the middle, the active one both ends.

The model of FedSplitNN cut twice. The active party computes h = f^a(x^a) (b, d_a) and sends it; the
passive party fuses it with its own f^p(x^p), computes the hidden layers m of the top model,
u = m(h, f^p(x^p)) (b, w), and returns u. The active party keeps what the label touches: the last
linear layer, s = W u + c, and the loss. It sends G = dL/du (b, w) back; the passive party continues
through m and f^p, updates both, and sends dL/dh (b, d_a), with which the active party continues
through f^a. The same weights train as in FedSplitNN with the same top model; only who holds the
hidden layers differs, and so what each party sees: the passive party stands before one linear
layer, g_i = W^T (softmax(s_i) - e_{y_i}) / b, whatever depth the model has.

In the published form the party in the middle has no columns, and the one at the ends has all. Here
it is the passive party of two, whose own embedding it need not send.

Messages a step: two embeddings (one each way), two gradients (one each way), and the batch's sample
ids; once: the intersection of ids; each epoch with early stopping: one signal.

Source: Vepakomma, Gupta, Swedish, Raskar, "Split learning for health", arXiv:1812.00564 (2018),
U-shaped configuration; Erdogan, Kupcu, Cicek, "UnSplit", WPES 2022, arXiv:2108.09033, section 3.4.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from vflsec.algorithms.splitnn import SplitNN
from vflsec.core import check
from vflsec.core.federation import Federation
from vflsec.core.party import Party
from vflsec.core.view import Facts
from vflsec.nn.models import mlp
from vflsec.plugins import registry

ALIASES = ("u_shaped", "usplit")


@registry.algorithm
@dataclass(frozen=True)
class UShaped(SplitNN):
    """Hyper-parameters: those of FedSplitNN.

    Attributes:
        top: widths of the middle's hidden layers, at least one; the last is the width w of what
            returns to the active party.
    """

    top: tuple[int, ...] = (32,)

    quantities: ClassVar[bool] = False
    label_holder: ClassVar[bool] = False
    own_top: ClassVar[bool] = False
    sends: ClassVar[frozenset[tuple[str, str, str]]] = SplitNN.sends | {
        ("embedding", "active", "passive"),
        ("gradient", "passive", "active"),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.top:
            raise check.fail(f"{self.name}.top", "one hidden layer or more", [], "Use splitnn.")

    def build(self, fed: Federation) -> None:
        """Bottoms at both; the middle at the passive party, the last layer at the active one.

        Raises:
            ConfigError: not exactly one passive party, or embeddings of two widths to be added.
        """
        task = fed.stack.first
        if len(task.passive) != 1:
            where, got = f"{self.name}: passive parties", ", ".join(task.passive) or "none"
            raise check.fail(where, "one", got)
        widths = {p: self.width(p, fed.classes) for p in task.parties}
        if self.aggregation != "concat" and len(set(widths.values())) > 1:
            where = f"{self.name}: widths under aggregation {self.aggregation!r}"
            raise check.fail(where, "one for all parties", list(widths.values()))
        concat = self.aggregation == "concat"
        fused, (middle,) = sum(widths.values()) if concat else min(widths.values()), task.passive
        for name, width in widths.items():
            fed.add(name, "bottom", self._bottom(fed, name, width))
        hidden = [fused, *self.top]
        fed.add(
            middle, "middle", lambda: mlp(hidden, dropout=self.dropout, last=True),
            widths if concat else None,
        )  # fmt: skip
        inputs = {middle: self.top[-1]}
        fed.add(task.active, "top", lambda: mlp([self.top[-1], fed.classes]), inputs)
        for name in task.parties:
            fed.parties[name].start(
                self.optimizer, self.lr, self.weight_decay, embedding_l2=self.embedding_l2
            )

    def step(self, fed: Federation, rows: Tensor) -> None:
        """One step on sample ids (R, b): up to the middle, up to the head, and both ways back."""
        active, (middle,) = fed.active, self.passive(fed)
        a, m, size = active.name, middle.name, float(rows.shape[1])
        fed.send("ids", a, m, rows, rows, name="batch")
        x = {p: fed.columns(p, rows) for p in (a, m)}
        y = fed.targets(rows)
        h = active.modules["bottom"](x[a])
        h_there = fed.send("embedding", a, m, h, rows).requires_grad_()
        u = self._middle(middle, h_there, x[m])
        penalty = fed.penalty(m, x[m], {m: u}, None)
        u_here = fed.send("embedding", m, a, u, rows).requires_grad_()

        logits = active.modules["top"](u_here)
        extra = fed.penalty(a, x[a], {a: h, m: u_here}, y)
        loss = fed.loss(logits, y).sum() + (0.0 if extra is None else extra.sum())
        head = active.parameters(["top"])
        *own, cut = torch.autograd.grad(loss, [*head, u_here], retain_graph=True)
        g = fed.send("gradient", a, m, cut, rows, scale=size, labels=y, logits=logits.detach())

        total = (u * g).sum() + (0.0 if penalty is None else penalty.sum())
        *theirs, back = torch.autograd.grad(total, [*middle.parameters(), h_there])
        middle.update(theirs)
        returned = fed.send("gradient", m, a, back, rows, scale=size)

        through = (h * returned).sum() + (0.0 if extra is None else extra.sum())
        ends = torch.autograd.grad(through, active.parameters(["bottom"]))
        active.update([*ends, *own])

    def _middle(self, party: Party, h: Tensor, x: Tensor, *, train: bool = True) -> Tensor:
        """u (R, b, w) from the active party's embedding (R, b, d_a) and own rows (R, b, ...)."""
        z = party.modules["bottom"](x, train=train)
        return party.modules["middle"](self.fuse([h, z]), train=train)

    @torch.no_grad()
    def predict(self, fed: Federation, rows: Tensor) -> Tensor:
        active, (middle,) = fed.active, self.passive(fed)
        a, m = active.name, middle.name
        h = active.modules["bottom"](fed.columns(a, rows, train=False), train=False)
        h = fed.send("embedding", a, m, h, rows, phase="predict")
        u = self._middle(middle, h, fed.columns(m, rows, train=False), train=False)
        u = fed.send("embedding", m, a, u, rows, phase="predict")
        logits = active.modules["top"](u, train=False)
        if self.returns_predictions:
            shares = torch.softmax(fed.decode(logits), dim=-1)
            fed.send("prediction", a, m, shares, rows, phase="predict")
        return logits

    def planned_facts(self, active: str, parties: tuple[str, ...], classes: int) -> Facts:
        """The passive party stands before one linear layer, whose input it sends."""
        facts = super().planned_facts(active, parties, classes)
        widths = {**facts.widths} | {p: self.top[-1] for p in parties if p != active}
        return replace(facts, widths=widths, extra={**facts.extra, "top": (), "middle": self.top})
