"""The interactive layer on the replica axis: what it computes, encrypted or in the clear.

Two backends with one meaning. `Emulated` computes the same numbers in the clear, with the same
draws for shares and noise, with masks and flooding of the same law, and states the sizes the
ciphertexts would have; `Real` runs the two roles of `interactive` for every replica, in this
process or in processes of their own. A real key takes its flooding from the operating system. But
for that, an answer differs by at most one step of the grid: `Real` rounds with the mask on.
Answers are numbered by replica; a number names the stream of an emulated answer's flooding.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from vflsec.errors import ConfigError
from vflsec.he import cost
from vflsec.he.blocks import layout
from vflsec.he.ckks import Parameters
from vflsec.he.envelope import unpack_masked
from vflsec.he.flood import FLOOD_BITS, MASK_BITS, Flood
from vflsec.he.interactive import (
    SPREAD,
    ActiveDraws,
    ActiveRole,
    PassiveDraws,
    PassiveRole,
    Spread,
)


@dataclass(frozen=True)
class Settings:
    """How the interactive layer runs.

    Attributes:
        weights: who holds the weights: the active party (``plain``), or both (``shared``).
        out: output width o.
        lr: of its plain SGD.
        mask_bits: masks have standard deviation 2 ** mask_bits.
        flood_bits: flooding has standard deviation 2 ** -flood_bits.
        flooded: False for none, in the clear.
        spread: of the passive party's first share, and of N.
        parameters: of CKKS.
        threads: of TenSEAL.
        processes: each role in a process of its own (real mode).
    """

    weights: Literal["plain", "shared"] = "plain"
    out: int = 32
    lr: float = 0.1
    mask_bits: int = MASK_BITS
    flood_bits: int = FLOOD_BITS
    flooded: bool = True
    spread: Spread = SPREAD
    parameters: Parameters = field(default_factory=Parameters)
    threads: int = 1
    processes: bool = True

    @property
    def shared(self) -> bool:
        """Whether both parties hold shares of the weights."""
        return self.weights == "shared"


@dataclass
class Layer:
    """The layer's weights as its holders have them, in the orientation of `torch.nn.Linear`.

    `weight` (R, o, m) and `bias` (R, o) at the active party; `share` (R, o, m) at the passive one,
    or None.
    """

    weight: Tensor
    bias: Tensor
    share: Tensor | None = None

    @property
    def parts(self) -> list[Tensor]:
        """All that there is, (R, ...) each."""
        return [self.weight, self.bias] + ([] if self.share is None else [self.share])

    @property
    def whole(self) -> Tensor:
        """W (R, o, m), which with shared weights nobody holds."""
        return self.weight if self.share is None else self.weight + self.share


@dataclass(frozen=True)
class Forward:
    """`out` z + F (R, b, o); `masked` z + R + F (R, b, o) float64; `sizes` bytes of Enc(h) and of
    the product."""

    out: Tensor
    masked: Tensor
    sizes: tuple[int, int]


@dataclass(frozen=True)
class Return:
    """What the way back gives.

    Attributes:
        weight: the weight gradient as the active party gets it, h^T g + F (or + N), (R, o, m).
        noise: N (R, o, m), or None for plain weights.
        embedding: g W^T (R, b, m).
        masked: h^T g + M + F (or + N), (R, o, m) float64.
        sizes: bytes of Enc(h) in blocks, the masked gradient, and with shared weights Enc(W_p) and
            the embedding gradient.
    """

    weight: Tensor
    noise: Tensor | None
    embedding: Tensor
    masked: Tensor
    sizes: tuple[int, ...]


class Emulated:
    """The layer in the clear, on all replicas at once.

    Args:
        settings: of the layer.
        seeds: of the replicas.
        names: of their streams; the passive party's, and another one for each further training.
    """

    def __init__(self, settings: Settings, seeds: Sequence[int], names: Sequence[str]) -> None:
        s, every = settings, list(zip(seeds, names, strict=True))
        self.settings = s
        self.active = [ActiveDraws(seed, name, s.mask_bits) for seed, name in every]
        self.passive = [PassiveDraws(seed, name, s.spread) for seed, name in every]
        self.floods = [Flood(seed, name, s.flood_bits) for seed, name in every]

    def share(self, layer: Layer, answers: Sequence[int]) -> Layer:
        """Turn the active party's U into shares that hide W_0 from both."""
        o, m = layer.weight.shape[1:]
        rotations, shares = [], []
        for draws, active in zip(self.passive, self.active, strict=True):
            active.mask(m, o)
            rotations.append(draws.rotation(m))
            shares.append(draws.share(m, o))
        like = layer.weight
        q, s = (_stack(x, like, torch.float64) for x in (rotations, shares))
        mine = self._answer(q @ like.double().transpose(1, 2) - s, answers)
        return Layer(mine.transpose(1, 2).to(like), layer.bias, s.transpose(1, 2).to(like))

    def _answer(self, x: Tensor, answers: Sequence[int]) -> Tensor:
        """What the key holder lets go of decrypted numbers (R, ...); masks change nothing in it."""
        every = zip(self.floods, x.double().cpu().numpy(), answers, strict=True)
        return _stack([f.answer(here, n) for f, here, n in every], x, torch.float64)

    def forward(self, h: Tensor, layer: Layer, answers: Sequence[int]) -> Forward:
        """z = h W + b for embeddings (R, b, m), flooded; `answers` are its numbers by replica."""
        out = torch.baddbmm(layer.bias.unsqueeze(1), h, layer.weight.transpose(1, 2))
        if layer.share is not None:
            out = out + h @ layer.share.transpose(1, 2)
        b, o = out.shape[1:]
        if self.settings.flooded:
            out = self._answer(out, answers).to(out)
        mask = _stack([d.mask(b, o) for d in self.active], out, torch.float64)
        c = self._cost(b, h.shape[2], o, train=False)
        return Forward(out, out.double() + mask, (c.embedding, c.product))

    def back(self, h: Tensor, g: Tensor, layer: Layer, answers: Sequence[int]) -> Return:
        """The way back for h (R, b, m) and g = dL/dz (R, b, o); `answers` as in :meth:`forward`."""
        weight = g.transpose(1, 2) @ h
        b, m, o = *h.shape[1:], g.shape[2]
        k, _ = layout(b, m, self.settings.parameters.slots)
        noise = None
        if layer.share is not None:
            noise = _stack([d.noise(m, o).T for d in self.passive], weight)
            every = zip(self.floods, (weight + noise).double().cpu().numpy(), strict=True)
            weight = _stack([f.snap(x) for f, x in every], weight)
        elif self.settings.flooded:  # numbers (m, o), as the key holder has them
            weight = self._answer(weight.transpose(1, 2), answers).transpose(1, 2).to(weight)
        mask = math.sqrt(k) * _stack([d.mask(o, m) for d in self.active], weight, torch.float64)
        c = self._cost(b, m, o)
        sizes = [c.blocks, c.gradient]
        sizes += [c.share, c.embedding_gradient] if layer.share is not None else []
        return Return(weight, noise, g @ layer.whole, weight.double() + mask, tuple(sizes))

    def _cost(self, b: int, m: int, o: int, *, train: bool = True) -> cost.Batch:
        s = self.settings
        step = min(b, s.parameters.rows)
        return cost.batch(step, m, o, shared=s.shared, train=train, parameters=s.parameters)


