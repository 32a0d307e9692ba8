"""A trace in the making: embeddings as they are sent, gradients as they come back."""

from __future__ import annotations

import logging
import math
import threading
import warnings
from collections.abc import Mapping
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
from vflsec.runtime.atomic_files import refuse_write
from vflsec.trace.limits import OTHER_WIDTH, list_files
from vflsec.trace.manifest import (
    Have,
    Layout,
    Manifest,
    Moment,
    ObserverInfo,
    PublicFacts,
    Route,
    read_json,
)
from vflsec.trace.recorder_inputs import (
    LIMITS,
    Ids,
    Numbers,
    OwnModel,
    Places,
    as_numbers,
    check_shape,
    refuse,
)
from vflsec.trace.seal import seal
from vflsec.trace.segments import Torn, read_segments
from vflsec.trace.tables import (
    GRANTED,
    hash_grant,
    read_rows,
    write_known,
    write_own,
    write_vectors,
)
from vflsec.trace.writer import (
    SKIPS,
    Behind,
    Heading,
    Plan,
    Timing,
    Writer,
    begin,
    is_recording,
    lock_folder,
    plan_messages,
)

_EVERYTHING = 1 << 62
NO_COLUMNS = "record: a model needs columns. Give both."
_OF_ROWS = find_kinds(lambda kind: kind.has_one_width)


@dataclass(frozen=True)
class Holdings:
    """What a party has beside its messages: own rows and model, and what it was granted."""

    own: tuple[Tensor, Schema] | None = None
    known: Known | None = None
    prior: list[float] | None = None
    aux: Mapping[str, tuple[Tensor, Tensor, Schema]] = field(default_factory=dict)
    model: nn.Module | None = None


_LOG = logging.getLogger("vflsec.record")


def describe_askable(active: bool, classes: int | None, held: Holdings) -> tuple[str, list[str]]:
    """How many attacks by a party can be made, in words, and which arguments the others lack."""
    if active:
        return ("columns: every attack", []) if held.aux else ("columns: no attack", ["aux"])
    of = {"classes": classes, "known": held.known, "prior": held.prior}
    missing = [name for name, value in of.items() if value is None]
    if classes is None:
        return "labels: no attack", missing
    many = {0: "every attack", 1: "most attacks" if held.known else "few attacks", 2: "hardly any"}
    return f"labels: {many[len(missing)]}", missing


@dataclass(frozen=True)
class Loop:
    """How a loop trains and is recorded; as :func:`vflsec.trace.record_api.record` says."""

    grad_scale: Any
    accumulation: int
    every: int
    max_bytes: int | None
    behind: int
    resume: bool


def _hash_grant(folder: Path) -> str:
    """:func:`hash_grant` the labelled rows that :func:`write_known` wrote there, '' of none."""
    for name, form in GRANTED.values():
        if (folder / name).exists():
            return hash_grant(*read_rows(folder, name, form, LIMITS))
    return ""


