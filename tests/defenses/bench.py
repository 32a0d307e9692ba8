"""What a defense needs to be called outside a training: its owner's side, and a message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from vflsec.core.message import Message
from vflsec.core.policy import Own, Policy
from vflsec.core.privacy_usage import RunFacts
from vflsec.core.rng import Streams, generator
from vflsec.plugins import registry


def make(name: str, **params: Any) -> Any:
    """A registered defense with these settings."""
    return registry.defenses.create(name, params)


def owner(
    policy: Policy,
    strengths: Sequence[float],
    *,
    seeds: Sequence[int] | None = None,
    classes: int = 2,
    prior: Sequence[float] | None = None,
    dtype: torch.dtype = torch.float64,
    **facts: Any,
) -> Own:
    """The owner of `policy`, one replica a strength; seeds 0, 0, ... unless given."""
    seeds = [0] * len(strengths) if seeds is None else seeds
    shares = torch.full((classes,), 1 / max(classes, 1), dtype=torch.float64)
    if prior is not None:
        shares = torch.tensor(prior, dtype=torch.float64)
    return Own(
        party="active",
        strength=torch.tensor(strengths, dtype=torch.float64),
        rng=Streams(seeds, "policy", "active", 0, policy.name, dtype=dtype),
        classes=classes,
        prior=shares.expand(len(strengths), -1),
        facts=RunFacts(**facts),
    )


def message(
    tensor: Tensor, kind: str = "gradient", rows: Tensor | None = None, **rest: Any
) -> Message:
    """A message with row ids 0..b-1 unless given; parameters have none."""
    if rows is None and kind in ("gradient", "embedding"):
        rows = torch.arange(tensor.shape[1]).expand(tensor.shape[0], -1)
    sender, receiver = ("active", "passive1") if kind == "gradient" else ("passive1", "active")
    return Message(kind, sender, receiver, tensor, rows, **rest)  # type: ignore[arg-type]


def rows_of_gradients(r: int = 1, b: int = 24, m: int = 6, seed: int = 3, rate: float = 0.3) -> Any:
    """Gradients (r, b, m) of two classes with different means, and labels (r, b)."""
    g = generator(seed, "bench")
    y = (torch.rand(b, generator=g) < rate).long()
    y[0], y[1] = 0, 1
    x = torch.randn(b, m, generator=g, dtype=torch.float64) * 0.3
    x = x + torch.where(y[:, None] == 1, 1.5, -0.5) * torch.ones(m, dtype=torch.float64)
    return x.expand(r, -1, -1).clone(), y.expand(r, -1).clone()
