"""One measure of one training, as a row of the results, and what it gains over its controls."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, cast

from vflsec.audit.controls import CHANCE, Controls, Paired, find_strongest
from vflsec.audit.exposed import ClassCount
from vflsec.audit.intervals import mean_of
from vflsec.audit.metrics import find_sign
from vflsec.audit.point import Identity, Scored, clean
from vflsec.runtime.grouping import group_by
from vflsec.runtime.typed_values import read_as
from vflsec.specs import DECLINED

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = (
    "cell", "dataset", "algorithm", "defense", "strength", "phase", "seed", "adversary", "attack",
    "attack_key", "of_label", "known_rows", "target", "victim", "split", "metric", "primary",
    "value", "low", "high", "n", "chance", "control", "control_value", "advantage", "controls",
    "status", "reason", "bytes", "messages", "turned", "tied", "asked", "by_class", "role",
)  # fmt: skip
"""Columns of the results; texts are never missing (""), numbers are NaN where there is none."""


@dataclass(frozen=True, slots=True)
class ResultRow(Identity, Scored):
    """One measure of one training.

    Attributes:
        cell: key of the training.
        seed: of the training.
        primary: the metric that verdicts rest on.
        value: the figure; None where there is none.
        low, high: ends of its exact interval within the seed.
        n: rows that were scored.
        chance: the metric's level of chance: what guessing without any knowledge gives.
        controls: figure and cross-validated score of each control, by name.
        control: the same attacker without the federation; of several the one that leaves the least
            advantage over the seeds of the point.
        control_value: its figure on the same rows.
        advantage: what the attack gains over it, signed so that larger is worse for privacy.
        status: ``ok``, ``not-observable``, ``not-applicable``, ``declined`` or ``error``.
        reason: why there is no figure.
        bytes: that all parties sent in training, all phases together.
        messages: how many messages that were.
        turned: the figure of the answer turned round, where the value does not tell it.
        tied: whether the attack has one answer for all rows.
        asked: the column, or the question about one, that an attack chose by itself.
        by_class: of exposed rows, how many of each class.
        role: ``audit``, ``reference`` or ``control`` (a planted leak).
        grants: what the attack was granted beside known rows, in words.
        notes: of its measure; not in tables.
    """

    cell: str = ""
    seed: int = 0
    primary: str = ""
    value: float | None = None
    low: float | None = None
    high: float | None = None
    n: int = 0
    chance: float | None = None
    control: str = ""
    control_value: float | None = None
    advantage: float | None = None
    controls: Controls = field(default_factory=dict)
    status: str = "ok"
    reason: str = ""
    bytes: float | None = None
    messages: float | None = None
    turned: float | None = None
    tied: bool = False
    asked: str = ""
    by_class: tuple[ClassCount, ...] = ()
    role: str = "audit"
    grants: str = ""
    notes: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @property
    def figures(self) -> dict[str, float]:
        """Every control's figure, and the level of chance where there is one."""
        found = {k: of["value"] for k, of in self.controls.items()}
        known = {k: float(v) for k, v in found.items() if v is not None and math.isfinite(v)}
        if self.chance is None:
            return known
        return {CHANCE: float(self.chance), **known}

    @property
    def control_set(self) -> ControlSet:
        """What shares one control that is named beforehand.

        Rows that do not say how many rows the adversary knows are told apart by attack.
        """
        at = self.without("algorithm", "defense", "strength", "phase", "attack", "victim", "split")
        return at.without("attack_key" if self.known_rows is not None else "known_rows"), tuple(
            sorted(self.controls)
        )


ControlSet = tuple[Identity, tuple[str, ...]]

_NAMES = {f.name for f in fields(ResultRow)}
_NUMBERS = [f.name for f in fields(ResultRow) if f.type == "float | None"]


def results_table(rows: Sequence[ResultRow]) -> pd.DataFrame:
    """The rows as a table with :data:`COLUMNS`."""
    import pandas as pd

    values = [[_WRITE[c](r) if c in _WRITE else getattr(r, c) for c in COLUMNS] for r in rows]
    frame = pd.DataFrame(values, columns=list(COLUMNS))
    return frame.astype(dict.fromkeys(_NUMBERS, "float64") | {"seed": "int64", "n": "int64"})


def read_rows(frame: pd.DataFrame) -> list[ResultRow]:
    """The rows of a table."""
    return build_rows(cast("list[dict[str, Any]]", frame.to_dict("records")))


def build_rows(rows: Iterable[Mapping[str, Any]]) -> list[ResultRow]:
    """Rows of a table by name of column, as values."""
    return [
        ResultRow(**{k: clean(v) for k, v in r.items() if k in _NAMES}
                  | {"controls": json.loads(r["controls"]) if r["controls"] else {},
                     "by_class": read_as(
                         tuple[ClassCount, ...], json.loads(r.get("by_class") or "[]"))})
        for r in rows
    ]  # fmt: skip


_WRITE: dict[str, Callable[[ResultRow], str]] = {
    "controls": lambda r: (
        json.dumps({k: dict(v) for k, v in sorted(r.controls.items())}) if r.controls else ""
    ),
    "by_class": lambda r: json.dumps([asdict(c) for c in r.by_class]) if r.by_class else "",
}


def count_unscored(rows: Iterable[ResultRow]) -> int:
    """Seeds on which there was nothing to score, such as no row of a rare class."""
    return len({r.seed for r in rows if r.status == "ok" and r.value is None})


def count_fewest(rows: Iterable[ResultRow]) -> int:
    """The fewest rows that were scored on a seed that has something to score."""
    return min((r.n for r in rows if r.value is not None), default=0)


def find_declined(rows: Iterable[ResultRow]) -> dict[Identity, set[int]]:
    """The seeds on which an attack declined, by :attr:`Identity.run`."""
    found = group_by((r for r in rows if r.status == DECLINED), lambda r: r.run)
    return {run: {r.seed for r in of} for run, of in found.items()}


def read_advantages(
    rows: Sequence[ResultRow], declined: Mapping[Identity, Collection[int]] | None = None
) -> tuple[Paired, Paired]:
    """Advantage and figure by control and seed, of the rows of one point that have a figure.

    The advantage is signed so that larger is worse for privacy. Several rows of a seed count once,
    by their mean. Where the attack declined, its adversary is left with a control: the advantage
    is 0, and the figure that control's mean.

    Args:
        rows: of one point.
        declined: of :func:`find_declined`.
    """
    gained: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    own: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for r in rows:
        if r.value is None or not math.isfinite(r.value):
            continue
        for name, figure in r.figures.items():
            gained[name][r.seed].append(find_sign(r.metric) * (r.value - figure))
            own[name][r.seed].append(figure)
    lost = set(declined.get(rows[0].run, ())) if declined and rows else set()
    for name, by_seed in own.items() if lost else ():
        usual = mean_of([v for of in by_seed.values() for v in of])
        for seed in lost.difference(by_seed):
            gained[name][seed], by_seed[seed] = [0.0], [usual]
    return _means(gained), _means(own)


def _means(found: Mapping[str, Mapping[int, Sequence[float]]]) -> Paired:
    return {
        name: {seed: mean_of(v) for seed, v in sorted(of.items())} for name, of in found.items()
    }


def name_controls(rows: Iterable[ResultRow]) -> dict[ControlSet, str]:
    """The control named beforehand of each set, over all seeds and cells alike."""
    return {
        key: find_strongest(
            ((r.seed, r.controls) for r in of),
            key[0].metric,
            has_chance=any(r.chance is not None for r in of),
        )
        for key, of in group_by(rows, lambda r: r.control_set).items()
    }
