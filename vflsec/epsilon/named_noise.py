"""Whether a mechanism adds the noise that it names, told from every call of its hook.

Who knows models and rows, as the adversary of a claim may, knows what a call would have released
without noise: the same hook at all but no strength. What is left is the noise itself. It is turned
into normal numbers, whose squares add up to a chi-square if the claim is true, over all numbers,
over differences within a batch, over sums and differences of two calls in turn, and in the surest
call and row. This is the likelihood ratio test of noise of the claimed scale against less, and
finds what coins of canaries are too few for: half the noise from a dozen numbers on. Noise of the
claimed scale whose numbers hardly ever are large, as uniform noise, has another law, and may hide
nothing where it ends: numbers beyond two deviations are counted. Beside it one row, any of them, is
made loud, and may move what is noised by no more than the length that the noise is for.

Source: Neyman and Pearson (1933) for the test; Tramer, Terzis, Steinke, Song, Jagielski, Carlini,
"Debugging differential privacy", 2022, arXiv:2202.12219 for its use.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import scipy
import torch
from numpy.typing import NDArray
from torch import Tensor

from vflsec.core.policy import NamedNoise, Own, Policy
from vflsec.core.policy_binding import Binding
from vflsec.core.rng import Streams
from vflsec.epsilon.one_run_bound import Fault, Heard

QUIET = 1e-12
LOUD = 1e3
NEAR = 1e-3
"""By how much sums of rounded numbers may exceed a length."""
LARGE = 2.0
"""Deviations beyond which numbers are counted."""
PRINT = 8
"""So many numbers of a call tell it from every other one."""

Array = NDArray[np.float64]


@dataclass
class _Record:
    """Sums over the calls of one policy, (R,) each.

    Attributes:
        on: calls that were noised.
        sums: of squares of numbers that are standard normal if the claim is true, with their
            number; the least log chance of one of the groups that they came in, with their number.
        large: how many numbers were beyond :data:`LARGE`; `told` of how many.
        last: the numbers of the last call of an owner, and whether it was the second of a pair.
        flags: replicas in which a fault was seen for sure.
        prints: the first numbers of every call.
        sizes: by how many deviations Poisson batches of `rate` were too large; `drawn` the last.
    """

    on: Array
    prints: list[set[tuple[int, ...]]]
    sums: dict[str, tuple[Any, int, Any, int]] = field(default_factory=dict)
    large: Any = 0.0
    told: Any = 0.0
    last: dict[Any, tuple[Array, bool]] = field(default_factory=dict)
    flags: dict[Fault, Any] = field(default_factory=dict)
    calls: int = 0
    sizes: list[Array] = field(default_factory=list)
    drawn: Tensor | None = None
    rate: float = 1.0

    def add(self, what: str, z: Array) -> None:
        """Standard normal numbers (R, k, n) in k groups, if the claim is true."""
        squares = (z**2).sum(2)
        with np.errstate(divide="ignore"):
            least = np.log(scipy.special.gammainc(z.shape[2] / 2, squares.min(1) / 2))
        total, count, before, tries = self.sums.get(what, (0.0, 0, 0.0, 0))
        least = np.minimum(before, least)
        self.sums[what] = total + squares.sum(1), count + z[0].size, least, tries + z.shape[1]

    def pair(self, key: Any, z: Array) -> None:
        """Add what a call has in common with the owner's one before, in two runs of pairs: calls 1
        and 2, 3 and 4, ..., and calls 2 and 3, 4 and 5, ....

        Args:
            key: of the owner, and of one of the tensors that it noises.
            z: numbers (R, b, m), NaN where none is told.
        """
        before, second = self.last.get((key, z.shape), (None, True))
        self.last[key, z.shape] = z, not second
        if before is None:
            return
        run = "first" if second else "second"
        for what, both in (("sums", z + before), ("differences", z - before)):
            self.add(f"{run} {what}", _fill(both / math.sqrt(2)).reshape(len(z), 1, -1))

    def low(self, what: str, r: int) -> float:
        """The chance of so small a sum in replica `r`."""
        total, count, *_ = self.sums.get(what, (np.full(r + 1, math.inf), 1))
        return float(scipy.special.gammainc(count / 2, total[r] / 2))

    def surest(self, what: str, r: int) -> float:
        """The chance that one of the groups has so small a one."""
        *_, least, tries = self.sums.get(what, (np.zeros(r + 1), 1))
        return tries * math.exp(least[r])


class NoiseWitness:
    """To be shown every call of the hooks of a training (`vflsec.train.cohort.Training.witness`).

    Args:
        seeds: of the replicas, (R).
    """

    def __init__(self, seeds: Sequence[int]) -> None:
        self.seeds = seeds
        self._records: dict[int, _Record] = {}
        self._streams: dict[Any, Streams] = {}

    def __call__(self, binding: Binding, hook: str, given: tuple[Any, ...], made: Any) -> None:
        policy, own = binding.policy, binding.own
        if hook != policy.counted or not any(own.active):
            return
        call = _CALLS[hook](policy, given)
        named = policy.noise(call.scale(own))
        parts = list(call.split(made)) if named is not None else []
        if named is None or not parts:
            return
        record = self._records.setdefault(
            id(policy), _Record(np.zeros(len(own.strength)), [set() for _ in own.strength])
        )
        quiet = self._quieten(own, parts[0])
        bare = list(call.split(call.repeat(quiet)))
        for i, (left, right) in enumerate(zip(parts, bare, strict=True)):
            rounding = torch.finfo(call.dtype).eps * 4 * left.abs().amax((1, 2), keepdim=True)
            left, rounding = (left - right).cpu().numpy(), rounding.cpu().numpy()
            _weigh(record, (id(own), i), left, rounding, own, named)
        record.calls += 1
        if record.calls & (record.calls - 1) == 0:
            with torch.no_grad():
                for fault, which in call.shout(quiet, named, bare):
                    record.flags[fault] = record.flags.get(fault, False) | which.cpu().numpy()
        _count_sample(record, own, getattr(binding.own.uses, "sampling", {}))

    def _quieten(self, own: Own, like: Tensor) -> Own:
        key = like.device, own.rng.dtype
        if key not in self._streams:
            self._streams[key] = Streams(
                self.seeds, "canary", "quiet", device=like.device, dtype=own.rng.dtype
            )
        strength = torch.where(own.strength > 0, QUIET, 0.0).to(own.strength)
        return replace(
            own, strength=strength, rng=self._streams[key], uses=None, memory=dict(own.memory)
        )

    def find(self, policy: Policy, r: int) -> Heard | None:
        """What was found in replica `r`; None where no noise was named or seen."""
        record = self._records.get(id(policy))
        if record is None or not record.on[r]:
            return None
        p = {
            Fault.LESS: record.low("call", r),
            Fault.SHARED: min(1.0, len(_SHARED) * min(record.low(k, r) for k in _SHARED)),
            Fault.MISSING: min(1.0, 2 * min(record.surest(k, r) for k in ("call", "row"))),
            Fault.LAW: _chance_of_few(int(record.large[r]), int(record.told[r])),
        }
        p |= {fault: 0.0 if which[r] else 1.0 for fault, which in record.flags.items()}
        if record.sizes:
            p[Fault.SAMPLING] = _chance_of_sizes(record, r)
        return Heard(record.sums["call"][1], p)


_SHARED = (
    "rows", "columns", "first sums", "first differences", "second sums", "second differences",
)  # fmt: skip
"""Among what numbers of less than the claimed spread are shared noise."""


def _weigh(
    record: _Record, key: Any, left: Array, rounding: Array, own: Own, named: NamedNoise
) -> None:
    """Add the noise (R, b, m) of one call, which may have been rounded off by so much (R, 1, 1)."""
    strength = own.strength.cpu().numpy().astype(float)
    on = strength > 0
    x = left + np.where(left < 0, -rounding, rounding)
    x = x / np.where(on, strength * named.unit, 1.0)[:, None, None]
    if named.law == "laplace":
        x = -np.sign(x) * scipy.special.ndtri(np.exp(-np.abs(x)) / 2)
    told = np.isfinite(x)
    record.pair(key, np.where(told, x, np.nan))
    record.large = record.large + (told & (np.abs(x) > LARGE)).sum((1, 2))
    record.told = record.told + told.sum((1, 2))
    z = _fill(x)
    record.on += on
    many, b, m = z.shape
    record.add("call", z.reshape(many, 1, -1))
    if b > 1:
        record.add("row", z)
        record.add("rows", _apart(z))
    if m > 1:
        record.add("columns", _apart(z.transpose(0, 2, 1)))
    if b * m >= PRINT:
        again = np.zeros(many, bool)
        for r, first in enumerate(np.rint(100 * z.reshape(many, -1)[:, :PRINT]).tolist()):
            again[r] = any(first) and tuple(first) in record.prints[r]
            record.prints[r].add(tuple(first))
        record.flags[Fault.REPEATED] = record.flags.get(Fault.REPEATED, False) | again


def _fill(x: Array) -> Array:
    """Numbers with what says nothing in place of those that are not told."""
    return np.where(np.isfinite(x), x, 1.0)


def _apart(z: Array) -> Array:
    """Differences (R, 1, n) of the first and the second half, standard normal as they are."""
    half = z.shape[1] // 2
    return ((z[:, :half] - z[:, half : 2 * half]) / math.sqrt(2)).reshape(len(z), 1, -1)


def _count_sample(record: _Record, own: Own, sampling: Mapping[tuple[str, float], Any]) -> None:
    """Note how many rows a Poisson batch has, once a batch."""
    if own.sample is None or own.sample[0] is record.drawn or not sampling:
        return
    record.drawn, record.rate = own.sample[0], list(sampling)[-1][1]
    size = own.sample[1]
    sizes = own.sample[0].sum(1).cpu().numpy().astype(float)
    record.sizes.append((sizes - size) / math.sqrt(max(size * (1 - record.rate), 1e-12)))


def _chance_of_few(large: int, told: int) -> float:
    """That so few of so many numbers are beyond :data:`LARGE`; binomial."""
    beyond = 2 * scipy.special.ndtr(-LARGE)
    return (
        float(scipy.special.betainc(told - large, large + 1, 1 - beyond)) if large < told else 1.0
    )


def _chance_of_sizes(record: _Record, r: int) -> float:
    """That batches of Poisson samples are as equal, as unequal or as large as these."""
    if record.rate >= 1:
        return 1.0
    z = np.array([of[r] for of in record.sizes])
    spread = float(scipy.special.gammainc(len(z) / 2, float(z @ z) / 2))
    large = float(scipy.special.ndtr(-z.sum() / math.sqrt(len(z))))
    return min(1.0, 2 * min(spread, large))


def _pick(rows: Tensor, own: Own) -> Tensor:
    """A place (R,) among `rows` (R, b), of a Poisson batch among those that were drawn."""
    coins = own.rng.uniform(rows.shape[1:]).to(rows.device)
    return (coins if own.sample is None else (1 + coins) * own.sample[0].to(coins)).argmax(1)


class _Outgoing:
    """A message (R, b, m) of rows."""

    def __init__(self, policy: Policy, given: tuple[Any, ...]) -> None:
        self.policy, (self.message,) = policy, given
        self.dtype = self.message.tensor.dtype

    def scale(self, own: Own) -> float:
        return float(self.message.scale)

    def split(self, made: Tensor) -> Iterator[Tensor]:
        if self.message.rows is not None:
            yield made.detach().double().flatten(2)

    def repeat(self, own: Own) -> Tensor:
        return self.policy.outgoing(self.message, own)

    def shout(self, own: Own, named: NamedNoise, bare: list[Tensor]) -> Iterator[Any]:
        """Faults seen, with the replicas (R,), where a row is made loud."""
        x = self.message.tensor.clone()
        every, loud = torch.arange(len(x)), _pick(x.flatten(2)[..., 0], own)
        x[every, loud] = LOUD * named.longest * (1 + x[every, loud].abs())
        made = self.policy.outgoing(replace(self.message, tensor=x), own).double().flatten(2)
        norm = torch.linalg.vector_norm(made, ord=named.order, dim=2)
        yield Fault.TOO_FAR, (norm > named.longest * (1 + NEAR)).any(1)
        if self.policy.by_row:
            moved = (made - bare[0]).abs()
            moved[every, loud] = 0.0
            yield Fault.COUPLED, (moved > NEAR * named.longest).flatten(1).any(1)


class _Loss:
    """Losses (R, b) of rows as the class weights (R, b, C) that they are linear in."""

    def __init__(self, policy: Policy, given: tuple[Any, ...]) -> None:
        self.policy, (self.logits, self.y) = policy, given
        self.dtype = self.logits.dtype

    def scale(self, own: Own) -> float:
        return 1.0

    def split(self, made: Tensor) -> Iterator[Tensor]:
        if not made.requires_grad or not self.logits.requires_grad:
            return
        (slope,) = torch.autograd.grad(made.sum(), self.logits, retain_graph=True)
        log_p = torch.log_softmax(self.logits.detach().double(), 2)
        p, back = log_p.exp(), -slope.double()  # weights less p times their sum
        entropy = -(p * log_p).sum(2)
        total = (made.detach().double() + (back * log_p).sum(2)) / entropy
        weights = back + p * total.unsqueeze(2)
        yield torch.where((entropy > NEAR).unsqueeze(2), weights, torch.nan)

    def repeat(self, own: Own) -> Tensor:
        made = self.policy.loss(self.logits, self.y, own)
        assert made is not None
        return made

    def shout(self, own: Own, named: NamedNoise, bare: list[Tensor]) -> Iterator[Any]:
        yield from ()


class _Gradients:
    """A sum over rows for each parameter, (R, 1, p) each."""

    def __init__(self, policy: Policy, given: tuple[Any, ...]) -> None:
        self.policy, (self.plain, self.rows) = policy, given
        self.dtype = next(g.dtype for g in self.plain if g is not None)

    def scale(self, own: Own) -> float:
        return float(own.sample[1] if own.sample is not None else self.rows()[0].shape[1])

    def split(self, made: Sequence[Tensor | None]) -> Iterator[Tensor]:
        yield from (g.detach().double().flatten(1).unsqueeze(1) for g in made if g is not None)

    def repeat(self, own: Own) -> Sequence[Tensor | None]:
        return self.policy.gradients(list(self.plain), self.rows, own)

    def shout(self, own: Own, named: NamedNoise, bare: list[Tensor]) -> Iterator[Any]:
        """A row that is drawn is zeroed out, or loud against the sum of the others."""
        parts = [p.clone() for p in self.rows()]
        every, b = torch.arange(len(parts[0])), parts[0].shape[1]
        one = _pick(parts[0].flatten(2)[..., 0], own)
        for p in parts:
            p[every, one] = 0.0
        made = []
        for loud in (0.0, -LOUD):
            for p in parts:
                p[every, one] = loud * b * p.sum(1)
            plain = [None if g is None else p.sum(1) for g, p in zip(self.plain, parts)]
            out = self.policy.gradients(plain, lambda: parts, own)
            made.append(torch.cat([x[:, 0] for x in self.split(out)], dim=1))
        far = torch.linalg.vector_norm(made[1] - made[0], dim=1)
        yield Fault.TOO_FAR, far > named.longest * (1 + NEAR)


_CALLS: Mapping[str, Any] = {"outgoing": _Outgoing, "loss": _Loss, "gradients": _Gradients}
