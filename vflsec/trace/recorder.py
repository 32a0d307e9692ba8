"""A trace in the making: embeddings as they are sent, gradients as they come back."""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vflsec.core import check
from vflsec.core.message_kinds import find_kinds
from vflsec.core.view import Known, Schema
from vflsec.errors import ConfigError, ShapeError
from vflsec.trace.arrays import Numbers, as_numbers
from vflsec.trace.background_writer import Behind
from vflsec.trace.batch_positions import Places
from vflsec.trace.claims import lock_folder, recording
from vflsec.trace.grants import grant_of, granted_in, write_aux, write_known, write_own
from vflsec.trace.limits import Limits, files_of
from vflsec.trace.manifest import (
    Have,
    Layout,
    Manifest,
    Moment,
    ObserverInfo,
    PublicFacts,
)
from vflsec.trace.message_shape import Lane, as_array, check_shape
from vflsec.trace.own_model import OwnModel
from vflsec.trace.recorder_inputs import Ids
from vflsec.trace.seal import find_segments, give_up, seal
from vflsec.trace.segment_reader import Torn, read_segments
from vflsec.trace.writer import Heading, Plan, Timing, Writer, begin

__all__ = ["Recording"]

_EVERYTHING = 1 << 62
_LANES = 64  # shapes at the cut of which the common fields are kept
_LIMITS = Limits()
_OF_ROWS = find_kinds(lambda kind: kind.has_one_width)


@dataclass(frozen=True)
class Holdings:
    """What a party has beside its messages: own rows and model, and what it was granted."""

    own: tuple[Tensor, Schema] | None = None
    known: Known | None = None
    prior: Sequence[float] | None = None
    aux: Mapping[str, tuple[Tensor, Tensor, Schema]] = field(default_factory=dict)
    model: nn.Module | None = None


@dataclass(frozen=True)
class Loop:
    """How a loop trains and is recorded; as :func:`vflsec.trace.record_api.record` says."""

    grad_scale: Any
    accumulation: int
    every: int
    max_bytes: int | None
    behind: int
    resume: bool


