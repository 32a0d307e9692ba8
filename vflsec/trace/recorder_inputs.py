"""What whoever records gives: rows, numbers, columns, grants and a model, as a trace holds them."""

from __future__ import annotations

import contextlib
import math
import re
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, dtype, nn, strided

from vflsec.core import check
from vflsec.core.view import Known, Schema
from vflsec.errors import ConfigError, ShapeError
from vflsec.label import make_label
from vflsec.nn.module_spec import describe_module, unwrap
from vflsec.nn.weights import write_weights
from vflsec.trace.limits import NAME, Limits
from vflsec.trace.manifest import ClaimedPrivacy, ModelFile

if TYPE_CHECKING:
    import pandas as pd


LIMITS = Limits()


def refuse(what: str, rule: str, got: Any, remedy: str = "") -> ConfigError:
    """The error for something that whoever records gives: ``record: WHAT must be RULE``."""
    return check.fail(f"record: {what}", rule, got, remedy)


class Ids:
    """From the party's ids to positions."""

    def __init__(self, rows: Any) -> None:
        self.sorted: NDArray[Any] | None = None
        if isinstance(rows, int | np.integer) and not isinstance(rows, bool):
            self.n = check.integer("record: rows", int(rows))
            return
        values = _array(rows)
        if values.ndim != 1 or not len(values):
            raise refuse("rows", "a number of rows or one id for each", values.shape)
        self.n = len(values)
        gaps = int((values != values).sum()) if values.dtype.kind in "fM" else 0
        if values.dtype == object:
            import pandas as pd  # from which such ids come most often

            gaps = int(pd.isna(values).sum())
        if gaps:
            raise refuse("rows without an id", "0", gaps)
        try:
            self.order = np.argsort(values, kind="stable")
        except TypeError:
            raise refuse("rows", "all whole numbers or all text", _kinds(values)) from None
        self.sorted = values[self.order]
        if (self.sorted[1:] == self.sorted[:-1]).any():
            raise refuse("rows", "unique", "one twice")

    def __len__(self) -> int:
        return self.n

    def places(self, ids: Any, of: str = "a batch") -> NDArray[np.int64]:
        """Trace row ids of the party's own ids; `of` says where they stand.

        Raises:
            ConfigError: an id is not among `rows`.
        """
        values = _array(ids)
        if values.ndim != 1:
            raise ShapeError.shaped(f"record: ids of {of}", "(b,)", values.shape)
        if not len(values):
            return np.empty(0, np.int64)
        if values.dtype.kind not in "iu" and self.sorted is None:
            remedy = "If ids are others, give record() as rows all of them, not their number."
            raise refuse("ids", f"whole numbers, 0 to {self.n - 1}", values.dtype, remedy)
        if self.sorted is None:
            found = values.astype(np.int64)  # a copy: a loop may use its ids' memory again
            large = found.view(np.uint64)  # negative ones are very large there
            if large[large.argmax()] < self.n:
                return found
            bad = (found < 0) | (found >= self.n)
        else:
            self._exact(values)
            try:
                at = np.searchsorted(self.sorted, values).clip(max=self.n - 1)
                bad = self.sorted[at] != values
            except TypeError:
                raise self._of_another_type(values, of) from None
            found = self.order[at]
        if bad.any():
            raise self._unnamed(values, bad, of)
        return np.asarray(found, np.int64)

    def _of_another_type(self, values: NDArray[Any], of: str) -> ConfigError:
        assert self.sorted is not None
        rule = f"of the type of rows ({_kinds(self.sorted)})"
        return refuse(f"ids of {of}", rule, _kinds(values))

    def _unnamed(self, values: NDArray[Any], bad: NDArray[np.bool_], of: str) -> ConfigError:
        """Why ids are not among those of rows, as far as both show it."""
        why = "Give record() all rows, those of evaluation too."
        if self.sorted is not None:
            from vflsec.data.id_spelling import ALIKE, describe_difference, find_respelled

            ids = {of: _texts(values[bad]), "rows": _texts(self.sorted)}
            if ids[of].isin(ids["rows"]).any():
                return self._of_another_type(values, of)
            if alike := find_respelled(ids, [*ids]):
                why = f"{describe_difference(alike[0])} {ALIKE}"
            elif values.dtype.kind in "iu" and values.min() >= 0 and values.max() < self.n:
                why = "They look like places: give the ids at them."
        what = f"ids of {of} that are none of the {self.n} rows"
        return refuse(what, "0", int(bad.sum()), why)

    def _exact(self, values: NDArray[Any]) -> None:
        """Refuse a mask, and ids in a float type that has one number for several of them."""
        assert self.sorted is not None
        if values.dtype.kind == "b" != self.sorted.dtype.kind:
            raise ConfigError("record: ids are true and false, a mask. Give the ids of its rows.")
        both = (values.dtype, self.sorted.dtype)
        floats = [d for d in both if d.kind == "f"]
        if not floats or both[0] == both[1] or both[1].kind not in "iuf":
            return
        bits = min(np.finfo(d).nmant + 1 for d in floats)
        if float(np.abs(values.astype(np.float64)).max()) >= 2.0**bits:
            remedy = "Keep them as whole numbers or text."
            raise refuse("float ids", f"below 2**{bits}", both, remedy)


