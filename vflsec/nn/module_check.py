"""Is a user's own module a function of its rows? Tried on a few before anything rests on it.

Attacks, controls and predictions evaluate a module many times, in batches of any size, with and
without gradients, and a cell's result depends on its specification and seed alone. A module that
answers otherwise the second time, beside other rows or without a graph gives figures that nobody
gets again, or none: an attack on an encoder that is zero wherever it looks finds nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from vflsec.core.feature_schema import Schema
from vflsec.core.rng import own_global
from vflsec.errors import ConfigError, format_count
from vflsec.nn.replicas import DRAWS
from vflsec.plugins.loading import describe_error

COUNT = 3
"""Rows of a trial; also tried are one of them and the others."""
NEAR = 1e-4
"""How far answers may differ, of their size: products may add in another order."""


def rows_of(schema: Schema) -> Tensor:
    """Rows (3, *shape) that differ; codes where a column has categories."""
    rows = torch.arange(1.0, 1 + COUNT * torch.Size(schema.shape).numel()).sin()
    rows = rows.view(COUNT, *schema.shape)
    for i in schema.categorical:
        rows[:, i] = torch.arange(COUNT) % schema.cardinalities[i]
    return rows


def try_module(made: nn.Module, rows: Tensor, what: str) -> object:
    """What a module answers on `rows`, (3, ...), in evaluation; draws nothing from torch.

    A module that draws in training is marked (:data:`vflsec.nn.replicas.DRAWS`), for a function
    that draws cannot be seen from outside.

    Raises:
        ConfigError: it fails, changes its rows in place, or does not answer by them alone.
    """
    version = rows._version
    with own_global():
        with torch.no_grad():
            first = _run(made.eval(), rows, what)
            drawn, trained = _drawn(lambda: _run(copy.deepcopy(made).train(), rows, what))
            again = _drawn(lambda: _run(copy.deepcopy(made).train(), rows, what))[1]
        if rows._version != version:
            raise ConfigError(
                f"{what} changes its rows in place (x.div_(2), inplace=True). Begin its forward "
                "with x = x.clone()."
            )
        if not isinstance(first, Tensor) or not first.ndim or len(first) != COUNT:
            return first
        if not _same(trained, again):
            raise ConfigError(
                f"{what} draws random numbers that no seed repeats. Draw with torch "
                "(torch.rand_like, nn.functional.dropout)."
            )
        _function(made.eval(), rows, first, what)
        _trains(copy.deepcopy(made).train(), rows, what)
    if _blank(first) and not _blank(trained) and not drawn:
        raise ConfigError(
            f"{what} gives all rows one answer {_EVAL}, where attacks and predictions use it."
        )
    if drawn:
        setattr(made, DRAWS, True)
    return first


_EVAL = "in evaluation (module.eval())"


def _function(made: nn.Module, rows: Tensor, first: Tensor, what: str) -> None:
    """Refuse an evaluated module whose answer `first` is not one of each row by itself."""
    with torch.no_grad():
        drawn, second = _drawn(lambda: _run(made, rows, what))
        apart = [_run(made, part, what) for part in (rows[:1], rows[1:])]
    if drawn or not _same(first, second):
        raise ConfigError(
            f"{what} answers the same rows otherwise each time {_EVAL}. Draw in training alone (if "
            "self.training: ...)."
        )
    if not all(_same(a, b) for a, b in zip((first[:1], first[1:]), apart, strict=True)):
        raise ConfigError(
            f"{what} answers a row otherwise beside other rows {_EVAL}. Use statistics of a batch "
            "in training alone, as nn.BatchNorm1d does."
        )
    with torch.enable_grad():
        recorded = _run(made, rows, what)
    if not _same(first, recorded):
        raise ConfigError(
            f"{what} answers otherwise where gradients are recorded {_EVAL}. Take out what asks "
            "for that (torch.is_grad_enabled)."
        )


def _trains(made: nn.Module, rows: Tensor, what: str) -> None:
    """Refuse a module with parameters that no gradient of its answer would reach."""
    named = {k: p for k, p in made.named_parameters() if p.requires_grad}
    if not named:
        return
    with torch.enable_grad():
        answer = _run(made, rows, what)
        assert isinstance(answer, Tensor)
        grads: Sequence[Tensor | None] = [None] * len(named)
        if answer.requires_grad:
            grads = torch.autograd.grad(answer.sum(), list(named.values()), allow_unused=True)
    idle = [k for k, g in zip(named, grads, strict=True) if g is None]
    if idle:
        names = ", ".join(idle[:4]) + (" ..." if len(idle) > 4 else "")
        raise ConfigError(
            f"{what} answers without its parameters {names}. Use them, leave them out, or freeze "
            "them (requires_grad_(False))."
        )


def _run(module: nn.Module, rows: Tensor, what: str) -> object:
    try:
        return module(rows)
    except Exception as why:
        batch = f"a batch of {format_count(len(rows), 'row')}"
        raise ConfigError(
            f"{what} fails on {batch} of shape {tuple(rows.shape[1:])}: {describe_error(why)}"
        ) from why


def _drawn(run: Callable[[], object]) -> tuple[bool, object]:
    """Whether something drew from torch's generator, which starts alike each time; its answer."""
    with own_global():
        before = torch.random.get_rng_state()
        answer = run()
        return not torch.equal(before, torch.random.get_rng_state()), answer


def _same(a: object, b: object) -> bool:
    """Whether two answers are tensors of one shape and alike but for :data:`NEAR`."""
    if not isinstance(a, Tensor) or not isinstance(b, Tensor) or a.shape != b.shape:
        return False
    near = NEAR * float(a.detach().abs().nan_to_num().amax()) if a.numel() else 0.0
    return bool(torch.isclose(a, b, rtol=0, atol=near, equal_nan=True).all())


def _blank(answer: object) -> bool:
    """Whether all rows have one answer."""
    return not isinstance(answer, Tensor) or bool((answer == answer[:1]).all())