class Recording:
    """A trace in the making; made by :func:`record`. Its methods may be called from any thread."""

    def __init__(
        self, folder: Path, manifest: Manifest, party: str, peer: str, ids: Ids,
        facts: PublicFacts, holdings: Holdings, loop: Loop,
    ) -> None:  # fmt: skip
        self.folder, self.manifest, self.party, self.peer = folder, manifest, party, peer
        self.ids, self.facts, self.scale = ids, facts, loop.grad_scale
        self.accumulation, self.every, self.max_bytes = (
            loop.accumulation,
            loop.every,
            loop.max_bytes,
        )
        self.own, self.known, self.aux = holdings.own, holdings.known, holdings.aux
        self.prior = None if holdings.prior is None else list(holdings.prior)
        self.active = party == manifest.active
        self._others = [n for n in manifest.names if n != party]
        self._lock = threading.Lock()
        self._epoch: int | None = None
        self._cuts: dict[tuple[str, str, str], int] = {}
        self._widths: dict[tuple[str, ...], tuple[int, ...]] = {}
        self._have: dict[tuple[str, str, str, str], set[int | None]] = {}
        self._skipped = self._odd = False
        self._through: set[tuple[str, str, str]] = set()
        self._strays, self._told = 0, False
        self._bottom, self._places = holdings.model, Places()
        self._resume, self._paused = loop.resume, False
        self._model: OwnModel | None = None
        self._lanes: dict[Any, Lane] = {}
        self.writer: Writer | None = None
        self._waiting = loop.behind
        self._behind: Behind | None = None

    def __enter__(self) -> Recording:
        begin(self.folder, self.manifest)
        self.writer = Writer(self.folder, self.party, max_bytes=self.max_bytes)
        if self._resume:
            self._go_on()
        self._behind = Behind(self.writer, self._waiting) if self._waiting else None
        here = self.writer.folder
        if self._bottom is not None:
            self.model(self._bottom)
        with lock_folder(here):
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

    def _go_on(self) -> None:
        """Count on from what earlier processes of this training recorded.

        Raises:
            ConfigError: the known labels are of other rows than theirs.
        """
        assert self.writer is not None
        k = self.known
        now = "" if k is None else grant_of(k.rows.numpy(), k.labels.numpy())
        if self.writer.info().moments and granted_in(self.writer.folder) != now:
            self.writer.release()
            raise ConfigError(
                "record: known: the known rows or their labels are not those with which this "
                "training began. Give the same rows, in the same order, and the same known."
            )
        names = find_segments(files_of(self.folder, _LIMITS), self.party)
        for f, _ in read_segments(self.folder, names, _LIMITS, Torn()):
            key = (f["kind"], f["sender"], f["receiver"], f["phase"])
            self._have.setdefault(key, set()).add(f["epoch"])
            if f["kind"] == "embedding" and f["step"] is not None:
                peer = f["receiver"] if f["sender"] == self.party else f["sender"]
                counted = (f["phase"], peer, f["name"])
                after = (f["step"] + 1) * self.accumulation
                self._cuts[counted] = max(self._cuts.get(counted, 0), after)

    def pause(self) -> None:
        """Say that the training stops here and goes on later, as ``record(resume=True)`` allows."""
        if not self._resume:
            raise ConfigError("record: pause: what is to go on later is recorded with resume=True.")
        self._paused = True

    def __exit__(self, kind: object, *_: object) -> None:
        self.close(failed=kind is not None)

    def epoch(self, number: int) -> None:
        """Say which epoch the following batches belong to."""
        self._epoch = check.integer("record: epoch", number, low=0, high=_LIMITS.epochs)

    def model(self, bottom: nn.Module, initial: Mapping[str, Tensor] | None = None) -> None:
        """Keep the party's own model as it is when the recording ends; ``record(model=)`` does.

        Args:
            bottom: from own rows to the embedding.
            initial: its ``state_dict()`` before training (a copy), for a control of the audit;
                by default as it is now, if nothing has been recorded yet.
        """
        if self.writer is None:
            raise ConfigError("record: use it as 'with vflsec.record(...) as rec:'.")
        if self.own is None:
            raise ConfigError("record: a model is kept with the rows it takes; give columns too.")
        begun = self.writer.count > 0
        self._model = OwnModel(self.writer.folder, self.party, bottom, initial, begun=begun)

    def cut(
        self, z: Tensor, ids: Any = None, *, peer: str = "", phase: str = "", name: str = ""
    ) -> Tensor:
        """Record the embedding `z` (b, ...) of a batch, and its gradient when it comes back.

        The gradient that is written is the one of the returned tensor, so that a loss of the
        party's own on `z` (a penalty, a second peer) is no part of what it received.

        Args:
            z: at the passive party right before it is sent; at the active one as it was received.
            ids: (b,) the party's row ids; None if they are not known, which leaves little to audit.
            peer: the other end, if there are several.
            phase: by default ``train`` where a gradient can come back, else ``eval``.
            name: tells several embeddings of the same rows apart, such as of two towers.

        Returns:
            the same numbers, to go on with: `z` where it has no gradient of its own to pass on
            (a leaf, evaluation), else a copy of it.

        Raises:
            ConfigError: the recording is not open, or ids are unknown.
            ShapeError: not one id for each row, or rows of another shape than before.
        """
        if not isinstance(z, Tensor):
            raise ShapeError(
                f"record: cut takes one tensor, got {type(z).__name__}. Of several call it for "
                "each, with name='...', and go on with what it returns."
            )
        listens = z.requires_grad and torch.is_grad_enabled()
        key = (z.shape, z.dtype, peer, phase, name, listens)
        lane = self._lanes.get(key)
        if lane is None or self.writer is None:
            lane = self._lane(key, z, peer, phase, name, listens)
        rows = self._rows("embedding", lane.n, ids)
        x = as_array(z)
        with self._lock:
            count = self._cuts.get(lane.counted, 0)
            self._cuts[lane.counted] = count + 1
        step, micro = divmod(count, self.accumulation)
        epoch = self._epoch
        if self._left_out(epoch):
            return z
        number = self._put(lane.there, lane.up, x, rows, Timing(epoch, step, micro))
        if listens:
            if self._places.left and self._places.taken(rows, x, self.ids.n):
                self._warn(
                    f"two batches of other samples both name rows 0 to {len(x) - 1}: ids are those "
                    "of rows in 'rows', not places in a batch. No attack finds anything so"
                )
            taken, strayed = 0, False

            def arrived(gradient: Tensor) -> None:
                """Write the gradient; it is not changed."""
                nonlocal taken, strayed
                self._through.add(lane.counted)
                self._stray(-1 if strayed else 0)
                strayed = False
                part, taken = micro + taken * self.accumulation, taken + 1
                timing = Timing(epoch, step, part, self._factor(), number)
                self._put(lane.back, lane.down, as_array(gradient), rows, timing)

            def past(_: Tensor) -> None:
                """A gradient, perhaps of a loss of its own, before one has come back here."""
                nonlocal strayed
                if not taken and not strayed:
                    strayed = True
                    self._stray(1, lane.counted)

            if not z.is_leaf:
                z.register_hook(past)
                z = z.clone()
            z.register_hook(arrived)
        return z

    def _stray(self, more: int, counted: tuple[str, str, str] | None = None) -> None:
        """Count embeddings whose gradients went another way than the one that is listened to.

        Said once, at the first of a name of which nothing has come as it should, else at the end.
        """
        if more:
            with self._lock:
                self._strays += more
        if counted is not None and counted not in self._through:
            self._tell_strays()

    def _tell_strays(self) -> None:
        if not self._told:
            self._told = True
            self._warn(
                "a gradient did not come through the tensor that cut() returned and is not "
                "recorded, so that no audit of this trace passes. Go on with what it returns, "
                "'z = rec.cut(z, ids)'; only a loss of your own is rightly left out"
            )

    def _lane(self, key: Any, z: Tensor, peer: str, phase: str, name: str, listens: bool) -> Lane:
        """What every cut of one shape and kind has in common; refuses what cannot be recorded."""
        other = self._other(peer)
        check_shape(phase, z.shape)
        x = as_numbers(z)
        phase = phase or ("train" if listens else "eval")
        up = (other, self.party) if self.active else (self.party, other)
        there, back = (
            self._plan(kind, ends, x, phase, name)
            for kind, ends in (("embedding", up), ("gradient", up[::-1]))
        )
        lane = Lane(
            len(z), (phase, other, name), there, back, ("embedding", *up, phase),
            ("gradient", *up[::-1], phase),
        )  # fmt: skip
        if len(self._lanes) >= _LANES:
            self._lanes.clear()
        self._lanes[key] = lane
        return lane

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
            kind: ``embedding``, ``gradient``, ... (`vflsec.core.message_kinds.KINDS`).
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
            ShapeError: not one id for each row, no numbers, or rows of another shape than before.
        """
        ends = (self.party, self._other(peer))
        numbers = as_numbers(x)
        check_shape(phase, numbers.array.shape or (1,))
        n = len(numbers.array) if numbers.array.ndim else 0
        rows = self._rows(kind, n, ids)
        if self._left_out(epoch):
            return -1
        factor = self._factor() if kind == "gradient" else None
        ends = ends if sent else ends[::-1]
        plan = self._plan(kind, ends, numbers, phase, name)
        timing = Timing(epoch, step, None, factor, pair)
        return self._put(plan, (kind, *ends, phase), numbers.array, rows, timing)

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
        if scale is None and self.accumulation == 1:
            return None
        if hasattr(scale, "get_scale"):
            scale = scale.get_scale()
        elif callable(scale):
            scale = scale()
        if scale is not None and not 0 < float(scale) < math.inf:
            if not self._odd:
                self._odd = True
                self._warn(f"a grad_scale of {scale!r} is none; recorded as not known")
            return None
        return (1.0 if scale is None else float(scale)) / self.accumulation

    def _plan(
        self, kind: str, ends: tuple[str, str], x: Numbers, phase: str, name: str = ""
    ) -> Plan:
        assert self.writer is not None
        shape, place = tuple(x.array.shape[1:]), (kind, *ends, phase, name)
        if kind in _OF_ROWS and x.array.size and self._widths.setdefault(place, shape) != shape:
            first = self._widths[place]
            raise ShapeError(
                f"record: a row of this {kind} has the shape {shape}, of those before {first}, "
                "which make no table together. Where several pass, tell them apart: name='...'; "
                "pad sequences to one length before cut(), and go on with a slice of the result."
            )
        return self.writer.plan(
            Heading(
                kind, *ends, (x.array.shape, x.array.dtype.char), phase=phase, name=name,
                wire_dtype=x.wire_dtype, wire_bytes=x.wire_bytes,
                loss_reduction=self.manifest.loss_reduction,
            )
        )  # fmt: skip

    def _put(
        self, plan: Plan, key: tuple[str, str, str, str], x: NDArray[Any],
        rows: NDArray[np.int64] | None, timing: Timing,
    ) -> int:  # fmt: skip
        """Write before this returns, so that what the loop does to `x` later is no matter."""
        writer = self.writer
        if writer is None:
            return -1
        if timing.epoch not in self._have.get(key, ()):
            with self._lock:
                self._have.setdefault(key, set()).add(timing.epoch)
        if timing.pair is not None and timing.pair < 0:
            timing = timing._replace(pair=None)
        try:
            put = writer.put if self._behind is None else self._behind.put
            return put(plan, x, rows, timing)
        except OSError as why:
            self._stopped(why)
            return -1

    def _stopped(self, why: OSError) -> None:
        """Record nothing more, and say so once."""
        if self.writer is not None and not self.writer.full:
            self.writer.full = True
            self._warn(f"nothing more is recorded in {self.folder} ({why.strerror}); what was "
                       "written stays")  # fmt: skip

    def wait(self) -> None:
        """Until all that was recorded is on disk; with `behind`, for instance after an epoch."""
        if self._behind is not None:
            self._behind.wait()

    def end(self) -> None:
        """Write what still waits, and the end marks; the trace is not sealed."""
        self._catch_up()
        if self.writer is not None:
            self.writer.close()

    def _catch_up(self) -> None:
        behind, self._behind = self._behind, None
        if behind is not None:
            behind.close()
            if behind.failed is not None:
                self._stopped(behind.failed)

    @staticmethod
    def _warn(text: str) -> None:
        warnings.warn(f"vflsec.record: {text}.", RuntimeWarning, stacklevel=4)

    def close(self, *, failed: bool = False) -> None:
        """End the recording; seal the trace unless another process still records into it.

        Args:
            failed: the loop ended by an error; with ``resume`` the trace stays open then.
        """
        writer = self.writer
        if writer is not None and writer.mine:
            self._catch_up()
        self.writer = None
        if writer is None or not writer.mine:
            return
        later = self._resume and (failed or self._paused)
        stopped = (failed and not later) or writer.full
        try:
            with lock_folder(writer.folder):
                self._describe(writer, whole=not (stopped or self._skipped))
            writer.close()
            with lock_folder(self.folder):
                views = [p for p in (self.folder / "view").iterdir() if p.is_dir()]
                if stopped:
                    give_up(self.folder)
                if not later and not any(recording(v) for v in views):
                    seal(self.folder, ended=self._resume and not self._waiting)
        except OSError as why:
            self._warn(f"{self.folder} is not sealed ({why.strerror or why}); what was written "
                       "stays. Make room, then 'vflsec trace seal' it")  # fmt: skip
        finally:
            writer.release()

    def _describe(self, writer: Writer, *, whole: bool) -> None:
        """Add what this process has recorded to what others of the same run have."""
        info = writer.info()
        schema = None if self.own is None else self.own[1]
        models = info.moments[-1].models if self._model is None else self._model.saved(schema)
        moment = Moment(phase="train", messages=_EVERYTHING, facts=self.facts, models=models)
        there = {(h.kind, h.sender, h.receiver, h.phase): h.epochs for h in info.have}
        first = not there
        for k, epochs in self._have.items():
            mine = sorted(e for e in epochs if e is not None)
            every = whole and not (k[0] == "gradient" and self._strays)
            before = there.get(k, "all" if every else [])
            if isinstance(before, list):
                there[k] = sorted({*before, *mine})
            else:
                there[k] = "all" if every else mine
        have = [
            Have(kind=k[0], sender=k[1], receiver=k[2], phase=k[3], epochs=e)
            for k, e in there.items()
        ]
        if self._strays:
            self._tell_strays()
        complete = whole and not self._strays and (first or info.complete)
        update = {"moments": [moment], "have": have, "complete": complete}
        writer.describe(info.model_copy(update=update))
