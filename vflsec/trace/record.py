"""Records what a party sends and receives at the cut, from within somebody's PyTorch loop.

    with vflsec.record("trace/", party="bank", role="passive", rows=ids) as rec:
        ...
        z = rec.cut(z, batch_ids)   # right before z is sent (or right after it was received)

The embedding is written when :meth:`Recording.cut` is called, the gradient when it comes back
through the returned tensor. Nothing that the loop computes is changed.
"""

from __future__ import annotations

import math
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
from vflsec.trace.claim import alone, recording
from vflsec.trace.given import Ids, aux_columns, claimed, known_rows, own_columns
from vflsec.trace.grants import write_aux, write_known, write_own
from vflsec.trace.layers import describe
from vflsec.trace.limits import NAME, Limits
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
from vflsec.trace.seal import give_up, seal
from vflsec.trace.weights import write_weights
from vflsec.trace.writer import Writer, begin
from vflsec.view import Known, Schema

__all__ = ["Recording", "record"]

_EVERYTHING = 1 << 62
_LIMITS = Limits()


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
    aux: Mapping[str, tuple[Any, Any]] | None = None,
    claim: tuple[float, float] | float | None = None,
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
        aux: {other party: (ids, its columns (q, ...))} of rows whose columns this party was given;
            the same ids for all.
        claim: epsilon, or (epsilon, delta), by which every label is said to be protected.
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
    ids = Ids(rows)
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
            run=Run(**dict(run or {})), claim=claimed(claim),
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
        own=None if columns is None else own_columns(columns, schema, len(ids)),
        known=known_rows(known, ids), prior=prior, aux=aux_columns(aux or {}, ids, roles, party),
    )  # fmt: skip


def _fits(phase: str, shape: Sequence[int]) -> None:
    """Refuse at once what no reader would take."""
    if phase and not NAME.fullmatch(phase):
        raise check.fail("record: phase", "a name of letters, digits, '.', '_', '-'", phase)
    if not shape or shape[0] > _LIMITS.batch_rows or math.prod(shape[1:]) > _LIMITS.width:
        raise ShapeError(
            f"record: a payload has a row for each sample, up to {_LIMITS.batch_rows} rows of "
            f"{_LIMITS.width} numbers; got the shape {tuple(shape)}."
        )


