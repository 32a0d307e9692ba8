"""Bottom and top models that come with the package, and the user's own by import path."""

from __future__ import annotations

import importlib
import inspect
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from vflsec.core import check
from vflsec.core.view import Schema
from vflsec.errors import ConfigError, VflsecError
from vflsec.nn.module_check import rows_of, try_module
from vflsec.nn.replicas import LEAST, PASSING, Composite, Replicas, Run, stacked
from vflsec.plugins.loading import contain, describe_error, find_place, hash_source
from vflsec.runtime.out_of_memory import count_memory
from vflsec.specs import Params

KNUTH = 2654435761
"""Multiplier of Fibonacci hashing to 32 bits (Knuth, "The art of computer programming" 3, 6.4)."""


class Twin(Composite):
    """Two models side by side on the same rows (b, ...) -> [unique(x), common(x)], (b, 2d)."""

    def __init__(self, unique: nn.Module, common: nn.Module) -> None:
        super().__init__()
        self.unique, self.common = unique, common

    def combine(self, run: Run, x: Tensor) -> Tensor:
        return torch.cat([run("unique", x), run("common", x)], dim=-1)


class TabularInput(Composite):
    """Numeric columns as they are, each categorical one as a learned vector.

    Input (b, d) with categorical codes stored as floats; output (b, p) with
    p = numeric columns + sum of embedding widths. A `width` of 0 is min(16, ceil(sqrt(c)) + 1) for
    c codes.

    With `rows`, a table of more codes than that has `rows` vectors, which its codes share by a
    fixed hash (row 0 is that of missing values alone).
    """

    def __init__(self, schema: Schema, width: int, rows: int = 0) -> None:
        super().__init__()
        self.width, self.rows = width, rows
        self.numeric = list(schema.numeric)
        self.categorical = list(schema.categorical)
        codes = [schema.cardinalities[i] for i in self.categorical]
        sizes = [min(c, rows) if rows else c for c in codes]
        self.hashed = [size < c for size, c in zip(sizes, codes, strict=True)]
        widths = [width or min(16, math.ceil(math.sqrt(c)) + 1) for c in sizes]
        self.tables = nn.ModuleList(nn.Embedding(c, w) for c, w in zip(sizes, widths, strict=True))
        self.out_features = len(self.numeric) + sum(widths)

    def row(self, k: int, codes: Tensor) -> Tensor:
        """Which vector of the k-th table each code has."""
        codes = codes.long()
        if not self.hashed[k]:
            return codes
        table = self.tables[k]
        assert isinstance(table, nn.Embedding)
        spread = codes * KNUTH % 2**32 * (table.num_embeddings - 1) >> 32
        return torch.where(codes == 0, 0, 1 + spread)

    def combine(self, run: Run, x: Tensor) -> Tensor:
        if not self.categorical:
            return x
        parts = [x[..., self.numeric]] if self.numeric else []
        for k, i in enumerate(self.categorical):
            parts.append(run(f"tables.{k}", self.row(k, x[..., i])))
        return torch.cat(parts, dim=-1)


PASSING.add(TabularInput)


@stacked(nn.ModuleList)
def _module_list(s: Replicas, prefix: str, module: nn.Module, x: Tensor, train: bool) -> Tensor:
    raise ConfigError("a ModuleList has no forward of its own.")


def mlp(widths: Sequence[int], *, dropout: float = 0.0, last: bool = False) -> nn.Sequential:
    """Linear layers of these widths with ReLU between; `last` adds one after the last layer too.

    Raises:
        ConfigError: training them takes more memory than there is.
    """
    _fits(widths)
    layers: list[nn.Module] = []
    for i, (a, b) in enumerate(itertools.pairwise(widths)):
        layers.append(nn.Linear(a, b))
        if i < len(widths) - 2 or last:
            layers.append(nn.ReLU())
            if dropout:
                layers.append(nn.Dropout(dropout))
    return nn.Sequential(*layers)


def _fits(widths: Sequence[int]) -> None:
    """Weights, gradients and two moments of the optimizer, for the least number of replicas."""
    weights = sum((a + 1) * b for a, b in itertools.pairwise(widths))
    needed, there = 4 * 4 * LEAST * weights, count_memory()
    if needed > there:
        shown = ", ".join(map(str, widths))
        raise ConfigError(
            f"layers of widths {shown}: training takes about {needed / 2**30:,.0f} GiB of memory, "
            f"there are {there / 2**30:,.0f}. Choose smaller hidden or cut."
        )


def build_bottom(
    schema: Schema,
    hidden: Sequence[int],
    out: int,
    *,
    dropout: float = 0.0,
    width: int,
    rows: int = 0,
) -> nn.Sequential:
    """A bottom model for `schema`: embeddings for categoricals, then an MLP to `out` numbers.

    Images are flattened; :func:`vflsec.nn.images.build_convolutional` looks at them as such.
    """
    if schema.cardinalities:
        table = TabularInput(schema, width, rows)
        first: nn.Module = table
        size = table.out_features
    else:
        first, size = nn.Flatten(), math.prod(schema.shape)
    return nn.Sequential(first, *mlp([size, *hidden, out], dropout=dropout))


