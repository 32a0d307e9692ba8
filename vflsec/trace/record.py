"""Records what a party sends and receives at the cut, from within somebody's PyTorch loop.

    with vflsec.record("trace/", party="bank", role="passive", rows=ids) as rec:
        ...
        z = rec.cut(z, batch_ids)   # right before z is sent (or right after it was received)

The embedding is written when :meth:`Recording.cut` is called, the gradient when it comes back
through the returned tensor. Nothing that the loop computes is changed.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from vflsec import check
from vflsec._version import __version__
from vflsec.errors import ConfigError, ShapeError
from vflsec.trace.arrays import Numbers, as_numbers
from vflsec.trace.grants import write_known, write_own
from vflsec.trace.layers import describe
from vflsec.trace.manifest import (
    FORMAT,
    VERSION,
    Have,
    Layout,
    Manifest,
    ModelFile,
    Moment,
    ObserverInfo,
    PartyInfo,
    PublicFacts,
    Run,
    Software,
)
from vflsec.trace.seal import seal
from vflsec.trace.weights import write_weights
from vflsec.trace.writer import Writer, begin
from vflsec.view import Known, Schema

__all__ = ["Recording", "record"]

_EVERYTHING = 1 << 62


def record(
    folder: str | Path,
    *,
    party: str,
    role: Literal["passive", "active"],
    rows: int | Sequence[Any] | ArrayLike,
    peer: str = "",
    parties: Mapping[str, str] | None = None,
    classes: int | None = None,
    loss_reduction: str = "unknown",
    grad_scale: float | Callable[[], float] | Any = None,
    accumulation: int = 1,
    columns: ArrayLike | Tensor | None = None,
    schema: Schema | None = None,
    known: tuple[Any, Any] | None = None,
    prior: Sequence[float] | None = None,
    facts: Mapping[str, Any] | None = None,
    run: Mapping[str, Any] | None = None,
    tap: str = "boundary",
    every_n_epochs: int = 1,
    max_bytes: int | None = None,
) -> Recording:
    """Record what `party` sends and receives at the cut; use it as a context manager.

    Args:
        folder: where; a new trace for every run.
        party, role: whose process this is, and whether it holds the labels (``active``).
        rows: the party's row ids in a fixed order, whose positions become the row ids of the
            trace; or their number, if ids are 0..N-1 already. The ids themselves are not written.
        peer: the other end, by default the first of `parties` that is not this one; ``active`` or
            ``passive``, whichever `party` is not, if they are not given.
        parties: {name: role} of all, if there are more than these two.
        classes: number of classes, if it is known to this party.
        loss_reduction: of the batch loss: ``mean``, ``sum``, ``none`` or ``unknown``.
        grad_scale: what the loss is multiplied by before the backward pass: a number, a function
            that returns it, or a GradScaler; None if it is not scaled.
        accumulation: micro batches of one optimisation step, whose losses are divided by their
            number; 1 if they are not.
        columns: (N, ...) own input rows in the order of `rows`, as the model takes them.
        schema: their layout; numeric columns by default.
        known: (ids, labels) of rows whose labels this party was given.
        prior: class shares, if this party knows them.
        facts: fields of `vflsec.trace.manifest.PublicFacts` that are known: ``aggregation``,
            ``top``, ``batch_size``, ``epochs``, ``widths``.
        run: ``dataset``, ``algorithm``, ``defense``, ``strength``, ``seed`` of this run; runs that
            differ in the seed only are judged together.
        tap: where :meth:`Recording.cut` stands: ``boundary`` (at send and receive),
            ``before_defense``, ``after_defense``.
        every_n_epochs: record every n-th epoch only; needs :meth:`Recording.epoch`.
        max_bytes: stop recording beyond, and say so.

    Raises:
        ConfigError: an argument cannot be used, or the folder holds something else.
    """
    check.one_of("record: role", role, ("passive", "active"))
    check.one_of("record: loss_reduction", loss_reduction, ("mean", "sum", "none", "unknown"))
    check.one_of("record: tap", tap, ("boundary", "before_defense", "after_defense", "unknown"))
    check.integer("record: accumulation", accumulation)
    check.integer("record: every_n_epochs", every_n_epochs)
    opposite = "active" if role == "passive" else "passive"
    other = peer or next((n for n in parties or () if n != party), opposite)
    roles = dict(parties or {party: role, other: opposite})
    if roles.get(party) != role or other not in roles or other == party:
        raise check.fail(
            "record: parties", f"the roles of {party!r} ({role}) and of its peer {other!r}", roles
        )
    ids = _Ids(rows)
    try:
        manifest = Manifest(
            format=FORMAT, version=VERSION, status="recording",
            created=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            framework=Software(name="torch", version=str(torch.__version__)),
            adapter=Software(name="vflsec.record", version=__version__),
            tap=tap,  # type: ignore[arg-type]
            parties=[PartyInfo(name=n, role=r) for n, r in roles.items()],  # type: ignore[arg-type]
            rows=len(ids), classes=classes,
            loss_reduction=loss_reduction,  # type: ignore[arg-type]
            run=Run(**dict(run or {})),
        )  # fmt: skip
        public = PublicFacts(
            reduction=loss_reduction,  # type: ignore[arg-type]
            **dict(facts or {}),  # type: ignore[arg-type]
        )
    except ValueError as why:
        first = str(why).splitlines()
        raise ConfigError(f"record: {' '.join(first[1:3]).strip() or first[0]}.") from None
    return Recording(
        Path(folder), manifest, party, other, ids, public, grad_scale=grad_scale,
        accumulation=accumulation, every=every_n_epochs, max_bytes=max_bytes,
        own=_own(columns, schema, len(ids)), known=_granted(known, ids), prior=prior,
    )  # fmt: skip


class _Ids:
    """From the party's ids to positions."""

    def __init__(self, rows: Any) -> None:
        self.sorted: NDArray[Any] | None = None
        if isinstance(rows, int) and not isinstance(rows, bool):
            self.n = check.integer("record: rows", rows)
            return
        values = rows.cpu().numpy() if isinstance(rows, Tensor) else np.asarray(rows)
        if values.ndim != 1 or not len(values):
            raise check.fail("record: rows", "a number of rows or one id for each", values.shape)
        self.n = len(values)
        self.order = np.argsort(values, kind="stable")
        self.sorted = values[self.order]
        if (self.sorted[1:] == self.sorted[:-1]).any():
            raise ConfigError("record: rows must name every row once; some ids repeat.")

    def __len__(self) -> int:
        return self.n

    def places(self, ids: Any) -> NDArray[np.int64]:
        """Trace row ids of the party's own ids.

        Raises:
            ConfigError: an id is not among `rows`.
        """
        values = ids.detach().cpu().numpy() if isinstance(ids, Tensor) else np.asarray(ids)
        if values.ndim != 1:
            raise ShapeError(f"record: ids of a batch have shape (b,), got {values.shape}.")
        if self.sorted is None:
            found = values.astype(np.int64)
            bad = (found < 0) | (found >= self.n)
        else:
            at = np.searchsorted(self.sorted, values).clip(max=self.n - 1)
            bad = self.sorted[at] != values
            found = self.order[at]
        if bad.any():
            raise ConfigError(
                f"record: {int(bad.sum())} ids of a batch are not among the {self.n} rows that "
                "were named. Give record() all rows, those of evaluation too."
            )
        return np.asarray(found, np.int64)


