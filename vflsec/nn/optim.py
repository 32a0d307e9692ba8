"""The optimizers of torch without the two seconds that their first use costs.

The constructor and the step of `torch.optim` import the compiler (`torch._dynamo`) only to exempt
themselves from it. Here the same functions are called without that wrapper: the same kernels on the
same numbers, so results are equal bit for bit.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch

__all__ = ["SGD", "Adagrad", "Adam"]

_ADD = inspect.unwrap(torch.optim.Optimizer.add_param_group)
_ADAM, _SGD, _ADAGRAD = (
    inspect.unwrap(o.step) for o in (torch.optim.Adam, torch.optim.SGD, torch.optim.Adagrad)
)


class Adam(torch.optim.Adam):
    """`torch.optim.Adam`; no closures."""

    add_param_group = _ADD

    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        with torch.no_grad():
            return _ADAM(self)


class SGD(torch.optim.SGD):
    """`torch.optim.SGD`; no closures."""

    add_param_group = _ADD

    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        with torch.no_grad():
            return _SGD(self)


class Adagrad(torch.optim.Adagrad):
    """`torch.optim.Adagrad`; no closures."""

    add_param_group = _ADD

    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        with torch.no_grad():
            return _ADAGRAD(self)
