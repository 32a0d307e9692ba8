"""Algorithms that are no network: they train in rounds, one replica after the other.

A subclass of :class:`Rounds` says how a :class:`Learner` starts from a :class:`Wire`; nothing else
meets the replica axis. The wire is all that a learner has of one cell: its rows, every party's
columns, the labels as the active party trains on them, a stream of random numbers, and the way to
send. Messages go through the same channel as those of networks, so that ledger, recorder and Views
need to know nothing of it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from vflsec.core.algorithm import Algorithm, list_called
from vflsec.core.phase import Phase
from vflsec.core.policy import TREATED, Policy, RowSets
from vflsec.core.policy_binding import Binding
from vflsec.core.rng import numpy_generator
from vflsec.core.task import Task
from vflsec.core.view import Facts
from vflsec.errors import PolicyError, ShapeError

if TYPE_CHECKING:
    from vflsec.core.federation import Federation
    from vflsec.core.message_kinds import Kind

T = TypeVar("T")

HOOKS = ("columns", "labels", "regrow", "shows", "pairs", "sums", "mask", "least_rows")
"""Those of policies that are called here."""


class Learner(Protocol):
    """What is trained: one system of one replica."""

    def take_round(self) -> None:
        """Train for one more round."""

    def predict(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Answers (b, outputs) for sample ids (b,)."""


