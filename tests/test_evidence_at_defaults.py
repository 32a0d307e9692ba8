"""The page of orderings at defaults follows from its figures by seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest


@pytest.fixture
def script(benchmark_script: Callable[[str], Any]) -> Any:
    return benchmark_script("evidence_at_defaults")


def test_a_pair_is_judged_by_its_paired_interval_where_the_same_is_short(script: Any) -> None:
    of = script.Pair("One-shot", "VFL", "1,000 aligned")
    figures = {
        ("adult", of.short, "One-shot"): [0.70, 0.72, 0.71],
        ("adult", of.short, "VFL"): [0.80, 0.81, 0.82],
        ("adult", "200 aligned", "VFL"): [0.60, 0.61, 0.62],
        ("diabetes130", of.short, "VFL"): [0.60, 0.61, 0.62],
    }
    found = pd.DataFrame(
        [
            {"table": t, "short": s, "system": n, "seed": k, "metric": "auc", "value": v,
             "seconds": 1.0}
            for (t, s, n), values in figures.items() for k, v in enumerate(values)
        ]
    )  # fmt: skip
    assert of in script.PAIRS
    gains = script.gains(found, of)
    assert list(gains) == ["adult"]
    mean, low, high = gains["adult"]
    assert (mean, high < 0) == (pytest.approx(-0.1), True)
    assert low < mean < high


def test_what_is_run_is_what_the_pairs_need_and_what_a_table_allows(script: Any) -> None:
    every = list(script.trials())
    assert len(every) == len(set(every)) == 6 * (5 + 3 + 7) - 2  # JPL is for two classes
    assert {(s, n) for _, s, n in every} == {
        (of.short, n) for of in script.PAIRS for n in (of.better, of.worse)
    }


def test_the_page_is_that_of_the_stored_figures(script: Any) -> None:
    assert script.PAGE.read_text(encoding="utf-8") == script.page(script.KEPT.read())
