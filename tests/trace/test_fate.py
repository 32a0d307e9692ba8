"""The FATE adapter: on layers with FATE 2.2's exact methods, and on FATE's own file if it is there.

FATE itself (its session, its federation) was not run. ``pip install --no-deps pyfate==2.2.0`` gives
the file of the real layers, which the second parameter of these tests executes with a stand-in for
``fate.arch.Context``; contexts are queues in one process.
"""

from __future__ import annotations

import sys
from collections import defaultdict, deque
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from trace_audits import read

from vflsec.errors import ConfigError
from vflsec.trace.adapters import fate

N = 6


class _Layer(nn.Module):
    """Counters and context of FATE's layers."""

    def __init__(self) -> None:
        super().__init__()
        self._ctx: Any = None
        self._fw_count = self._bw_count = self._pred_count = 0
        self._model = None

    def set_context(self, ctx: Any) -> None:
        self._ctx = ctx

    @property
    def ctx(self) -> Any:
        return self._ctx


class AggLayerGuest(_Layer):
    """The methods that the adapter wraps, with their arguments, and what calls them."""

    def _get_fw_from_host(self) -> Any:
        found = self.ctx.hosts.get(f"agglayer_fw_{self._fw_count}")
        self._fw_count += 1
        return found

    def _send_err_to_host(self, ret_error: Any) -> None:
        for i, host in enumerate(self.ctx.hosts):
            host.put(f"agglayer_bw_{self._bw_count}", ret_error[i])
        self._bw_count += 1

    def forward(self, x: Any = None) -> Any:
        if not self.training:
            return self.predict(x)
        self.held = [torch.from_numpy(h).requires_grad_(True) for h in self._get_fw_from_host()]
        out = self.held[0]
        for h in self.held[1:]:
            out = out + h
        return out

    def backward(self, error: Any) -> None:
        self._send_err_to_host(torch.autograd.grad(error, self.held))

    def predict(self, x: Any) -> Any:
        found = self.ctx.hosts.get(f"agglayer_pred_{self._pred_count}")
        self._pred_count += 1
        return sum(torch.from_numpy(h) for h in found)


class AggLayerHost(_Layer):
    def _send_fw_to_guest(self, x: Any) -> None:
        self.ctx.guest.put(f"agglayer_fw_{self._fw_count}", x)
        self._fw_count += 1

    def _get_error_from_guest(self) -> Any:
        error = self.ctx.guest.get(f"agglayer_bw_{self._bw_count}")
        self._bw_count += 1
        return error

    def forward(self, x: Any) -> None:
        if self.training:
            self._send_fw_to_guest(x.detach().cpu().numpy())
        else:
            self.predict(x)

    def backward(self, error: Any = None) -> Any:
        return self._get_error_from_guest()

    def predict(self, x: Any) -> None:
        self.ctx.guest.put(f"agglayer_pred_{self._pred_count}", x.detach().cpu().numpy())
        self._pred_count += 1


class SSHE(_Layer):
    def forward(self, x: Any) -> Any: ...


def real_layers(monkeypatch: pytest.MonkeyPatch) -> Any:
    """FATE's own file with a stand-in for what it imports."""
    spec = find_spec("fate")
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    files = [Path(p) / "ml/nn/model_zoo/agg_layer/agg_layer.py" for p in places]
    file = next((f for f in files if f.is_file()), None)
    if file is None:
        pytest.skip("pyfate is not installed")
    arch = ModuleType("fate.arch")
    arch.Context = object  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "fate.arch", arch)
    monkeypatch.setitem(sys.modules, "fate", ModuleType("fate"))
    made = spec_from_file_location("agg_layer", file)
    assert made is not None
    assert made.loader is not None
    module = module_from_spec(made)
    made.loader.exec_module(module)
    return module


