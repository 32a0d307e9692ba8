"""A CUDA device on any machine: its tensors say they live there, and are refused beside others.

Every tensor that is made on ``cuda`` is a shell around one on the CPU, which does the work; so
numbers are those of the CPU, and all that goes by the device (``is_cuda``, ``.to``, ``.cpu()``,
``.numpy()``) goes as on a GPU. What a GPU refuses is refused here (:class:`Refused`):

* tensors of two devices in one operation, but for copies, for numbers without a dimension beside
  others in elementwise operations, and for indices on the CPU into a tensor of the device;
* a generator of the CPU for numbers on the device, and the other way;
* products of matrices of integers; least squares by another driver than ``gels``; histograms that
  the device has no kernel for;
* what comes out otherwise in every run: fractions added up in one place, and different numbers
  written to one (``index_add``, ``scatter``, indexing), running sums, weighted counts.

Equal numbers that are sorted come in another order than on a CPU, unless that was asked for.

Where TF32 is allowed, factors of float32 are rounded to it. Not seen: what kernels of a GPU round
or order differently else, memory, streams, and speed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from vflsec.nn.reduced_precision import round_factors

__all__ = ["Refused", "emulated", "inner", "place", "there"]

NAME = "elsewhere"
COPIES = {"copy_", "_to_copy", "_copy_from", "_copy_from_and_resize"}
INDEXED = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}
ASKED = {
    "_local_scalar_dense",
    "nonzero",
    "masked_select",
    "_unique",
    "_unique2",
    "unique_dim",
    "unique_consecutive",
    "unique_dim_consecutive",
    "equal",
    "bincount",
    "isin",
    "_linalg_check_errors",
}
"""What hands a number to the host, or asks there how large its result is."""
PRODUCTS = {"mm", "bmm", "addmm", "addmm_", "baddbmm", "baddbmm_", "mv", "addmv", "dot", "vdot"}
TIED = {"sort", "topk"}
MANY = {
    "index_add",
    "index_add_",
    "scatter_add",
    "scatter_add_",
    "index_copy",
    "index_copy_",
    "scatter",
    "scatter_",
    "index_put",
    "index_put_",
    "_index_put_impl_",
}
"""What a GPU does in any order, each in the order in which its threads come."""
FILLS = {"fill_", "masked_fill", "masked_fill_"}
SHAPED = {"squeeze_", "unsqueeze_", "t_", "transpose_"}
ABSENT = {"histogram", "histogramdd", "_histogramdd_from_bin_cts", "_histogramdd_bin_edges"}
RealGenerator = torch.Generator


@cache
def place() -> torch.device:
    """The device, which torch takes for one that somebody added to it."""
    _setup_privateuseone_for_python_backend(NAME)
    return torch.device(NAME, 0)


_SAW: list[Callable[[], Any]] = []


class Refused(RuntimeError):
    """A GPU would refuse this."""


class Shell(Tensor):
    """A tensor of the device; `kept` has its numbers, on the CPU."""

    kept: Tensor

    @staticmethod
    def __new__(cls, kept: Tensor) -> Shell:
        made = Tensor._make_wrapper_subclass(
            cls, kept.size(), kept.stride(), kept.storage_offset(), dtype=kept.dtype,
            device=place(),
        )  # fmt: skip
        made.kept = kept
        return made

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"Shell({self.kept!r})"

    def data_ptr(self) -> int:
        return self.kept.data_ptr()

    def untyped_storage(self) -> Any:
        return self.kept.untyped_storage()

    def as_subclass(self, kind: Any) -> Any:  # type: ignore[override]
        both = (Shell,) if kind is Tensor else (kind, Shell)
        return Shell.__new__(type(kind.__name__, both, {}), self.kept)

    def __deepcopy__(self, memo: Any) -> Shell:
        made = Shell(self.kept.detach().clone()).requires_grad_(self.requires_grad)
        memo[id(self)] = made
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _dispatched(func, args, kwargs or {})


class _Mode(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _dispatched(func, args, kwargs or {})


_OF_DEVICE: dict[int, torch.Generator] = {}
"""Generators of the device by address; kept, so that no other one gets it."""


class _Generator(torch.Generator):
    """The CPU's, or one of the device whose numbers are those of the CPU's."""

    def __new__(cls, device: Any = "cpu") -> Any:
        made = RealGenerator()
        if torch.device(device).type != "cpu":
            _OF_DEVICE[made._cdata] = made
        return made


def inner(x: Any) -> Any:
    """What a shell has in it; anything else as it is."""
    return x.kept if isinstance(x, Shell) else x


def _there(device: Any) -> bool:
    return device is not None and torch.device(device).type == NAME


def _dispatched(func: Any, args: Any, kwargs: Any) -> Any:
    name = func.__name__.partition(".")[0]
    flat = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
    shells = [t for t in flat if isinstance(t, Shell)]
    asked = kwargs.get("device")
    on = _there(asked) if asked is not None else bool(shells)
    _look(func, name, flat, shells, args, kwargs, on)
    if _SAW and _crosses(name, flat, shells, args, on):
        _SAW[-1]()
    given = tree_map(inner, (args, kwargs))
    if name in PRODUCTS and torch.backends.cuda.matmul.allow_tf32:
        added = 1 if "add" in name else 0
        args, kwargs = given
        given = (*args[:added], *tree_map(_in_tf32, args[added:])), kwargs
    more = dict(given[1])
    if asked is not None and _there(asked):
        more["device"] = torch.device("cpu")
    out = func(*given[0], **more)
    if name in TIED and shells:
        out = _other_ties(func, out, given)
    if name in SHAPED:
        with no_dispatch():
            func(*args, **kwargs)
        return args[0]
    own = {id(inner(t)): t for t in flat}
    if name == "copy_":
        return args[0]

    def wrapped(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        if id(x) in own:
            return own[id(x)]
        if not on:
            return x
        if name == "_to_copy" and x.data_ptr() and any(x is inner(t) for t in flat):
            x = x.clone()
        return Shell(x)

    return tree_map(wrapped, out)


def _other_ties(func: Any, out: Any, given: Any) -> Any:
    """What was sorted, equal numbers the other way round where no order of them was asked for."""
    args, named = given
    told = dict(zip([a.name for a in func._schema.arguments], args, strict=False)) | named
    x, dim = told["self"], told.get("dim", -1)
    if told.get("stable") or not x.dim():
        return out
    down = told.get("descending", told.get("largest", "k" in told))
    order = x.shape[dim] - 1 - x.flip(dim).sort(dim=dim, descending=down, stable=True).indices
    order = order.narrow(dim, 0, told.get("k", order.shape[dim]))
    return x.gather(dim, order), order


def _in_any_order(name: str, args: Any) -> bool:
    """Whether fractions are added up in one place, or different numbers written to it."""
    bare = name.removesuffix("_")
    target, *rest = tree_map(inner, args)
    if bare in ("index_put", "_index_put_impl"):
        at, values, *adds = rest
        index = tuple(slice(None) if i is None else i for i in at)
        if any(adds[:1]):  # which sorts first
            return False
        written = target.clone()
        written[index] = values
        read = written[index]
        return not _equal(read, values.to(read).expand(read.shape))
    dim, at, values = rest[:3]
    if not isinstance(values, Tensor):
        return False
    if bare == "index_copy":
        return not _equal(target.index_copy(dim, at, values).index_select(dim, at), values)
    if bare == "scatter":
        values = values[tuple(map(slice, at.shape))]
        return not _equal(target.scatter(dim, at, values).gather(dim, at), values)
    whole = not values.is_floating_point() or bool((values == values.round()).all())
    if bare == "index_add":
        some = values.movedim(dim, 0).reshape(len(at), -1).any(1)
        at = at[some]  # zeros may come whenever they do
        return not whole and len(at.unique()) < len(at)
    lines = at.movedim(dim, -1).sort(-1).values
    return not whole and bool((lines[..., 1:] == lines[..., :-1]).any())


def _equal(a: Tensor, b: Tensor) -> bool:
    same = a == b
    return bool((same | (a.isnan() & b.isnan())).all())


def _in_tf32(x: Any) -> Any:
    """What the units of a GPU take of a factor."""
    rounds = isinstance(x, Tensor) and x.dtype == torch.float32
    return round_factors(x) if rounds else x


def _crosses(
    name: str, flat: Sequence[Tensor], shells: Sequence[Tensor], args: Any, on: bool
) -> bool:
    """Whether numbers go between the host and the device, which waits for them: memory of the host
    that is not pinned is copied at once, and how large a result is, is asked for.
    """
    here = [t for t in flat if not isinstance(t, Shell) and t.numel()]
    masked = name in INDEXED and any(t.dtype in (torch.bool, torch.uint8) for t in _indices(args))
    if shells and (name in ASKED or masked):
        return True
    if name == "_to_copy":
        return bool(here) if on else bool(shells)
    return bool(here and shells) and (name == "copy_" or name in INDEXED)


def _indices(args: Any) -> list[Tensor]:
    return [t for t in args[1] if isinstance(t, Tensor)]


def _look(
    func: Any, name: str, flat: Sequence[Tensor], shells: Sequence[Tensor], args: Any,
    kwargs: Any, on: bool,
) -> None:  # fmt: skip
    here = [t for t in flat if not isinstance(t, Shell)]
    if shells and here and name not in COPIES:
        _mixed(func, name, here, args)
    drawn = [g for g in tree_leaves((args, kwargs)) if isinstance(g, RealGenerator)]
    for g in drawn:
        if (g._cdata in _OF_DEVICE) != on:
            raise Refused(f"{func}: a generator of another device than the numbers.")
    if not shells:
        return
    if name in PRODUCTS and any(not (t.is_floating_point() or t.is_complex()) for t in flat):
        raise Refused(f"{func}: not implemented for {[t.dtype for t in flat]}.")
    if name in MANY and _in_any_order(name, args):
        raise Refused(f"{func}: no two runs are alike where the order counts; see group_sums.py.")
    if name == "cumsum" and shells[0].dim() == 1 and shells[0].is_floating_point():
        raise Refused(f"{func}: no two runs are alike; see clustering_points.py.")
    if name == "bincount" and len(flat) > 1:
        raise Refused(f"{func}: with weights no two runs are alike; see group_sums.py.")
    if name in ABSENT:
        raise Refused(f"{func}: the device has no kernel.")
    if name == "linalg_lstsq" and kwargs.get("driver") not in (None, "gels"):
        raise Refused(f"{func}: the driver must be gels.")
    if name == "linalg_lstsq" and kwargs.get("driver") is None:
        raise Refused(f"{func}: gels on a GPU, which wants full rank, and gelsy on a CPU.")


def _mixed(func: Any, name: str, here: Sequence[Tensor], args: Any) -> None:
    bare = all(not t.dim() for t in here)
    if name in INDEXED:
        target, _, *values = args
        others = [t for t in tree_leaves(values) if isinstance(t, Tensor)]
        if not isinstance(target, Shell):
            raise Refused(f"{func}: an index on the device into a tensor of the CPU.")
        if all(isinstance(t, Shell) or not t.dim() for t in others):
            return
    elif bare and (torch.Tag.pointwise in func.tags or name in FILLS):
        return
    raise Refused(f"{func}: tensors of the device beside others, {[tuple(t.shape) for t in here]}.")


def there(x: Tensor) -> Tensor:
    """A copy on the device."""
    return Shell(x.detach().clone())


@contextmanager
def emulated(saw: Callable[[], Any] | None = None) -> Iterator[None]:
    """The device is there; `saw` is called whenever numbers cross to it or from it."""
    numpy, listed = Tensor.numpy, Tensor.tolist

    def refused(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        if isinstance(self, Shell):
            raise Refused("can't convert a tensor of the device to numpy: .cpu() first.")
        return numpy(self, *args, **kwargs)

    place()
    before = torch._C._only_lift_cpu_tensors()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tensor, "is_cuda", property(lambda self: isinstance(self, Shell)))
        patch.setattr(torch, "Generator", _Generator)
        patch.setattr(torch.cuda, "get_device_capability", lambda _=None: (9, 0))
        patch.setattr(Tensor, "numpy", refused)
        patch.setattr(Tensor, "tolist", lambda self: listed(inner(self)))
        torch._C._set_only_lift_cpu_tensors(True)
        _SAW.extend([] if saw is None else [saw])
        try:
            with _Mode():
                yield
        finally:
            _SAW.clear()
            torch._C._set_only_lift_cpu_tensors(before)
