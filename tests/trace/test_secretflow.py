"""The SecretFlow callback against a stand-in of package sfl; SecretFlow itself was not run.

The stand-in has the base class with every hook and argument of
``sfl/ml/nn/callbacks/callback.py``, a worker with ``apply(fn, *args)`` and the two attributes that
are read there, and calls the hooks in the order of ``sl_model.py``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from trace_audits import read

from vflsec.errors import ConfigError
from vflsec.trace.adapters import secretflow
from vflsec.trace.reader import Trace

N, BATCH = 10, 4
_HOOKS = {
    "set_params": ("params",), "on_train_begin": ("logs",), "on_train_end": ("logs",),
    "on_epoch_begin": ("epoch", "logs"), "on_epoch_end": ("epoch", "logs"),
    "on_train_batch_begin": ("batch",), "on_train_batch_end": ("batch",),
    "on_agglayer_forward_begin": ("hiddens",), "on_agglayer_forward_end": ("hiddens",),
    "on_agglayer_backward_begin": ("gradients",), "on_agglayer_backward_end": ("gradients",),
    "on_base_forward_begin": (), "on_base_forward_end": (), "on_base_backward_begin": (),
    "on_base_backward_end": (), "on_fuse_forward_begin": (), "on_fuse_backward_end": (),
}  # fmt: skip


class Callback:
    """Keyword arguments, workers by device, and hooks that do nothing."""

    def __init__(self, **kwargs: Any) -> None:
        self.params = kwargs
        self._workers: dict[Any, Any] | None = None
        self.device_y: Any = None

    def set_workers(self, workers: Any, device_y: Any) -> None:
        self._workers = workers
        self.device_y = device_y


def _nothing(names: tuple[str, ...]) -> Any:
    scope: dict[str, Any] = {}
    exec(f"def hook(self{''.join(f', {n}=None' for n in names)}): pass", scope)
    return scope["hook"]


for _name, _args in _HOOKS.items():
    setattr(Callback, _name, _nothing(_args))


class Worker:
    """A party's process: apply runs a function on it."""

    _h: Any = None
    _gradient: Any = None

    def apply(self, function: Any, *args: Any) -> Any:
        return function(self, *args)


class Device:
    def __init__(self, party: str) -> None:
        self.party = party


