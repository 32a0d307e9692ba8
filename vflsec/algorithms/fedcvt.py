"""FedCVT: two parties, missing representations estimated by attention, cross-view pseudo-labels.

Guest G is the active party, host H the passive one. Each has two extractors, unique u and common
c; its representation is [u, c]. Rows of a step: ll (aligned with label), ul (aligned without), nl_G
and nl_H (unaligned), and a random reference block of H's rows. G estimates the host part of nl_G,
H^ = [Attn(G_u; G_u^ol, H_u^ol), Attn(G_c; H_c^block, H_c^block)], and the guest part of nl_H,
G^ = [Attn(H_u; H_u^ll, G_u^ll), Attn(H_c; G_c^lab, G_c^lab)] with lab = ll + nl_G and ol = ll + ul.
Three linear heads classify [G, H], G and H. A row of nl_H gets a pseudo-label if the heads agree on
[G^, H], G^ and H and each is surer than its threshold; then it and nl_G with H^ join the training
of the joint head. The guest head learns from ll + nl_G, the host head from ll. On top come
lambda_1 MSE(G_c, H_c), lambda_2 (|G_u G_c'|_F + |H_u H_c'|_F) / n, lambda_3 (MSE(G^, G) +
MSE(H^, H)) and lambda_4 times the cross entropy of labels estimated by the same attention.

More than two parties are refused: the paper is for two. An estimate attends from what one party has
of a row to rows that both have. With three it is open from which of the others a missing part is
estimated, whether an estimate may rest on another, and which heads vote on a row that two have.

Messages a step: ids of ll and ul down; the representations of ll, ul and nl_H and the common part
of the block up; the gradients of all of them down. They tell the host about the labels, with
lambda_4 by attention values that are labels.

Source: Kang, Liu, Liang, "FedCVT: Semi-supervised vertical federated learning with cross-view
training", arXiv:2008.10838 (2020), and its public code, whose heads end in a sigmoid so that no
pseudo-label is ever selected; here they are plain linear. It steps the extractors twice and takes
lambda_2 on reference blocks; here each party has one optimizer, and lambda_2 is on aligned rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from vflsec.algorithms.splitnn import Exchange, SplitNN
from vflsec.core import check
from vflsec.core.federation import Federation, Phase
from vflsec.core.rng import Streams
from vflsec.core.view import Facts
from vflsec.errors import ConfigError, PolicyError
from vflsec.nn.models import Twin, mlp
from vflsec.plugins import registry


@registry.algorithm
@dataclass(frozen=True)
class FedCVT(SplitNN):
    """Hyper-parameters beside those of FedSplitNN.

    Attributes:
        cut: width d of each of the two extractors; a party's embedding has 2d columns.
        top: always empty, for the heads are linear.
        sharpening: T > 0 of the attention; 1 is none.
        t_fed, t_guest, t_host: thresholds of the three heads, in (0, 1); close to 1 they select
            nothing.
        lambda1, lambda2, lambda3, lambda4: weights >= 0 of the additional losses.
        side_heads: False leaves the guest's and the host's head out, and pseudo-labels with them.
        nl_labels: True if the guest's unaligned rows have labels and these are used.
        nl_batch_size: rows of nl_G and of nl_H (and at most of ul) a step, drawn with replacement.
        block: rows of the host's reference block a step; 4000 to 5000 in the public code.
    """

    cut: int = 16
    top: tuple[int, ...] = ()
    sharpening: check.Positive = 0.5
    t_fed: check.OpenUnit = 0.9
    t_guest: check.OpenUnit = 0.6
    t_host: check.OpenUnit = 0.5
    lambda1: check.NonNegative = 0.1
    lambda2: check.NonNegative = 0.01
    lambda3: check.NonNegative = 1.0
    lambda4: check.NonNegative = 1.0
    side_heads: bool = True
    nl_labels: bool = True
    nl_batch_size: check.Count = 128
    block: check.Count = 512

    quantities: ClassVar[bool] = False
    label_holder: ClassVar[bool] = False
    unaligned: ClassVar[bool] = True
    own_top: ClassVar[bool] = False
    world = {"task": {"unaligned": 60}}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.top or not self.linear_top:
            raise check.fail(f"{self.name}.top", "empty, for all heads are linear", self.top)
        check.one_of(f"{self.name}.aggregation", self.aggregation, ("concat",))

    def width(self, party: str, classes: int) -> int:
        return 2 * super().width(party, classes)

    def build(self, fed: Federation) -> None:
        task = fed.stack.first
        if len(task.parties) != 2:
            where = f"{self.name}: the number of parties"
            raise check.fail(where, "2", len(task.parties), "Use vflhlp for more.")
        guest, host = task.parties
        widths = [self.width(p, fed.classes) for p in task.parties]
        if widths[0] != widths[1]:
            raise check.fail(f"{self.name}: the cut of both parties", "the same", widths)
        for b in fed.active.bindings:
            if self.side_heads and b.policy.overrides("model") and b.policy.overrides("penalty"):
                raise PolicyError(
                    f"{self.name}: {b.policy.name} would press on the last use of the top model "
                    "only. Set side_heads = false, or leave the defense out."
                )
        fed.extra["draws"] = self._draws(fed, guest, host)
        super().build(fed)
        if self.side_heads:
            for part in ("guest_head", "host_head"):
                fed.add(guest, part, lambda: mlp([widths[0], fed.classes]))
            fed.active.start(
                self.optimizer, self.lr, self.weight_decay, embedding_l2=self.embedding_l2
            )

    def _bottom(self, fed: Federation, party: str, width: int) -> Callable[[], nn.Module]:
        one = super()._bottom(fed, party, width // 2)
        return lambda: Twin(one(), one())

    def _draws(self, fed: Federation, guest: str, host: str) -> dict[str, _Draw]:
        """Where the rows beside ll come from."""
        stack = fed.stack
        every, alone = stack.rows(f"local:{host}"), stack.unaligned(host)
        if not alone.shape[1]:
            raise ConfigError(
                f"{self.name}: needs unaligned rows of {host!r}. Lower `aligned` in [data], or use "
                "splitnn."
            )
        sets = {
            "ul": (_minus(stack.rows("aligned"), stack.rows("labelled")), self.nl_batch_size),
            "nl": (alone, self.nl_batch_size),
            "block": (every, self.block),
        }
        if self.nl_labels:
            sets["guest"] = (stack.unaligned_labelled(), self.nl_batch_size)
            if not sets["guest"][0].shape[1]:
                raise ConfigError(
                    f"{self.name}: nl_labels needs labelled unaligned rows of {guest!r}. Set "
                    "nl_labels = false, or leave `labelled` out."
                )
        return {
            name: _Draw(
                rows, min(size, rows.shape[1]),
                Streams(fed.seeds, self.name, name, device=stack.device),
            )
            for name, (rows, size) in sets.items()
            if rows.shape[1]
        }  # fmt: skip

    def phases(self, fed: Federation) -> list[Phase]:
        drawn = tuple(draw.rows for draw in fed.extra["draws"].values())
        return [replace(phase, drawn=drawn) for phase in super().phases(fed)]

    def step(self, fed: Federation, rows: Tensor) -> None:
        """One split training step on aligned labelled rows (R, b) and what is drawn beside them."""
        active, (host,) = fed.active, self.passive(fed)
        batch = self.up(fed, rows)
        own = {"ll": batch.sent[host.name]}
        got = {"ll": batch.got[host.name]}
        names, where = {"ll": ""}, {"ll": rows}
        mine = {"ll": batch.got[active.name]}
        y = {"ll": batch.y}
        for name, draw in fed.extra["draws"].items():
            extra = draw()
            if name in ("ul", "guest"):
                mine[name] = active.modules["bottom"](fed.columns(active.name, extra))
            if name == "guest":
                y[name] = fed.targets(extra)
                continue
            if name == "ul":
                fed.send("ids", active.name, host.name, extra, extra, name="batch")
            z = host.modules["bottom"](fed.columns(host.name, extra))
            z = z[..., z.shape[2] // 2 :] if name == "block" else z
            sent = fed.deliver(
                fed.message(
                    "embedding", host.name, active.name, z.detach(), extra, name=name,
                    repeated=True,
                )
            )  # fmt: skip
            own[name], got[name] = z, sent.requires_grad_()
            names[name], where[name] = name, extra
        total = self._total(fed, batch, mine, got, y).sum()
        params = active.parameters()
        grads = torch.autograd.grad(
            total, [*params, *got.values()], allow_unused=True, materialize_grads=True
        )
        delivered = [
            fed.deliver(
                fed.message(
                    "gradient", active.name, host.name, gradient.detach(), where[name],
                    name=names[name], scale=float(gradient.shape[1]), repeated=name != "ll",
                ),
                labels=y.get(name), logits=batch.logits,
            )
            for name, gradient in zip(got, grads[len(params) :], strict=True)
        ]  # fmt: skip
        outputs: list[Tensor] = list(own.values())
        penalty = batch.penalties[host.name]
        if penalty is not None:
            outputs, delivered = [*outputs, penalty.sum()], [*delivered, torch.ones_like(total)]
        weights = host.parameters()
        host.update(torch.autograd.grad(outputs, weights, delivered))
        active.update(grads[: len(params)])

    def _total(
        self,
        fed: Federation,
        batch: Exchange,
        mine: dict[str, Tensor],
        got: dict[str, Tensor],
        y: dict[str, Tensor],
    ) -> Tensor:
        """The guest's loss, (R,).

        Args:
            mine: own representations (R, n, 2d) of ll, ul and guest (nl_G).
            got: the host's of ll, ul and nl, and the common part (R, n, d) of its block.
            y: labels of ll and guest.
        """
        g, h = mine["ll"], got["ll"]
        top = fed.active.modules["top"]
        logits = top(torch.cat([g, h], dim=-1))
        batch.logits = logits.detach()
        losses = fed.losses(logits, batch.y)
        base = losses.mean(1)
        estimate = _Estimate(self.sharpening, mine, got)
        total = base
        if self.side_heads:
            heads = fed.active.modules
            guest_ll = fed.losses(heads["guest_head"](g), batch.y)
            total = total + fed.loss(heads["host_head"](h), batch.y)
            chosen, pseudo = self._select(fed, estimate, got["nl"])
            extra = [
                fed.losses(top(torch.cat([estimate.guest(got["nl"]), got["nl"]], -1)), pseudo)
                * chosen
            ]
            count = chosen.sum(1) + losses.shape[1]
            if "guest" in mine:
                z = mine["guest"]
                joint = top(torch.cat([z, estimate.host(z)], -1))
                extra.append(fed.losses(joint, y["guest"]))
                count = count + z.shape[1]
                more = fed.losses(heads["guest_head"](z), y["guest"])
                guest_ll = torch.cat([guest_ll, more], dim=1)
            total = total + guest_ll.mean(1)
            wide = (losses.sum(1) + torch.stack([e.sum(1) for e in extra]).sum(0)) / count
            total = total + torch.where(chosen.any(1), wide - base, torch.zeros_like(base))
        for term in (self._auxiliary(fed, estimate, y), self.own_term(fed)):
            total = total if term is None else total + term
        penalty = fed.penalty(fed.active.name, batch.x[fed.active.name], batch.got, batch.y)
        return total if penalty is None else total + penalty

    @torch.no_grad()
    def _select(self, fed: Federation, estimate: _Estimate, z: Tensor) -> tuple[Tensor, Tensor]:
        """Which of the host's unaligned rows get a pseudo-label (R, n), and which one."""
        guest, modules = estimate.guest(z), fed.active.modules
        answers = [
            modules["top"](torch.cat([guest, z], -1), train=False),
            modules["guest_head"](guest, train=False),
            modules["host_head"](z, train=False),
        ]
        found = [torch.softmax(a, dim=2).max(dim=2) for a in answers]
        label = found[0].indices
        chosen = (found[1].indices == label) & (found[2].indices == label)
        for one, threshold in zip(found, (self.t_fed, self.t_guest, self.t_host), strict=True):
            chosen = chosen & (one.values > threshold)
        fed.extra["selected"] = chosen.sum(1)
        return chosen, label

    def _auxiliary(
        self, fed: Federation, estimate: _Estimate, y: dict[str, Tensor]
    ) -> Tensor | None:
        """The weighted sum of the four additional losses, (R,), or None if all weights are 0."""
        e, terms = estimate, []
        if self.lambda1:
            terms.append(self.lambda1 * _mse(e.common(e.g), e.common(e.h)))
        if self.lambda2:
            n = e.g_ol.shape[1]
            sizes = [_size(e.unique(z) @ e.common(z).transpose(1, 2)) for z in (e.g_ol, e.h_ol)]
            terms.append(self.lambda2 * (sizes[0] + sizes[1]) / n)
        if self.lambda3:
            both = _mse(e.guest(e.h_ol), e.g_ol) + _mse(e.host(e.g_ol), e.h_ol)
            terms.append(self.lambda3 * both)
        if self.lambda4:
            truth = _shares(y["ll"], fed.classes, e.g.dtype)
            every = truth
            if "guest" in y:
                every = torch.cat([truth, _shares(y["guest"], fed.classes, e.g.dtype)], dim=1)
            for guess in (e.by_unique(truth), e.by_common(every)):
                terms.append(-self.lambda4 * (truth * (guess + 1e-8).log()).sum(2).mean(1))
        return torch.stack(terms).sum(0) if terms else None

    def planned_facts(self, active: str, parties: tuple[str, ...], classes: int) -> Facts:
        facts = super().planned_facts(active, parties, classes)
        return replace(facts, extra={**facts.extra, "block": self.block})


