"""The optimizers of torch without the two seconds that their first use costs.

The constructor and the step of `torch.optim` import the compiler (`torch._dynamo`) only to exempt
themselves from it. Here the same functions are called without that wrapper: the same kernels on the
same numbers, so results are equal bit for bit.

Parameters that lie in flat buffers (:mod:`vflsec.nn.flat_parameters`), as those of stacks do, are
stepped by one fused kernel over all of them instead. That is equal bit for bit to the fused
optimizers of torch, too, wherever a parameter fills whole vector registers.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from vflsec.nn.flat_parameters import Block, find_blocks

_ADD = inspect.unwrap(torch.optim.Optimizer.add_param_group)


def _unwrapped_step(of: type[torch.optim.Optimizer]) -> Callable[..., Any]:
    """The step of an optimizer of torch, or of flat buffers; without closures."""
    torch_step = inspect.unwrap(of.step)

    def step(self: Any, closure: Any = None) -> Any:
        if getattr(self, "flat", False):
            params = [p for group in self.param_groups for p in group["params"]]
            return self.take(params, [p.grad for p in params])
        with torch.no_grad():
            return torch_step(self)

    return step


def _settings(group: dict[str, Any]) -> dict[str, Any]:
    """Of a group, what its steps depend on; whether a kernel is fused is not asked here."""
    return {k: v for k, v in group.items() if k not in ("params", "fused")}


class Fused:
    """The half of an optimizer that steps parameters of flat buffers by one kernel."""

    param_groups: list[dict[str, Any]]
    state: Any
    _flat: list[tuple[list[dict[str, Any]], list[Block]]] | None
    _ids: frozenset[int]
    _looked = False

    @property
    def flat(self) -> bool:
        """True if all its parameters lie in flat buffers."""
        if not self._looked:
            self._flat = self._found()
            self._ids = frozenset(id(p) for group in self.param_groups for p in group["params"])
            self._looked = True
        return self._flat is not None

    def _found(self) -> list[tuple[list[dict[str, Any]], list[Block]]] | None:
        """Groups of equal settings, and the blocks of all their parameters."""
        alike: list[list[dict[str, Any]]] = []
        for group in self.param_groups:
            same = [a for a in alike if _settings(a[0]) == _settings(group)]
            if same:
                same[0].append(group)
            else:
                alike.append([group])
        made = []
        for some in alike:
            found = find_blocks([p for group in some for p in group["params"]])
            if found is None:
                return None
            made.append((some, found))
        return made

    @torch.no_grad()
    def take(self, params: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> None:
        """One step of the given parameters, if :attr:`flat`; those without a gradient stay."""
        assert self.flat
        assert self._flat is not None
        of = {id(p): g for p, g in zip(params, gradients, strict=True) if g is not None}
        if any(_settings(g) != _settings(some[0]) for some, _ in self._flat for g in some[1:]):
            self._part()
        every = of.keys() >= self._ids
        for some, made in self._flat:
            ready = made
            if not every:
                for block in list(made):
                    have = sum(id(p) in of for p in block.params)
                    if 0 < have < len(block.params):  # from now on they count their own steps
                        self._split(made, block)
                ready = [b for b in made if all(id(p) in of for p in b.params)]
            if ready:
                self._kernel(some[0], ready, [b.gathered([of[i] for i in b.ids]) for b in ready])

    def _split(self, made: list[Block], block: Block) -> None:
        at = made.index(block)
        made[at : at + 1] = block.split()
        for one in made:
            self._tell(one)

    def _part(self) -> None:
        """Groups were given different settings: from now on each is stepped by its own."""
        assert self._flat is not None
        parted: list[tuple[list[dict[str, Any]], list[Block]]] = []
        for some, made in self._flat:
            for block in list(made) if len(some) > 1 else ():
                self._split(made, block)
            of = {id(b.params[0]): b for b in made}
            if len(some) == 1:
                parted.append((some, made))
            else:
                parted += [([g], [of[id(p)] for p in g["params"]]) for g in some]
        self._flat = parted

    def _tell(self, block: Block) -> None:
        """Show what is kept of a block under its parameters, as torch does."""
        for i, p in enumerate(block.params):
            self.state[p] = {
                key: block.of(v, i) if isinstance(v, Tensor) and v.dim() else v
                for key, v in block.state.items()
            }

    def _kernel(self, group: dict[str, Any], ready: list[Block], grads: list[Tensor]) -> None:
        raise NotImplementedError("abstract")


class Adam(Fused, torch.optim.Adam):
    """`torch.optim.Adam`; no closures."""

    add_param_group = _ADD
    step = _unwrapped_step(torch.optim.Adam)  # type: ignore[assignment]

    def _kernel(self, group: dict[str, Any], ready: list[Block], grads: list[Tensor]) -> None:
        for b in ready:
            if not b.state:
                device = b.data.device if b.data.is_cuda else torch.device("cpu")
                b.state["step"] = torch.zeros((), dtype=torch.float32, device=device)
                b.state |= {k: torch.zeros_like(b.data) for k in ("exp_avg", "exp_avg_sq")}
                self._tell(b)
            b.state["step"] += 1
        beta1, beta2 = group["betas"]
        torch._fused_adam_(
            [b.data for b in ready], grads,
            [b.state["exp_avg"] for b in ready], [b.state["exp_avg_sq"] for b in ready], [],
            [b.state["step"] for b in ready],
            lr=group["lr"], beta1=beta1, beta2=beta2, weight_decay=group["weight_decay"],
            eps=group["eps"], amsgrad=False, maximize=False,
        )  # fmt: skip


class SGD(Fused, torch.optim.SGD):
    """`torch.optim.SGD`; no closures."""

    add_param_group = _ADD
    step = _unwrapped_step(torch.optim.SGD)  # type: ignore[assignment]

    def _kernel(self, group: dict[str, Any], ready: list[Block], grads: list[Tensor]) -> None:
        momentum = group["momentum"]
        pairs = list(zip(ready, grads, strict=True))
        new = [pair for pair in pairs if momentum and not pair[0].state]
        old = [pair for pair in pairs if not momentum or pair[0].state]
        for b, _ in new:
            b.state["momentum_buffer"] = torch.zeros_like(b.data)
            self._tell(b)
        for some in (new, old):
            if some:
                torch._fused_sgd_(
                    [b.data for b, _ in some], [g for _, g in some],
                    [b.state["momentum_buffer"] for b, _ in some] if momentum else [],
                    weight_decay=group["weight_decay"], momentum=momentum, lr=group["lr"],
                    dampening=group["dampening"], nesterov=group["nesterov"], maximize=False,
                    is_first_step=some is new,
                )  # fmt: skip


class Adagrad(torch.optim.Adagrad):
    """`torch.optim.Adagrad`; no closures."""

    add_param_group = _ADD
    step = _unwrapped_step(torch.optim.Adagrad)  # type: ignore[assignment]
