"""What matching rows tells: overlap that a column decides is found, and a random one is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from vflsec.audit.alignment import LEAST, find_alignment
from vflsec.core.rng import numpy_generator
from vflsec.data.source import PartyData, Source


def source(kind: str, n: int = 1500, seed: int = 0, keep: float = 0.5) -> Source:
    """Bank holds all n rows; shop those that `kind` says: a bank column, chance, or the label."""
    g = numpy_generator(seed, "overlap")
    x = g.normal(size=(n, 3))
    y = (x[:, 1] + g.normal(size=n) > 0).astype(np.int64)
    by = {
        "slope": x[:, 0] + 0.5 * g.normal(size=n),
        "island": -np.abs(x[:, 0]),
        "random": g.normal(size=n),
        "label": y + g.normal(size=n),
    }[kind]
    there = np.flatnonzero(by >= np.quantile(by, 1 - keep))
    extra = np.arange(n, n + 400)
    rows = {"bank": np.arange(n), "shop": np.concatenate([there, extra])}
    names = ("a", "b", "c")
    of = {
        "bank": PartyData(x, rows["bank"], names, (None,) * 3),
        "shop": PartyData(g.normal(size=(len(rows["shop"]), 3)), rows["shop"], names, (None,) * 3),
    }
    every = np.full(n + 400, -1, dtype=np.int64)
    every[:n] = y
    return Source("world", of, "bank", every, ("no", "yes"))


@pytest.mark.parametrize("kind", ["slope", "island"])
def test_an_overlap_that_a_column_decides_is_found(kind: str) -> None:
    mine, theirs = find_alignment(source(kind))
    assert (mine.party, mine.about) == ("bank", "shop")
    assert (mine.rows, mine.common, mine.theirs) == (1500, 750, 1150)
    assert mine.columns.low > 0.8
    assert ", significant." in mine.says
    assert "not found" not in mine.says
    assert mine.control.low < 0.5 < mine.control.high
    assert (theirs.party, theirs.common) == ("shop", 750)
    assert "750 of 1150" in theirs.says


def test_null_a_random_overlap_is_found_in_no_more_than_its_error_rate() -> None:
    """8 intervals at 95 %: more than three miss 0.5 four times in ten thousand."""
    worlds = [source("random", n=600, seed=s) for s in range(4)]
    found = [f.columns for w in worlds for f in find_alignment(w)]
    assert sum(not f.low <= 0.5 <= f.high for f in found) <= 3
    assert np.mean([f.auc for f in found]) == pytest.approx(0.5, abs=0.05)
    said = find_alignment(source("random"))[0].says
    assert "not significant" in said


def several(seed: int, parties: int = 5) -> Source:
    """Parties that lack three in ten of 400 rows at random, but the first, which has the labels."""
    g = numpy_generator(seed, "many")
    rows = [np.flatnonzero(g.random(400) < (0.7 if k else 1)) for k in range(5)]
    of = [PartyData(g.normal(size=(len(r), 3)), r, ("a", "b", "c"), (None,) * 3) for r in rows]
    y = (g.random(400) < 0.4).astype(np.int64)
    named = {f"p{k}": of[k] for k in range(parties)}
    return Source("w", named, "p0", y, ("no", "yes"))


@pytest.mark.slow
def test_intervals_of_many_pairs_hold_together() -> None:
    """5 parties: 4 figures of the label, and one of columns of each pair but those about the first,
    which has every row. Of one such pair of two parties there are 2 figures."""
    pair = find_alignment(several(0, 2), 1 - 0.05 * 2 / 20)[0]
    assert next(f for f in find_alignment(several(0)) if f.about == "p1") == pair


@pytest.mark.slow
@pytest.mark.long
def test_null_of_many_pairs_none_is_telling_by_chance() -> None:
    """Each at 95 % by itself, 10 of these 30 audits said that one tells."""
    said = 0
    for seed in range(30):
        found = [f.says for f in find_alignment(several(seed))]
        said += any(", significant." in s or "more often" in s for s in found)
    assert said <= 4


def test_membership_that_tells_of_the_label_is_said_of_the_active_party_alone() -> None:
    mine, theirs = find_alignment(source("label"))
    assert mine.label.low > 0.6
    assert "rows are more often 'yes'" in mine.says
    assert theirs.label is None
    none, _ = find_alignment(source("random"))
    assert "more often" not in none.says


def test_what_cannot_be_measured_is_said() -> None:
    few = source("random", keep=(1500 - LEAST + 1) / 1500)
    mine, theirs = find_alignment(few)
    assert mine.columns is None
    assert f"only {LEAST - 1} rows are unmatched ({LEAST} needed)" in mine.says
    tiny = find_alignment(source("random", keep=(LEAST - 1) / 1500))[0]
    assert f"only {LEAST - 1} rows are shared ({LEAST} needed)" in tiny.says
    whole = source("random", keep=1.0)
    mine, theirs = find_alignment(whole)
    assert "1500 of 1500" in mine.says
    assert theirs.rows == 1900
    same = PartyData(np.zeros((1500, 1)), np.arange(1500), ("z",), (None,))
    world = Source("w", {"bank": whole.parties["bank"], "shop": same}, "bank", whole.y[:1500], ())
    assert find_alignment(world) == []


def test_check_prints_it_and_the_plan_holds_it(tmp_path: Path) -> None:
    from vflsec.cli.main import app

    g = numpy_generator(0, "files")
    age, y = g.integers(18, 80, 600), g.integers(0, 2, 600)
    (tmp_path / "bank.csv").write_text(
        "id,age,label\n" + "".join(f"{i},{a},{c}\n" for i, (a, c) in enumerate(zip(age, y)))
    )
    old = [i for i in range(600) if age[i] > 45]
    (tmp_path / "shop.csv").write_text("id,spent\n" + "".join(f"{i},{i % 7}\n" for i in old))
    file = tmp_path / "s.toml"
    file.write_text(
        '[data]\nid = "id"\nlabel = "label"\nfiles = { bank = "bank.csv", shop = "shop.csv" }\n'
        '[algorithm]\nname = "splitnn"\nepochs = 1\n[[attack]]\nname = "norm"\n'
    )
    run: Any = CliRunner().invoke(app, ["check", str(file)], env={"COLUMNS": "300"})
    assert run.exit_code == 0, run.output
    assert "What matching rows reveals" in run.output
    assert f"of its 600 rows shop has: {len(old)} of 600" in run.output
    assert "A private set intersection hides" in run.output
    said = CliRunner().invoke(app, ["check", str(file), "--format", "json"])
    (data,) = json.loads(said.stdout)[0]["plan"]["data"]
    first, second = data["alignment"]
    assert first["columns"]["low"] > 0.9
    assert second["about"] == "bank"
    assert f"of {second['rows']}." in second["says"]