@dataclass(frozen=True)
class Wire:
    """All that a learner has of one cell, and its way to send.

    Attributes:
        fed: the cohort.
        replicas: those that this learner stands for: they are alike, and all of them get its
            messages.
        rows: (n,) sample ids to train on, ascending; nobody may write into them.
    """

    fed: Federation
    replicas: tuple[int, ...]
    rows: NDArray[np.int64]

    def __post_init__(self) -> None:
        self.rows.setflags(write=False)

    @property
    def task(self) -> Task:
        """Who holds what."""
        return self.fed.stack.tasks[int(self.fed.stack.of[self.replicas[0]])]

    @cached_property
    def labels(self) -> NDArray[Any]:
        """Labels of `rows` as the active party trains on them: classes (n,) or numbers (n, k)."""
        found: NDArray[Any] = self.fed.labels[self.replicas[0]].cpu().numpy()[self.rows]
        return found if found.ndim == 1 else found.astype(np.float64)

    @cached_property
    def regrown(self) -> NDArray[Any] | None:
        """Labels of `rows` by which the active party regrows branches; None if it does not."""
        for b in self._bound(self.task.active, "regrow"):
            found = b.policy.regrow(b.own)
            if found is not None:
                b.acted = True
                return found[self.replicas[0]].cpu().numpy()[self.rows]
        return None

    def columns(self, party: str, *, gaps: bool = False) -> NDArray[np.float64]:
        """Own columns of a party for all N sample ids, (N, d), after its column policies.

        A missing number is 0, the mean of its column, or with `gaps` NaN.
        """
        fed, x = self.fed, self.task.x[party].flatten(1).double().numpy().copy()
        if any(b.policy.overrides("columns") for b in fed.parties[party].bindings):
            changed = fed.extra["columns"]
            if party not in changed:  # of all replicas at once, as a policy treats them
                assert fed.batch is not None
                changed[party] = fed.columns(party, fed.batch.sort(dim=1).values)
            x[self.rows] = changed[party][self.replicas[0]].flatten(1).double().cpu().numpy()
        if gaps and party in self.task.missing:
            x[self.task.missing[party].numpy() & (x == 0)] = np.nan
        return x

    def share(self, name: str, make: Callable[[], T]) -> T:
        """What is made of columns and `rows` alone: once for all learners with the same ones.

        Nobody may write into it; each `name` is of one way to make it.
        """
        bound = [b for p in self.fed.parties.values() for b in p.bindings]
        own = any(b.policy.overrides("columns") for b in bound)
        whose = self.replicas if own else int(self.fed.stack.of[self.replicas[0]])
        made, key = self.fed.extra["shared"], (name, whose, self.rows.tobytes())
        if key not in made:
            made[key] = make()
        found: T = made[key]
        return found

    def rng(self, *names: object) -> np.random.Generator:
        """A stream of random numbers of this cell's seed."""
        return numpy_generator(self.fed.seeds[self.replicas[0]], "rounds", *names)

    def send(
        self, kind: Kind, sender: str, receiver: str, payload: ArrayLike,
        rows: NDArray[np.int64] | None = None, *, name: str = "", step: int | None = None,
        phase: str = "",
    ) -> None:  # fmt: skip
        """Send one message in the current round.

        Args:
            kind, sender, receiver, name, phase: as in :class:`vflsec.core.message.Message`.
            payload: (...), row-wise kinds (b, ...).
            rows: (b,) sample ids of the payload's rows.
            step: of all rounds together; by default that of the message before, or the first of
                a new round.

        Raises:
            ShapeError: there was such a step in an earlier round.
        """
        message = self.fed.message(
            kind, sender, receiver, self._spread(payload),
            None if rows is None else self._spread(rows), name=name, phase=phase,
        )  # fmt: skip
        step = self._date(step) if message.phase == self.fed.phase else step or 0
        self.fed.deliver(replace(message, step=step))

    def _date(self, step: int | None) -> int:
        """The step of a message, which is of the current round alone."""
        now, last = self.fed.epoch, self._last
        first = 1 + max((of for at, of in last.items() if at < now), default=-1)
        step = last.get(now, first) if step is None else step
        if step < first:
            what, rule = f"{self.fed.phase}: step in round {now}", f"be {first} or more"
            raise ShapeError.must(what, rule, step, "Count steps over all rounds, or leave it out.")
        last[now] = max(step, last.get(now, first))
        return step

    @cached_property
    def _last(self) -> dict[int, int]:
        """The last step of each round."""
        return {}

    def derive(
        self, kind: Kind, sender: str, receiver: str, payload: ArrayLike,
        rows: NDArray[np.int64] | None = None, *, step: int | None = None,
    ) -> None:  # fmt: skip
        """Record what `receiver` works out of messages and its own secrets; nothing crosses."""
        message = self.fed.message(
            kind, sender, receiver, self._spread(payload),
            None if rows is None else self._spread(rows),
        )  # fmt: skip
        self.fed.channel.derive(replace(message, step=self._date(step)))

    @cached_property
    def _shared(self) -> Tensor:
        """`rows`, which many messages are about: one copy for all of them."""
        return torch.tensor(self.rows).to(self.fed.stack.device)

    def _spread(self, values: ArrayLike) -> Tensor:
        """A copy for every replica, for a learner may go on with the array that it sent."""
        own = values is self.rows
        x = self._shared if own else torch.tensor(np.ascontiguousarray(values))
        return x.to(self.fed.stack.device).expand(self.fed.replicas, *x.shape)

    def mask(
        self, party: str, values: NDArray[np.float64], *names: object
    ) -> NDArray[np.int64] | None:
        """A sum of `party` under its mask, which is all that who decrypts it reads; None if bare.

        Args:
            party: whose sum it is.
            values: the sum.
            names: of the stream of random numbers, another one for each mask.
        """
        for b in self._bound(party, "mask"):
            b.acted = True
            return b.policy.mask(values, self.rng("mask", party, *names), b.own)
        return None

    def change_pairs(self, party: str, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Gradient pairs of a tree (n, 3) as `party` encrypts or accepts them."""
        for b in self._bound(party, "pairs"):
            b.acted = True
            values = b.policy.pairs(values, b.own)
        return values

    def change_sums(
        self, party: str, values: NDArray[np.float64], *names: object
    ) -> NDArray[np.float64]:
        """Sums of `party` by node, column and bin, as its policies let them leave.

        Args:
            party, values, names: as in :meth:`mask`.
        """
        for b in self._bound(party, "sums"):
            b.acted = True
            values = b.policy.sums(values, self.rng("sums", party, *names), b.own)
        return values

    def find_least_rows(self, columns: int) -> int:
        """How many rows a sum must be over that is read by a party with so many columns.

        Raises:
            PolicyError: there are not so many.
        """
        least = 1
        for b in self._bound(self.task.active, "least_rows"):
            asked = b.policy.least_rows(columns, b.own)
            if asked > len(self.rows):
                what, rule = f"{b.policy.name}: batches", f"be at most the {len(self.rows)} rows"
                raise PolicyError.must(what, rule, asked, "Take a smaller strength.")
            b.acted |= asked > 1
            least = max(least, asked)
        return least

    def _bound(self, party: str, hook: str) -> list[Binding]:
        """A party's policies with this hook that are on, told in which replica they are asked."""
        r = self.replicas[0]
        found = [
            b for b in self.fed.parties[party].bindings
            if b.policy.overrides(hook) and b.own.active[r]
        ]  # fmt: skip
        for b in found:
            b.own.context = {"replica": r}
        return found

    @cached_property
    def _deciding(self) -> list[Binding]:
        return self._bound(self.task.active, "shows")

    @property
    def is_guarded(self) -> bool:
        """Whether a policy of the active party decides which row sets the others may learn."""
        return bool(self._deciding)

    def shows(self, sets: RowSets) -> NDArray[np.bool_]:
        """Which of some row sets the parties without labels may learn, (...)."""
        out = np.ones(sets.counts.shape[:-1], dtype=bool)
        for b in self._deciding:
            b.own.context = {"replica": self.replicas[0]}
            found = b.policy.shows(sets, b.own)
            b.acted |= not found.all()
            out &= found
        return out


class Rounds(Algorithm):
    """An algorithm without networks. Subclasses are frozen dataclasses, as of any algorithm.

    Of the hooks of policies it calls :data:`HOOKS`.
    """

    modules: ClassVar[frozenset[str]] = frozenset()

    @property
    @abstractmethod
    def rounds(self) -> int:
        """How many rounds training takes."""
        raise NotImplementedError("abstract")

    @abstractmethod
    def start(self, wire: Wire) -> Learner:
        """An untrained learner; what it sends before the first round passes here."""
        raise NotImplementedError("abstract")

    def build(self, fed: Federation) -> None:
        for party in fed.parties.values():
            for b in party.bindings:
                self._refuse(b)
        fed.extra["learners"] = {}

    def explain_unfit(self, policy: Policy, owner: str = "") -> str:
        hooks = list_called(policy, owner or policy.owner, HOOKS)
        sent = {kind for kind, *_ in policy.sends(self.sends)}
        if any(TREATED.get(hook) in {None, *sent} for hook in hooks):
            return ""
        if any(map(policy.overrides, HOOKS)):
            return super().explain_unfit(policy, owner)
        return (
            f"{policy.name}: does nothing under {self.name}, which is no network. Take one with a "
            f"hook of {', '.join(HOOKS)} (docs/defenses.md)."
        )

    def _refuse(self, b: Binding) -> None:
        """Refuse a policy that is made for the batches of a network.

        Raises:
            PolicyError: it would be called for all replicas at once, for drawn batches, or for one
                half of what it does.
        """
        policy = b.policy
        covers = policy.overrides("outgoing") and any(s[0] in policy.covers for s in self.sends)
        of_batches = policy.poisson or policy.overrides("link") or policy.overrides("carries")
        if any(b.own.active) and (covers or of_batches):
            raise PolicyError(
                f"{policy.name}: needs batches of a network, {self.name} has none. Take a defense "
                "with the hook shows or labels (docs/defenses.md)."
            )

    def phases(self, fed: Federation) -> list[Phase]:
        rows = fed.stack.rows("labelled")

        def restart() -> None:
            fed.extra |= {"learners": {}, "columns": {}, "shared": {}}

        def step(batch: Tensor) -> None:
            for group in self._groups(fed, lambda r: bool(fed.channel.alive[r])):
                with fed.channel.only(group):
                    learner = fed.extra["learners"].get(group)
                    if learner is None:
                        ids = batch[group[0]].sort().values.cpu().numpy()
                        learner = self.start(Wire(fed, group, ids))
                        fed.extra["learners"][group] = learner
                    learner.take_round()

        return [Phase("train", rows, max(1, rows.shape[1]), self.rounds, step, before=restart)]

    @staticmethod
    def _groups(fed: Federation, takes: Callable[[int], bool]) -> list[tuple[int, ...]]:
        """Replicas that train alike: of one seed, with policies of the same strengths."""
        found: dict[tuple[Any, ...], list[int]] = {}
        bound = [b for p in fed.parties.values() for b in p.bindings]
        for r in filter(takes, range(fed.replicas)):
            key = (fed.seeds[r], *(float(b.own.strength[r]) for b in bound))
            found.setdefault(key, []).append(r)
        return [tuple(of) for of in found.values()]

    def predict(self, fed: Federation, rows: Tensor) -> Tensor:
        out = torch.zeros((*rows.shape, fed.outputs), dtype=torch.float64)
        for group, learner in fed.extra["learners"].items():
            with fed.channel.only(group):
                answers = torch.from_numpy(learner.predict(rows[group[0]].cpu().numpy()))
            out[list(group)] = answers
        return out.to(fed.stack.device, fed.stack.dtype)

    def planned_facts(self, active: str, parties: tuple[str, ...], classes: int) -> Facts:
        return Facts(self.name, "train", active, parties, classes)

    def facts(self, fed: Federation) -> Facts:
        task = fed.stack.first
        planned = self.planned_facts(task.active, task.parties, task.classes)
        run = fed.facts(algorithm=self.name)
        return replace(planned, phase=run.phase, sends=run.sends)
