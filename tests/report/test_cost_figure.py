"""Cost, utility and leakage: columns of the results, one table, one figure."""

from __future__ import annotations

import copy
import struct
from typing import Any

import pandas as pd
import pytest
from audited import LEAKY, Planted, audited
from printed import html, markdown_summary

from vflsec.audit.leakage import list_rows
from vflsec.audit.result import Audit
from vflsec.report import figures
from vflsec.report.figure_axes import make_axes
from vflsec.specs import CellResult, CellSpec, LedgerRow, Measure


@pytest.fixture(scope="module")
def audit(tmp_path_factory: pytest.TempPathFactory) -> Audit:
    return audited(tmp_path_factory.mktemp("cost"), Planted(LEAKY))


@pytest.fixture(scope="module")
def two(summary: dict[str, Any]) -> dict[str, Any]:
    """The same audit with a second algorithm that sends a hundredth and leaks half."""
    other = copy.deepcopy(summary)
    for p in [p for p in copy.deepcopy(summary["points"]) if p["algorithm"] == "splitnn"]:
        gains = [k for k in p if k.startswith("advantage") and k != "advantage_seeds"]
        half = {k: p[k] / 2 for k in gains if p[k] is not None}
        other["points"].append(p | {"algorithm": "oneshot", "bytes": p["bytes"] / 100} | half)
    return other


def test_a_record_counts_training_only() -> None:
    result = CellResult("k", CellSpec({"name": "toy"}, "splitnn"))
    result.measures.append(Measure("train", "test", "auc", 0.8))
    for phase, size in (("train", 100), ("more", 20), ("predict", 3000)):
        result.ledger.append(LedgerRow(phase, "embedding", "", "a", "b", size // 10, 1, size, 1))
    (row,) = list_rows(result)
    assert (row.bytes, row.messages) == (120, 12)


def test_every_row_of_the_results_says_what_its_training_sent(audit: Any) -> None:
    frame = pd.read_parquet(audit.folder / "results.parquet")
    assert (frame["bytes"] == 12800).all()
    assert (frame["messages"] == 10).all()
    again = figures.trade_offs(frame)
    assert [(p.bytes, p.messages) for p in again] == [(12800, 10)] * 2


def test_the_strongest_attack_stands_for_a_training(two: dict[str, Any]) -> None:
    rows = {(p.algorithm, p.strength): p for p in figures.trade_offs(two)}
    assert set(rows) == {(a, s) for a in ("splitnn", "oneshot") for s in (0.0, 5.0)}
    for (algorithm, _), p in rows.items():
        assert p.attack == "norm"
        share, sent = (1.0, 12800) if algorithm == "splitnn" else (0.5, 128)
        assert p.advantage.mean == pytest.approx(0.3 * share, abs=0.02)
        assert p.bytes == sent


def test_the_figure_places_trainings_by_bytes_and_utility(two: dict[str, Any]) -> None:
    ax = figures.cost_utility_leakage(two)
    points = {
        (round(float(line.get_xdata()[0]), 6), float(line.get_ydata()[0])): line.get_markersize()
        for line in ax.get_lines()
        if len(line.get_xdata()) == 1 and line.get_marker() in "osD^vPX*"
    }
    sides = figures.trade_offs(two)
    assert set(points) == {(p.bytes / 1e6, p.utility.mean) for p in sides}
    cheap, dear = ([s for (x, _), s in points.items() if x == at] for at in (0.000128, 0.0128))
    assert max(cheap) < min(dear)  # smaller where less leaks
    assert ax.get_xscale() == "log"
    shown = {t.get_text() for t in ax.texts}
    assert shown == {f"{p.advantage.mean:+.2f}" for p in sides}


@pytest.mark.figures
def test_the_report_shows_it_where_trainings_differ_in_cost(two: dict[str, Any]) -> None:
    title = "Cost, utility and leakage"
    page = html(two)
    assert page.count(f"<figcaption>{title}</figcaption>") == 1
    (alt,) = [p for p in page.split('aria-label="') if p.startswith(title)]
    assert "splitnn (no defense)" not in alt  # strengths of iso
    assert "oneshot (iso 5): 128 B, auc 0.8" in alt
    assert "largest advantage +0.1" in alt
    assert "Traffic" in page
    assert 'title="0.8' in page  # the interval of a utility


def test_neither_equal_nor_unknown_costs_are_drawn(summary: dict[str, Any]) -> None:
    assert "Cost, utility and leakage" not in html(summary)
    unknown = copy.deepcopy(summary)
    for p in unknown["points"]:
        p["bytes"] = p["messages"] = None
    assert "Cost, utility and leakage" not in html(unknown)


def test_markdown_names_the_training(summary: dict[str, Any], two: dict[str, Any]) -> None:
    start = "**Every attack and its baseline"
    heads = "| Defense | Attack | By | Advantage | Attack (AUC) | Baseline | Rows |"
    _, _, table = markdown_summary(summary).partition(start)
    assert table.splitlines()[2] == heads
    _, _, table = markdown_summary(two).partition(start)
    table = table.partition("\n\n**")[0]
    assert table.splitlines()[2] == f"{heads} Training |"
    lines = [line for line in table.splitlines() if "| oneshot |" in line]
    assert len(lines) == 4
    assert {line.count("|") for line in lines} == {9}


def test_a_notebook_shows_a_figure_without_pyplot() -> None:
    """IPython asks an object for its picture; a figure in no window had none."""
    figure = make_axes(None, (2.0, 1.0)).figure
    png = figure._repr_png_()  # type: ignore[union-attr]
    width, height = struct.unpack(">II", png[16:24])
    assert png.startswith(b"\x89PNG")
    assert (width, height) == (200, 100)
