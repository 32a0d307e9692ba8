"""Heads on own bottoms: a step by hand gives the bits of a step by graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from sampled import sampled
from torch import nn

from vflsec.core.view import Known
from vflsec.inference import inference_heads
from vflsec.inference.completion import Fitted, Problem
from vflsec.inference.inference_heads import HeadSettings, fit_networks
from vflsec.nn.models import mlp
from vflsec.nn.replicas import Replicas

ROWS, KNOWN, COLUMNS = 60, 12, 7


def rng(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def bottoms(kind: str, dtype: torch.dtype) -> list[nn.Module]:
    """Three of a kind, each with weights of its own."""
    made: list[nn.Module] = []
    for seed in range(3):
        torch.manual_seed(seed)
        of: dict[str, nn.Module] = {
            "identity": nn.Identity(),
            "linear": nn.Sequential(nn.Linear(COLUMNS, 5)),
            "mlp": mlp([COLUMNS, 37, 5]),
            "behind": nn.Sequential(nn.Flatten(), nn.Linear(COLUMNS, 9), nn.ReLU()),
            "tanh": nn.Sequential(nn.Linear(COLUMNS, 5), nn.Tanh()),
            "fixed": mlp([COLUMNS, 8, 5]),
        }
        if kind == "fixed":
            of[kind].requires_grad_(False)
        made.append(of[kind].to(dtype))
    return made


def fitted(kind: str, hidden: Sequence[int], classes: int, dtype: torch.dtype) -> Fitted:
    x = [torch.randn(ROWS, COLUMNS, generator=rng(7 + r)).to(dtype) for r in range(3)]
    labels = torch.arange(KNOWN) % classes
    knowns = [Known(torch.arange(KNOWN), labels[torch.randperm(KNOWN, generator=rng(r))])
              for r in range(3)]  # fmt: skip
    return fit_networks(
        "some", bottoms(kind, dtype), Problem([t[:KNOWN] for t in x], knowns, x, classes),
        [rng(r) for r in range(3)], HeadSettings(hidden, steps=25),
    )  # fmt: skip


@pytest.mark.parametrize("dtype", sampled([torch.float32, torch.float64]))
@pytest.mark.parametrize(("hidden", "classes"), sampled([((13,), 3), ((), 2)]))
@pytest.mark.parametrize(
    ("kind", "by_hand"),
    [("identity", True), ("linear", True), ("mlp", True), ("behind", True), ("fixed", True),
     ("tanh", False)],
)  # fmt: skip
def test_a_step_by_hand_gives_the_bits_of_a_graph(
    kind: str, by_hand: bool, hidden: tuple[int, ...], classes: int, dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    steps = []
    backward = inference_heads.backward

    def counted(*args: Any, **how: Any) -> object:
        steps.append(1)
        return backward(*args, **how)

    monkeypatch.setattr(inference_heads, "backward", counted)
    mine = fitted(kind, hidden, classes, dtype)
    many = (25 if kind == "identity" else 50) if by_hand else 0
    assert len(steps) == many
    answers = mine.answer(range(3))
    assert len(steps) == 2 * many  # what answers is fitted when it is asked
    assert np.array_equal(mine.answer([1])[0], answers[1])
    monkeypatch.setattr(Replicas, "plain", None)
    other = fitted(kind, hidden, classes, dtype)
    assert mine.cv == other.cv
    for a, b in zip(mine.held, other.held, strict=True):
        assert a is not None
        assert b is not None
        assert np.array_equal(a, b)
    for a, b in zip(answers, other.answer(range(3)), strict=True):
        assert np.array_equal(a, b)
        assert a.std() > 0.01
    assert len(steps) == 3 * many
