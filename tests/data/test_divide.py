"""Columns divided between parties: what a dial of importance or correlation gives to whom."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sampled import sampled

from vflsec.config.problems import ScenarioError
from vflsec.config.scenario import load_scenario
from vflsec.data.divide import Division, compute_icor, rank_correlations, rate_columns
from vflsec.data.load import load_source
from vflsec.data.source import Source
from vflsec.errors import ConfigError, DataError
from vflsec.plan.planner import make_plan

COLUMNS = 16


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """400 rows of 16 columns that say more and more of y, one of them a category."""
    g = np.random.default_rng(3)
    x = g.normal(size=(400, COLUMNS))
    y = (x @ np.arange(COLUMNS) + 8 * g.normal(size=400) > 0).astype(int)
    table = pd.DataFrame({f"c{i}": x[:, i] for i in range(COLUMNS)} | {"y": y})
    table["c15"] = np.where(x[:, 15] > 0, "up", "down")
    table["side"] = np.where(np.arange(400) % 4 == 0, "test", "train")
    table.to_csv(tmp_path / "t.csv", index=False)
    return tmp_path / "t.csv"


def load(path: Path, **divide: Any) -> Source:
    return load_source(
        {"file": path.name, "label": "y", "split": "side", "divide": divide}, 0, path.parent
    )


def columns(source: Source) -> dict[str, tuple[str, ...]]:
    return {p: data.names for p, data in source.parties.items()}


def rated(path: Path) -> np.ndarray:
    """Importance from the training rows, computed beside the package's reading of tables."""
    frame = pd.read_csv(path).query("side == 'train'")
    x = frame[[f"c{i}" for i in range(COLUMNS)]].copy()
    x["c15"] = x["c15"].map({"down": 1, "up": 2})
    sizes = [0] * (COLUMNS - 1) + [2]
    return rate_columns(x.to_numpy(float), sizes, np.eye(2)[frame.y.to_numpy()])


@pytest.mark.parametrize("share", sampled([0.1, 0.8, 0.3, 0.5], 2))
def test_the_passive_party_gets_the_share_that_was_asked(path: Path, share: float) -> None:
    found = columns(load(path, importance=share))
    assert list(found) == ["active", "passive"]
    assert sorted(sum(found.values(), ())) == sorted(f"c{i}" for i in range(COLUMNS))
    parts = rated(path)
    got = sum(parts[int(c[1:])] for c in found["passive"]) / parts.sum()
    assert got == pytest.approx(share, abs=0.01)


def test_three_parties_share_alike(path: Path) -> None:
    found = columns(load(path, importance=0.6, parties=3))
    parts = rated(path)
    got = [sum(parts[int(c[1:])] for c in found[p]) / parts.sum() for p in found]
    assert list(found) == ["active", "passive1", "passive2"]
    np.testing.assert_allclose(got, [0.4, 0.3, 0.3], atol=0.03)


def test_a_draw_is_one_division_for_all_seeds(path: Path) -> None:
    one, again, other = (load(path, importance=0.5, draw=d) for d in (0, 0, 1))
    assert columns(one) == columns(again) != columns(other)
    assert one.digest == again.digest != other.digest
    written = {"file": path.name, "label": "y", "split": "side", "columns": columns(one)}
    listed = load_source(written, 0, path.parent)
    assert listed.digest == one.digest  # as if they were listed
    (note,) = set(one.facts.notes) - set(listed.facts.notes)
    shares = [float(x) for x in re.findall(r"with (\d\.\d+)", note)]
    assert sum(shares) == pytest.approx(1.0, abs=1e-3)
    counts = [int(x) for x in re.findall(r"(\d+) columns with", note)]
    assert counts == [len(c) for c in columns(one).values()]


@pytest.mark.parametrize("divide", [{"importance": 0.4}, {"correlation": 0.5}])
def test_test_rows_decide_nothing(path: Path, divide: dict[str, Any]) -> None:
    before = columns(load(path, **divide))
    frame = pd.read_csv(path)
    test = frame.side == "test"
    frame.loc[test, "y"] = 1 - frame.y[test]
    frame.loc[test, "c3"] = 1000.0 * frame.y[test]
    frame.to_csv(path, index=False)
    assert columns(load(path, **divide)) == before


