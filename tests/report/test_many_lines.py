"""Figures and tables of an audit with more attacks than a figure has lines, in several metrics."""

from __future__ import annotations

import copy
import itertools
from pathlib import Path
from typing import Any

from audited import LEAKY, SEALED, Planted, audited
from printed import html, markdown_summary

from vflsec.audit.point import Point
from vflsec.report import figures


def of_many(summary: dict[str, Any], count: int, **changes: Any) -> dict[str, Any]:
    """As many attacks, each gaining a little less than the one before."""
    out = copy.deepcopy(summary)
    norm = [p for p in summary["points"] if p["attack"] == "norm"]
    for k in range(count):
        out["points"] += [
            {**p, "attack": f"attack{k}", "attack_key": f"k{k}", **changes,
             "advantage": p["advantage"] - 0.001 * (k + 1)}
            for p in norm
        ]  # fmt: skip
    return out


def looks(ax: Any) -> list[tuple[str, str]]:
    return [(c[0].get_color(), c[0].get_marker()) for c in ax.containers]


def test_no_two_lines_look_alike(summary: dict[str, Any]) -> None:
    """The ninth line had the colour and the marker of the first."""
    styles = [tuple(figures._style(i).values()) for i in range(64)]
    assert len(set(styles)) == 64
    few = figures.advantage_by_strength(of_many(summary, 6))
    assert len(set(looks(few))) == len(few.containers) == figures.LINES


def test_of_many_attacks_each_line_is_the_strongest_on_one_secret(summary: dict[str, Any]) -> None:
    """Eleven lines of a drafted audit, seven of them on one place, could not be told apart."""
    many = of_many(summary, 7)
    ax = figures.advantage_by_strength(many)
    (line,) = ax.containers
    assert line.get_label() == "labels of bank"
    at = {p["strength"]: [] for p in many["points"] if p["attack"]}  # type: ignore[var-annotated]
    for p in many["points"]:
        if p["attack"] and p["metric"] == p["primary"]:
            at[p["strength"]].append(p["advantage"])
    assert list(line[0].get_ydata()) == [max(at[s]) for s in (0.0, 5.0)]
    page = html(many)
    assert "labels of bank: advantage +0.29" in page
    assert page.count('<th scope="row">attack6</th>') >= 2  # the tables have every attack


def test_figures_of_several_metrics_do_not_share_an_axis_of_one(summary: dict[str, Any]) -> None:
    """An R² of 0.84 and an error of 0.02 stood on an axis called "attack: AUC"."""
    both = of_many(summary, 1, primary="r2", metric="r2", target="feature", adversary="bank",
                   victim="shop", value=0.9)  # fmt: skip
    ax = figures.privacy_utility(both)
    assert ax.get_ylabel() == "advantage in AUC, R²"
    assert figures.advantage_by_strength(both).get_ylabel() == "advantage in AUC, R²"
    drawn = {c.get_label(): list(c[0].get_ydata()) for c in ax.containers}
    gained = {p["strength"]: p["advantage"] for p in both["points"]
              if p["attack"] == "norm" and p["metric"] == p["primary"]}  # fmt: skip
    assert drawn["norm by shop"] == [gained[0.0], gained[5.0]]
    assert max(max(y) for y in drawn.values()) < 0.5
    assert figures.privacy_utility(summary).get_ylabel() == "attack: AUC"


def test_tables_have_every_row_that_a_gate_judges(summary: dict[str, Any]) -> None:
    """A gate failed on training rows by a figure that stood in no table of the report."""
    two = copy.deepcopy(summary)
    two["points"] += [
        {**p, "split": "test", "advantage": -0.06, "value": 0.522}
        for p in summary["points"] if p["attack"] == "norm"
    ]  # fmt: skip
    page, text = html(two), markdown_summary(two)
    train, test = (
        next(p for p in two["points"] if p["attack"] == "norm" and p["split"] == s)
        for s in ("train", "test")
    )
    for words in (page, text):
        assert f"{train['advantage']:+.3f} [" in words
        assert f"{test['advantage']:+.3f}" in words
    assert "+0.29" in page.split("<caption><span>Strongest advantage")[1].split("</table>")[0]
    cells = figures.points(two)
    assert {p.split for p in cells if p.attack == "norm"} == {"train"}
    assert sum(p.is_main for p in map(Point.read, two["points"])) == len(cells) + 2


def test_figures_keep_to_the_rows_of_the_undefended_training(tmp_path: Path) -> None:
    one = audited(tmp_path, Planted(LEAKY, SEALED)).summary
    strong = [p for p in one["points"] if p["attack"] == "norm" and p["strength"] == 5]
    one["points"] += [{**p, "split": "test", "advantage": 0.4} for p in strong]
    kept = [p for p in figures.points(one) if p.attack == "norm"]
    assert [(p.strength, p.split) for p in kept] == [(0.0, "train"), (5.0, "train")]


def test_of_many_strengths_a_heat_map_shows_some_evenly_spaced(summary: dict[str, Any]) -> None:
    """2,000 columns took as long to draw as all else, and none could be read."""
    found = copy.deepcopy(summary)
    norm = next(p for p in found["points"] if p["attack"] == "norm" and p["strength"] == 5)
    found["points"] = [{**norm, "strength": float(s)} for s in range(1, 102)]
    ax = figures.attack_by_defense(found)
    shown = [t.get_text() for t in ax.get_xticklabels()]
    assert len(shown) == len(ax.patches) == figures.MOST_COLUMNS
    assert (shown[0], shown[-1]) == ("iso 1", "iso 101")
    steps = {int(b.split()[1]) - int(a.split()[1]) for a, b in itertools.pairwise(shown)}
    assert steps == {2, 3}
    assert "40 of 101" in ax.get_title(loc="left")


def test_of_many_strengths_every_figure_shows_some_evenly_spaced(summary: dict[str, Any]) -> None:
    """20,000 marks with their numbers took three minutes to draw, and none could be read."""
    found = copy.deepcopy(summary)
    norm = next(p for p in found["points"] if p["attack"] == "norm" and p["strength"] == 5)
    found["points"] = [
        {**norm, "strength": float(s), "defense": d, "bytes": 1e6 * (s + 1)}
        for d, most in (("iso", 100), ("laplace", 10)) for s in range(most + 1)
    ]  # fmt: skip
    made = (figures.advantage_by_strength, figures.privacy_utility, figures.leakage_and_limits)
    for draw in made:
        ax = draw(found)
        assert sum(len(c[0].get_xdata()) for c in ax.containers) == figures.MOST_COLUMNS + 11
        assert "51 of 112" in ax.get_title(loc="left")
    assert len(figures.cost_utility_leakage(found).containers) == figures.MOST_COLUMNS + 11
    shown = [t.get_text() for t in figures.advantage_by_strength(found).get_xticklabels()]
    assert (shown[0], shown[-1]) == ("none", "100")
    assert "of" not in figures.privacy_utility(summary).get_title(loc="left").split()
