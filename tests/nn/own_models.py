"""Modules of a user's own, by import path: for tables, sequences and images."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


class Recurrent(nn.Module):
    """Columns are measurements in time, `features` at each moment."""

    def __init__(
        self, schema: object, out: int, kind: str = "GRU", features: int = 2, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.features = features
        layers = 2 if dropout else 1
        self.memory = getattr(nn, kind)(features, 5, layers, batch_first=True, dropout=dropout)
        self.out = nn.Linear(5, out)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.memory(x.reshape(len(x), -1, self.features))[0][:, -1])


class Rows(nn.Module):
    """An image as the sequence of its pixel rows."""

    def __init__(self, schema: object, out: int) -> None:
        super().__init__()
        self.memory = nn.LSTM(schema.shape[-1], out, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.memory(x[:, 0])[0][:, -1]


class Gated(nn.Module):
    """A top model without a stacking rule that vmap can batch."""

    def __init__(self, inputs: int, out: int, hidden: int = 4) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(inputs, hidden), nn.Linear(inputs, hidden)
        self.out = nn.Linear(hidden, out)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.a(x)) * torch.sigmoid(self.b(x)))


def plain(out: int, width: int = 3) -> nn.Module:
    """One required argument gets `out`; the other has a default."""
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(width), nn.Linear(width, out))


def straight(schema: object, out: int) -> nn.Module:
    """One linear layer, whose embedding is computed by hand."""
    return nn.Linear(schema.shape[0], out)


class Halves(nn.Module):
    """Works on the rows that it is given: in all modes, in some columns, or in training alone."""

    def __init__(self, schema: Any, out: int, how: str = "all") -> None:
        super().__init__()
        self.how, self.last = how, nn.Linear(schema.shape[0], out)

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "all":
            x = x.div_(2)
        elif self.how == "a column":
            x[:, 0] = x[:, 0].abs().log1p()
        elif self.how == "in training" and self.training:
            x = nn.functional.dropout(x, 0.5, inplace=True)
        elif self.how == "a copy":
            x = x.clone().div_(2)
        return self.last(x)  # type: ignore[no-any-return]


class Erratic(nn.Module):
    """Answers by more than its rows: by draws, neighbours, the graph, or the mode."""

    def __init__(self, schema: Any, out: int, how: str = "") -> None:
        super().__init__()
        self.how, self.last = how, nn.Linear(schema.shape[0], out)
        if how in ("idle", "frozen"):
            self.more = nn.Linear(2, 2).requires_grad_(how == "idle")

    def forward(self, x: Tensor) -> Tensor:
        z = self.last(x)
        if self.how == "noise":
            z = z + torch.randn_like(z)
        elif self.how == "numpy in training" and self.training:
            z = z + float(np.random.default_rng().standard_normal())
        elif self.how == "numpy":
            z = z + 0 * z if self.training else z + float(np.random.default_rng().standard_normal())
        elif self.how == "neighbours":
            z = z - z.mean(0, keepdim=True)
        elif self.how == "graph":
            z = z if torch.is_grad_enabled() else z + 1
        elif self.how == "mode":
            z = z if self.training else 0 * z
        elif self.how == "one row":
            z = z.squeeze(0).view(-1, z.shape[-1]) if len(x) > 1 else z[1]
        elif self.how == "draws in training":
            z = nn.functional.dropout(z, 0.5, self.training)
        elif self.how == "constant but for draws":
            z = nn.functional.dropout(0 * z + 1, 0.5, self.training)
        elif self.how == "detached":
            z = z.detach()
        return z  # type: ignore[no-any-return]
