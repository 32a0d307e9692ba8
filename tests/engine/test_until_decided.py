"""When more seeds are added within a budget."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from vflsec.audit.gate import Gate, Rule, Ruling, Verdict
from vflsec.audit.point import Training
from vflsec.audit.summary import Summary
from vflsec.engine.until_decided import asks_for_seeds


def audit(*rulings: Ruling, code: int = 3) -> Any:
    gates = tuple(Verdict.about(Training("toy"), Gate(max=0.1), r) for r in rulings)
    return SimpleNamespace(found=Summary(gates=gates), verdicts=gates, exit_code=code)


@pytest.mark.parametrize(
    ("seeds", "most", "asks"), [(5, 100, False), (5, 101, True), (10, 200, False)]
)
def test_a_forecast_is_believed_as_far_as_it_looks(seeds: int, most: int, asks: bool) -> None:
    """A budget of 200 seeds was given up at 5, since none of 100 would decide."""
    open_ = Ruling(Rule.UNDECIDED, "", None, stuck=True)
    assert asks_for_seeds(audit(open_), seeds, most) is asks
    assert asks_for_seeds(audit(open_, Ruling(Rule.UNDECIDED, "", 3)), seeds, most)
    assert not asks_for_seeds(audit(open_, code=1), seeds, most)
