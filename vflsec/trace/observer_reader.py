"""What one observer of a trace has, read message by message and checked as it is read."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vflsec.core import check
from vflsec.core.view import Known, Update
from vflsec.errors import TraceError
from vflsec.trace.columns import (
    AMOUNTS,
    KNOWN,
    MESSAGES,
    ROWS,
    Stored,
    build_tensor_schema,
    build_vector_schema,
    read_batches,
)
from vflsec.trace.manifest import Layout, ModelFile, Moment, ObserverInfo
from vflsec.trace.message import Recorded, from_batch, read_fields
from vflsec.trace.missing_rows import NotFinite
from vflsec.trace.module_spec import build_module
from vflsec.trace.pair_gradients import pair_gradients
from vflsec.trace.seal import find_segments
from vflsec.trace.segment_reader import Torn, read_segments
from vflsec.trace.trace_files import TraceFiles
from vflsec.trace.weights import read_weights

__all__ = ["Observer"]


@dataclass
class Observer:
    """What one observer has; everything is checked as it is read."""

    trace: TraceFiles
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
            raise TraceError(
                f"{self._path('observer.json')}: no moment after {phase or 'any phase'} is "
                f"described; there are: {there}."
            )
        return found[-1]

    def messages(self, nonfinite: str = "refuse") -> Iterator[Recorded]:
        """All messages in the order in which they passed.

        Args:
            nonfinite: ``refuse``, or ``drop``, which leaves out rows that hold NaN or infinity.

        Raises:
            TraceError: damage, contradictions, or numbers that are not finite.
        """
        check.one_of("nonfinite", nonfinite, ("refuse", "drop"))
        raw = find_segments(self.trace.files, self.name)
        sealed = self._has("messages.parquet")
        limits, where = self.trace.limits, f"view/{self.name}"
        if raw and not sealed:
            torn = Torn()
            stream: Iterator[tuple[dict[str, Any], pa.RecordBatch | None]] = pair_gradients(
                read_segments(self.trace.folder, raw, limits, torn)
            )
        else:
            if not sealed:
                return
            torn, stream = Torn(), self._sealed()
        left = NotFinite()
        try:
            for meta, batch in stream:
                fields = read_fields(meta, self.trace.manifest.names, self.name, limits, where)
                x, rows = from_batch(fields, batch, self.trace.manifest.rows, where)
                yield self._finite(Recorded(fields, x, rows), nonfinite, left)
        finally:
            self.trace.notes += left.note(self.name)
            self.trace.lack(self.name, left.clauses())
        self.trace.notes += torn.notes

    def untold(self) -> bool:
        """Whether a gradient came of which nobody said what it was multiplied by.

        True of a trace that is not sealed: it is read once, and then it is too late to ask.
        """
        path = self._path("messages.parquet")
        if not self._has("messages.parquet"):
            return True
        for table in read_batches(self.trace.folder, path, MESSAGES, self.trace.limits):
            some = table.select(["kind", "receiver", "loss_reduction", "grad_scale"])
            for m in some.to_pylist():
                said = m["grad_scale"] is not None and m["loss_reduction"] != "unknown"
                if (m["kind"], m["receiver"]) == ("gradient", self.name) and not said:
                    return True
        return False

    def expected(self) -> dict[tuple[str, str, str, str], int]:
        """How many rows pass, by (phase, way, kind, peer); nothing if that is not on record."""
        path = self._path("messages.parquet")
        out: dict[tuple[str, str, str, str], int] = {}
        stored: dict[str, int] = {}
        if not self._has("messages.parquet"):
            return out
        for table in read_batches(self.trace.folder, path, MESSAGES, self.trace.limits):
            some = table.select(["phase", "kind", "sender", "receiver", "n_rows", "store"])
            for m in some.to_pylist():
                way = "sent" if m["sender"] == self.name else "received"
                peer = m["receiver"] if way == "sent" else m["sender"]
                key, n = (m["phase"], way, m["kind"], peer), m["n_rows"] or 0
                out[key] = out.get(key, 0) + n
                stored[m["store"]] = stored.get(m["store"], 0) + n
        for store, n in stored.items():  # no more than its file can hold
            of = Stored.parse(store)
            held = self.trace.files.get(self._path(f"tensors-{store}.parquet"), 0)
            if of is None or n * (of.row_bytes - 24) > held:
                return {}
        return out

    def _finite(self, found: Recorded, nonfinite: str, left: NotFinite) -> Recorded:
        x = found.values
        if x is None or np.isfinite(x).all():
            return found
        bad = ~np.isfinite(x.reshape(len(x), -1)).all(1) if x.ndim else np.ones(1, bool)
        if nonfinite == "refuse" or found.rows is None:
            raise TraceError(
                f"view/{self.name}: message {found.fields.msg} ({found.fields.kind}) holds "
                f"numbers that are not finite in {int(bad.sum())} rows. Record again, or allow it "
                "(--allow-nonfinite), which leaves those rows out."
            )
        keep = ~bad
        left.add(found.fields.kind, bad)
        shape = [int(keep.sum()), *found.fields.shape[1:]]  # n_rows stays: the batch was that large
        return Recorded(replace(found.fields, shape=shape), x[keep], found.rows[keep])

    def _sealed(self) -> Iterator[tuple[dict[str, Any], pa.RecordBatch | None]]:
        cursors: dict[str, _Cursor] = {}
        expected = 0
        path = self._path("messages.parquet")
        for table in read_batches(self.trace.folder, path, MESSAGES, self.trace.limits):
            for meta in table.to_pylist():
                if meta["msg"] != expected:
                    raise TraceError(f"{path}: msg must count 0, 1, ..., got {meta['msg']!r:.20}.")
                expected += 1
                yield meta, self._payload(meta, cursors)
        self.trace.counted(path, expected)
        for store, cursor in cursors.items():
            name = self._path(f"tensors-{store}.parquet")
            if cursor.more():
                raise TraceError(
                    f"{name}: holds rows of messages that are not in messages.parquet."
                )
            self.trace.counted(name, cursor.rows)
        for name in self.trace.files:
            start = self._path("tensors-")
            if name.startswith(start) and name[len(start) : -8] not in cursors:
                raise TraceError(f"{name}: belongs to no message.")

    def _payload(self, meta: dict[str, Any], cursors: dict[str, _Cursor]) -> pa.RecordBatch | None:
        if not meta.get("has_values") or meta.get("n_rows") == 0:
            return None
        store = str(meta.get("store"))
        stored = Stored.parse(store)
        if stored is None or stored.width > self.trace.limits.width:
            return None  # the check of its fields says what is wrong
        if store not in cursors:
            name = self._path(f"tensors-{stored}.parquet")
            if name not in self.trace.files:
                raise TraceError(f"{name}: is missing; message {meta['msg']} has its rows there.")
            cursors[store] = _Cursor(
                read_batches(
                    self.trace.folder,
                    name,
                    build_tensor_schema(stored),
                    self.trace.limits,
                    stored.row_bytes,
                )
            )
        return cursors[store].take(meta["msg"])

    def _table(self, name: str, schema: pa.Schema, row_bytes: int = 32) -> dict[str, Any]:
        """A whole small table as arrays; no nulls."""
        path = self._path(name)
        total = 0
        parts = []
        for batch in read_batches(self.trace.folder, path, schema, self.trace.limits, row_bytes):
            total += len(batch)
            if total > max(self.trace.manifest.rows, 1):
                raise TraceError(
                    f"{path}: more rows than the {self.trace.manifest.rows} of the trace."
                )
            for column in batch.columns:
                if column.null_count:
                    raise TraceError(f"{path}: must hold no nulls.")
            parts.append(batch)
        table = pa.Table.from_batches(parts, schema=schema).combine_chunks()
        out = {n: table.column(n).combine_chunks() for n in schema.names}
        rows = out["row"].to_numpy()
        self.trace.counted(path, len(rows))
        if len(rows) and (rows.min() < 0 or rows.max() >= self.trace.manifest.rows):
            raise TraceError(
                f"{path}: row ids go from {rows.min()} to {rows.max()}; this trace has rows "
                f"0..{self.trace.manifest.rows - 1}."
            )
        if len(np.unique(rows)) < len(rows):
            raise TraceError(f"{path}: row ids repeat; each stands there once.")
        return {n: c.to_numpy() if n != "value" else c for n, c in out.items()} | {"rows": rows}

    def _vectors(self, name: str, layout: Layout) -> tuple[NDArray[np.int64], Tensor]:
        """Row ids and columns (n, *shape) of a table of one party's columns."""
        width = math.prod(layout.shape)
        stem = name.removesuffix(".parquet")
        if width > self.trace.limits.width:
            raise TraceError(f"{self._path(name)}: {width} numbers a row are too many.")
        kind = stem.rpartition("-")[2]
        stored = Stored.parse(f"d{width}-{kind}")
        if stored is None:
            raise TraceError(f"{self._path(name)}: its name must end in the number type, as -f4.")
        found = self._table(name, build_vector_schema(stored), stored.row_bytes)
        if found["value"].flatten().null_count:
            raise TraceError(f"{self._path(name)}: must hold no nulls.")
        flat = found["value"].flatten().to_numpy(zero_copy_only=False)
        if not np.isfinite(flat).all():
            raise TraceError(f"{self._path(name)}: holds numbers that are not finite.")
        x = flat.astype(np.float32 if stored.store == "f2" else stored.numpy)
        return found["rows"], torch.from_numpy(x.reshape(-1, *layout.shape).copy())

    def _layout(self, party: str) -> Layout:
        layout = self.info.layouts.get(party)
        if layout is None:
            raise TraceError(f"{self._path('observer.json')}: the layout of {party} is missing.")
        n = len(layout.cardinalities)
        if n and (len(layout.shape) != 1 or n != layout.shape[0] or len(layout.names) != n):
            raise TraceError(
                f"{self._path('observer.json')}: the layout of {party} has {len(layout.names)} "
                f"names and {n} cardinalities for rows of shape {tuple(layout.shape)}."
            )
        return layout

    def _find(self, stem: str) -> str | None:
        start = self._path(f"{stem}-f")
        found = [f for f in self.trace.files if f.startswith(start)]
        return found[0].rpartition("/")[2] if found else None

    def own(self) -> tuple[Tensor, Tensor] | None:
        """Own columns (N, *shape), zero where a row is not held, and (N,) which are; or None."""
        name = self._find("own")
        if name is None:
            return None
        rows, x = self._vectors(name, self._layout(self.name))
        index = torch.from_numpy(rows.copy())
        n = self.trace.manifest.rows
        if n * x[:1].numel() * x.element_size() > 16 * self.trace.limits.batch_bytes:
            raise TraceError(f"{self._path(name)}: {n} rows of own columns are too many to hold.")
        out = torch.zeros((n, *x.shape[1:]), dtype=x.dtype)
        out[index] = x
        present = torch.zeros(n, dtype=torch.bool)
        present[index] = True
        self._codes(out, self._layout(self.name), self._path(name))
        return out, present

    @staticmethod
    def _codes(x: Tensor, layout: Layout, where: str) -> None:
        for i, c in enumerate(layout.cardinalities):
            if c and len(x) and not (0 <= float(x[:, i].min()) <= float(x[:, i].max()) < c):
                raise TraceError(f"{where}: column {layout.names[i]!r} must hold codes 0..{c - 1}.")

    def aux(self, party: str) -> tuple[Tensor, Tensor]:
        """Granted rows of another party, in order of the grant, and their columns."""
        name = self._find(f"aux-{party}")
        if name is None:
            raise TraceError(f"{self._path(f'aux-{party}')}: the granted columns are missing.")
        rows, x = self._vectors(name, self._layout(party))
        self._codes(x, self._layout(party), self._path(name))
        return torch.from_numpy(rows.copy()), x

    def known(self) -> Known | None:
        """Granted labelled rows in order of the grant, or None; of a quantity as float64 values."""
        classes = self.trace.manifest.classes
        name, other = "known.parquet", "known-values.parquet"
        numbers = self.trace.manifest.label.numeric
        name, other = (other, name) if numbers else (name, other)
        if self._has(other):
            raise TraceError(f"{self._path(other)}: the manifest says {classes or '?'} classes.")
        if not self._has(name):
            return None
        found = self._table(name, AMOUNTS if numbers else KNOWN)
        y, where = found["y"], self._path(name)
        if numbers:
            if not np.isfinite(y).all():
                raise TraceError(f"{where}: holds values that are not finite.")
        elif len(y) and (y.min() < 0 or (classes is not None and y.max() >= classes)):
            raise TraceError(
                f"{where}: labels go from {y.min()} to {y.max()}; there are "
                f"classes 0..{(classes or 0) - 1}."
            )
        if len(y) != self.info.known:
            raise TraceError(f"{where}: {len(y)} rows; observer.json says {self.info.known}.")
        return Known(torch.from_numpy(found["rows"].copy()), torch.from_numpy(y.copy()))

    def targets(self, split: str) -> Tensor | None:
        """Row ids to guess, in order, or None if the trace does not say."""
        if not self._has(f"targets-{split}.parquet"):
            return None
        return torch.from_numpy(self._table(f"targets-{split}.parquet", ROWS)["rows"].copy())

    def weights(self, entry: ModelFile) -> dict[str, Tensor]:
        """The numbers of one module.

        Raises:
            TraceError: the file is missing or no such file.
        """
        where = self._path(entry.file)
        if where not in self.trace.files:
            raise TraceError(f"{where}: is missing; observer.json names it.")
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
            raise TraceError(
                f"{where}: the layers of {entry.party}'s {entry.part} are not described in the "
                "trace. Name its class (--model package.module:Name)."
            )
        return build_module(entry.layers, weights, schema, where)

    def updates(self, moment: Moment) -> list[Update]:
        """Own recorded optimisation steps up to a moment."""
        out = []
        for i in range(moment.updates):
            name = self._path(f"update-{i:06d}.safetensors")
            if name not in self.trace.files:
                raise TraceError(f"{name}: is missing; observer.json counts {moment.updates}.")
            found = read_weights(self.trace.folder, name, self.trace.limits)
            try:
                epoch, step = (int(v) for v in found.pop("when"))
                rows = found.pop("rows").long()
            except (KeyError, ValueError, TypeError, RuntimeError):
                raise TraceError(f"{name}: lacks 'when' or 'rows'.") from None
            if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < self.trace.manifest.rows:
                raise TraceError(f"{name}: row ids are outside the trace.")
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
