"""The NVFlare decorator on functions that are called directly; `collab.publish` is not needed.

`tests/foreign/test_tutorial.py` runs them in NVFlare's simulated environment.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from trace_audits import read

from vflsec.errors import ConfigError
from vflsec.trace.adapters import nvflare
from vflsec.trace.reader import Trace

N = 8


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvflare, "version_of", lambda *_: "2.9.0")


def recorder(folder: Path, **how: Any) -> nvflare.Recorder:
    how = {"party": "site-1", "role": "passive", "rows": N, "loss_reduction": "mean"} | how
    return nvflare.recorder(folder / "trace", **how)


def found(folder: Path, party: str = "site-1") -> list[Any]:
    return read(folder / "trace", party)


def test_a_second_site_is_a_party_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All sites import one file, whose recorder names one party and one folder."""
    rec = recorder(tmp_path)
    forward = rec(gives="embedding", ids="ids")(lambda ids: np.full((len(ids), 2), at[0]))
    for at in ((1, "site-1"), (2, "site-2"), (1, "site-1")):
        monkeypatch.setattr(nvflare, "_site", lambda at=at: at[1])
        forward(np.arange(4))
    assert [set(m.values.ravel()) for m in found(tmp_path)] == [{1}, {1}]
    other = read(tmp_path / "trace-site-2", "site-1-site-2")
    assert [set(m.values.ravel()) for m in other] == [{2}]


def test_both_ways_of_a_batch_with_repeated_rows(tmp_path: Path) -> None:
    rec = recorder(tmp_path)

    class Trainer:
        @rec(gives="embedding", ids="batch_indices")
        def forward(self, batch_indices: Any) -> Any:
            """Said of the function."""
            return torch.from_numpy(batch_indices).to(torch.float16).unsqueeze(1) / 4

        @rec(takes={"gradients": "gradient"})
        def backward(self, gradients: Any) -> None:
            gradients.zero_()

        @rec(gives="embedding", ids=lambda at: 4 + at["batch_indices"], phase="eval")
        def validation_forward(self, batch_indices: Any) -> Any:
            return torch.zeros(len(batch_indices), 1, dtype=torch.float16)

    assert Trainer.forward.__doc__ == "Said of the function."
    assert list(inspect.signature(Trainer.forward).parameters) == ["self", "batch_indices"]
    site, g = Trainer(), np.random.default_rng(0)
    for i in range(3):
        rows = g.integers(0, 4, 5)  # as the example draws them, with replacement
        assert site.forward(rows).dtype == torch.float16
        site.validation_forward(batch_indices=np.array([1, 3]))
        site.backward(torch.full((5, 1), i + 0.5, dtype=torch.float16))
    rec.close()
    got = found(tmp_path)
    assert [(m.kind, m.phase) for m in got[:3]] == [
        ("embedding", "train"), ("embedding", "eval"), ("gradient", "train"),
    ]  # fmt: skip
    gradients = [m for m in got if m.kind == "gradient"]
    assert [m.values[0, 0] for m in gradients] == [0.5, 1.5, 2.5], "copied before it is used"
    assert {m.wire_dtype for m in got} == {"float16"}
    for m in gradients:
        sent = got[m.pair]
        assert (sent.kind, sent.phase) == ("embedding", "train")
        assert list(m.rows) == list(sent.rows)
        assert (sent.values[:, 0] * 4 == sent.rows).all()
    assert next(list(m.rows) for m in got if m.phase == "eval") == [5, 7]
    observer = Trace.open(tmp_path / "trace").observer("site-1")
    assert observer.targets("test").tolist() == [5, 7]


def test_at_the_label_party_one_call_has_both(tmp_path: Path) -> None:
    rec = recorder(tmp_path, party="site-2", role="active", classes=2)

    @rec(takes={"activations": "embedding"}, gives={0: "gradient"}, ids="batch_indices")
    def compute_loss(batch_indices: Any, activations: Any) -> Any:
        return activations * 2, {"loss": 0.5}

    for _ in range(2):
        compute_loss([3, 1], activations=np.ones((2, 3), np.float16))
    rec.close()
    got = found(tmp_path, "site-2")
    assert [(m.kind, m.sender, m.pair) for m in got] == [
        ("embedding", "passive", None), ("gradient", "site-2", 0),
        ("embedding", "passive", None), ("gradient", "site-2", 2),
    ]  # fmt: skip
    assert all(list(m.rows) == [3, 1] for m in got)


def test_a_gradient_without_an_embedding_before_it_has_no_pair(tmp_path: Path) -> None:
    rec = recorder(tmp_path)

    @rec(takes={"g": "gradient"})
    def backward(g: Any) -> None: ...

    @rec(gives="embedding", ids="rows")
    def forward(rows: Any) -> Any:
        return None if rows is None else np.ones((len(rows), 1))

    backward(np.ones((2, 1)))
    forward([0, 1])
    backward(np.ones((2, 1)))
    backward(np.ones((2, 1)))
    forward(None)  # a run that was aborted answers nothing
    assert [(m.kind, m.pair) for m in found(tmp_path)] == [
        ("gradient", None), ("embedding", None), ("gradient", 1), ("gradient", None),
    ]  # fmt: skip


def test_a_step_that_both_functions_are_told(tmp_path: Path) -> None:
    rec = recorder(tmp_path)

    @rec(gives="embedding", ids=lambda at: [at["step"]], step="step")
    def forward(step: int) -> Any:
        return np.full((1, 2), step)

    @rec(takes={"g": "gradient"}, step="step")
    def backward(step: int, g: Any) -> None: ...

    forward(0)
    forward(1)
    backward(0, np.zeros((1, 2)))
    assert [(m.step, m.pair) for m in found(tmp_path)] == [(0, None), (1, None), (0, 0)]
    assert list(found(tmp_path)[2].rows) == [0]


def test_errors_are_one_sentence(tmp_path: Path) -> None:
    rec = recorder(tmp_path)
    with pytest.raises(ConfigError, match=r"an argument of forward must be one of 'step'"):

        @rec(gives="embedding", ids="steps")
        def forward(step: int) -> None: ...

    @rec(takes={"z": "embedding"})
    def compute_loss(z: Any) -> None: ...

    with pytest.raises(ConfigError, match="site-1 takes embeddings"):
        compute_loss(np.ones((1, 1)))
    assert not (tmp_path / "trace").exists()
