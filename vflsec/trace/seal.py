"""Turns a recorded stream into Parquet files with counts and hashes outside them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray

from vflsec.core.message_kinds import find_kinds
from vflsec.errors import TraceError
from vflsec.trace.completeness import STOPPED, Passed
from vflsec.trace.limits import (
    ASTRAY,
    COPY,
    Limits,
    list_files,
    open_file,
)
from vflsec.trace.manifest import (
    FORMAT,
    VERSION,
    Manifest,
    ObserverInfo,
    PublicFacts,
    Seal,
    SealedFile,
    read_json,
    write_json,
)
from vflsec.trace.segments import RAW, Torn, read_segments
from vflsec.trace.tables import (
    MESSAGES,
    Fields,
    Found,
    Stored,
    build_tensor_schema,
    check_rows,
    find_finite,
    open_writer,
    write_targets,
)
from vflsec.trace.writer import SKIPS, STOPS, WAITS, find_left, is_recording

_EVERY_ROW = find_kinds(lambda kind: kind.has_every_row)

_WHY = {
    STOPS: "stopped recording before the run did",
    WAITS: "was stopped while messages may have waited to be written",
}
_GROUP = 8 << 20  # bytes of a row group, which is what a reader holds at once


def hash_file(folder: Path, name: str) -> str:
    """SHA-256 of a file."""
    with open_file(folder, name) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def seal(folder: str | Path, *, ended: bool = False) -> list[str]:
    """Seal a recorded trace; of one that a killed process left, up to its last whole message.

    Args:
        folder: of the trace.
        ended: the run came to its end, and its processes were stopped only then, so that a stream
            of whole messages without an end mark lacks nothing.

    Returns:
        what was left out, one sentence each.

    Raises:
        TraceError: it is sealed already, or damaged otherwise than by stopping early.
    """
    folder, limits = Path(folder), Limits()
    files = [f for f in list_files(folder, limits) if not f.endswith(".tmp")]
    if "seal.json" in files:
        raise TraceError(f"{folder}: is sealed already.")
    manifest = read_json(folder, "manifest.json", Manifest, limits)
    observers = sorted({f.split("/")[1] for f in files if f.startswith("view/")})
    for observer in observers:
        if not ended and is_recording(folder / "view" / observer, here=False):
            raise TraceError(f"{folder}: is being recorded. Seal it when that has ended.")
    torn = Torn()
    for observer in observers:
        _seal_observer(folder, observer, files, manifest, limits, torn, ended)
    if not torn.notes and (not observers or manifest.status == "partial"):
        torn.notes.append(f"{STOPPED}.")
    status = "partial" if torn.notes else "sealed"  # stands before segments are removed
    write_json(folder / "manifest.json", manifest.model_copy(update={"status": status}))
    for observer in observers:
        _keep_tables(folder / "view" / observer)
    write_seal(folder, limits)
    return torn.notes


def _seal_observer(
    folder: Path, observer: str, files: list[str], manifest: Manifest, limits: Limits, torn: Torn,
    ended: bool,
) -> None:  # fmt: skip
    here = folder / "view" / observer
    if (here / "messages.parquet").exists():  # sealing was stopped on its last steps
        return
    where = f"view/{observer}/observer.json"
    info = read_json(folder, where, ObserverInfo, limits)
    _check_tables(folder, observer, files, info)
    before = len(torn.notes)
    seen = _Seen(manifest.rows)
    stream = read_segments(folder, files, manifest, observer, limits, torn)
    passed, count, nonfinite = _write(here, seen.watched(stream))
    left = find_left(here) or ([] if count or info.complete else [("0000", set())])
    _note_what_is_missing(f"view/{observer}", left, torn)
    if ended:
        torn.notes = [n for n in torn.notes if n not in torn.unended]
    moments = [
        m.model_copy(
            update={"messages": min(m.messages, count), "facts": seen.facts(m.facts)}
        )
        for m in info.moments
    ]  # fmt: skip
    said = info.complete or (ended and not info.have)  # what a process says at its end stands
    whole = said and len(torn.notes) == before and not any(SKIPS in w for _, w in left)
    kept = passed.have(info.have)
    if ended and whole and not info.have:
        kept = [h.model_copy(update={"epochs": "all"}) for h in kept]
    targets = info.targets or seen.targets(here)
    update = {"have": kept, "moments": moments, "complete": whole, "nonfinite": nonfinite}
    write_json(folder / where, info.model_copy(update={**update, "targets": targets}))


def _note_what_is_missing(where: str, left: Iterable[tuple[str, set[str]]], torn: Torn) -> None:
    """A note of each process that recorded less than passed, but for epochs that it left out."""
    for number, words in left:
        if words != {SKIPS}:
            why = next((_WHY[w] for w in _WHY if w in words), "wrote no message")
            torn.add(f"{where}: process {number} {why}.", unended=not words)


def _check_tables(folder: Path, observer: str, files: list[str], info: ObserverInfo) -> None:
    """Refuse what could never be read once it is sealed."""
    own = ["own"] if info.own != "none" else []
    for name in (*own, *(["known"] if info.known else []), *(f"aux-{p}" for p in info.aux)):
        table = f"view/{observer}/{name}"
        if not any(f.startswith((f"{table}-", f"{table}.")) for f in files):
            raise TraceError(f"{folder}: {table} is missing. {COPY}")


def _keep_tables(here: Path) -> None:
    """Give the tables of messages their names, and remove what they were made of."""
    new = here / "messages.parquet.tmp"
    for path in here.glob("*.parquet.tmp"):
        if path != new:
            path.replace(path.with_suffix(""))
    if new.exists():
        new.replace(new.with_suffix(""))
    for path in here.iterdir():
        if path.suffix == ".tmp" or RAW.fullmatch(path.name):
            path.unlink(missing_ok=True)


class _Seen:
    """What the messages themselves tell of a recording that nobody could describe at its end."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.rows: dict[bool, NDArray[np.bool_]] = {}
        self.widths: dict[str, int] = {}

    def watched(self, stream: Iterable[Found]) -> Iterator[Found]:
        """The messages as they are."""
        for found, batch in stream:
            if found.kind in _EVERY_ROW and batch is not None:
                ids = batch.column("row")
                if len(ids) and not ids.null_count:
                    trained = found.phase not in ("eval", "predict")
                    self._mark(trained, ids.to_numpy())
                if found.kind == "embedding" and found.n_rows:
                    self.widths[found.sender] = math.prod(found.shape[1:]) or 1
            yield found, batch

    def _mark(self, trained: bool, ids: NDArray[np.int64]) -> None:
        check_rows("messages", ids, self.n)
        high = int(ids.max())
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


