"""Figures of an audit for reports and notebooks: every function draws into an Axes and returns it.

All of them take the results of an audit (`Audit.results`), a frame of
:func:`vflsec.audit.leakage.summarise`, or the summary that ``summary.json`` holds. Attacks appear
in their primary metric, on the rows (test or training) on which they gain most. Colours reach a
contrast of 3 : 1 on white and on near-black paper, and no two lines have both the same colour and
the same marker.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import pandas as pd

from vflsec.audit import strongest_attack
from vflsec.audit.leakage import is_undefended, rows_of
from vflsec.core import check
from vflsec.errors import ConfigError
from vflsec.report.figure_axes import axes, dress, heat, legend, mark, short, size_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "COLORS",
    "LINES",
    "advantage_by_strength",
    "attack_by_defense",
    "cost_utility_leakage",
    "drawn",
    "leak_matrix",
    "leakage_over_epochs",
    "leaks",
    "points",
    "privacy_utility",
    "reconstructions",
    "series",
    "trade_offs",
]

COLORS = ("#1f78c8", "#d1580b", "#0f8f6a", "#b0529e", "#8f7000", "#6a6fe0", "#cf4055", "#4c8291")
_MARKERS = "osD^vPX*"
LINES = 8
"""Most lines of a figure; beyond, each line is the strongest attack on one secret."""

Data: TypeAlias = pd.DataFrame | Mapping[str, Any]
Point: TypeAlias = Mapping[str, Any]


def points(data: Data, dataset: str | None = None) -> list[dict[str, Any]]:
    """One point for each (data, algorithm, defense, strength, adversary, attack).

    Args:
        data: results, a frame of means over seeds, or a summary.
        dataset: only this one; None takes all.

    Returns:
        rows as :func:`vflsec.audit.leakage.summarise` makes them, missing numbers None; of the
        metric that verdicts rest on, after the last phase, on the rows (test or training) on which
        the attack gains most without a defense.

    Raises:
        ConfigError: there is no such data set.
    """
    return strongest_attack.shown(_attacked(data, dataset))


def _attacked(data: Data, dataset: str | None = None) -> list[dict[str, Any]]:
    """Points of attacks that gave a figure, of all data sets or of one."""
    rows = [r for r in _rows(data) if r["attack"] and r["status"] == "ok"]
    names = list(dict.fromkeys(r["dataset"] for r in rows))
    if dataset is not None:
        check.one_of("figure: dataset", dataset, names)
        rows = [r for r in rows if r["dataset"] == dataset]
    return rows


def _rows(data: Data) -> list[dict[str, Any]]:
    if isinstance(data, Mapping):
        return list(data["points"])
    if "seed" in data.columns:
        from vflsec.audit.leakage import summarise
        from vflsec.audit.point import write_points

        here = data[data["role"] != "control"] if "role" in data.columns else data
        return write_points(summarise(here))
    return [
        {k: None if isinstance(v, float) and v != v else v for k, v in r.items()}
        for r in rows_of(data)
    ]


def _chosen(data: Data, dataset: str | None) -> list[dict[str, Any]]:
    """Points of one data set: the first, if none is named."""
    found = points(data, dataset)
    if not found:
        raise check.fail("figure: data", "results with at least one attack that ran", "none")
    return [p for p in found if p["dataset"] == found[0]["dataset"]]


def series(rows: Sequence[Point]) -> dict[str, list[Point]]:
    """The lines of a figure by name: one attack, adversary and defense, undefended first."""
    several = {k: len({r[k] for r in rows}) > 1 for k in ("adversary", "algorithm")}
    bare: dict[tuple[Any, ...], Point] = {}
    swept: dict[tuple[Any, ...], dict[str, list[Point]]] = defaultdict(lambda: defaultdict(list))
    for r in rows:
        who = tuple(r[k] for k in ("attack", "attack_key", "adversary", "algorithm", "target"))
        if r["defense"] == "none":
            bare[who] = r
        swept[who][r["defense"]].append(r)
    defenses = {r["defense"] for r in rows} - {"none"}
    out: dict[str, list[Point]] = {}
    for who, by_defense in swept.items():
        name = who[0]
        if several["adversary"]:
            name += f" by {who[2]}"
        if several["algorithm"]:
            name += f", {who[3]}"
        for defense, of in by_defense.items():
            if defense == "none" and len(by_defense) > 1:
                continue
            line = sorted(of, key=lambda r: r["strength"] or 0.0)
            if defense != "none" and who in bare and not any(map(is_undefended, of)):
                line.insert(0, bare[who])
            label = f"{name}, {defense}" if len(defenses) > 1 else name
            while label in out:
                label += "′"
            out[label] = line
    return out


def drawn(rows: Sequence[Point]) -> list[dict[str, Any]]:
    """Points to draw as lines: of every attack, or where these are many, of every secret.

    A line of a secret has at each strength the attack that gains most there, and is called by
    whose secret it is ("labels of bank").
    """
    if len(series(rows)) <= LINES:
        return [dict(p) for p in rows]
    best: dict[tuple[Any, ...], dict[str, Any]] = {}
    for p in rows:
        secret = strongest_attack.secret(p)
        key = (p["algorithm"], p["defense"], p["strength"], p["adversary"], secret)
        if p["advantage"] is not None and (
            key not in best or p["advantage"] > best[key]["advantage"]
        ):
            best[key] = {**p, "attack": secret, "attack_key": secret}
    return list(best.values())


def _style(i: int) -> dict[str, Any]:
    """Colour and marker of the i-th line; no two of 64 share both."""
    marker = _MARKERS[(i + i // len(COLORS)) % len(_MARKERS)]
    return {"color": COLORS[i % len(COLORS)], "marker": marker}


def _measured(rows: Sequence[Point]) -> str:
    """The metrics of some points: ``AUC``, or ``AUC, R²`` where an axis has several."""
    return ", ".join(_metric(m) for m in dict.fromkeys(r["primary"] for r in rows))


def _error(p: Point, name: str) -> tuple[float, float]:
    value, low, high = p[name], p.get(f"{name}_low"), p.get(f"{name}_high")
    if low is None or high is None:
        return 0.0, 0.0
    return value - low, high - value


def _level(p: Point) -> float:
    return 0.0 if p["defense"] == "none" else float(p["strength"] or 0.0)


def advantage_by_strength(
    data: Data, *, dataset: str | None = None, ax: Axes | None = None
) -> Axes:
    """What each attack gains over its strongest control, as the defense grows.

    Intervals are the t intervals over seeds; the dashed line at 0 is the control. Strengths are
    spaced evenly, in order. Of many attacks each line is the strongest on one secret
    (:func:`drawn`).

    Args:
        data: results, means over seeds, or a summary.
        dataset: which; None takes the first.
        ax: where to draw; None makes a figure (``ax.figure``).

    Raises:
        ConfigError: no attack ran, or there is no such data set.
    """
    rows = _chosen(data, dataset)
    ax = axes(ax, (6.4, 3.8))
    grid = sorted({_level(p) for p in rows})
    place = {s: float(i) for i, s in enumerate(grid)}
    lines = series(drawn(rows))
    shift = 0.06 if len(grid) > 1 else 0.12
    for i, (label, of) in enumerate(lines.items()):
        seen = [p for p in of if p["advantage"] is not None]
        offset = shift * (i - (len(lines) - 1) / 2)
        errors = [_error(p, "advantage") for p in seen]
        ax.errorbar(
            [place[_level(p)] + offset for p in seen],
            [p["advantage"] for p in seen],
            yerr=[[e[0] for e in errors], [e[1] for e in errors]],
            label=short(label), markersize=5, linewidth=1.6, capsize=3, elinewidth=1.0, **_style(i),
        )  # fmt: skip
    ax.axhline(0, linestyle="--", linewidth=1.2, color="#808080", label="strongest control")
    ax.set_xticks(list(place.values()), ["none" if s == 0 else f"{s:g}" for s in grid])
    ax.set_xlim(-0.5, max(len(grid) - 0.5, 0.5))
    ax.set_xlabel(_strength_name(rows))
    ax.set_ylabel(f"advantage in {_measured(rows)}")
    ax.set_title(short(rows[0]["dataset"]), fontsize="medium", loc="left")
    legend(ax, len(lines))
    return dress(ax)


def leakage_over_epochs(
    data: Mapping[str, Any], *, dataset: str | None = None, ax: Axes | None = None
) -> Axes:
    """What an attack gains over its strongest control if it is made after each epoch.

    Args:
        data: a summary with attacks that were asked for ``over_time``.
        dataset: which; None takes the first.
        ax: where to draw; None makes a figure (``ax.figure``).

    Raises:
        ConfigError: no attack was looked at over time.
    """
    rows = [
        r for r in data.get("over_time", [])
        if r["metric"] == r["primary"] and r["advantage"] is not None
    ]  # fmt: skip
    rows = [r for r in rows if r["dataset"] == (dataset or rows[0]["dataset"])] if rows else []
    if not rows:
        raise ConfigError("no attack was looked at over time. Set over_time = true in [[attack]].")
    lines: dict[str, list[tuple[int, Any]]] = {}
    for r in rows:
        phase, _, epoch = r["phase"].partition("@")
        strength = "" if not r["strength"] else f", {r['defense']} {r['strength']:g}"
        label = f"{r['attack']} by {r['adversary']}, {r['split']} rows, {phase}{strength}"
        lines.setdefault(label, []).append((int(epoch) + 1, r))
    ax = axes(ax, (6.4, 3.8))
    for i, (label, of) in enumerate(lines.items()):
        of.sort(key=lambda pair: pair[0])
        at = [epoch for epoch, _ in of]
        style = _style(i)
        ax.plot(at, [r["advantage"] for _, r in of], label=short(label, 80), markersize=4,
                linewidth=1.6, **style)  # fmt: skip
        if all(r["advantage_low"] is not None for _, r in of):
            ax.fill_between(at, [r["advantage_low"] for _, r in of],
                            [r["advantage_high"] for _, r in of], color=style["color"],
                            alpha=0.15, linewidth=0)  # fmt: skip
    ax.axhline(0, linestyle="--", linewidth=1.2, color="#808080", label="strongest control")
    ax.set_xlabel("epochs seen")
    ax.set_ylabel(f"advantage in {_measured(rows)}")
    ax.set_title(short(rows[0]["dataset"]), fontsize="medium", loc="left")
    legend(ax, len(lines))
    return dress(ax)


def _strength_name(rows: Sequence[Point]) -> str:
    names = [d for d in dict.fromkeys(r["defense"] for r in rows) if d != "none"]
    return f"strength of {short(names[0])}" if len(names) == 1 else "strength of the defense"


def _metric(name: str) -> str:
    from vflsec.audit.findings import metric_name

    return metric_name(name)


def privacy_utility(data: Data, *, dataset: str | None = None, ax: Axes | None = None) -> Axes:
    """How well each attack does against what the main task keeps, over the strengths.

    Down and to the right is better. Numbers at the markers are strengths; bars are t intervals
    over seeds; a dashed line is the strongest control of an attack. Attacks in different metrics
    are drawn by what they gain over their controls, and of many attacks the strongest on each
    secret (:func:`drawn`).

    Args:
        data: results, means over seeds, or a summary.
        dataset: which; None takes the first.
        ax: where to draw; None makes a figure (``ax.figure``).

    Raises:
        ConfigError: no attack ran, or there is no such data set.
    """
    rows = [p for p in _chosen(data, dataset) if p["utility"] is not None]
    gained = len({p["primary"] for p in rows}) > 1
    name = "advantage" if gained else "value"
    ax = axes(ax, (6.4, 4.2))
    lines, marks = series(drawn(rows)), []
    for i, (label, of) in enumerate(lines.items()):
        seen = [p for p in of if p[name] is not None]
        x, y = [_error(p, "utility") for p in seen], [_error(p, name) for p in seen]
        style = _style(i)
        ax.errorbar(
            [p["utility"] for p in seen], [p[name] for p in seen],
            xerr=[[e[0] for e in x], [e[1] for e in x]],
            yerr=[[e[0] for e in y], [e[1] for e in y]],
            label=short(label), markersize=5, linewidth=1.4, capsize=2, elinewidth=0.8, **style,
        )  # fmt: skip
        marks += [(f"{_level(p):g}", p["utility"], p[name], style["color"]) for p in seen]
    controls = [("strongest control", 0.0)] if gained else _controls(rows)
    for (control, value), dashes in zip(controls, itertools.cycle(("--", ":", "-."))):
        label = control if gained else f"control: {short(control)} {value:.2f}"
        ax.axhline(value, linestyle=dashes, linewidth=1.1, color="#808080", label=label)
    mark(ax, marks, 4.0)
    if rows:
        ax.set_xlabel(f"utility: {_metric(rows[0]['utility_metric'])} of the main task")
        ax.set_ylabel(f"{'advantage in' if gained else 'attack:'} {_measured(rows)}")
        ax.set_title(short(rows[0]["dataset"]), fontsize="medium", loc="left")
    legend(ax, len(lines))
    return dress(ax)


def trade_offs(data: Data, dataset: str | None = None) -> list[dict[str, Any]]:
    """Cost, utility and leakage of every training: what the figure of that name shows.

    Args:
        data: results, means over seeds, or a summary.
        dataset: which; None takes the first.

    Returns:
        rows with ``algorithm``, ``defense``, ``strength``, ``bytes`` and ``messages`` of training,
        ``utility`` with bounds, ``utility_metric``, and of the attack that gains most ``attack``,
        ``adversary``, ``advantage`` with bounds. What sent nothing or was not attacked is left out.
    """
    best: dict[tuple[Any, ...], dict[str, Any]] = {}
    name = _chosen(data, dataset)[0]["dataset"]
    for p in strongest_attack.told(_attacked(data, name)):
        if p["advantage"] is None or p["utility"] is None or not p.get("bytes"):
            continue
        key = p["algorithm"], p["defense"], p["strength"]
        if key not in best or p["advantage"] > best[key]["advantage"]:
            best[key] = p
    return list(best.values())


def cost_utility_leakage(data: Data, *, dataset: str | None = None, ax: Axes | None = None) -> Axes:
    """What every training sends, what it is good for, and the most that an attack gains by it.

    Up and to the left is better, and so are small markers: they grow with the largest advantage of
    any attack, which is also written beside them. Bars are t intervals over seeds.

    Args:
        data: results, means over seeds, or a summary.
        dataset: which; None takes the first.
        ax: where to draw; None makes a figure (``ax.figure``).

    Raises:
        ConfigError: no attack ran, or there is no such data set.
    """
    rows = trade_offs(data, dataset)
    ax = axes(ax, (6.4, 4.2))
    several, marks = len({(p["defense"], p["strength"]) for p in rows}) > 1, []
    for i, p in enumerate(rows):
        down, up = _error(p, "utility")
        label = p["algorithm"]
        if several and p["defense"] != "none":
            label += f", {p['defense']} {_level(p):g}"
        style = _style(i)
        ax.errorbar(
            [p["bytes"] / 1e6], [p["utility"]], yerr=[[down], [up]], **style,
            linestyle="", markersize=4 + 16 * max(0.0, p["advantage"]) ** 0.5, capsize=2,
            elinewidth=0.8,
        )  # fmt: skip
        ax.plot([], [], linestyle="", markersize=5, label=short(label, 60), **style)
        marks.append((f"{p['advantage']:+.2f}", p["bytes"] / 1e6, p["utility"], None))
    if rows:
        sent = [p["bytes"] for p in rows]
        if max(sent) > 10 * min(sent):
            ax.set_xscale("log")
        ax.margins(x=0.12, y=0.12)
        mark(ax, marks, 9.0)
        ax.set_xlabel("sent in training, MB (number and size of a marker: largest advantage)")
        ax.set_ylabel(f"utility: {_metric(rows[0]['utility_metric'])} of the main task")
        ax.set_title(short(rows[0]["dataset"]), fontsize="medium", loc="left")
    legend(ax, 4 if rows else 0)
    return dress(ax)


def _controls(rows: Sequence[Point]) -> list[tuple[str, float]]:
    """Controls to draw; those closer than 0.015 to one that is drawn are left out."""
    out: list[tuple[str, float]] = []
    for r in rows:
        value = r.get("control_value")
        if value is not None and all(abs(value - v) > 0.015 for _, v in out):
            out.append((r["control"], value))
    return out


def attack_by_defense(data: Data, *, dataset: str | None = None, ax: Axes | None = None) -> Axes:
    """Heat map: the advantage of each attack (rows) under each defense and strength (columns).

    Raises:
        ConfigError: no attack ran, or there is no such data set.
    """
    rows = _chosen(data, dataset)
    several = len({r["adversary"] for r in rows}) > 1
    wide = len({r["algorithm"] for r in rows}) > 1
    cells: dict[tuple[str, str], float | None] = {}
    for r in sorted(rows, key=lambda r: (r["algorithm"], r["defense"] != "none", r["defense"],
                                         r["strength"] or 0.0)):  # fmt: skip
        down = f"{r['attack']} by {r['adversary']}" if several else r["attack"]
        at = "none" if r["defense"] == "none" else r["defense"]
        if r["defense"] != "none" and r["strength"] is not None:
            at += f" {r['strength']:g}"
        cells[down, f"{r['algorithm']}\n{at}" if wide else at] = r["advantage"]
    return heat(cells, axes(ax, size_of(cells)), rows[0]["dataset"])


def leak_matrix(data: Data, *, dataset: str | None = None, ax: Axes | None = None) -> Axes:
    """Who learns what from the undefended training: the largest advantage over all attacks.

    Rows are whose secret leaks, columns who learns it; where nothing is undefended, all points
    count.

    Raises:
        ConfigError: no attack ran, or there is no such data set.
    """
    cells = leaks(data, dataset)
    return heat(cells, axes(ax, size_of(cells)), _chosen(data, dataset)[0]["dataset"])


def reconstructions(
    data: Mapping[str, Any], *, dataset: str | None = None, ax: Axes | None = None
) -> Axes:
    """Images, and below each what an attack made of it; two lines for each attack and defense.

    Args:
        data: a summary; its ``pictures`` are drawn.
        dataset: only this one; None takes the first that has pictures.
        ax: where to draw.

    Raises:
        ConfigError: there are none; the attack's `pictures` asks for them.
    """
    import numpy as np

    found = [p for p in data.get("pictures", []) if dataset in (None, p["dataset"])]
    found = [p for p in found if p["dataset"] == found[0]["dataset"]]
    if not found:
        raise ConfigError("figure: there are no pictures. Set pictures = 4 in the [[attack]].")
    tall = max(p["shape"][1] for p in found)
    wide = max(p["shape"][2] for p in found)
    most = max(len(p["rows"]) for p in found)
    sheet = np.ones((2 * len(found) * (tall + 1), most * (wide + 1), 3))
    names = []
    for i, p in enumerate(found):
        channels, h, w = p["shape"]
        for j, (real, made) in enumerate(zip(p["truth"], p["guess"], strict=True)):
            for k, shades in enumerate((real, made)):
                image = np.reshape(shades, (channels, h, w)).transpose(1, 2, 0) / 255
                image = image if channels == 3 else image.mean(axis=2, keepdims=True)
                top, left = (2 * i + k) * (tall + 1), j * (wide + 1)
                sheet[top : top + h, left : left + w] = image
        strength = "" if p["strength"] is None or p["defense"] == "none" else f" {p['strength']:g}"
        names += [f"{p['party']}: true", f"{p['attack']}, {p['defense']}{strength}"]
    ax = axes(ax, (2.6 + 0.55 * most, 0.5 + 1.1 * len(found) * tall / wide * 0.55))
    ax.imshow(sheet, interpolation="nearest")
    ax.set_xticks([])
    ax.set_yticks([tall / 2 + i * (tall + 1) for i in range(len(names))], [short(n) for n in names])
    ax.tick_params(length=0, labelsize="small")
    ax.spines[:].set_visible(False)
    ax.set_title(short(found[0]["dataset"]), fontsize="medium", loc="left")
    return ax


def leaks(data: Data, dataset: str | None = None) -> dict[tuple[str, str], float | None]:
    """{(whose secret, who learns it): largest advantage} behind :func:`leak_matrix`."""
    first = _chosen(data, dataset)[0]["dataset"]
    found = strongest_attack.leaks(_attacked(data, first))
    return {(strongest_attack.secret(r), r["adversary"]): r["advantage"] for r in found}
