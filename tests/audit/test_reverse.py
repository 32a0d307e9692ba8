"""Hits at few false alarms are weighed at both ends of a ranking, and guesses are not accused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gate_rows import one, rows

from vflsec.audit.gate import Gate
from vflsec.audit.metrics import score
from vflsec.guess import Guess, Truth


def hits(scores: Any, y: Any, seed: int) -> list[dict[str, Any]]:
    """AUC and hits at 1 % false alarms of real scores (n,), as rows of results."""
    n = np.arange(len(y))
    found = score(
        Guess("label", n, scores), Truth("label", n, y), n, classes=2,
        prior=np.bincount(y) / len(y), metrics=["auc", "tpr_at_1pct_fpr"],
    )  # fmt: skip
    own = {"auc": 0.5, "tpr_at_1pct_fpr": 0.01}
    return [
        r | {
            "cell": f"{seed}", "seed": seed, "metric": f.metric, "primary": "auc",
            "value": f.value, "turned": f.turned, "chance": f.chance,
            "controls": {"majority": {"value": own[f.metric], "cv": None}},
        }
        for f in found
        for r in rows(0.0, (0.0,))
    ]  # fmt: skip


HITS = (Gate("tpr_at_1pct_fpr", max=0.05), Gate(max=0.05, of="tpr_at_1pct_fpr"))


def test_surest_rows_in_reverse_are_never_a_pass() -> None:
    """AUC 0.57 on five seeds, and a fifth of the positives, alone at the bottom, named by nothing:
    turned round they are named without a false alarm. Both gates passed.
    """
    draw = np.random.default_rng(0)
    records = []
    for seed in range(5):
        y = (draw.random(600) < 0.3).astype(int)
        scores = draw.normal(size=600) + 0.8 * y
        scores[(draw.random(600) < 0.2) & (y == 1)] -= 9
        records += hits(scores, y, seed)
    by = {m: [r for r in records if r["metric"] == m] for m in ("auc", "tpr_at_1pct_fpr")}
    assert np.mean([r["value"] for r in by["auc"]]) > 0.53
    assert max(r["value"] for r in by["tpr_at_1pct_fpr"]) < 0.1
    assert min(r["turned"] for r in by["tpr_at_1pct_fpr"]) > 0.15
    wide = (Gate("tpr_at_1pct_fpr", max=0.12), Gate(max=0.12, of="tpr_at_1pct_fpr"))
    for gate in wide:
        found = one(records, gate)
        assert found.verdict == "INCONCLUSIVE"
        assert "ranks in reverse: turned round it would be 0." in found.reason
        assert one([r | {"turned": None} for r in records], gate).verdict == "PASS"  # as it was
    assert all(r["turned"] is None for r in by["auc"])  # 1 less the value says it


def test_looking_at_both_ends_accuses_no_guesses() -> None:
    """Of 200 audits of scores that know nothing none fails, and nearly all pass at 0.05; both ends
    name as many as each other, about the 1 % of chance.
    """
    draw = np.random.default_rng(1)
    seen: dict[str, list[float]] = {"value": [], "turned": []}
    verdicts = []
    for _ in range(200):
        records = []
        for seed in range(5):
            records += hits(draw.normal(size=600), (draw.random(600) < 0.3).astype(int), seed)
        few = [r for r in records if r["metric"] == "tpr_at_1pct_fpr"]
        for key in seen:
            seen[key] += [r[key] for r in few]
        verdicts += [one(records, gate).verdict for gate in HITS]
    assert verdicts.count("FAIL") == 0
    assert verdicts.count("PASS") >= 0.98 * len(verdicts)
    both = {key: np.mean(v) for key, v in seen.items()}
    error = np.std(seen["value"]) / np.sqrt(len(seen["value"]))
    assert abs(both["value"] - both["turned"]) < 4 * np.sqrt(2) * error
    # 4 of 420 are allowed: the k-th largest of m is beaten by 5/421 of others
    assert both["value"] == pytest.approx(5 / 421, abs=4 * error + 5e-4)
