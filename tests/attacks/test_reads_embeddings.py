"""What every attack that reads embeddings keeps to: it asks for its needs, and company is none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from attack_views import PARTY, feature_view, rng
from sampled import sampled
from torch import nn

from vflsec.core.rng import as_global
from vflsec.core.view import View, as_needs
from vflsec.engine.cohort import run_cohort
from vflsec.errors import ThreatModelError
from vflsec.plugins import registry
from vflsec.specs import AttackSpec, CellSpec
from vflsec.testing import small_task

QUICK: list[tuple[str, dict[str, Any]]] = [
    ("attribute", {}), ("property", {}), ("equation_solving", {"equations": "embedding"}),
    ("embedding_inversion", {"steps": 20, "variants": ("network",)}), ("sdar", {"steps": 8}),
    ("grn", {"epochs": 2, "batch": 32, "match": "prediction"}), ("unsplit_input", {"rounds": 2}),
    ("fsha", {}), ("fsha", {"use": "critic"}),
]  # fmt: skip


def world(seed: int = 0, n: int = 80) -> View:
    """Two columns behind a linear layer, own columns and labels, and every grant there is."""
    x, own = (torch.randn(n, 2, generator=rng(s), dtype=torch.float64) for s in (seed, seed + 50))
    with as_global(rng(seed + 100)):
        mine, theirs, top = (nn.Linear(2, 3), nn.Linear(2, 3), nn.Linear(6, 2))
    models = {"active": {"bottom": mine.double(), "top": top.double()},
              PARTY: {"bottom": theirs.double()}}  # fmt: skip
    facts = {"widths": {"active": 3, PARTY: 3}, "extra": {"hidden": ()}}
    view = feature_view(own, x, theirs(x).detach(), aux=24, models=models, facts=facts)
    return replace(view, labels=(x[:, 0] > 0).long())


@pytest.mark.parametrize(("name", "params"), sampled(QUICK))
def test_replicas_in_one_batch_equal_replicas_alone(name: str, params: dict[str, Any]) -> None:
    attack, views = registry.attacks.create(name, params), [world(s) for s in range(2)]
    together = attack.infer_many(views, [rng(0), rng(1)])
    for s, view in enumerate(views):
        alone = attack.infer(view, rng(s))
        assert np.array_equal(alone.rows, together[s].rows)
        np.testing.assert_allclose(alone.scores, together[s].scores, atol=1e-5)


@pytest.mark.parametrize(("name", "params"), QUICK)
def test_it_asks_for_what_it_needs_and_answers_no_auxiliary_row(
    name: str, params: dict[str, Any]
) -> None:
    """Without any one of its needs it raises, and guesses nothing."""
    attack, view = registry.attacks.create(name, params), world()
    lacking = {
        "aux_rows": replace(view, aux=None), "labels": replace(view, labels=None),
        "peer_model": replace(view, models={"active": view.models["active"]}),
        "embedding": replace(view, tables={}),
    }  # fmt: skip
    needs = {need.kind or need.what for need in as_needs(attack.needs)}
    assert needs <= lacking.keys()
    for need in needs:
        with pytest.raises(ThreatModelError) as refused:
            attack.infer(lacking[need], rng())
        assert SAID.get(need, need) in str(refused.value)
    assert attack.infer(view, rng()).rows.tolist() == view.targets["train"].tolist()


OWN = {"mean", "linear", "network", "entry", "labelled", "labelled, network", "labelled, entry",
       "chosen"}  # fmt: skip
SUMMED = {"hidden": (), "top": (), "linear_top": False, "aggregation": "sum", "lr": 1e-12}
SAID = {"labels": "labels of its own", "peer_model": "model"}
"""What a refusal says of a need, where that is not its name."""
COHORT: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any], tuple[float, ...], Any]] = [
    ("attribute", {}, {"n": 400}, {"epochs": 4}, (0.85, 160, 0.7), {"majority", "logistic"}),
    ("attribute", {"ask": "largest tenth"}, {"n": 600}, {"epochs": 4}, (0.85, 280, 0.75),
     {"majority", "logistic", "value, linear"}),
    ("embedding_inversion", {}, {"n": 400}, {"epochs": 4}, (0.45, 160, 0.1), OWN),
    ("sdar", {"steps": 20}, {"classes": 3}, {"epochs": 2}, (-0.1, 64, 0.1), OWN),
    ("unsplit_input", {"weights": "granted"}, {}, {"epochs": 2, "hidden": ()}, (0.8, 124, 0.1),
     {"mean"}),
    ("equation_solving", {"equations": "embedding"}, {"widths": (4, 3), "classes": 3},
     {"epochs": 1, **SUMMED}, (1 - 1e-6, 124, 0.1), {"mean"}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "params", "of", "training", "found", "beside"),
    sampled(COHORT),
)
def test_in_a_cohort_it_stands_beside_controls_of_what_it_reads(
    name: str, params: dict[str, Any], of: dict[str, Any], training: dict[str, Any],
    found: tuple[float, ...], beside: set[str],
) -> None:  # fmt: skip
    """The least of its figure, on how many rows, and the most of a control; of an attribute, which
    the label tells something of, of one that does not know it.
    """
    peer = "peer_model" in registry.attacks.create(name, params).needs
    spec = AttackSpec(name, params, ("active",), aux_rows=0 if peer else 60, peer_model=peer)
    cell = CellSpec({"name": "s"}, "splitnn", {"cut": 8, **training})
    (result,) = run_cohort([cell], [spec], {0: small_task(0, **of)}, device="cpu", main=False)
    one, *_ = (m for m in result.measures if m.metric in ("auc", "r2"))
    target = "attribute" if name == "attribute" else "feature"
    assert (one.target, one.split, one.adversary) == (target, "train", "active")
    assert (one.n, one.notes["victim"]) == (found[1], PARTY)
    assert beside <= set(one.controls)
    assert name == "attribute" or beside == set(one.controls)
    assert one.value is not None
    assert one.value > found[0]
    told = {k: c["value"] for k, c in one.controls.items() if "labelled" not in k or beside == OWN}
    assert max(told.values()) < found[2]  # type: ignore[type-var]
    for best in (m for m in result.measures if m.metric == "r2_column"):
        assert (best.target, best.split, best.n) == ("feature", "train", one.n)
        assert best.value is not None
        assert best.value > 0.6
