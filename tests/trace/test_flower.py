"""The Flower adapter on messages built by hand: Flower's own where it is installed, and stand-ins.

The stand-ins have the attributes of flwr 1.42 that the adapter reads, and nothing else.
`tests/external/test_flower_end_to_end.py` runs a simulation.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from trace_audits import read

from vflsec.errors import ConfigError
from vflsec.trace.adapters import flower

N = 4
Make = Callable[..., Any]


class _Array:
    def __init__(self, x: np.ndarray) -> None:
        self._x = x

    def numpy(self) -> np.ndarray:
        return self._x


def _stand_in(meta: dict[str, Any], arrays: dict[str, dict[str, Any]], configs: Any) -> Any:
    content = SimpleNamespace(
        array_records={r: {k: _Array(x) for k, x in a.items()} for r, a in arrays.items()},
        config_records=configs,
    )
    return SimpleNamespace(
        metadata=SimpleNamespace(**meta), content=content, has_content=lambda: True
    )


def _real(meta: dict[str, Any], arrays: dict[str, dict[str, Any]], configs: Any) -> Any:
    from flwr.app import Array, ArrayRecord, ConfigRecord, Message, Metadata, RecordDict

    content = RecordDict()
    for name, record in arrays.items():
        content[name] = ArrayRecord({k: Array(x) for k, x in record.items()})
    for name, record in configs.items():
        content[name] = ConfigRecord(record)
    whole = {"run_id": 1, "reply_to_message_id": "", "created_at": 1.0, "ttl": 60.0} | meta
    return Message(metadata=Metadata(**whole), content=content)


@pytest.fixture(params=["stand-in", "flwr"])
def make(request: Any, monkeypatch: pytest.MonkeyPatch) -> Make:
    """message(arrays by path, configs, type, ...)."""
    if request.param == "flwr":
        pytest.importorskip("flwr", reason="Flower is not installed")
        build = _real
    else:
        monkeypatch.setattr(flower, "version_of", lambda *_: "1.41.0")
        build = _stand_in
    count = itertools.count()

    def message(
        arrays: dict[str, Any] | None = None, configs: Any = None,
        kind: str = "query.generate_embeddings", group: str = "", src: int = 0, dst: int = 0,
    ) -> Any:  # fmt: skip
        split: dict[str, dict[str, Any]] = {}
        for path, x in (arrays or {}).items():
            record, key = path.split("/")
            split.setdefault(record, {})[key] = x
        meta = {"message_id": str(next(count)), "src_node_id": src, "dst_node_id": dst,
                "group_id": group, "message_type": kind}  # fmt: skip
        return build(meta, split, configs or {})

    return message


def recorder(folder: Path, **how: Any) -> flower.Recorder:
    how = {"party": "bank", "rows": N, "ids": "all", "loss_reduction": "mean"} | how
    return flower.recorder(folder / "trace", **how)


def found(folder: Path, party: str = "bank") -> list[Any]:
    return read(folder / "trace", party)


def query(mod: Any, make: Make, x: np.ndarray, context: Any = None, **asked: Any) -> Any:
    """One embedding asked for and answered."""
    reply = make({"arrays/embedding": x})
    back = mod(make(**asked), context, lambda *_: reply)
    assert back is reply, "what the app answered leaves as it is"
    return back


def push(mod: Any, make: Make, g: np.ndarray, context: Any = None, **with_: Any) -> None:
    """One gradient pushed; the app that takes it destroys it."""

    def app(message: Any, _: Any) -> Any:
        if g.flags.writeable:
            g[:] = np.nan
        return make()

    mod(make({"gradients/local-gradients": g}, kind="train.apply_gradients", **with_), context, app)


def test_a_gradient_that_comes_after_the_next_query(tmp_path: Path, make: Make) -> None:
    """What was measured in a simulation: the order of arrival says nothing; the step does."""
    mod = recorder(tmp_path)
    z = np.arange(8, dtype=np.float32).reshape(N, 2)
    steps = [{"config": {"step": s}} for s in range(3)]
    query(mod, make, z, configs=steps[0])
    query(mod, make, z + 1, configs=steps[1])
    push(mod, make, z + 10, configs=steps[0])
    query(mod, make, z + 2, configs=steps[2])
    push(mod, make, z + 11, configs=steps[1])  # the last one never arrives
    got = found(tmp_path)
    assert [(m.kind, m.step, m.pair) for m in got] == [
        ("embedding", 0, None), ("embedding", 1, None), ("gradient", 0, 0),
        ("embedding", 2, None), ("gradient", 1, 1),
    ]  # fmt: skip
    assert [float(m.values[0, 0]) for m in got] == [0, 1, 10, 2, 11], "copied before the app ran"
    assert all(list(m.rows) == [0, 1, 2, 3] for m in got)
    assert {(m.sender, m.receiver) for m in got if m.kind == "gradient"} == {("active", "bank")}


@pytest.mark.parametrize("named", ["bank", lambda c: f"bank{c.node_config['partition-id']}"])
def test_each_node_of_a_simulation_is_a_party_of_its_own(
    named: Any, tmp_path: Path, make: Make
) -> None:
    """Three nodes were written as one party without a word, or the training ended in an error."""
    mod = recorder(tmp_path, party=named)
    for node in range(3):
        config = {"partition-id": node, "num-partitions": 3}
        at = SimpleNamespace(node_id=70 + node, node_config=config)
        query(mod, make, np.full((N, 2), node, np.float32), at, configs={"config": {"step": 0}})
    for node in range(3):
        (message,) = read(tmp_path / "trace" / f"bank{node}", f"bank{node}")
        assert set(message.values.ravel()) == {node}


@pytest.mark.parametrize("parties", [None, {"active": "active", "bank": "passive"}])
def test_a_second_node_in_one_folder_is_a_party_of_its_own(
    parties: Any, tmp_path: Path, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """A deployment names no partitions: what two nodes saw would be one party's."""
    mod = recorder(tmp_path, parties=parties)
    for node in (7, 8, 7, 8):
        at = SimpleNamespace(node_id=node, node_config={})
        query(mod, make, np.full((N, 2), node, np.float32), at)
    said = [r.getMessage() for r in caplog.records if "another node" in r.getMessage()]
    assert [s.rpartition(" This one is ")[2].split(",")[0] for s in said] == ["bank-8"]
    for folder, party, node in (("trace", "bank", 7), ("trace-8", "bank-8", 8)):
        messages = read(tmp_path / folder, party)
        assert [set(m.values.ravel()) for m in messages] == [{node}, {node}]