def test_parts_are_those_of_r_squared() -> None:
    g = np.random.default_rng(0)
    x = g.normal(size=(500, 3))
    x[::7, 1] = np.nan
    y = (np.nan_to_num(x[:, [1]]) ** 2 + x[:, [0]] + g.normal(size=(500, 1))).round(3)
    parts = rate_columns(x, [0, 0, 0], y)
    bins = [pd.qcut(x[:, j], 8, labels=False) for j in range(3)]
    indicators = [pd.get_dummies(pd.Series(b).fillna(8)).to_numpy(float) for b in bins]
    design = np.concatenate(indicators, axis=1)
    fitted = design @ np.linalg.lstsq(design, y, rcond=None)[0]
    assert parts.sum() == pytest.approx(1 - ((y - fitted) ** 2).sum() / (500 * y.var()), abs=1e-9)
    assert (parts >= 0).all()
    assert parts[2] < 0.05 < 0.2 < min(parts[:2])


def test_uncorrelated_columns_have_their_squared_correlation_and_twins_share() -> None:
    a, b = (c.ravel() for c in np.meshgrid([1, 2], [1, 2, 3, 4]))
    y = (3.0 * (a == 2) + (b > 2))[:, None]
    x = np.stack([a, b], axis=1).astype(float)
    parts = rate_columns(x, [2, 4], y)
    np.testing.assert_allclose(parts, [0.9, 0.1], atol=1e-12)
    twins = rate_columns(x[:, [0, 0, 1]], [2, 2, 4], y)
    np.testing.assert_allclose(twins, [0.45, 0.45, 0.1], atol=1e-12)
    constant = np.concatenate([x, np.ones((8, 1))], axis=1)
    np.testing.assert_allclose(rate_columns(constant, [2, 4, 0], y), [0.9, 0.1, 0.0], atol=1e-12)


@pytest.mark.parametrize("unit", [1e-200, 1e160])
def test_parts_have_no_unit(unit: float) -> None:
    g = np.random.default_rng(0)
    x = g.normal(size=(200, 3))
    y = x[:, [0]] + 0.5 * x[:, [1]]
    parts = rate_columns(x, [0, 0, 0], y)
    np.testing.assert_allclose(rate_columns(x, [0, 0, 0], unit * y), parts, rtol=1e-6)


def test_any_alpha_divides() -> None:
    x = np.random.default_rng(0).normal(size=(20, 6))
    whose, _ = Division(alpha=1e308, parties=3).assign(x, [0] * 6, x[:, :1])
    assert set(whose.tolist()) == {0, 1, 2}


def test_without_a_labelled_training_row_nothing_is_divided(path: Path) -> None:
    frame = pd.read_csv(path)
    frame["side"] = np.where(frame.index % 4 == 0, "test", "validation")
    frame.to_csv(path, index=False)
    with pytest.raises(DataError, match="divide"):
        load(path, importance=0.3)


def test_small_alpha_is_uneven() -> None:
    g = np.random.default_rng(1)
    x, y = g.normal(size=(60, 30)), np.eye(2)[g.integers(2, size=60)]

    def counts(alpha: float) -> np.ndarray:
        found = (Division(alpha=alpha, draw=d).assign(x, [0] * 30, y)[0] for d in range(40))
        return np.array([np.bincount(w, minlength=2)[1] for w in found])

    even, uneven = counts(50.0), counts(0.2)
    assert min(even.min(), uneven.min()) >= 1
    assert max(even.max(), uneven.max()) <= 29
    assert even.std() < 4 < 8 < uneven.std()
    assert even.mean() == pytest.approx(15, abs=1.5)


