"""NVIDIA FLARE (nvflare 2.9): a decorator below ``@collab.publish`` that records what crosses.

    from vflsec.trace.adapters import nvflare

    rec = nvflare.recorder("/data/trace", party="site-1", role="passive", rows=N)

    @collab.publish
    @rec(gives="embedding", ids="batch_indices")
    def forward(self, batch_indices): ...

    @collab.publish
    @rec(takes={"gradients": "gradient"})
    def backward(self, gradients): ...

A published function is called with what arrives and returns what leaves, so its arguments and its
result are the wire: often float16. Only the public surface of the collaboration API is used, and
nothing of FLARE is imported here. Row ids travel there, as an argument; batches that are drawn with
replacement repeat rows. Source: NVFlare 2.9, ``nvflare/collab/api``.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from vflsec.core import check
from vflsec.errors import ConfigError
from vflsec.trace.adapters.base import Wire, version_of

F = TypeVar("F", bound=Callable[..., Any])


def recorder(
    folder: str | Path, *, party: str, role: Literal["passive", "active"], **how: Any
) -> Recorder:
    """What decorates the functions of one party; opens when the first of them is called.

    After the run: ``vflsec trace seal FOLDER --ended``.

    Args:
        folder: of the trace; absolute, since every site runs in a folder of its own.
        party, role, how: as for `vflsec.record`.

    Raises:
        ConfigError: NVFlare is not installed, or an argument cannot be used.
    """
    framework = ("nvflare", version_of("nvflare", "nvflare"))
    about = {"framework": framework, "adapter": "vflsec.trace.adapters.nvflare", "role": role} | how
    return Recorder(lambda site: Wire.at(folder, party=party, node=site, **about))


def _site() -> str:
    """Which site is called, as the collaboration API says it; "" outside a call."""
    try:
        return str(sys.modules["nvflare.collab"].collab.site_name)
    except Exception:  # of whichever kind the API raises there
        return ""


class Recorder:
    """Decorates published functions of one party; made by :func:`recorder`."""

    def __init__(self, make: Callable[[str], Wire]) -> None:
        self._make, self._wires = make, {"": make("")}
        self._lock = threading.Lock()
        self._last: dict[Wire, tuple[int, Any]] = {}

    def __call__(
        self,
        *,
        takes: Mapping[str, str] | None = None,
        gives: str | Mapping[int, str] = "",
        ids: str | Callable[[Mapping[str, object]], Any] | None = None,
        step: str = "",
        phase: str = "train",
    ) -> Callable[[F], F]:
        """Record what a function takes and gives.

        Args:
            takes: {argument: kind} of what arrives: ``embedding``, ``gradient``, ...
            gives: kind of the result, or {position: kind} of a tuple that is returned.
            ids: argument that holds the row ids, or a function of {argument: value}. A gradient
                without ids has those of its embedding.
            step: argument that says the step. Without it a gradient belongs to the embedding that
                passed last, as in an app that keeps one activation between two calls.
            phase: ``eval`` for functions that validate.

        Raises:
            ConfigError: the function has no such argument.
        """
        came = dict(takes or {})

        def decorate(function: F) -> F:
            signature = inspect.signature(function)
            for name in (
                *came,
                *([ids] if isinstance(ids, str) else ()),
                *([step] if step else ()),
            ):
                if name not in signature.parameters:
                    where = f"nvflare: an argument of {function.__name__}"
                    check.one_of(where, name, tuple(signature.parameters))

            @functools.wraps(function)
            def call(*args: Any, **kwargs: Any) -> Any:
                bound = signature.bind(*args, **kwargs)
                bound.apply_defaults()
                at = bound.arguments
                rows = at[ids] if isinstance(ids, str) else None if ids is None else ids(at)
                number = int(at[step]) if step else None
                for name, kind in came.items():
                    self._tell(kind, at[name], rows, sent=False, step=number, phase=phase)
                found = function(*args, **kwargs)
                left = {0: gives} if isinstance(gives, str) else dict(gives)
                for i, kind in left.items():
                    x = found if isinstance(gives, str) else found[i]
                    if kind and x is not None:
                        self._tell(kind, x, rows, sent=True, step=number, phase=phase)
                return found

            return call  # type: ignore[return-value]

        return decorate

    def _tell(
        self, kind: str, x: Any, rows: Any, *, sent: bool, step: int | None, phase: str
    ) -> None:  # fmt: skip
        site = _site()
        wire = self._wires[site] = self._make(site)
        if {"embedding": not sent, "gradient": sent}.get(kind, wire.active) != wire.active:
            way, remedy = "sends" if sent else "takes", "Exchange takes and gives, or the role."
            raise ConfigError(f"nvflare: {wire.party} {way} {kind}s, unlike its role. {remedy}")
        pair = None
        if kind == "gradient" and step is None:
            with self._lock:
                last = self._last.pop(wire, None)
            if last is not None:
                pair, rows = last[0], last[1] if rows is None else rows
        number = wire.tell(kind, x, rows, sent=sent, step=step, phase=phase, pair=pair)
        if kind == "embedding" and phase == "train":
            with self._lock:
                self._last[wire] = (number, rows)

    def close(self) -> None:
        """End the recording and seal the trace; for a party that one process serves to the end."""
        for wire in self._wires.values():
            wire.close()
