"""What the README shows is what the package reads."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from vflsec.config.scenario import load_scenario
from vflsec.engine.dry_run import make_plan


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    ids = [f"c{i}" for i in range(400)]
    shop = pd.DataFrame({"customer": ids, "basket": rng.normal(size=400)})
    shop["defaulted"] = (shop.basket + rng.normal(size=400) > 0).astype(int)
    bank = pd.DataFrame({"customer": ids[50:], "income": rng.normal(size=350)})
    bank["city"] = rng.choice(["a", "b", "c"], 350)
    shop.to_csv(tmp_path / "shop.csv", index=False)
    bank.to_csv(tmp_path / "bank.csv", index=False)
    return tmp_path


def test_the_readme_is_short_and_shows_two_pictures(root: Path) -> None:
    text = (root / "README.md").read_text(encoding="utf-8")
    assert len(text.split()) <= 900
    assert len(re.findall(r"^!\[", text, re.M)) == 2


def test_scenario_of_the_readme_plans(root: Path, tables: Path) -> None:
    text = (root / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```toml\n(.*?)```", text, re.S)
    assert len(blocks) == 1
    path = tables / "scenario.toml"
    path.write_text(blocks[0], encoding="utf-8")
    plan = make_plan(load_scenario(path))
    audited = [g for g in plan.groups if g.role == "audit"]
    assert sum(len(g.cells) for g in audited) == 4 * 5
    assert audited[0].data.parties == ("shop", "bank")
    assert [a.name for a in audited[0].attacks] == ["direction", "gradient_completion"]
    assert plan.refused == ()