def test_icor_by_hand() -> None:
    of = np.eye(4)
    of[0, 1] = of[1, 0] = 1.0  # a pair of twins and two others
    together, apart = np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1])
    # twins in one party: singular values (2, 0), (1, 1), and (0, 0) between
    assert compute_icor(of, together) == pytest.approx(-(np.sqrt(2) / np.sqrt(2) + 0) / 2)
    # one each: (1, 1) in both, and (1, 0) between
    assert compute_icor(of, apart) == pytest.approx(np.sqrt(0.5) / np.sqrt(2))


@pytest.mark.parametrize("beta", sampled([1.0, 0.0, 0.4], 2))
def test_correlation_is_that_of_the_best_of_all_divisions(beta: float) -> None:
    g = np.random.default_rng(5)
    x = g.normal(size=(200, 3))[:, [0, 0, 1, 1, 2, 2]] + 0.5 * g.normal(size=(200, 6))
    of = rank_correlations(x)
    np.testing.assert_allclose(of, pd.DataFrame(x).corr("spearman"), atol=1e-12)
    every = []
    for some in combinations(range(6), 3):
        whose = np.ones(6, dtype=np.int64)
        whose[list(some)] = 0
        every.append(compute_icor(of, whose))
    goal = beta * max(every) + (1 - beta) * min(every)
    whose, _ = Division(correlation=beta).assign(x, [0] * 6, np.ones((200, 1)))
    assert np.bincount(whose).tolist() == [3, 3]
    assert abs(compute_icor(of, whose) - goal) == pytest.approx(
        np.abs(np.array(every) - goal).min()
    )


BAD: list[tuple[dict[str, Any], str]] = [
    ({"divide": {}}, "data.0"),
    ({"divide": {"draw": 1}}, "data.0.divide"),
    ({"divide": {"importance": 0.5, "alpha": 1.0}}, "data.0.divide"),
    ({"divide": {"importance": 1.0}}, "data.0.divide.importance"),
    ({"divide": {"importance": 0.5, "drw": 1}}, "data.0.divide.drw"),
    ({"divide": {"alpha": 1.0}, "columns": {"a": ["c1"]}}, "data.0.columns"),
    ({"divide": {"alpha": 1.0}, "active": "a"}, "data.0.active"),
]


def scenario(path: Path, more: dict[str, Any]) -> dict[str, Any]:
    data = {"file": str(path), "label": "y", "split": "side"}
    return {"data": [data | more], "algorithm": [{"name": "splitnn"}]}


@pytest.mark.parametrize(("more", "where"), BAD)
def test_a_scenario_says_where_a_division_is_wrong(
    path: Path, more: dict[str, Any], where: str
) -> None:
    with pytest.raises(ScenarioError) as caught:
        load_scenario(scenario(path, more), components=False)
    assert [p.path for p in caught.value.problems] == [where]


def test_shares_are_swept_and_resolved(path: Path) -> None:
    tree = scenario(path, {}) | {"grid": {"data": {"0": {"divide": {"importance": [0.2, 0.6]}}}}}
    loaded = load_scenario(tree, components=False)
    assert [d["divide"] for d in loaded.resolved()["data"]] == [
        {"importance": share, "parties": 2, "draw": 0} for share in (0.2, 0.6)
    ]
    again = load_scenario(loaded.resolved(), components=False)
    assert again.hash == loaded.hash
    named = dict.fromkeys(group.data.name for group in make_plan(loaded).groups)
    assert list(named) == ["t(importance=0.2)", "t(importance=0.6)"]


def test_what_cannot_be_divided(path: Path) -> None:
    with pytest.raises(ConfigError):
        load(path, importance=0.5, parties=COLUMNS + 1)
    with pytest.raises(ConfigError):
        Division(importance=0.5, correlation=0.5)
    section = {"file": path.name, "label": "y", "divide": {"alpha": 1.0}, "columns": {"a": ["c1"]}}
    with pytest.raises(DataError):
        load_source(section, 0, path.parent)
    with pytest.raises(ConfigError):
        load_source({"name": "digits", "divide": {"alpha": 1.0}}, 0, path.parent)
