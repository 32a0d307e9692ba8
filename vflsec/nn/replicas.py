"""The replica axis: R copies of one module trained as one, each with numbers of its own.

Parameters carry a leading axis of length R. Layers of the common kinds are computed directly on
the stacked tensors (one batched matrix product for R linear layers); any other module goes through
``torch.func.functional_call`` under ``vmap``; what cannot be vmapped runs in a loop, and says so.
In every path replica r's result is a function of replica r's inputs, parameters and generators, bit
for bit as long as there are at least two: for a single one some kernels drop the axis and add in
another order, so a lone cell is trained beside a twin (:data:`LEAST`).
"""

from __future__ import annotations

import copy
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from vflsec.core.rng import Streams, as_global
from vflsec.errors import ConfigError
from vflsec.nn.dense import Layer, dense
from vflsec.nn.flat_parameters import Flat
from vflsec.nn.reduced_precision import FULL
from vflsec.nn.rows import widen
from vflsec.runtime.out_of_memory import out_of_memory

DRAWS = "_vflsec_draws"
"""Attribute of a module that was seen to draw in training, by a function within its forward."""

LEAST = 2
"""The fewest replicas that are stacked; see above."""

WHOLE = 64
"""A multiple of the numbers that any CPU kernel treats at once."""

VECTOR = 16
"""Columns that fill whole vector registers of any CPU in the kernel of batch normalisation."""

Rule = Callable[["Replicas", str, nn.Module, Tensor, bool], Tensor]
_RULES: dict[type[nn.Module], Rule] = {}

Run = Callable[[str, Tensor], Tensor]

PASSING: set[type[nn.Module]] = {nn.Flatten, nn.Identity}
"""Modules that, if they have no weights, pass the numbers of a row on as they are."""


class ReplicaFallbackWarning(UserWarning):
    """A module cannot be stacked; its replicas run one after another."""


def stacked(*types: type[nn.Module]) -> Callable[[Rule], Rule]:
    """Declare how modules of these exact types compute on stacked tensors."""

    def decorate(rule: Rule) -> Rule:
        for t in types:
            _RULES[t] = rule
        return rule

    return decorate


def draws_random(module: nn.Module) -> bool:
    """Whether a module draws random numbers in training: dropout, of its own or within a layer."""
    for m in module.modules():
        if getattr(m, DRAWS, False):
            return True
        inner = m.dropout if isinstance(m, nn.RNNBase | nn.MultiheadAttention) else 0.0
        if isinstance(m, nn.modules.dropout._DropoutNd) or inner > 0:
            return True
    return False


