"""Files of published data sets that the user downloaded: finding them, drawing rows from them.

Nothing is ever fetched. A file of many gigabytes is read as a stream, twice: once to count its
lines and once to keep those that were drawn.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import IO

import numpy as np

from vflsec.core import check
from vflsec.core.rng import numpy_generator
from vflsec.data.classes import read_labels
from vflsec.data.dialect import Dialect
from vflsec.data.features import read_features
from vflsec.data.read_table import parse_frame
from vflsec.data.sets._parts import hash_parts
from vflsec.data.source import PartyData, Source
from vflsec.errors import DataError, data_error, format_list

BLOCK = 1 << 22


def find_files(name: str, folder: str, files: Sequence[str], source: str) -> list[Path]:
    """The files (paths within `folder`, which the user names) that a published data set needs.

    Raises:
        DataError: the folder is missing, or some files are; one message names them all and says
            where they come from.
    """
    root = Path(folder)
    if not root.is_dir():
        raise refuse_folder(name, folder, "exist", "none", source)
    found = [root / f for f in files]
    gone = [f for f, path in zip(files, found, strict=True) if not path.is_file()]
    if gone:
        raise refuse_folder(name, folder, f"hold {format_list(gone, 4)}", "none", source)
    return found


def refuse_folder(name: str, folder: str, rule: str, got: str, source: str) -> DataError:
    """The error for a folder that does not hold the published data set."""
    remedy = f"Download and unpack it from {source}."
    return data_error(name, f"folder {str(folder)!r}", rule, got, remedy)


def refuse_count(where: object, key: str, asked: int, what: str, there: int) -> DataError:
    """The error for a data set with fewer rows than were asked for."""
    rule = f"have at least {key} = {asked} {what}"
    return data_error(where, "data set", rule, str(there), f"{key} = 0 takes all.")


def draw_source(
    name: str, folder: str, files: Sequence[str], source: str, rows: int, label: str,
    columns: Mapping[str, tuple[Sequence[str], Sequence[str]]], header: Sequence[str] = (),
) -> Source:  # fmt: skip
    """Rows drawn from a published table, the same for every seed.

    Args:
        name: of the data set.
        folder: of the user.
        files: spellings of the one file's name.
        source: where it comes from.
        rows: how many, see :func:`drawn_lines`.
        label: the column of classes; the party ``active`` holds it.
        columns: by party, categorical and numeric ones.
        header: names of all columns, for a file of fields between tabs without them.

    Raises:
        DataError: the file is missing, has fewer rows, or lacks a column.
    """
    there = [f for f in files if (Path(folder) / f).is_file()]
    if not there and Path(folder).is_dir():
        raise refuse_folder(name, folder, f"hold {' or '.join(files)}", "none", source)
    path = find_files(name, folder, there[:1] or files[:1], source)[0]
    lines = drawn_lines(path, rows, header=not header, name=name)
    if header:
        lines = ",".join(header).encode() + b"\n" + lines.replace(b"\t", b",")
    frame, tables = parse_frame(path, lines, dialect=Dialect(",", ".")), {}
    for party, (categorical, numeric) in columns.items():
        names = (*categorical, *numeric)
        for column in names:
            frame.column(column, "published")
        found = read_features(frame, names, categorical, numeric)
        held = np.arange(len(found.values), dtype=np.int64)
        tables[party] = PartyData(found.values, held, names, found.categories)
    y, class_names = read_labels(frame, label)
    return Source(name, tables, "active", y, class_names, digest=hash_parts(tables, y))


def drawn_lines(path: Path, rows: int, *, header: bool, name: str) -> bytes:
    """A text file's header (if it has one) and `rows` of its lines, drawn without replacement.

    The same file and number give the same lines, in file order; ``rows = 0`` gives all of them.

    Raises:
        DataError: the file is empty, has fewer lines, or is no gzip file though named so.
    """
    check.integer(f"{name}: rows", rows, low=0)
    stat = path.stat()
    return _drawn(path, stat.st_mtime_ns, stat.st_size, rows, header, name)


@lru_cache(maxsize=2)
def _drawn(path: Path, changed_ns: int, size: int, rows: int, header: bool, name: str) -> bytes:
    try:
        with _opened(path) as file:
            top = file.readline() if header else b""
            if not rows:
                return top + file.read()
            start, last, lines = len(top), b"\n", 0
            while block := file.read(BLOCK):
                lines, last = lines + block.count(b"\n"), block[-1:]
            lines += last != b"\n"
        if rows > lines:
            raise refuse_count(path, "rows", rows, "rows", lines)
        keep = np.zeros(lines, dtype=bool)
        keep[numpy_generator(0, "rows", name).choice(lines, size=rows, replace=False)] = True
        with _opened(path) as file:
            file.seek(start)
            taken = [line for line, wanted in zip(file, keep.tolist(), strict=True) if wanted]
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise data_error(path, "table", "be a gzip file", f"{error}") from None
    return top + b"".join(line if line.endswith(b"\n") else line + b"\n" for line in taken)


def _opened(path: Path) -> IO[bytes]:
    return gzip.open(path) if path.suffix == ".gz" else path.open("rb")  # type: ignore[return-value]
