"""An attack's answer, and the truth it is compared with; joined by row id in `vflsec.audit`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from vflsec.core import check
from vflsec.core.reprs import as_table
from vflsec.errors import ShapeError


def _numpy(value: Any, dtype: Any, *, own: bool = True) -> NDArray[Any]:
    """As an array, which is nobody else's if `own`."""
    if isinstance(value, Tensor):
        value = value.detach().cpu().numpy()
    return (np.array if own else np.asarray)(value, dtype=dtype)


def _repeats(rows: NDArray[np.int64], group: NDArray[np.int64] | None) -> bool:
    ascending = np.sort(rows)
    if (ascending[1:] > ascending[:-1]).all():  # as of most, whatever their groups
        return False
    if group is None:
        return True
    order = np.lexsort((group, rows))
    rows, group = rows[order], group[order]
    return bool(((rows[1:] == rows[:-1]) & (group[1:] == group[:-1])).any())


@dataclass(frozen=True)
class Guess:
    """What an attack believes about some rows.

    Arrays are copied, so an attack may go on with its own (a buffer for the next replica, say).

    Attributes:
        target: what is guessed: ``"label"``, ``"feature"``, ...
        rows: sample ids, (n,) int64, each at most once within a group.
        scores: (n,) for binary labels, larger = class 1 more certain, always; (n, C) for classes,
            larger = class more certain; (n, d) for features, the values themselves.
        group: (n,) int64 or None: scores are comparable within a group only (say, one batch).
        abstain: (n,) bool or None: rows on which the attack declines to answer. What their scores
            are is not read, NaN neither: they are kept as 0.
        notes: how the answer came about (variant chosen, cross-validation score); no truth in it.
    """

    target: str
    rows: NDArray[np.int64]
    scores: NDArray[np.float64]
    group: NDArray[np.int64] | None = None
    abstain: NDArray[np.bool_] | None = None
    notes: Mapping[str, object] = field(default_factory=dict)

    if TYPE_CHECKING:  # tensors and lists come in, arrays are kept

        def __init__(
            self,
            target: str,
            rows: ArrayLike | Tensor,
            scores: ArrayLike | Tensor,
            group: ArrayLike | Tensor | None = None,
            abstain: ArrayLike | Tensor | None = None,
            notes: Mapping[str, object] = ...,
        ) -> None: ...

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", _numpy(self.rows, np.int64))
        object.__setattr__(self, "scores", _numpy(self.scores, np.float64))
        n = len(self.rows)
        if self.rows.ndim != 1 or self.scores.ndim not in (1, 2) or len(self.scores) != n:
            got = f"{self.rows.shape} and {self.scores.shape}"
            raise ShapeError.must("a Guess", "have rows (n,) and scores (n,) or (n, c)", got)
        for name, dtype in (("group", np.int64), ("abstain", np.bool_)):
            value = getattr(self, name)
            if value is not None:
                value = _numpy(value, dtype)
                if value.shape != (n,):
                    raise ShapeError.shaped(f"Guess.{name}", (n,), value.shape)
                object.__setattr__(self, name, value)
        if self.abstain is not None:
            self.scores[self.abstain] = 0.0
        if _repeats(self.rows, self.group):
            raise ShapeError("a Guess must not repeat a row within a group.")

    def __repr__(self) -> str:
        shape = " x ".join(str(n) for n in self.scores.shape)
        abstains = f", abstains on {int(self.abstain.sum())}" if self.abstain is not None else ""
        return f"<Guess of {self.target}: {shape} scores{abstains}>"

    def _repr_html_(self) -> str:
        notes = {str(k): check.shown(v) for k, v in self.notes.items()}
        first = [(str(r), str(s)) for r, s in zip(self.rows[:5], self.scores[:5], strict=True)]
        return as_table(repr(self)[1:-1], [*notes.items(), ("row", "score"), *first])


@dataclass(frozen=True)
class Truth:
    """True values by row id; held by the audit, never handed to an attack.

    Attributes:
        target: what these are: ``"label"``, ``"feature"``, ...
        rows: sample ids, (n,) int64, each once.
        values: (n,) int64 labels, or (n, d) float64 features.
        columns: (d,) int64 of which column each number of a feature is (the codes of a category are
            of one), or None where each is a column.
        people: (n,) int64 whose row each is, or None where each is of another person.
    """

    target: str
    rows: NDArray[np.int64]
    values: NDArray[Any]
    columns: NDArray[np.int64] | None = None
    people: NDArray[np.int64] | None = None

    if TYPE_CHECKING:

        def __init__(
            self, target: str, rows: ArrayLike | Tensor, values: ArrayLike | Tensor,
            columns: ArrayLike | Tensor | None = None, people: ArrayLike | Tensor | None = None,
        ) -> None: ...  # fmt: skip

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", _numpy(self.rows, np.int64, own=False))
        kind = np.int64 if self.target == "label" else np.float64
        object.__setattr__(self, "values", _numpy(self.values, kind, own=False))
        if self.columns is not None:
            object.__setattr__(self, "columns", _numpy(self.columns, np.int64, own=False))
            if self.values.ndim != 2 or self.columns.shape != self.values.shape[1:]:
                got = f"{self.columns.shape} and {self.values.shape}"
                raise ShapeError.must("a Truth", "have columns (d,) and values (n, d)", got)
        if self.rows.ndim != 1 or len(self.values) != len(self.rows):
            got = f"{self.rows.shape} and {self.values.shape}"
            raise ShapeError.must("a Truth", "have rows (n,) and n values", got)
        if self.people is not None:
            object.__setattr__(self, "people", _numpy(self.people, np.int64, own=False))
            if self.people.shape != self.rows.shape:
                got = f"{self.people.shape} and {self.rows.shape}"
                raise ShapeError.must("a Truth", "have people (n,) of n rows", got)
        rises = bool((self.rows[1:] > self.rows[:-1]).all())
        if not rises and len(np.unique(self.rows)) != len(self.rows):
            raise ShapeError("a Truth must name every row once.")
