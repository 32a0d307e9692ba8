"""The one door between parties: it cuts the graph, applies policies, counts, records, delivers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vflsec.core.exchange_order import EXCHANGES, Step, align_exchanges, append_predicted
from vflsec.core.message import Message
from vflsec.core.message_kinds import KINDS, find_kinds
from vflsec.core.policy_binding import Binding
from vflsec.core.privacy_usage import Counter, lend_labels
from vflsec.core.recorder_stores import All, Centred, Dense
from vflsec.core.shared_tables import SharedTables
from vflsec.core.step_sampling import Spread
from vflsec.core.traffic_ledger import Ledger
from vflsec.core.view import Need, Table, Update, join_in_turn, join_side_by_side
from vflsec.errors import ConfigError, PolicyError
from vflsec.nn.manual_backprop import is_noted

Key = tuple[str, str, str, str]
Tap = Callable[[Message, Tensor | None, Sequence[str]], None]
"""Called with a delivered message, which replicas still train (None = all), and for which ends
(``received``, ``sent``) it is; see :attr:`Recorder.taps`."""


def store_of(form: str) -> str:
    """The form in which one recorder's store has what was asked for in this one."""
    return form.removesuffix("+").replace("centred", "mean")


_COME_AGAIN = find_kinds(lambda kind: kind.comes_again)


