"""What received embeddings say of their sender's columns: readings of them, by name.

A reading gives every row numbers in which a column may stand plainly that the embeddings themselves
hide: noise that is drawn anew in every epoch averages out, what is the same every time is gone from
the change, and what a row is multiplied by is gone from its direction. A column may also stand in
how long a row is, or behind what the receiver knows itself (its own columns).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vflsec.core.batch_centring import LEFT, is_shared
from vflsec.core.view import Known, Table, View
from vflsec.inference.completion import Fit, logistic_by_one
from vflsec.nn.rows import spread

TIMES = ("last", "mean", "first", "centred")
"""In which forms embeddings are kept, the usual one first."""
LEADING = 8
"""Principal coordinates of which any two are multiplied, for all to be read together."""
WIDE = 64
"""Entries up to which each has a size of its own, and any two are multiplied."""
MOST = 2048
"""Products of entries and own columns that are looked at."""
MUCH = 16 << 20
"""Bytes of a reading beyond which it is not kept."""
BESIDE = 10
"""Rows for each own column from which on what own columns tell of embeddings is taken away."""


def list_readings(view: View, kind: str, times: Sequence[str]) -> Mapping[str, Table]:
    """Received messages of `kind` by how they are read, (n, k) numbers, the usual way first.

    Those of `times`, of :data:`TIMES`; ``centred`` only where rows share much. Beside several also
        change:    the last less what goes with the first
        unit:      the last divided by its length
        products:  of any two leading coordinates of that, which are the same for z and -z
        sizes:     how long the last is, how many of its entries are 0, their sizes, and they sorted
        rest, rest of the mean: the last and the mean less what own columns tell of them by ridge
                   regression on all rows
    """
    tables = {form: view.received(kind, f"{form}+") for form in times}
    if "centred" in tables and not is_shared(tables["mean"].tensor, tables["centred"].tensor):
        del tables["centred"]
    if len(times) == 1:
        return tables
    usual = tables["last"]
    last, own = usual.tensor.flatten(1).double(), view.design(usual.rows).double()

    def beside(form: str) -> Tensor:
        return tables[form].of_rows(usual.rows).flatten(1).double()

    def unit() -> Tensor:
        return torch.nn.functional.normalize(last, dim=1)

    made = {
        "change": lambda: find_change(last, tables["first"].tensor.flatten(1).double()),
        "unit": unit,
        "products": lambda: multiply_coordinates(unit()),
        "sizes": lambda: compute_sizes(last),
    }
    if 0 < BESIDE * own.shape[1] <= len(own):
        made |= {
            "rest": lambda: remove_own(last, own),
            "rest of the mean": lambda: remove_own(beside("mean"), own),
        }
    return Readings(tables, usual, made)


class Readings(Mapping[str, Table]):
    """Tables by name, some of them made when they are asked for; those that take more than
    :data:`MUCH` are made anew, but for the last.

    Args:
        tables: that are there.
        usual: whose rows those have that are made.
        made: their numbers (n, k).
    """

    def __init__(
        self, tables: Mapping[str, Table], usual: Table, made: Mapping[str, Callable[[], Tensor]]
    ) -> None:
        self._tables, self._usual, self._made = dict(tables), usual, made
        self._last: tuple[str, Table] | None = None

    def __getitem__(self, name: str) -> Table:
        if name in self._tables:
            return self._tables[name]
        if self._last is None or self._last[0] != name:
            self._last = None  # makes room
            table = self._usual.holding(self._made[name]())
            if table.tensor.nbytes <= MUCH:
                return self._tables.setdefault(name, table)
            self._last = name, table
        return self._last[1]

    def __iter__(self) -> Iterator[str]:
        yield from (k for k in self._tables if k not in self._made)
        yield from self._made

    def __len__(self) -> int:
        return len({*self._tables, *self._made})


@dataclass(frozen=True)
class Products:
    """Products of two numbers of each row, of which one may be a column; made when asked for.

    Attributes:
        left, right: numbers (n, a) and (n, b).
        of: which of both are multiplied, (2, k) int64.
    """

    left: Tensor
    right: Tensor
    of: Tensor

    def numbers(self, rows: slice, at: Tensor | None = None) -> Tensor:
        """All products of these rows (m, k), or those `at` (c,) alone."""
        i, j = self.of if at is None else self.of[:, at]
        return self.left[rows][:, i] * self.right[rows][:, j]


def multiply_readings(view: View, kind: str, rows: Tensor) -> dict[str, Products]:
    """Products by name, for the given sample ids (n,).

    pairs: of any two entries of the last message of `kind`, divided by its length; crossed: of an
    entry and an own column, each in standard deviations, the first own columns of too many.
    """
    z = view.received(kind, "last+").of_rows(rows).flatten(1).double()
    own, width, made = view.design(rows).double(), z.shape[1], {}
    if width <= WIDE:
        unit = torch.nn.functional.normalize(z, dim=1)
        made["pairs"] = Products(unit, unit, torch.triu_indices(width, width, device=z.device))
    many = min(MOST // width, own.shape[1])
    if many:
        of = torch.cartesian_prod(*(torch.arange(k, device=z.device) for k in (width, many))).T
        made["crossed"] = Products(_standard(z), _standard(own[:, :many]), of)
    return made


def pair_columns(own: Tensor) -> Products:
    """Own columns (n, p) in standard deviations, their sizes, and products of any two: what
    embeddings that tell own columns alone give as well. The first :data:`WIDE` of too many.
    """
    x = torch.nn.functional.pad(_standard(own[:, :WIDE]), (1, 0), value=1.0)
    width = x.shape[1]
    pairs = torch.triu_indices(width, width, device=x.device)
    size = torch.arange(width, 2 * width - 1, device=x.device)
    of = torch.cat([pairs, torch.stack([torch.zeros_like(size), size])], dim=1)
    return Products(x, torch.cat([x, x[:, 1:].abs()], dim=1), of)


def by_product(of: Products, known: Known, classes: int, name: str) -> Fit:
    """Logistic regression on the one product that tells known rows apart best; they come first."""
    x = of.numbers(slice(len(known)))
    sd, mean = spread(x)
    scale = sd.clamp_min(1e-6)

    def told(at: Sequence[int]) -> NDArray[np.float64]:
        k = torch.tensor(at, device=x.device)
        rest = of.numbers(slice(len(known), None), k)
        return ((rest - mean[k]) / scale[k]).cpu().numpy()  # type: ignore[no-any-return]

    return logistic_by_one(((x - mean) / scale).cpu().numpy(), known, told, classes, name)


def _standard(x: Tensor) -> Tensor:
    sd, mean = spread(x)
    return (x - mean) / sd.clamp_min(1e-9)


def find_change(last: Tensor, first: Tensor) -> Tensor:
    """What of the last embeddings (n, d) does not go with the first; by row if that leaves less."""

    def less(dim: tuple[int, ...]) -> Tensor:
        size = first.square().sum(dim, keepdim=True).clamp_min(1e-300)
        return last - (last * first).sum(dim, keepdim=True) / size * first

    whole, by_row, d = less((0, 1)), less((1,)), last.shape[1]
    left = d / (d - 1) * float(by_row.square().sum()) if d > 1 else torch.inf
    return by_row if left < LEFT * float(whole.square().sum()) else whole


def multiply_coordinates(x: Tensor) -> Tensor:
    """Products of any two of the :data:`LEADING` largest principal coordinates of x (n, d)."""
    if x.shape[1] > LEADING:
        x = x @ torch.linalg.eigh(x.T @ x).eigenvectors[:, -LEADING:]
    a, b = torch.triu_indices(x.shape[1], x.shape[1], device=x.device)
    return x[:, a] * x[:, b]


def compute_sizes(x: Tensor) -> Tensor:
    """Of rows (n, d): logarithm of the length, share of zeros; of up to :data:`WIDE` entries also
    their sizes, and the entries in order of their values.
    """
    length = x.norm(dim=1, keepdim=True)
    length = length.clamp_min(1e-6 * float(length.mean()) + 1e-300).log()
    found = [length, (x == 0).double().mean(1, keepdim=True)]
    if x.shape[1] <= WIDE:
        found += [x.abs(), _sort_rows(x)]
    return torch.cat(found, dim=1)


def _sort_rows(x: Tensor) -> Tensor:
    """Every row of x (n, d) in order; numpy takes a fifth of the time for many short rows."""
    if x.device.type != "cpu":
        return x.sort(dim=1).values
    return torch.from_numpy(np.sort(x.numpy(), axis=1))


def remove_own(x: Tensor, own: Tensor) -> Tensor:
    """Rows (n, d) less what own columns (n, p) tell of them by ridge regression."""
    centred, x = own - own.mean(0), x - x.mean(0)
    gram = centred.T @ centred
    gram.diagonal().add_(1e-6 * float(gram.diagonal().mean()) + 1e-300)
    return x - centred @ torch.linalg.solve(gram, centred.T @ x)
