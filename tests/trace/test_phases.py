"""Messages of a phase that attacks do not look at: it is said, where verdicts are read too."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from trace_audits import audit, record

from vflsec.cli import main
from vflsec.core.visibility import looked_at

N = 120
Y = np.arange(N) % 3 % 2


def recorded(folder: Path, kind: str, phase: str) -> list[str]:
    """Two epochs of noise; in the first, as `kind` in `phase`, messages that are the label."""
    g = torch.Generator().manual_seed(0)
    with record(folder / "t", Y, np.arange(12), prior=(2 / 3, 1 / 3)) as rec:
        for step, ids in enumerate(torch.randperm(N, generator=g).split(32)):
            noise = torch.randn(len(ids), 3, generator=g)
            rec.tell("gradient", noise, ids, sent=False, step=step)
            told = torch.from_numpy(Y)[ids].unsqueeze(1).float()
            rec.tell(kind, told, ids, sent=False, step=step, phase=phase)
    result = audit(folder, [folder / "t"], ("similarity",), Y)
    (row,) = result.results.query("metric == 'auc'").to_dict("records")
    assert abs(row["value"] - 0.5) < 0.2  # noise, whatever stands in the other phase
    return [n for n in result.summary["notes"] if "unseen by attacks" in n]


@pytest.mark.parametrize(
    ("kind", "phase"), [("gradient", "warmup"), ("gradient", "eval"), ("state", "eval")]
)
def test_a_leak_in_another_phase_is_said_to_be_unread(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, phase: str
) -> None:
    """The labels themselves: attacks were at chance and nothing said why."""
    (note,) = recorded(tmp_path, kind, phase)
    assert f"{kind} messages of phase {phase!r} came to bank" in note
    assert "on phase 'train'" in note
    words = ["trace", "score", str(tmp_path / "g"), "--truth", str(tmp_path / "y")]
    main.main([*words, "--out", str(tmp_path / "p")])
    assert f"note: {note}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("kind", "phase"),
    [("embedding", "eval"), ("prediction", "predict"), ("prediction", "eval"), ("ids", "warmup")],
)
def test_what_is_read_or_never_is_not_said(tmp_path: Path, kind: str, phase: str) -> None:
    assert recorded(tmp_path, kind, phase) == []


def test_of_predicting_answers_are_looked_at() -> None:
    seen = {
        (k, p) for k in ("gradient", "embedding", "prediction")
        for p in ("pre", "train", "eval", "predict") if looked_at(k, p, {"train"})
    }  # fmt: skip
    assert seen == {
        ("gradient", "train"), ("embedding", "train"), ("prediction", "train"),
        ("embedding", "eval"), ("embedding", "predict"), ("prediction", "predict"),
        ("prediction", "eval"),
    }  # fmt: skip
