"""The map of gains follows from its figures by seed, cell by cell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest


@pytest.fixture
def script(benchmark_script: Callable[[str], Any]) -> Any:
    return benchmark_script("when_it_helps")


def rows(script: Any, cell: Any, **found: list[float]) -> list[dict[str, Any]]:
    return [
        cell._asdict()
        | {"algorithm": name, "seed": seed, "metric": "auc", "value": value, "seconds": 1.0}
        for name, values in found.items()
        for seed, value in enumerate(values)
    ]


@pytest.mark.parametrize(
    ("vfl", "local", "word"),
    [
        ([0.80, 0.81, 0.82], [0.70, 0.72, 0.71], "gain"),
        ([0.70, 0.72, 0.71], [0.80, 0.81, 0.82], "loss"),
        ([0.70, 0.90, 0.80], [0.80, 0.81, 0.82], "undecided"),
    ],
)
def test_a_cell_is_judged_by_its_paired_interval(
    script: Any, vfl: list[float], local: list[float], word: str
) -> None:
    here, there = (script.Cell("adult", share, 500, script.ALL) for share in (0.1, 0.6))
    few = here._replace(labels=100)
    made = [
        *rows(script, here, VFL=vfl, Local=local),
        *rows(script, there, VFL=vfl),  # without its baseline
        *rows(script, few, VFL=local, Local=vfl),  # labels are another map's
    ]
    gains = script.find_gains(pd.DataFrame(made), script.MAPS[0])
    assert list(gains) == [here]
    assert gains[here].word == word
    assert gains[here].mean == pytest.approx(sum(vfl) / 3 - sum(local) / 3)
    assert gains[here].low < gains[here].mean < gains[here].high


def test_what_is_run_is_what_the_maps_need(script: Any) -> None:
    every = set(script.cells())
    for of in script.MAPS:
        labels = script.LABELS if of.few else (script.ALL,)
        for name in (of.better, of.worse):
            assert {c.labels for c, n in every if n == name} >= set(labels)
    assert all(c.labels < c.aligned for c, _ in every)
    assert len(every) == 2 * (3 * 3 * 5 + 3 * 5 * 3)


def test_the_page_is_that_of_the_stored_figures(script: Any) -> None:
    assert script.PAGE.read_text(encoding="utf-8") == script.page(script.KEPT.read())