@pytest.fixture(autouse=True)
def _sfl(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["sfl", "sfl.ml", "sfl.ml.nn", "sfl.ml.nn.callbacks", "sfl.ml.nn.callbacks.callback"]
    for name in names:
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules["sfl"].__version__ = "1.0.0.dev"  # type: ignore[attr-defined]
    sys.modules[names[-1]].Callback = Callback  # type: ignore[attr-defined]


def fit(tap: Any, bob: Device, values: Any, epochs: int = 2, skip: tuple[int, ...] = ()) -> Worker:
    """A training in the order of sl_model.py; `values` gives (hidden, gradient) of a batch."""
    alice, worker = Device("alice"), Worker()
    tap.set_workers({alice: Worker(), bob: worker}, alice)
    tap.on_train_begin()
    for epoch in range(epochs):
        tap.on_epoch_begin(epoch)
        for batch, at in enumerate(range(0, N, BATCH)):
            tap.on_train_batch_begin(batch)
            rows = np.arange(at, min(N, at + BATCH))
            tap.on_base_forward_begin()
            worker._h, gradient = values(epoch, rows)
            tap.on_base_forward_end()
            tap.on_agglayer_forward_begin({bob: object()})
            tap.on_agglayer_forward_end([object()])
            if batch not in skip:
                tap.on_agglayer_backward_begin({bob: object()})
                worker._gradient = gradient
                tap.on_agglayer_backward_end({bob: object()})
                tap.on_base_backward_begin()
                worker._h = worker._gradient = None
                tap.on_base_backward_end()
            tap.on_train_batch_end(batch)
        tap.on_agglayer_forward_begin({bob: object()})  # validation shows the batch before
        tap.on_epoch_end(epoch)
    tap.on_train_end()
    return worker


def callback(folder: Path, bob: Device, **how: Any) -> Any:
    how = {"ids": secretflow.in_order(N, BATCH), "rows": N, "loss_reduction": "mean"} | how
    return secretflow.callback(bob, folder / "trace", **how)


def found(folder: Path) -> list[Any]:
    return read(folder / "trace", "bob")


def one(epoch: int, rows: np.ndarray) -> Any:
    h = torch.from_numpy(rows).float().unsqueeze(1) + 100 * epoch
    return h.requires_grad_(), -h.detach()


def test_pairs_of_two_epochs(tmp_path: Path) -> None:
    bob = Device("bob")
    fit(callback(tmp_path, bob), bob, one)
    got = found(tmp_path)
    assert [m.kind for m in got] == ["embedding", "gradient"] * 6
    assert [m.pair for m in got[1::2]] == [0, 2, 4, 6, 8, 10]
    assert [(m.epoch, m.step, m.n_rows) for m in got[::2]] == [
        (0, 0, 4), (0, 1, 4), (0, 2, 2), (1, 3, 4), (1, 4, 4), (1, 5, 2),
    ]  # fmt: skip
    for m in got[::2]:
        assert (m.values[:, 0] == m.rows + 100 * m.epoch).all()
    for m in got[1::2]:
        assert (m.values == -got[m.pair].values).all()
        assert (m.rows == got[m.pair].rows).all()
    trace = Trace.open(tmp_path / "trace")
    assert (trace.manifest.status, trace.manifest.framework.version) == ("sealed", "1.0.0.dev")


def test_lists_of_tensors_are_messages_of_their_own(tmp_path: Path) -> None:
    bob = Device("bob")

    def two(epoch: int, rows: np.ndarray) -> Any:
        h = [np.ones((len(rows), 2), np.float32), np.zeros((len(rows), 3), np.float32)]
        return h, [x * 2 for x in h]

    fit(callback(tmp_path, bob), bob, two, epochs=1)
    got = found(tmp_path)[:4]
    assert [(m.kind, m.name, m.pair) for m in got] == [
        ("embedding", "0", None), ("embedding", "1", None), ("gradient", "0", 0),
        ("gradient", "1", 1),
    ]  # fmt: skip


def test_one_array_against_a_list_of_one(tmp_path: Path) -> None:
    bob = Device("bob")
    fit(callback(tmp_path, bob), bob, lambda e, r: (one(e, r)[0], [one(e, r)[1]]), epochs=1)
    assert [(m.name, m.pair) for m in found(tmp_path)[:2]] == [("", None), ("", 0)]


def test_a_skipped_backward_pass_is_not_recorded(tmp_path: Path) -> None:
    bob = Device("bob")
    fit(callback(tmp_path, bob), bob, one, epochs=1, skip=(1,))
    assert [m.n_rows for m in found(tmp_path)] == [4, 4, 2, 2]
    assert [next(iter(m.rows)) for m in found(tmp_path)] == [0, 0, 8, 8]


def test_what_travels_to_the_worker_can_be_pickled(tmp_path: Path) -> None:
    """Settings and the function do; a framework may need cloudpickle for ids of yours."""
    import pickle

    bob = Device("bob")
    sent: list[Any] = []

    class Far(Worker):
        def apply(self, function: Any, *args: Any) -> Any:
            sent.append(pickle.loads(pickle.dumps((function, args))))

    tap = callback(tmp_path, bob, ids="all")
    tap.set_workers({bob: Far()}, None)
    tap.on_base_backward_begin()
    assert sent[0][0] is secretflow._record


def test_errors_are_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tap = callback(tmp_path, Device("bob"))
    tap.set_workers({Device("alice"): Worker()}, None)
    with pytest.raises(ConfigError, match="must be one of"):
        tap.on_train_begin()
    with pytest.raises(ConfigError, match="rows must be"):
        callback(tmp_path, Device("bob"), rows=0)
    with pytest.raises(ConfigError, match="ids must be one of"):
        callback(tmp_path, Device("bob"), ids="rows")
    monkeypatch.setitem(sys.modules, "sfl.ml.nn.callbacks.callback", None)
    with pytest.raises(ConfigError, match="needs sfl"):
        callback(tmp_path, Device("bob"))
