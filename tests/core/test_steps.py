"""Which epochs of own optimisation steps are kept: a bounded number, and the same in company."""

from __future__ import annotations

import pytest
import torch

from vflsec.core import step_sampling
from vflsec.core.channel import Recorder
from vflsec.core.needs import Need
from vflsec.core.step_sampling import Spread


def epochs(each: int, of: int = 40) -> list[int]:
    """Epochs that are kept where each is a single step of so many bytes."""
    spread, held = Spread(), [torch.zeros(each, dtype=torch.uint8)]
    return [e for e in range(of) if spread.takes(e, e, held)]


def test_epochs_thin_out() -> None:
    assert epochs(8) == [*range(8), 8, 10, 12, 14, 16, 20, 24, 28, 32]


def test_large_steps_leave_room_for_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_sampling, "ROOM", 20)
    assert epochs(10) == [0, 1, 2, 4, 8, 16, 32]
    assert epochs(5) == [0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32]
    assert epochs(11) == [0]


def test_a_training_that_begins_anew_is_counted_anew() -> None:
    spread, held = Spread(), [torch.zeros(4)]
    seen = [(spread.takes(e, s, held), spread.turn) for e, s in [(0, 0), (0, 1), (0, 0), (1, 2)]]
    assert seen == [(True, 0), (True, 0), (True, 1), (True, 1)]


@pytest.mark.parametrize("forms", [("first",), ("spread",), ("all",), ("spread", "all")])
def test_a_recorder_keeps_what_was_asked_for(forms: tuple[str, ...]) -> None:
    keys = [Recorder.wants("p", Need("parameter_gradient", f)) for f in forms]
    recorder = Recorder([k for k in keys if k], 2, 4)
    made = {"w": torch.zeros(2, 3)}
    for epoch in range(12):
        rows = torch.arange(4).expand(2, 4)
        recorder.add_update("p", "train", epoch, epoch, rows, made, made, None)
    kept = [u.epoch for u in recorder.updates(1, ["p"], "train")["p"]]
    expected = {"first": [0], "spread": [*range(9), 10], "all": [*range(12)]}
    assert kept == expected[forms[-1]]