@dataclass
class _Draw:
    """A batch of `size` rows of a set (R, n), drawn with replacement by each replica."""

    rows: Tensor
    size: int
    rng: Streams

    def __call__(self) -> Tensor:
        index = self.rng.integers(self.rows.shape[1], (self.size,))
        return self.rows.gather(1, index)


class _Estimate:
    """Representations and labels of one party estimated from the other's by attention."""

    def __init__(self, sharpening: float, mine: dict[str, Tensor], got: dict[str, Tensor]) -> None:
        self.t = sharpening
        self.g, self.h = mine["ll"], got["ll"]
        self.d = self.g.shape[2] // 2
        self.g_ol, self.h_ol = self.g, self.h
        if "ul" in mine:
            self.g_ol = torch.cat([self.g, mine["ul"]], dim=1)
            self.h_ol = torch.cat([self.h, got["ul"]], dim=1)
        lab = [self.common(self.g)]
        if "guest" in mine:
            lab.append(self.common(mine["guest"]))
        self.lab, self.block = torch.cat(lab, dim=1), got["block"]

    def unique(self, z: Tensor) -> Tensor:
        return z[..., : self.d]

    def common(self, z: Tensor) -> Tensor:
        return z[..., self.d :]

    def host(self, g: Tensor) -> Tensor:
        """The host part of guest rows (R, n, 2d)."""
        unique = attend(self.unique(g), self.unique(self.g_ol), self.unique(self.h_ol), self.t)
        return torch.cat([unique, attend(self.common(g), self.block, self.block, self.t)], dim=-1)

    def guest(self, h: Tensor) -> Tensor:
        """The guest part of host rows (R, n, 2d)."""
        unique = attend(self.unique(h), self.unique(self.h), self.unique(self.g), self.t)
        return torch.cat([unique, attend(self.common(h), self.lab, self.lab, self.t)], dim=-1)

    def by_unique(self, y: Tensor) -> Tensor:
        """Labels of ll from those of ll, (R, n, C)."""
        return attend(self.unique(self.h), self.unique(self.h), y, self.t)

    def by_common(self, y: Tensor) -> Tensor:
        """Labels of ll from those of ll and nl_G, (R, n, C)."""
        return attend(self.common(self.h), self.lab, y, self.t)


