"""Messages of which no attack was planned, for the algorithm does not name them."""

from __future__ import annotations

import pytest

from vflsec.algorithms.splitnn import SplitNN
from vflsec.engine.cohort import run_cohort
from vflsec.specs import CellSpec
from vflsec.testing import small_task


@pytest.mark.parametrize(
    ("forgotten", "gaps"),
    [(None, {}), ("ids", {}),  # which no attack reads
     ("gradient", {"passive1": (
         "`sends` of splitnn does not name the gradient messages it gets",)})],
)  # fmt: skip
def test_what_reaches_a_party_unnamed_carries_no_pass(
    forgotten: str | None, gaps: dict[str, tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attacks on it were set aside as not observable, and a gate on the other ones passed."""
    sends = SplitNN.sends
    named = frozenset(m for m in sends if m[0] != forgotten)
    monkeypatch.setattr(SplitNN, "sends", named)
    cell = CellSpec({"name": "small"}, "splitnn", {"epochs": 1})
    (result,) = run_cohort([cell], [], {0: small_task(0)}, device="cpu")
    assert result.facts.undeclared == tuple(sorted({*sends} - named))
    assert result.facts.gaps == gaps
