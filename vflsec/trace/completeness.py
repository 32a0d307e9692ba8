"""What a trace does not show, by its own account: a leak that is found stands, no PASS does.

One :class:`Watch` gets the messages as they are read and says in the end why the recording carries
no pass (`clauses`).
"""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vflsec.core.message_kinds import find_kinds
from vflsec.trace.limits import UNSEEN
from vflsec.trace.manifest import Have, Moment, ObserverInfo, Route
from vflsec.trace.tables import Fields, Recorded

Key = tuple[str, str, str, str, str]
"""(phase, kind, name, sender, receiver)."""
Way = tuple[str, str]
"""(sent or received, kind)."""


class Size(NamedTuple):
    """Messages that go one way under one name, their numbers, bytes on the wire, and steps."""

    messages: int = 0
    elements: int = 0
    bytes: int = 0
    rounds: int = 0


class Passed:
    """What passed, counted by checked fields.

    Attributes:
        sizes: of messages of one way and name.
        epochs: of messages of one way, in which epochs they passed.
    """

    def __init__(self) -> None:
        self.sizes: dict[Key, Size] = {}
        self.epochs: dict[Route, set[int]] = {}
        self._valued: set[Route] = set()
        self._last: dict[Key, tuple[int | None, int | None]] = {}

    def add(self, f: Fields) -> None:
        """Count a message."""
        key, when = (f.phase, f.kind, f.name, f.sender, f.receiver), (f.epoch, f.step)
        elements, held = math.prod(f.shape), self.sizes.get(key, Size())
        self.sizes[key] = Size(
            held.messages + 1, held.elements + elements,
            held.bytes + (4 * elements if f.wire_bytes is None else f.wire_bytes),
            held.rounds + int(f.step is None or self._last.get(key) != when),
        )  # fmt: skip
        self._last[key] = when
        self.epochs.setdefault(f.route, set()).update(() if f.epoch is None else (f.epoch,))
        if f.has_values:
            self._valued.add(f.route)

    def have(self, declared: Sequence[Have] = ()) -> list[Have]:
        """What is there: as counted, with what the recorder declared about completeness."""
        said = {h.route: h.epochs for h in declared}
        many: dict[Route, int] = defaultdict(int)
        for (phase, kind, _, sender, receiver), size in self.sizes.items():
            many[Route(kind, sender, receiver, phase)] += size.messages
        found = [
            Have(
                **route._asdict(), messages=many[route], values=route in self._valued,
                epochs="all" if said.get(route) == "all" else sorted(epochs),
            )
            for route, epochs in self.epochs.items()
        ]  # fmt: skip
        return found + [h for h in declared if h.route not in self.epochs]


STOPPED = "recording stopped before the run did"

_OF_ROWS = find_kinds(lambda kind: kind.has_rows)
_OPEN = 64  # batches that may wait for their gradients at a time


def find_gaps(info: ObserverInfo, status: str) -> list[str]:
    """Why an observer's recording lacks messages that passed, a clause each; none if it is whole.

    Args:
        info: of the observer.
        status: of the manifest.
    """
    found = [
        f"{h.kind} messages of phase {h.phase!r} passed and were not recorded"
        for h in info.have if h.epochs == "none"
    ]  # fmt: skip
    if info.complete:
        return found
    if status == "partial":
        return [*found, STOPPED]
    if status == "recording":
        return [*found, "it is not sealed"]
    some: dict[str, list[str]] = defaultdict(list)
    for h in info.have:
        if isinstance(h.epochs, list) and h.kind not in some[h.phase]:
            some[h.phase].append(h.kind)
    found += [
        f"not all {' and '.join(kinds)} messages of phase {phase!r} may have been recorded"
        for phase, kinds in some.items() if kinds
    ]  # fmt: skip
    return found or ["not all messages may have been recorded"]


def find_miscounts(declared: Iterable[Have], there: Iterable[Have]) -> list[str]:
    """Where messages that are there are not as many as an observer's description says.

    Args:
        declared: by the description; of what passed and was not recorded nothing is there.
        there: as counted.
    """

    def by(have: Iterable[Have]) -> dict[Route, int]:
        return {h.route: h.messages for h in have if h.epochs != "none"}

    said, found = by(declared), by(there)
    return [
        f"{k.kind} from {k.sender} to {k.receiver} in {k.phase}: declared {said.get(k, 0)} "
        f"messages, got {found.get(k, 0)}"
        for k in {**said, **found} if said.get(k, 0) != found.get(k, 0)
    ]  # fmt: skip


