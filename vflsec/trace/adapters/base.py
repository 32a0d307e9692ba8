"""What adapters of other frameworks have in common: who records, in which process, and which rows.

An adapter knows where a framework's messages pass. What a message is, its number type, the rows it
is about and what belongs together are told to one :class:`Wire`, which writes a trace as
`vflsec.record` does.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from vflsec._version import __version__
from vflsec.core import check
from vflsec.errors import ConfigError
from vflsec.trace.manifest import Software
from vflsec.trace.record_api import Recording, record
from vflsec.trace.writer import AnotherNode

_LOG = logging.getLogger("vflsec.record")


def version_of(package: str, extra: str = "") -> str:
    """The version of an installed framework.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        raise ConfigError.lacks("this adapter", package, extra) from None


def in_order(rows: int, batch: int) -> Callable[[int], Any]:
    """From a step, counted over all epochs from 0, to the places of its rows in file order.

    For loaders that neither shuffle nor drop the last batch.

    Args:
        rows: number of rows of one epoch.
        batch: rows of a batch; the last one of an epoch may have fewer.
    """
    for key, count in (("rows", rows), ("batch", batch)):
        check.integer(f"in_order: {key}", count)
    steps = -(-rows // batch)

    def places(step: int) -> Any:
        start = step % steps * batch
        return np.arange(start, min(rows, start + batch))

    return places


_WIRES: dict[tuple[str, str, str], Wire] = {}
_MAKING = threading.Lock()


class Wire:
    """One party's end of the wire. Its recording opens in the process that has something to tell.

    Several processes may serve one party: each writes segments of its own. None of them knows when
    the run has ended, so the trace is sealed afterwards (``vflsec trace seal TRACE --ended``), or
    by :meth:`close` where one process serves the party from beginning to end.

    Args:
        folder: of the trace.
        framework: name and version of what trains.
        adapter: name of the module that listens.
        node: which of the framework's nodes this is; "" if that is not known. A second node in the
            folder of a first one becomes a party of its own, in a folder beside.
        how: as for `vflsec.record`.

    Raises:
        ConfigError: an argument cannot be used.
    """

    def __init__(
        self, folder: str | Path, *, framework: tuple[str, str], adapter: str, node: str = "",
        **how: Any,
    ) -> None:  # fmt: skip
        self._how, self._node = how, "" if how.get("resume") else node  # goes on as another one
        self._about = {
            "node": self._node,
            "framework": Software(name=framework[0], version=framework[1]),
            "adapter": Software(name=adapter, version=__version__),
        }
        made = record(folder, **how)  # what is wrong shows before anything is trained
        self.rows, self.party, self.folder = how["rows"], made.party, made.folder
        self.n, self.active, self.peers = len(made.ids), made.active, made.manifest.names
        self._open: tuple[int, Recording] | None = None
        self._lock = threading.Lock()
        self._steps: dict[str, int] = {}

    @classmethod
    def at(cls, folder: str | Path, *, party: str, node: str = "", **how: Any) -> Wire:
        """The wire of this folder and party in this process; made where there is none yet.

        Frameworks that load an app anew for every message would else begin as many recordings.
        """
        key = (str(Path(folder).absolute()), party, node)
        with _MAKING:
            if key not in _WIRES:
                _WIRES[key] = cls(folder, party=party, node=node, **how)
            return _WIRES[key]

    @property
    def recording(self) -> Recording:
        """The recording of this process, which is begun if it is not open."""
        with self._lock:
            here = os.getpid()
            if self._open is None or self._open[0] != here:
                try:
                    made = self._begin()
                except AnotherNode:
                    self._name_by_node()
                    made = self._begin()
                assert made.writer is not None
                atexit.register(made.end)  # an end mark, if the process ends in order
                self._open = (here, made)
            return self._open[1]

    def _begin(self) -> Recording:
        made = record(self.folder, **self._how)
        made.manifest = made.manifest.model_copy(update=self._about)
        return made.__enter__()

    def _name_by_node(self) -> None:
        """Become a party of this node's own; what two nodes see is never one party's."""
        own, first, place = f"{self.party}-{self._node}", self.party, self.folder
        roles = {own if n == first else n: r for n, r in (self._how.get("parties") or {}).items()}
        self._how = self._how | {"party": own} | ({"parties": roles} if roles else {})
        self.party, self.folder = own, place.with_name(f"{place.name}-{self._node}")
        said = "%s: another node records there as %s. This one is %s, in %s."
        _LOG.warning(said, place, first, own, self.folder)

    def ids(self, given: Any) -> Any:
        """Row ids of a message: ``"all"`` for all rows in their order, None if not known."""
        if not isinstance(given, str):
            return given
        check.one_of("ids", given, ("all",))
        return np.arange(self.n) if isinstance(self.rows, int) else self.rows

    def count(self, what: str) -> int:
        """0, 1, ... for each call with the same `what`, in this process."""
        with self._lock:
            found = self._steps.get(what, 0)
            self._steps[what] = found + 1
        return found

    def tell(self, kind: str, x: Any, ids: Any = None, *, sent: bool, **when: Any) -> int:
        """Record one message; see :meth:`vflsec.trace.record_api.Recording.tell`."""
        return self.recording.tell(kind, x, self.ids(ids), sent=sent, **when)

    def close(self) -> None:
        """End the recording and seal the trace, if this process recorded anything."""
        for key in [k for k, wire in _WIRES.items() if wire is self]:
            del _WIRES[key]
        with self._lock:
            opened, self._open = self._open, None
        if opened is not None and opened[0] == os.getpid():
            atexit.unregister(opened[1].end)
            opened[1].close()