class Replicas:
    """R modules of one architecture with stacked parameters.

    Args:
        modules: R instances; their parameters and buffers are copied.
        device, dtype: where and in what precision the stack lives.
        rng: streams for modules that draw while training (dropout), on `device`; none is needed
            without them.
        products: with how many digits products of linear layers are taken
            (`vflsec.nn.reduced_precision`).

    Attributes:
        params: leaf tensors by name, (R, ...), requiring gradients; in one flat buffer.
        buffers: tensors by name, (R, ...).
    """

    def __init__(
        self,
        modules: Sequence[nn.Module],
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        rng: Streams | None = None,
        products: str = FULL,
    ) -> None:
        if not modules:
            raise ConfigError("a stack needs at least one module, got none.")
        self.count = len(modules)
        self.device, self.dtype, self.rng = torch.device(device), dtype, rng
        self.products = products
        self.template = copy.deepcopy(modules[0])
        named = [dict(m.named_parameters()) for m in modules]
        buffered = [dict(m.named_buffers()) for m in modules]
        self.params = {
            k: torch.stack([n[k].detach() for n in named]).to(self.device, dtype) for k in named[0]
        }
        trained = {k: v for k, v in self.params.items() if named[0][k].requires_grad}
        if trained:
            self.params |= Flat(trained).leaves
        stacks = {k: torch.stack([n[k].detach() for n in buffered]) for k in buffered[0]}
        self.buffers = {
            k: v.to(self.device, dtype if v.is_floating_point() else v.dtype)
            for k, v in stacks.items()
        }
        self.path = self._choose()
        self._plain: list[Layer] | bool | None = False
        self._before: list[tuple[str, nn.Module]] = []

    def _choose(self) -> str:
        if self._has_rules(self.template):
            return "stacked"
        if draws_random(self.template):
            self._say("it draws random numbers in a module without a stacking rule")
            return "loop"
        return "vmap"

    def _say(self, why: str) -> None:
        warnings.warn(
            f"{type(self.template).__name__} cannot be stacked ({why}); its {self.count} replicas "
            "run one after another.",
            ReplicaFallbackWarning,
            stacklevel=3,
        )

    @staticmethod
    def _has_rules(module: nn.Module) -> bool:
        if type(module) in _RULES:
            inner = list(module.children())
            return all(Replicas._has_rules(m) for m in inner)
        return False

    def _copied(self) -> Replicas:
        other = copy.copy(self)
        other._plain = False  # it is of these weights
        return other

    @property
    def plain(self) -> list[Layer] | None:
        """The layers of a module that is nothing but linear layers and ReLU in turn, perhaps behind
        modules that pass rows on (:meth:`flattened`); None for any other.
        """
        if self._plain is False:
            self._plain = self._layers()
        return self._plain  # type: ignore[return-value]

    def _layers(self) -> list[Layer] | None:
        if self.path != "stacked" or type(self.template) is not nn.Sequential:
            return None
        *before, layers = [*_list_runs(self, "", self.template)] or [[]]
        found = [one for one in before if not isinstance(one, list) and _passes(one[1])]
        if not isinstance(layers, list) or len(found) < len(before):
            return None
        self._before = found
        return [layer.at_hand() for layer in layers] or None

    def flattened(self, x: Tensor) -> Tensor:
        """Inputs (R, b, ...) of a :attr:`plain` module as its first layer gets them, (R, b, i)."""
        assert self.plain is not None
        for prefix, child in self._before:
            x = apply(self, prefix, child, x, True)
        return x

    def parameters(self) -> list[Tensor]:
        """The trainable stacked tensors."""
        return [p for p in self.params.values() if p.requires_grad]

    def __call__(self, x: Tensor, *, train: bool = True) -> Tensor:
        """Outputs (R, b, ...) for inputs (R, b, ...), replica by replica."""
        if x.shape[0] != self.count:
            raise ConfigError(f"a stack of {self.count} replicas got inputs {tuple(x.shape)}.")
        if self.path == "stacked":
            return apply(self, "", self.template, x, train)
        if self.path == "vmap":
            return self._vmap(x, train)
        return self._loop(x, train)

    def _vmap(self, x: Tensor, train: bool) -> Tensor:
        self.template.train(train)

        def one(params: dict[str, Tensor], buffers: dict[str, Tensor], rows: Tensor) -> Any:
            buffers = dict(buffers)
            out = functional_call(self.template, (params, buffers), (rows,))
            return out, buffers

        # The graph may keep the buffers it ran with, and those here are changed in place.
        copies = {k: v.clone() for k, v in self.buffers.items()}
        try:
            out, buffers = torch.vmap(one)(self.params, copies, x)
        except (RuntimeError, NotImplementedError) as why:
            if out_of_memory(why):
                raise
            self._say(str(why).splitlines()[0])
            self.path = "loop"
            return self._loop(x, train)
        if train:  # in place, for stacks made by `sub` share them
            for k, v in buffers.items():
                self.buffers[k].copy_(v.detach())
        return out

    def _loop(self, x: Tensor, train: bool) -> Tensor:
        self.template.train(train)
        outs = []
        for r in range(self.count):
            params = {k: v[r] for k, v in self.params.items()}
            buffers = {k: v[r].clone() for k, v in self.buffers.items()}
            if train and self.rng is not None:
                with as_global(self.rng.generators[r]):
                    outs.append(functional_call(self.template, (params, buffers), (x[r],)))
            else:
                outs.append(functional_call(self.template, (params, buffers), (x[r],)))
            if train:
                for k, v in buffers.items():
                    self.buffers[k][r] = v.detach()
        return torch.stack(outs)

    def state(self) -> dict[str, Tensor]:
        """A copy of all parameters and buffers, (R, ...) each."""
        both = {**self.params, **self.buffers}
        return {k: v.detach().clone() for k, v in both.items()}

    def load(self, state: dict[str, Tensor], replicas: Tensor | None = None) -> None:
        """Overwrite parameters and buffers in place, of all or of the given replicas only."""
        with torch.no_grad():
            for k, v in {**self.params, **self.buffers}.items():
                if replicas is None:
                    v.copy_(state[k])
                else:
                    v[replicas] = state[k][replicas]

    def take(self, replicas: Tensor) -> Replicas:
        """A stack of the given replicas, (q,) int64, with detached copies of their weights."""
        other = self._copied()
        other.count = len(replicas)
        other.rng = None
        other.params = {k: v.detach()[replicas] for k, v in self.params.items()}
        other.buffers = {k: v[replicas] for k, v in self.buffers.items()}
        return other

    def sub(self, name: str) -> Replicas:
        """The submodule of this dotted name as a stack that shares weights and buffers."""
        if not name:
            return self
        other = self._copied()
        other.template = self.template.get_submodule(name)
        inner = f"{name}."
        other.params = {
            k.removeprefix(inner): v for k, v in self.params.items() if k.startswith(inner)
        }
        other.buffers = {
            k.removeprefix(inner): v for k, v in self.buffers.items() if k.startswith(inner)
        }
        other.path = other._choose()
        return other

    def widen(self, b: int) -> Replicas:
        """Each replica b times, one after another, with detached copies of its weights."""
        other = self._copied()
        other.count = self.count * b
        other.rng = None
        other.params = {
            k: v.detach().repeat_interleave(b, 0).requires_grad_(v.requires_grad)
            for k, v in self.params.items()
        }
        other.buffers = {k: v.repeat_interleave(b, 0) for k, v in self.buffers.items()}
        return other

    def one(self, r: int, state: dict[str, Tensor] | None = None) -> nn.Module:
        """Replica `r` as a module of its own, detached, in eval mode, on the stack's device.

        With `state` (as from :meth:`state`) it gets those weights instead of the current ones.
        """
        module = copy.deepcopy(self.template).to(self.device, self.dtype)
        both = state if state is not None else {**self.params, **self.buffers}
        module.load_state_dict({k: both[k][r].detach() for k in module.state_dict()})
        return module.eval()


