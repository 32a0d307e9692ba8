"""A control that takes too long leaves its attack without a figure, not with a better one."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from attack_views import PARTY, make_view

import vflsec
from vflsec.core.guess import Guess
from vflsec.engine.trace_attacks import _strip
from vflsec.errors import ConfigError
from vflsec.measure import control_maker
from vflsec.measure.attack import Answer
from vflsec.measure.controls import Control
from vflsec.measure.prepared import prepare
from vflsec.specs import AttackSpec

pytestmark = pytest.mark.usefixtures("no_reports")

SCENARIO: dict[str, Any] = {
    "data": [{"name": "control_gaussian", "params": {"rows": 300, "test_rows": 100}}],
    "algorithm": [{"name": "splitnn", "hidden": [8], "cut": 4, "epochs": 1}],
    "attack": [
        {"name": "direction", "known_rows": 10},
        {"name": "spectral", "known_rows": 10, "dosing": [0.5]},
    ],
    "audit": {
        "seeds": [0, 1, 2], "references": [], "positive_control": False, "canaries": False,
        "timeout": 1.0,
    },
}  # fmt: skip


def test_a_control_that_takes_too_long_is_not_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it an attack that reads only its own columns counts as alive; it is asked for once,
    and an attack has no dose without its controls.
    """
    calls: list[str] = []
    real = control_maker.guess_untrained

    def late(of: Any, *rest: Any) -> Any:
        if of.name != "spectral":
            return real(of, *rest)
        calls.append(of.name)
        time.sleep(60)
        raise AssertionError("not interrupted")

    monkeypatch.setattr(control_maker, "guess_untrained", late)
    found = vflsec.run_audit(SCENARIO, tmp_path, device="cpu").results
    of = found[found.attack == "spectral"]
    assert set(of.status) == {"error"}
    assert of.reason.str.contains(
        "the untrained control of 'spectral'.*took longer than its timeout of 3 s"
    ).all()
    assert calls == ["spectral"]
    assert set(found[found.attack == "direction"].status) == {"ok"}


def test_so_is_an_answer_about_a_trace() -> None:
    """Whose controls are made when the trace is let go."""
    (of,) = prepare([AttackSpec("direction", adversary=(PARTY,))])
    rows, g = torch.arange(4), torch.ones(4, 2)
    view = make_view(torch.tensor([0, 1, 0, 1]), gradients=g)
    guess = Guess("label", rows, g[:, 0])

    def late() -> list[Any]:
        raise ConfigError("the control took longer than its timeout.")

    answer = Answer(of, "train", view, guess, controls=late)
    found = _strip(answer)
    assert (found.status, found.guess) == ("error", None)
    assert found.reason == "the control took longer than its timeout."
    assert list(found.controls()) == []
    made = [Control("alone", guess, 0.5)]
    sound = _strip(Answer(of, "train", view, guess, controls=lambda: made))
    assert (sound.status, sound.guess, sound.controls()) == ("ok", guess, made)