def _kinds(values: NDArray[Any]) -> str:
    """Of which types ids are."""
    if values.dtype != object:
        return str(values.dtype)
    return ", ".join(sorted({type(v).__name__ for v in values}))


def _texts(values: NDArray[Any]) -> pd.Index:
    """Ids as text, each once; a whole number without a point."""
    import pandas as pd

    if values.dtype.kind == "f":
        values = np.array([int(v) if v == np.floor(v) else v for v in values.tolist()], object)
    text = (v.decode(errors="replace") if isinstance(v, bytes) else str(v) for v in values.tolist())
    return pd.Index(list(text)).unique()


def check_once(name: str, ids: NDArray[np.int64]) -> None:
    """Refuse row ids of which some repeat.

    Raises:
        ConfigError: some do.
    """
    if len(np.unique(ids)) < len(ids):
        raise ConfigError.must(name, "name each row once", "one twice")


def _array(x: Any) -> NDArray[Any]:
    """What somebody gives as an array of NumPy."""
    return x.detach().cpu().numpy() if isinstance(x, Tensor) else np.asarray(x)


def check_whole(
    name: str, values: Any, n: int | None = None, remedy: str = ""
) -> NDArray[np.int64]:
    """(n,) whole numbers, in whatever type they come; a fraction is never cut off.

    Raises:
        ConfigError: text, fractions, missing values, or another shape.
    """
    x = _array(values)
    if x.dtype == object:  # such as what pandas makes of numbers with gaps
        kinds = {type(v) for v in x.ravel()}
        x = (
            np.asarray(x.tolist())
            if all(issubclass(k, int | float | np.number) for k in kinds)
            else x
        )
    rule = f"{'' if n is None else f'{n} '}whole numbers"
    if x.ndim != 1 or (n is not None and len(x) != n):
        raise check.fail(name, rule, x.shape, remedy)
    odd = x[:1] if x.dtype.kind not in "biuf" else x[:0]
    if x.dtype.kind == "f":
        odd = x[~(np.isfinite(x) & (x == np.round(x)))]
    if len(odd):
        raise check.fail(name, rule, odd[0], remedy)
    return x.astype(np.int64)


def read_amounts(name: str, values: Any, n: int) -> NDArray[np.float64]:
    """(n,) numbers, NaN where there is none.

    Raises:
        ConfigError: text, infinity, or another shape.
    """
    x = _array(values)
    if x.dtype.kind in "biufO":
        with contextlib.suppress(TypeError, ValueError):
            x = x.astype(np.float64)
    if x.dtype.kind != "f" or x.shape != (n,) or np.isinf(x).any():
        got = x.shape if x.shape != (n,) else x.dtype if x.dtype.kind != "f" else "infinity"
        raise check.fail(name, f"{n} numbers, NaN where there is none", got)
    return x


def read_shares(prior: Any, classes: int | None) -> list[float] | None:
    """Class shares as a trace holds them.

    Raises:
        ConfigError: they are none, such as counts.
    """
    if prior is None:
        return None
    if make_label(classes or 2).numeric:
        raise refuse("prior", "left out of a quantity (classes=1)", prior)
    found = [float(p) for p in np.asarray(prior, np.float64).ravel()]
    n = classes or len(found)
    if len(found) != n or not all(0 <= p <= 1 for p in found) or abs(sum(found) - 1) > 1e-3:
        raise refuse("prior", f"{n} class shares that add up to 1", found)
    return found


def read_claim(claim: tuple[float, float] | float | None) -> ClaimedPrivacy | None:
    """A claim given as epsilon, or as (epsilon, delta)."""
    if claim is None:
        return None
    epsilon, delta = claim if isinstance(claim, tuple) else (claim, 0.0)
    return ClaimedPrivacy(epsilon=float(epsilon), delta=float(delta))


