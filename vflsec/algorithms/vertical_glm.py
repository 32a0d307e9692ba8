"""Vertical GLM: logistic, linear or Poisson regression, with a coordinator or on shares.

Party k has columns X_k and coefficients w_k, which start at 0; the active party has a column of
ones beside its own. With the score f = sum_k X_k w_k of each of the b rows of a batch, and d the
derivative of their losses by it:

    passive party -> active         Enc(X_k w_k)
    active -> passive party         Enc(d)
    party k -> coordinator          Enc(g_k),  g_k = X_k^T d / b
    coordinator -> party k          g_k, decrypted
    party k by itself               w_k <- w_k - rate (g_k + l2 w_k)
    passive party -> active         Enc(sum of (X_k w_k)^2), Enc(l2 |w_k|^2 / 2)
    active -> coordinator           Enc(loss),  mean over the batch, plus penalties
    coordinator -> all              whether training has converged, after each pass

For classes d is p - y (``exact``), or its first-order Taylor expansion at f = 0, which ciphers can
add up (``taylor``): f / 4 + 1/2 - y of two classes. Of a quantity d = f - y, of counts exp(f) - y.
Batches are drawn once. The coefficients are those of pooled training.

As in FATE, the loss of classes is their second-order expansion less its value at f = 0, is sent
where there is one passive party, and all are told the number of classes first. The coordinator
never says that training has converged.

So the coordinator reads the loss of every batch and every party's gradient in it, each party its
own, and the active party the scores X_k w_k of rows that it has predicted: of the training rows
too, after the last batch, as in FATE. The coordinator holds the key: together with a party that
gets Enc(d) it has d, the derivative of each row's loss. It learns of a batch how many rows it has
(FATE), or which (Hardy et al., where it runs over the batches). With ``protocol = "shares"``
(FATE's SSHE, SecretFlow's HESS) there is no coordinator: scores, derivatives, gradients and
coefficients are shares or ciphers of two parties, the training is the same to the last bit, and the
active party gets the answers alone. Ciphers are emulated: sizes in the ledger are those of the
numbers before encryption.

Source: Hardy et al., "Private federated learning on vertically partitioned data via entity
resolution and additively homomorphic encryption", arXiv:1711.10677 (2017); Yang, Fan, Chen, Shi,
Yang, "A quasi-Newton method based vertical federated learning framework for logistic regression",
arXiv:1912.00513 (2019); FATE 2.x, hetero LR, which sends gradients to its arbiter without masks;
Chen et al., "When homomorphic encryption marries secret sharing", KDD 2021, arXiv:2008.08753.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from vflsec.core import check
from vflsec.core.rounds import Learner, Rounds, Wire
from vflsec.core.view import Facts
from vflsec.label import Label
from vflsec.plugins import registry

if TYPE_CHECKING:
    from vflsec.core.federation import Federation

ALIASES = ("hetero_lr", "coordinated_lr", "vertical_logistic")
COORDINATOR = "coordinator"
"""Who holds the key; no party with columns."""

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@registry.algorithm
@dataclass(frozen=True)
class VerticalGlm(Rounds):
    """Hyper-parameters.

    Attributes:
        epochs: passes over the rows.
        batch_size: rows of a batch; 0 for all.
        rate: step length.
        l2: penalty on coefficients; the intercept has none.
        derivative: of the loss of classes: ``taylor``, or ``exact``.
        protocol: who reads what: with a ``coordinator``, or on ``shares``.
        coordinator_knows: of a batch, its ``size`` or its ``rows``.
    """

    epochs: check.Count = 20
    batch_size: Annotated[int, check.at_least(0)] = 320
    rate: check.Positive = 0.15
    l2: check.NonNegative = 0.01
    derivative: Literal["taylor", "exact"] = "taylor"
    protocol: Literal["coordinator", "shares"] = "coordinator"
    coordinator_knows: Literal["size", "rows"] = "size"

    quantities: ClassVar[bool] = True
    label_holder: ClassVar[bool] = True

    @property
    def servers(self) -> tuple[str, ...]:  # type: ignore[override]
        return (COORDINATOR,) if self.protocol == "coordinator" else ()

    @property
    def sends(self) -> frozenset[tuple[str, str, str]]:  # type: ignore[override]
        both = ("active", "passive")
        shared = {("ids", *both), ("ciphertext", *both), ("ciphertext", *both[::-1])}
        if not self.servers:
            return frozenset(shared)
        asked = {("model_gradient", *way) for p in both for way in ((p, COORDINATOR),
                                                                  (COORDINATOR, p))}  # fmt: skip
        told = {("signal", "active", to) for to in ("passive", COORDINATOR)}
        told |= {("signal", COORDINATOR, to) for to in both} | {("loss", "active", COORDINATOR)}
        told |= {("derivative", *way) for way in (both, both[::-1])}
        if self.coordinator_knows == "rows":
            told.add(("ids", "active", COORDINATOR))
        return frozenset(shared | asked | told | {("score", *both[::-1])})

    @property
    def rounds(self) -> int:
        return self.epochs

    def facts(self, fed: Federation) -> Facts:
        """With the numbers of outputs and of each party's columns, the shape of its gradient."""
        found = super().facts(fed)
        widths = {tuple(x.shape[1] for x in of.x.values()) for of in fed.extra["learners"].values()}
        if len(widths) != 1:
            return found
        shape = {"outputs": fed.stack.first.label.trees, "columns": widths.pop()}
        return replace(found, extra={**found.extra, **shape})

    def start(self, wire: Wire) -> Learner:
        task = wire.task

        def make() -> dict[str, Floats]:
            of = {p: torch.from_numpy(wire.columns(p)) for p in task.parties}
            return add_ones({p: task.schema[p].design(x).numpy() for p, x in of.items()})

        return Regression(self, wire, wire.share("design", make), task.label, wire.labels)

    def planned_facts(self, active: str, parties: tuple[str, ...], classes: int) -> Facts:
        return Facts(
            self.name, "train", active, parties, classes, aggregation="sum", top=False,
            batch_size=self.batch_size, epochs=self.epochs,
            extra={"rate": self.rate, "l2": self.l2, "derivative": self.derivative},
        )  # fmt: skip


