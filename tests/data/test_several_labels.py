"""Several yes/no labels of one row: how they are read, refused, divided and permuted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from user_tables import write

from vflsec import load_scenario
from vflsec.core.task import Stack
from vflsec.data.load import load_source
from vflsec.data.prepare import make_task
from vflsec.data.source import Source
from vflsec.data.table_spec import TableSpec
from vflsec.data.tables import load_tables
from vflsec.engine.dry_run import make_plan
from vflsec.errors import ConfigError, DataError
from vflsec.plan.values import Plan
from vflsec.plugins import registry

N = 300
LABELS = ("flu", "asthma")


def tables(folder: Path, **changed: Sequence[Any]) -> dict[str, Path]:
    rng = np.random.default_rng(0)
    columns: dict[str, Any] = {
        "id": np.arange(N), "a": rng.standard_normal(N),
        "flu": np.where(rng.random(N) < 0.3, "yes", "no"), "asthma": rng.integers(0, 2, N),
    }  # fmt: skip
    other = {"id": np.arange(N), "b": rng.standard_normal(N)}
    return {"clinic": write(folder / "clinic.csv", columns | changed),
            "shop": write(folder / "shop.csv", other)}  # fmt: skip


def load(files: dict[str, Path], **more: Any) -> Source:
    return load_tables(
        files, TableSpec(**{"label": LABELS, "id": "id", "task": "multilabel", **more})
    )


def test_each_column_is_read_as_two_classes_are(tmp_path: Path) -> None:
    files = tables(tmp_path)
    source = load(files)
    assert source.active == "clinic"
    assert source.labels == LABELS
    assert source.classes == 0
    assert source.parties["clinic"].names == ("a",)
    assert source.values is not None
    for k, name in enumerate(LABELS):
        alone = load_tables(files, TableSpec(label=name, id="id"))
        assert source.values[:, k].tolist() == alone.y.tolist()
    kinds = {c.name: c for c in source.facts.tables.tables[0].columns}
    assert kinds["flu"].role == kinds["asthma"].role == "label"
    assert "one label of several" in kinds["flu"].kind


def test_a_row_without_any_label_is_a_row_without_a_label(tmp_path: Path) -> None:
    flu, asthma = ["no", "yes"] * (N // 2), [0, 0, 1] * (N // 3)
    source = load(tables(tmp_path, flu=["", *flu[1:]], asthma=["", *asthma[1:]]))
    task = make_task(source, 0)
    assert int(task.y[0]) == -1
    assert all(0 not in task.sets[s].tolist() for s in ("labelled", "validation", "test"))
    assert source.facts.unlabelled == 1
    assert int(task.of_label("flu").y[0]) == -1


def test_a_row_with_some_labels_is_refused_with_its_place(tmp_path: Path) -> None:
    asthma: list[Any] = [0, 0, 1] * (N // 3)
    asthma[4] = asthma[9] = ""
    with pytest.raises(DataError, match=r"'asthma'.*row 6.*2 such rows"):
        load(tables(tmp_path, asthma=asthma))


@pytest.mark.parametrize(
    ("changed", "more", "said"),
    [
        ({"asthma": [0, 1, 2] * (N // 3)}, {}, "'asthma' must have two classes"),
        ({"asthma": [1] * N}, {}, "at least two classes"),
        ({}, {"label": "flu"}, "a list of two columns or more"),
        ({}, {"label": ["flu"]}, "a list of two columns or more"),
        ({}, {"label": ["flu", "flu"]}, "'flu' twice"),
        ({}, {"label": ["flu", "asthme"]}, "Did you mean 'asthma'"),
        ({}, {"label": ["flu", "b"]}, "columns of one table"),
        ({}, {"task": "classification"}, 'need task = "multilabel"'),
        ({}, {"task": "regression"}, 'need task = "multilabel"'),
        ({}, {"label": ["flu", "a\x1b[2J"]}, "printable"),
        ({}, {"drop_classes": ["no"]}, "stand without"),
    ],
)
def test_what_are_no_several_labels_is_refused(
    tmp_path: Path, changed: dict[str, Any], more: dict[str, Any], said: str
) -> None:
    with pytest.raises(DataError, match=said):
        load(tables(tmp_path, **changed), **more)


def test_a_label_that_is_almost_nowhere_is_refused(tmp_path: Path) -> None:
    source = load(tables(tmp_path, asthma=[1, *[0] * (N - 1)]))
    with pytest.raises(DataError, match=r"'asthma' must have two values.*Leave it out"):
        make_task(source, 0)


def ones(*rows: int) -> list[int]:
    return [int(k in rows) for k in range(N)]


THREE = ("flu", "asthma", "ms")


def test_rare_labels_are_in_proportion_in_every_set_of_every_seed(tmp_path: Path) -> None:
    """20 and 40 ones of 300; 0.4 of these have the third label, of which half the rows have."""
    changed = {"flu": ones(*range(20)), "asthma": [1 - v for v in ones(*range(20, 60))],
               "ms": ones(*range(0, 20, 5), *range(20, 60, 4), *range(60, 300, 2))}  # fmt: skip
    source = load(tables(tmp_path, **changed), label=THREE)
    for seed in range(10):
        task = make_task(source, seed, test=0.25, validation=0.15)
        assert task.values is not None
        held = {k: task.values[task.sets[k]] for k in ("test", "validation", "labelled")}
        assert [len(v) for v in held.values()] == [75, 45, 180]
        assert [int(v[:, 0].sum()) for v in held.values()] == [5, 3, 12]
        assert [int((1 - v[:, 1]).sum()) for v in held.values()] == [10, 6, 24]


def test_a_label_whose_rows_have_a_rarer_one_too(tmp_path: Path) -> None:
    """Of its own it has one row, which is too few to be divided."""
    changed = {"flu": ones(*range(5)), "asthma": ones(*range(6))}
    source = load(tables(tmp_path, **changed))
    for seed in range(20):
        task = make_task(source, seed)
        assert task.values is not None
        for name, least in (("test", 1), ("validation", 2), ("labelled", 2)):
            assert task.values[task.sets[name]].sum(0).min() >= least


def test_a_seed_without_a_label_is_refused_before_anything_is_trained(tmp_path: Path) -> None:
    """All rows of the third have a rarer label: whether it is tested is left to chance."""
    changed = {"flu": ones(*range(5)), "asthma": ones(*range(5, 10)),
               "ms": ones(0, 1, 2, 5, 6, 7)}  # fmt: skip
    tables(tmp_path, **changed)
    data = {"files": {"clinic": "clinic.csv", "shop": "shop.csv"}, "id": "id",
            "label": list(THREE), "task": "multilabel"}  # fmt: skip
    root = {"data": [data], "algorithm": [{"name": "splitnn"}],
            "audit": {"references": [], "positive_control": False}}  # fmt: skip

    def plan(seeds: int) -> Plan:
        given = {**root, "audit": {**root["audit"], "seeds": seeds}}
        return make_plan(load_scenario(given, base=tmp_path), try_out=False)

    assert len(plan(1).groups[0].cells) == 1
    with pytest.raises(DataError, match=r"'ms' must have two values in at least \d rows of row s"):
        plan(60)


def test_the_section_of_a_scenario_names_them_in_a_list(tmp_path: Path) -> None:
    tables(tmp_path)
    section = {
        "files": {"clinic": "clinic.csv", "shop": "shop.csv"}, "id": "id",
        "label": list(LABELS), "task": "multilabel",
    }  # fmt: skip
    assert load_source(section, 0, tmp_path).labels == LABELS
    with pytest.raises(ConfigError, match="data: label must be a list"):
        load_source(section | {"label": ["flu", 3]}, 0, tmp_path)


def test_one_label_of_several_is_a_problem_of_two_classes(tmp_path: Path) -> None:
    files = tables(tmp_path)
    task = make_task(load(files), 0)
    alone = task.of_label("asthma")
    assert task.values is not None
    assert (task.outputs, task.classes, alone.outputs, alone.classes) == (2, 0, 2, 2)
    assert alone.y.tolist() == task.values[:, 1].tolist()
    assert alone.labels == ()
    assert alone.values is None
    shares = task.values[task.sets["labelled"]].mean(0)
    assert task.prior.tolist() == shares.tolist()
    assert alone.prior.tolist() == pytest.approx([1 - float(shares[1]), float(shares[1])])
    assert task.of_label("") is task
    with pytest.raises(ConfigError, match="asthma"):
        task.of_label("asthme")


@pytest.mark.parametrize("name", ["quantity_gaussian", "several_gaussian"])
def test_the_null_world_permutes_what_a_row_has_together_and_keeps_the_truth(name: str) -> None:
    source = registry.datasets.create(name, {"rows": 400}).load(0)
    plain, null = make_task(source, 0), make_task(source, 0, shuffle_labels=True)
    assert plain.values is not None
    assert null.given is not None
    assert null.values is not None
    assert torch.equal(plain.values, null.values)
    rows = null.sets["labelled"]
    given, true = (v[rows].reshape(len(rows), -1) for v in (null.given, plain.values))
    assert sorted(given.tolist()) == sorted(true.tolist())
    assert not torch.equal(given, true)
    for mine, theirs in zip(given.T, true.T, strict=True):
        assert abs(float(torch.corrcoef(torch.stack([mine, theirs]))[0, 1])) < 0.2  # 4 / sqrt(400)
    handed = Stack.build({0: null}, [0, 0]).labels()
    assert handed.shape == (2, len(source.y), given.shape[1])
    assert handed[0, rows].double().numpy() == pytest.approx(given.numpy(), abs=1e-6)
    if name == "several_gaussian":
        assert torch.equal(handed[0, rows].double(), given)
        assert torch.equal(null.of_label("b").y[rows], true[:, 1].long())
        of = null.of_label("b").given
        assert of is not None
        assert torch.equal(of[rows], given[:, 1].long())


def test_the_world_has_the_labels_that_are_asked_for() -> None:
    made = registry.datasets.create(
        "several_gaussian", {"labels": ["x", "y"], "positive_rate": 0.15, "flips": 0.0}
    )
    source = made.load(3)
    assert source.labels == ("x", "y")
    assert source.values is not None
    assert source.values.shape == (3500, 2)
    assert np.abs(source.values.mean(0) - 0.15).max() < 0.03
    with pytest.raises(ConfigError, match="two different names"):
        registry.datasets.create("several_gaussian", {"labels": ["x"]})
