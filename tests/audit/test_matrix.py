"""Who leaks to whom: one cell for each adversary, victim and target, its strongest attack in it."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from gate_rows import points_of, record
from printed import html, markdown_summary, print_summary
from rich.console import Console
from scipy import stats

from vflsec import run_audit
from vflsec.audit.leakage import list_rows
from vflsec.audit.leakage_claims import (
    LeakageClaim,
    correct,
    find_claims,
    find_leaks,
    find_strongest,
    format_secret,
)
from vflsec.audit.point import Identity, Point
from vflsec.audit.result_row import ResultRow
from vflsec.engine.cohort import run_cohort
from vflsec.report.exports import load_summary
from vflsec.specs import AttackSpec, CellSpec, list_victims
from vflsec.testing import small_task


def test_labels_are_the_active_partys_and_columns_those_of_the_others() -> None:
    parties = ("bank", "shop", "telco")
    assert list_victims("label", ("shop",), parties) == ("bank",)
    assert list_victims("label", ("shop", "telco"), parties) == ("bank",)
    assert list_victims("integrity", ("telco",), parties) == ("bank",)
    assert list_victims("feature", ("bank",), parties) == ("shop", "telco")
    assert list_victims("attribute", ("bank", "shop"), parties) == ("telco",)
    assert list_victims("embedding", ("bank",), parties, "telco") == ("telco",)


@pytest.mark.slow
def test_every_measure_names_its_victim() -> None:
    tasks = {s: small_task(s, n=200, widths=(3, 4, 4)) for s in (0, 1)}
    cells = [CellSpec({"name": "s"}, "splitnn", {"epochs": 2, "cut": 3}, seed=s) for s in tasks]
    attacks = [
        AttackSpec("direction", adversary=("passive1",)),
        AttackSpec("direction", adversary=("passive1", "passive2")),
        AttackSpec("embedding_inversion", adversary=("active",), aux_rows=20, victim="passive2"),
        AttackSpec("attribute", adversary=("passive1",), aux_rows=20, victim="active"),
        AttackSpec("attribute", adversary=("active", "passive1"), aux_rows=20),
        AttackSpec("direct", adversary=("passive1",)),
    ]
    (result, _) = run_cohort(cells, attacks, tasks, device="cpu")
    found = {(m.adversary, m.attack, m.victim) for m in result.measures}
    assert found == {
        ("", "", ""),
        ("passive1", "direction", "active"),
        ("passive1+passive2", "direction", "active"),
        ("active", "embedding_inversion", "passive2"),
        ("passive1", "attribute", "active"),
        ("active+passive1", "attribute", "passive2"),
        ("passive1", "direct", "active"),
    }
    refused = [m for m in result.measures if m.attack == "direct"]
    assert [(m.status, m.value) for m in refused] == [("not-applicable", None)]
    assert "summed logits" in refused[0].reason
    assert {r.victim for r in list_rows(result)} == {"", "active", "passive2"}


def point(**changes: Any) -> ResultRow:
    usual = {"attack": "norm", "adversary": "shop", "victim": "bank", "controls": {}}
    return replace(record(0, 0.7, **usual), **changes)


def claims_of(points: Sequence[Point]) -> list[LeakageClaim]:
    return find_claims(correct(points))


def found_in(*points: ResultRow) -> list[LeakageClaim]:
    return find_leaks(claims_of(points_of(points)))


def test_the_strongest_attack_stands_for_a_cell() -> None:
    weak, strong = point(), point(attack="direction", attack_key="l", value=0.9)
    other = point(adversary="telco", value=0.6)
    column = point(
        adversary="bank", victim="shop", target="feature", metric="r2", value=0.2, chance=0.0,
        attack="grn", split="train",
    )  # fmt: skip
    cells = {(c.adversary, c.victim, c.target): c for c in found_in(
        weak, strong, other, column)}  # fmt: skip
    assert set(cells) == {
        ("shop", "bank", "label"), ("telco", "bank", "label"), ("bank", "shop", "feature"),
    }  # fmt: skip
    best = cells["shop", "bank", "label"]
    assert (best.attack, best.advantage) == ("direction", pytest.approx(0.4))
    assert cells["telco", "bank", "label"].advantage == pytest.approx(0.1)
    assert cells["bank", "shop", "feature"].metric == "r2"
    assert format_secret(best) == "labels of bank"
    assert format_secret(Identity(target="feature", victim="a+b")) == "columns of a and b"
    assert format_secret(Identity(target="label")) == "labels"


def test_the_interval_of_the_strongest_pays_for_having_chosen_it() -> None:
    """Against scipy: t bounds at 1 - 0.05 / 2 on five seeds, for the two tests of the shop."""
    rng = np.random.default_rng(0)
    gains = {
        a: g + rng.normal(0, 0.05, 5) for a, g in (("norm", 0.2), ("hints", 0.1), ("exploit", 0))
    }
    points = [
        point(attack=a, attack_key=a, seed=s, value=0.5 + float(g), adversary=who)
        for (a, of), who in zip(gains.items(), ("shop", "telco", "shop"), strict=True)
        for s, g in enumerate(of)
    ]
    rows = points_of(points)
    (best,) = find_strongest(claims_of(rows))
    v = gains["norm"]
    low, high = stats.t.interval(1 - 0.05 / 2, 4, v.mean(), v.std(ddof=1) / 5**0.5)
    assert (best.attack, best.adversary, best.tried) == ("norm", "shop", 2)
    assert [best.low, best.high] == pytest.approx([low, high])
    p = stats.ttest_1samp(v, 0, alternative="greater").pvalue
    assert best.p == pytest.approx(min(1.0, 2 * p))
    by = {c.adversary: c for c in find_leaks(claims_of(rows))}
    assert (by["shop"].tried, by["telco"].tried) == (2, 1)
    assert (by["shop"].low, by["shop"].high) == (best.low, best.high)
    (alone,) = find_strongest(claims_of(points_of([point()])))
    assert (alone.low, alone.high, alone.p) == (None, None, None)


def seeded(gains: Sequence[float], **changes: Any) -> list[ResultRow]:
    return [point(seed=s, value=0.5 + g, **changes) for s, g in enumerate(gains)]


def test_what_leaks_of_rows_that_were_trained_on_leaks() -> None:
    """An own model that remembers every label: AUC 1.00 on training rows, 0.52 on test rows. It was
    said that no leak is shown, for test rows alone were looked at; and so of an earlier stage.
    """
    train, test = [0.49, 0.5, 0.5, 0.48, 0.5], [0.02, -0.03, 0.05, 0.04, 0.02]
    (cell,) = found_in(*seeded(train, split="train"), *seeded(test))
    assert (cell.split, cell.at, cell.tried, cell.attacks) == (
        "train", "on train rows", 2, 1,
    )  # fmt: skip
    half = stats.t.ppf(1 - 0.05 / 4, 4) * np.std(train, ddof=1) / 5**0.5
    assert cell.advantage == pytest.approx(0.494)
    assert cell.low == pytest.approx(0.494 - half)
    early, late = seeded(train, phase="pretrain"), seeded(test, phase="tune")
    (cell,) = found_in(*early, *late)
    assert (cell.phase, cell.at) == ("pretrain", "after pretrain")
    (cell,) = found_in(*seeded(test))
    assert (cell.at, cell.tried) == ("", 1)


def test_an_attack_that_varies_a_lot_hides_no_other() -> None:
    """A mean of 0.20 that may be nothing stood for one of 0.15 that is sure."""
    loud = seeded([0.6, -0.3, 0.5, -0.2, 0.4], attack="hints", attack_key="l")
    sure = seeded([0.15, 0.16, 0.14, 0.15, 0.15])
    (cell,) = found_in(*loud, *sure)
    assert (cell.attack, cell.tried) == ("norm", 2)
    assert 0.13 < cell.low < cell.advantage == pytest.approx(0.15)
    (cell,) = found_in(*loud, *seeded([0.01, -0.01, 0.02, 0.0, -0.02]))
    assert (cell.attack, cell.low < 0) == ("hints", True)


def test_what_a_defense_lets_through_is_not_in_it() -> None:
    bare, worse = point(value=0.6), point(defense="noise", strength=1.0, value=0.9)
    (cell,) = found_in(bare, worse)
    assert (cell.defense, cell.advantage) == ("none", pytest.approx(0.1))
    (cell,) = found_in(worse)
    assert cell.defense == "noise"


@pytest.mark.slow
def test_an_audit_says_who_leaks_to_whom_everywhere(tmp_path: Path) -> None:
    audit = run_audit(
        {
            "data": {"name": "leaky"},
            "algorithm": {"name": "splitnn", "epochs": 3, "cut": 8},
            "attack": [
                {"name": "norm"},
                {"name": "norm", "adversary": "active", "known_rows": 0},
                {"name": "attribute", "adversary": "active", "aux_rows": 40},
            ],
            "audit": {"seeds": 2, "positive_control": False, "references": []},
        },
        tmp_path,
        device="cpu",
    )
    whose = {"norm": "active", "attribute": "passive"}
    read = pd.read_parquet(tmp_path / "results.parquet")
    with (tmp_path / "results.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for table in (audit.results.to_dict("records"), read.to_dict("records"), rows):
        assert {r["attack"] for r in table} == {"", *whose}
        for r in table:
            assert r["victim"] == whose.get(r["attack"], "")
    summary = load_summary(tmp_path)
    cells = {(c["adversary"], c["victim"], c["target"]): c for c in summary["leaks"]}
    assert set(cells) == {("passive", "active", "label"), ("active", "passive", "attribute")}
    refused = [r for r in summary["refused"] if r["attack"]["name"] == "norm"]
    assert [r["victims"] for r in refused] == [["active"]]
    page, text = html(summary), markdown_summary(summary)
    best = {(r["target"], r["victim"]): r for r in summary["strongest"]}
    assert best["label", "active"]["attack"] == "norm"
    assert best["attribute", "passive"]["tried"] == 1
    printed = Console(record=True, width=200, file=io.StringIO())
    print_summary(summary | {"complete": True}, printed, whole=True)
    secrets = ("labels of active to passive", "values of one column of passive to active")
    for words in (page, text, printed.export_text()):
        assert all(secret in " ".join(words.split()) for secret in secrets)
