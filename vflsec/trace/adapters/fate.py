"""FATE 2.2: records the aggregation layer of a heterogeneous neural network.

    from vflsec.trace.adapters import fate

    tap = fate.attach(model._agg_layer, "trace/", party="bank", rows=N, ids=ids)
    ...                                     # train, predict
    tap.close()

The four methods through which embeddings and errors pass are wrapped on this one object, and
``predict``, which talks to the context itself, is listened to while it runs. The layers' own
counters say the step. Layers under secret sharing (SSHE) have none of the four and are refused.
Source: https://github.com/FederatedAI/FATE, ``fate/ml/nn/model_zoo/agg_layer/agg_layer.py``, 2.2.0.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from vflsec.core import check
from vflsec.errors import ConfigError
from vflsec.trace.adapters.base import Wire

Ids = str | Callable[[str, int], Any] | None

_HOST = {"_send_fw_to_guest": ["x"], "_get_error_from_guest": [], "predict": ["x"]}
_GUEST = {"_get_fw_from_host": [], "_send_err_to_host": ["ret_error"], "predict": ["x"]}


def attach(
    layer: Any,
    folder: str | Path,
    *,
    party: str,
    hosts: Sequence[str] = (),
    ids: Ids = None,
    **how: Any,
) -> Tap:
    """Record what passes through an aggregation layer from now on.

    Args:
        layer: an ``AggLayerHost`` or ``AggLayerGuest``, or one of their kind (FedPass).
        folder: of the trace.
        party: name of the party in whose process this is; at a host it is the passive one.
        hosts: at the guest, names of the hosts in their order.
        ids: a function of (phase, step) that returns the row ids of a message, where the phase is
            ``train`` or ``eval`` and steps count from 0; ``"all"``; or None.
        how: as for `vflsec.record`.

    Raises:
        ConfigError: the layer is of another kind or version, or an argument cannot be used.
    """
    host, guest = _fits(layer, _HOST), _fits(layer, _GUEST)
    if host == guest:
        rule = "be an AggLayerHost or AggLayerGuest of FATE 2.2, not under SSHE"
        raise ConfigError.must("fate: layer", rule, type(layer).__name__)
    if guest:
        if not hosts:
            raise check.fail("fate: hosts", "their names in order", hosts)
        how = {"parties": {party: "active", **dict.fromkeys(hosts, "passive")},
               "peer": hosts[0]} | how  # fmt: skip
    if ids is not None and not callable(ids):
        check.one_of("fate: ids", ids, ("all",))
    try:
        version = metadata.version("pyfate")
    except metadata.PackageNotFoundError:
        version = ""
    wire = Wire(
        folder, framework=("fate", version), adapter="vflsec.trace.adapters.fate", party=party,
        role="active" if guest else "passive", **how,
    )  # fmt: skip
    return Tap(layer, wire, tuple(hosts), ids)


def _fits(layer: Any, methods: dict[str, list[str]]) -> bool:
    """Whether the methods are there with these arguments, and the counters beside them."""
    if not all(hasattr(layer, c) for c in ("_fw_count", "_bw_count", "_pred_count", "_ctx")):
        return False
    for name, arguments in methods.items():
        method = getattr(layer, name, None)
        if method is None or list(inspect.signature(method).parameters) != arguments:
            return False
    return True


class Tap:
    """What listens to one layer; made by :func:`attach`."""

    def __init__(self, layer: Any, wire: Wire, hosts: tuple[str, ...], ids: Ids) -> None:
        self.layer, self.wire, self.hosts, self.ids = layer, wire, hosts, ids
        self._put_back: list[str] = []
        heard = (
            [("_get_fw_from_host", "embedding", "_fw_count", False),
             ("_send_err_to_host", "gradient", "_bw_count", True)]
            if wire.active else
            [("_send_fw_to_guest", "embedding", "_fw_count", True),
             ("_get_error_from_guest", "gradient", "_bw_count", False)]
        )  # fmt: skip
        for name, kind, counter, sent in heard:
            step = partial(getattr, layer, counter)
            self._put(name, self._hear(getattr(layer, name), kind, step, sent=sent))
        self._put("predict", partial(self._predict, layer.predict))

    def _put(self, name: str, method: Callable[..., Any]) -> None:
        setattr(self.layer, name, method)
        self._put_back.append(name)

    def _hear(
        self, original: Callable[..., Any], kind: str, step: Callable[[], int], *, sent: bool,
        phase: str = "train",
    ) -> Callable[..., Any]:  # fmt: skip
        """A function that records what it is given last, if that is sent, or what it returns."""
        tell: Callable[..., None] = self._each if self.wire.active else self._tell

        def call(*given: Any) -> Any:
            now = step()
            if sent:
                tell(kind, given[-1], sent=True, step=now, phase=phase)
                return original(*given)
            came = original(*given)
            tell(kind, came, sent=False, step=now, phase=phase)  # before a merge adds in place
            return came

        return call

    def _tell(
        self, kind: str, x: Any, *, sent: bool, step: int, phase: str = "train", peer: str = ""
    ) -> None:
        rows = self.ids(phase, step) if callable(self.ids) else self.ids
        self.wire.tell(kind, x, rows, sent=sent, step=step, phase=phase, peer=peer)

    def _each(self, kind: str, many: Any, **when: Any) -> None:
        found = list(many)
        if len(found) != len(self.hosts):
            raise ConfigError.must("fate: hosts", f"name all {len(found)}", ", ".join(self.hosts))
        for name, x in zip(self.hosts, found, strict=True):
            self._tell(kind, x, peer=name, **when)

    def _predict(self, original: Callable[..., Any], x: Any) -> Any:
        """A prediction, whose one exchange passes in the layer's context."""
        layer, ctx = self.layer, self.layer._ctx
        if ctx is None:
            return original(x)
        name, way, sent = ("hosts", "get", False) if self.wire.active else ("guest", "put", True)
        end, step = getattr(ctx, name), layer._pred_count
        heard = self._hear(getattr(end, way), "embedding", lambda: step, sent=sent, phase="eval")
        layer._ctx = _Instead(ctx, name, _Instead(end, way, heard))
        try:
            return original(x)
        finally:
            layer._ctx = ctx

    def close(self) -> None:
        """Leave the layer as it was, end the recording and seal the trace."""
        for name in self._put_back:
            delattr(self.layer, name)
        self._put_back = []
        self.wire.close()


class _Instead:
    """An object with one attribute replaced."""

    def __init__(self, of: Any, name: str, value: Any) -> None:
        self._of, self._name, self._value = of, name, value

    def __getattr__(self, name: str) -> Any:
        return self._value if name == self._name else getattr(self._of, name)
