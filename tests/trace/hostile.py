"""Damaged and hostile traces: each entry is one change to a good trace and what must be said.

``HOSTILE`` maps a name to (change, words of the error); a change gets the folder of a sealed trace.
``reseal`` makes the hashes right again, so that what is tested is the check behind them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pickle
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from vflsec.core.view import Known
from vflsec.nn.weights import write_weights
from vflsec.trace.manifest import FORMAT, VERSION, Manifest, ObserverInfo, PartyInfo, Run
from vflsec.trace.seal import seal
from vflsec.trace.segments import META
from vflsec.trace.tables import (
    ROWS,
    Stored,
    as_values,
    build_tensor_schema,
    open_writer,
    write_known,
    write_vectors,
)
from vflsec.trace.truth import write_truth
from vflsec.trace.writer import Heading, Timing, Writer, begin, plan_messages

OBSERVER = "bank"
HERE = f"view/{OBSERVER}"
N, D = 40, 4
STORED = Stored(D, "f4")


def record(folder: Path, *, steps: int = 5, sealed: bool = True) -> Path:
    """A good small trace: `steps` steps of 8 rows, embedding and gradient."""
    parties = [PartyInfo(name="shop", role="active"), PartyInfo(name=OBSERVER, role="passive")]
    begin(
        folder,
        Manifest(
            format=FORMAT, version=VERSION, status="recording", parties=parties, rows=N,
            classes=2, run=Run(dataset="toy", algorithm="splitnn"),
        ),
    )  # fmt: skip
    g = np.random.default_rng(0)
    out = Writer(folder, OBSERVER)
    for step in range(steps):
        rows = np.arange(step * 8, step * 8 + 8)
        for kind, ends in (("embedding", (OBSERVER, "shop")), ("gradient", ("shop", OBSERVER))):
            x = g.normal(size=(8, D)).astype(np.float32)
            heading = Heading(kind, *ends, ((8, D), "f"), loss_reduction="mean")
            out.put(plan_messages(heading), x, rows, Timing(0, step))
    if not sealed:
        return folder
    out.close()
    write_known(folder / HERE, Known(torch.arange(4), torch.tensor([0, 1, 0, 1])))
    write_weights(folder / HERE / "model-train-bank-bottom.safetensors", {"w": torch.zeros(2, 2)})
    out.describe(ObserverInfo(party=OBSERVER, known=4, complete=True))
    write_truth(folder, np.arange(N), np.arange(N) % 2)
    seal(folder)
    return folder


def reseal(folder: Path) -> None:
    """A seal that agrees with whatever is there, as a forger would write it."""
    files = []
    for path in sorted(p for p in folder.rglob("*") if p.is_file() and not p.is_symlink()):
        name = path.relative_to(folder).as_posix()
        if name == "seal.json" or name.startswith("truth/"):
            continue
        data, rows = path.read_bytes(), 0
        if name.endswith(".parquet"):
            with contextlib.suppress(pa.ArrowException):
                rows = pq.read_metadata(path).num_rows
        digest = hashlib.sha256(data).hexdigest()
        files.append({"path": name, "bytes": len(data), "rows": rows, "sha256": digest})
    seal = {"format": FORMAT, "version": VERSION, "files": files}
    (folder / "seal.json").write_text(json.dumps(seal))


def _json(name: str, **changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / name
        value = json.loads(path.read_text())
        for key, new in changes.items():
            if new is None:
                value.pop(key)
            else:
                value[key] = new
        path.write_text(json.dumps(value))
        reseal(folder)

    return change


def _text(name: str, data: bytes) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        reseal(folder)

    return change


def _table(name: str, edit: Callable[[pa.Table], pa.Table], **how: Any) -> Callable[[Path], None]:
    """Read a table, change it, write it back in the way of a trace."""

    def change(folder: Path) -> None:
        path = folder / name
        table = edit(pq.read_table(path))
        plain: dict[str, Any] = {
            "compression": "NONE", "use_dictionary": False, "write_page_checksum": True,
        }  # fmt: skip
        pq.write_table(table, path, **(plain | how))
        reseal(folder)

    return change


def _column(name: str, column: str, edit: Callable[[list[Any]], list[Any]]) -> Any:
    def apply(table: pa.Table) -> pa.Table:
        i = table.schema.get_field_index(column)
        field = table.schema.field(i)
        return table.set_column(i, field, pa.array(edit(table[column].to_pylist()), field.type))

    return _table(name, apply)


def _first(value: Any) -> Callable[[list[Any]], list[Any]]:
    return lambda old: [value, *old[1:]]


def _cut(folder: Path) -> None:
    data = (folder / TENSORS).read_bytes()
    (folder / TENSORS).write_bytes(data[: int(len(data) * 0.6)])


def _flip(folder: Path) -> None:
    data = bytearray((folder / TENSORS).read_bytes())
    data[len(data) // 2] ^= 1
    (folder / TENSORS).write_bytes(bytes(data))


def _then(*changes: Callable[[Path], None]) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        for one in changes:
            one(folder)

    return change


def _link(folder: Path) -> None:
    (folder / HERE / "known.parquet").unlink()
    os.symlink("/etc/passwd", folder / HERE / "known.parquet")


def _pipe(folder: Path) -> None:
    os.mkfifo(folder / HERE / "pipe.parquet")


def _archive(folder: Path) -> None:
    shutil.rmtree(folder)
    with zipfile.ZipFile(folder, "w") as out:
        out.writestr("../../manifest.json", b"{}")


def _header(entries: dict[str, Any], body: bytes = b"") -> Callable[[Path], None]:
    text = json.dumps(entries).encode()
    return _text(WEIGHTS, len(text).to_bytes(8, "little") + text + body)


def _zeros(n: int) -> pa.Table:
    """Rows of one message, all zeros."""
    schema, ids = build_tensor_schema(STORED), np.zeros(n, np.int64)
    x = as_values(np.zeros((n, D), np.float32), STORED)
    return pa.table([pa.array(c, f.type) for c, f in zip((ids,) * 3, schema, strict=False)] + [x],
                    schema=schema)  # fmt: skip


def _rows_bomb(folder: Path) -> None:
    """A few kilobytes that decode to 100 MB of zeros, by run lengths."""
    n = 2_500_000
    how: dict[str, Any] = {"compression": "NONE", "use_dictionary": True, "row_group_size": n}
    pq.write_table(_zeros(n), folder / TENSORS, **how)
    reseal(folder)


def _wide(folder: Path) -> None:
    stored = Stored(90_000, "f4")
    with open_writer(
        folder / HERE / f"tensors-{stored}.parquet", build_tensor_schema(stored)
    ) as out:
        out.write_table(pa.Table.from_pylist([], schema=build_tensor_schema(stored)))
    edit = _column(f"{HERE}/messages.parquet", "store", _first(str(stored)))
    edit(folder)
    _column(f"{HERE}/messages.parquet", "shape", _first([8, 90_000]))(folder)


def _nan(folder: Path) -> None:
    def apply(table: pa.Table) -> pa.Table:
        flat = table["value"].combine_chunks().flatten().to_numpy().copy()
        flat[5] = np.nan
        return table.set_column(3, table.schema.field(3), as_values(flat.reshape(-1, D), STORED))

    _table(TENSORS, apply)(folder)


def _list_values(folder: Path) -> None:
    def apply(table: pa.Table) -> pa.Table:
        return table.set_column(3, "value", table["value"].cast(pa.list_(pa.float32())))

    _table(TENSORS, apply)(folder)


def _raw(change: Callable[[Path], None]) -> Callable[[Path], None]:
    """On a trace as its recorder left it."""

    def apply(folder: Path) -> None:
        shutil.rmtree(folder)
        record(folder, sealed=False)
        change(folder / HERE / f"raw-0000-d{D}-f4.arrows")

    return apply


def _compressed(path: Path) -> None:
    (batch,) = _zeros(100_000).to_batches()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(str(path), batch.schema, options=options) as out:
        out.write_batch(batch, custom_metadata={META: b'{"msg": 0}'})


def _no_metadata(path: Path) -> None:
    with pa.ipc.new_stream(str(path), build_tensor_schema(STORED)) as out:
        out.write_batch(pa.RecordBatch.from_pylist([], schema=build_tensor_schema(STORED)))


def _garbage(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:2000] + b"\x00garbage" * 40 + data[2320:])


def _huge_frame(path: Path) -> None:
    path.write_bytes(b"\xff\xff\xff\xff" + (1 << 30).to_bytes(4, "little") + b"\x00" * 64)


def _other_schema(path: Path) -> None:
    with pa.ipc.new_stream(str(path), ROWS) as out:
        out.write_batch(pa.RecordBatch.from_pylist([{"row": 1}], schema=ROWS))


def _many(folder: Path) -> None:
    for i in range(60):
        (folder / HERE / f"update-{i:06d}.safetensors").touch()


def _counts(folder: Path) -> None:
    value = json.loads((folder / "seal.json").read_text())
    for entry in value["files"]:
        entry["rows"] += entry["path"] == MESSAGES_FILE
    (folder / "seal.json").write_text(json.dumps(value))


def _own(folder: Path) -> None:
    write_vectors(folder / HERE, "own", torch.tensor([0]), torch.zeros(1, 3))
    _json(f"{HERE}/observer.json", own="some")(folder)


def _known(rows: list[int], labels: list[int]) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        write_known(folder / HERE, Known(torch.tensor(rows), torch.tensor(labels)))
        reseal(folder)

    return change


TENSORS = f"{HERE}/tensors-d{D}-f4.parquet"
MESSAGES_FILE = f"{HERE}/messages.parquet"
BOTTOM = {"party": OBSERVER, "part": "bottom", "file": "model-train-bank-bottom.safetensors"}
LAYOUT = {OBSERVER: {"names": ["a", "b", "c"], "cardinalities": [0, 0, 0], "shape": [3]}}


WEIGHTS = f"{HERE}/model-train-bank-bottom.safetensors"


def _moment(**model: Any) -> list[dict[str, Any]]:
    return [{"phase": "train", "messages": 10, "models": [BOTTOM | model]}]


def _weights(change: Callable[[Path], None]) -> Callable[[Path], None]:
    """On a trace whose observer has a model."""
    return _then(_json(f"{HERE}/observer.json", moments=_moment(), layouts=LAYOUT), change)


HOSTILE: dict[str, tuple[Callable[[Path], None], str]] = {
    # the folder
    "an archive": (_archive, "is no folder"),
    "nothing": (lambda f: (shutil.rmtree(f), f.mkdir())[0], "manifest.json"),
    "a link": (_link, "link"),
    "a pipe": (_pipe, "special file"),
    "a hidden file": (_text(".hidden", b""), "no file of a trace"),
    "a name with a newline": (_text(f"{HERE}/a\nb", b""), "no file of a trace"),
    "too deep": (_text(f"{HERE}/deeper/still/a.json", b""), "deep"),
    "truth in the attacker's folder": (_text(f"{HERE}/labels.parquet", b""), "belong into truth/"),
    "truth by another name": (_text(f"{HERE}/truth-2.parquet", b""), "belong into truth/"),
    "a file that belongs nowhere": (_text(f"{HERE}/notes.txt", b"y = 1"), "no file of a trace"),
    "pickled numbers": (_text(f"{HERE}/tensors.npz", b"PK\x03\x04"), "no file of a trace"),
    "a checkpoint": (_text(f"{HERE}/model.pt", b"\x80\x02"), "no file of a trace"),
    "many files": (_many, "files must be at most 40"),
    # the seal
    "cut": (_cut, "bytes, got"),
    "a flipped bit": (_flip, "another hash"),
    "a file that went missing": (lambda f: (f / MESSAGES_FILE).unlink(), "is missing"),
    "a file that came along": (
        lambda f: shutil.copy(f / HERE / "known.parquet", f / HERE / "targets-test.parquet"),
        "not in the seal",
    ),
    "a count of other rows": (_counts, "11 rows"),
    "a seal that is none": (lambda f: (f / "seal.json").write_text("[]") and None, "JSON object"),
    # the manifest
    "another format": (_json("manifest.json", format="croissant"), "format must"),
    "a version of tomorrow": (_json("manifest.json", version="2.0"), "got 2.0"),
    "no parties": (_json("manifest.json", parties=None), "parties"),
    "a party twice": (
        _json("manifest.json", parties=[{"name": "a", "role": r} for r in ("active", "passive")]),
        "different names",
    ),
    "a party with a path": (
        _json("manifest.json", parties=[{"name": "../bank", "role": "active"}]), "parties",
    ),
    "rows that are no number": (_json("manifest.json", rows="many"), "rows"),
    "too many rows": (_json("manifest.json", rows=10**12), "at most"),
    "rows that no byte tells of": (_json("manifest.json", rows=9 * 10**8), "Raise Limits.named"),
    "NaN in JSON": (_text("manifest.json", b'{"rows": NaN}'), "number NaN"),
    "a key twice": (_text("manifest.json", b'{"rows": 1, "rows": 2}'), "'rows' twice"),
    "nested JSON": (_text("manifest.json", b"[" * 100_000), "JSON"),
    "a manifest of 2 MB": (_text("manifest.json", b" " * (2 << 20)), "bytes"),
    "no JSON": (_text("manifest.json", b"PK\x03\x04"), "damaged"),
    "an observer who is no party": (
        lambda f: ((f / HERE).rename(f / "view/stranger"), reseal(f))[1], "stranger",
    ),
    # messages
    "no Parquet": (_text(MESSAGES_FILE, b"PAR1" + b"\x00" * 100), "Parquet"),
    "a missing column": (_table(MESSAGES_FILE, lambda t: t.drop(["kind"])), "column 'kind'"),
    "a column of another type": (
        _table(MESSAGES_FILE, lambda t: t.set_column(0, "msg", t["msg"].cast(pa.float64()))),
        "must be int64",
    ),
    "compressed": (_table(MESSAGES_FILE, lambda t: t, compression="zstd"), "compressed"),
    "messages out of order": (_column(MESSAGES_FILE, "msg", _first(7)), "message 0"),
    "a sender from outside": (_column(MESSAGES_FILE, "sender", _first("mallory")), "got 'mallory'"),
    "somebody else's message": (
        _then(_column(MESSAGES_FILE, "sender", _first("shop")),
              _column(MESSAGES_FILE, "receiver", _first("shop"))),
        "pass between bank",
    ),
    "a negative epoch": (_column(MESSAGES_FILE, "epoch", _first(-1)), "epoch: Input should be gr"),
    "an epoch beyond all": (_column(MESSAGES_FILE, "epoch", _first(10**6)), "at most 10000"),
    "no shape": (_column(MESSAGES_FILE, "shape", _first(None)), "shape: Input should"),
    "a shape of other rows": (_column(MESSAGES_FILE, "shape", _first([9, D])), "must fit"),
    "a shape of other width": (_column(MESSAGES_FILE, "shape", _first([8, 5])), "must fit d"),
    "a grad_scale of zero": (_column(MESSAGES_FILE, "grad_scale", _first(0.0)), "grad_scale"),
    "a grad_scale of infinity": (
        _column(MESSAGES_FILE, "grad_scale", _first(float("inf"))), "grad_scale",
    ),
    "a reduction of null": (
        _column(MESSAGES_FILE, "loss_reduction", _first(None)), "loss_reduction",
    ),
    "a store with a path": (_column(MESSAGES_FILE, "store", _first("../../x")), "store: String"),
    "rows wider than all": (_wide, "at most 65536"),
    # payload
    "rows that do not match": (_table(TENSORS, lambda t: t.slice(0, 75)), "rows, got"),
    "rows of no message": (
        _table(TENSORS, lambda t: pa.concat_tables([t, t.slice(0, 8)])), "rows of no message",
    ),
    "positions twice": (_column(TENSORS, "pos", _first(3)), "count pos"),
    "a row outside": (_column(TENSORS, "row", _first(10**9)), "be 0 to 39"),
    "a negative row": (_column(TENSORS, "row", _first(-1)), "be 0 to 39"),
    "a row of null": (_column(TENSORS, "row", _first(None)), "all row ids"),
    "NaN": (_nan, "finite"),
    "ragged values": (_list_values, "must be fixed_size_list"),
    "a bomb of run lengths": (_rows_bomb, "batch_bytes must be"),
    "no payload file": (
        lambda f: ((f / TENSORS).unlink(), reseal(f))[1], "is missing",
    ),
    # what the observer has beside messages
    "an unknown layout": (_own, "layout of bank"),
    "known rows outside": (_known([0, 1, 2, 99], [0, 1, 0, 1]), "be 0 to 39"),
    "known rows twice": (_known([0, 1, 2, 2], [0, 1, 0, 1]), "each row once"),
    "labels beyond the classes": (_known([0, 1, 2, 3], [0, 1, 0, 7]), "be 0 to 1"),
    "more known rows than granted": (_known([0, 1, 2, 3, 4], [0, 1, 0, 1, 0]), "have 4 rows"),
    "a prior of other classes": (
        _json(f"{HERE}/observer.json", prior=[0.2, 0.3, 0.5]), "be 2 shares",
    ),
    "a prior that adds up to 2": (_json(f"{HERE}/observer.json", prior=[1.0, 1.0]), "add up to 1"),
    "a prior of NaN": (
        _text(f"{HERE}/observer.json", b'{"party": "bank", "prior": [NaN, 1]}'), "number NaN",
    ),
    "a grant that is not there": (_json(f"{HERE}/observer.json", aux=["shop"], layouts={
        "shop": {"names": ["a"], "cardinalities": [0], "shape": [1]}}), "is missing"),
    "a negative claim": (_json("manifest.json", claim={"epsilon": -1.0}), "claim"),
    "a claim of infinity": (
        _text("manifest.json", b'{"claim": {"epsilon": 1e999}}'), "manifest.json",
    ),
    "an embedding table of a gigabyte": (
        _json(f"{HERE}/observer.json", layouts={OBSERVER: {
            "names": ["a", "b", "c"], "cardinalities": [9, 9, 0], "shape": [3]}},
            moments=_moment(layers={"layer": "TabularInput", "width": 1 << 28})),
        "width: Input should be less than or equal to 1024",
    ),
    "a pair of text": (_table(MESSAGES_FILE, lambda t: t.set_column(
        t.schema.get_field_index("pair"), "pair", pa.array(["0"] * len(t)))), "must be int64"),
    "a lock by another name": (_text(f"{HERE}/process-0000.lock", b""), "no file of a trace"),
    "observer of another name": (_json(f"{HERE}/observer.json", party="shop"), "be 'bank'"),
    # weights
    "a pickle as weights": (_weights(_text(WEIGHTS, pickle.dumps({"a": 1}))), "pickle"),
    "a header of 100 MB": (
        _weights(_text(WEIGHTS, (100 << 20).to_bytes(8, "little") + b"{}")),
        "its header",
    ),
    "weights that overlap": (
        _weights(_header({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
                       "b": {"dtype": "F32", "shape": [1], "data_offsets": [2, 6]}}, b"\x00" * 6)),
        "offsets",
    ),
    "weights of NaN": (
        _weights(_header({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}},
                      np.float32("nan").tobytes())),
        "must be finite",
    ),
    "a layer that runs code": (
        _json(f"{HERE}/observer.json", layouts=LAYOUT,
              moments=_moment(layers={"layer": "os.system", "arguments": {"command": "true"}})),
        "layer must be one of",
    ),
    "a layer of a terabyte": (
        _json(f"{HERE}/observer.json", layouts=LAYOUT,
              moments=_moment(layers={"layer": "Linear", "arguments": {
                  "in_features": 1 << 20, "out_features": 1 << 20, "bias": True}})),
        "too large",
    ),
    "weights for another layer": (
        _json(f"{HERE}/observer.json", layouts=LAYOUT,
              moments=_moment(layers={"layer": "ReLU", "arguments": {}})),
        "layers or weights",
    ),
    "a model file with a path": (
        _json(f"{HERE}/observer.json", layouts=LAYOUT, moments=_moment(file="../../etc/passwd")),
        "moments",
    ),
    # as a recorder left it
    "a zstd bomb in a segment": (_raw(_compressed), "compressed"),
    "a segment without messages": (_raw(_no_metadata), "is damaged"),
    "garbage in a segment": (_raw(_garbage), "damaged"),
    "a frame of a gigabyte": (_raw(_huge_frame), "damaged"),
    "a segment of another table": (_raw(_other_schema), "have columns"),
}  # fmt: skip