def apply(stack: Replicas, prefix: str, module: nn.Module, x: Tensor, train: bool) -> Tensor:
    """Run one (sub)module of a stack by its rule; `prefix` is its dotted name with a final dot."""
    return _RULES[type(module)](stack, prefix, module, x, train)


class Composite(nn.Module, ABC):
    """Modules put together by :meth:`combine`, on one model's rows and on a stack's alike."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls.forward is Composite.forward:
            _RULES[cls] = _run_composite

    @abstractmethod
    def combine(self, run: Run, x: Tensor) -> Tensor:
        """Output for x (..., b, ...); `run` gives what the submodule of a dotted name makes."""

    def forward(self, x: Tensor) -> Tensor:
        return self.combine(lambda name, inner: self.get_submodule(name)(inner), x)


def _run_composite(s: Replicas, prefix: str, module: Any, x: Tensor, train: bool) -> Tensor:
    def run(name: str, inner: Tensor) -> Tensor:
        return apply(s, f"{prefix}{name}.", module.get_submodule(name), inner, train)

    return module.combine(run, x)


def _passes(module: nn.Module) -> bool:
    """True if it is one of :data:`PASSING` without weights."""
    return type(module) in PASSING and not any(True for _ in module.parameters())


@stacked(nn.Sequential)
def _sequential(s: Replicas, prefix: str, module: nn.Module, x: Tensor, train: bool) -> Tensor:
    for one in _list_runs(s, prefix, module):
        x = dense(one, x) if isinstance(one, list) else apply(s, *one, x, train)
    return x


def _list_runs(
    s: Replicas, prefix: str, module: nn.Module
) -> Iterator[list[Layer] | tuple[str, nn.Module]]:
    """Its children in turn; linear layers that follow each other, with ReLU between, as one."""
    layers: list[Layer] = []
    for name, child in module.named_children():
        if type(child) is nn.Linear:
            layers.append(_layer(s, f"{prefix}{name}."))
        elif type(child) is nn.ReLU and layers and not layers[-1].relu:
            layers[-1] = layers[-1]._replace(relu=True)
        else:
            if layers:
                yield layers
                layers = []
            yield f"{prefix}{name}.", child
    if layers:
        yield layers


def _layer(s: Replicas, prefix: str) -> Layer:
    return Layer(s.params[f"{prefix}weight"], s.params.get(f"{prefix}bias"), False, s.products)


@stacked(nn.Linear)
def _linear(s: Replicas, prefix: str, module: nn.Module, x: Tensor, train: bool) -> Tensor:
    return dense([_layer(s, prefix)], x)


@stacked(nn.ReLU, nn.LeakyReLU, nn.Identity)
def _elementwise(s: Replicas, prefix: str, module: nn.Module, x: Tensor, train: bool) -> Tensor:
    return module(x)


@stacked(nn.GELU, nn.Tanh, nn.Sigmoid, nn.SiLU, nn.ELU, nn.Softplus)
def _smooth(s: Replicas, prefix: str, module: nn.Module, x: Tensor, train: bool) -> Tensor:
    """An elementwise function that the CPU rounds differently in the last, partly filled vector
    register; every replica is filled up, so that none depends on how many there are.
    """
    if x.is_cuda:
        return module(x)
    flat = x.reshape(len(x), -1)
    n = flat.shape[1]
    return module(nn.functional.pad(flat, (0, -n % WHOLE)))[:, :n].reshape(x.shape)


@stacked(nn.Flatten)
def _flatten(s: Replicas, prefix: str, module: nn.Module, x: Tensor, train: bool) -> Tensor:
    return x.flatten(2)


@stacked(nn.Dropout)
def _dropout(s: Replicas, prefix: str, module: nn.Module, x: Tensor, train: bool) -> Tensor:
    p = float(module.p)  # type: ignore[arg-type]
    if not train or p == 0:
        return x
    if s.rng is None:
        raise ConfigError("a model with dropout needs random streams; pass rng to Replicas.")
    keep = s.rng.uniform(x.shape[1:]) >= p
    return x * keep.to(x.dtype) / (1 - p)


@stacked(nn.LayerNorm)
def _layer_norm(s: Replicas, prefix: str, module: Any, x: Tensor, train: bool) -> Tensor:
    out = nn.functional.layer_norm(x, module.normalized_shape, None, None, module.eps)
    if module.elementwise_affine:
        shape = (s.count, *([1] * (x.dim() - 2)), x.shape[-1])
        out = out * s.params[f"{prefix}weight"].reshape(shape)
        if f"{prefix}bias" in s.params:
            out = out + s.params[f"{prefix}bias"].reshape(shape)
    return out


def _tracked(s: Replicas, prefix: str, module: Any, train: bool) -> tuple[list[Any], bool, float]:
    """Stacked running mean, running variance, weight, bias; whether the batch's own statistics
    are used; the momentum. Counts the batch.
    """
    mean, var = (s.buffers.get(f"{prefix}running_{k}") for k in ("mean", "var"))
    momentum = module.momentum
    if train and mean is not None:
        s.buffers[f"{prefix}num_batches_tracked"] += 1
        if momentum is None:
            momentum = 1.0 / float(s.buffers[f"{prefix}num_batches_tracked"][0])
    tensors = [mean, var, *(s.params.get(f"{prefix}{k}") for k in ("weight", "bias"))]
    return tensors, train or mean is None, momentum or 0.0


@stacked(nn.BatchNorm2d)
def _batch_norm_each(s: Replicas, prefix: str, module: Any, x: Tensor, train: bool) -> Tensor:
    """Batch normalisation of (R, b, d, ...), one replica after another."""
    tensors, own, momentum = _tracked(s, prefix, module, train)
    outs = []
    for r in range(s.count):
        mean, var, weight, bias = (None if t is None else t[r] for t in tensors)
        outs.append(
            nn.functional.batch_norm(x[r], mean, var, weight, bias, own, momentum, module.eps)
        )
    return torch.stack(outs)


@stacked(nn.BatchNorm1d)
def _batch_norm(s: Replicas, prefix: str, module: Any, x: Tensor, train: bool) -> Tensor:
    """Batch normalisation of (R, b, d): the R*d channels are normalised separately.

    Widths that do not fill whole vectors go replica by replica: the kernel's tail rounds otherwise.
    """
    if x.dim() != 3 or x.shape[2] % VECTOR:
        return _batch_norm_each(s, prefix, module, x, train)
    r, b, d = x.shape
    tensors, own, momentum = _tracked(s, prefix, module, train)
    mean, var, weight, bias = (None if t is None else t.reshape(-1) for t in tensors)
    wide = x.transpose(0, 1).reshape(b, r * d)
    out = nn.functional.batch_norm(wide, mean, var, weight, bias, own, momentum, module.eps)
    return out.reshape(b, r, d).transpose(0, 1)


@stacked(nn.Embedding)
def _embedding(s: Replicas, prefix: str, module: Any, x: Tensor, train: bool) -> Tensor:
    """Codes (R, b) -> vectors (R, b, e)."""
    table = s.params[f"{prefix}weight"]
    n = table.shape[1]
    offset = widen(torch.arange(s.count, device=x.device), x) * n
    return nn.functional.embedding(x.long() + offset, table.reshape(-1, table.shape[-1]))
