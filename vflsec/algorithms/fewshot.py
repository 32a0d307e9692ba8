"""Few-shot VFL: one-shot VFL, then one more round in which the label holder says which rows count.

After one-shot's exchange and local training:

5. Each client k uploads H_o^k (N_o, d_k) of the aligned and H_u^k (N_k, d_k) of its unaligned rows.
6. The label holder trains one classifier f_c^k by client on (H_o^k, Y) and the joint f_c.
7. It estimates the others' representations of client A's unaligned rows by attention over the
   aligned ones, H_u^B = softmax(H_u^A H_o^A' / sqrt(d)) H_o^B, and sends
   p = 1[y^A = y^AB] 1[p^A > t] 1[p^AB > t] p^AB (N_k), where y and p are class and confidence of
   f_c^A(H_u^A) and of f_c(H_u^A, H_u^B).
8. The client takes row i with probability p_i as labelled, by its own local model's class, and
   repeats local training. Then one-shot's last upload; f_c is trained again from its initial
   weights.

Messages by client beside one-shot's: H_u and one more H_o up, p down. H_u shows the label holder
representations of people it does not share; p shows the client which of its rows the label
holder's models are sure of. `finetune` as in one-shot VFL.

Source: Sun, Xu, Yang, Nath, Li, Zhao, Xu, Chen, Roth, "Communication-efficient vertical federated
learning with limited overlapping samples", ICCV 2023, algorithm 2, equations 9 to 11 (line 13
subtracts from X_o where X_u is meant; with more than two clients the same attention serves each).
Algorithm 1 asks for probabilities within its loop over the clients; here all clients upload once,
the classifiers are trained once, and all get theirs from that: no client's rows hang on its place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from vflsec.algorithms.fedcvt import attend
from vflsec.algorithms.oneshot import OneShot
from vflsec.core import check
from vflsec.core.federation import Federation, Phase
from vflsec.core.party import Party
from vflsec.core.rng import Streams
from vflsec.errors import ConfigError
from vflsec.nn.models import mlp
from vflsec.plugins import registry


@registry.algorithm
@dataclass(frozen=True)
class FewShot(OneShot):
    """Hyper-parameters beside one-shot VFL's.

    Attributes:
        confidence: t, in (0, 1); close to 1 it selects nothing.
        infer_epochs: epochs of the label holder's classifiers that select rows.
    """

    confidence: check.OpenUnit = 0.8
    infer_epochs: check.Count = 20

    unaligned: ClassVar[bool] = True
    own_top: ClassVar[bool] = False
    world = {**OneShot.world, "infer_epochs": 3}

    def build(self, fed: Federation) -> None:
        if all(fed.stack.unaligned(p.name).shape[1] == 0 for p in self.clients(fed)):
            raise ConfigError(
                f"{self.name}: needs unaligned rows. Set data.aligned, or use oneshot."
            )
        super().build(fed)
        for party in self.clients(fed):
            widths = [self.width(party.name, fed.classes), *self.top, fed.classes]
            fed.add(fed.active.name, f"top_{party.name}", lambda widths=widths: mlp(widths))  # type: ignore[misc]

    def phases(self, fed: Federation) -> list[Phase]:
        first = super().phases(fed)
        ending = self._ending(fed)
        infer = Phase(
            "infer", fed.stack.rows("labelled"), self.batch_size, self.infer_epochs,
            lambda batch: self.infer_step(fed, batch),
            before=lambda: self.second_upload(fed), audited=False, predicts=False,
        )  # fmt: skip
        relabel = self._local_phases(fed, "relabel", lambda: self.relabel(fed))
        return [*first[: -len(ending)], infer, *relabel, *ending]

    def second_upload(self, fed: Federation) -> None:
        """H_o and H_u of every client, together."""
        fed.extra["initial_top"] = fed.active.modules["top"].state()
        self.collect(fed, "trained")
        for party in self.clients(fed):
            rows = fed.stack.unaligned(party.name)
            h = self.represent(fed, party, rows) if rows.shape[1] else None
            if h is not None and not party.active:
                h = fed.send("embedding", party.name, fed.active.name, h, rows, name="unaligned")
            fed.extra[f"unaligned.{party.name}"] = h

    def infer_step(self, fed: Federation, rows: Tensor) -> None:
        """One update of all selecting classifiers on kept representations."""
        kept, y = self.collected(fed, rows), fed.targets(rows)
        total = fed.loss(self.logits(fed, list(kept.values()), train=True), y).sum()
        for name, h in kept.items():
            total = total + fed.loss(fed.active.modules[f"top_{name}"](h), y).sum()
        parts = ("top", *(f"top_{name}" for name in kept))
        fed.active.update(torch.autograd.grad(total, fed.active.parameters(parts)), parts)

    @torch.no_grad()
    def relabel(self, fed: Federation) -> None:
        """Selection probabilities go down; every client draws its rows and names their classes."""
        for party in self.clients(fed):
            rows = fed.stack.unaligned(party.name)
            if rows.shape[1]:
                p = self.probabilities(fed, party)
                if not party.active:
                    p = fed.send("signal", fed.active.name, party.name, p, rows, name="selection")
                self._draw_chosen(fed, party, rows, p)
        fed.active.modules["top"].load(fed.extra["initial_top"])
        self.restart(fed)

    def probabilities(self, fed: Federation, party: Party) -> Tensor:
        """Selection probabilities of a client's unaligned rows, (R, N_k)."""
        kept: dict[str, Tensor] = fed.extra["collected"]
        own, out = kept[party.name], []
        for h in fed.extra[f"unaligned.{party.name}"].split(1024, dim=1):
            parts = [
                h if name == party.name else attend(h, own, other) for name, other in kept.items()
            ]
            joint = self.logits(fed, parts, train=False)
            alone = fed.active.modules[f"top_{party.name}"](h, train=False)
            out.append(selection(alone, joint, self.confidence))
        return torch.cat(out, dim=1)

    def _draw_chosen(self, fed: Federation, party: Party, rows: Tensor, p: Tensor) -> None:
        rng = Streams(
            fed.seeds, "chosen", party.name, device=fed.stack.device, dtype=fed.stack.dtype
        )
        taken = rng.uniform((rows.shape[1],)) < p
        bottom, head = party.modules["bottom"], party.modules["head"]
        names = [
            head(bottom(fed.columns(party.name, r), train=False), train=False).argmax(-1)
            for r in rows.split(4096, dim=1)
        ]
        shape, device = fed.labels.shape[:2], rows.device
        chosen = torch.zeros(shape, dtype=torch.bool, device=device)
        fed.extra[f"chosen.{party.name}"] = chosen.scatter(1, rows, taken)
        named = torch.zeros(shape, dtype=torch.int64, device=device)
        fed.extra[f"names.{party.name}"] = named.scatter(1, rows, torch.cat(names, dim=1))

    def drop_heads(self, fed: Federation) -> None:
        for party in self.clients(fed):
            fed.active.modules.pop(f"top_{party.name}", None)
        super().drop_heads(fed)

    def _chosen(self, fed: Federation, party: Party, rows: Tensor) -> Tensor | None:
        chosen: Tensor | None = fed.extra.get(f"chosen.{party.name}")
        return None if chosen is None else chosen.gather(1, rows)


def selection(alone: Tensor, joint: Tensor, t: float) -> Tensor:
    """Selection probabilities (R, n) from a client's own and the joint logits (R, n, C).

    The joint confidence where both agree on the class and both are above `t`, else 0.
    """
    p_own, y_own = alone.softmax(-1).max(-1)
    p_joint, y_joint = joint.softmax(-1).max(-1)
    keep = (y_own == y_joint) & (p_own > t) & (p_joint > t)
    return torch.where(keep, p_joint, 0.0)
