"""A defense that works in training alone: what is sent of predicted rows reaches others bare."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sampled import sampled

import vflsec


def scenario(phase: str) -> dict[str, Any]:
    """Noise on embeddings that hides columns, in one phase or in all, with gates on both ways."""
    leak = {"metric": "advantage", "max": 0.15, "defense": "iso", "strength": 25}
    return {
        "data": {"name": "breast_cancer"},
        "algorithm": {"name": "splitnn", "epochs": 3},
        "defense": [{"name": "iso", "on": "embedding", "phase": phase, "strength": [0, 25]}],
        "attack": [
            {
                "name": "embedding_inversion",
                "adversary": "active",
                "aux_rows": 60,
                "variants": ["linear"],
            },
            {"name": "norm"},
        ],
        "gate": [{**leak, "target": "feature"}, {**leak, "target": "label", "max": 0.45}],
        "audit": {"seeds": 5, "references": [], "positive_control": False},
    }


@pytest.mark.parametrize(("phase", "verdict"), sampled([("train", "INCONCLUSIVE"), ("", "PASS")]))
def test_columns_of_predicted_rows_are_not_passed_over(
    phase: str, verdict: str, tmp_path: Path
) -> None:
    """Attacks read messages of training: a defense that is off at prediction passed their gates."""
    result = vflsec.run_audit(scenario(phase), tmp_path, device="cpu")
    columns, labels = result.summary["gates"]
    assert columns["verdict"] == verdict, columns
    said = "iso changes embedding messages of training, not of"
    assert (said in columns["reason"]) is bool(phase)
    assert "recorded" not in columns["reason"], "nothing was: it was trained here"
    assert said not in labels["reason"], "the active party gets embeddings, not gradients"
