"""Views of a training with a server are kept: it is an end of messages, and no party."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vflsec
from vflsec.core.channel import Recorder
from vflsec.core.federation import Federation
from vflsec.errors import ConfigError, ThreatModelError
from vflsec.plugins import registry
from vflsec.specs import AttackSpec
from vflsec.testing import small_stack, small_task, train
from vflsec.trace.reader import Trace
from vflsec.train.export import Export
from vflsec.train.loop import run_phases
from vflsec.train.views import make_view


def test_a_coordinator_is_an_end_of_messages(tmp_path: Path) -> None:
    algorithm: Any = registry.algorithms.create("vertical_glm", {"epochs": 2})
    task, specs = small_task(0), [AttackSpec("", adversary=("passive1",), known_rows=0)]
    recorder = Recorder((), 2, len(task.y))
    fed = Federation.create(small_stack([0, 0]), [0, 0], {}, recorder)
    algorithm.build(fed)
    export = Export(tmp_path / "t", task, specs, servers=algorithm.servers)
    recorder.taps.append(export)
    for _ in run_phases(algorithm, fed):
        export.moment(algorithm, fed, {})
    export.close()
    trace = Trace.open(tmp_path / "t")
    assert trace.manifest.names == ("active", "passive1")
    assert trace.manifest.ends == ("active", "passive1", "coordinator")
    got = [m for m in trace.observer("passive1").messages() if m.sender == "coordinator"]
    assert [m.kind for m in got] == ["model_gradient", "signal"] * 2
    assert got[0].values is not None
    assert got[0].values.shape == (6, 1)


def test_the_coordinator_alone_reads_a_loss() -> None:
    """The active party adds it up of ciphers, which it cannot open."""
    algorithm: Any = registry.algorithms.create("vertical_glm", {"epochs": 2, "batch_size": 50})
    ways = [("coordinator", "received"), ("active", "sent")]
    wanted = [(*way, "loss", "all") for way in ways]
    made = train(algorithm, small_stack([0, 0]), [0, 0], wanted=wanted)
    views = {
        p: make_view(algorithm, made.fed, {}, AttackSpec("", adversary=(p,)), 0)
        for p in ("coordinator", "active")
    }
    batches = len(made.fed.extra["learners"][(0, 1)].batches)
    assert views["coordinator"].received("loss", "all").tensor.shape == (2 * batches, 1)
    with pytest.raises(ThreatModelError):
        views["active"].sent("loss", "all")
    counted = {
        (row["kind"], row["name"], row["receiver"]): (row["messages"], row["elements"])
        for row in made.fed.channel.ledger.of(0)
    }
    assert counted["loss", "", "coordinator"] == (2 * batches, 2 * batches)
    assert counted["ciphertext", "squares", "active"] == (2 * batches, 2 * batches)
    assert counted["signal", "converge", "passive1"] == (2, 2)
    assert counted["signal", "label_count", "coordinator"] == (1, 1)


def test_a_recorder_may_hear_a_server(tmp_path: Path) -> None:
    """Of FATE: the arbiter is named with its role."""
    roles = {"host": "passive", "guest": "active", "arbiter": "server"}
    with vflsec.record(
        tmp_path / "t", party="host", role="passive", rows=4, peer="guest", parties=roles
    ) as rec:
        rec.tell("model_gradient", np.ones((3, 1), np.float32), None, sent=False, peer="arbiter")
    trace = Trace.open(tmp_path / "t")
    (message,) = trace.observer("host").messages()
    assert (message.sender, message.receiver) == ("arbiter", "host")
    with pytest.raises(ConfigError, match="record"):
        vflsec.record(tmp_path / "u", party="a", role="passive", rows=4, parties={"a": "judge"})
