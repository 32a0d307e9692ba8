"""Counts end to end: a table read, a training by Poisson likelihood, an attack, its figures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import mean_poisson_deviance

from vflsec.audit.metrics import score
from vflsec.core.guess import Guess, Truth
from vflsec.data.prepare import make_task
from vflsec.data.table_spec import TableSpec
from vflsec.data.tables import load_tables
from vflsec.engine.cohort import run_cohort
from vflsec.errors import DataError
from vflsec.label import Counts
from vflsec.measure.prepared import prepare
from vflsec.plugins import registry
from vflsec.specs import AttackSpec, CellSpec


def load(folder: Path, counts: list[float]):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"id": np.arange(300), "a": rng.standard_normal(300), "n": counts})
    frame.to_csv(folder / "bank.csv", index=False)
    other = pd.DataFrame({"id": np.arange(300), "b": rng.standard_normal(300)})
    other.to_csv(folder / "shop.csv", index=False)
    files = {"bank": folder / "bank.csv", "shop": folder / "shop.csv"}
    return load_tables(files, TableSpec(label="n", id="id", task="counts"))


def test_counts_are_read_as_they_are(tmp_path: Path) -> None:
    counts = [float(i % 4) for i in range(300)]
    counts[7] = float("nan")
    source = load(tmp_path, counts)
    task = make_task(source, 0)
    assert source.label == task.label == Counts()
    assert task.values is not None
    assert int(task.y[7]) == -1
    rows = task.sets["labelled"]
    assert torch.equal(task.values[rows], torch.tensor(counts, dtype=torch.float64)[rows])


@pytest.mark.parametrize("odd", [-1.0, 2.5])
def test_what_is_no_count_is_refused(tmp_path: Path, odd: float) -> None:
    with pytest.raises(DataError, match="whole numbers from 0"):
        load(tmp_path, [odd, *(float(i % 4) for i in range(299))])


def test_loss_and_deviance_are_those_of_others() -> None:
    rng = np.random.default_rng(1)
    y, logs = rng.poisson(2.0, (1, 50, 1)).astype(float), rng.standard_normal((1, 50, 1))
    answers, truth = torch.from_numpy(logs).requires_grad_(), torch.from_numpy(y)
    found = Counts().losses(answers, truth)
    other = torch.nn.functional.poisson_nll_loss(answers, truth, reduction="none")
    assert torch.allclose(found, other.squeeze(2))
    (slope,) = torch.autograd.grad(found.sum(), answers)
    assert torch.allclose(slope, answers.exp() - truth)
    rows, means = np.arange(50), np.exp(logs.reshape(-1))
    (told,) = score(
        Guess("count", rows, means), Truth("count", rows, y.reshape(-1)), rows, classes=-1,
        prior=[1.0], metrics=["deviance"],
    )  # fmt: skip
    flat = y.reshape(-1)
    assert told.value == pytest.approx(mean_poisson_deviance(flat, means))
    assert told.chance == pytest.approx(mean_poisson_deviance(flat, np.full(50, flat.mean())))


def test_what_knows_nothing_answers_the_mean() -> None:
    assert Counts().guess_mean(None) == 1.0
    assert Counts().guess_mean(torch.tensor([0.0, 4.0, 5.0])) == 3.0


def test_a_training_learns_counts_and_its_gradients_tell_them() -> None:
    made = registry.datasets.create(
        "count_gaussian",
        {"rows": 400, "test_rows": 200, "validation_rows": 100, "d_passive": 10, "d_active": 5},
    )
    task = replace(make_task(made.load(0), 0), name="counts")
    cell = CellSpec({"name": "c"}, "splitnn", {"epochs": 5})
    specs = [AttackSpec("residual", adversary=("passive",), known_rows=40),
             AttackSpec("norm", adversary=("passive",))]  # fmt: skip
    (result,) = run_cohort([cell], specs, {0: task}, device="cpu")
    by = {(m.attack, m.metric, m.split): m for m in result.measures}
    learnt = by["", "concordance", "test"]
    assert learnt.value is not None
    assert learnt.value > 0.6
    deviance = by["", "deviance", "test"]
    assert deviance.value is not None
    assert deviance.chance is not None
    assert deviance.value < deviance.chance
    attack = prepare(specs)[0].spec.label
    found = by[attack, "concordance", "train"]
    assert found.value is not None
    assert found.value > 0.9
    control = found.controls["mean"]["value"]
    assert control == 0.5
    (refused,) = [m for m in result.measures if m.attack == "norm"]
    assert "the label is a count" in refused.reason
