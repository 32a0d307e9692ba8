"""Generative regression network: columns that make the victim's model give the observed prediction.

A generator G maps own columns and noise to a guess of the victim's columns, x' = G([x_B, noise]),
and is trained on many rows so that the joint model F gives the recorded logits or embeddings:
    minimise  mean_i ||F(x_B,i, x'_i) - v_i||^2 + w sum_j max(0, var_j(x') - 1),
with v the class shares (``match = "prediction"``, as published) or the received embedding
(``match = "embedding"``, a stronger attacker of split learning). Columns are in units of their
training standard deviation, so the variance penalty starts at 1. Score: x'.

Attacker: the active party, white box (``peer_model = true``), after training. Needs the received
embeddings of training rows; no auxiliary row.
White-box access to the victim's bottom is a strong assumption: read the result as an upper bound.
Known failure cases: many column vectors explain one prediction; F must see more classes or a wider
embedding to tell them apart. Category codes are not differentiable, so those tables are declined.

Source: Luo, Wu, Xiao, Ooi, "Feature inference attack on model predictions in vertical federated
learning", ICDE 2021, arXiv:2010.10152, section V (generator 600-200-100 with layer normalisation,
Adam 1e-4, 60 epochs, batch 64).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from vflsec.core.party import step
from vflsec.inference.adversary_model import Answers, Joint, pick_rows
from vflsec.inference.gradient_replay import by_embedding
from vflsec.nn import optim
from vflsec.nn.replicas import Replicas
from vflsec.plugin import Attack, Guess, ThreatModelError, View, as_global, check, registry

ALIASES = ("grna", "generative_regression")
FAMILY = "features"


@registry.attack
@dataclass(frozen=True)
class Grn(Attack):
    """Hyper-parameters.

    Attributes:
        match: ``prediction`` or ``embedding``.
        hidden: widths of the generator, as published.
        noise: width of the noise, 0 for none.
        spread: w, weight of the variance penalty, as published.
        epochs, batch, lr: of Adam, as published.
    """

    match: Literal["prediction", "embedding"] = "prediction"
    hidden: tuple[check.Count, ...] = (600, 200, 100)
    noise: check.Whole = 4
    spread: check.NonNegative = 0.25
    epochs: check.Count = 60
    batch: check.Count = 64
    lr: check.Positive = 1e-4
    needs = frozenset({"embedding:last+", "peer_model"})
    target: ClassVar[str] = "feature"
    quick = {
        "hidden": (64, 64), "epochs": 20, "batch": 128, "lr": 3e-3,
    }  # fmt: skip
    seconds: ClassVar[float] = 7.0

    def declines(self, view: View) -> str:
        """That a victim's columns are not all numbers, or ''."""
        return not_numbers(view, "grn")

    def infer_many(self, views: Sequence[View], rngs: Sequence[torch.Generator]) -> list[Guess]:
        each = by_embedding(self, views, rngs)
        if each is not None:
            return each
        first = views[0]
        check_victims(first, "grn")
        shapes = [first.schema[p].shape for p in first.victims]
        width = sum(first.schema[p].shape[0] for p in first.victims)
        rows = torch.stack([v.targets["train"] for v in views])  # (R, n)
        own = torch.stack([v.design(r) for v, r in zip(views, rows, strict=True)])
        sent = torch.stack(
            [v.received("embedding", "last").of_rows(r) for v, r in zip(views, rows, strict=True)]
        )
        bottom = Replicas(
            [Joint([v.models[p]["bottom"] for p in v.victims], shapes) for v in views],
            device=own.device, dtype=own.dtype,
        )  # fmt: skip
        answers = Answers(views, rows)

        def top(z: Tensor, at: Tensor | None = None) -> Tensor:
            return torch.softmax(answers(z, at), dim=2)

        generators = []
        for g in rngs:
            with as_global(g):
                generators.append(self._generator(own.shape[2] + self.noise, width))
        made = Replicas(generators, device=own.device, dtype=own.dtype)
        optimizer = optim.Adam(made.parameters(), lr=self.lr, fused=True)
        goal = sent if self.match == "embedding" else top(sent)
        n = rows.shape[1]
        noise = torch.stack([torch.randn((n, self.noise), generator=g) for g in rngs]).to(own)
        inputs = torch.cat([own, noise], dim=2)
        for _ in range(self.epochs):
            order = torch.stack([torch.randperm(n, generator=g) for g in rngs]).to(own.device)
            for at in order.split(self.batch, dim=1):
                x = made(pick_rows(inputs, at))
                z = bottom(x, train=False)
                seen = z if self.match == "embedding" else top(z, at)
                loss = (seen - pick_rows(goal, at)).square().sum(2).mean(1)
                if at.shape[1] > 1:
                    loss = loss + self.spread * (x.var(1) - 1).clamp_min(0).sum(1)
                gradients = torch.autograd.grad(loss.sum(), made.parameters())
                step(optimizer, made.parameters(), gradients)
        with torch.no_grad():
            answer = made(inputs, train=False)
        notes = {"victim": "+".join(first.victims), "white_box": True}
        return [Guess(self.target, rows[r], answer[r], notes=notes) for r in range(len(views))]

    def _generator(self, given: int, width: int) -> nn.Sequential:
        layers: list[nn.Module] = []
        for a, b in zip((given, *self.hidden[:-1]), self.hidden, strict=True):
            layers += [nn.Linear(a, b), nn.LayerNorm(b), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(self.hidden[-1] if self.hidden else given, width))


def not_numbers(view: View, name: str) -> str:
    """Which victim has columns that an attack cannot differentiate by, in words, or ''."""
    for p in view.victims:
        if view.schema[p].categorical or not view.schema[p].cardinalities:
            return f"{name} needs numeric columns, unlike {p}'s."
    return ""


def check_victims(view: View, name: str) -> None:
    """Refuse a view in which an attack cannot differentiate through the victims' bottoms.

    Raises:
        ThreatModelError: a model is missing, or a victim's columns are not all numbers.
    """
    if not view.victims or any("bottom" not in view.models.get(p, {}) for p in view.victims):
        raise ThreatModelError(f"{name} needs the victims' models.")
    if why := not_numbers(view, name):
        raise ThreatModelError(why)
