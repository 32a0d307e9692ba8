"""A training with all defenses at strength 0 is not made again where the plan has it without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

import vflsec
from vflsec.storage.store import Store

SECTIONS: dict[str, Any] = {
    "name": "repeated",
    "data": {"name": "control_gaussian"},
    "algorithm": {"name": "splitnn", "epochs": 1},
    "defense": [{"name": "iso", "strength": [0, 5]}],
    "attack": [{"name": "norm"}, {"name": "model_completion", "variants": ["logistic"]}],
    "audit": {"seeds": 2, "references": []},
    "gate": [{"max": 0.1, "dataset": "control_gaussian", "defense": "iso", "strength": 5}],
}


def test_what_is_switched_off_is_repeated_bit_for_bit(tmp_path: Path) -> None:
    """Beside the same audit with kept views, in which every training is made."""
    found, made = (
        vflsec.run_audit(SECTIONS, tmp_path / name, device="cpu", keep_views=keep)
        for name, keep in (("found", False), ("made", True))
    )
    pd.testing.assert_frame_equal(found.results, made.results, check_exact=True)
    seconds = {}
    for name in ("found", "made"):
        with Store(tmp_path / name, readonly=True) as store:
            cells = store.results(dict.fromkeys(found.results["cell"].unique(), ()))
        control = [r for r in cells if not r.spec.defenses and "params" not in r.spec.data]
        seconds[name] = [r.spec.seed for r in control if r.seconds == 0]
        assert len(control) == 5
        assert all(r.ledger and not r.guarantees for r in control)
    assert seconds == {"found": [0, 1], "made": []}  # as many seeds as the audit has
