"""Turns a recorded stream into Parquet files with counts and hashes outside them."""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray

from vflsec.core.message_kinds import find_kinds
from vflsec.errors import TraceError
from vflsec.trace.claims import RAW, recording
from vflsec.trace.columns import MESSAGES, Stored, build_tensor_schema, open_writer
from vflsec.trace.grants import write_targets
from vflsec.trace.limits import Limits, files_of, open_file
from vflsec.trace.manifest import (
    FORMAT,
    VERSION,
    Have,
    Manifest,
    ObserverInfo,
    PublicFacts,
    Seal,
    SealedFile,
    dump,
    load,
)
from vflsec.trace.message import Fields, Route, read_fields
from vflsec.trace.pair_gradients import pair_gradients
from vflsec.trace.segment_reader import Torn, read_segments

__all__ = [
    "Passed",
    "count_message",
    "describe_have",
    "digest",
    "find_segments",
    "give_up",
    "seal",
    "write_seal",
]  # fmt: skip

_EVERY_ROW = find_kinds(lambda kind: kind.has_every_row)

_GROUP = 8 << 20  # bytes of a row group, which is what a reader holds at once


def find_segments(files: Iterable[str], observer: str) -> list[str]:
    """The segments of an observer among a trace's files."""
    start = f"view/{observer}/"
    return [f for f in files if f.startswith(start) and RAW.fullmatch(f[len(start) :])]


def digest(folder: Path, name: str) -> str:
    """SHA-256 of a file."""
    found = hashlib.sha256()
    with open_file(folder, name) as file:
        while block := file.read(1 << 20):
            found.update(block)
    return found.hexdigest()


def seal(
    folder: str | Path,
    limits: Limits | None = None,
    *,
    partial: bool = False,
    ended: bool = False,
) -> list[str]:
    """Seal a recorded trace; of one that a killed process left, up to its last whole message.

    Args:
        folder: of the trace.
        partial: say in the manifest that recording stopped before the run did.
        ended: the run came to its end, and its processes were stopped only then, so that a stream
            of whole messages without an end mark lacks nothing.

    Returns:
        what was left out, one sentence each.

    Raises:
        TraceError: it is sealed already, or damaged otherwise than by stopping early.
    """
    folder, limits = Path(folder), limits or Limits()
    files = files_of(folder, limits)
    if "seal.json" in files:
        raise TraceError(f"{folder}: is sealed already.")
    manifest = _manifest(folder)
    observers = sorted({f.split("/")[1] for f in files if f.startswith("view/")})
    for observer in observers:
        if not ended and recording(folder / "view" / observer, here=False):
            raise TraceError(
                f"{folder}: is being recorded by a process that lives. Seal it when that has ended."
            )
    torn = Torn()
    rows: dict[str, int] = {}
    for observer in observers:
        rows |= _seal_observer(folder, observer, list(files), manifest, limits, torn, ended)
    status = "partial" if partial or torn.notes or manifest.status == "partial" else "sealed"
    _replace(folder / "manifest.json", dump(manifest.model_copy(update={"status": status})))
    write_seal(folder, rows, limits)
    return torn.notes


def give_up(folder: Path) -> None:
    """Say in the manifest that recording stopped before the run did; another may still record."""
    manifest = _manifest(folder)
    _replace(folder / "manifest.json", dump(manifest.model_copy(update={"status": "partial"})))


def _manifest(folder: Path) -> Manifest:
    path = folder / "manifest.json"
    if not path.exists():
        raise TraceError(f"{folder}: has no manifest.json, so it is no trace.")
    return load(path.read_bytes(), Manifest, "manifest.json")


def _replace(path: Path, data: bytes) -> None:
    new = path.with_name(f"{path.name}.tmp")
    new.write_bytes(data)
    new.replace(path)