@dataclass
class _Watcher:
    """Gets every message in the folder of an observer; attacks look at a phase."""

    observer: str
    phase: str


@dataclass
class Unread(_Watcher):
    """Counts messages of rows that no attack can use, of kinds of which others can be used."""

    seen: dict[Way, int] = field(default_factory=lambda: defaultdict(int))
    lost: dict[Way, dict[str, int]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(int))
    )

    def add(self, found: Recorded, used: bool) -> None:
        """Count a message; `used`: it can be folded."""
        f = found.fields
        here = (self.phase, "predict", "eval") if f.kind == "prediction" else (self.phase,)
        if f.kind not in _OF_ROWS or f.n_rows is None or f.phase not in here:
            return
        key = ("sent" if f.sender == self.observer else "received", f.kind)
        self.seen[key] += 1
        if not used:
            why = "are without their numbers" if found.values is None else "name no rows"
            self.lost[key]["were cut off" if f.status != "complete" else why] += 1

    def clauses(self) -> list[str]:
        """What was not looked at, a clause each."""
        return [
            f"{n} of {self.seen[way, kind]} {kind} messages that it {way} {why}, {UNSEEN}"
            for (way, kind), of in self.lost.items()
            for why, n in of.items()
            if sum(of.values()) < self.seen[way, kind]
        ]


class Unanswered(_Watcher):
    """Rows that never got a gradient although others of their batches did: which may tell labels.

    Batches of which nothing came back at all, such as those of an evaluation, tell no rows apart.

    Args:
        observer, phase: as of all watchers.
        rows: how many rows the trace has.
    """

    def __init__(self, observer: str, phase: str, rows: int) -> None:
        super().__init__(observer, phase)
        self.beside, self.answered = np.zeros((2, rows), bool)
        self._sent: dict[tuple[str, int | None, int | None], NDArray[np.int64]] = {}

    def add(self, found: Recorded) -> None:
        """Take in a message."""
        f, rows = found.fields, found.rows
        if rows is None or f.phase != self.phase:
            return
        sends = f.sender == self.observer
        when = (f.receiver if sends else f.sender, f.epoch, f.step)
        if sends and f.kind == "embedding":
            if when not in self._sent and len(self._sent) >= _OPEN:
                self._sent.pop(next(iter(self._sent)))
            more = f.step is not None and when in self._sent  # without a step: the last one
            self._sent[when] = np.concatenate([self._sent[when], rows]) if more else rows
        elif not sends and f.kind == "gradient":
            self.answered[rows] = True
            self.beside[self._sent.get(when, rows)] = True

    def clauses(self) -> list[str]:
        """How many there are, a clause."""
        n = int((self.beside & ~self.answered).sum())
        text = f"{n} rows that it sent never got a gradient, others of their batches did"
        return [f"{text}; {UNSEEN}"] if n else []


class NotFinite:
    """Rows that are left out because they hold NaN or infinity."""

    def __init__(self) -> None:
        self.messages = self.rows = 0
        self.some: dict[str, int] = defaultdict(int)

    def add(self, kind: str, bad: NDArray[np.bool_]) -> None:
        """Count the rows (n,) of a message that are not finite."""
        self.messages, self.rows = self.messages + 1, self.rows + int(bad.sum())
        self.some[kind] += not bad.all()

    def note(self, observer: str) -> list[str]:
        """How many there were, in a sentence."""
        return [
            f"{observer}: {self.rows} rows of {self.messages} messages left out, not finite."
        ] if self.rows else []  # fmt: skip

    def clauses(self) -> list[str]:
        """Where numbers that are none tell rows of a message apart, a clause each.

        A message without any finite number, such as what a scaler makes overflow, tells none apart.
        """
        return [
            f"in {n} {kind} messages only some rows are not finite; {UNSEEN}"
            for kind, n in self.some.items() if n
        ]  # fmt: skip


