"""How often a policy touched what it protects: counts of one execution, by row and phase.

An epsilon is a property of an execution, so accountants are given what was counted at the doors
that the engine owns (labels handed to a loss, messages, steps on own parameters), never a
hyper-parameter's name. A use of labels that goes past the policy's hook is found out, too, and
voids the claim: labels are handed out :class:`Guarded`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only


@dataclass(frozen=True)
class Batches:
    """Poisson batches of one rate in one phase.

    Attributes:
        phase: its name.
        rate: the chance with which a row comes into a batch.
        steps: batches in all, without early stopping.
        uses: how often the policy was called on one of them at most.
        cut: the chance that a batch was too large and cut.
    """

    phase: str
    rate: float
    steps: int
    uses: int
    cut: float


@dataclass(frozen=True)
class Uses:
    """How often a policy treated the most treated row of one training.

    Attributes:
        counted: the largest count over all rows, over training, validation and inference.
        stopped: what early stopping left out at most. When to stop was decided by looking at data,
            so a claim composes over what would have been without it.
        phases: by phase, the largest count over rows.
        past: what went past the policy, in words that end no sentence; empty if nothing.
        peers: the other parties that trained, by name, each with the strength and the counts of its
            own policy of this kind, or None where it trained without.
        batches: the Poisson batches of each phase and rate, where there are any.
        whole: beside these, the largest count over rows of uses that no sampling precedes.
    """

    counted: int = 0
    stopped: int = 0
    phases: Mapping[str, int] = field(default_factory=dict)
    past: tuple[str, ...] = ()
    peers: Mapping[str, tuple[float, Uses] | None] = field(default_factory=dict)
    batches: tuple[Batches, ...] = ()
    whole: int = 0

    @property
    def most(self) -> int:
        """Over how many uses of one row a claim composes."""
        return self.counted + self.stopped

    def sentence(self, what: str) -> str:
        """``"7 messages of a row (4 train, 3 predict)"`` for `what` = ``"messages"``."""
        by = ", ".join(f"{n} {phase}" for phase, n in self.phases.items() if n)
        left = f", {self.stopped} more that early stopping left out" if self.stopped else ""
        split = f" (most by phase: {by})" if by else ""
        return f"{self.counted} {what} of the most used row{split}{left}"


@dataclass(frozen=True)
class RunFacts:
    """What everybody knows of a training, and what was counted of a policy in it.

    Attributes:
        classes: C; 1 for a quantity, 0 for several labels.
        labelled: number of labelled training rows.
        epochs, batch_size: of the algorithm; 0 where it has none.
        dtype: of the training.
        weights: files of weights that it started from.
        profile: of trees, whose protocol they follow; "" elsewhere.
        group: the most rows of one group, as of a person; 1 where rows are in none.
        uses: what was counted; nothing before the training.
    """

    classes: int = 2
    labelled: int = 0
    epochs: int = 0
    batch_size: int = 0
    dtype: str = ""
    weights: tuple[str, ...] = ()
    profile: str = ""
    group: int = 1
    uses: Uses = field(default_factory=Uses)


@dataclass
class _Sampled:
    """Poisson batches of one phase and rate as they come.

    Attributes:
        cut: the chance that one is cut.
        by_epoch: how many there were.
        now, most: how often the policy was called on the last, and on one of them at most.
    """

    cut: float
    by_epoch: dict[int, int] = field(default_factory=dict)
    now: int = 0
    most: int = 0


class Counter:
    """Counts of one policy at work: for every phase one (R, N) tensor of int32 beside the data.

    Args:
        replicas, rows: R and N.
        device: of the counts; adding copies nothing to the host.
        told: what a use of labels past the policy is, in words.
        poisson: whether batches are drawn for the policy, so that uses outside of them count apart.

    Attributes:
        phase, alive: the current phase, and which replicas (R,) still train; None if all do.
        planned: epochs by phase.
        calls: how often the policy was called, by phase.
        sampling: Poisson batches by phase and rate: a phase may walk over its rows in several ways.
    """

    def __init__(
        self, replicas: int, rows: int, device: torch.device | str = "cpu",
        told: str = "labels are computed with outside the loss", *, poisson: bool = False,
    ) -> None:  # fmt: skip
        self.poisson = poisson
        self.replicas, self.rows, self.device = replicas, rows, torch.device(device)
        self.told = told
        self.phases: dict[str, Tensor] = {}
        self._past: dict[str, list[bool]] = {}
        self._left: dict[str, tuple[Tensor, Tensor]] = {}
        self.phase = ""
        self.alive: Tensor | None = None
        self.planned: dict[str, int] = {}
        self.calls: dict[str, int] = {}
        self.sampling: dict[tuple[str, float], _Sampled] = {}
        self._batch: _Sampled | None = None
        self._whole: dict[str, Tensor] = {}
        self._stopped = torch.zeros(replicas, dtype=torch.int64)
        self._whole_stopped = torch.zeros(replicas, dtype=torch.int64)

    def _of(self, phase: str) -> Tensor:
        if phase not in self.phases:
            shape = (self.replicas, self.rows)
            self.phases[phase] = torch.zeros(shape, dtype=torch.int32, device=self.device)
        return self.phases[phase]

    def add(self, rows: Tensor, phase: str = "", on: Tensor | None = None) -> None:
        """One use of each of the sample ids (R, b); a row that stands there twice is used twice.

        Replicas that do not train any more are left out, and with `on` (R, b) single rows.
        """
        phase = phase or self.phase
        counts = self._of(phase)
        self.calls[phase] = self.calls.get(phase, 0) + 1
        one = torch.ones_like(rows, dtype=torch.int32)
        if self.alive is not None:
            one = one * self.alive.to(one).unsqueeze(1)
        if on is not None:
            one = one * on.to(one)
        counts.scatter_add_(1, rows.to(self.device), one.to(self.device))
        if self._batch is not None:
            self._batch.now += 1
            self._batch.most = max(self._batch.most, self._batch.now)
        elif self.poisson:
            whole = self._whole.setdefault(phase, torch.zeros_like(counts))
            whole.scatter_add_(1, rows.to(self.device), one.to(self.device))

    def mark(self, which: Tensor, phase: str) -> None:
        """One use of the rows where `which` (R, N) is true."""
        self._of(phase).add_(which.to(self.device, torch.int32))

    @property
    def past(self) -> list[str]:
        """What went past the policy in some replica."""
        self._settle()
        return list(self._past)

    @property
    def due(self) -> bool:
        """Whether what takes time is to be looked at in this call: the first of a phase, the
        second, the fourth and so on, so that what begins later is seen as well.
        """
        n = self.calls.get(self.phase, 0)
        return n > 0 and n & (n - 1) == 0

    def untouched(self, what: str, before: Tensor, after: Tensor, on: Tensor) -> None:
        """Look whether the policy gave back a row of (R, b, ...) as it was, in replicas `on` (R,).

        Noise changes every row that is not zero; of single numbers, which it may leave by chance,
        the whole batch is looked at. Nothing is copied to the host or from it.
        """
        single = before.dim() < 3 or before[0, 0].numel() == 1
        a, b = (x.reshape(len(x), 1 if single else x.shape[1], -1) for x in (before, after))
        if a.shape[2] < 2:
            return
        same = ((a == b).all(2) & (a != 0).any(2)).any(1)
        if self.alive is not None:
            same = same & self.alive.to(a.device)
        if what in self._left:
            before_on, was = self._left[what]
            on, same = before_on | on, was | same
        self._left[what] = on, same

    def _settle(self) -> None:
        for what, (on, same) in self._left.items():
            self.passed(f"its hook leaves {what} as they were", (on & same.cpu()).tolist())
        self._left.clear()

    def passed(self, how: str, on: Sequence[bool] | None = None) -> None:
        """Something that the policy protects went past it, in all replicas or in those `on`."""
        new = [True] * self.replicas if on is None else list(on)
        if any(new):
            old = self._past.get(how, [False] * self.replicas)
            self._past[how] = [a or b for a, b in zip(old, new, strict=True)]

    def stop(self, phase: str, ran: Tensor, planned: int) -> None:
        """A phase ended after `ran` (R,) of `planned` epochs: the rest counts as if it had been."""
        left = (planned - ran.cpu().to(torch.int64)).clamp_min(0)
        if not bool((left > 0).any()):
            return
        seen = self.phases.get(phase, torch.zeros(self.replicas, 1))
        self._stopped += left * _an_epoch(seen, ran).clamp_min(1)
        if phase in self._whole:
            self._whole_stopped += left * _an_epoch(self._whole[phase], ran)

    def sampled(self, phase: str, epoch: int, rate: float, cut: float) -> None:
        """One more Poisson batch begins, which lasts until :meth:`drawn_all`."""
        self._batch = found = self.sampling.setdefault((phase, rate), _Sampled(cut))
        found.by_epoch[epoch] = found.by_epoch.get(epoch, 0) + 1
        found.now = 0

    def drawn_all(self) -> None:
        """No Poisson batch any more: what comes now is used without sampling."""
        self._batch = None

    def _batches(self) -> tuple[Batches, ...]:
        return tuple(
            Batches(
                phase, rate, max(of.by_epoch.values()) * self.planned.get(phase, 1), of.most, of.cut
            )
            for (phase, rate), of in self.sampling.items()
        )

    def _uses_whole(self, r: int) -> int:
        """Of the most used row of replica `r`, outside of Poisson batches, stopped or not."""
        if not self._whole:
            return 0
        counted = torch.stack([of[r].long() for of in self._whole.values()]).sum(0)
        return int(counted.max()) + int(self._whole_stopped[r])

    def total(self) -> Tensor:
        """Uses of every row over all phases, (R, N) int64."""
        zeros = torch.zeros(self.replicas, self.rows, dtype=torch.int64, device=self.device)
        return sum((c.long() for c in self.phases.values()), zeros)

    def uses(self, r: int, **more: Any) -> Uses:
        """What was counted in replica `r`."""
        self._settle()
        counted = int(self.total()[r].max()) if self.rows else 0
        return Uses(
            counted=counted,
            stopped=int(self._stopped[r]) if counted else 0,
            phases={name: int(c[r].max()) for name, c in self.phases.items()},
            past=tuple(how for how, where in self._past.items() if where[r]),
            batches=self._batches(),
            whole=self._uses_whole(r),
            **more,
        )


def _an_epoch(counts: Tensor, ran: Tensor) -> Tensor:
    """Uses an epoch (R,) of the most used row, by counts (R, N) of `ran` (R,) epochs."""
    most = counts.max(dim=1).values.cpu().double()
    return torch.ceil(most / ran.cpu().clamp_min(1)).long()


class Guarded(Tensor):
    """Labels that know which rows they are of and tell when somebody computes with them.

    Only :meth:`vflsec.core.federation.Federation.losses` takes them apart; whatever else reads
    their values is a use of labels past the policy that was to protect them. Shapes and kinds may
    be asked for.
    """

    rows: Tensor
    counters: tuple[Any, ...]
    silent: Tensor | None

    QUIET: ClassVar[frozenset[Any]] = frozenset(
        {
            Tensor.dim, Tensor.size, Tensor.__len__, Tensor.numel, Tensor.is_floating_point,
            Tensor.element_size,
            *(getattr(Tensor, name).__get__ for name in (
                "shape", "dtype", "device", "ndim", "is_cuda", "requires_grad", "layout",
                "is_sparse", "is_quantized", "is_meta",
            )),
        }
    )  # fmt: skip

    @staticmethod
    def over(
        y: Tensor, rows: Tensor, counters: tuple[Any, ...], silent: Tensor | None = None
    ) -> Guarded:
        """Labels `y` (R, b) or (R, b, C) of sample ids `rows` (R, b).

        `silent` (R, b) says which of them add nothing to a loss, see :func:`mask_silent`.
        """
        made: Guarded = y.as_subclass(Guarded)
        made.rows, made.counters, made.silent = rows, counters, silent
        return made

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func not in cls.QUIET:
            for found in tree_leaves((args, kwargs)):
                for counter in found.counters if isinstance(found, Guarded) else ():
                    counter.passed(counter.told)
        args, kwargs = tree_map_only(Guarded, unguard, (args, kwargs or {}))
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)


def unguard(y: Tensor) -> Tensor:
    """The labels themselves, told to nobody; for the one place that counts their use."""
    if not isinstance(y, Guarded):
        return y
    with torch._C.DisableTorchFunctionSubclass():
        return y.as_subclass(Tensor)


def lend_labels(
    y: Tensor | None, rows: Tensor | None, on: Sequence[bool], more: Sequence[Counter] = ()
) -> Tensor | None:
    """Labels `y` of sample ids `rows` for a policy that works in the replicas `on` alone.

    Its use of them is told to the counters `more` besides those that `y` tells anyway.
    """
    had = y.counters if isinstance(y, Guarded) else ()
    if y is None or rows is None or not (had or more):
        return y
    silent = y.silent if isinstance(y, Guarded) else None
    return Guarded.over(unguard(y), rows, tuple(_Some(c, on) for c in (*had, *more)), silent)


@dataclass(frozen=True)
class _Some:
    """A counter that is told of some replicas."""

    counter: Any
    on: Sequence[bool]

    @property
    def told(self) -> str:
        return str(self.counter.told)

    def passed(self, how: str) -> None:
        self.counter.passed(how, self.on)


def mask_silent(losses: Tensor, y: Tensor) -> Tensor:
    """`losses` (R, b) of the rows that labels `y` are of, 0 for those that are silent."""
    silent = y.silent if isinstance(y, Guarded) else None
    return losses if silent is None else losses.masked_fill(silent, 0.0)
