"""A label that is a quantity: how it is read, standardised and refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from user_tables import load_pair

from vflsec.data.prepare import make_task
from vflsec.data.source import Source
from vflsec.errors import DataError


def load(folder: Path, limit: object = None, **more: object) -> Source:
    rng = np.random.default_rng(0)
    values = 5000 + 900 * rng.standard_normal(300) if limit is None else limit
    bank = {"id": np.arange(300), "a": rng.standard_normal(300), "limit": values}
    shop = {"id": np.arange(300), "b": rng.standard_normal(300)}
    return load_pair(folder, bank, shop, label="limit", task="regression", **more)


def test_values_are_in_standard_deviations_of_the_training_rows(tmp_path: Path) -> None:
    source = load(tmp_path)
    assert source.values is not None
    assert source.class_names == ("limit",)
    assert set(source.y.tolist()) == {0}
    task = make_task(source, 3)
    assert task.values is not None
    assert task.classes == 1
    seen = source.values[task.sets["labelled"].numpy()]
    expected = (source.values - seen.mean()) / seen.std()
    assert task.values.numpy() == pytest.approx(expected)
    assert float(task.values[task.sets["test"]].mean()) != 0.0  # fitted on training rows alone


def test_a_missing_value_is_a_row_without_a_label(tmp_path: Path) -> None:
    values = [float(i) for i in range(300)]
    values[7] = float("nan")
    task = make_task(load(tmp_path, values), 0)
    assert int(task.y[7]) == -1
    assert task.values is not None
    assert bool(task.values[7].isnan())
    assert all(7 not in task.sets[s].tolist() for s in ("labelled", "validation", "test"))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (["high", *["1.5"] * 299], "hold finite numbers"),
        ([np.inf, *range(299)], "hold finite numbers"),
        ([4.0] * 300, "have different values"),
    ],
)
def test_what_is_no_quantity_is_refused(tmp_path: Path, values: object, said: str) -> None:
    with pytest.raises(DataError, match=said):
        load(tmp_path, values)


def test_edges_and_a_quantity_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="stand without"):
        load(tmp_path, label_edges=[1.0])
