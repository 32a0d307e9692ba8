"""Opens a trace and reads what its observers have, checked as it is read; never the truth."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vflsec.core import check
from vflsec.core.view import Known, Update
from vflsec.errors import TraceError
from vflsec.nn.module_spec import NAME_CLASS, build_module
from vflsec.trace.completeness import STOPPED, Key, NotFinite, Prints, Size
from vflsec.trace.limits import COPY, FINITE, Limits, list_files, refuse_file
from vflsec.trace.manifest import Layout, Manifest, ModelFile, Moment, ObserverInfo, read_json
from vflsec.trace.seal import check_seal
from vflsec.trace.segments import RAW, Torn, find_segments, read_segments
from vflsec.trace.tables import (
    GRANTED,
    MESSAGES,
    ROWS,
    Fields,
    Found,
    Recorded,
    Rows,
    Stored,
    build_tensor_schema,
    check_rows,
    find_finite,
    from_batch,
    hash_grant,
    read_batches,
    read_fields,
    read_rows,
    read_weights,
)  # fmt: skip


@dataclass
class Observer:
    """What one observer has; everything is checked as it is read."""

    trace: Trace
    name: str
    info: ObserverInfo

    def _path(self, name: str) -> str:
        return f"view/{self.name}/{name}"

    def _has(self, name: str) -> bool:
        return self._path(name) in self.trace.files

    def moment(self, phase: str = "") -> Moment:
        """The state after a phase; the last one if it is not named.

        Raises:
            TraceError: no such moment was recorded.
        """
        found = [m for m in self.info.moments if phase in ("", m.phase)]
        if not found:
            there = ", ".join(m.phase for m in self.info.moments) or "none"
            where, rule = self._path("observer.json"), f"describe a moment after {phase!r}"
            raise TraceError.must(where, rule, there)
        return found[-1]

    def messages(self) -> Iterator[Recorded]:
        """All messages in the order in which they passed.

        Raises:
            TraceError: damage, contradictions, or numbers that are not finite.
        """
        trace, where, torn, left = self.trace, f"view/{self.name}", Torn(), NotFinite()
        stream = self._sealed()
        if not self._has("messages.parquet"):
            if not find_segments(trace.files, self.name):
                return
            stream = read_segments(
                trace.folder, trace.files, trace.manifest, self.name, trace.limits, torn
            )
        try:
            for fields, batch in stream:
                x, rows = from_batch(fields, batch, trace.manifest.rows, where)
                yield self._finite(Recorded(fields, x, rows), left)
        finally:
            self.trace.notes += left.note(self.name)
            self.trace.lack(self.name, left.clauses())
        self.trace.notes += torn.notes

    def untold(self) -> bool:
        """Whether a gradient came of which nobody said what it was multiplied by.

        True of a trace that is not sealed: it is read once, and then it is too late to ask.
        """
        if not self._has("messages.parquet"):
            return True
        return any(
            (kind, to) == ("gradient", self.name) and (scale is None or reduction == "unknown")
            for kind, to, reduction, scale in self._list_columns(
                "kind", "receiver", "loss_reduction", "grad_scale"
            )
        )

    def _list_columns(self, *names: str) -> Iterator[tuple[Any, ...]]:
        """Some columns of the messages of a sealed trace."""
        path = self._path("messages.parquet")
        for table in read_batches(self.trace.folder, path, MESSAGES, self.trace.limits):
            yield from (tuple(m.values()) for m in table.select(list(names)).to_pylist())

    def expected(self) -> dict[tuple[str, str, str, str], int]:
        """How many rows pass, by (phase, way, kind, peer); nothing if that is not on record."""
        out: dict[tuple[str, str, str, str], int] = defaultdict(int)
        stored: dict[str, int] = defaultdict(int)
        if not self._has("messages.parquet"):
            return {}
        columns = ("phase", "kind", "sender", "receiver", "n_rows", "store")
        for phase, kind, sender, receiver, n, store in self._list_columns(*columns):
            way, peer = ("sent", receiver) if sender == self.name else ("received", sender)
            out[phase, way, kind, peer] += n or 0
            stored[store] += n or 0
        for store, n in stored.items():  # no more than its file can hold
            of = Stored.parse(store)
            held = self.trace.files.get(self._path(f"tensors-{store}.parquet"), 0)
            if of is None or n * (of.row_bytes - 24) > held:
                return {}
        return dict(out)

    def _finite(self, found: Recorded, left: NotFinite) -> Recorded:
        x = found.values
        if x is None or (finite := find_finite(found.fields.kind, x)).all():
            return found
        bad = np.asarray(~finite.reshape(len(x) if x.ndim else 1, -1).all(1))
        if self.trace.limits.nonfinite == "refuse" or found.rows is None:
            where = f"view/{self.name}: message {found.fields.msg} ({found.fields.kind})"
            remedy = "Record again, or leave those rows out (--allow-nonfinite)."
            raise TraceError.must(where, FINITE, f"{int(bad.sum())} bad rows", remedy)
        keep = ~bad
        left.add(found.fields.kind, bad)
        shape = [int(keep.sum()), *found.fields.shape[1:]]  # n_rows stays: the batch was that large
        fields = found.fields.model_copy(update={"shape": shape})
        return Recorded(fields, x[keep], found.rows[keep])

    def _sealed(self) -> Iterator[Found]:
        trace, path, count = self.trace, self._path("messages.parquet"), 0
        cursors: dict[str, _Cursor] = {}
        for table in read_batches(trace.folder, path, MESSAGES, trace.limits):
            for meta in table.to_pylist():
                if meta["msg"] != count:
                    rule = f"hold message {count} next"
                    raise TraceError.must(path, rule, f"{meta['msg']!r:.20}")
                count += 1
                names, where = trace.manifest.ends, f"view/{self.name}"
                fields = read_fields(meta, names, self.name, trace.limits, where)
                empty = not fields.has_values or fields.n_rows == 0
                yield fields, None if empty else self._cursor(fields, cursors).take(fields.msg)
        trace.counted(path, count)
        for store, cursor in cursors.items():
            name = self._path(f"tensors-{store}.parquet")
            if cursor.more():
                raise TraceError(f"{name}: {_NO_MESSAGE}")
            trace.counted(name, cursor.rows)
        for name in trace.files:
            start = self._path("tensors-")
            if name.startswith(start) and name[len(start) : -8] not in cursors:
                raise TraceError(f"{name}: {_NO_MESSAGE}")

    def _cursor(self, fields: Fields, cursors: dict[str, _Cursor]) -> _Cursor:
        """What hands out the rows of the table in which those of a message stand."""
        name = self.trace.need(self._path(f"tensors-{fields.store}.parquet"))
        if fields.store not in cursors:
            schema, size = build_tensor_schema(fields.stored), fields.stored.row_bytes
            found = read_batches(self.trace.folder, name, schema, self.trace.limits, size)
            cursors[fields.store] = _Cursor(found)
        return cursors[fields.store]

    def _rows(self, name: str, form: pa.Schema | Stored) -> Rows:
        """A whole small table, as the seal counts it."""
        trace, path = self.trace, self._path(name)
        found = read_rows(trace.folder, path, form, trace.limits, trace.manifest.rows)
        trace.counted(path, len(found.ids))
        return found

    def _vectors(self, stem: str, party: str) -> tuple[Tensor, Tensor]:
        """Row ids and columns (n, *shape) of a party."""
        start = self._path(stem)
        where = next((f for f in self.trace.files if f.startswith(f"{start}-f")), start)
        name, layout = self.trace.need(where).rpartition("/")[2], self._layout(party)
        width = math.prod(layout.shape)
        self.trace.limits.hold(where, "width", width)
        stored = Stored.parse(f"d{width}-{name.removesuffix('.parquet').rpartition('-')[2]}")
        if stored is None:
            raise TraceError(f"{where}: must end in the number type, as -f4.")
        found = self._rows(name, stored)
        x = torch.from_numpy(
            found.values.astype(np.float32 if stored.store == "f2" else stored.numpy)
        )
        x = x.reshape(-1, *layout.shape)
        for i, c in enumerate(layout.cardinalities):
            if c and len(x) and not (0 <= float(x[:, i].min()) <= float(x[:, i].max()) < c):
                name = layout.names[i]
                raise TraceError.between(f"{where}: column {name!r}", 0, c - 1, "others")
        return torch.from_numpy(found.ids), x

    def _layout(self, party: str) -> Layout:
        layout = self.info.layouts.get(party)
        if layout is None:
            raise TraceError(f"{self._path('observer.json')}: lacks the layout of {party}.")
        n = len(layout.cardinalities)
        if n and (len(layout.shape) != 1 or n != layout.shape[0] or len(layout.names) != n):
            where = f"{self._path('observer.json')}: layout of {party}"
            got = f"{len(layout.names)} and {n}"
            raise TraceError.must(where, f"name and count the {layout.shape} columns", got)
        return layout

    def own(self) -> tuple[Tensor, Tensor] | None:
        """Own columns (N, *shape), zero where a row is not held, and (N,) which are; or None."""
        if self.info.own == "none":
            return None
        (index, x), n = self._vectors("own", self.name), self.trace.manifest.rows
        size = n * x[:1].numel() * x.element_size()
        self.trace.limits.hold(self._path("own"), "batch_bytes", -(-size // 16))
        out, present = x.new_zeros((n, *x.shape[1:])), torch.zeros(n, dtype=torch.bool)
        out[index], present[index] = x, True
        return out, present

    def aux(self, party: str) -> tuple[Tensor, Tensor]:
        """Granted rows of another party, in order of the grant, and their columns."""
        return self._vectors(f"aux-{party}", party)

    def known(self) -> Known | None:
        """Granted labelled rows in order of the grant, or None; of a quantity as float64 values."""
        classes = self.trace.manifest.classes
        numbers = self.trace.manifest.label.numeric
        (name, form), (other, _) = GRANTED[numbers], GRANTED[not numbers]
        if self._has(other):
            raise TraceError.must("classes", f"fit {self._path(other)}", classes or "none")
        if not self.info.known:
            return None
        found = self._rows(name, form)
        y, where = found.values, self._path(name)
        if not numbers and len(y) and (y.min() < 0 or (classes is not None and y.max() >= classes)):
            got = f"{y.min()} to {y.max()}"
            raise TraceError.between(f"{where}: labels", 0, (classes or 0) - 1, got)
        if len(y) != self.info.known:
            rule = f"have {self.info.known} rows, as observer.json says"
            raise TraceError.must(where, rule, len(y))
        return Known(torch.from_numpy(found.ids), torch.from_numpy(y))

    def targets(self, split: str) -> Tensor | None:
        """Row ids to guess, in order, or None if the trace does not say."""
        name = f"targets-{split}.parquet"
        return torch.from_numpy(self._rows(name, ROWS).ids) if self._has(name) else None

    def weights(self, entry: ModelFile) -> dict[str, Tensor]:
        """The numbers of one module.

        Raises:
            TraceError: the file is missing or no such file.
        """
        where = self.trace.need(self._path(entry.file))
        return read_weights(self.trace.folder, where, self.trace.limits)

    def model(self, entry: ModelFile, factory: Any = None) -> nn.Module:
        """One module of a moment, in eval mode.

        Args:
            entry: of the moment.
            factory: makes the module for (schema); for models that the trace cannot describe.

        Raises:
            TraceError: its layers are not described and nobody named its class.
        """
        where = self._path(entry.file)
        weights = self.weights(entry)
        schema = self._layout(entry.party).as_schema()
        if factory is not None:
            module: nn.Module = factory(schema)
            try:
                module.load_state_dict(weights)
            except RuntimeError as why:
                text = " ".join(str(why).split())[:160]
                raise TraceError(f"{where}: does not fit the named model ({text}).") from None
            return module.eval()
        if entry.layers is None:
            raise TraceError(f"{where}: its layers are not described. {NAME_CLASS}")
        return build_module(entry.layers, weights, schema, where)

    def updates(self, moment: Moment) -> list[Update]:
        """Own recorded optimisation steps up to a moment."""
        out = []
        for i in range(moment.updates):
            name = self.trace.need(self._path(f"update-{i:06d}.safetensors"))
            found = read_weights(self.trace.folder, name, self.trace.limits)
            try:
                epoch, step = (int(v) for v in found.pop("when"))
                rows = found.pop("rows").long()
            except (KeyError, ValueError, TypeError, RuntimeError):
                raise TraceError(f"{name}: lacks 'when' or 'rows'.") from None
            check_rows(name, rows, self.trace.manifest.rows)
            named = {
                way: {k[2:]: v for k, v in found.items() if k.startswith(f"{way}.")}
                for way in ("g", "w")
            }
            out.append(Update(epoch, step, rows, named["g"], named["w"]))
        return out


class _Cursor:
    """Hands out the rows of one message after the other from a tensor file."""

    def __init__(self, source: Iterator[pa.RecordBatch]) -> None:
        self.source = source
        self.batch: pa.RecordBatch | None = None
        self.ids: NDArray[np.int64] = np.empty(0, np.int64)
        self.at, self.rows = 0, 0

    def more(self) -> bool:
        """Whether a row is left."""
        while self.batch is None or self.at >= len(self.batch):
            batch = next(self.source, None)
            if batch is None:
                return False
            self.batch, self.at = batch, 0
            self.rows += len(batch)
            self.ids = batch.column("msg").fill_null(-1).to_numpy(zero_copy_only=False)
        return True

    def take(self, msg: int) -> pa.RecordBatch | None:
        """The rows of message `msg`, which must come next; None if there are none."""
        parts = []
        while self.more():
            assert self.batch is not None
            rest = self.ids[self.at :] != msg
            end = self.at + (int(rest.argmax()) if rest.any() else len(rest))
            if end > self.at:
                parts.append(self.batch.slice(self.at, end - self.at))
                self.at = end
            if self.at < len(self.batch):
                break
        if not parts:
            return None
        if len(parts) == 1:
            return parts[0]
        (whole,) = pa.Table.from_batches(parts).combine_chunks().to_batches()
        return whole


OURS = "vflsec.train.export"
"""The adapter that writes our own simulations."""

_PICKLED = re.compile(r"\.(pt|pth|pkl|pickle|npy|npz|bin|ckpt)$")
_NO_MESSAGE = "holds rows of no message."
_TRUTH = re.compile(r"(truth|labels?|target_values)([.-]|$)")
_OF_VIEW = re.compile(
    r"observer\.json|(messages|known|known-values|targets-train|targets-test|own-f.*|aux-.*|"
    rf"tensors-{Stored.pattern[1:-1]})\.parquet|(model|update)-.*\.safetensors|{RAW.pattern}"
)
"""Names of files in the folder of an observer."""


@dataclass
class Trace:
    """Files whose names, sizes and hashes were checked; tables are checked as they are read.

    Attributes:
        folder: of the trace.
        manifest: public facts.
        files: size by relative path, without those of ``truth/``.
        sealed: whether counts and hashes stand outside the files.
        payloads: hashes of the tables of messages' numbers, if it is sealed.
        notes: what a reader should know, one sentence each.
        gaps: by observer, why its recording carries no pass, a clause each.
        prints: by observer, fingerprints of its messages, once they were read.
        crossed: what its messages came to.
        unread: (kind, name) of messages that no attack looked at, see
            `vflsec.core.channel.Recorder`.
        granted: by hash of the labels, rows of which an adversary was granted them.
    """

    folder: Path
    manifest: Manifest
    files: dict[str, int]
    sealed: bool
    limits: Limits
    notes: list[str] = field(default_factory=list)
    payloads: tuple[str, ...] = ()
    gaps: dict[str, list[str]] = field(default_factory=dict)
    prints: dict[str, Prints] = field(default_factory=dict)
    crossed: dict[Key, Size] = field(default_factory=dict)
    unread: set[tuple[str, str]] = field(default_factory=set)
    granted: dict[str, NDArray[np.int64]] = field(default_factory=dict)
    _rows: dict[str, int] = field(default_factory=dict)

    @property
    def is_ours(self) -> bool:
        """Whether it is of our own simulation, so that views must be those of a live run."""
        return self.manifest.adapter.name == OURS

    def grant(self, known: Known) -> None:
        """Keep which labels an adversary was granted, by their hash."""
        rows = known.rows.numpy()
        self.granted[hash_grant(rows, known.labels.numpy())] = rows

    def lack(self, observer: str, clauses: Sequence[str]) -> None:
        """Note why what was recorded of an observer carries no pass."""
        held = self.gaps.setdefault(observer, []) if clauses else []
        for clause in clauses:
            if clause not in held:
                held.append(clause)
                self.notes.append(f"what was recorded of {observer} carries no pass: {clause}.")

    def counted(self, path: str, rows: int) -> None:
        """Compare the rows of a table with the seal.

        Raises:
            TraceError: they differ.
        """
        if self._rows.get(path, rows) != rows:
            rule = f"have {self._rows[path]} rows, as seal.json says"
            raise TraceError.must(path, rule, rows)

    @classmethod
    def open(
        cls, folder: str | Path, limits: Limits | None = None, *, verify: bool = True
    ) -> Trace:
        """Open a trace, sealed or as its recorder left it.

        Args:
            folder: of the trace.
            limits: what is read at most.
            verify: compare hashes (reads every file once).

        Raises:
            TraceError: it is none, or not as its seal says, or holds what does not belong there.
        """
        folder, limits = Path(folder), limits or Limits()
        found = list_files(folder, limits)
        files = {f: s for f, s in found.items() if not f.endswith(".tmp")}
        manifest = read_json(folder, "manifest.json", Manifest, limits)
        trace = cls(folder, manifest, files, "seal.json" in files, limits)
        trace._places()
        trace._public()
        truth = [f for f in files if f.startswith("truth/")]
        trace.files = {f: s for f, s in files.items() if f not in truth}
        if trace.sealed:
            seal = check_seal(folder, trace.files, limits, verify=verify)
            trace._rows = {f.path: f.rows for f in seal.files}
            trace.payloads = tuple(f.sha256 for f in seal.files if "/tensors-" in f.path and f.rows)
        else:
            seal_it = "Run 'vflsec trace seal' at its recorder's."
            trace.notes.append(f"not sealed, so damage would not show. {seal_it}")
        trace.notes += [f"{later.words}." for later in manifest.later]
        if manifest.status == "partial":
            trace.notes.append(f"{STOPPED}.")
        return trace

    def need(self, path: str) -> str:
        """`path`, if there is such a file.

        Raises:
            TraceError: there is none.
        """
        if path not in self.files:
            raise TraceError(f"{self.folder}: {path} is missing. {COPY}")
        return path

    def need_seal(self) -> None:
        """Refuse a trace that is not sealed.

        Raises:
            TraceError: it is not.
        """
        if not self.sealed:
            raise TraceError(f"{self.folder}: is not sealed. Run 'vflsec trace seal' first.")

    def _public(self) -> None:
        names, held = self.manifest.ends, sum(self.files.values())
        active = sum(p.role == "active" for p in self.manifest.parties)
        if len(set(names)) != len(names) or active > 1:
            rule, got = "have different names, at most one active", ", ".join(names)
            raise TraceError.must("manifest.json: parties", rule, got)
        self.limits.hold("manifest.json", "rows", self.manifest.rows)
        if self.manifest.rows > held:
            self.limits.hold("manifest.json", "named", self.manifest.rows)

    def _places(self) -> None:
        """Every file stands where the format has a place for it."""
        for path in self.files:
            folder, _, name = path.rpartition("/")
            viewed = folder.startswith("view/") and folder.count("/") == 1
            if viewed and _TRUTH.match(name.lower()):
                raise TraceError(f"{path}: labels belong into truth/.")
            of_view = viewed and _OF_VIEW.fullmatch(name)
            known = of_view or folder == "truth" or path in ("manifest.json", "seal.json")
            if _PICKLED.search(name) or not known:
                raise refuse_file(path)

    @property
    def observers(self) -> tuple[str, ...]:
        """Whose folders are there."""
        return tuple(sorted({f.split("/")[1] for f in self.files if f.startswith("view/")}))

    def observer(self, name: str) -> Observer:
        """One observer's folder.

        Raises:
            TraceError: there is none, or it is not described rightly.
        """
        check.one_of("the observer", name, self.observers)
        where = f"view/{name}/observer.json"
        info = read_json(self.folder, where, ObserverInfo, self.limits)
        if info.party != name or name not in self.manifest.names:
            rule = f"be {name!r}, one of {', '.join(self.manifest.names)}"
            raise TraceError.must(f"{where}: party", rule, repr(info.party))
        prior, classes = info.prior, self.manifest.classes
        if prior is not None and (
            len(prior) != (classes or len(prior)) or abs(sum(prior) - 1) > 1e-3
        ):
            raise TraceError.must(
                f"{where}: prior", f"be {classes or '?'} shares that add up to 1", prior
            )
        return Observer(self, name, info)
