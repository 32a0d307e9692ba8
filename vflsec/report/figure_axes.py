"""What the figures share: axes without a window, names that fit, and heat maps."""

from __future__ import annotations

import io
import itertools
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from vflsec.report.sanitize import clean

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PAPER, INK = "#ffffff", "#16181d"


def shorten(text: object, most: int = 44) -> str:
    """A user's name as a label: no control character, no formula, not too long."""
    shown = clean(text)
    shown = shown if len(shown) <= most else shown[: most - 1] + "…"
    return shown.replace("$", r"\$")


def make_axes(ax: Axes | None, size: tuple[float, float]) -> Axes:
    """`ax`, or new axes of `size` inches that no window shows; a notebook shows their figure."""
    if ax is not None:
        return ax
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    figure._repr_png_ = partial(_draw_png, figure)  # type: ignore[attr-defined]
    return figure.add_subplot()


def _draw_png(figure: Figure) -> bytes:
    out = io.BytesIO()
    figure.savefig(out, format="png")
    return out.getvalue()


def size_of(cells: Mapping[tuple[str, str], Any]) -> tuple[float, float]:
    """Inches that hold the cells and their labels."""
    down, across = {k[0] for k in cells}, {k[1] for k in cells}
    left = 0.085 * max(len(shorten(d)) for d in down)
    below = 0.05 * max(len(shorten(a, 24)) for a in across)
    return max(3.4, 0.8 + left + 0.75 * len(across)), max(1.5, 0.7 + below + 0.42 * len(down))


def draw_heat(cells: Mapping[tuple[str, str], float | None], ax: Axes, title: str) -> Axes:
    """{(row, column): value}, the redder the larger above 0; None is a dash."""
    import numpy as np
    from matplotlib import colormaps
    from matplotlib.colors import Normalize, to_rgb
    from matplotlib.patches import Rectangle

    down = list(dict.fromkeys(k[0] for k in cells))
    across = list(dict.fromkeys(k[1] for k in cells))
    known = [abs(v) for v in cells.values() if v is not None]
    scale = Normalize(0, max(0.2, *known) if known else 0.2, clip=True)
    reds = colormaps["YlOrRd"]
    for i, row in enumerate(down):
        for j, column in enumerate(across):
            value = cells.get((row, column))
            color = "#9a9a9a" if value is None else reds(scale(max(value, 0.0)) * 0.9)
            if value is not None and value <= 0:
                color = "#cfe3d8"
            ax.add_patch(Rectangle((j - 0.48, i - 0.46), 0.96, 0.92, facecolor=color))
            rgb = np.array([0.6] * 3 if value is None else to_rgb(color))
            ink = INK if rgb @ (0.2126, 0.7152, 0.0722) > 0.42 else PAPER
            ax.text(j, i, "–" if value is None else f"{value:+.2f}", ha="center", va="center",
                    color=ink, fontsize="small")  # fmt: skip
    ax.set_xlim(-0.5, len(across) - 0.5)
    ax.set_ylim(len(down) - 0.5, -0.5)
    turn = 30 if max((len(a) for a in across), default=0) > 9 else 0
    ax.set_xticks(
        range(len(across)),
        [shorten(a, 24) for a in across],
        rotation=turn,
        ha="right" if turn else "center",
    )
    ax.set_yticks(range(len(down)), [shorten(d) for d in down])
    ax.tick_params(length=0, labelsize="small")
    ax.spines[:].set_visible(False)
    ax.set_title(shorten(title), fontsize="medium", loc="left")
    return ax


def dress(ax: Axes) -> Axes:
    """Axes with a faint grid and no frame above and to the right."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(axis="y", linewidth=0.5, alpha=0.35)
    ax.set_axisbelow(True)
    return ax


def mark(ax: Axes, marks: Sequence[tuple[str, float, float, Any]], away: float) -> None:
    """Write `(text, x, y, colour)` beside points, `away` points from them and on no other text."""
    ax.autoscale_view()
    taken: list[tuple[float, float, float]] = []
    for text, x, y, color in marks:
        here = ax.transData.transform((x, y)) * 72 / ax.figure.dpi
        wide, high = 4.5 * len(text), 8.0
        for row, left in itertools.product((0, -1, 1, -2, 2, -3, 3, -4, 4), (False, True)):
            dx, dy = -away - wide if left else away, away + row * (high + away)
            a, b = here[0] + dx, here[1] + dy
            if all(a + wide < c or c + w < a or abs(b - d) > high for c, d, w in taken):
                break
        taken.append((a, b, wide))
        ax.annotate(text, (x, y), xytext=(dx, dy), textcoords="offset points",
                    fontsize="x-small", color=color)  # fmt: skip