class Recorder:
    """Keeps the union of what some attack needs, and nothing more.

    Gradients of a mean loss are kept multiplied by their batch size (``Message.scale``), which
    every party knows, so that rows of batches of different size compare. Where numbers of one kind
    travel under several names within a phase, a table keeps those of the name that came first:
    payloads of different blocks have different widths and meanings. Gradients of other names, and
    with `towers` all numbers, stand beside them, as large, if of the same rows at the same steps.
    A message with rows that came before in its step counts as named ``NAME#2``, up to
    :data:`EXCHANGES`; see :func:`vflsec.core.exchange_order.align_exchanges` for how it stands in
    tables: of gradients in every form, of others in those that end with a plus.

    Args:
        wanted: (party, way, kind, form) with way ``received`` or ``sent``, or ``own`` for the
            party's own optimisation steps.
        replicas, rows: R and N.
        towers: look at messages of every name.
        asked: by what is wanted (:func:`store_of` its form) the places r N + row (m,), ascending,
            of which alone messages are kept; all rows of what is not named.

    Attributes:
        taps: told every message as it passes, whether or not it is kept here.
        expected: how many rows will pass at most, by (phase, way, kind, peer), where that is known;
            memory for the form ``all`` is then taken once.
        left_out: (kind, name) of what stands beside nothing in tables; passed: of other names.
    """

    def __init__(
        self, wanted: Sequence[Key] = (), replicas: int = 1, rows: int = 0, *,
        towers: bool = False, asked: Mapping[Key, Tensor] = MappingProxyType({}),
    ) -> None:  # fmt: skip
        self.towers, self.asked = towers, asked
        self.left_out: set[tuple[str, str]] = set()
        self.passed: set[tuple[str, str]] = set()
        self.wanted = frozenset(wanted)
        self.replicas, self.n = replicas, rows
        self.taps: list[Tap] = []
        self.expected: Mapping[tuple[str, str, str, str], int] = {}
        self.stores: dict[tuple[str, str, str, str, str, str], Dense | Centred | All] = {}
        self._names: dict[tuple[str, str, str, str, str, str], str] = {}
        self._by: dict[tuple[str, str, str], list[str]] = {}
        self._steps: dict[tuple[str, ...], Step] = {}
        self.observed: dict[str, set[str]] = {}
        self._kinds: set[str] = set()
        self._updates: dict[tuple[str, str], list[tuple[Update, Tensor | None]]] = {}
        self._spread: dict[tuple[str, str], Spread] = {}
        self._made: SharedTables[Key] = SharedTables()
        for party, way, kind, form in sorted(self.wanted):
            if way == "own":
                self.observed.setdefault(party, set()).add(form)
            elif (party, way, kind, f"{form}+") not in self.wanted:  # which holds it
                self._by.setdefault((party, way, kind), []).append(form)
                self._kinds.add(kind)

    @staticmethod
    def wants(party: str, need: Need) -> Key | None:
        """What to keep for a need of an adversary's party, or None if nothing passes by for it."""
        if need.what == "parameter_gradient":
            return (party, "own", need.what, need.form or "first")
        if not need.kind:
            return None
        return (party, "sent" if need.sent else "received", need.kind, need.form or "all")

    def add(
        self,
        message: Message,
        alive: Tensor | None,
        ways: Sequence[str] = ("received", "sent"),
        *,
        timed: bool = True,
    ) -> None:
        """Keep a delivered message for those who want it; of inference, predictions only.

        `timed`: its step is known, so that the second message of a step is told from a later one.
        """
        for tap in self.taps:
            tap(message, alive, ways)
        if not self._by or (message.phase == "predict" and message.kind != "prediction"):
            return
        if message.kind not in self._kinds and message.kind not in _COME_AGAIN:
            return
        if KINDS[message.kind].is_encrypted:  # all there is, is its size
            size = torch.full((self.replicas, 1), message.tensor.shape[-1], dtype=torch.int64)
            message = replace(message, tensor=size, rows=None)
        for name, part, of in self._parts(message, alive, ways if timed else ()):
            self._keep(name, part, of, ways)

    def _keep(self, name: str, message: Message, alive: Tensor | None, ways: Sequence[str]) -> None:
        """Keep what a step brought for the same time about its rows, under this name."""
        if name == f"{message.name}#{EXCHANGES + 1}":
            self.left_out.add((message.kind, name))
            return
        ends = ((message.receiver, "received", message.sender),
                (message.sender, "sent", message.receiver))  # fmt: skip
        whole = self.towers or message.kind == "gradient"
        for party, way, peer in ends:
            if way == "sent" and KINDS[message.kind].opened_by == "receiver":
                continue
            forms = self._by.get((party, way, message.kind), ()) if way in ways else ()
            plus = [f for f in forms if f.endswith("+")]
            for form in forms:
                key = (message.phase, party, way, message.kind, form, peer)
                first = self._names.setdefault(key, name)
                asked = self.asked.get((party, way, message.kind, store_of(form)))
                if name != first and message.tensor.is_floating_point():
                    if not whole and form not in plus:
                        if not plus:
                            self.passed.add((message.kind, name))
                        continue
                    if asked is not None:  # how large they are beside the first, all rows tell
                        raise _several(message.kind, party)
                    key = (*key[:-1], f"{peer}/{name}")
                if key not in self.stores:
                    bare = form.removesuffix("+")
                    dense = bare != "all" and message.rows is not None
                    most = self.expected.get((message.phase, way, message.kind, peer), 0)
                    beside = (*key[:4], form.replace("centred", "mean"), key[5])
                    self.stores[key] = (
                        All(self.n, most, refines=KINDS[message.kind].refines, asked=asked)
                        if not dense
                        else Centred(
                            self.replicas, self.n, partial(self.stores.get, beside), asked
                        )
                        if bare == "centred" else Dense(bare, self.replicas, self.n, asked)
                    )  # fmt: skip
                self.stores[key].add(message, alive)
                self._made.clear()

    def _parts(
        self, message: Message, alive: Tensor | None, ways: Sequence[str]
    ) -> list[tuple[str, Message, Tensor | None]]:
        """A message by the exchange of its step that it is of: (name, message, replicas)."""
        name, rows = message.name, message.rows
        if message.kind not in _COME_AGAIN or rows is None or not ways:
            return [(name, message, alive)]
        key = (*ways, message.kind, message.phase, message.sender, message.receiver, name)
        step = self._steps.setdefault(key, Step(self.n))
        turn = step.turn((message.epoch, message.step), rows, alive)
        if turn is None:
            return [(name, message, alive)]
        each = (turn if alive is None else turn[alive.to(turn.device)]).unique().tolist()
        return [
            (
                f"{name}#{t}" if t > 1 else name, message,
                alive if len(each) == 1 else (turn == t) & (True if alive is None else alive),
            )
            for t in each
        ]  # fmt: skip

    def add_update(
        self, party: str, phase: str, epoch: int, step: int, rows: Tensor,
        gradients: Mapping[str, Tensor], weights: Mapping[str, Tensor], alive: Tensor | None,
    ) -> None:  # fmt: skip
        """Keep an own optimisation step of an observed party, if some form has its epoch."""
        kept, forms = epoch == 0, self.observed[party]
        if "all" in forms:
            kept = True
        elif "spread" in forms:
            held = [v[0] for of in (gradients, weights) for v in of.values()]
            kept = self._spread.setdefault((phase, party), Spread()).takes(epoch, step, held)
        if not kept:
            return
        update = Update(
            epoch, step, rows,
            {k: v.detach().clone() for k, v in gradients.items()},
            {k: v.detach().clone() for k, v in weights.items()},
        )  # fmt: skip
        self._updates.setdefault((phase, party), []).append((update, alive))

    def updates(self, r: int, parties: Sequence[str], phase: str) -> dict[str, list[Update]]:
        """Replica `r`'s recorded optimisation steps of one phase by party, as copies."""
        return {
            party: [
                Update(
                    u.epoch, u.step, u.rows[r].clone(),
                    {k: v[r].clone() for k, v in u.gradients.items()},
                    {k: v[r].clone() for k, v in u.weights.items()},
                )
                for u, alive in kept
                if alive is None or bool(alive[r])
            ]
            for (at, party), kept in self._updates.items()
            if at == phase and party in parties
        }  # fmt: skip

    def _hear(
        self, r: int, parties: Sequence[str], phase: str, *, has_key: bool
    ) -> dict[tuple[str, ...], list[tuple[str, Table]]]:
        """Replica `r`'s tables of one phase by (phase, party, way, kind, form, peer), with names.

        What only the key opens is in none of parties without it.
        """
        heard: dict[tuple[str, ...], list[tuple[str, Table]]] = {}
        made: dict[int, Table] = {}
        for (at, party, way, kind, form, end), store in self.stores.items():
            locked = KINDS[kind].opened_by == "key" and not has_key
            if at in (phase, "predict") and party in parties and not locked:
                peer, _, name = end.partition("/")
                key = (at, party, way, kind, form, peer)
                origin = store.origin()
                if id(origin) not in made:
                    made[id(origin)] = origin.table(r)
                heard.setdefault(key, []).append((name, made[id(origin)]))
        return heard

    def forget(self, phase: str, wanted: Collection[Key]) -> None:
        """Drop what was kept of a phase and none of those who are still to come asks for."""
        for key in [k for k in self.stores if k[0] == phase]:
            if not {key[1:5], (*key[1:4], key[4].removesuffix("+"))} & set(wanted):
                del self.stores[key]

    def tables(
        self, r: int, parties: Sequence[str], phase: str, servers: Collection[str] = ()
    ) -> dict[Key, Table]:
        """Replica `r`'s tables of one phase for an adversary: (way, kind, form, party) -> Table.

        What came from several peers stands side by side, in the order in which they first spoke.
        Predictions that were returned to it belong to every phase. Where a form with a plus was
        asked for, ``last#2`` is the second exchange of each peer by itself (the first of those that
        have no second), and so on. `servers` are those who hold the key. Who asks again gets the
        same numbers.
        """
        has_key = bool(set(servers) & set(parties))
        who = (*parties, phase, has_key)
        found = self._made.get(who, r)
        if found is None:
            found = self._join(self._hear(r, parties, phase, has_key=has_key), phase)
            self._made.put(who, r, found)
        return dict(found)

    def _join(
        self, heard: Mapping[tuple[str, ...], list[tuple[str, Table]]], phase: str
    ) -> dict[Key, Table]:
        """What :meth:`_hear` found as tables of an adversary."""
        found: dict[tuple[bool, Key], list[Table]] = {}
        apart: dict[tuple[bool, Key], list[list[Table]]] = {}
        for (at, party, way, kind, form, _), said in heard.items():
            late = at != phase
            bare = form.removesuffix("+")
            near, far = align_exchanges(said, bare)
            self.left_out |= {(kind, name) for name in far}
            alone = near if self.towers or kind == "gradient" else [said[0][1]]
            found.setdefault((late, (way, kind, bare, party)), []).extend(alone)
            if form != bare:
                found.setdefault((late, (way, kind, form, party)), []).extend(near)
                each = apart.setdefault((late, (way, kind, bare, party)), [])
                each.append([t for _, t in said])
        for (late, (way, kind, bare, party)), peers in apart.items():
            for k in range(1, max(map(len, peers))):
                at_k = [of[k] if k < len(of) else of[0] for of in peers]
                found[late, (way, kind, f"{bare}#{k + 1}", party)] = at_k
        out: dict[Key, Table] = {}
        for late, key_of in sorted(found, key=lambda of: of[0]):
            whole = _join_peers(key_of[1], found[late, key_of])
            out[key_of] = (
                append_predicted(out[key_of], whole, key_of[2]) if key_of in out else whole
            )
        return out


