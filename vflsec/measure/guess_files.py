"""Guesses as files: an attack's answers, frozen before anybody opens the truth.

A folder with ``answers.json`` (what was asked, of which trace, and what came of it) and one Parquet
table for each guess, each control's guess and each set of rows. No label is in it but what an
attack guessed, and a hash of the labels that it was granted; the rows are the trace's own.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from vflsec.core.guess import Guess, Truth
from vflsec.core.view import Facts, View
from vflsec.errors import ConfigError, TraceError
from vflsec.label import Classes, Quantity
from vflsec.measure.attack import Answer
from vflsec.measure.controls import Control
from vflsec.measure.prepared import Prepared
from vflsec.plugins import registry
from vflsec.runtime.atomic_files import name_when_whole
from vflsec.specs import AttackSpec, LedgerRow
from vflsec.trace.limits import Limits, check_new, list_files, read_bytes
from vflsec.trace.manifest import Manifest, load
from vflsec.trace.tables import (
    AMOUNTS,
    LABELS,
    ROWS,
    Stored,
    as_values,
    read_batches,
    read_rows,
    write_table,
)  # fmt: skip

_FORMAT, _VERSION = "vflsec-guesses", "1.0"


@dataclass(frozen=True)
class Source:
    """The trace that answers are about.

    Attributes:
        manifest: public facts.
        digest: tells it from others.
        granted: rows (k,) whose labels an adversary was granted, and a hash of those labels, by
            which a truth shows to be that of the same rows.
        gaps: by observer, why its recording carries no pass, a clause each.
        ledger: what was recorded of the messages sent.
        unread: (kind, name) of messages that no attack looked at.
    """

    manifest: Manifest
    digest: str = ""
    granted: Sequence[tuple[NDArray[np.int64], str]] = ()
    gaps: Mapping[str, Sequence[str]] = field(default_factory=dict)
    ledger: Sequence[LedgerRow] = ()
    unread: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True)
class Planted:
    """Answers to a leak that was planted over what a trace holds.

    Attributes:
        answers: of the attacks to which it can be planted.
        truth: the labels that were planted, of rows to guess; they were drawn, and tell nothing.
    """

    answers: Sequence[Answer]
    truth: Truth


@dataclass(frozen=True)
class Frozen:
    """Answers as they are read back.

    Attributes:
        sources: the traces.
        answers: for each source, its answers; their views hold rows to guess and nothing else.
        labelled: for each source, rows of training whose class shares are the level of chance.
        notes: what whoever made the guesses was told.
        planted: by source, its answers to a planted leak.
    """

    sources: Sequence[Source]
    answers: Sequence[Sequence[Answer]]
    labelled: Sequence[NDArray[np.int64]]
    notes: Sequence[str] = ()
    planted: Mapping[int, Planted] = field(default_factory=dict)


@dataclass
class _Out:
    folder: Path
    files: dict[str, str] = field(default_factory=dict)

    def rows(self, rows: NDArray[np.int64]) -> str:
        return self._once("rows", rows.tobytes(), lambda p: write_table(p, ROWS, {"row": rows}))

    def labels(self, truth: Truth) -> str:
        columns = {"row": truth.rows, "y": truth.values}
        key = truth.rows.tobytes() + truth.values.tobytes()
        stem, form = ("values", AMOUNTS) if truth.target == Quantity.target else ("labels", LABELS)
        return self._once(stem, key, lambda p: write_table(p, form, columns))

    def guess(self, guess: Guess) -> str:
        flat = guess.scores.reshape(len(guess.rows), -1)
        stored = Stored(max(1, flat.shape[1]), "f8")
        columns = {
            "row": guess.rows, "value": as_values(flat, stored),
            "group": _or_null(guess.group, len(flat), pa.int64()),
            "abstain": _or_null(guess.abstain, len(flat), pa.bool_()),
        }  # fmt: skip
        parts = [guess.rows, flat, guess.group, guess.abstain]
        key = b"".join(b"-" if p is None else np.ascontiguousarray(p).tobytes() for p in parts)
        return self._once(
            f"guess-{stored}", key, lambda p: write_table(p, _schema(stored), columns)
        )

    def _once(self, stem: str, key: bytes, write: Any) -> str:
        name = f"{stem}-{hashlib.sha256(key).hexdigest()[:24]}.parquet"
        if name not in self.files:
            write(self.folder / name)
            self.files[name] = hashlib.sha256((self.folder / name).read_bytes()).hexdigest()
        return name


def _or_null(value: Any, n: int, kind: pa.DataType) -> pa.Array:
    return pa.nulls(n, kind) if value is None else pa.array(value, kind)


def _schema(stored: Stored) -> pa.Schema:
    value = pa.list_(pa.float64(), stored.width)
    return pa.schema(
        [("row", pa.int64()), ("value", value), ("group", pa.int64()), ("abstain", pa.bool_())]
    )


def freeze(
    folder: str | Path,
    sources: Sequence[Source],
    answers: Sequence[Sequence[Answer]],
    notes: Sequence[str] = (),
    planted: Mapping[int, Planted] | None = None,
) -> Path:
    """Write answers and those of their controls; the folder must be new or empty.

    Args:
        planted: by source, answers to a planted leak.

    Raises:
        ConfigError: something is there.
    """
    folder = check_new(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with name_when_whole(folder.absolute()) as new:
        new.mkdir()
        _write(_Out(new), sources, answers, notes, planted or {})
        if folder.exists():
            folder.rmdir()
    return folder


def _write(
    out: _Out, sources: Sequence[Source], answers: Sequence[Sequence[Answer]],
    notes: Sequence[str], planted: Mapping[int, Planted],
) -> None:  # fmt: skip
    entries = []
    for i, (_, found) in enumerate(zip(sources, answers, strict=True)):
        entries += [_entry(out, i, a) for a in found]
    index = {
        "format": _FORMAT, "version": _VERSION, "notes": list(notes),
        "sources": [
            {"manifest": s.manifest.model_dump(), "digest": s.digest,
             "granted": [{"rows": out.rows(r), "sha256": h} for r, h in s.granted],
             "gaps": dict(s.gaps), "ledger": [astuple(r) for r in s.ledger],
             "unread": [list(u) for u in s.unread]}
            for s in sources
        ],
        "answers": entries,
        "planted": [
            {"source": i, "labels": out.labels(of.truth),
             "answers": [_entry(out, i, a) for a in of.answers]}
            for i, of in planted.items()
        ],
        "files": out.files,
    }  # fmt: skip
    text = json.dumps(
        index, indent=1, default=lambda v: v.tolist() if hasattr(v, "tolist") else list(v)
    )
    (out.folder / "answers.json").write_text(f"{text}\n")


def _entry(out: _Out, i: int, a: Answer) -> dict[str, Any]:
    view = a.view
    labelled = [view.targets["train"].cpu().numpy()] if "train" in view.targets else []
    if view.known is not None:
        labelled.append(view.known.rows.cpu().numpy())
    if view.aux:
        labelled.append(next(iter(view.aux.values()))[0].cpu().numpy())
    whole = np.unique(np.concatenate(labelled)) if labelled else np.empty(0, np.int64)
    ok = a.guess is not None
    return {
        "source": i, "attack": asdict(a.of.spec), "phase": a.phase, "status": a.status,
        "reason": a.reason, "classes": view.facts.classes,
        "guess": out.guess(a.guess) if a.guess is not None else None,
        "target": a.guess.target if a.guess is not None else a.of.attack.target,
        "notes": dict(a.guess.notes) if a.guess is not None else {},
        "targets": {s: out.rows(r.cpu().numpy()) for s, r in view.targets.items()} if ok else {},
        "labelled": out.rows(whole) if ok else None,
        "binary": ok and a.guess is not None and a.guess.scores.ndim == 1,
        "controls": [
            {"name": c.name, "cv": c.cv, "target": c.guess.target, "guess": out.guess(c.guess),
             "binary": c.guess.scores.ndim == 1}
            for c in (a.controls() if ok else ())
        ],
    }  # fmt: skip


class _In:
    def __init__(self, folder: Path, limits: Limits) -> None:
        self.folder, self.limits = folder, limits
        files = list_files(folder, limits)
        _find("answers.json", files)
        data = read_bytes(folder, "answers.json", 16 * limits.manifest_bytes)
        try:
            self.index: dict[str, Any] = json.loads(data)
            form, version = self.index["format"], str(self.index["version"])
            digests = dict(self.index["files"])
        except (ValueError, KeyError, TypeError, RecursionError):
            raise TraceError.damaged("answers.json", "its head") from None
        if form != _FORMAT or version.split(".")[0] != _VERSION.split(".")[0]:
            raise TraceError(f"answers.json: {form} {version} is not read here; 1.x is.")
        for name, digest in digests.items():
            _find(name, files)
            found = hashlib.sha256(read_bytes(folder, name, limits.file_bytes)).hexdigest()
            if found != digest:
                raise TraceError(f"{name}: was changed.")
        self._rows: dict[str, NDArray[np.int64]] = {}
        self.digests = digests

    def listed(self, name: str) -> None:
        """Refuse a table whose hash is not on record."""
        if name not in self.digests:
            raise TraceError(f"answers.json: {name[:80]} is not listed.")

    def rows(self, name: str) -> NDArray[np.int64]:
        if name not in self._rows:
            self.listed(name)
            self._rows[name] = read_rows(self.folder, name, ROWS, self.limits).ids
        return self._rows[name]

    def labels(self, name: str) -> Truth:
        self.listed(name)
        values = name.startswith("values-")
        found = read_rows(self.folder, name, AMOUNTS if values else LABELS, self.limits)
        return Truth((Quantity if values else Classes).target, found.ids, found.values)

    def guess(self, entry: dict[str, Any], notes: dict[str, Any]) -> Guess:
        name = str(entry["guess"])
        stored = Stored.parse("-".join(name.split("-")[1:3]))
        if stored is None:
            raise TraceError(f"{name}: is no guess.")
        self.listed(name)
        found = list(
            read_batches(self.folder, name, _schema(stored), self.limits, stored.row_bytes + 16)
        )
        table = pa.Table.from_batches(found, schema=_schema(stored)).combine_chunks()
        column = {n: table.column(n).combine_chunks() for n in table.schema.names}
        x = column["value"].flatten().to_numpy(zero_copy_only=False).reshape(-1, stored.width)
        kept = {
            n: None if column[n].null_count else column[n].to_numpy(zero_copy_only=False)
            for n in ("group", "abstain")
        }
        scores = x[:, 0] if entry["binary"] else x
        if not np.isfinite(x).all():
            raise TraceError(f"{name}: scores are not finite.")
        return Guess(str(entry["target"]), column["row"].to_numpy(), scores, **kept, notes=notes)


def thaw(folder: str | Path, limits: Limits | None = None) -> Frozen:
    """Read frozen answers.

    Raises:
        TraceError: the folder holds none, or they were changed.
    """
    read = _In(Path(folder), limits or Limits())
    try:
        return _frozen(read)
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as why:
        if isinstance(why, TraceError | ConfigError):  # such as an attack that is not installed
            raise
        raise TraceError.damaged("answers.json", f"{type(why).__name__}: {why}") from None


def _find(name: str, files: Collection[str]) -> None:
    """Refuse a folder that lacks a file."""
    if name not in files:
        raise TraceError(f"{name}: is missing.")


def _hold(name: str, value: object, holds: object) -> None:
    """Refuse what vflsec would not have written.

    Raises:
        ValueError: naming it.
    """
    if not holds:
        raise ValueError(f"{name}: {value!r:.60}")


def _frozen(read: _In) -> Frozen:
    """What the index of a folder says.

    Raises:
        ValueError: it says what cannot be, as do the others that :func:`thaw` catches.
    """
    sources = [_source(read, s) for s in read.index["sources"]]
    _one_run_each(sources, read.limits)
    said = read.index.get("notes", [])
    _hold("notes", said, isinstance(said, list) and all(isinstance(n, str) for n in said))
    answers: list[list[Answer]] = [[] for _ in sources]
    for i, answer in _answers(read, read.index["answers"], sources):
        answers[i].append(answer)
    planted = {}
    for of in read.index.get("planted", ()):
        mine = _answers(read, of["answers"], sources)
        planted[_place(of, sources)] = Planted([a for _, a in mine], read.labels(of["labels"]))
    return Frozen(sources, answers, _labelled(read, len(sources)), said, planted)


def _source(read: _In, entry: Mapping[str, Any]) -> Source:
    return Source(
        load(json.dumps(entry["manifest"]).encode(), Manifest, "answers.json"),
        str(entry["digest"]),
        [(read.rows(g["rows"]), str(g["sha256"])) for g in entry.get("granted", ())],
        {str(who): [str(c) for c in of] for who, of in entry.get("gaps", {}).items()},
        [_ledger_row(r) for r in entry.get("ledger", ())],
        [(str(kind), str(name)) for kind, name in entry.get("unread", ())],
    )


def _labelled(read: _In, count: int) -> list[NDArray[np.int64]]:
    """For each source, rows of training whose class shares are the level of chance."""
    found: list[list[NDArray[np.int64]]] = [[np.empty(0, np.int64)] for _ in range(count)]
    for entry in read.index["answers"]:
        if entry["labelled"]:
            found[entry["source"]].append(read.rows(entry["labelled"]))
    return [np.unique(np.concatenate(rows)) for rows in found]


def _place(entry: Mapping[str, Any], sources: Sequence[Source]) -> int:
    i = entry["source"]
    _hold("source", i, type(i) is int and 0 <= i < len(sources))
    return int(i)


def _answers(
    read: _In, entries: Sequence[dict[str, Any]], sources: Sequence[Source]
) -> list[tuple[int, Answer]]:
    """Answers and the source of each.

    Raises:
        ValueError: one attack answers twice.
    """
    out, asked = [], set()
    for entry in entries:
        i = _place(entry, sources)
        answer = _answer(read, entry, sources[i])
        which = (i, answer.of.spec.key, answer.phase)
        _hold("repeated", answer.of.spec.label, which not in asked)
        asked.add(which)
        out.append((i, answer))
    return out


def _ledger_row(row: Sequence[Any]) -> LedgerRow:
    """One row of the messages sent.

    Raises:
        ValueError: it is none.
    """
    phase, kind, name, sender, receiver, *counts = row
    _hold("ledger", counts, len(counts) == 4 and all(type(c) is int and c >= 0 for c in counts))
    return LedgerRow(str(phase), str(kind), str(name), str(sender), str(receiver), *counts)


def _one_run_each(sources: Sequence[Source], limits: Limits) -> None:
    """Refuse a run that stands there twice: a copy is no repetition."""
    seen = set()
    for source in sources:
        m = source.manifest
        key = tuple(sorted(m.run.model_dump().items(), key=lambda kv: kv[0]))
        if key in seen:
            raise ValueError(f"two sources are the same run (seed {m.run.seed})")
        seen.add(key)
        if m.rows > limits.rows:
            raise ValueError(f"rows {m.rows}; at most {limits.rows} are read")


def _spec(entry: dict[str, Any], manifest: Manifest) -> AttackSpec:
    """What was asked, with fields of the kinds that they have.

    Raises:
        ValueError: a field is none.
    """
    fields = dict(entry["attack"])
    who = fields["adversary"]
    _hold("adversary", who, isinstance(who, list) and who and set(who) <= set(manifest.names))
    for name in ("known_rows", "aux_rows"):
        _hold(name, fields[name], type(fields[name]) is int and fields[name] >= 0)
    for name in ("phase", "status", "reason"):
        _hold(name, entry[name], isinstance(entry[name], str))
    guess, asked = entry["guess"], fields["of_label"]
    _hold("status", entry["status"], (entry["status"] == "ok") == bool(guess))
    _hold("of_label", asked, asked in ("", *manifest.label.questions))
    classes = 2 if asked else manifest.classes
    _hold("classes", entry["classes"], classes is None or not guess or entry["classes"] == classes)
    scores = [float(c["cv"]) for c in entry["controls"]]  # NaN where there is none
    _hold("cv", scores, not any(map(math.isinf, scores)))
    return AttackSpec(**{**fields, "adversary": tuple(who)})


def _answer(read: _In, entry: dict[str, Any], source: Source) -> Answer:
    import torch

    spec = _spec(entry, source.manifest)
    attack = registry.attacks.create(spec.name, spec.params)
    targets = {s: torch.from_numpy(read.rows(n).copy()) for s, n in entry["targets"].items()}
    names = source.manifest.names
    facts = Facts(
        source.manifest.run.algorithm, entry["phase"], source.manifest.active, names,
        int(entry["classes"]),
    )  # fmt: skip
    view = View(spec.adversary, {}, {}, {}, {}, {}, facts, targets)
    guess = read.guess(entry, dict(entry["notes"])) if entry["guess"] else None
    found = [Control(str(c["name"]), read.guess(c, {}), float(c["cv"])) for c in entry["controls"]]
    of = Prepared(spec, attack)
    if guess is not None:
        of = of.resolved(guess)
    return Answer(
        of, str(entry["phase"]), view, guess, str(entry["status"]), str(entry["reason"]),
        lambda: found,
    )  # fmt: skip
