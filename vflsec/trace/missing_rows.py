"""What a trace does not show, by its own account: a leak that is found stands, no PASS does."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vflsec.core.message_kinds import find_kinds
from vflsec.trace.manifest import Have, Moment, ObserverInfo
from vflsec.trace.message import Recorded, Route
from vflsec.trace.seal import Passed, count_message, describe_have

__all__ = [
    "Late",
    "NotFinite",
    "Prints",
    "Unanswered",
    "Unread",
    "find_copies",
    "find_gaps",
    "find_miscounts",
]  # fmt: skip

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
        return [*found, "recording stopped before the run did"]
    if status == "recording":
        return [*found, "it is not sealed"]
    some: dict[str, list[str]] = defaultdict(list)
    for h in info.have:
        if isinstance(h.epochs, list) and h.kind not in some[h.phase]:
            some[h.phase].append(h.kind)
    found += [
        f"nothing says that all {' and '.join(kinds)} messages of phase {phase!r} were recorded"
        for phase, kinds in some.items() if kinds
    ]  # fmt: skip
    return found or ["nothing says that all that passed was recorded"]


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
        f"messages, {found.get(k, 0)} are there"
        for k in {**said, **found} if said.get(k, 0) != found.get(k, 0)
    ]  # fmt: skip


class Late:
    """Messages of a phase after the moment at which attacks look, where no other moment follows.

    Args:
        info: of the observer.
        moment: at which attacks look.
    """

    def __init__(self, info: ObserverInfo, moment: Moment) -> None:
        self.moment, self.last = moment, moment is info.moments[-1]
        self.seen: dict[Route, Passed] = {}
        self.late = 0
        self.have = info.have

    def over(self, i: int) -> bool:
        """Whether nothing is left to be read when the message number `i` comes."""
        return i >= self.moment.messages and not self.last

    def add(self, i: int, found: Recorded) -> bool:
        """Count a message; whether attacks look at it."""
        count_message(self.seen, found.fields)
        self.late += i >= self.moment.messages and found.fields.phase == self.moment.phase
        return i < self.moment.messages

    def clauses(self, *, sealed: bool) -> list[str]:
        """What of it no attack looked at, and what is not as declared, a clause each."""
        phase = self.moment.phase
        late = [
            f"{self.late} messages of phase {phase!r} came after the moment at which attacks look"
        ] if self.late else []  # fmt: skip
        odd = (
            find_miscounts(self.have, describe_have(self.seen, ())) if sealed and self.last else []
        )
        return [*late, *odd]


class Unread:
    """Counts messages of rows that no attack can use, of kinds of which others can be used.

    Args:
        observer: whose folder they are in.
        phase: that attacks look at.
    """

    def __init__(self, observer: str, phase: str) -> None:
        self.observer, self.phase = observer, phase
        self.seen: dict[tuple[str, str], int] = defaultdict(int)
        self.lost: dict[tuple[str, str], dict[str, int]] = defaultdict(lambda: defaultdict(int))

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
            why = "were cut off" if f.status != "complete" else why
            self.lost[key][why] += 1

    def clauses(self) -> list[str]:
        """What was not looked at, a clause each."""
        return [
            f"{n} of {self.seen[way, kind]} {kind} messages that it {way} {why}, and no attack "
            "looked at them"
            for (way, kind), of in self.lost.items()
            for why, n in of.items()
            if sum(of.values()) < self.seen[way, kind]
        ]


class Unanswered:
    """Rows that never got a gradient although others of their batches did: which may tell labels.

    Batches of which nothing came back at all, such as those of an evaluation, tell no rows apart.

    Args:
        observer: whose folder the messages are in.
        phase: that attacks look at.
        rows: how many rows the trace has.
    """

    def __init__(self, observer: str, phase: str, rows: int) -> None:
        self.observer, self.phase = observer, phase
        self.beside, self.answered = np.zeros(rows, bool), np.zeros(rows, bool)
        self._sent: dict[tuple[Any, ...], NDArray[np.int64]] = {}

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
        return [
            f"{n} rows that it sent never got a gradient although others of their batches did, and "
            "no attack looked at which"
        ] if n else []  # fmt: skip


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
            f"in {n} {kind} messages some rows are not finite and others are, and no attack looked "
            "at which"
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
