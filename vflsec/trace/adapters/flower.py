"""Flower (flwr 1.41): a client mod and a server tap that record what crosses.

    from vflsec.trace.adapters import flower

    app = ClientApp(mods=[flower.recorder("trace/", party="bank", rows=N, ids="all")])

The first mod of a list is the outermost one: it sees what leaves and what arrives. Embeddings leave
in replies; gradients arrive in messages of their own, for which no reply is awaited
(``push_messages``), perhaps in another process and after the next query. They belong to an
embedding if both messages carry the same step, in a ``ConfigRecord`` or as number of the group;
otherwise their pair is written as unknown. Nothing of Flower is imported here.
Source: Flower 1.41, ``flwr/clientapp/typing.py`` (mods), ``flwr/serverapp/grid`` (Grid).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from vflsec.core import check
from vflsec.errors import ConfigError
from vflsec.trace.adapters.base import Wire, version_of

EMBEDDING = "arrays/embedding"
GRADIENT = "gradients/local-gradients"
Ids = str | Callable[[Any, Any], Any] | None
Party = str | Callable[[Any], str | Mapping[str, Any]]


def arrays_of(message: Any) -> dict[str, Any]:
    """Arrays of a message as ``"record/key"``; none if it carries an error or nothing."""
    if message is None or not message.has_content():
        return {}
    return {
        f"{name}/{key}": array
        for name, record in message.content.array_records.items()
        for key, array in record.items()
    }


def step_of(message: Any, key: str) -> int | None:
    """What a message says its step is: `key` in a ``ConfigRecord``, else the group's number."""
    if message is None:
        return None
    if message.has_content():
        for record in message.content.config_records.values():
            value = record.get(key)
            if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
                return value
    group = message.metadata.group_id
    return int(group) if isinstance(group, str) and group.isascii() and group.isdigit() else None


class _Tap:
    """Which arrays of a message are what."""

    def __init__(self, embedding: str, gradient: str, ids: Ids, step: str) -> None:
        for name, path in (("embedding", embedding), ("gradient", gradient)):
            if not isinstance(path, str) or path.count("/") != 1 or path.strip("/") != path:
                rule = "'record/key', as the app names the array"
                raise check.fail(f"flower: {name}", rule, path)
        if not callable(ids) and ids is not None:
            check.one_of("flower: ids", ids, ("all",))
        self.paths = {"embedding": embedding, "gradient": gradient}
        self.ids, self.step = ids, step
        self.framework = ("flwr", version_of("flwr", "flower"))

    def wire(self, folder: str | Path, how: Mapping[str, Any]) -> Wire:
        """Where a party's messages are recorded, in this process."""
        adapter = "vflsec.trace.adapters.flower"
        return Wire.at(folder, framework=self.framework, adapter=adapter, **how)

    def carries(self, message: Any, kind: str) -> bool:
        """Whether a message has the array of `kind`."""
        return self.paths[kind] in arrays_of(message)

    def passed(
        self, wire: Wire, kind: str, message: Any, context: Any, *, sent: bool, asked: Any = None,
        peer: str = "",
    ) -> None:  # fmt: skip
        """Record the array of `kind` if a message carries it; `asked` is what it replies to."""
        found = arrays_of(message).get(self.paths[kind])
        if found is None:
            return
        step = step_of(message, self.step)
        step = step_of(asked, self.step) if step is None else step
        ids = self.ids(message.content, context) if callable(self.ids) else self.ids
        about = (message if asked is None else asked).metadata.message_type
        phase = "eval" if about.split(".")[0] == "evaluate" else "train"
        wire.tell(kind, found.numpy(), ids, sent=sent, step=step, phase=phase, peer=peer)


def _simulated_node(context: Any) -> str:
    """Which of several nodes of a simulation this is, by its partition; '' of a single one.

    One app serves all nodes of a simulation; what they saw under one name would be one party's.
    """
    config = getattr(context, "node_config", None) or {}
    several = int(config.get("num-partitions", 1)) > 1
    return str(config.get("partition-id", "")) if several else ""


class Recorder:
    """A client mod; made by :func:`recorder`. It travels to worker processes with its app."""

    def __init__(self, folder: str | Path, party: Party, tap: _Tap, how: Mapping[str, Any]) -> None:
        self.folder, self.party, self.tap, self.how = Path(folder), party, tap, dict(how)
        if isinstance(party, str):
            self.wire(None)

    def wire(self, context: Any) -> Wire | None:
        """Where the party of `context` records, in this process; None if it does not."""
        shared = not isinstance(self.party, str)
        named = self.party(context) if callable(self.party) else self.party
        own: dict[str, Any] = {"party": named} if isinstance(named, str) else dict(named)
        if not own.get("party"):
            return None
        if not shared and (node := _simulated_node(context)):
            own["party"], shared = f"{own['party']}{node}", True
        folder = own.pop("folder", self.folder / own["party"] if shared else self.folder)
        node = str(getattr(context, "node_id", None) or "")
        return self.tap.wire(folder, {"role": "passive", "node": node} | self.how | own)

    def __call__(
        self, message: Any, context: Any, call_next: Callable[[Any, Any], Any]
    ) -> Any:  # fmt: skip
        """The gradient as it arrives, the answer of the app, the embedding as it leaves."""
        wire = self.wire(context)
        if wire is not None:
            self.tap.passed(wire, "gradient", message, context, sent=False)
        reply = call_next(message, context)
        if wire is not None:
            self.tap.passed(wire, "embedding", reply, context, sent=True, asked=message)
        return reply


