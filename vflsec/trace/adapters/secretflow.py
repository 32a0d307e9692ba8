"""SecretFlow split learning (sfl 1.0): a callback that records, in a party's own process.

    from vflsec.trace.adapters import secretflow

    tap = secretflow.callback(bob, "trace/", rows=N, ids=secretflow.in_order(N, 128))
    sl_model.fit(..., shuffle=False, callbacks=[tap])

Callbacks run at the driver and are given handles, not numbers. What a base model sent and what came
back lie together in its worker only while ``on_base_backward_begin`` runs, and for the same batch;
so the callback sends a function there. Validation passes no such moment and is not recorded.
Source: https://github.com/secretflow/sfl, ``sfl/ml/nn/callbacks/callback.py`` and
``sfl/ml/nn/sl/sl_model.py`` (2025).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from vflsec.core import check
from vflsec.errors import ConfigError
from vflsec.trace.adapters.base import Wire
from vflsec.trace.adapters.base import in_order as _in_order

Ids = str | Callable[[int, int], Any] | None


def in_order(rows: int, batch: int) -> Callable[[int, int], Any]:
    """Row places of (epoch, batch number) for training without shuffling.

    Args:
        rows: of one epoch.
        batch: rows of a batch.
    """
    places = _in_order(rows, batch)
    return lambda epoch, number: places(number)


def callback(
    device: Any, folder: str | Path, *, party: str = "", ids: Ids = None, **how: Any
) -> Any:
    """A callback for ``SLModel.fit`` that records one passive party.

    Args:
        device: the PYU whose base model is recorded, in whose process the trace is written.
        folder: of the trace, on that machine.
        party: its name; the device's ``party`` if empty.
        ids: a function of (epoch, batch number) that returns the row ids; ``"all"``; or None.
        how: as for `vflsec.record`.

    Raises:
        ConfigError: SecretFlow is not installed, or an argument cannot be used.
    """
    try:
        base = import_module("sfl.ml.nn.callbacks.callback").Callback
    except ImportError as why:
        raise ConfigError.lacks("secretflow", "sfl") from why
    name = party or str(getattr(device, "party", ""))
    version = str(getattr(import_module("sfl"), "__version__", ""))
    settings = {
        "folder": str(folder), "framework": ("sfl", version),
        "adapter": "vflsec.trace.adapters.secretflow", "party": name, "role": "passive", **how,
    }  # fmt: skip
    Wire(**settings)  # what is wrong with the arguments shows at the driver
    if ids is not None and not callable(ids):
        check.one_of("secretflow: ids", ids, ("all",))

    class Tap(base):  # type: ignore[misc, valid-type]
        """Says which epoch and batch it is, and sends what records to the party's worker."""

        def __init__(self) -> None:
            super().__init__()
            self.at = [0, 0]

        def on_train_begin(self, logs: Any = None) -> None:
            """Refuse a device that takes no part."""
            if device not in (self._workers or {}):
                raise check.unknown("secretflow: device", device, self._workers or ())

        def on_epoch_begin(self, epoch: Any = None, logs: Any = None) -> None:
            """Which epoch follows."""
            self.at[0] = int(epoch or 0)

        def on_train_batch_begin(self, batch: Any) -> None:
            """Which batch follows."""
            self.at[1] = int(batch)

        def on_base_backward_begin(self) -> None:
            """Both ways of a batch lie in the worker now."""
            self._workers[device].apply(_record, settings, ids, *self.at)

        def on_train_end(self, logs: Any = None) -> None:
            """Seal."""
            self._workers[device].apply(_close, settings)

    return Tap()


def _record(worker: Any, settings: Mapping[str, Any], ids: Ids, epoch: int, batch: int) -> None:
    """Runs in the worker: what it sent, and what came back for it."""
    hidden, gradient = worker._h, worker._gradient
    if hidden is None:
        return
    wire = Wire.at(**settings)
    rows = ids(epoch, batch) if callable(ids) else ids
    when = {"epoch": epoch, "step": wire.count("train")}
    pairs: list[int | None] = []
    for kind, x in (("embedding", hidden), ("gradient", gradient)):  # of a skipped step: None
        parts = x if isinstance(x, list | tuple) else [x] if x is not None else []
        known = pairs if len(pairs) == len(parts) else [None] * len(parts)
        pairs = [
            wire.tell(
                kind, part, rows, sent=kind == "embedding", pair=pair,
                name=str(i) if len(parts) > 1 else "", **when,
            )
            for i, (part, pair) in enumerate(zip(parts, known, strict=True))
        ]  # fmt: skip


def _close(worker: Any, settings: Mapping[str, Any]) -> None:
    """Runs in the worker: the training has ended."""
    Wire.at(**settings).close()