def _several(kind: str, party: str) -> ConfigError:
    what, got = "audit.messages", f"several {kind} messages of a row in one step, at {party}"
    return ConfigError.must(what, "be 'all' here", got, 'Set messages = "all" under [audit].')


def _join_peers(kind: str, tables: list[Table]) -> Table:
    """What came from several peers side by side; of no single rows, from those who sent some.

    Where one of them sent such a message again, of the steps in which all did. Of a kind that
    refines, such as nodes of trees, each peer names rows of its own: all are one list.
    """
    if KINDS[kind].refines:
        return tables[0] if len(tables) == 1 else join_in_turn(tables)
    if not KINDS[kind].has_rows:
        tables = [t for t in tables if len(t)] or tables[:1]
        if any(len(t.rows.unique()) < len(t) for t in tables):
            for other in tables[1:]:
                tables = [t.take(torch.isin(t.step, other.step)) for t in tables]
            tables = [t.take(torch.isin(t.step, tables[0].step)) for t in tables]
    return tables[0] if len(tables) == 1 else join_side_by_side(tables)


class _Passed(NamedTuple):
    """A message that was delivered, and how often it had been changed in place by then."""

    tensor: Tensor
    version: int


class Channel:
    """Carries messages. Nothing else may cross a party boundary.

    Args:
        bindings: each party's policies in order.
        recorder, ledger: where messages are kept and counted.
    """

    def __init__(
        self,
        bindings: Mapping[str, Sequence[Binding]],
        recorder: Recorder,
        ledger: Ledger,
    ) -> None:
        self.bindings = bindings
        self.recorder, self.ledger = recorder, ledger
        self.alive = np.ones(ledger.replicas, dtype=np.int64)
        self.alive_mask: Tensor | None = None
        self.derived: set[tuple[str, str, str]] = set()
        self._last: dict[tuple[str, str, str, str], _Passed] = {}

    def set_alive(self, alive: Tensor) -> None:
        """Which replicas still train; the others' messages are neither counted nor kept."""
        self.alive = alive.cpu().numpy().astype(np.int64)
        self.alive_mask = None if bool(alive.all()) else alive.clone()
        for counter in self._counters():
            counter.alive = self.alive_mask

    @contextmanager
    def only(self, replicas: Sequence[int]) -> Iterator[None]:
        """Meanwhile messages are of these replicas alone; the others' are not counted or kept."""
        alive, mask = self.alive, self.alive_mask
        self.alive = np.zeros_like(alive)
        self.alive[list(replicas)] = alive[list(replicas)]
        self.alive_mask = torch.from_numpy(self.alive > 0)
        self.ledger.begin_turn()
        try:
            yield
        finally:
            self.alive, self.alive_mask = alive, mask

    def _counters(self, of: Collection[str] = ()) -> Iterator[Counter]:
        """Those of some parties, or of all."""
        for name, bound in self.bindings.items():
            for b in bound if not of or name in of else ():
                if b.own.uses is not None:
                    yield b.own.uses

    def begin(self, phase: str, epochs: int) -> None:
        """A phase of so many planned epochs begins; policies' counts go under its name."""
        for counter in self._counters():
            counter.phase = phase
            counter.planned[phase] = counter.planned.get(phase, 0) + epochs

    def end(self, phase: str, ran: Tensor, epochs: int, judged: Collection[str] = ()) -> None:
        """A phase has ended after `ran` (R,) of its planned epochs.

        Where parties `judged` it at home, that tells of what their own policies saw in it.
        """
        for counter in self._counters(judged):
            if not judged or phase in counter.phases:
                counter.stop(phase, ran, epochs)

    def send(self, message: Message, labels: Tensor | None = None, **context: Any) -> Tensor:
        """Deliver a message and return what the receiver may use, without a gradient graph.

        `labels` (R, b) and `context` are what the sender itself has; they go to its policies only.

        Raises:
            PolicyError: a policy cannot treat the message, or changed its shape, dtype or device.
        """
        out = self.treat(message, labels, **context)
        self._unchanged(out)
        self.ledger.count(out, self.alive)
        self.recorder.add(out, self.alive_mask)
        delivered = out.tensor
        for b in self.bindings.get(message.receiver, ()):
            if b.policy.overrides("incoming"):
                hook = partial(b.policy.incoming, out, b.own)
                delivered = b.treated(f"a message ({out.kind}) it got", out.tensor, hook).detach()
        return delivered

    def _unchanged(self, message: Message) -> None:
        """Look whether the last message of the kind is as it was sent, and note this one.

        It may lie in the record, or be used by the receiver still.

        Raises:
            PolicyError: the last one was changed.
        """
        key = (message.sender, message.receiver, message.kind, message.name)
        before = self._last.get(key)
        if before is not None and before.tensor._version != before.version:
            what = f"a message ({message.kind} from {message.sender} to {message.receiver})"
            raise PolicyError(f"{what} was changed after it was sent. Send a new tensor each time.")
        self._last[key] = _Passed(message.tensor, message.tensor._version)

    def treat(self, message: Message, labels: Tensor | None = None, **context: Any) -> Message:
        """The message as it leaves its sender: cut from the graph, after the sender's policies."""
        x = message.tensor
        bare = not (x.requires_grad or is_noted(x) or message.policies)
        out = message if bare else replace(message, tensor=x.detach(), policies=())
        done: tuple[Counter, ...] = ()
        for b in self.bindings.get(message.sender, ()):
            if out.kind in b.policy.reveals and b.own.uses is not None:
                b.own.uses.passed(f"{out.kind} messages carry the row past it")
            if out.kind in b.policy.covers:
                if b.own.uses is not None and b.policy.counted == "outgoing":
                    self._count(b, out)
                b.own.labels, b.own.context = (
                    lend_labels(labels, message.rows, b.own.active, done),
                    context,
                )
                given = out.tensor
                changed = b.treated(
                    f"a message ({out.kind})", given,
                    partial(_call_outgoing, b, out), out.phase, out.epoch,
                )  # fmt: skip
                b.own.labels, b.own.context = None, {}
                b.note(out, changed)
                out = out.with_tensor(changed, b.policy.name)
                if b.own.uses is not None and b.policy.counted == "outgoing":
                    b.own.uses.untouched(f"{out.kind} messages", given, changed, b.own.strength > 0)
                    done = (*done, b.own.uses)
        return out

    def _count(self, binding: Binding, message: Message) -> None:
        """One use of every row of a message, and of the rows that its sender mixed into them."""
        counter = binding.own.uses
        assert counter is not None
        if message.rows is None:
            counter.passed(f"{message.kind} messages of no single rows pass")
            return
        counter.add(message.rows, message.phase)
        if message.phase == "predict":
            return
        for b in self.bindings.get(message.sender, ()):
            mixed = b.policy.carries(message.rows) if b.policy.overrides("carries") else None
            if mixed is not None:
                on = torch.tensor(b.own.active, device=mixed.device)
                flat = mixed.flatten(1)
                counter.add(flat, message.phase, on=on.unsqueeze(1).expand_as(flat))

    def derive(self, message: Message, *, own: bool = False) -> None:
        """Record for one party alone what it has in the clear although it did not cross so.

        The receiver's, worked out of delivered messages and own secrets; with `own` the sender's,
        which sent it encrypted.
        """
        if not own:
            self.derived.add((message.kind, message.sender, message.receiver))
        self.recorder.add(message, self.alive_mask, ways=("sent" if own else "received",))


def _call_outgoing(binding: Binding, message: Message) -> Tensor:
    changed = binding.call("outgoing", message)
    return check_same_form(binding.policy.name, message.tensor, changed)


def check_same_form(name: str, before: Tensor, after: Any) -> Tensor:
    """What a policy made of a message, if it has the same shape, dtype and device.

    Raises:
        PolicyError: it has not.
    """
    if not isinstance(after, Tensor):
        raise PolicyError.must(name, "return a tensor", type(after).__name__)
    if (before.shape, before.dtype, before.device) != (after.shape, after.dtype, after.device):
        rule, got = (f"{tuple(x.shape)} {x.dtype} {x.device}" for x in (before, after))
        raise PolicyError.must(name, f"keep shape, dtype and device {rule}", got)
    return after.detach()
