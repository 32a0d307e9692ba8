"""Figures of an audit for reports and notebooks: every function draws into an Axes and returns it.

All of them take the results of an audit (`Audit.results`), a frame of means over seeds, or the
summary of one; the name of a data set, None for the first; and where to draw,
None for a figure of its own (``ax.figure``). They raise ConfigError where no attack ran or there is
no such data set. Attacks appear in their primary metric, on the rows (test or training) on which
they gain most. Colours reach a contrast of 3 : 1 on white and on near-black paper, and no two lines
have both the same colour and the same marker.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

from vflsec.audit.gate import Gate
from vflsec.audit.image_samples import Picture
from vflsec.audit.leakage import summarise
from vflsec.audit.leakage_claims import find_gain, format_secret, select_shown
from vflsec.audit.metrics import metric_name
from vflsec.audit.point import Estimate, Identity, Point
from vflsec.audit.result_row import read_rows
from vflsec.audit.summary import Summary, read_summary
from vflsec.core import check
from vflsec.errors import ConfigError
from vflsec.report.curve import order_of
from vflsec.report.figure_axes import (
    draw_heat,
    dress,
    make_axes,
    mark,
    shorten,
    size_of,
)
from vflsec.runtime.grouping import group_by

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

T = TypeVar("T")
COLORS = ("#1f78c8", "#d1580b", "#0f8f6a", "#b0529e", "#8f7000", "#6a6fe0", "#cf4055", "#4c8291")
_MARKERS = "osD^vPX*"
LINES = 8
"""Most lines of a figure; beyond, each line is the strongest attack on one secret."""
MOST_COLUMNS = 40
"""Most columns of a heat map, and most strengths of a defense in other figures."""

Whole: TypeAlias = Mapping[str, object] | Summary
"""A summary, as plain values or read."""
Data: TypeAlias = "pd.DataFrame | Whole | Sequence[Point]"


def points(data: Data, dataset: str | None = None) -> list[Point]:
    """One point for each (data, algorithm, defense, strength, adversary, attack).

    Args:
        data: results, a frame of means over seeds, or a summary.
        dataset: only this one; None takes all.

    Returns:
        of the metric that verdicts rest on, after the last phase, on the rows (test or training)
        on which the attack gains most without a defense.

    Raises:
        ConfigError: there is no such data set.
    """
    return select_shown(_attacked(data, dataset))


def _attacked(data: Data, dataset: str | None = None) -> list[Point]:
    """Points of attacks that gave a figure, of all data sets or of one."""
    rows = [p for p in _points(data) if p.attack and p.status == "ok"]
    if dataset is not None:
        check.one_of("figure: dataset", dataset, dict.fromkeys(p.dataset for p in rows))
        rows = [p for p in rows if p.dataset == dataset]
    return rows


def _points(data: Data) -> Sequence[Point]:
    if isinstance(data, Mapping | Summary):
        return _summary(data).points
    if isinstance(data, Sequence):
        return data
    if "seed" not in data.columns:
        return [Point.read(cast("Any", row)) for row in data.to_dict("records")]
    return summarise([r for r in read_rows(data) if r.role != "control"])


def _summary(data: Whole) -> Summary:
    return data if isinstance(data, Summary) else read_summary(data)


def _chosen(data: Data, dataset: str | None) -> list[Point]:
    """Points of one data set: the first, if none is named."""
    found = points(data, dataset)
    if not found:
        raise check.fail("figure: data", "results with at least one attack that ran", "none")
    return [p for p in found if p.dataset == found[0].dataset]


def _thin(rows: Sequence[Point]) -> tuple[list[Point], str]:
    """The points to draw of one data set, and the title.

    Of a defense with more than :data:`MOST_COLUMNS` strengths as many are drawn, evenly spaced from
    first to last.
    """
    if not rows:
        return [], ""
    every = {(p.algorithm, p.defense, _level(p)) for p in rows}
    grids = group_by(sorted(every), lambda at: at[:2]).values()
    drawn = {at for grid in grids for at in _space(grid)}
    kept = [p for p in rows if (p.algorithm, p.defense, _level(p)) in drawn]
    title = shorten(rows[0].dataset)
    few = len(drawn) < len(every)
    return kept, f"{title}, {len(drawn)} of {len(every)} trainings" if few else title


def _space(of: Sequence[T]) -> Sequence[T]:
    """All, or :data:`MOST_COLUMNS` evenly spaced from first to last."""
    last, steps = len(of) - 1, MOST_COLUMNS - 1
    return of if last <= steps else [of[i * last // steps] for i in range(MOST_COLUMNS)]


def group_series(rows: Sequence[Point]) -> dict[str, list[Point]]:
    """The lines of a figure by name: one attack, adversary and defense, undefended first."""
    several = (len({p.adversary for p in rows}) > 1, len({p.algorithm for p in rows}) > 1)
    defenses = {p.defense for p in rows} - {"none"}
    out: dict[str, list[Point]] = {}
    of_line = ("algorithm", "attack", "attack_key", "adversary", "target")
    for who, whose in group_by(rows, lambda p: p.keep(*of_line)).items():
        by_defense = group_by(whose, lambda p: p.defense)
        bare = by_defense.pop("none", []) if len(by_defense) > 1 else []
        for defense, of in by_defense.items():
            line = sorted(of, key=lambda p: p.strength or 0.0)
            if bare and not any(p.is_undefended for p in of):
                line.insert(0, bare[-1])
            label = _label(who, several) + (f", {defense}" if len(defenses) > 1 else "")
            while label in out:
                label += "′"
            out[label] = line
    return out


def _label(who: Identity, several: tuple[bool, bool]) -> str:
    """The attack, with its adversary and what trains where there are several."""
    by = f" by {who.adversary}" if several[0] else ""
    return f"{who.attack}{by}" + (f", {who.algorithm}" if several[1] else "")


def choose_drawn(rows: Sequence[Point]) -> list[Point]:
    """Points to draw as lines: of every attack, or where these are many, of every secret.

    A line of a secret has at each strength the attack that gains most there, and is called by
    its target ("labels of bank").
    """
    return list(rows) if len(group_series(rows)) <= LINES else _strongest_on_each_secret(rows)


def _strongest_on_each_secret(rows: Sequence[Point]) -> list[Point]:
    """Of each secret and adversary the attack that gains most in each training."""
    known = (p for p in rows if p.advantage.mean is not None)
    groups = group_by(known, lambda p: (format_secret(p), p.adversary, p.training))
    return [
        replace(max(of, key=find_gain), attack=secret, attack_key=secret)
        for (secret, *_), of in groups.items()
    ]


def _style(i: int) -> dict[str, Any]:
    """Colour and marker of the i-th line; no two of 64 share both."""
    marker = _MARKERS[(i + i // len(COLORS)) % len(_MARKERS)]
    return {"color": COLORS[i % len(COLORS)], "marker": marker}


def _measured(rows: Sequence[Point]) -> str:
    """The metrics of some points: ``AUC``, or ``AUC, R²`` where an axis has several."""
    return ", ".join(metric_name(m) for m in dict.fromkeys(p.primary for p in rows))


def _errors(of: Sequence[Estimate]) -> list[list[float]]:
    """How far the bounds of estimates are from their means, 0 where they are not known."""
    return [
        [0.0 if (x := getattr(e, end)) is None else abs((e.mean or 0.0) - x) for e in of]
        for end in ("low", "high")
    ]


def _means(of: Sequence[Estimate]) -> list[float]:
    return [e.mean or 0.0 for e in of]


def _level(p: Point) -> float:
    return 0.0 if p.defense == "none" else float(p.strength or 0.0)


def _finish(ax: Axes, title: str, lines: int) -> Axes:
    """The title, the legend of that many lines, and a faint grid."""
    ax.set_title(title, fontsize="medium", loc="left")
    if lines:  # below, where no line runs
        ax.legend(frameon=False, fontsize="small", loc="upper left", bbox_to_anchor=(0, -0.2),
                  ncols=2)  # fmt: skip
    return dress(ax)


def advantage_by_strength(
    data: Data, *, dataset: str | None = None, ax: Axes | None = None
) -> Axes:
    """What each attack gains over its baseline, as the defense grows.

    Intervals are the t intervals over seeds; the dashed line at 0 is the baseline. Strengths are
    spaced evenly, in order. Of many attacks each line is the strongest on one secret
    (:func:`choose_drawn`).
    """
    rows, title = _thin(_chosen(data, dataset))
    ax = make_axes(ax, (6.4, 3.8))
    grid = sorted({_level(p) for p in rows})
    place = {s: float(i) for i, s in enumerate(grid)}
    lines = group_series(choose_drawn(rows))
    shift = 0.06 if len(grid) > 1 else 0.12
    for i, (label, of) in enumerate(lines.items()):
        seen = [p for p in of if p.advantage.mean is not None]
        offset = shift * (i - (len(lines) - 1) / 2)
        y = [p.advantage for p in seen]
        ax.errorbar(
            [place[_level(p)] + offset for p in seen], _means(y), yerr=_errors(y),
            label=shorten(label), markersize=5, linewidth=1.6, capsize=3, elinewidth=1.0,
            **_style(i),
        )  # fmt: skip
    ax.axhline(0, linestyle="--", linewidth=1.2, color="#808080", label="baseline")
    ax.set_xticks(list(place.values()), ["none" if s == 0 else f"{s:g}" for s in grid])
    ax.set_xlim(-0.5, max(len(grid) - 0.5, 0.5))
    ax.set_xlabel(_strength_name(rows))
    ax.set_ylabel(f"advantage in {_measured(rows)}")
    return _finish(ax, title, len(lines))


def leakage_over_epochs(data: Whole, *, dataset: str | None = None, ax: Axes | None = None) -> Axes:
    """What an attack gains over its baseline if it is made after each epoch.

    Raises:
        ConfigError: no attack was looked at over time.
    """
    rows = [p for p in _summary(data).over_time
            if p.metric == p.primary and p.advantage.mean is not None]  # fmt: skip
    rows, title = _thin([p for p in rows if p.dataset == (dataset or rows[0].dataset)])
    if not rows:
        raise ConfigError("no attack has over_time. Set over_time = true in [[attack]].")

    def name(p: Point) -> str:
        strength = "" if not p.strength else f", {p.defense} {p.strength:g}"
        phase = p.phase.partition("@")[0]
        return f"{p.attack} by {p.adversary}, {p.split} rows, {phase}{strength}"

    lines = group_by(sorted(rows, key=_epoch), name)
    ax = make_axes(ax, (6.4, 3.8))
    for i, (label, of) in enumerate(lines.items()):
        at, style = list(map(_epoch, of)), _style(i)
        ax.plot(at, list(map(find_gain, of)), label=shorten(label, 80), markersize=4, linewidth=1.6,
                **style)  # fmt: skip
        low, high = ([getattr(p.advantage, end) for p in of] for end in ("low", "high"))
        if None not in low:
            ax.fill_between(at, low, high, color=style["color"], alpha=0.15, linewidth=0)
    ax.axhline(0, linestyle="--", linewidth=1.2, color="#808080", label="baseline")
    ax.set_xlabel("epochs seen")
    ax.set_ylabel(f"advantage in {_measured(rows)}")
    return _finish(ax, title, len(lines))


def _epoch(p: Point) -> int:
    """How many epochs were seen."""
    return int(p.phase.partition("@")[2] or -1) + 1


def _strength_name(rows: Sequence[Point]) -> str:
    names = [d for d in dict.fromkeys(p.defense for p in rows) if d != "none"]
    return f"strength of {shorten(names[0])}" if len(names) == 1 else "strength of the defense"


def privacy_utility(data: Data, *, dataset: str | None = None, ax: Axes | None = None) -> Axes:
    """How well each attack does against what the main task keeps, over the strengths.

    Down and to the right is better. Numbers at the markers are strengths; bars are t intervals
    over seeds; a dashed line is the baseline of an attack. Attacks in different metrics
    are drawn by what they gain over their baselines, and of many attacks the strongest on each
    secret (:func:`choose_drawn`).
    """
    rows, title = _thin([p for p in _chosen(data, dataset) if p.utility.mean is not None])
    gained = len({p.primary for p in rows}) > 1
    ax = make_axes(ax, (6.4, 4.2))
    controls = [("baseline", 0.0)] if gained else _controls(rows)
    return _against_utility(ax, rows, title, group_series(choose_drawn(rows)), controls, gained)


def leakage_and_limits(data: Whole, *, dataset: str | None = None, ax: Axes | None = None) -> Axes:
    """What leaks against what the main task keeps, over the strengths, beside what gates allow.

    A line for each secret: of all attacks on it the largest advantage at each strength. Dashed are
    limits on an advantage; the shaded part is within all of them and within the least limit on the
    loss of utility.
    """
    rows, title = _thin([p for p in _chosen(data, dataset) if p.utility.mean is not None])
    ax = make_axes(ax, (6.4, 4.2))
    if not rows:
        return dress(ax)
    gates = [v.gate for v in _summary(data).limits if v.dataset == rows[0].dataset]
    limits = _find_limits(gates, "advantage", {"", *(p.primary for p in rows)})
    levels = [(f"limit {x:g}", x) for x in limits]
    secrets = group_series(_strongest_on_each_secret(rows))
    _against_utility(ax, rows, title, secrets, levels, gained=True)
    if limits:
        whole = max((p.utility.mean or 0.0 for p in rows if p.is_undefended), default=math.inf)
        drop = min(_find_limits(gates, "utility_drop", {""}), default=math.inf)
        (left, right), (bottom, top) = ax.get_xlim(), ax.get_ylim()
        floor = max(left, whole - drop) if math.isfinite(whole) else left
        ax.fill_between([floor, right], bottom, limits[0], color=COLORS[2], alpha=0.12, linewidth=0)
        ax.set(xlim=(left, right), ylim=(bottom, top))
    return ax


def _find_limits(gates: Sequence[Gate], metric: str, of: Collection[str]) -> list[float]:
    """The largest values that gates on a metric allow, the least first."""
    return sorted({g.max for g in gates if g.metric == metric and g.of in of if g.max is not None})


def _against_utility(
    ax: Axes, rows: Sequence[Point], title: str, lines: Mapping[str, Sequence[Point]],
    levels: Sequence[tuple[str, float]], gained: bool,
) -> Axes:  # fmt: skip
    """Draw lines of points by their utility, and horizontal levels.

    Args:
        ax: where.
        rows: all points.
        title: of the figure.
        lines: by name.
        levels: names and values.
        gained: show advantages, else values of the metric.
    """
    marks = []
    for i, (label, of) in enumerate(lines.items()):
        seen = [(p, e) for p in of if (e := p.advantage if gained else p.value).mean is not None]
        x, y = [p.utility for p, _ in seen], [e for _, e in seen]
        style = _style(i)
        ax.errorbar(
            _means(x), _means(y), xerr=_errors(x), yerr=_errors(y), label=shorten(label),
            markersize=5, linewidth=1.4, capsize=2, elinewidth=0.8, **style,
        )  # fmt: skip
        at = zip(seen, _means(x), _means(y), strict=True)
        marks += [(f"{_level(p):g}", u, v, style["color"]) for (p, _), u, v in at]
    for (label, value), dashes in zip(levels, itertools.cycle(("--", ":", "-."))):
        ax.axhline(value, linestyle=dashes, linewidth=1.1, color="#808080", label=label)
    mark(ax, marks, 4.0)
    if not rows:
        return dress(ax)
    ax.set_xlabel(f"utility: {metric_name(rows[0].utility_metric)}")
    ax.set_ylabel(f"{'advantage in' if gained else 'attack:'} {_measured(rows)}")
    return _finish(ax, title, len(lines))


def trade_offs(data: Data, dataset: str | None = None) -> list[Point]:
    """Cost, utility and leakage of every training: what the figure of that name shows.

    Returns:
        for each training the point of the attack that gains most. What sent nothing or was not
        attacked is left out.
    """
    known = (
        p for p in _attacked(data, _chosen(data, dataset)[0].dataset)
        if p.is_main and p.bytes and None not in (p.advantage.mean, p.utility.mean)
    )  # fmt: skip
    return [max(of, key=find_gain) for of in group_by(known, lambda p: p.training).values()]


def cost_utility_leakage(data: Data, *, dataset: str | None = None, ax: Axes | None = None) -> Axes:
    """What every training sends, what it is good for, and the most that an attack gains by it.

    Up and to the left is better, and so are small markers: they grow with the largest advantage of
    any attack, which is also written beside them. Bars are t intervals over seeds.
    """
    rows, title = _thin(trade_offs(data, dataset))
    ax = make_axes(ax, (6.4, 4.2))
    several, marks = len({(p.defense, p.strength) for p in rows}) > 1, []
    for i, p in enumerate(rows):
        sent, y = (p.bytes or 0.0) / 1e6, [p.utility]
        label = p.algorithm
        if several and p.defense != "none":
            label += f", {p.defense} {_level(p):g}"
        style = _style(i)
        ax.errorbar(
            [sent], _means(y), yerr=_errors(y), **style, linestyle="",
            markersize=4 + 16 * max(0.0, find_gain(p)) ** 0.5, capsize=2, elinewidth=0.8,
        )  # fmt: skip
        ax.plot([], [], linestyle="", markersize=5, label=shorten(label, 60), **style)
        marks.append((f"{find_gain(p):+.2f}", sent, _means(y)[0], None))
    if not rows:
        return dress(ax)
    every = [x for _, x, _, _ in marks]
    if max(every) > 10 * min(every):
        ax.set_xscale("log")
    ax.margins(x=0.12, y=0.12)
    mark(ax, marks, 9.0)
    ax.set_xlabel("sent in training, MB (marker: largest advantage)")
    ax.set_ylabel(f"utility: {metric_name(rows[0].utility_metric)}")
    return _finish(ax, title, 4)


def _controls(rows: Sequence[Point]) -> list[tuple[str, float]]:
    """Controls to draw; those closer than 0.015 to one that is drawn are left out."""
    out: list[tuple[str, float]] = []
    for p in rows:
        value = p.control_value.mean
        if value is not None and all(abs(value - v) > 0.015 for _, v in out):
            out.append((f"baseline: {shorten(p.control)} {value:.2f}", value))
    return out


def attack_by_defense(data: Data, *, dataset: str | None = None, ax: Axes | None = None) -> Axes:
    """Heat map: the advantage of each attack (rows) under each defense and strength (columns).

    Of more than :data:`MOST_COLUMNS` columns as many are drawn, evenly spaced from first to last.
    """
    rows = _chosen(data, dataset)
    several = len({p.adversary for p in rows}) > 1
    wide = len({p.algorithm for p in rows}) > 1
    cells: dict[tuple[str, str], float | None] = {}
    for p in sorted(rows, key=order_of):
        down = f"{p.attack} by {p.adversary}" if several else p.attack
        at = _strength(p.defense, p.strength)
        cells[down, f"{p.algorithm}\n{at}" if wide else at] = p.advantage.mean
    across, title = list(dict.fromkeys(k[1] for k in cells)), rows[0].dataset
    drawn = {*_space(across)}
    if len(drawn) < len(across):
        cells = {k: v for k, v in cells.items() if k[1] in drawn}
        title = f"{title}, {len(drawn)} of {len(across)} columns"
    return draw_heat(cells, make_axes(ax, size_of(cells)), title)


def _strength(defense: str, strength: float | None) -> str:
    return defense if defense == "none" or strength is None else f"{defense} {strength:g}"


def reconstructions(data: Whole, *, dataset: str | None = None, ax: Axes | None = None) -> Axes:
    """Images, and below each what an attack made of it; two lines for each attack and defense.

    Raises:
        ConfigError: there are none; the attack's `pictures` asks for them.
    """
    found = [p for p in _summary(data).pictures if dataset in (None, p.dataset)]
    found = [p for p in found if p.dataset == found[0].dataset]
    if not found:
        raise ConfigError("figure: there are no pictures. Set pictures = 4 in the [[attack]].")
    tall, wide = (max(p.shape[k] for p in found) for k in (1, 2))
    most = max(len(p.rows) for p in found)
    names = []
    for p in found:
        names += [f"{p.party}: true", f"{p.attack}, {_strength(p.defense, p.strength)}"]
    ax = make_axes(ax, (2.6 + 0.55 * most, 0.5 + 1.1 * len(found) * tall / wide * 0.55))
    ax.imshow(_sheet(found, tall, wide, most), interpolation="nearest")
    ax.set_xticks([])
    ax.set_yticks(
        [tall / 2 + i * (tall + 1) for i in range(len(names))], [shorten(n) for n in names]
    )
    ax.tick_params(length=0, labelsize="small")
    ax.spines[:].set_visible(False)
    ax.set_title(shorten(found[0].dataset), fontsize="medium", loc="left")
    return ax


def _sheet(found: Sequence[Picture], tall: int, wide: int, most: int) -> Any:
    """All images on one sheet, red, green and blue from 0 to 1; what an attack made is below."""
    import numpy as np

    sheet = np.ones((2 * len(found) * (tall + 1), most * (wide + 1), 3))
    for i, p in enumerate(found):
        channels, h, w = p.shape
        for j, pair in enumerate(zip(p.truth, p.guess, strict=True)):
            for k, shades in enumerate(pair):
                image = np.reshape(shades, (channels, h, w)).transpose(1, 2, 0) / 255
                image = image if channels == 3 else image.mean(axis=2, keepdims=True)
                top, left = (2 * i + k) * (tall + 1), j * (wide + 1)
                sheet[top : top + h, left : left + w] = image
    return sheet
