"""On real tables, by defaults and validation rows alone, five seeds each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import vflsec

pytestmark = pytest.mark.real

EMPLOYER = [
    "workclass", "education", "education_num", "occupation", "capital_gain", "capital_loss",
    "hours_per_week", "fnlwgt",
]  # fmt: skip
REGISTRY = ["age", "marital_status", "relationship", "race", "sex", "native_country"]


def audit(out: Path, data: dict[str, Any], attacks: list[dict[str, Any]]) -> Any:
    scenario = {
        "data": data,
        "algorithm": {"name": "splitnn"},
        "attack": attacks,
        "audit": {"seeds": 5, "references": []},
    }
    return vflsec.run_audit(scenario, out, device="cpu").results


def test_credit_default_as_two_files(tmp_path: Path, data_folder: Path) -> None:
    """Test AUC at least 0.755; undefended gradients leak at AUC 0.9 in every seed."""
    folder = data_folder / "credit_default"
    files = {
        "guest": str(folder / "fate_default_credit_hetero_guest.csv.gz"),
        "host": str(folder / "fate_default_credit_hetero_host.csv.gz"),
    }
    attacks = [
        {"name": "norm"},
        {"name": "norm", "accumulate": False},
        {"name": "direction"},
    ]
    results = audit(tmp_path, {"files": files, "id": "id", "label": "y"}, attacks)
    main = results[(results.attack == "") & (results.split == "test") & (results.metric == "auc")]
    assert len(main) == 5
    assert main.value.mean() >= 0.755
    leaked = results[(results.attack != "") & (results.metric == "auc")]
    for attack in ("norm", "norm(accumulate=False)", "direction"):
        found = leaked[leaked.attack == attack]
        assert len(found) == 5
        assert found.value.min() >= 0.9, attack
        assert found.control_value.max() < 0.8, "the control: the host's own ten columns"
        assert not set(found.control) & {"majority", "chance"}, "own columns do tell something"
    batches = results[results.metric == "leak_auc"]
    assert batches.value.min() >= 0.9


def test_completion_on_credit_default_shrinks_its_head(tmp_path: Path, data_folder: Path) -> None:
    """With 20 known rows behind a hidden top layer: test AUC at least 0.69."""
    folder = data_folder / "credit_default"
    files = {
        "guest": str(folder / "fate_default_credit_hetero_guest.csv.gz"),
        "host": str(folder / "fate_default_credit_hetero_host.csv.gz"),
    }
    scenario = {
        "data": {"files": files, "id": "id", "label": "y"},
        "algorithm": {"name": "splitnn", "top": [16], "epochs": 5},
        "attack": [{"name": "model_completion", "known_rows": 20}],
        "audit": {"seeds": 5, "references": []},
    }
    results = vflsec.run_audit(scenario, tmp_path, device="cpu").results
    found = results[(results.attack != "") & (results.metric == "auc") & (results.split == "test")]
    assert len(found) == 5
    assert found.value.mean() >= 0.69


def test_adult_as_one_file_with_column_groups(tmp_path: Path, data_folder: Path) -> None:
    """Test AUC at least 0.895 on the official test rows."""
    data = {
        "file": str(data_folder / "adult" / "adult.csv.gz"),
        "label": "label",
        "split": "split",
        "active": "employer",
        "columns": {"employer": EMPLOYER, "registry": REGISTRY},
    }
    results = audit(tmp_path, data, [{"name": "norm"}])
    main = results[(results.attack == "") & (results.split == "test") & (results.metric == "auc")]
    assert len(main) == 5
    assert main.value.mean() >= 0.895
