"""A column that repeats, each value with one label, is the person: it is proposed as `group`."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from command_line import Cli

from vflsec.config.scenario import load_scenario
from vflsec.data.label_leakage import find_groups, find_telling_columns
from vflsec.data.people import find_people
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


def people(
    sex: bool = True, born: bool = True, alike: float = 0.8, visits: int = 3
) -> tuple[np.ndarray, np.ndarray]:
    """Columns (who, sex, decade of birth, its century, noise) and labels of 200 patients' visits.

    Args:
        sex, born: whether these stay over the visits of one.
        alike: share of the labels that are those of the patient; the others are drawn.
    """
    rng = np.random.default_rng(4)
    who = np.repeat(rng.permutation(200), visits)
    n = len(who)
    of = {"sex": rng.integers(0, 2, 200), "decade": rng.integers(192, 203, 200)}
    sexes = of["sex"][who] if sex else rng.integers(0, 2, n)
    decades = of["decade"][who] if born else rng.integers(192, 203, n)
    y = np.where(rng.random(n) < alike, rng.integers(0, 2, 200)[who], rng.integers(0, 2, n))
    columns = np.stack([who, sexes, decades, decades // 10, rng.standard_normal(n)], 1)
    return columns.astype(float), y


def held(columns: np.ndarray, y: np.ndarray) -> Source:
    names = ("who", "sex", "decade", "century", "noise")
    a = PartyData(columns, np.arange(len(y)), names, (None,) * 5)
    b = PartyData(columns[:, 4:], np.arange(len(y)), ("z",), (None,))
    return Source("drawn", {"bank": a, "shop": b}, "bank", y, ("no", "yes"))


@pytest.mark.parametrize(("how", "found"), [
    ({}, True), ({"visits": 9}, True),
    ({"born": False}, False), ({"sex": False}, False),  # of a decade follows the century
    ({"alike": 0.0}, False),  # then nothing is remembered
    ({"visits": 1}, False), ({"visits": 40}, False),  # no value repeats; a city, not a person
])  # fmt: skip
def test_a_person_whose_label_changes_is_found_by_what_stays(
    how: dict[str, Any], found: bool
) -> None:
    source = held(*people(**how))
    assert find_groups(source) == {}
    assert {k: [*of] for k, of in find_people(source).items()} == (
        {("bank", ""): ["who"]} if found else {}
    )
    assert sum("`--group who`" in text for text in find_weaknesses(source)) == found
    assert find_people(replace(source, group=np.arange(len(source.y)))) == {}


def test_many_columns_that_stay_take_no_minutes() -> None:
    rng, who = np.random.default_rng(5), np.repeat(np.arange(1500), 4)
    columns = np.column_stack([who, rng.integers(0, 50, (1500, 299))[who]]).astype(float)
    y = np.where(rng.random(6000) < 0.7, rng.integers(0, 2, 1500)[who], rng.integers(0, 2, 6000))
    names = tuple(f"c{k}" for k in range(300))
    a = PartyData(columns, np.arange(6000), names, (None,) * 300)
    b = PartyData(columns[:, 1:2], np.arange(6000), ("z",), (None,))
    begun = time.process_time()
    found = find_people(Source("drawn", {"bank": a, "shop": b}, "bank", y, ("no", "yes")))
    assert found == {("bank", ""): {"c0": ("c1", "c2")}}
    assert time.process_time() - begun < 5


def test_what_follows_the_order_of_a_number_is_no_person() -> None:
    """An age in days has a decade and says who is retired, and has few rows."""
    columns, y = people()
    age = np.sort(columns[:, 0])
    flags = [age > 60, (age > 120).astype(int) + (age > 160), age // 20]
    source = held(np.stack([age, *flags, columns[:, 4]], 1), np.sort(y))
    assert find_people(source) == {}


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