class Real:
    """The layer under encryption, replica by replica; replicas that are equal are computed once.

    Args:
        settings, seeds, names: as for :class:`Emulated`.
        spent: one dictionary a replica, to which seconds by operation are added: ``encrypt``,
            ``multiply``, ``decrypt``, and ``transfer`` of bytes between processes. Replicas that
            are not computed anew have those of the one that was.
    """

    def __init__(
        self,
        settings: Settings,
        seeds: Sequence[int],
        names: Sequence[str],
        spent: Sequence[dict[str, float]] | None = None,
    ) -> None:
        self.settings, self.seeds, self.names = settings, tuple(seeds), tuple(names)
        self.roles: dict[int, tuple[Any, Any]] = {}
        self.computed: set[int] = set()
        self.spent = [{} for _ in seeds] if spent is None else spent

    def _pair(self, r: int) -> tuple[Any, Any]:
        if r not in self.roles:
            s = self.settings
            mine: dict[str, Any] = {
                "seed": self.seeds[r], "party": self.names[r], "threads": s.threads,
                "mask_bits": s.mask_bits,
            }  # fmt: skip
            make_passive: Any = PassiveRole
            make_active: Any = ActiveRole
            if s.processes:
                from vflsec.he.process import Remote

                make_passive, make_active = (partial(Remote, of) for of in ("passive", "active"))
            passive = make_passive(
                parameters=s.parameters, shared=s.shared, spread=s.spread,
                flood_bits=s.flood_bits, **mine,
            )  # fmt: skip
            self.roles[r] = (make_active(public=passive.public(), **mine), passive)
        return self.roles[r]

    def close(self) -> None:
        """End the processes, if there are any."""
        for pair in self.roles.values():
            for role in pair:
                if hasattr(role, "close"):
                    role.close()
        self.roles.clear()

    def _timed(self, r: int, what: str, role: Any, name: str, *arguments: Any) -> Any:
        """Call a method of a role; what a process did not compute in that time is transfer."""
        start = time.perf_counter()
        out = getattr(role, name)(*arguments)
        wall = time.perf_counter() - start
        computed = min(wall, getattr(role, "computed", wall))
        twins = [q for q, seed in enumerate(self.seeds) if seed == self.seeds[r]]
        for mine in (self.spent[q] for q in twins):
            mine[what] = mine.get(what, 0.0) + computed
            mine["transfer"] = mine.get("transfer", 0.0) + wall - computed
        return out

    def _compute_each(
        self, compute: Callable[[int], Any], given: Sequence[Tensor], answers: Sequence[int] = ()
    ) -> list[Any]:
        """What `compute` gives for each replica, once for equal seeds, `given` and answers."""
        outs: list[Any] = []
        for r, seed in enumerate(self.seeds):
            twin = self.seeds.index(seed)
            same = twin < r and all(torch.equal(t[r], t[twin]) for t in given)
            same = same and (not answers or answers[r] == answers[twin])
            outs.append(outs[twin] if same else compute(r))
        return outs

    def share(self, layer: Layer, answers: Sequence[int]) -> Layer:
        """As :meth:`Emulated.share`, by one run of the forward protocol on the rotation."""

        def compute(r: int) -> tuple[Any, Any]:
            active, passive = self._pair(r)
            u = _numpy(layer.weight[r]).T
            active.load(u, np.zeros(u.shape[1]))
            product = active.forward(passive.rotate(u.shape[0]))
            return active.unmask(passive.open_rotated(product)).T, passive.own_share().T

        weights, shares = zip(*self._compute_each(compute, [layer.weight]), strict=True)
        like = layer.weight
        return Layer(_stack(weights, like), layer.bias, _stack(shares, like))

    def forward(self, h: Tensor, layer: Layer, answers: Sequence[int]) -> Forward:
        """As :meth:`Emulated.forward`, in batches of at most `Parameters.rows` rows."""
        self.computed.clear()

        def compute(r: int) -> tuple[Any, Any, int, int]:
            self.computed.add(r)
            return self._forward(r, h[r], layer)

        outs = self._compute_each(compute, [h, *layer.parts], answers)
        out = _stack([o[0] for o in outs], h)
        masked = _stack([o[1] for o in outs], h, torch.float64)
        return Forward(out, masked, (max(o[2] for o in outs), max(o[3] for o in outs)))

    def _forward(self, r: int, h: Tensor, layer: Layer) -> tuple[Any, Any, int, int]:
        active, passive = self._pair(r)
        active.load(_numpy(layer.weight[r]).T, _numpy(layer.bias[r]))
        share = None if layer.share is None else _numpy(layer.share[r]).T
        passive.load(share, self.settings.lr)
        sealed = self._timed(r, "encrypt", passive, "embed", _numpy(h))
        product = self._timed(r, "multiply", active, "forward", sealed)
        masked = self._timed(r, "decrypt", passive, "open", product)
        out = active.unmask(masked)
        return out, unpack_masked(masked), len(sealed), len(product)

    def back(self, h: Tensor, g: Tensor, layer: Layer, answers: Sequence[int]) -> Return:
        """As :meth:`Emulated.back`; follows :meth:`forward` on the same embeddings."""

        def compute(r: int) -> Any:
            if r not in self.computed:  # its roles have not seen these embeddings
                self._forward(r, h[r], layer)
            return self._back(r, g[r], layer)

        outs = self._compute_each(compute, [h, g, *layer.parts], answers)
        weight = _stack([o[0] for o in outs], h)
        noise = None if outs[0][1] is None else _stack([o[1] for o in outs], h)
        embedding = _stack([o[2] for o in outs], h)
        masked = _stack([o[3] for o in outs], h, torch.float64)
        sizes = tuple(max(o[4][i] for o in outs) for i in range(len(outs[0][4])))
        return Return(weight, noise, embedding, masked, sizes)

    def _back(self, r: int, g: Tensor, layer: Layer) -> Any:
        active, passive = self._pair(r)
        mine = _numpy(g)
        blocks = self._timed(r, "encrypt", passive, "embed_blocks")
        product = self._timed(r, "multiply", active, "gradient", blocks, mine)
        sizes = [len(blocks), len(product)]
        if layer.share is None:
            embedding, before = mine @ _numpy(layer.weight[r]), None
        else:
            before = passive.own_share()
            share = self._timed(r, "encrypt", passive, "encrypt_share", len(mine))
            sealed = self._timed(r, "multiply", active, "embedding_gradient", share, mine)
            embedding = self._timed(r, "decrypt", passive, "open_embedding_gradient", sealed)
            sizes += [len(share), len(sealed)]
        masked = self._timed(r, "decrypt", passive, "open_gradient", product)
        noise = None
        if before is not None:
            noise = (passive.own_share() - before).T / self.settings.lr
        weight = active.unmask(masked).T
        return weight, noise, embedding, unpack_masked(masked).T, sizes


def _numpy(x: Tensor) -> Any:
    return x.detach().double().cpu().numpy()


def _stack(parts: Sequence[Any], like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    out = torch.from_numpy(np.ascontiguousarray(np.stack(parts)))
    return out.to(device=like.device, dtype=dtype or like.dtype)


def backend(
    mode: str, settings: Settings, seeds: Sequence[int], names: Sequence[str],
    spent: Sequence[dict[str, float]] | None = None,
) -> Emulated | Real:  # fmt: skip
    """The backend of a mode; ``clear`` computes as ``emulated`` does, ``real`` fills `spent`.

    Raises:
        ConfigError: shared weights without encryption have no meaning.
    """
    if mode == "clear" and settings.shared:
        raise ConfigError("he_embedding: weights must be 'plain' in mode 'clear', got 'shared'.")
    if mode == "real":
        return Real(settings, seeds, names, spent)
    return Emulated(settings, seeds, names)
