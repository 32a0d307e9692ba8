"""Stacked parameters end to end in one buffer, so that an optimizer takes one step on all of them.

The buffer is *parameter-major*: every parameter keeps a contiguous (R, ...) segment of its own, and
is a leaf that shares its memory. Segments begin at multiples of :data:`LANES` numbers, so that the
fused kernels of the CPU meet no partly filled vector register. Those would be rounded differently
from the others, and which numbers they are would depend on R.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import is_
from typing import Any

import torch
from torch import Tensor

LANES = 16
"""Numbers of float32 in the widest vector register."""

_PLACE = "_place_in_flat"


@dataclass(frozen=True)
class _Place:
    """Where a parameter lies: its numbers are ``flat.data[start : start + numel]``."""

    flat: Flat
    start: int
    stop: int  # the beginning of the next one


class Flat:
    """One buffer for stacked tensors.

    Args:
        values: by name, (R, ...) each, of one dtype and device; copied.

    Attributes:
        data: all of them, 1-D.
        leaves: by name, tensors that share the memory of `data` and require gradients.
    """

    def __init__(self, values: Mapping[str, Tensor]) -> None:
        self.spans: dict[str, tuple[int, torch.Size]] = {}
        at = 0
        for name, value in values.items():
            self.spans[name] = (at, value.shape)
            at += -(-value.numel() // LANES) * LANES
        first = next(iter(values.values()))
        self.data = torch.zeros(at, dtype=first.dtype, device=first.device)
        self.gaps: list[tuple[int, int]] = []
        self.leaves: dict[str, Tensor] = {}
        ends = [*(start for start, _ in self.spans.values()), at][1:]
        for (name, (start, shape)), end in zip(self.spans.items(), ends, strict=True):
            stop = start + shape.numel()
            leaf = self.data[start:stop].view(shape).detach().requires_grad_()
            with torch.no_grad():
                leaf.copy_(values[name])
            setattr(leaf, _PLACE, _Place(self, start, end))
            self.leaves[name] = leaf
            if stop < end:
                self.gaps.append((stop, end))
        self._parts = [
            (shape, self.leaves[name].stride(), start)
            for name, (start, shape) in self.spans.items()
        ]

    def fresh(self) -> Tensor:
        """An empty buffer of this layout, for gradients; gaps are zero."""
        made = torch.empty_like(self.data)
        for start, stop in self.gaps:
            made[start:stop].zero_()
        return made

    def holds(self, params: Sequence[Tensor]) -> bool:
        """True if `params` are all of `leaves`, in their order."""
        return len(params) == len(self.leaves) and all(map(is_, params, self.leaves.values()))

    def pieces(self, buffer: Tensor) -> list[Tensor]:
        """The parts of a buffer of this layout, (R, ...) each, in the order of `leaves`."""
        return [buffer.as_strided(*part) for part in self._parts]

    def view(self, buffer: Tensor, name: str) -> Tensor:
        """The part of a buffer of this layout that belongs to a parameter, (R, ...)."""
        start, shape = self.spans[name]
        return buffer[start : start + shape.numel()].view(shape)


class Block:
    """Parameters of one optimizer group whose numbers lie side by side, as one tensor.

    Attributes:
        params: them, in the order of memory.
        data: their numbers, 1-D with the gaps.
        state: what the optimizer keeps.
    """

    def __init__(self, params: Sequence[Tensor]) -> None:
        self.params = list(params)
        places = [getattr(p, _PLACE) for p in params]
        self.flat: Flat = places[0].flat
        self.start, self.stop = places[0].start, places[-1].stop
        self.starts = [place.start for place in places]
        self.ids = [id(p) for p in params]
        self.data = self.flat.data[self.start : self.stop]
        self.state: dict[str, Any] = {}

    def of(self, buffer: Tensor, i: int) -> Tensor:
        """The part of a tensor of this block's layout that belongs to its i-th parameter."""
        p, at = self.params[i], self.starts[i] - self.start
        return buffer[at : at + p.numel()].view(p.shape)

    def gathered(self, gradients: Sequence[Tensor]) -> Tensor:
        """Gradients of all its parameters in the layout of `data`, without a copy where they were
        written so.
        """
        base = gradients[0]._base
        if (
            base is not None
            and base.dim() == 1
            and base.numel() == self.flat.data.numel()
            and [g.storage_offset() for g in gradients] == self.starts
            and all(g._base is base and g.is_contiguous() for g in gradients)
        ):
            whole = self.stop - self.start == base.numel()
            return base if whole else base[self.start : self.stop]
        made = torch.zeros_like(self.data)
        torch._foreach_copy_([self.of(made, i) for i in range(len(self.params))], list(gradients))
        return made

    def split(self) -> Iterator[Block]:
        """A block of its own for each parameter, which go on with what the optimizer kept."""
        for p in self.params:
            one = Block([p])
            at = one.start - self.start
            for key, value in self.state.items():
                part = isinstance(value, Tensor) and value.dim() > 0
                one.state[key] = value[at : at + len(one.data)] if part else _copy(value)
            yield one


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def find_blocks(params: Sequence[Tensor]) -> list[Block] | None:
    """The parameters as few blocks; None if one of them lies in no flat buffer."""
    if not all(hasattr(p, _PLACE) for p in params):
        return None
    runs: list[list[Tensor]] = []
    last: _Place | None = None
    for p in sorted(params, key=lambda p: (id(getattr(p, _PLACE).flat), getattr(p, _PLACE).start)):
        place: _Place = getattr(p, _PLACE)
        if last is not None and last.flat is place.flat and last.stop == place.start:
            runs[-1].append(p)
        else:
            runs.append([p])
        last = place
    return [Block(run) for run in runs]


def gradients_like(params: Sequence[Tensor]) -> list[Tensor]:
    """Empty tensors for the gradients of parameters; of one flat buffer, in a fresh one like it.

    Never kept from step to step: a module that is used twice in a graph would add its gradient to
    itself.
    """
    first: _Place | None = getattr(params[0], _PLACE, None) if params else None
    flat = None if first is None else first.flat
    if flat is not None and flat.holds(params):
        return flat.pieces(flat.fresh())
    places = [getattr(p, _PLACE, None) for p in params]
    found = [place for place in places if place is not None and place.flat is flat]
    if flat is None or len(found) < len(places):
        return [torch.empty_like(p) for p in params]
    buffer = flat.fresh()
    return [
        buffer[place.start : place.start + p.numel()].view(p.shape)
        for p, place in zip(params, found, strict=True)
    ]
