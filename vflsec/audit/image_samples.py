"""Some images beside what an attack made of them, small enough to be kept with a figure.

An R squared says how much of the columns' variance was recovered, not whether a person would know
the picture again. Which rows are drawn does not depend on the answer: the first ones by id.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vflsec.audit.point import Identity, Training
from vflsec.audit.record import AuditRecord
from vflsec.audit.truth_join import join
from vflsec.specs import CellResult

if TYPE_CHECKING:
    from vflsec.core.guess import Guess, Truth

Columns = tuple[str, int, tuple[int, ...]]
"""A party, how many of the columns are its own, and the shape of its rows."""


def pair_images(
    guess: Guess, truth: Truth, rows: NDArray[np.int64], parties: Sequence[Columns], count: int
) -> list[dict[str, Any]]:
    """Truth and answer of the first rows, as shades.

    Args:
        guess: of columns, (n, d).
        truth: the columns, those of one party after the other.
        rows: sample ids that are scored.
        parties: whose columns these are, in their order.
        count: most images of each party.

    Returns:
        for each party whose rows are images (c, h, w): ``party``, ``shape``, ``rows`` (ids), and
        ``truth`` and ``guess``, a list of c h w shades 0 to 255 for each row. Shades are those of
        the true rows that are drawn, from the darkest to the brightest; what an answer has beyond
        them is cut.
    """
    some = np.sort(rows)[:count]
    if not len(some):
        return []
    joined = join(guess, truth, some)
    return list(_drawn(joined.values, joined.scores, some, parties))


def _drawn(
    values: NDArray[Any], scores: NDArray[Any], rows: NDArray[np.int64], parties: Sequence[Columns]
) -> Iterator[dict[str, Any]]:
    start = 0
    for party, width, shape in parties:
        end = start + width
        if len(shape) == 3:
            real, made = values[:, start:end], scores[:, start:end]
            low, high = float(real.min()), float(real.max())
            scale = 255 / (high - low) if high > low else 0.0
            yield {
                "party": party, "shape": list(shape), "rows": rows.tolist(),
                "truth": _shades((real - low) * scale), "guess": _shades((made - low) * scale),
            }  # fmt: skip
        start = end


def _shades(values: NDArray[Any]) -> list[list[int]]:
    found: list[list[int]] = np.rint(values.clip(0, 255)).astype(int).tolist()
    return found


@dataclass(frozen=True, slots=True)
class Picture(Identity):
    """Images of one party beside what an attack made of them, see :func:`pair_images`."""

    seed: int = 0
    party: str = ""
    shape: tuple[int, ...] = ()
    rows: tuple[int, ...] = ()
    truth: tuple[tuple[int, ...], ...] = ()
    guess: tuple[tuple[int, ...], ...] = ()


def collect_pictures(record: AuditRecord, results: Sequence[CellResult]) -> list[Picture]:
    """Images beside what was made of them: the first seed of each point, after the last phase.

    Args:
        record: what the store keeps about the audit.
        results: its finished cells.
    """
    last: dict[tuple[Identity, str], Picture] = {}
    seeds: dict[Training, int] = {}
    for at, result, _ in record.locate(results, "audit"):
        seed = result.spec.seed
        if seeds.setdefault(at, seed) != seed:
            continue
        for m in result.measures:
            where = Identity(**at.as_dict(), adversary=m.adversary, attack=m.attack, split=m.split)
            for drawn in m.notes.get("pictures", ()):
                last[where, drawn["party"]] = Picture(
                    **replace(where, phase=m.phase).as_dict(), seed=seed, **drawn
                )
    return list(last.values())