def test_the_group_is_a_step_where_it_is_a_number(tmp_path: Path, make: Make) -> None:
    """Without a step the pair is unknown; that every message holds all rows is known."""
    mod = recorder(tmp_path)
    query(mod, make, np.zeros((N, 2), np.float16), group="3")
    push(mod, make, np.ones((N, 2), np.float16), group="3")
    push(mod, make, np.ones((N, 2), np.float32), group="round")
    got = found(tmp_path)
    assert [(m.step, m.pair) for m in got] == [(3, None), (3, 0), (None, None)]
    assert [(m.wire_dtype, m.values.dtype) for m in got[:2]] == [("float16", np.float16)] * 2
    assert list(got[2].rows) == [0, 1, 2, 3]


def test_ids_by_batch_reach_the_gradient(tmp_path: Path, make: Make) -> None:
    """A gradient message that knows only its step gets the rows of its embedding."""
    order = {0: [2, 0], 1: [3, 1]}

    def ids(content: Any, context: Any) -> Any:
        return order[context.step] if "arrays" in content.array_records else None

    mod = recorder(tmp_path, ids=ids)
    for s in (0, 1):
        at = SimpleNamespace(step=s)
        query(mod, make, np.full((2, 2), s, np.float32), at, configs={"c": {"step": s}})
    push(
        mod, make, np.ones((2, 2), np.float32), SimpleNamespace(step=9), configs={"c": {"step": 0}}
    )
    assert [list(m.rows) for m in found(tmp_path)] == [[2, 0], [3, 1], [2, 0]]


def test_other_names_and_other_messages(tmp_path: Path, make: Make) -> None:
    mod = recorder(tmp_path, embedding="out/h", gradient="in/dh", step="batch")
    h = np.ones((N, 2), np.float32)
    mod(
        make(configs={"c": {"batch": 5}}),
        None,
        lambda *_: make({"out/h": h, "arrays/embedding": h}),
    )
    mod(make({"in/dh": h}, {"c": {"batch": 5}}, kind="train.x"), None, lambda *_: make())
    mod(make(kind="train"), None, lambda *_: make())
    assert [(m.kind, m.step) for m in found(tmp_path)] == [("embedding", 5), ("gradient", 5)]


def test_evaluation_is_its_own_phase(tmp_path: Path, make: Make) -> None:
    mod = recorder(tmp_path)
    query(mod, make, np.ones((N, 2), np.float32), kind="evaluate.embeddings")
    query(mod, make, np.ones((N, 2), np.float32), kind="evaluate")
    query(mod, make, np.ones((N, 2), np.float32), kind="train")
    assert [m.phase for m in found(tmp_path)] == ["eval", "eval", "train"]


