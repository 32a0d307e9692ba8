"""Private set intersection: which ids the parties share, found before training; none is done here.

By Diffie-Hellman on hashed ids, with secret exponents a of the active party and b of a passive one:

    active -> passive       H(i)^a      for each id i of the active party's list
    passive -> active       H(j)^b      for each id j of the passive party's list
    passive -> active       H(i)^(ab)   the first message again: from these the active party learns
    active -> passive       H(j)^(ab)   the second again: from these the passive party learns

Who gets the last of it compares both lists of H^(ab): ids in order are a list of what matched
(``reveals = "list"``), shuffled ones their number (``"size"``). The last message may be withheld
(``to``). With `padding` D every list also has D of 2 D dummy ids that all know, drawn anew in each
run: what matches of them, D / 2 on average, is added to the number, and not to the list, of which
its owner knows the dummies. With several parties the active one runs this with each, and what is
learnt is what all share. The protocol runs once, or `runs` times, as where lists are matched each
month: the list of one who learns (the first passive party, or the active one where it alone does)
then has one id more. A number is on record with that id, for the party that has it.

What is learnt is no message but worked out of some. Group elements are emulated: 32 bytes each, as
of Curve25519. What is trained afterwards by another algorithm names the shared rows of a batch in
`ids` messages: withholding a list here holds for this step alone.

Source: Meadows, "A more efficient cryptographic matchmaking protocol for use in the absence of a
continuously available third party", IEEE S&P 1986; Huberman, Franklin, Hogg, "Enhancing privacy and
trust in electronic communities", EC 1999; Ion et al., "On deploying secure computation: private
intersection-sum-with-cardinality", EuroS&P 2020, for sizes; the dummies are this package's own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from vflsec.core import check
from vflsec.core.federation import Federation
from vflsec.core.phase import Phase
from vflsec.core.rounds import Learner, Rounds, Wire
from vflsec.core.view import Facts
from vflsec.plugins import registry

ALIASES = ("private_set_intersection", "entity_alignment")
ELEMENT = 32
"""Bytes of a group element."""


@registry.algorithm
@dataclass(frozen=True)
class Psi(Rounds):
    """Hyper-parameters.

    Attributes:
        reveals: what is learnt of shared ids: the ``list``, or its ``size``.
        to: who learns it: ``both``, the ``active`` or the ``passive`` parties.
        padding: how many dummy ids each list has.
        runs: how often lists are matched, with one id more each time.
    """

    reveals: Literal["list", "size"] = "list"
    to: Literal["both", "active", "passive"] = "both"
    padding: check.Whole = 0
    runs: check.Count = 1

    quantities: ClassVar[bool] = True
    label_holder: ClassVar[bool] = True
    unaligned: ClassVar[bool] = True

    @property
    def sends(self) -> frozenset[tuple[str, str, str]]:  # type: ignore[override]
        ways = {"active": ("passive", "active"), "passive": ("active", "passive")}
        told = {("match", *way) for who, way in ways.items() if self.to in ("both", who)}
        if self.reveals == "size":
            told = {("match_count", *ways["active" if self.to == "active" else "passive"])}
        return frozenset(told | {("ciphertext", *way) for way in ways.values()})

    @property
    def rounds(self) -> int:
        return self.runs

    def phases(self, fed: Federation) -> list[Phase]:
        """One that leaves nothing to predict with."""
        return [replace(of, name="align", predicts=False) for of in super().phases(fed)]

    def start(self, wire: Wire) -> Learner:
        return _Matching(self, wire)

    def planned_facts(self, active: str, parties: tuple[str, ...], classes: int) -> Facts:
        return Facts(
            self.name, "align", active, parties, classes, aggregation="sum", top=False,
            epochs=self.runs, extra={"padding": self.padding},
        )  # fmt: skip


class _Matching:
    """Runs of the protocol on the lists of one cell.

    `later` are ids of the party whose list is `changing`, of which one comes into it each run.
    """

    def __init__(self, settings: Psi, wire: Wire) -> None:
        self.settings, self.wire, self.run, task = settings, wire, 0, wire.task
        learn = {"active": (task.active,), "passive": task.passive, "both": task.parties}
        self.learn = learn[settings.to]
        self.changing = self.learn[0] if settings.to != "both" else task.passive[0]
        mine = task.sets[f"local:{self.changing}"].numpy()
        self.later = wire.rng("later").permutation(mine)[: settings.runs]

    def take_round(self) -> None:
        """One run of the protocol."""
        task = self.wire.task
        lists = {p: np.flatnonzero(task.present[p].numpy()) for p in task.parties}
        lists[self.changing] = np.setdiff1d(lists[self.changing], self.later[self.run + 1 :])
        for host in task.passive:
            for sender, receiver in ((task.active, host), (host, task.active)):
                self._send(sender, receiver, lists[sender], "blinded")
                if receiver in self.learn:
                    self._send(sender, receiver, lists[receiver], "blinded_twice")
        shared = [task.sets[k].numpy() for k in ("aligned", "validation", "test")]
        found = reduce(np.intersect1d, lists.values(), np.concatenate(shared))
        for p in self.learn:
            self._learn(p, task.passive[0] if p == task.active else task.active, found)
        self.run += 1

    def _send(self, sender: str, receiver: str, ids: NDArray[np.int64], name: str) -> None:
        elements = np.zeros((len(ids) + self.settings.padding, ELEMENT), dtype=np.uint8)
        self.wire.send("ciphertext", sender, receiver, elements, name=name, step=self.run)

    def _learn(self, party: str, peer: str, found: NDArray[np.int64]) -> None:
        """What a party works out of what it got."""
        d, last = self.settings.padding, self.later[self.run : self.run + 1]
        if self.settings.reveals == "list":
            ones = np.ones((len(found), 1))
            self.wire.derive("match", peer, party, ones, found, step=self.run)
        elif party == self.changing:
            dummies = int(self.wire.rng("dummies", self.run).hypergeometric(d, d, d)) if d else 0
            count = np.full((len(last), 1), float(len(found) + dummies))
            self.wire.derive("match_count", peer, party, count, last, step=self.run)

    def predict(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Nothing: zeros (b, outputs)."""
        return np.zeros((len(rows), self.wire.task.label.outputs))
