"""Messages of a phase that attacks do not look at: it is said, where verdicts are read too."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from command_line import Cli
from trace_audits import audit, record, signs

from vflsec.core.visibility import looked_at
from vflsec.trace.manifest import Have, Moment, ObserverInfo
from vflsec.trace.views import find_elsewhere

N = 120
Y = np.arange(N) % 3 % 2


def test_a_leak_in_another_phase_is_said_to_be_unread(tmp_path: Path, cli: Cli) -> None:
    """The labels themselves: attacks were at chance and nothing said why."""
    g = torch.Generator().manual_seed(0)
    with record(tmp_path / "t", Y, np.arange(12), prior=(2 / 3, 1 / 3)) as rec:
        for step, ids in enumerate(torch.randperm(N, generator=g).split(32)):
            noise = torch.randn(len(ids), 3, generator=g)
            rec.tell("gradient", noise, ids, sent=False, step=step)
            rec.tell("state", signs(Y, ids), ids, sent=False, step=step, phase="eval")
    result = audit(tmp_path, [tmp_path / "t"], ("similarity",), Y)
    (row,) = result.results.query("metric == 'auc'").to_dict("records")
    assert abs(row["value"] - 0.5) < 0.2  # noise, whatever stands in the other phase
    (note,) = [n for n in result.summary["notes"] if "unseen by attacks" in n]
    assert "state messages of phase 'eval' came to bank" in note
    words = ["trace", "score", str(tmp_path / "g"), "--truth", str(tmp_path / "y")]
    cli(*words, "--out", tmp_path / "p")
    assert f"note: {note}" in cli.out


@pytest.mark.parametrize(
    ("kind", "phase", "said"),
    [("gradient", "warmup", True), ("gradient", "eval", True), ("state", "eval", True),
     ("embedding", "eval", False), ("prediction", "predict", False), ("prediction", "eval", False),
     ("ids", "warmup", False), ("gradient", "train", False)],
)  # fmt: skip
def test_what_is_read_or_never_is_not_said(kind: str, phase: str, said: bool) -> None:
    came = Have(kind=kind, sender="shop", receiver="bank", phase=phase, epochs="all")
    went = Have(kind=kind, sender="bank", receiver="shop", phase=phase, epochs="all")
    at = [Moment(phase="train", messages=8)]
    found = find_elsewhere(ObserverInfo(party="bank", have=[came, went], moments=at))
    assert len(found) == said
    for clause in found:
        assert f"{kind} messages of phase {phase!r} came to bank" in clause
        assert "on phase 'train'" in clause


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
