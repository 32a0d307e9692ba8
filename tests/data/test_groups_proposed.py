"""A column that repeats, each value with one label, is the person: it is proposed as `group`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from command_line import Cli

from vflsec.config.scenario import load_scenario
from vflsec.data.label_leakage import find_groups, find_telling_columns
from vflsec.data.source import PartyData, Source
from vflsec.data.table_warnings import find_weaknesses

PATIENTS, VISITS = 60, 6
PATIENT = np.repeat(np.arange(PATIENTS), VISITS)
OF_PATIENT = np.random.default_rng(0).permutation(PATIENTS) % 2


def table(column: np.ndarray, y: np.ndarray) -> Source:
    """Two parties of one column of noise each; `column` is the second's second."""
    rng, n = np.random.default_rng(1), len(y)
    noise = rng.standard_normal((n, 2))
    a = PartyData(noise[:, :1], np.arange(n), ("a",), (None,))
    b = PartyData(np.stack([noise[:, 1], column], 1), np.arange(n), ("b", "who"), (None, None))
    return Source("drawn", {"bank": a, "shop": b}, "bank", y, ("no", "yes"))


@pytest.mark.parametrize("visits", [2, 6, 40])
def test_the_person_is_found_and_no_copy_of_the_label(visits: int) -> None:
    who = np.repeat(np.arange(PATIENTS), visits).astype(float)
    source = table(who, np.repeat(OF_PATIENT, visits))
    assert find_groups(source) == {("shop", ""): ["who"]}
    assert find_telling_columns(source, find_groups(source)) == {}
    (said,) = [text for text in find_weaknesses(source) if "one person?" in text]
    assert "Each value of who of shop goes with one value" in said
    assert "`--group who`" in said
    assert find_groups(replace(source, group=PATIENT)) == {}


def test_what_is_no_person_is_not_proposed() -> None:
    y = OF_PATIENT[PATIENT]
    other = y.copy()
    other[0] = 1 - other[0]
    rng = np.random.default_rng(2)
    for column, label in (
        (PATIENT, other),  # one value has two labels
        (PATIENT, (PATIENT > 30).astype(int)),  # a measure above which the label is yes
        (PATIENT % 10, y),  # few values
        (np.arange(len(y)), y),  # no value repeats
        (rng.integers(0, 50, len(y)), y),
    ):
        assert find_groups(table(column.astype(float), label)) == {}


def test_init_says_the_group_and_takes_it(tmp_path: Path, cli: Cli) -> None:
    rng = np.random.default_rng(3)
    for visits in (
        VISITS,
        12,
    ):  # twelve visits of thirty patients were left out as the label's copy
        who = np.repeat(np.arange(PATIENTS * VISITS // visits), visits)
        ids = range(len(who))
        clinic = {"id": ids, "patient": who, "x": rng.standard_normal(len(who)).round(3),
                  "ill": OF_PATIENT[who]}  # fmt: skip
        pd.DataFrame(clinic).to_csv(tmp_path / "clinic.csv", index=False)
        lab = {"id": ids, "z": rng.standard_normal(len(who)).round(3)}
        pd.DataFrame(lab).to_csv(tmp_path / "lab.csv", index=False)
        tables, out = [str(tmp_path / f"{t}.csv") for t in ("clinic", "lab")], tmp_path / "s.toml"
        init = ["init", *tables, "--label", "ill", "--out", str(out), "--force"]
        assert cli(*init) == 0
        assert "--group patient" in " ".join(cli.out.split())
        said = " ".join(cli.says(*init, "--group", "patient").split())
        assert "one person?" not in said
        assert "patient group" in said
        assert load_scenario(out).root.data[0].group == "patient"