class Prints:
    """Fingerprints of what an observer received, or sent if nothing came."""

    def __init__(self, observer: str) -> None:
        self.observer = observer
        self.of: dict[str, set[bytes]] = {"received": set(), "sent": set()}

    def add(self, found: Recorded) -> None:
        """Take in a message; one that is the same number everywhere is like others by chance."""
        x = found.values
        if x is None or found.fields.kind not in _OF_ROWS or x.size < 2:
            return
        flat = x.reshape(-1)
        if (flat == flat[0]).all():
            return
        form = hashlib.blake2b(np.ascontiguousarray(flat, np.float32).tobytes(), digest_size=8)
        if found.rows is not None:
            form.update(found.rows.tobytes())
        way = "sent" if found.fields.sender == self.observer else "received"
        self.of[way].add(form.digest())


def find_copies(
    mine: Mapping[str, Prints], other: Mapping[str, Prints]
) -> dict[str, tuple[int, int]]:
    """By observer of two traces, how many of the messages of the smaller one both have, and all.

    Only where that is more than half of them: no two trainings have so much in common.
    """
    out = {}
    for who in mine.keys() & other.keys():
        both = [p[who].of["received"] or p[who].of["sent"] for p in (mine, other)]
        same, most = len(both[0] & both[1]), min(len(b) for b in both)
        if same > most / 2:
            out[who] = (same, most)
    return out


_ROWS, _LEAST = 1024, 100  # rows that are compared at most and at least
_SURE = 4.0  # standard deviations; a bottom model that sees its columns reaches tens and more


def measure_relation(x: Tensor, z: Tensor) -> float:
    """By how many standard deviations RV exceeds its mean over all orders of the rows.

    Args:
        x, z: (n, p) and (n, q), n > 3.

    Returns:
        NaN where a table has the same rows everywhere.
    """
    n = len(x)
    k, el = (_gram(t) for t in (x, z))
    kk, ll = float((k * k).sum()), float((el * el).sum())
    if min(kk, ll) <= 0:
        return math.nan
    rv = float((k * el).sum()) / math.sqrt(kk * ll)
    (bx, tx), (bz, tz) = _shape(k, kk, n), _shape(el, ll, n)
    mean = math.sqrt(bx * bz) / (n - 1)
    spread = 2 * (n - 1 - bx) * (n - 1 - bz) / ((n + 1) * (n - 1) ** 2 * (n - 2))
    variance = spread * (1 + (n - 3) / (2 * n * (n - 1)) * tx * tz)
    return (rv - mean) / math.sqrt(variance) if variance > 0 else math.nan


def _gram(x: Tensor) -> Tensor:
    flat = x.flatten(1).double()
    flat = flat - flat.mean(0)
    flat = flat / flat.square().mean().sqrt().clamp_min(1e-300)
    return flat @ flat.T


def _shape(k: Tensor, kk: float, n: int) -> tuple[float, float]:
    """(beta, tau) of a Gram matrix, with which the moments are written."""
    beta = float(k.trace()) ** 2 / kk
    inner = n * (n + 1) * float(k.diagonal().square().sum()) / kk - (n - 1) * (beta + 2)
    rest = n - 1 - beta
    return beta, (n - 1) / ((n - 3) * rest) * inner if rest > 1e-9 else 0.0


class _Kept:
    """Sum, number and last of the embeddings of the first 1,024 rows that came."""

    def __init__(self, width: int) -> None:
        self.ids = np.empty(0, np.int64)
        self.total, self.last = np.zeros((2, _ROWS, width))
        self.count = np.zeros(_ROWS, np.int64)

    def add(self, rows: NDArray[np.int64], values: NDArray[Any]) -> None:
        room = _ROWS - len(self.ids)
        if room:
            fresh = rows[~np.isin(rows, self.ids)]
            fresh = fresh[np.sort(np.unique(fresh, return_index=True)[1])][:room]
            self.ids = np.concatenate([self.ids, fresh])
        order = np.argsort(self.ids)
        place = np.searchsorted(self.ids, rows, sorter=order).clip(max=len(order) - 1)
        slot = order[place]
        mine = self.ids[slot] == rows
        slot, wide = slot[mine], values.reshape(len(values), -1)[mine]
        np.add.at(self.total, slot, wide)
        np.add.at(self.count, slot, 1)
        self.last[slot] = wide