class Recording:
    """A trace in the making; made by :func:`record`. Its methods may be called from any thread."""

    def __init__(
        self, folder: Path, manifest: Manifest, party: str, peer: str, ids: Ids,
        facts: PublicFacts, *, grad_scale: Any, accumulation: int, every: int,
        max_bytes: int | None, own: tuple[Tensor, Schema] | None, known: Known | None,
        prior: Sequence[float] | None, aux: Mapping[str, tuple[Tensor, Tensor, Schema]],
    ) -> None:  # fmt: skip
        self.folder, self.manifest, self.party, self.peer = folder, manifest, party, peer
        self.ids, self.facts, self.scale = ids, facts, grad_scale
        self.accumulation, self.every, self.max_bytes = accumulation, every, max_bytes
        self.own, self.known, self.aux = own, known, aux
        self.prior = None if prior is None else [float(p) for p in prior]
        self.active = party == manifest.active
        self._others = [n for n in manifest.names if n != party]
        self._lock = threading.Lock()
        self._epoch: int | None = None
        self._cuts: dict[tuple[str, str], int] = {}
        self._have: dict[tuple[str, str, str, str], set[int | None]] = {}
        self._skipped = self._odd = False
        self._models: dict[str, tuple[nn.Module, dict[str, Tensor] | None]] = {}
        self.writer: Writer | None = None

    def __enter__(self) -> Recording:
        begin(self.folder, self.manifest)
        self.writer = Writer(self.folder, self.party, max_bytes=self.max_bytes)
        here = self.writer.folder
        with alone(here):
            if self.writer.info().moments:
                return self  # of another process of this run, which described it
            layouts = {}
            if self.own is not None:
                write_own(here, self.own[0])
                layouts[self.party] = Layout.of(self.own[1])
            if self.known is not None:
                write_known(here, self.known)
            for other, (rows, x, schema) in self.aux.items():
                write_aux(here, other, rows, x)
                layouts[other] = Layout.of(schema)
            self.writer.describe(
                ObserverInfo(
                    party=self.party, own="none" if self.own is None else "all", layouts=layouts,
                    moments=[Moment(phase="train", messages=_EVERYTHING, facts=self.facts)],
                    prior=self.prior, known=0 if self.known is None else len(self.known),
                    aux=list(self.aux),
                )
            )  # fmt: skip
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.close(failed=kind is not None)

    def epoch(self, number: int) -> None:
        """Say which epoch the following batches belong to."""
        self._epoch = check.integer("record: epoch", number, low=0, high=_LIMITS.epochs)

    def model(self, bottom: nn.Module, initial: Mapping[str, Tensor] | None = None) -> None:
        """Keep the party's own model as it is when the recording ends.

        Args:
            bottom: from own rows to the embedding.
            initial: its ``state_dict()`` before training (a copy), for a control of the audit.
        """
        if self.writer is None:
            raise ConfigError("record: use it as 'with vflsec.record(...) as rec:'.")
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
        _fits(phase, z.shape)
        x = as_numbers(z)
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
        _fits(phase, numbers.array.shape or (1,))
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
        if other not in self._others:
            check.one_of("record: peer", other, self._others)
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
        if scale is not None and not 0 < float(scale) < math.inf:
            if not self._odd:
                self._odd = True
                self._warn(f"a grad_scale of {scale!r} is none; recorded as not known")
            return None
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
        key = (kind, *ends, phase)
        if epoch not in self._have.get(key, ()):
            with self._lock:
                self._have.setdefault(key, set()).add(epoch)
        try:
            return writer.message(
                kind, *ends, x.array, rows, phase=phase, epoch=epoch, step=step, micro=micro,
                name=name, wire_dtype=x.wire_dtype, wire_bytes=x.wire_bytes,
                loss_reduction=self.manifest.loss_reduction, grad_scale=factor,
                pair=None if pair is None or pair < 0 else pair,
            )  # fmt: skip
        except OSError as why:
            writer.full = True
            self._warn(f"nothing more is recorded in {self.folder} ({why.strerror}); what was "
                       "written stays")  # fmt: skip
            return -1

    @staticmethod
    def _warn(text: str) -> None:
        warnings.warn(f"vflsec.record: {text}.", RuntimeWarning, stacklevel=4)

    def close(self, *, failed: bool = False) -> None:
        """End the recording; seal the trace unless another process still records into it.

        Args:
            failed: the loop ended by an error.
        """
        writer, self.writer = self.writer, None
        if writer is None or not writer.mine:
            return
        stopped = failed or writer.full
        try:
            with alone(writer.folder):
                self._describe(writer, whole=not (stopped or self._skipped))
            writer.close()
            with alone(self.folder):
                views = [p for p in (self.folder / "view").iterdir() if p.is_dir()]
                if stopped:
                    give_up(self.folder)
                if not any(recording(v) for v in views):
                    seal(self.folder)
        except OSError as why:
            self._warn(f"{self.folder} is not sealed ({why.strerror or why}); what was written "
                       "stays. Make room, then 'vflsec trace seal' it")  # fmt: skip
        finally:
            writer.release()

    def _describe(self, writer: Writer, *, whole: bool) -> None:
        """Add what this process has recorded to what others of the same run have."""
        info = writer.info()
        models = self._saved(writer.folder) or info.moments[-1].models
        moment = Moment(phase="train", messages=_EVERYTHING, facts=self.facts, models=models)
        there = {(h.kind, h.sender, h.receiver, h.phase): h.epochs for h in info.have}
        first = not there
        for k, epochs in self._have.items():
            mine = sorted(e for e in epochs if e is not None)
            before = there.get(k, "all" if whole else [])
            if isinstance(before, list):
                there[k] = sorted({*before, *mine})
            else:
                there[k] = "all" if whole else mine
        have = [
            Have(kind=k[0], sender=k[1], receiver=k[2], phase=k[3], epochs=e)
            for k, e in there.items()
        ]
        update = {"moments": [moment], "have": have, "complete": whole and (first or info.complete)}
        writer.describe(info.model_copy(update=update))

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