@pytest.fixture(params=["stand-in", "pyfate"])
def layers(request: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    if request.param == "pyfate":
        return real_layers(monkeypatch)
    return SimpleNamespace(AggLayerGuest=AggLayerGuest, AggLayerHost=AggLayerHost)


class Party:
    """The other end of one host and the guest."""

    def __init__(self) -> None:
        self.queues: dict[str, deque[Any]] = defaultdict(deque)

    def put(self, tag: str, x: Any) -> None:
        self.queues[tag].append(x)

    def get(self, tag: str) -> Any:
        return self.queues[tag].popleft()


class Hosts:
    def __init__(self, parties: list[Party]) -> None:
        self.parties = parties

    def __iter__(self) -> Any:
        return iter(self.parties)

    def get(self, tag: str) -> list[Any]:
        return [p.get(tag) for p in self.parties]


def system(layers: Any, hosts: int = 2, merge: str = "sum") -> tuple[Any, list[Any]]:
    parties = [Party() for _ in range(hosts)]
    real = layers.AggLayerGuest is not AggLayerGuest
    guest = layers.AggLayerGuest(merge_type=merge) if real else layers.AggLayerGuest()
    guest.set_context(SimpleNamespace(hosts=Hosts(parties)))
    made = []
    for p in parties:
        host = layers.AggLayerHost()
        host.set_context(SimpleNamespace(guest=p))
        made.append(host)
    return guest, made


def steps(guest: Any, hosts: list[Any], count: int = 2) -> list[list[Tensor]]:
    """Training steps; returns the errors that came back."""
    out = []
    for s in range(count):
        for i, host in enumerate(hosts):
            host.forward(torch.full((3, 2), 10.0 * i + s, requires_grad=True))
        merged = guest.forward()
        guest.backward((merged * (s + 1.0)).sum())
        out.append([host.backward() for host in hosts])
    return out


def batches(phase: str, step: int) -> Any:
    return [5, 4] if phase == "eval" else [[0, 2, 4], [1, 3, 5]][step % 2]


def test_a_host(tmp_path: Path, layers: Any) -> None:
    guest, hosts = system(layers)
    tap = fate.attach(hosts[1], tmp_path / "t", party="bank", rows=N, ids=batches)
    steps(guest, hosts)
    for layer in (guest, *hosts):
        layer.eval()
    for host in hosts:
        host.forward(torch.full((2, 2), 7.0))
    assert (guest.forward(None) == 14.0).all()
    ctx = hosts[1]._ctx
    tap.close()
    assert hosts[1]._ctx is ctx
    assert not any("lambda" in repr(v) for v in vars(hosts[1]).values())
    got = read(tmp_path / "t", "bank")
    assert [(m.kind, m.sender, m.phase, m.step, m.pair) for m in got] == [
        ("embedding", "bank", "train", 0, None), ("gradient", "active", "train", 0, 0),
        ("embedding", "bank", "train", 1, None), ("gradient", "active", "train", 1, 2),
        ("embedding", "bank", "eval", 0, None),
    ]  # fmt: skip
    assert [m.values[0, 0] for m in got] == [10, 1, 11, 2, 7]
    assert [list(m.rows) for m in got] == [[0, 2, 4]] * 2 + [[1, 3, 5]] * 2 + [[5, 4]]


def test_the_guest(tmp_path: Path, layers: Any) -> None:
    """The real sum adds in place; what was recorded is what came."""
    guest, hosts = system(layers)
    tap = fate.attach(
        guest, tmp_path / "t", party="shop", hosts=("bank", "post"), rows=N, ids=batches, classes=2
    )
    steps(guest, hosts, 1)
    for layer in (guest, *hosts):
        layer.eval()
    for i, host in enumerate(hosts):
        host.forward(torch.full((2, 2), 7.0 + i))
    guest.forward(None)
    tap.close()
    got = read(tmp_path / "t", "shop")
    assert [(m.kind, m.sender, m.receiver, m.phase, float(m.values[0, 0])) for m in got] == [
        ("embedding", "bank", "shop", "train", 0), ("embedding", "post", "shop", "train", 10),
        ("gradient", "shop", "bank", "train", 1), ("gradient", "shop", "post", "train", 1),
        ("embedding", "bank", "shop", "eval", 7), ("embedding", "post", "shop", "eval", 8),
    ]  # fmt: skip
    assert [m.pair for m in got] == [None, None, 0, 1, None, None]


def test_recording_changes_nothing(tmp_path: Path, layers: Any) -> None:
    plain = steps(*system(layers))
    guest, hosts = system(layers)
    tap = fate.attach(hosts[0], tmp_path / "t", party="bank", rows=N)
    recorded = steps(guest, hosts)
    tap.close()
    after = steps(guest, hosts)
    for a, b in zip(plain, recorded, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
    assert len(after) == 2
    assert len(read(tmp_path / "t", "bank")) == 4, "nothing after close"


def test_rows_that_nobody_knows(tmp_path: Path, layers: Any) -> None:
    guest, hosts = system(layers, 1)
    tap = fate.attach(hosts[0], tmp_path / "t", party="bank", rows=N)
    steps(guest, hosts, 1)
    tap.close()
    got = read(tmp_path / "t", "bank")
    assert [m.rows for m in got] == [None, None]
    assert got[1].pair == 0, "the counters say what belongs together even so"


def test_errors_are_one_sentence(tmp_path: Path, layers: Any) -> None:
    guest, hosts = system(layers)
    with pytest.raises(ConfigError, match="not under SSHE, got SSHE"):
        fate.attach(SSHE(), tmp_path / "t", party="bank", rows=N)
    with pytest.raises(ConfigError, match="fate: hosts must be"):
        fate.attach(guest, tmp_path / "t", party="shop", rows=N)
    with pytest.raises(ConfigError, match="ids must be one of"):
        fate.attach(hosts[0], tmp_path / "t", party="bank", rows=N, ids="some")
    fate.attach(guest, tmp_path / "t", party="shop", hosts=("bank",), rows=N)
    with pytest.raises(ConfigError, match=r"name all 2, got bank"):
        steps(guest, hosts, 1)

    class Newer(layers.AggLayerHost):  # type: ignore[misc, name-defined]
        def _send_fw_to_guest(self, x: Any, compress: bool = False) -> None: ...

    with pytest.raises(ConfigError, match="got Newer"):
        fate.attach(Newer(), tmp_path / "t", party="bank", rows=N)
