"""LASER-VFL audited: who is missing is swept, answers without a partner hold, defenses apply."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from by_hand import trained

from vflsec.algorithms.laser import Laser
from vflsec.algorithms.local import Local
from vflsec.algorithms.splitnn import SplitNN
from vflsec.config.problems import ScenarioError
from vflsec.config.scenario import load_scenario
from vflsec.core.task import Stack
from vflsec.data.prepare import make_task
from vflsec.data.sets.imitation import Imitation
from vflsec.engine.run import run_audit
from vflsec.train.loop import compute_auc, predict

pytestmark = pytest.mark.usefixtures("no_reports")

SEEDS = [0, 1, 2]
GONE = ("passive",)


@pytest.fixture(scope="module")
def world() -> Stack:
    drawn = Imitation(rows=800, validation_rows=200, test_rows=2000)
    return Stack.build({s: make_task(drawn.load(s), s, aligned=400) for s in SEEDS}, SEEDS)


def measure(trains: SplitNN, world: Stack, *answers: SplitNN) -> list[torch.Tensor]:
    """Test AUC by seed, of its own answer and of other algorithms' if some are given."""
    trains = replace(trains, epochs=20)
    fed = trained(trains, world, SEEDS)
    rows = world.rows("test")
    y = torch.stack([t.y[r] for t, r in zip(world.tasks, rows, strict=True)])
    with torch.no_grad():
        logits = [predict(of, fed, rows) for of in (trains, *answers)]
    return [compute_auc(of[..., 1] - of[..., 0], y) for of in logits]


def test_without_its_partner_it_is_as_good_as_local_training(world: Stack) -> None:
    """FedSplitNN with its partner's embedding left out is far below; with it, LASER keeps up."""
    (missing,) = measure(Laser(absent=GONE), world)
    (local,) = measure(Local(own_labels=True), world)
    mean, left = measure(SplitNN(aggregation="mean"), world, Laser(absent=GONE))
    (laser,) = measure(Laser(), world)
    assert (missing - local).abs().max() < 0.02
    lost = missing - left
    assert lost.min() > 0.01
    assert lost.mean() > 0.03
    assert (laser - missing).min() > 0.05
    assert (laser - mean).abs().max() < 0.04


def scenario(**more: Any) -> dict[str, Any]:
    return {
        "data": [{"name": "breast_cancer", "params": {"parties": 3}, "aligned": 150}],
        "algorithm": [{"name": "laser", "epochs": 3}],
        "audit": {"seeds": [0, 1], "references": [], "positive_control": False, "canaries": False},
        **more,
    }


def sweep(*absent: list[str]) -> dict[str, Any]:
    return scenario(grid={"algorithm": {"laser": {"absent": list(absent)}}})


def test_missing_parties_are_an_axis_of_a_scenario(tmp_path: Path) -> None:
    made = sweep([], ["passive1"], ["passive1", "passive2"])
    sections = load_scenario(made).resolved()["algorithm"]
    assert [s.get("absent", []) for s in sections] == [[], ["passive1"], ["passive1", "passive2"]]
    found = run_audit(made, tmp_path, device="cpu", jobs=1).results
    main = found[(found.split == "test") & (found.metric == "auc")]
    by_absent = main.groupby("algorithm").value.mean()
    assert len(by_absent) == 3
    assert len(set(by_absent.round(6))) == 3


@pytest.mark.parametrize("absent", [["shop"], ["active", "passive1", "passive2"]])
def test_an_unknown_party_and_nobody_are_refused(tmp_path: Path, absent: list[str]) -> None:
    with pytest.raises(ScenarioError):
        run_audit(sweep([], absent), tmp_path, device="cpu", jobs=1)


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    attacks = [
        {"name": "direction"},
        {"name": "embedding_inversion", "adversary": "active", "aux_rows": 50},
    ]  # fmt: skip
    defenses = [
        {"name": "iso", "choice": "one", "strength": [0.0, 50.0]},
        {"name": "label_dp", "choice": "one", "epsilon": [0.2]},
        {"name": "he_embedding", "choice": "one"},
        {"name": "he_gradient", "choice": "one"},
    ]
    made = scenario(attack=attacks, defense=defenses)
    made["data"] = [{"name": "imitation", "params": {"test_rows": 200}, "aligned": 400}]
    out = tmp_path_factory.mktemp("laser")
    found = run_audit(made, out, device="cpu", jobs=1).results
    return found[(found.role == "audit") & (found.attack != "")]


def worth(found: pd.DataFrame, attack: str, defense: str, strength: float | None = None) -> float:
    """Mean AUC of an attack, or share of variance of columns; NaN where it reads nothing."""
    some = found[(found.attack == attack) & (found.defense == defense) & (found.split != "test")]
    some = some[some.metric == some.primary]
    if strength is not None:
        some = some[some.strength == strength]
    assert len(some) == 2
    return float(some.value.mean())


def test_what_is_read_undefended_and_under_each_defense(attacked: pd.DataFrame) -> None:
    assert worth(attacked, "direction", "iso", 0.0) > 0.99
    assert worth(attacked, "direction", "iso", 50.0) < 0.6
    assert worth(attacked, "direction", "label_dp") < 0.65
    assert worth(attacked, "direction", "he_embedding") > 0.99  # gradients are as they were
    of = attacked[attacked.status == "not-observable"]
    assert {(r.attack, r.defense) for r in of.itertuples()} == {
        ("embedding_inversion", "he_embedding"), ("direction", "he_gradient"),
    }  # fmt: skip
    columns = [worth(attacked, "embedding_inversion", "iso", s) for s in (0.0, 50.0)]
    assert min(columns) > 0.4  # noise on gradients hides no column