def _mse(a: Tensor, b: Tensor) -> Tensor:
    """Mean squared difference by replica, (R,)."""
    return (a - b).square().flatten(1).mean(1)


def _size(matrix: Tensor) -> Tensor:
    """Frobenius norm of (R, n, m) by replica, (R,)."""
    return torch.linalg.vector_norm(matrix.flatten(1), dim=1)


def _shares(y: Tensor, classes: int, dtype: torch.dtype) -> Tensor:
    """Labels as class shares (R, n, C)."""
    return (nn.functional.one_hot(y, classes) if y.dim() == 2 else y).to(dtype)


def _minus(rows: Tensor, other: Tensor) -> Tensor:
    """Row ids (R, n) without those of (R, m), all of which are among them, (R, n - m)."""
    keep = torch.stack([~torch.isin(a, b) for a, b in zip(rows, other, strict=True)])
    return rows[keep].reshape(len(rows), rows.shape[1] - other.shape[1])


def weights(queries: Tensor, keys: Tensor, temperature: float = 1.0) -> Tensor:
    """Sharpened attention weights (R, q, k) of queries (R, q, d) on keys (R, k, d), row by row:

        sharp_T(softmax(Q K' / sqrt(d))), sharp_T(p)_j = p_j^(1/T) / sum_i p_i^(1/T).

    Sharpening a softmax is the softmax of the scores divided by T, which is how it is computed
    here; T = 1 leaves it as it is and T -> 0 picks the nearest key.
    """
    scores = queries @ keys.transpose(1, 2) / math.sqrt(keys.shape[2])
    return torch.softmax(scores / temperature, dim=2)


def attend(queries: Tensor, keys: Tensor, values: Tensor, temperature: float = 1.0) -> Tensor:
    """Weighted means (R, q, v) of values (R, k, v); every row lies in their convex hull."""
    return weights(queries, keys, temperature) @ values
