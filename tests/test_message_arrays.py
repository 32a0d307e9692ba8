"""Arrays of what a party saw, audited in one call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import vflsec
from vflsec.errors import ConfigError, ShapeError

N, BATCH, EPOCHS = 240, 40, 2
Y = np.arange(N) % 3 // 2


def seen(seed: int, tells: float, **more: Any) -> vflsec.Messages:
    """Gradients that have the label in one direction, in noise."""
    g = np.random.default_rng(seed)
    ids = np.concatenate([g.permutation(N).reshape(-1, BATCH) for _ in range(EPOCHS)])
    gradients = g.standard_normal((*ids.shape, 4))
    gradients[..., 0] += tells * (2.0 * Y[ids] - 1)
    return vflsec.Messages(gradients=gradients, ids=ids, loss_reduction="sum", **more)


def audited(out: Path, tells: float) -> Any:
    return vflsec.audit_messages(
        [seen(s, tells) for s in range(3)], Y, gates=[{"max": 0.1}], out=out,
        attacks=("direction", "message_completion"),
    )  # fmt: skip


def test_a_planted_leak_fails_and_noise_does_not(tmp_path: Path) -> None:
    leaks = audited(tmp_path / "a", 3.0)
    (verdict,) = leaks.summary["gates"]
    assert verdict["verdict"] == "FAIL"
    rows = leaks.results[(leaks.results.attack != "") & (leaks.results.metric == "auc")]
    assert set(rows.n) == {N - 20}  # the known rows are not scored
    assert rows.value.min() > 0.9
    null = audited(tmp_path / "b", 0.0)
    assert null.summary["gates"][0]["verdict"] != "FAIL"
    assert (tmp_path / "b" / "report.html").is_file()
    with pytest.raises(ConfigError, match="holds an audit"):
        audited(tmp_path / "b", 0.0)


@pytest.mark.slow
def test_each_step_may_have_all_rows_and_own_columns(tmp_path: Path) -> None:
    """A quantity, seen in the embedding's gradient, beside columns that have half of it."""
    g = np.random.default_rng(0)
    own, rest = g.standard_normal((2, 80))
    y = own + rest
    m = vflsec.Messages(
        gradients=[torch.from_numpy(np.stack([-y, np.ones(80)], 1))] * 2,
        columns=own[:, None],
    )
    result = vflsec.audit_messages(
        m, y, known=20, out=tmp_path / "o", attacks=("message_completion",)
    )
    (row,) = result.results.query("attack != '' and metric == 'concordance'").itertuples()
    assert row.value > 0.95
    assert 0.6 < row.control_value < 0.9


@pytest.mark.parametrize(
    ("messages", "labels", "error", "says"),
    [
        (vflsec.Messages(), Y, ConfigError, "give gradients"),
        ([], Y, ConfigError, "trainings"),
        (vflsec.Messages(gradients=np.zeros((2, 5, 3))), Y, ShapeError, r"gradient of step 0"),
        (
            vflsec.Messages(gradients=np.zeros((1, 2, 3)), ids=[[0, N]]), Y, ShapeError,
            f"rows 0 to {N - 1}",
        ),
        (
            vflsec.Messages(gradients=np.zeros((2, 2, 3)), ids=[[0, 1]]), Y, ShapeError,
            "one entry a step",
        ),
        *[(seen(0, 1.0), y, ConfigError, "0, 1") for y in (-Y, 0 * Y, Y + 1, 5 * Y, Y / 1)],
        (seen(0, 1.0), np.array(["a"] * N), ShapeError, "must be numbers"),
    ],
)  # fmt: skip
def test_what_does_not_belong_together_is_one_error(
    messages: Any, labels: Any, error: type[Exception], says: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=says):
        vflsec.audit_messages(messages, labels, out=tmp_path / "o")
    assert not (tmp_path / "o").exists()


def test_known_rows_and_gates_that_cannot_be_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"rows 0 to {N - 1}"):
        vflsec.audit_messages(seen(0, 1.0), Y, known=[0, N], out=tmp_path / "a")
    assert not (tmp_path / "a").exists()
    with pytest.raises(ConfigError, match="'max'"):
        vflsec.audit_messages(
            seen(0, 1.0), Y, gates=[{"maxx": 0.1}], attacks=("norm",), out=tmp_path / "b"
        )


def test_rows_that_come_again_begin_an_epoch() -> None:
    from vflsec.message_arrays import _read_steps

    steps = list(_read_steps(seen(0, 1.0), N))
    assert [s.epoch for s in steps] == [0] * 6 + [1] * 6
