"""Scorecard: columns become weights of evidence, and a logistic regression with a coordinator adds
them up.

Each party cuts its columns into bins, with one for missing values. The active party sends its
labels encrypted; a passive party adds them up by bin, and the active party decrypts the sums. Of a
bin with pos of all P ones and neg of all N zeros

    WOE = ln( (pos / P) / (neg / N) ),    IV = sum over bins of (pos / P - neg / N) WOE

with 1/2 added to both where one of them is 0. The active party picks the columns of IV >= `min_iv`
and returns their WOE to the owner, zeros for others. The owner puts it in the place of the values.
Then `vertical_glm` trains on it. So a passive party learns which share of each of its bins is 1,
exactly, and the active party how many rows each bin of the others has.

Source: Siddiqi, "Credit risk scorecards", Wiley (2006); FATE 2.x, hetero feature binning
and selection, which return the WOE of its columns to a host that is to transform them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar

import numpy as np

from vflsec.algorithms.vertical_glm import Floats, Regression, VerticalGlm, add_ones
from vflsec.core import check
from vflsec.core.rounds import Learner, Wire
from vflsec.plugins import registry
from vflsec.trees.bins import cut_columns
from vflsec.trees.histograms import add_up

ALIASES = ("woe_scorecard",)


@registry.algorithm
@dataclass(frozen=True)
class Scorecard(VerticalGlm):
    """Hyper-parameters.

    Attributes:
        epochs, batch_size, rate, l2, derivative: of the regression, as of ``vertical_glm``.
        bins: of a column, without the one for missing values.
        min_iv: information value below which a column is left out.
    """

    bins: Annotated[int, partial(check.integer, low=2, high=1024)] = 10
    min_iv: check.NonNegative = 0.02

    quantities: ClassVar[bool] = False

    @property
    def sends(self) -> frozenset[tuple[str, str, str]]:  # type: ignore[override]
        return super().sends | {
            ("histogram", "passive", "active"), ("woe", "active", "passive"),
            ("woe_value", "active", "passive"),
        }  # fmt: skip

    def check_label(self, classes: int) -> None:
        super().check_label(classes)
        if classes != 2:
            remedy = "Take vertical_glm, or merge classes (merge_classes under [data])."
            raise check.fail("scorecard: the number of classes", "2", classes, remedy)

    def start(self, wire: Wire) -> Learner:
        y = wire.labels
        shares = y.astype(np.float64) if y.ndim == 1 else y[:, 1]
        x = {p: self._weigh_columns(wire, p, shares) for p in wire.task.parties}
        return Regression(self, wire, add_ones(x), wire.task.label, y)

    def _weigh_columns(self, wire: Wire, party: str, shares: Floats) -> Floats:
        """The columns of a party that are picked, as weights of evidence (N, p)."""
        active = wire.task.active
        kinds = wire.task.schema[party].cardinalities
        codes, _ = cut_columns(wire.columns(party, gaps=True), wire.rows, self.bins, kinds)
        pairs = np.stack([shares, np.ones_like(shares)], axis=1)
        zero = np.zeros(len(shares), dtype=np.int64)
        (counts,) = add_up(codes[:, wire.rows], zero, pairs, 1, self.bins + 1)
        woe, iv = find_weights(counts, float(shares.sum()), len(shares))
        picked = iv >= self.min_iv
        values = np.take_along_axis(woe[picked], codes[picked].astype(np.int64), axis=1).T
        if party != active:
            hidden = np.zeros(len(shares), dtype=np.int64)
            wire.send("ciphertext", active, party, hidden, name="label")
            wire.send("histogram", party, active, counts)
            wire.send("woe", active, party, woe * picked[:, None])
            wire.derive("woe_value", active, party, values[wire.rows], wire.rows)
        return np.ascontiguousarray(values)


def find_weights(counts: Floats, positives: float, rows: int) -> tuple[Floats, Floats]:
    """(WOE of each column and bin (d, B), 0 of bins without rows; IV of each column (d,)).

    Args:
        counts: ones and rows in each bin, (d, B, 2). Of labels under noise, whose sums may lie
            outside it, as many ones as the bin can have.
        positives, rows: of all bins of a column.
    """
    pos = counts[..., 0].clip(0, counts[..., 1])
    neg = counts[..., 1] - pos
    half = 0.5 * ((pos <= 0) | (neg <= 0))
    of_ones = (pos + half) / max(positives, 0.5)
    of_zeros = (neg + half) / max(rows - positives, 0.5)
    woe = np.where(counts[..., 1] > 0, np.log(of_ones / of_zeros), 0.0)
    return woe, np.where(counts[..., 1] > 0, (of_ones - of_zeros) * woe, 0.0).sum(axis=-1)