def _seal_observer(
    folder: Path, observer: str, files: list[str], manifest: Manifest, limits: Limits, torn: Torn,
    ended: bool,
) -> dict[str, int]:  # fmt: skip
    here = folder / "view" / observer
    names = find_segments(files, observer)
    info_path = here / "observer.json"
    info = load(info_path.read_bytes(), ObserverInfo, f"view/{observer}/observer.json")
    if (here / "messages.parquet").exists():  # sealing was stopped on its last steps
        for name in names:
            (folder / name).unlink()
        return _counts(folder, observer)
    before = len(torn.notes)
    stream = pair_gradients(read_segments(folder, names, limits, torn))
    seen = _Seen(manifest.rows)
    read = _read(stream, manifest, observer, limits)
    rows, have, count, nonfinite = _write(here, observer, seen.watched(read))
    if ended:
        torn.notes = [n for n in torn.notes if n not in torn.unended]
    moments = [
        m.model_copy(
            update={"messages": min(m.messages, count), "facts": seen.facts(m.facts)}
        )
        for m in info.moments
    ]  # fmt: skip
    whole = (info.complete or ended) and len(torn.notes) == before
    kept = describe_have(have, info.have)
    if ended and whole and not info.have:
        kept = [h.model_copy(update={"epochs": "all"}) for h in kept]
    update: dict[str, Any] = {
        "have": kept, "moments": moments, "complete": whole, "nonfinite": nonfinite
    }  # fmt: skip
    if not info.targets:
        update["targets"] = seen.targets(here)
    _replace(info_path, dump(info.model_copy(update=update)))
    for path in sorted(here.glob("*.parquet.tmp")):
        if path.name != "messages.parquet.tmp":
            path.replace(path.with_suffix(""))
    (here / "messages.parquet.tmp").replace(here / "messages.parquet")
    for name in names:
        (folder / name).unlink()
    for mark in here.glob("process-*.tmp"):
        mark.unlink(missing_ok=True)
    return rows


