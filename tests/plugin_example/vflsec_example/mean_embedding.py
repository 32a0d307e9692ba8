"""Nearest class mean in the adversary's own embedding space.

The adversary embeds the few rows whose labels it knows, takes the mean h_c of each class, and
scores a row by how near its embedding lies: s_c = -||h - h_c||^2. Passive, one party, no gradient
used: what leaks is that training with labels has shaped the adversary's own bottom model.

Source: an example; the nearest class mean rule is in Hastie, Tibshirani and Friedman (2009),
The Elements of Statistical Learning, sec. 4.3.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from vflsec.plugin import Attack, Guess, View, check, registry

ALIASES = ("nearest_mean",)


@registry.attack
@dataclass(frozen=True)
class MeanEmbedding(Attack):
    """Nearest class mean.

    Attributes:
        temperature: squared distances are divided by it; > 0, no unit. Ranks do not depend on it.
    """

    temperature: float = 1.0
    needs = frozenset({"model", "known_rows"})
    target = "label"

    def __post_init__(self) -> None:
        check.positive("mean_embedding: temperature", self.temperature)

    def infer(self, view: View, rng: torch.Generator) -> Guess:
        known = view.require_known()
        rows = view.target_rows
        h = view.embed(rows).flatten(1)  # (n, d)
        fallback = view.embed(known.rows).flatten(1).mean(0)  # for a class without a known row
        means = []
        for c in range(view.facts.classes):
            of_class = known.of_class(c)
            means.append(view.embed(of_class).flatten(1).mean(0) if len(of_class) else fallback)
        distance = (h[:, None] - torch.stack(means)[None]).square().sum(-1)  # (n, C)
        scores = -distance / self.temperature
        if view.facts.classes == 2:
            scores = scores[:, 1] - scores[:, 0]  # (n,), larger = class 1
        return Guess("label", rows, scores)