def _own(columns: Any, schema: Schema | None, n: int) -> tuple[Tensor, Schema] | None:
    if columns is None:
        return None
    x = columns if isinstance(columns, Tensor) else torch.from_numpy(np.array(columns))
    x = x.detach().cpu()
    x = x if x.is_floating_point() and x.dtype != torch.bfloat16 else x.float()
    if x.dim() < 2 or len(x) != n:
        raise ShapeError(f"record: columns have shape (N, ...) with N = {n}, got {tuple(x.shape)}.")
    if schema is None:
        width = x.shape[1]
        plain = x.dim() == 2
        names = tuple(f"c{i}" for i in range(width)) if plain else ()
        schema = Schema(names, (0,) * width if plain else (), tuple(x.shape[1:]))
    return x, schema


def _granted(known: tuple[Any, Any] | None, ids: _Ids) -> Known | None:
    if known is None:
        return None
    labels = torch.from_numpy(np.array(known[1], dtype=np.int64))
    rows = torch.from_numpy(ids.places(known[0]))
    if len(rows) != len(labels):
        raise ShapeError(f"record: known has {len(rows)} ids and {len(labels)} labels.")
    return Known(rows, labels)


class Recording:
    """A trace in the making; made by :func:`record`. Its methods may be called from any thread."""

    def __init__(
        self, folder: Path, manifest: Manifest, party: str, peer: str, ids: _Ids,
        facts: PublicFacts, *, grad_scale: Any, accumulation: int, every: int,
        max_bytes: int | None, own: tuple[Tensor, Schema] | None, known: Known | None,
        prior: Sequence[float] | None,
    ) -> None:  # fmt: skip
        self.folder, self.manifest, self.party, self.peer = folder, manifest, party, peer
        self.ids, self.facts, self.scale = ids, facts, grad_scale
        self.accumulation, self.every, self.max_bytes = accumulation, every, max_bytes
        self.own, self.known = own, known
        self.prior = None if prior is None else [float(p) for p in prior]
        self.active = party == manifest.active
        self._lock = threading.Lock()
        self._epoch: int | None = None
        self._cuts: dict[tuple[str, str], int] = {}
        self._have: dict[tuple[str, str, str, str], set[int | None]] = {}
        self._skipped = False
        self._models: dict[str, tuple[nn.Module, dict[str, Tensor] | None]] = {}
        self.writer: Writer | None = None

    def __enter__(self) -> Recording:
        begin(self.folder, self.manifest)
        self.writer = Writer(self.folder, self.party, max_bytes=self.max_bytes)
        here = self.writer.folder
        layouts = {} if self.own is None else {self.party: Layout.of(self.own[1])}
        if self.writer.segment == 0:  # others of several processes find these files there
            if self.own is not None:
                write_own(here, self.own[0])
            if self.known is not None:
                write_known(here, self.known)
        self._info = ObserverInfo(
            party=self.party, own="none" if self.own is None else "all", layouts=layouts,
            moments=[Moment(phase="train", messages=_EVERYTHING, facts=self.facts)],
            prior=self.prior, known=0 if self.known is None else len(self.known),
        )  # fmt: skip
        self.writer.describe(self._info)
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.close(failed=kind is not None)

    def epoch(self, number: int) -> None:
        """Say which epoch the following batches belong to."""
        self._epoch = check.integer("record: epoch", number, low=0)

    def model(self, bottom: nn.Module, initial: Mapping[str, Tensor] | None = None) -> None:
        """Keep the party's own model as it is when the recording ends.

        Args:
            bottom: from own rows to the embedding.
            initial: its ``state_dict()`` before training (a copy), for a control of the audit.
        """
        if self.own is None:
            raise ConfigError("record: a model is kept with the rows it takes; give columns too.")
        copied = None if initial is None else {k: v.detach().clone() for k, v in initial.items()}
        self._models[self.party] = (bottom, copied)

    def cut(self, z: Tensor, ids: Any = None, *, peer: str = "", phase: str = "") -> Tensor:
        """Record the embedding `z` (b, ...) of a batch, and its gradient when it comes back.

        Args:
            z: at the passive party right before it is sent; at the active one as it was received.
            ids: (b,) the party's row ids; None if they are not known, which leaves little to audit.
            peer: the other end, if there are several.
            phase: by default ``train`` where a gradient can come back, else ``eval``.

        Returns:
            `z`, to go on with.

        Raises:
            ConfigError: the recording is not open, or ids are unknown.
            ShapeError: not one id for each row.
        """
        other = self._other(peer)
        listens = torch.is_grad_enabled() and z.requires_grad
        phase = phase or ("train" if listens else "eval")
        rows = self._rows("embedding", len(z), ids)
        with self._lock:
            count = self._cuts.get((phase, other), 0)
            self._cuts[phase, other] = count + 1
        step, micro = divmod(count, self.accumulation)
        epoch = self._epoch
        if self._left_out(epoch):
            return z
        up = (other, self.party) if self.active else (self.party, other)
        x = as_numbers(z)
        number = self._write("embedding", up, x, rows, phase, epoch, step, micro, None, None)
        if listens:
            taken = [0]

            def arrived(gradient: Tensor) -> None:
                """Write the gradient; it is not changed."""
                part = micro + taken[0] * self.accumulation
                taken[0] += 1
                self._write(
                    "gradient", up[::-1], as_numbers(gradient), rows, phase, epoch, step, part,
                    self._factor(), number,
                )  # fmt: skip

            z.register_hook(arrived)
        return z

    def tell(
        self,
        kind: str,
        x: Any,
        ids: Any = None,
        *,
        sent: bool,
        peer: str = "",
        phase: str = "train",
        epoch: int | None = None,
        step: int | None = None,
        name: str = "",
        pair: int | None = None,
    ) -> int:
        """Record one message that crossed; for loops in which no tensor connects both ways.

        A gradient without ids has those of the embedding of the same phase and step, if one has.

        Args:
            kind: ``embedding``, ``gradient``, ``prediction``, ... (`vflsec.message.KINDS`).
            x: (b, ...) as it crossed: an array, or a tensor of PyTorch or TensorFlow.
            ids: (b,) the party's row ids; None if they are not known.
            sent: whether this party sent it, else it received it.
            peer: the other end, if there are several.
            step: of the phase, said by both ends or counted by both alike; None if not known.
                It is what tells which embedding a gradient belongs to.
            name: tells messages of one kind apart.
            pair: number of the embedding's message, if that is known.

        Returns:
            the number of the message within this process; -1 if it was not recorded.

        Raises:
            ConfigError: the recording is not open, or ids are unknown.
            ShapeError: not one id for each row, or no numbers.
        """
        ends = (self.party, self._other(peer))
        numbers = as_numbers(x)
        n = len(numbers.array) if numbers.array.ndim else 0
        rows = self._rows(kind, n, ids)
        if self._left_out(epoch):
            return -1
        factor = self._factor() if kind == "gradient" else None
        return self._write(
            kind, ends if sent else ends[::-1], numbers, rows, phase, epoch, step, None, factor,
            pair, name,
        )  # fmt: skip

    def _other(self, peer: str) -> str:
        if self.writer is None:
            raise ConfigError("record: use it as 'with vflsec.record(...) as rec:'.")
        other = peer or self.peer
        if other not in self.manifest.names or other == self.party:
            check.one_of("record: peer", other, [n for n in self.manifest.names if n != self.party])
        return other

    def _rows(self, kind: str, n: int, ids: Any) -> NDArray[np.int64] | None:
        rows = None if ids is None else self.ids.places(ids)
        if rows is not None and len(rows) != n:
            raise ShapeError(f"record: the {kind} has {n} rows and {len(rows)} ids came.")
        return rows

    def _left_out(self, epoch: int | None) -> bool:
        out = epoch is not None and epoch % self.every != 0
        self._skipped |= out
        return out

    def _factor(self) -> float | None:
        """What the loss was multiplied by; None if nobody said."""
        scale = self.scale
        if hasattr(scale, "get_scale"):
            scale = scale.get_scale()
        elif callable(scale):
            scale = scale()
        if scale is None and self.accumulation == 1:
            return None
        return (1.0 if scale is None else float(scale)) / self.accumulation

    def _write(
        self, kind: str, ends: tuple[str, str], x: Numbers, rows: NDArray[np.int64] | None,
        phase: str, epoch: int | None, step: int | None, micro: int | None,
        factor: float | None, pair: int | None, name: str = "",
    ) -> int:  # fmt: skip
        """Write before this returns, so that what the loop does to `x` later is no matter."""
        writer = self.writer
        if writer is None:
            return -1
        with self._lock:
            self._have.setdefault((kind, *ends, phase), set()).add(epoch)
        try:
            return writer.message(
                kind, *ends, x.array, rows, phase=phase, epoch=epoch, step=step, micro=micro,
                name=name, wire_dtype=x.wire_dtype, wire_bytes=x.wire_bytes,
                loss_reduction=self.manifest.loss_reduction, grad_scale=factor,
                pair=None if pair is None or pair < 0 else pair,
            )  # fmt: skip
        except OSError as why:
            writer.full = True
            warnings.warn(
                f"vflsec.record: nothing more is recorded in {self.folder} ({why.strerror}); what "
                "was written stays.",
                RuntimeWarning,
                stacklevel=2,
            )
            return -1

    def close(self, *, failed: bool = False) -> None:
        """End the recording and seal the trace; `failed` if the loop ended by an error."""
        writer, self.writer = self.writer, None
        if writer is None:
            return
        full = writer.full
        writer.close()
        whole = not (full or failed or self._skipped)
        moment = Moment(
            phase="train", messages=_EVERYTHING, facts=self.facts,
            models=self._saved(writer.folder),
        )  # fmt: skip
        have = [
            Have(
                kind=k[0], sender=k[1], receiver=k[2], phase=k[3],
                epochs="all" if whole else sorted(e for e in epochs if e is not None),
            )
            for k, epochs in self._have.items()
        ]  # fmt: skip
        update = {"moments": [moment], "have": have, "complete": whole}
        writer.describe(self._info.model_copy(update=update))
        seal(self.folder, partial=full or failed)

    def _saved(self, folder: Path) -> list[ModelFile]:
        out = []
        for party, (module, initial) in self._models.items():
            schema = None if self.own is None else self.own[1]
            layers = describe(module, schema)
            states = {"bottom": module.state_dict()}
            if initial is not None:
                states["initial"] = initial
            for part, state in states.items():
                name = f"model-train-{party}-{part}.safetensors"
                write_weights(folder / name, state)
                out.append(ModelFile(party=party, part=part, file=name, layers=layers))
        return out