_AS_TAKEN = "finite numbers, as the model takes them, with missing values filled in"


def own_columns(columns: Any, schema: Schema | None, n: int) -> tuple[Tensor, Schema] | None:
    """Columns (n, ...) as floats, and their layout; None where there are none, (n, 0).

    Raises:
        ShapeError: they have another shape.
        ConfigError: they are no finite numbers.
    """
    if not isinstance(columns, Tensor):
        numbers = np.array(columns)
        if numbers.dtype.kind not in "biuf":
            raise refuse("columns", _AS_TAKEN, numbers.dtype)
        columns = torch.from_numpy(numbers)
    x = columns
    x = x.detach().cpu()
    x = x if x.is_floating_point() and x.dtype != torch.bfloat16 else x.float()
    if x.dim() < 2 or len(x) != n:
        raise ShapeError.shaped("record: columns", f"({n}, ...)", tuple(x.shape))
    if 0 in x.shape[1:]:
        return None
    bad = int((~x.isfinite()).flatten(1).any(1).sum())
    if bad:
        raise refuse("columns", _AS_TAKEN, f"{bad} rows with infinity or NaN")
    return x, schema or Schema.numbers(tuple(x.shape[1:]))


def aux_columns(
    aux: Mapping[str, tuple[Any, Any]], ids: Ids, roles: Mapping[str, str], party: str
) -> dict[str, tuple[Tensor, Tensor, Schema]]:
    """Granted columns of other parties: trace row ids (q,), columns (q, ...), layout.

    Raises:
        ConfigError: no such party, no column, or ids that were not named.
    """
    out = {}
    for other, (rows, x) in aux.items():
        check.one_of("record: aux", other, [n for n in roles if n != party])
        places = torch.from_numpy(ids.places(rows, f"columns of {other}"))
        held = own_columns(x, None, len(places))
        if held is None:
            raise refuse(f"aux of {other}", "at least one column", "none")
        out[other] = (places, *held)
    return out


def known_rows(known: tuple[Any, Any] | None, ids: Ids, classes: int | None = None) -> Known | None:
    """Granted labels by trace row id; of a quantity (1 class) float64 values.

    Raises:
        ConfigError: ids that were not named or repeat, not one label for each, or labels that are
            no class numbers.
    """
    if known is None:
        return None
    what = "known rows"
    rows = ids.places(known[0], what)
    check_once(f"record: {what}", rows)
    what = f"labels of {what}"
    if make_label(classes or 2).numeric:
        values = read_amounts(f"record: {what}", known[1], len(rows))
        if np.isnan(values).any():
            raise refuse(what, "finite", "NaN")
        return Known(torch.from_numpy(rows), torch.from_numpy(values.copy()))
    most = "" if classes is None else f" to {classes - 1}"
    remedy = "Say classes=1 if they are a quantity."
    labels = check_whole(f"record: {what}", known[1], len(rows), remedy)
    wrong = (labels < 0) | (labels >= (classes or np.iinfo(np.int64).max))
    if wrong.any():
        raise refuse(what, f"class numbers from 0{most}", int(labels[wrong][0]), remedy)
    return Known(torch.from_numpy(rows), torch.from_numpy(labels))


class Numbers(NamedTuple):
    """One array, and the number type and bytes in which it crossed."""

    array: NDArray[Any]
    wire_dtype: str
    wire_bytes: int