@dataclass
class Sent(_Watcher):
    """The embeddings that an observer sent in a phase, of up to 1,024 rows of each name.

    Their mean over epochs is compared with own columns, and the last ones: noise that is drawn anew
    in every epoch averages out, and what the last ones tell earlier ones may contradict.
    """

    kept: dict[str, _Kept] = field(default_factory=dict)

    def add(self, found: Recorded) -> None:
        """Take in a message."""
        f = found.fields
        if (f.kind, f.sender, f.phase) != ("embedding", self.observer, self.phase):
            return
        if found.rows is None or found.values is None or not len(found.rows):
            return
        width = found.values[0].size
        kept = self.kept.setdefault(f.name, _Kept(width))
        if kept.total.shape[1] == width:
            kept.add(found.rows, found.values)

    def clauses(self, own: tuple[Tensor, Tensor] | None) -> list[str]:
        """That the embeddings of a name have nothing to do with own columns, a clause each.

        Args:
            own: columns (N, ...) and which rows are held (N,); None if there are none.
        """
        out = []
        for name, kept in self.kept.items() if own is not None else ():
            assert own is not None
            rows = torch.from_numpy(kept.ids)
            at = own[1][rows].nonzero().squeeze(1)
            if len(at) < _LEAST:
                continue
            mean = kept.total[: len(rows)] / kept.count[: len(rows), None]
            tables = (torch.from_numpy(z)[at] for z in (mean, kept.last[: len(rows)]))
            score = max(measure_relation(own[0][rows[at]], z) for z in tables)
            if score < _SURE:
                which = f"embeddings named {name!r}" if name else "embeddings"
                out.append(
                    f"{which} do not match its own columns "
                    f"({len(at)} rows, RV {score:+.1f} standard deviations from random order): is "
                    "each column in the order of 'rows'?"
                )
        return out


class Watch:
    """Gets the messages of an observer as they are read, for attacks that look at one moment.

    Args:
        info: of the observer.
        moment: at which attacks look.
        rows: how many rows the trace has.

    Attributes:
        looked: what attacks look at, counted.
        prints: fingerprints of that.
    """

    def __init__(self, info: ObserverInfo, moment: Moment, rows: int) -> None:
        self.info, self.moment, self.last = info, moment, moment is info.moments[-1]
        self.looked, self.prints = Passed(), Prints(info.party)
        self._seen, self._late = Passed(), 0
        self._unread = Unread(info.party, moment.phase)
        self._sent = Sent(info.party, moment.phase)
        self._unanswered = Unanswered(info.party, moment.phase, rows)

    def over(self, i: int) -> bool:
        """Whether nothing is left to be read when the message number `i` comes."""
        return i >= self.moment.messages and not self.last

    def looks(self, i: int, found: Recorded) -> bool:
        """Count the message number `i`; whether attacks look at it."""
        self._seen.add(found.fields)
        self._late += i >= self.moment.messages and found.fields.phase == self.moment.phase
        return i < self.moment.messages

    def add(self, found: Recorded, used: bool) -> None:
        """Take in a message that attacks look at; `used`: it can be folded."""
        self.looked.add(found.fields)
        self._unread.add(found, used)
        for one in (self.prints, self._sent, self._unanswered):
            one.add(found)

    def clauses(
        self, status: str, *, sealed: bool, ours: bool, own: tuple[Tensor, Tensor] | None
    ) -> list[str]:
        """Why the recording carries no pass, a clause each; none if attacks saw all that passed.

        Args:
            status: of the manifest.
            sealed: the trace is.
            ours: it is of our own simulation, whose rows are in order.
            own: columns (N, ...) and which rows are held (N,); None if there are none.
        """
        phase = self.moment.phase
        late = f"{self._late} messages came after phase {phase!r}, {UNSEEN}"
        odd = find_miscounts(self.info.have, self._seen.have()) if sealed and self.last else []
        strange = [] if ours else [*self._sent.clauses(own), *self._unanswered.clauses()]
        return [
            *find_gaps(self.info, status), *self._unread.clauses(),
            *([late] if self._late else []), *odd, *strange,
        ]  # fmt: skip