class _Seen:
    """What the messages themselves tell of a recording that nobody could describe at its end."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.rows: dict[bool, NDArray[np.bool_]] = {}
        self.widths: dict[str, int] = {}

    def watched(self, stream: Iterable[Found]) -> Iterator[Found]:
        """The messages as they are."""
        for found, batch in stream:
            if found.kind in _EVERY_ROW:
                ids = batch.column("row")
                if len(ids) and not ids.null_count:
                    trained = found.phase not in ("eval", "predict")
                    self._mark(trained, ids.to_numpy())
                if found.kind == "embedding" and found.n_rows:
                    self.widths[found.sender] = math.prod(found.shape[1:]) or 1
            yield found, batch

    def _mark(self, trained: bool, ids: NDArray[np.int64]) -> None:
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or high >= self.n:
            raise TraceError(
                f"row ids go from {low} to {high}; this trace has rows 0..{self.n - 1}."
            )
        held = self.rows.get(trained, np.zeros(0, bool))
        if high >= len(held):  # a manifest may say many more rows than there are
            held = np.concatenate([held, np.zeros(high + 1 - len(held), bool)])
        held[ids] = True
        self.rows[trained] = held

    def facts(self, facts: PublicFacts) -> PublicFacts:
        """With the widths of the embeddings, if they were not told."""
        return facts if facts.widths else facts.model_copy(update={"widths": dict(self.widths)})

    def targets(self, here: Path) -> list[str]:
        """Write which rows are to be guessed: those trained on, and those only evaluated."""
        none = np.zeros(1, bool)
        train, other = self.rows.get(True, none), self.rows.get(False, none).copy()
        both = min(len(train), len(other))
        other[:both] &= ~train[:both]
        found = []
        for split, seen in (("train", train), ("test", other)):
            if seen.any():
                write_targets(here, split, torch.from_numpy(np.nonzero(seen)[0]))
                found.append(split)
        return found


Found = tuple[Fields, pa.RecordBatch]


def _read(
    stream: Iterable[tuple[dict[str, Any], pa.RecordBatch]],
    manifest: Manifest,
    observer: str,
    limits: Limits,
) -> Iterator[Found]:
    for meta, batch in stream:
        yield read_fields(meta, manifest.names, observer, limits, f"view/{observer}"), batch


def _write(
    here: Path, observer: str, stream: Iterable[Found]
) -> tuple[dict[str, int], dict[Route, Passed], int, int]:
    start = f"view/{observer}/"
    rows: dict[str, int] = defaultdict(int)
    have: dict[Route, Passed] = {}
    outs: dict[Stored, tuple[pq.ParquetWriter, list[pa.RecordBatch]]] = {}
    texts: list[dict[str, Any]] = []
    count = nonfinite = 0
    with open_writer(here / "messages.parquet.tmp", MESSAGES) as messages:
        for found, batch in stream:
            count_message(have, found)
            texts.append({f.name: getattr(found, f.name) for f in MESSAGES} | {"msg": count})
            if len(texts) >= 20_000:
                messages.write_table(pa.Table.from_pylist(texts, schema=MESSAGES))
                texts = []
            if len(batch):
                stored = Stored.parse(found.store)
                assert stored is not None
                if stored not in outs:
                    path = here / f"tensors-{stored}.parquet.tmp"
                    outs[stored] = (open_writer(path, build_tensor_schema(stored)), [])
                out, held = outs[stored]
                plain = batch.column("value").flatten().to_numpy(zero_copy_only=False)
                nonfinite += not np.isfinite(plain).all()
                number = pa.array([count] * len(batch), pa.int64())
                held.append(batch.set_column(0, batch.schema.field(0), number))
                rows[f"{start}tensors-{stored}.parquet"] += len(batch)
                if sum(len(b) for b in held) * stored.row_bytes >= _GROUP:
                    _flush(out, held)
            count += 1
        messages.write_table(pa.Table.from_pylist(texts, schema=MESSAGES))
    for out, held in outs.values():
        _flush(out, held)
        out.close()
    rows[f"{start}messages.parquet"] = count
    return dict(rows), have, count, nonfinite


def _flush(out: pq.ParquetWriter, held: list[pa.RecordBatch]) -> None:
    if held:
        table = pa.Table.from_batches(held)
        out.write_table(table, row_group_size=len(table))
        held.clear()


@dataclass
class Passed:
    """What is there of messages that go one way.

    Attributes:
        messages: how many.
        epochs: in which epochs.
        values: whether one is recorded with its numbers.
    """

    messages: int = 0
    epochs: set[int] = field(default_factory=set)
    values: bool = False


def count_message(have: dict[Route, Passed], found: Fields) -> None:
    """Count a message into what is there."""
    entry = have.setdefault(found.route, Passed())
    entry.messages += 1
    entry.values |= found.has_values
    if found.epoch is not None:
        entry.epochs.add(int(found.epoch))


def describe_have(seen: Mapping[Route, Passed], declared: Iterable[Have]) -> list[Have]:
    """What is there: as counted, with what the recorder declared about completeness."""
    declared = list(declared)
    said = {h.route: h.epochs for h in declared}
    found = [
        Have(
            **route._asdict(), messages=e.messages, values=e.values,
            epochs="all" if said.get(route) == "all" else sorted(e.epochs),
        )
        for route, e in seen.items()
    ]  # fmt: skip
    return found + [h for h in declared if h.route not in seen]


def _counts(folder: Path, observer: str) -> dict[str, int]:
    here = folder / "view" / observer
    return {
        f"view/{observer}/{p.name}": pq.ParquetFile(p).metadata.num_rows
        for p in sorted(here.glob("*.parquet"))
    }


def write_seal(folder: Path, rows: Mapping[str, int], limits: Limits, under: str = "") -> None:
    """Write ``seal.json`` over all files below `folder`/`under`; truth has a seal of its own."""
    base = folder / under if under else folder
    files = files_of(base, limits)
    entries = [
        SealedFile(
            path=path, bytes=size, rows=_rows(base, path, rows), sha256=digest(base, path)
        )
        for path, size in files.items()
        if path != "seal.json" and not path.startswith("truth/") and not path.endswith(".tmp")
    ]  # fmt: skip
    _replace(base / "seal.json", dump(Seal(format=FORMAT, version=VERSION, files=entries)))


def _rows(base: Path, path: str, known: Mapping[str, int]) -> int:
    if not path.endswith(".parquet"):
        return 0
    return known[path] if path in known else int(pq.ParquetFile(base / path).metadata.num_rows)