def test_an_app_that_serves_several_parties(tmp_path: Path, make: Make) -> None:
    """As in a simulation: one app, a party and a folder for each node; one is not recorded."""

    def who(context: Any) -> Any:
        names = {0: "bank", 1: {"party": "shop", "folder": tmp_path / "two/trace"}, 2: ""}
        return names[context.node]

    mod = recorder(tmp_path, party=who)
    for node in (0, 1, 2, 0):
        query(mod, make, np.full((N, 2), node, np.float32), SimpleNamespace(node=node))
    assert [m.values[0, 0] for m in read(tmp_path / "trace" / "bank")] == [0, 0]
    assert [m.values[0, 0] for m in found(tmp_path / "two", "shop")] == [1]


def test_an_app_that_fails_has_seen_its_gradient(tmp_path: Path, make: Make) -> None:
    mod = recorder(tmp_path)

    def fails(*_: Any) -> Any:
        raise RuntimeError("no")

    message = make({"gradients/local-gradients": np.ones((N, 2), np.float32)}, kind="train.x")
    with pytest.raises(RuntimeError, match="no"):
        mod(message, None, fails)
    assert [m.kind for m in found(tmp_path)] == ["gradient"]


class Grid:
    """A grid with two nodes that answer at once; keeps what was pushed."""

    def __init__(self, make: Make) -> None:
        self.make, self.pushed, self.run = make, [], SimpleNamespace(run_id=7)

    def answer(self, messages: Any) -> Any:
        return [
            self.make({"arrays/embedding": np.full((N, 2), m.metadata.dst_node_id, np.float32)},
                      {"config": {"pos": m.metadata.dst_node_id - 10}}, src=m.metadata.dst_node_id)
            for m in messages
        ]  # fmt: skip

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
        return self.answer(list(messages)[::-1])

    def push_messages(self, messages: Any) -> Any:
        self.pushed += list(messages)
        return ["id"] * len(self.pushed)

    def pull_messages(self, message_ids: Any) -> Any:
        return self.answer(self.pushed)


def test_the_server_records_both_ways_of_sending(tmp_path: Path, make: Make) -> None:
    grid = flower.ServerTap(
        Grid(make), tmp_path / "trace", party="shop", rows=N, ids="all", classes=2,
        peer=lambda reply: f"b{reply.content.config_records['config']['pos']}",
        parties={"shop": "active", "b0": "passive", "b1": "passive"}, loss_reduction="mean",
    )  # fmt: skip
    assert grid.run.run_id == 7, "all else is the grid's own"
    say = {"config": {"step": 4}}
    replies = grid.send_and_receive(iter([make(configs=say, dst=d) for d in (10, 11)]), timeout=3)
    assert [r.metadata.src_node_id for r in replies] == [11, 10]
    gradient = {"gradients/local-gradients": np.full((N, 2), 0.5, np.float32)}
    grid.push_messages(
        make(gradient, say, kind="train.apply_gradients", dst=d) for d in (10, 11)
    )  # fmt: skip
    assert len(grid._grid.pushed) == 2
    grid.pull_messages(["x"])
    grid.close()
    got = found(tmp_path, "shop")
    assert [(m.kind, m.sender, m.receiver, m.step) for m in got] == [
        ("embedding", "b1", "shop", 4), ("embedding", "b0", "shop", 4),
        ("gradient", "shop", "b0", 4), ("gradient", "shop", "b1", 4),
        ("embedding", "b0", "shop", None), ("embedding", "b1", "shop", None),
    ]  # fmt: skip
    assert [m.pair for m in got] == [None, None, 1, 0, None, None]


def test_errors_are_one_sentence(tmp_path: Path, make: Make) -> None:
    with pytest.raises(ConfigError, match="embedding must be 'record/key'"):
        recorder(tmp_path, embedding="embedding")
    with pytest.raises(ConfigError, match="ids must be one of 'all'"):
        recorder(tmp_path, ids="some")
    with pytest.raises(ConfigError, match="loss_reduction"):
        recorder(tmp_path, loss_reduction="average")
    tap = flower.ServerTap(
        Grid(make), tmp_path / "trace", party="shop", peer=lambda _: "passive", rows=N
    )
    message = make({"gradients/local-gradients": np.ones((N, 2), np.float32)}, dst=3)
    with pytest.raises(ConfigError, match="flower: 3"):
        tap.push_messages([message])
    assert not (tmp_path / "trace").exists()


def test_without_flower(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from vflsec.trace.adapters import base as adapter_base

    def missing(name: str) -> str:
        raise adapter_base.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(adapter_base.metadata, "version", missing)
    with pytest.raises(ConfigError, match=r"pip install 'vflsec\[flower\]'"):
        recorder(tmp_path)
