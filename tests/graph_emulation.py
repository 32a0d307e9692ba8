"""CUDA graphs on any machine: a capture notes operations and runs none, a replay runs them.

What a replay gets wrong on a GPU it gets wrong here. Its operations work on the very tensors of the
capture, so an input that nobody copied in is stale, a number that was read from the host stays what
it was, and a tensor that somebody kept is written to again. During a capture nothing is computed:
what is made holds no number, and asking for one is an error, as on a GPU. So is to draw, from a
generator that no graph knows, and, on an emulated device (`other_device`), to bring numbers to it
or from it; a number without a dimension that lies on the host is read there once.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

WAITS = {
    "_local_scalar_dense",
    "nonzero",
    "masked_select",
    "_unique2",
    "unique_dim",
    "equal",
    "bincount",
    "isin",
    "unique_consecutive",
}
INDEXED = {"index", "index_put", "index_put_", "_index_put_impl_"}
EMPTY = {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided"}

Operation = tuple[Any, Any, Any, list[Tensor]]


def _tensors(*of: Any) -> list[Tensor]:
    return [t for t in tree_leaves(of) if isinstance(t, Tensor)]


def _masked(name: str, args: Any) -> bool:
    """Whether the size of a result is asked for, to index by a mask."""
    return name in INDEXED and any(t.dtype == torch.bool for t in _tensors(args[1]))


def _crosses(name: str, args: Any, kwargs: Any) -> bool:
    """Whether numbers are copied between the host and a device."""
    given = _tensors(args, kwargs)
    there = [t.is_cuda for t in given]
    if name == "_to_copy" and kwargs.get("device") is not None:
        return any(there) == (torch.device(kwargs["device"]).type == "cpu")
    return any(there) and any(t.dim() and not t.is_cuda for t in given)


def _read_once(args: Any, kwargs: Any) -> Any:
    """The same, with what a launch reads from the host as it is now."""
    if not any(t.is_cuda for t in _tensors(args, kwargs)):
        return args, kwargs

    def now(t: Any) -> Any:
        return t.clone() if isinstance(t, Tensor) and not t.is_cuda else t

    return tree_map(now, (args, kwargs))


class _Capture(TorchDispatchMode):
    """Notes operations with their tensors, which stay alive; runs views and what makes memory."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[Operation] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, schema, name = kwargs or {}, func._schema, func.__name__.partition(".")[0]
        if name in WAITS or _masked(name, args) or _crosses(name, args, kwargs):
            raise RuntimeError("operation not permitted when stream is capturing")
        if torch.Tag.nondeterministic_seeded in func.tags and name not in EMPTY:
            raise RuntimeError("Offset increment outside graph capture encountered unexpectedly.")
        args, kwargs = _read_once(args, kwargs)
        if schema.is_mutable:
            self.operations.append((func, args, kwargs, []))
            return self._written(schema, args, kwargs)
        out = func(*args, **kwargs)
        if any(r.alias_info is not None for r in schema.returns):  # a view
            return out
        made = [t for t in tree_leaves(out) if isinstance(t, Tensor)]
        for t in made:  # the mode is off in here
            t.fill_(torch.nan if t.is_floating_point() else 0)
        if name not in EMPTY:
            self.operations.append((func, args, kwargs, made))
        return out

    @staticmethod
    def _written(schema: Any, args: Any, kwargs: Any) -> Any:
        """What an operation returns of what it writes to."""
        given = dict(zip([a.name for a in schema.arguments], args, strict=False)) | kwargs
        by = {
            tuple(a.alias_info.before_set): given.get(a.name)
            for a in schema.arguments
            if a.alias_info is not None
        }
        out = [by[tuple(r.alias_info.before_set)] for r in schema.returns]
        return None if not out else out[0] if len(out) == 1 else tuple(out)


class Emulated:
    """Captures the stretches of one step; see `vflsec.train.cuda_graphs.CudaGraphs`.

    Attributes:
        running: whether operations are those of a replay, which a GPU launches as one.
        launched: how many replays there were.
    """

    running = False
    launched = 0

    def warm(self) -> AbstractContextManager[None]:
        return nullcontext()

    def restore_stream(self) -> AbstractContextManager[None]:
        return nullcontext()

    def stretch(self) -> tuple[AbstractContextManager[None], Callable[[], None]]:
        mode = _Capture()

        @contextmanager
        def during() -> Iterator[None]:
            with mode:
                yield
            if not mode.operations:
                warnings.warn("The CUDA Graph is empty. This usually means that ...", stacklevel=2)

        @torch.no_grad()
        def run() -> None:
            Emulated.running, Emulated.launched = True, Emulated.launched + 1
            for func, args, kwargs, made in mode.operations:
                now = [t for t in tree_leaves(func(*args, **kwargs)) if isinstance(t, Tensor)]
                for here, there in zip(now, made) if made else ():
                    _put(here, there)
            Emulated.running = False

        return during(), run


def _put(here: Tensor, there: Tensor) -> None:
    """Put a result where the capture's is, whose layout it has."""
    assert there.stride() == here.stride()
    there.data.copy_(here)  # unseen by the count of changes in place, as on a GPU
