"""A newcomer's three tables, each as its own office writes it: a verdict in three commands."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from vflsec.cli import main

N = 240


def write_tables(folder: Path) -> list[str]:
    """A bank's German CSV, a bureau's amounts and shares, and a clinic's Stata file."""
    g = np.random.default_rng(0)
    x = g.normal(size=(N, 5))
    y = x @ [1, 1, -1, 1, 0] + g.normal(size=N) > 0
    bank = pd.DataFrame({
        "kunde": [f"K-{i:04d}" for i in range(N)],
        "betrag": [f"{1000 + 100 * v:.2f}".replace(".", ",") for v in x[:, 0]],
        "quote": [f"{30 + 5 * v:.1f} %".replace(".", ",") for v in x[:, 1]],
        "ausfall": np.where(y, "ja", "nein"),
    })  # fmt: skip
    bureau = pd.DataFrame({
        "kunde": [f"k{i:04d}" for i in range(N)],
        "income": [f"${20000 + 2000 * v:,.2f}" for v in x[:, 2]],
        "score": (500 + 50 * x[:, 3]).round(),
    }).sample(frac=1, random_state=0)  # fmt: skip
    clinic = pd.DataFrame({"kunde": bank["kunde"], "visits": g.poisson(3, N), "bmi": x[:, 4] + 25})
    bank.to_csv(folder / "bank.csv", index=False, sep=";")
    bureau.to_csv(folder / "bureau.csv", index=False)
    clinic.to_stata(folder / "clinic.dta", write_index=False)
    return [str(folder / name) for name in ("bank.csv", "bureau.csv", "clinic.dta")]


def draft(folder: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """The scenario of two commands: the second adds what the first one says."""
    scenario = folder / "s.toml"
    command = ["init", *write_tables(folder), "--label", "ausfall", "--out", str(scenario)]
    assert main.main(command) == 2
    said = capsys.readouterr().err
    (added,) = re.findall(r"add `(--.+?)` to your `vflsec init`", said)
    assert main.main([*command, *shlex.split(added)]) == 0
    return scenario


def test_two_commands_read_them_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    draft(tmp_path, capsys)
    shown = capsys.readouterr().out
    for column in ("betrag", "quote", "income", "score", "visits", "bmi"):
        assert re.search(rf"{column} .*number", shown), column
    assert "in %" in shown
    assert "in $" in shown


@pytest.mark.slow
@pytest.mark.long
def test_the_third_gives_a_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scenario, out = draft(tmp_path, capsys), tmp_path / "out"
    assert main.main(["audit", str(scenario), "--out", str(out)]) in (0, 1, 3)
    verdicts = {g["verdict"] for g in json.loads((out / "summary.json").read_text())["gates"]}
    assert verdicts
    assert verdicts <= {"PASS", "FAIL", "INCONCLUSIVE"}