def from_path(path: str, schema: Schema, out: int, args: Params | None = None) -> nn.Module:
    """The user's own bottom model from ``"package.module:Name"``.

    Arguments named ``schema`` and ``out`` are passed by name; otherwise one required argument gets
    `out`, two get `schema` and `out`. It must map (b, *schema.shape) to (b, out).

    Args:
        path: names a class or a function.
        schema, out: columns of the party; width of its embedding.
        args: further arguments, by name.

    Raises:
        ConfigError: it cannot be imported or made, what it makes does not map to (b, out), or is
            no function of its rows (:mod:`vflsec.nn.module_check`).
    """
    rows = rows_of(schema)
    return _tried(path, {"schema": schema, "out": out}, args or {}, rows, out)


def top_from_path(path: str, inputs: int, out: int, args: Params | None = None) -> nn.Module:
    """The user's own top model from ``"package.module:Name"``.

    Arguments named ``inputs`` and ``out`` are passed by name; otherwise one required argument gets
    `out`, two get `inputs` and `out`. It must map (b, inputs) to (b, out).

    Args:
        path: names a class or a function.
        inputs, out: width of the fused embeddings; number of classes.
        args: further arguments, by name.

    Raises:
        ConfigError: it cannot be imported or made, what it makes does not map to (b, out), or is
            no function of its rows (:mod:`vflsec.nn.module_check`).
    """
    rows = rows_of(Schema.numbers((inputs,)))
    return _tried(path, {"inputs": inputs, "out": out}, args or {}, rows, out)


def _tried(path: str, given: Mapping[str, Any], args: Params, rows: Tensor, out: int) -> nn.Module:
    """What `path` makes, after it was tried on `rows`, (3, ...)."""
    factory, what = import_named(path), f"module {path!r}"
    with contain(what):
        made = _made(lambda: _construct(factory, given, args, what), what)
        trial = try_module(made, rows, what)
    if not isinstance(trial, Tensor):
        raise ConfigError.must(what, "return a tensor", type(trial).__name__)
    if trial.shape != (3, out):
        rule, got = f"map a batch of 3 to (3, {out})", tuple(trial.shape)
        raise ConfigError.must(what, rule, got, "Set the party's cut to match.")
    return made.train()


def of_class(path: str) -> Callable[[Schema], nn.Module]:
    """What makes the user's own model without arguments, from ``"package.module:Name"``.

    Raises:
        ConfigError: it cannot be imported; when called, it cannot be made, fails on rows of the
            schema, or is no function of them (:mod:`vflsec.nn.module_check`).
    """
    hash_source([path.partition(":")[0]])
    factory, what = import_named(path), f"module {path!r}"

    def make(schema: Schema) -> nn.Module:
        with contain(what):
            made = _made(factory, what)
            if not schema.empty:
                try_module(made, rows_of(schema), what)
            return made.train()

    return make


_MAKES = "make a torch.nn.Module"


def import_named(path: str) -> Callable[..., object]:
    """What ``"package.module:Name"`` names: a class or a function.

    Raises:
        ConfigError: it cannot be imported, or cannot be called.
    """
    module_name, _, attribute = path.partition(":")
    if not module_name or not attribute or module_name.startswith("."):
        raise check.fail("module", "of the form 'package.module:Name'", path)
    what = f"module {path!r}"
    with contain(what):
        try:
            factory = getattr(importlib.import_module(module_name), attribute)
        except (ImportError, AttributeError) as why:
            remedy = "Is its folder on PYTHONPATH, or the package installed?"
            raise ConfigError(f"{what} cannot be imported ({why}). {remedy}") from why
        except Exception as why:
            place = find_place(why)
            at = f" at {place}" if place else ""
            raise ConfigError(f"{what} cannot be imported{at}: {describe_error(why)}.") from why
    if not callable(factory):
        raise ConfigError.must(what, _MAKES, type(factory).__name__)
    return factory  # type: ignore[no-any-return]


def _made(make: Callable[[], object], what: str) -> nn.Module:
    try:
        made = make()
    except VflsecError:
        raise
    except Exception as why:
        raise ConfigError(f"{what} cannot be made: {describe_error(why)}.") from why
    if not isinstance(made, nn.Module):
        raise ConfigError.must(what, _MAKES, type(made).__name__)
    return made


def _construct(
    factory: Callable[..., object], given: Mapping[str, Any], args: Params, what: str
) -> object:
    try:
        found = inspect.signature(factory).parameters
    except (TypeError, ValueError):
        found = {}  # type: ignore[assignment]
    kinds = {p.kind for p in found.values()}
    free = [k for k in found if k not in given]
    if found and inspect.Parameter.VAR_KEYWORD not in kinds:
        for name in args:
            check.one_of(f"{what}: an argument", name, free)
    by_name = {k: v for k, v in given.items() if k in found}
    if by_name:
        return factory(**by_name, **args)
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = [
        p
        for p in found.values()
        if p.kind in positional and p.default is inspect.Parameter.empty and p.name not in args
    ]
    both = tuple(given.values())
    arguments = both if len(required) >= 2 else both[-1:] if len(required) == 1 else ()
    return factory(*arguments, **args)