class Recording:
    """A trace in the making; made by :func:`record`. Its methods may be called from any thread."""

    def __init__(
        self, folder: Path, manifest: Manifest, party: str, peer: str, ids: Ids,
        facts: PublicFacts, holdings: Holdings, loop: Loop,
    ) -> None:  # fmt: skip
        self.folder, self.manifest, self.party, self.peer = folder, manifest, party, peer
        self.ids, self.facts, self.held, self.loop = ids, facts, holdings, loop
        self.active = party == manifest.active
        self.writer: Writer | None = None
        self._others = [n for n in manifest.ends if n != party]
        self._lock = threading.Lock()
        self._epoch: int | None = None
        self._cuts: dict[tuple[str, str, str], int] = {}
        self._widths: dict[tuple[str, ...], tuple[int, ...]] = {}
        self._have: dict[Route, set[int | None]] = {}
        self._skipped = self._odd = self._told = self._paused = self._announced = False
        self._through: set[tuple[str, str, str]] = set()
        self._strays, self._places = 0, Places()
        self._model: OwnModel | None = None
        self._behind: Behind | None = None

    def __enter__(self) -> Recording:
        try:
            begin(self.folder, self.manifest)
            self._refuse_second()
            self.writer = Writer(self.folder, self.party, self.loop.max_bytes)
            self._begin(self.writer)
        except BaseException as why:
            if self.writer is not None:
                self.writer.release()
            raise refuse_write(self.folder, why) if isinstance(why, OSError) else why from None
        return self

    def _refuse_second(self) -> None:
        """Refuse what an earlier training left that has ended, but for its seal."""
        here = self.folder / "view" / self.party
        if self.loop.resume or not (here / "observer.json").exists() or is_recording(here):
            return
        if read_json(here, "observer.json", ObserverInfo, LIMITS).have:
            remedy = f"Seal it with 'vflsec trace seal {self.folder}', and name an empty folder."
            raise ConfigError.taken(self.folder, "a recording that has ended", remedy)

    def _begin(self, writer: Writer) -> None:
        """Write what the party has beside its messages, unless another process of the run did."""
        held, here = self.held, writer.folder
        if self.loop.resume:
            self._go_on(writer)
        self._behind = Behind(writer, self.loop.behind) if self.loop.behind else None
        if held.model is not None:
            self.model(held.model)
        with lock_folder(here):
            if writer.info().moments:
                return  # of another process of this run, which described it
            layouts = {}
            if held.own is not None:
                write_own(here, held.own[0])
                layouts[self.party] = Layout.of(held.own[1])
            if held.known is not None:
                write_known(here, held.known)
            for other, (rows, x, schema) in held.aux.items():
                write_vectors(here, f"aux-{other}", rows, x)
                layouts[other] = Layout.of(schema)
            writer.describe(
                ObserverInfo(
                    party=self.party, own="none" if held.own is None else "all", layouts=layouts,
                    moments=[Moment(phase="train", messages=_EVERYTHING, facts=self.facts)],
                    prior=held.prior, known=0 if held.known is None else len(held.known),
                    aux=list(held.aux),
                )
            )  # fmt: skip

    def _go_on(self, writer: Writer) -> None:
        """Count on from what earlier processes of this training recorded."""
        k = self.held.known
        now = "" if k is None else hash_grant(k.rows.numpy(), k.labels.numpy())
        if writer.info().moments and _hash_grant(writer.folder) != now:
            raise refuse("known", "the rows and labels with which training began", "others")
        files = list_files(self.folder, LIMITS)
        stream = read_segments(self.folder, files, self.manifest, self.party, LIMITS, Torn())
        for f, _ in stream:
            self._have.setdefault(f.route, set()).add(f.epoch)
            if f.kind == "embedding" and f.step is not None:
                counted = (f.phase, f.receiver if f.sender == self.party else f.sender, f.name)
                after = (f.step + 1) * self.loop.accumulation
                self._cuts[counted] = max(self._cuts.get(counted, 0), after)

    def pause(self) -> None:
        """Say that the training stops here and goes on later, as ``record(resume=True)`` allows."""
        if not self.loop.resume:
            raise refuse("resume", "True for pause()", False)
        self._paused = True

    def __exit__(self, kind: object, *_: object) -> None:
        self.close(failed=kind is not None)

    def epoch(self, number: int) -> None:
        """Say which epoch the following batches belong to."""
        self._epoch = check.integer("record: epoch", number, low=0, high=LIMITS.epochs)

    def model(self, bottom: nn.Module, initial: Mapping[str, Tensor] | None = None) -> None:
        """Keep the party's own model as it is when the recording ends; ``record(model=)`` does.

        Args:
            bottom: from own rows to the embedding.
            initial: its ``state_dict()`` before training (a copy), for a control of the audit;
                by default as it is now, if nothing has been recorded yet.
        """
        self._other("")
        assert self.writer is not None
        if self.held.own is None:
            raise ConfigError(NO_COLUMNS)
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
            remedy = "Call cut() for each of several, with name='...'."
            raise ShapeError.must("record: cut", "take one tensor", type(z).__name__, remedy)
        listens = z.requires_grad and torch.is_grad_enabled()
        x = as_numbers(z)
        other = self._other(peer)
        check_shape(phase, x.array.shape)
        phase = phase or ("train" if listens else "eval")
        up = (other, self.party) if self.active else (self.party, other)
        there = self._plan("embedding", up, x, phase, name)
        back = self._plan("gradient", up[::-1], x, phase, name)
        rows, counted = self._rows("embedding", len(z), ids), (phase, other, name)
        with self._lock:
            count = self._cuts.get(counted, 0)
            self._cuts[counted] = count + 1
        step, micro = divmod(count, self.loop.accumulation)
        epoch = self._epoch
        if self._left_out(epoch):
            return z
        number = self._put(there, x.array, rows, Timing(epoch, step, micro))
        if listens:
            if self._places.left and self._places.taken(rows, x.array, self.ids.n):
                self._warn(
                    f"two different batches both name rows 0 to {len(z) - 1}. Give ids of rows, "
                    "not places in a batch, or no attack finds anything"
                )
            taken, strayed = 0, False

            def arrived(gradient: Tensor) -> None:
                """Write the gradient; it is not changed."""
                nonlocal taken, strayed
                self._through.add(counted)
                with self._lock:
                    self._strays -= strayed
                strayed = False
                part, taken = micro + taken * self.loop.accumulation, taken + 1
                timing = Timing(epoch, step, part, self._factor(), number)
                self._put(back, as_numbers(gradient).array, rows, timing)

            def past(_: Tensor) -> None:
                """A gradient, perhaps of a loss of its own, before one has come back here."""
                nonlocal strayed
                if not taken and not strayed:
                    strayed = True
                    with self._lock:
                        self._strays += 1
                    if counted not in self._through:
                        self._tell_strays()

            if not z.is_leaf:
                z.register_hook(past)
                z = z.clone()
            z.register_hook(arrived)
        return z

    def _tell_strays(self) -> None:
        """Say once that gradients went another way than the one that is listened to.

        At the first of a name of which nothing has come as it should, else at the end.
        """
        if not self._told:
            self._told = True
            self._warn(
                "a gradient bypassed the tensor that cut() returned and is not recorded: no audit "
                "of this trace passes. Go on with it: 'z = rec.cut(z, ids)'"
            )

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
        return self._put(plan, numbers.array, rows, timing)

    def _other(self, peer: str) -> str:
        if self.writer is None:
            raise ConfigError("record: write 'with vflsec.record(...) as rec:'.")
        other = peer or self.peer
        if other not in self._others:
            check.one_of("record: peer", other, self._others)
        return other

    def _rows(self, kind: str, n: int, ids: Any) -> NDArray[np.int64] | None:
        rows = None if ids is None else self.ids.places(ids)
        if rows is not None and len(rows) != n:
            raise ShapeError.must(f"record: ids of {kind}", f"be {n}", len(rows))
        return rows

    def _left_out(self, epoch: int | None) -> bool:
        out = epoch is not None and epoch % self.loop.every != 0
        if out and not self._skipped and self.writer is not None:
            self._skipped = True
            self.writer.say(SKIPS)
        return out

    def _factor(self) -> float | None:
        """What the loss was multiplied by; None if nobody said."""
        scale = self.loop.grad_scale
        if scale is None and self.loop.accumulation == 1:
            return None
        if hasattr(scale, "get_scale"):
            scale = scale.get_scale()
        elif callable(scale):
            scale = scale()
        if scale is not None and not 0 < float(scale) < math.inf:
            if not self._odd:
                self._odd = True
                self._warn(f"grad_scale must be above 0, got {scale!r}; recorded as unknown")
            return None
        return (1.0 if scale is None else float(scale)) / self.loop.accumulation

    def _announce(self) -> None:
        """Say at the first message what can be asked of the trace."""
        self._announced = True
        many, missing = describe_askable(self.active, self.manifest.classes, self.held)
        later = "" if self.active else f", or later (vflsec trace grant {self.folder})"
        said = f"{self.party} records; {many} can be made."
        if missing:
            said += f" Missing: {', '.join(missing)}. Give them to the recorder{later}."
        _LOG.log(logging.WARNING if missing else logging.INFO, "%s", said)

    def _plan(
        self, kind: str, ends: tuple[str, str], x: Numbers, phase: str, name: str = ""
    ) -> Plan:
        if not self._announced:
            self._announce()
        shape, place = tuple(x.array.shape[1:]), (kind, *ends, phase, name)
        if kind in _OF_ROWS and x.array.size and self._widths.setdefault(place, shape) != shape:
            what = f"record: rows of this {kind}"
            raise ShapeError.shaped(what, self._widths[place], shape, OTHER_WIDTH)
        return plan_messages(
            Heading(
                kind, *ends, (x.array.shape, x.array.dtype.char), phase=phase, name=name,
                wire_dtype=x.wire_dtype, wire_bytes=x.wire_bytes,
                loss_reduction=self.manifest.loss_reduction,
            )
        )  # fmt: skip

    def _put(
        self, plan: Plan, x: NDArray[Any], rows: NDArray[np.int64] | None, timing: Timing
    ) -> int:
        """Write before this returns, so that what the loop does to `x` later is no matter."""
        writer = self.writer
        if writer is None:
            return -1
        if timing.epoch not in self._have.get(plan.route, ()):
            with self._lock:
                self._have.setdefault(plan.route, set()).add(timing.epoch)
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
            self.writer.stop()
            self._warn(f"nothing more is recorded in {self.folder} ({why.strerror})")

    def wait(self) -> None:
        """Until all that was recorded is on disk; with `behind`, for instance after an epoch."""
        if self._behind is not None:
            self._behind.wait()

    def end(self) -> None:
        """Write what still waits, and the end marks; the trace is not sealed."""
        self._catch_up()
        if self.writer is not None:
            try:
                self.writer.close()
            except OSError as why:
                self._warn(f"the end of {self.folder} is not marked ({why.strerror})")

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
        later = self.loop.resume and (failed or self._paused)
        stopped = (failed and not later) or writer.full
        if stopped:
            writer.stop()
        try:
            with lock_folder(writer.folder):
                self._describe(writer, whole=not (stopped or self._skipped))
            writer.close()
            with lock_folder(self.folder):
                views = [p for p in (self.folder / "view").iterdir() if p.is_dir()]
                if not later and not any(is_recording(v) for v in views):
                    seal(self.folder, ended=self.loop.resume and not self.loop.behind)
        except OSError as why:
            self._warn(f"{self.folder} is not sealed ({why.strerror or why}). Make room, then "
                       "'vflsec trace seal' it")  # fmt: skip
        finally:
            writer.release()

    def _describe(self, writer: Writer, *, whole: bool) -> None:
        """Add what this process has recorded to what others of the same run have."""
        info = writer.info()
        models = info.moments[-1].models if self._model is None else self._model.saved()
        moment = Moment(phase="train", messages=_EVERYTHING, facts=self.facts, models=models)
        there = {h.route: h.epochs for h in info.have}
        first = not there
        for route, epochs in self._have.items():
            mine = sorted(e for e in epochs if e is not None)
            every = whole and not (route.kind == "gradient" and self._strays)
            before = there.get(route, "all" if every else [])
            if isinstance(before, list):
                there[route] = sorted({*before, *mine})
            else:
                there[route] = "all" if every else mine
        have = [Have(**route._asdict(), epochs=e) for route, e in there.items()]
        if self._strays:
            self._tell_strays()
        complete = whole and not self._strays and (first or info.complete)
        update = {"moments": [moment], "have": have, "complete": complete}
        writer.describe(info.model_copy(update=update))
