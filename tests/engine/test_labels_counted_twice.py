"""Uses of labels counted a second time, at the label tensors themselves and by other code."""

from __future__ import annotations

import sys
from collections import defaultdict
from typing import Any

import pytest
import torch
from sampled import sampled
from torch import Tensor

from vflsec.core import federation
from vflsec.core.privacy_usage import Guarded
from vflsec.plugins import registry
from vflsec.specs import CellSpec, DefenseSpec
from vflsec.testing import small_task
from vflsec.train.cohort import Training
from vflsec.train.mechanism_counts import collect_uses

QUICK = {"epochs": 3, "batch_size": 32, "patience": 0}
SHAPES = {"size", "dim", "__len__", "numel", "__get__"}


class Spied(Tensor):
    """Labels that write down who computed what with them; what comes out is plain."""

    log: Any

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        frame = sys._getframe(1)
        while "/torch/" in frame.f_code.co_filename:
            frame = frame.f_back  # type: ignore[assignment]
        name = getattr(func, "__name__", str(func))
        if name not in SHAPES:
            where = f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_code.co_name}"
            _first(args).log.append((where, name, args))
        with torch._C.DisableTorchFunctionSubclass():
            return func(*_bare(args), **_bare(kwargs or {}))


def spied(y: Tensor, log: list[Any]) -> Spied:
    made: Spied = y.clone().as_subclass(Spied)
    made.log = log
    return made


def _first(value: Any) -> Any:
    if isinstance(value, Spied):
        return value
    found = (
        [f for v in value if (f := _first(v)) is not None]
        if isinstance(value, tuple | list)
        else []
    )
    return found[0] if found else None


def _bare(value: Any) -> Any:
    if isinstance(value, Spied):
        with torch._C.DisableTorchFunctionSubclass():
            return value.as_subclass(Tensor)
    if isinstance(value, tuple | list):
        return type(value)(_bare(v) for v in value)
    if isinstance(value, dict):
        return {k: _bare(v) for k, v in value.items()}
    return value


def watched(
    algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> tuple[Training, list[Any], list[Any]]:
    """A training under gradperturb, and what was done to the given and the handed-out labels."""
    cls: Any = registry.algorithms.get(algorithm)
    world = dict(cls.world)
    task = small_task(0, **world.pop("task", {}))
    known = registry.list_parameters(cls)
    params = {k: v for k, v in {**world, **QUICK}.items() if k in known}
    given: list[Any] = []
    handed: list[Any] = []
    object.__setattr__(task, "y", spied(task.y, given))
    after = federation._build_training_labels
    monkeypatch.setattr(
        federation, "_build_training_labels", lambda *args: spied(after(*args), handed)
    )
    cell = CellSpec(
        {"name": "small"}, algorithm, params, (DefenseSpec("gradperturb", strength=1.0),)
    )
    made = Training([cell, cell], (), {0: task}, torch.device("cpu"))
    for _ in made.run():
        pass
    return made, given, handed


SHARED = {
    "fedbcd": {(3, 15)}, "oneshot": {(20, 12), (16, 12)}, "fewshot": {(39, 29), (31, 29)},
}  # fmt: skip
"""Fetches and uses of a training row where one fetch serves several losses (fedbcd: five local
updates; fewshot: three classifiers), or is handed on for penalties that nobody has (at home, where
rows that are held out are fetched once a pass)."""


@pytest.mark.parametrize(
    "algorithm",
    sampled(
        ["splitnn", "fedcssl", "fedgssl", "fedlocal_ssl", "local", "vflhlp", "ushaped", *SHARED],
        every=3,
    ),
)
def test_labels_are_fetched_as_often_as_the_engine_counts(
    algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row by row, validation included; and nothing but the one door touches labels at all."""
    made, given, handed = watched(algorithm, monkeypatch)
    assert {where for where, _, _ in given} == {"classes.py:stack", "kind.py:compute_prior"}
    assert {where for where, _, _ in handed} == {"federation.py:targets"}
    assert {name for _, name, _ in handed} == {"gather"}
    fetched: dict[int, int] = defaultdict(int)
    for _, _, args in handed:
        for row in args[2][0].tolist():
            fetched[row] += 1
    (binding,) = made.fed.active.bindings
    assert binding.own.uses is not None
    counted = binding.own.uses.total()[0].tolist()
    for name in ("labelled", "validation", "test"):
        rows = made.stack.first.sets[name].tolist()
        found = {(fetched[row], counted[row]) for row in rows}
        if name == "labelled" and algorithm in SHARED:
            assert found == SHARED[algorithm]
        else:
            assert all(f == c for f, c in found)
            assert (name == "test") == (found == {(0, 0)})
    uses = collect_uses(made.fed, made.defenses[0], 0)
    assert uses.past == ()
    assert uses.most == max(counted) >= QUICK["epochs"]


def test_the_spy_sees_what_goes_past_the_door() -> None:
    """A known answer: a look at labels that are not fetched is written down with its place."""
    log: list[Any] = []
    y = spied(torch.tensor([[0, 1, 1]]), log)
    assert y.shape == (1, 3)
    assert log == []
    assert int((y == 1).sum()) == 2
    assert [(where.partition(":")[0], name) for where, name, _ in log] == [
        ("test_labels_counted_twice.py", "__eq__")
    ]
    assert not isinstance(y.gather(1, torch.tensor([[0]])), Spied | Guarded)