def _write(here: Path, stream: Iterable[Found]) -> tuple[Passed, int, int]:
    """Write the tables of messages; returns what is there of them, how many, and not finite."""
    passed = Passed()
    outs: dict[Stored, tuple[pq.ParquetWriter, list[pa.RecordBatch]]] = {}
    texts: list[Fields] = []
    count = nonfinite = 0
    with open_writer(here / "messages.parquet.tmp", MESSAGES) as messages:
        for count, (found, batch) in enumerate(stream, 1):
            passed.add(found)
            texts.append(found.model_copy(update={"msg": count - 1}))
            if len(texts) >= 20_000:
                _flush_texts(messages, texts)
            if batch is not None and len(batch):
                stored = found.stored
                if stored not in outs:
                    path = here / f"tensors-{stored}.parquet.tmp"
                    outs[stored] = (open_writer(path, build_tensor_schema(stored)), [])
                out, held = outs[stored]
                plain = batch.column("value").flatten().to_numpy(zero_copy_only=False)
                nonfinite += not find_finite(found.kind, plain).all()
                number = pa.array([count - 1] * len(batch), pa.int64())
                held.append(batch.set_column(0, batch.schema.field(0), number))
                if sum(len(b) for b in held) * stored.row_bytes >= _GROUP:
                    _flush(out, held)
        _flush_texts(messages, texts)
    for out, held in outs.values():
        _flush(out, held)
        out.close()
    return passed, count, nonfinite


def _flush_texts(out: pq.ParquetWriter, texts: list[Fields]) -> None:
    out.write_table(pa.Table.from_pylist([f.model_dump() for f in texts], schema=MESSAGES))
    texts.clear()


def _flush(out: pq.ParquetWriter, held: list[pa.RecordBatch]) -> None:
    if held:
        table = pa.Table.from_batches(held)
        out.write_table(table, row_group_size=len(table))
        held.clear()


def write_seal(folder: Path, limits: Limits) -> None:
    """Write ``seal.json`` over all files below `folder`; truth has a seal of its own."""
    entries = [
        SealedFile(
            path=path, bytes=size, sha256=hash_file(folder, path),
            rows=_count_rows(folder, path) if path.endswith(".parquet") else 0,
        )
        for path, size in list_files(folder, limits).items()
        if path != "seal.json" and not path.startswith("truth/") and not path.endswith(".tmp")
    ]  # fmt: skip
    write_json(folder / "seal.json", Seal(format=FORMAT, version=VERSION, files=entries))


def _count_rows(folder: Path, path: str) -> int:
    try:
        return int(pq.read_metadata(folder / path).num_rows)
    except pa.ArrowException as why:
        remedy = "Remove it, and seal what is left."
        raise TraceError.unreadable(folder / path, why, remedy) from None


def check_seal(folder: Path, files: dict[str, int], limits: Limits, *, verify: bool = True) -> Seal:
    """Compare a folder with its seal.

    Raises:
        TraceError: a file is missing, new, of another size, or has another hash.
    """
    seal = read_json(folder, "seal.json", Seal, limits, times=16)
    listed = {f.path: f for f in seal.files}
    there = {f: s for f, s in files.items() if f != "seal.json"}
    for path in sorted(set(listed) - set(there)):
        raise TraceError(f"{path}: is missing. {COPY}")
    for path in sorted(set(there) - set(listed)):
        raise TraceError(f"{path}: is not in the seal. {ASTRAY}")
    for path, entry in listed.items():
        if there[path] != entry.bytes:
            raise TraceError.must(path, f"have {entry.bytes} bytes", there[path], COPY)
        if verify and hash_file(folder, path) != entry.sha256:
            raise TraceError(f"{path}: has another hash than the seal. {COPY}")
    return seal