@dataclass
class Regression:
    """A training: give it rounds with :meth:`take_round`.

    Attributes:
        settings: hyper-parameters.
        wire: the rows and the way to send.
        x: columns of all N rows by party, (N, p), the active party's first, with a column of ones.
        label: kind of label.
        y: labels of the training rows, classes (n,) or numbers (n, k).
        weights: coefficients by party, (p, k), the active party's intercept last.
    """

    settings: VerticalGlm
    wire: Wire
    x: Mapping[str, Floats]
    label: Label
    y: NDArray[Any]
    weights: dict[str, Floats] = field(init=False)

    def __post_init__(self) -> None:
        self.active, *self.hosts = self.x
        k = self.label.trees
        self.weights = {p: np.zeros((x.shape[1], k)) for p, x in self.x.items()}
        self.batches, self.round = self._draw_batches(), 0
        if self.y.ndim == 1 and self.settings.servers:
            for receiver in (*self.hosts, COORDINATOR):
                self.wire.send(
                    "signal", self.active, receiver, [self.label.outputs], name="label_count"
                )

    def _draw_batches(self) -> list[Ints]:
        """Places of the rows of each batch, drawn once."""
        n = len(self.wire.rows)
        widest = max((self.x[h].shape[1] for h in self.hosts), default=0)
        least = self.wire.find_least_rows(widest)
        size = max(self.settings.batch_size or n, least)
        order = self.wire.rng("batches").permutation(n)
        cuts = [c for c in range(size, n, size) if n - c >= least]
        return [np.sort(at) for at in np.split(order, cuts)]

    def take_round(self) -> None:
        """One pass over the rows."""
        for i, at in enumerate(self.batches):
            self._take_step(at, self.round * len(self.batches) + i)
        self.round += 1
        for party in self.x if self.settings.servers else ():
            last = self.round * len(self.batches) - 1
            self.wire.send("signal", COORDINATOR, party, [0], name="converge", step=last)
        if self.round == self.settings.epochs and self.settings.servers:
            self._score(self.wire.rows, self.round * len(self.batches))

    def _take_step(self, at: Ints, step: int) -> None:
        """One step on the batch at these places of the rows."""
        ids, send = self.wire.rows[at], self.wire.send
        parts = {p: x[ids] @ self.weights[p] for p, x in self.x.items()}
        taylor = self.settings.derivative == "taylor"
        d = self.label.compute_derivative(add(parts), self.y[at], taylor=taylor)
        knows = self.settings.servers if self.settings.coordinator_knows == "rows" else ()
        for receiver in [*self.hosts, *knows] if self.round == 0 else ():
            send("ids", self.active, receiver, ids, ids, step=step)
        for host in self.hosts:
            hidden = np.zeros(d.shape)  # all there is for whoever holds it, is its size
            send("ciphertext", host, self.active, hidden, name="score", step=step)
            send("ciphertext", self.active, host, hidden, name="derivative", step=step)
            for ends in ((self.active, host), (host, self.active)) if self.settings.servers else ():
                self.wire.derive("derivative", *ends, d, ids, step=step)
        if self.settings.servers:
            self._tell_loss(add(parts), at, step)
        for party, x in self.x.items():
            g = x[ids].T @ d / len(ids)
            self._exchange(party, g, step)
            penalty = self.settings.l2 * self.weights[party]
            if party == self.active:
                penalty[-1] = 0.0
            self.weights[party] -= self.settings.rate * (g + penalty)

    def _tell_loss(self, scores: Floats, at: Ints, step: int) -> None:
        """The coordinator decrypts the loss of the batch, if there is one passive party."""
        l2, hidden = self.settings.l2, np.zeros(scores.shape[1])
        for host in self.hosts:
            for name in ("squares", "penalty") if l2 else ("squares",):
                self.wire.send("ciphertext", host, self.active, hidden, name=name, step=step)
        if len(self.hosts) == 1:
            loss = self.label.compute_losses(scores, self.y[at]).mean(axis=0)
            own, other = self.weights.values()
            penalty = (own[:-1] ** 2).sum(axis=0) + (other**2).sum(axis=0)
            self.wire.send("loss", self.active, COORDINATOR, loss + l2 / 2 * penalty, step=step)

    def _exchange(self, party: str, g: Floats, step: int) -> None:
        """A party's gradient goes to the coordinator and comes back decrypted, or stays shared."""
        if not self.settings.servers:
            for host in self.hosts if party == self.active else (party,):
                ends = (self.active, host)
                for sender, receiver in (ends, ends[::-1]):
                    self.wire.send(
                        "ciphertext", sender, receiver, 0 * g, name="gradient", step=step
                    )
            return
        masked = self.wire.mask(party, g, step)
        if masked is None:
            self.wire.send("model_gradient", party, COORDINATOR, g, step=step)
            self.wire.send("model_gradient", COORDINATOR, party, g, step=step)
        else:
            self.wire.send("masked_sum", party, COORDINATOR, masked, step=step)
            self.wire.send("masked_sum", COORDINATOR, party, masked, step=step)
            self.wire.derive("model_gradient", COORDINATOR, party, g, step=step)

    def predict(self, rows: Ints) -> Floats:
        """Answers (b, outputs) for sample ids (b,); passive parties send the scores of rows."""
        return self.label.form_answers(add(self._score(rows, phase="predict")))

    def _score(self, rows: Ints, step: int = 0, phase: str = "") -> dict[str, Floats]:
        """What each party's columns add to the scores of rows; passive parties send theirs."""
        parts = {p: x[rows] @ self.weights[p] for p, x in self.x.items()}
        send = self.wire.send
        for host in self.hosts:
            if self.settings.servers:
                send("score", host, self.active, parts[host], rows, step=step, phase=phase)
            else:
                hidden = 0 * parts[host]
                send("ciphertext", host, self.active, hidden, name="score", phase=phase)
        return parts


def add_ones(x: Mapping[str, Floats]) -> dict[str, Floats]:
    """Columns by party, the first one's with a column of ones."""
    active, own = next(iter(x.items()))
    return {**x, active: np.column_stack([own, np.ones(len(own))])}


def add(parts: Mapping[str, Floats]) -> Floats:
    """The scores of rows, from what each party's columns add to them."""
    return reduce(np.add, parts.values())