@cache
def _name(dtype: dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _refuse_payload(got: object) -> ShapeError:
    return ShapeError.must("record: a payload", "be one dense array of real numbers", got)


def as_numbers(x: Any) -> Numbers:
    """A tensor of PyTorch or TensorFlow, a NumPy array, or nested lists of numbers.

    bfloat16, which NumPy does not have, is widened to float32: that changes no number.

    Raises:
        ShapeError: it holds something else than numbers.
    """
    if isinstance(x, Tensor):
        if x.is_complex() or x.layout != strided:
            raise _refuse_payload(f"{x.layout} of {x.dtype}")
        plain, wire = x.detach(), _name(x.dtype)
        wide = plain.float() if wire == "bfloat16" else plain
        array = (wide if wide.device.type == "cpu" else wide.cpu()).numpy()
        return Numbers(array, wire, x.numel() * x.element_size())
    if hasattr(x, "numpy") and callable(x.numpy):
        x = x.numpy()
    if isinstance(x, Mapping):
        raise _refuse_payload("a mapping")
    array = np.asarray(x)
    wire, size = str(array.dtype), int(array.nbytes)
    if wire == "bfloat16":  # a type of the package ml_dtypes, as TensorFlow and JAX return it
        array = array.astype(np.float32)
    if array.dtype.kind not in "fiub":
        raise _refuse_payload(array.dtype)
    return Numbers(np.ascontiguousarray(array), wire, size)


def check_shape(phase: str, shape: Sequence[int]) -> None:
    """Refuse at once what no reader would take."""
    if phase and not NAME.fullmatch(phase):
        raise refuse("phase", "a name of letters, digits, '.', '_', '-'", phase)
    if not shape or shape[0] > LIMITS.batch_rows or math.prod(shape[1:]) > LIMITS.width:
        rule = f"have 1 to {LIMITS.batch_rows} rows of at most {LIMITS.width} numbers"
        raise ShapeError.must("record: a payload", rule, tuple(shape))


_LEAST = 8  # rows of a batch of which it can be told
_SAME = 0.5  # correlation; that of one batch at two steps of a training is near 1


class Places:
    """The ids of the first two batches, and their embeddings."""

    def __init__(self) -> None:
        self.left = 2
        self.first: NDArray[Any] | None = None

    def taken(self, rows: NDArray[np.int64] | None, values: NDArray[Any], n: int) -> bool:
        """Whether both batches name rows 0 to b-1 in order, although they are of other samples.

        Args:
            rows, values: of a batch, (b,) and (b, ...).
            n: how many rows there are.
        """
        self.left -= 1
        b = len(values)
        if rows is None or not _LEAST <= b < n or not np.array_equal(rows, np.arange(b)):
            self.left, self.first = 0, None
            return False
        now = values.reshape(b, -1).astype(np.float64)  # a copy
        before, self.first = self.first, now
        if before is None or before.shape != now.shape:
            return False
        self.first = None
        one, two = (x - x.mean(0) for x in (before, now))
        size = float(np.sqrt((one**2).sum() * (two**2).sum()))
        return size > 0 and float((one * two).sum()) < _SAME * size


_PREFIX = re.compile(r"(?:module|_orig_mod)\.")  # of weights in a wrapper


class OwnModel:
    """Weights of one module now and later.

    Args:
        folder: of the observer.
        party: whose model it is.
        module: from own rows to the embedding; wrappers that torch puts around are taken off.
        initial: its ``state_dict()`` before training, None if it is as that now.
        begun: messages were recorded before.
    """

    def __init__(
        self, folder: Path, party: str, module: nn.Module,
        initial: Mapping[str, Tensor] | None, *, begun: bool,
    ) -> None:  # fmt: skip
        self.folder, self.party, self.module = folder, party, unwrap(module)
        if initial is not None and begun and _lives(initial, self.module):
            initial = None
            warnings.warn(
                "vflsec.record: the initial weights changed in training and are left out. Give the "
                "model before training, record(..., model=bottom), or copy each tensor.",
                RuntimeWarning, stacklevel=4,
            )  # fmt: skip
        elif initial is None and not begun:
            initial = self.module.state_dict()
        place = self._place("initial")
        if initial is not None and not place.exists():  # of a run that goes on, the first one
            write_weights(place, _strip_names(initial, self.module))

    def _place(self, part: str) -> Path:
        return self.folder / f"model-train-{self.party}-{part}.safetensors"

    def saved(self) -> list[ModelFile]:
        """Write the weights as they are now, and say which files there are."""
        write_weights(self._place("bottom"), self.module.state_dict())
        layers = describe_module(self.module)
        if layers is None:
            warnings.warn(
                "vflsec.record: the trace does not describe the model's layers. Name its class in "
                f"the audit: --model {self.party}=package.module:{type(self.module).__name__} "
                "(docs/howto/own_model.md).",
                RuntimeWarning, stacklevel=6,
            )  # fmt: skip
        return [
            ModelFile(party=self.party, part=part, file=self._place(part).name, layers=layers)
            for part in ("bottom", "initial") if self._place(part).exists()
        ]  # fmt: skip


def _strip_names(state: Mapping[str, Tensor], module: nn.Module) -> dict[str, Tensor]:
    """Weights by their names in the module, which may have a part that is called like a wrapper."""
    out, names = dict(state), module.state_dict().keys()
    while out and out.keys() != names and all(map(_PREFIX.match, out)):
        out = {k.partition(".")[2]: v for k, v in out.items()}
    return out


def _lives(state: Mapping[str, Tensor], module: nn.Module) -> bool:
    """Whether tensors are the very ones that a module trains."""
    trained = {p.data_ptr() for p in module.parameters() if p.requires_grad}
    return any(t.data_ptr() in trained for t in state.values())
