"""Files of published data sets that the user downloaded: finding them, drawing rows from them.

Nothing is ever fetched. A file of many gigabytes is read as a stream, twice: once to count its
lines and once to keep those that were drawn.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import IO

import numpy as np

from vflsec.core import check
from vflsec.core.rng import numpy_generator
from vflsec.errors import data_error

BLOCK = 1 << 22


def find_files(name: str, folder: str, files: Sequence[str], source: str) -> list[Path]:
    """The files (paths within `folder`, which the user names) that a published data set needs.

    Raises:
        DataError: the folder is missing, or some files are; one message names them all and says
            where they come from.
    """
    root = Path(folder)
    if not root.is_dir():
        what, remedy = f"folder {str(folder)!r}", f"Download it from {source}."
        raise data_error(name, what, "exist", "none", remedy)
    found = [root / f for f in files]
    gone = [f for f, path in zip(files, found, strict=True) if not path.is_file()]
    if gone:
        shown = ", ".join(gone[:4]) + (f" and {len(gone) - 4} more" if len(gone) > 4 else "")
        few = len(files) <= 4
        rule = f"hold {', '.join(files)}" if few else f"hold the {len(files)} published files"
        what, remedy = f"folder {str(folder)!r}", f"Download and unpack them from {source}."
        raise data_error(name, what, rule, f"no {shown}", remedy)
    return found


def first_of(name: str, folder: str, files: Sequence[str], source: str) -> Path:
    """The first of several spellings of one file that is there.

    Raises:
        DataError: none is.
    """
    there = [f for f in files if (Path(folder) / f).is_file()]
    if not there and Path(folder).is_dir():
        what, remedy = f"folder {str(folder)!r}", f"Download it from {source}."
        raise data_error(name, what, f"hold {' or '.join(files)}", "none", remedy)
    return find_files(name, folder, there[:1] or files[:1], source)[0]


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
            rule = f"have at least rows = {rows} rows"
            raise data_error(path, "table", rule, f"{lines}", "0 takes all of them.")
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
