"""The layout of a party's prepared rows: which columns are numbers, which are codes, or images."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vflsec.core import check
from vflsec.core.quantity_questions import answer_question
from vflsec.errors import ThreatModelError
from vflsec.specs import QUESTIONS


@dataclass(frozen=True)
class Schema:
    """The layout of a party's prepared input rows.

    Attributes:
        names: one name a column (empty for images).
        cardinalities: 0 for a numeric column, else the number of codes of a categorical one;
            code 0 means missing or unseen. Categorical codes are stored as floats.
        shape: shape of one row, ``(d,)`` for tables, ``(c, h, w)`` for images.
    """

    names: tuple[str, ...]
    cardinalities: tuple[int, ...]
    shape: tuple[int, ...]

    @classmethod
    def numbers(cls, shape: tuple[int, ...]) -> Schema:
        """Rows of `shape` without categories; columns of a table are called c0, c1, ..."""
        if len(shape) != 1:
            return cls((), (), shape)
        return cls(tuple(f"c{i}" for i in range(shape[0])), (0,) * shape[0], shape)

    @property
    def empty(self) -> bool:
        """Whether the party has no column: it holds labels only."""
        return self.shape == (0,)

    @property
    def numeric(self) -> tuple[int, ...]:
        """Places of the numeric columns."""
        return tuple(i for i, c in enumerate(self.cardinalities) if c == 0)

    @property
    def categorical(self) -> tuple[int, ...]:
        """Places of the categorical columns."""
        return tuple(i for i, c in enumerate(self.cardinalities) if c > 0)

    def design(self, x: Tensor, *, most: int = 64) -> Tensor:
        """Rows as a plain numeric matrix (n, p): categoricals one-hot, images flat.

        A categorical column with more than `most` codes is folded to `most` by its code.
        """
        if not self.categorical:
            return x.flatten(1)
        parts = [x[:, list(self.numeric)]] if self.numeric else []
        for i in self.categorical:
            width = min(self.cardinalities[i], most)
            codes = x[:, i].long() % width
            parts.append(nn.functional.one_hot(codes, width).to(x.dtype))
        return torch.cat(parts, dim=1)

    @property
    def width(self) -> int:
        """Columns of :meth:`design`."""
        return len(self.design_places())

    def design_places(self, *, most: int = 64) -> tuple[int, ...]:
        """For every column of :meth:`design`, the place of the column that it is of; or its own."""
        if not self.cardinalities:
            return tuple(range(math.prod(self.shape)))
        codes = [i for i in self.categorical for _ in range(min(self.cardinalities[i], most))]
        return (*self.numeric, *codes)

    def design_names(self) -> tuple[str, ...]:
        """For every column of :meth:`design`, which column it is of; pixels have no name."""
        return tuple(self.names[i] if self.cardinalities else "" for i in self.design_places())

    def attribute(
        self, x: Tensor, column: str = "", ask: str = "", category: int = 0,
        cut: Tensor | None = None,
    ) -> tuple[Tensor, int]:  # fmt: skip
        """One column as classes: (codes (n,) int64, their number).

        A categorical column gives its codes; a numeric one whether it is above 0, its training
        mean. The empty name means the first categorical column, or else the first column.

        Args:
            x: prepared rows (n, d).
            column: its name.
            ask: of a number, one of :data:`vflsec.specs.QUESTIONS`; then 1 is yes.
            category: of a category, the code that is 1, all others 0; 0 for all codes as they are.
            cut: prepared rows (q, d) by which is told what is far or large; `x` if None.

        Raises:
            ThreatModelError: there is no such column, or it cannot be asked that.
        """
        i = self._place(column)
        codes, most = x[:, i], self.cardinalities[i]
        if (ask and most) or (category and not 0 < category < most):
            kind = f"categories 1 to {most - 1}" if most else "numbers"
            wrong = f"ask = {ask!r}" if ask else f"category = {category}"
            what = f"{self.names[i]!r} holds {kind}"
            raise ThreatModelError(f"{what}, of which {wrong} is no question.")
        if ask:
            return answer_question(
                ask, codes.double(), (x if cut is None else cut)[:, i].double()
            ), 2
        if most:
            return ((codes.long() == category).long(), 2) if category else (codes.long(), most)
        return (codes > 0).long(), 2

    def questions(self) -> tuple[tuple[str, str, int], ...]:
        """What :meth:`attribute` can be asked of the columns with a yes or a no: column, question
        and category; of numbers the side of the mean and :data:`vflsec.specs.QUESTIONS`.
        """
        out: list[tuple[str, str, int]] = []
        for name, codes in zip(self.names, self.cardinalities, strict=True):
            if codes:
                out += [(name, "", c) for c in range(1, codes)]
            else:
                out += [(name, ask, 0) for ask in ("", *QUESTIONS)]
        return tuple(out)

    def column(self, x: Tensor, column: str = "") -> Tensor:
        """One column (n,) of prepared rows (n, d), of the same name as for :meth:`attribute`."""
        return x[:, self._place(column)]

    def _place(self, column: str) -> int:
        if not column:
            i = self.categorical[0] if self.categorical else 0
        elif column in self.names:
            i = self.names.index(column)
        else:
            i = -1
        if i < 0 or not self.cardinalities:
            raise check.unknown("the column to infer", column, self.names, ThreatModelError)
        return i


def columns_of(schemas: Iterable[Schema]) -> list[int]:
    """Of which column each number of the parties' :meth:`Schema.design`, side by side, is.

    Columns of all parties are counted on: the codes of a category are of one column.
    """
    out: list[int] = []
    for schema in schemas:
        start = max(out, default=-1) + 1
        out += [start + i for i in schema.design_places()]
    return out