def recorder(
    folder: str | Path,
    *,
    party: Party,
    ids: Ids = None,
    embedding: str = EMBEDDING,
    gradient: str = GRADIENT,
    step: str = "step",
    **how: Any,
) -> Recorder:
    """A client mod that records the embeddings a passive party sends and the gradients it gets.

    Put it first: ``ClientApp(mods=[recorder(...), ...])``. After the run:
    ``vflsec trace seal FOLDER --ended``.

    Args:
        folder: of the trace; of a folder for each party where one app serves several.
        party: its name. Each node of a simulation is a party of its own, by its partition: "bank0",
            "bank1". A function of the ``Context`` may return the name instead (empty: not
            recorded), or a mapping of arguments of `vflsec.record` with ``party``, and ``folder``
            if its trace shall lie elsewhere.
        ids: rows of a message: ``"all"`` if each holds all rows in the order of `rows`; a function
            of its ``RecordDict`` and the ``Context``; None if they are not known.
        embedding, gradient: ``"record/key"`` of the arrays, as the app names them.
        step: key of a ``ConfigRecord`` that says the step; a number in ``group_id`` is used where
            no message has that key.
        how: as for `vflsec.record`: ``rows``, ``columns``, ``known``, ``loss_reduction``, ...

    Raises:
        ConfigError: Flower is not installed, or an argument cannot be used.
    """
    return Recorder(folder, party, _Tap(embedding, gradient, ids, step), how)


class ServerTap:
    """A ``Grid`` that records what comes to the label party and what leaves it.

    ``grid = ServerTap(grid, "trace/", party="shop", peer=..., rows=N, ids="all")`` in the server
    app; every other method is the grid's own. Both ways of sending are wrapped, since gradients
    leave by ``push_messages``.

    Args:
        grid: of the server app.
        folder: of the trace.
        peer: from a reply to the name of the party that sent it; asked once for each node.
        ids, embedding, gradient, step, how: as for :func:`recorder`; ``ids`` gets None as context.

    Raises:
        ConfigError: Flower is not installed, or an argument cannot be used.
    """

    def __init__(
        self,
        grid: Any,
        folder: str | Path,
        *,
        party: str,
        peer: Callable[[Any], str],
        ids: Ids = None,
        embedding: str = EMBEDDING,
        gradient: str = GRADIENT,
        step: str = "step",
        **how: Any,
    ) -> None:
        self._grid, self._peer = grid, peer
        self._tap = _Tap(embedding, gradient, ids, step)
        self._wire = self._tap.wire(folder, {"role": "active"} | how | {"party": party})
        self._names: dict[int, str] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def _out(self, messages: Iterable[Any]) -> list[Any]:
        """Record gradients before they are sent: afterwards the grid may have taken them apart."""
        held = list(messages)
        for message in held:
            if self._tap.carries(message, "gradient"):
                node = message.metadata.dst_node_id
                if node not in self._names:
                    remedy = "Wrap the grid before the first query."
                    raise ConfigError(f"flower: {node} sent no embedding. {remedy}")
                peer = self._names[node]
                self._tap.passed(self._wire, "gradient", message, None, sent=True, peer=peer)
        return held

    def _in(self, replies: Iterable[Any], asked: Mapping[int, Any]) -> Iterator[Any]:
        for reply in replies:
            if self._tap.carries(reply, "embedding"):
                node = reply.metadata.src_node_id
                if node not in self._names:
                    self._names[node] = self._peer(reply)
                self._tap.passed(
                    self._wire, "embedding", reply, None, sent=False, asked=asked.get(node),
                    peer=self._names[node],
                )  # fmt: skip
            yield reply

    def push_messages(self, messages: Iterable[Any]) -> Any:
        """As the grid's; gradients are recorded."""
        return self._grid.push_messages(self._out(messages))

    def pull_messages(self, message_ids: Iterable[str]) -> Any:
        """As the grid's; embeddings are recorded."""
        return list(self._in(self._grid.pull_messages(message_ids), {}))

    def send_and_receive(self, messages: Iterable[Any], **how: Any) -> Any:
        """As the grid's; gradients and embeddings are recorded."""
        held = self._out(messages)
        asked = {m.metadata.dst_node_id: m for m in held}
        return list(self._in(self._grid.send_and_receive(held, **how), asked))

    def close(self) -> None:
        """End the recording and seal the trace."""
        self._wire.close()
