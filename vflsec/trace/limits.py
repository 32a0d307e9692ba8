"""What a folder of files may look like before any of them is opened."""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Literal

from vflsec.core import check
from vflsec.errors import TraceError

NAME = re.compile(r"[A-Za-z0-9_+-][A-Za-z0-9._+-]{0,79}")
"""Names of parties, phases and files."""


def check_name(where: str, name: str) -> None:
    """Refuse a party that no folder of a trace can be called after.

    Raises:
        ConfigError: it is no :data:`NAME`.
    """
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise check.fail(
            f"{where}: a party's name",
            "at most 80 letters without accents, digits and '_', '-', '+' or '.' (not first)",
            name, "A folder is called so. Rename the party.",
        )  # fmt: skip


@dataclass(frozen=True)
class Limits:
    """How traces are read: the most that is read of one, which the caller can raise, and how far it
    is trusted.

    Attributes:
        file_bytes, trace_bytes: size of one file, and of all of them.
        files, depth: number of files, and of folders above one.
        segments: number of files that recorders of one observer left unsealed.
        manifest_bytes: size of a JSON file.
        header_bytes: size of the header of weights, or of one message's metadata.
        width: numbers of one row of a payload.
        batch_rows, batch_bytes: rows of one message, and bytes of one row group when decoded.
        rows: row ids of a trace, and rows of one file.
        named: row ids of a trace that has fewer bytes than rows; memory is taken for each.
        parties, epochs: number of parties; largest epoch.
        nonfinite: ``refuse``, or ``drop``, which leaves out rows that hold NaN or infinity.
        trusted: it is our own, and need not be read in a process of its own first.
    """

    file_bytes: int = 4 << 30
    trace_bytes: int = 64 << 30
    files: int = 10_000
    depth: int = 3
    segments: int = 500
    manifest_bytes: int = 1 << 20
    header_bytes: int = 1 << 20
    width: int = 65_536
    batch_rows: int = 1_000_000
    batch_bytes: int = 256 << 20
    rows: int = 1_000_000_000
    named: int = 50_000_000
    parties: int = 256
    epochs: int = 10_000
    nonfinite: Literal["refuse", "drop"] = "refuse"
    trusted: bool = False

    def __post_init__(self) -> None:
        check.one_of("nonfinite", self.nonfinite, ("refuse", "drop"))


TRUSTED = Limits(trusted=True)
"""How traces that were recorded here are read."""


def files_of(folder: Path, limits: Limits) -> dict[str, int]:
    """Relative path and size of every file below `folder`, in order of the paths.

    Raises:
        TraceError: not a folder; a link or another special file; a name outside :data:`NAME`; too
            many files, too deep, or too large.
    """
    if not folder.is_dir():
        raise TraceError(
            f"{folder}: a trace is a folder with a manifest.json; archives are not read. "
            "Unpack it with a tool that you trust."
        )
    found: dict[str, int] = {}
    _walk(folder, "", 0, found, limits)
    total = sum(found.values())
    if total > limits.trace_bytes:
        raise TraceError(
            f"{folder}: {total} bytes in all; at most {limits.trace_bytes} are read. "
            "Raise Limits.trace_bytes if you trust it."
        )
    return dict(sorted(found.items()))


def _walk(folder: Path, prefix: str, depth: int, found: dict[str, int], limits: Limits) -> None:
    with os.scandir(folder) as entries:
        for entry in entries:
            path = f"{prefix}{entry.name}"
            if not NAME.fullmatch(entry.name):
                raise TraceError(
                    f"{path!r}: names in a trace are letters, digits, '.', '_', '+' and '-', not "
                    "starting with '.'. Remove what does not belong there."
                )
            info = entry.stat(follow_symlinks=False)
            if stat.S_ISDIR(info.st_mode):
                if depth + 1 >= limits.depth:
                    raise TraceError(
                        f"{path}: folders are at most {limits.depth - 1} deep in a trace. "
                        "Remove what does not belong there."
                    )
                _walk(folder / entry.name, f"{path}/", depth + 1, found, limits)
                continue
            if not stat.S_ISREG(info.st_mode):
                raise TraceError(
                    f"{path}: is a link or a special file; a trace holds plain files only."
                )
            if info.st_size > limits.file_bytes:
                raise TraceError(
                    f"{path}: {info.st_size} bytes; a file of a trace has at most "
                    f"{limits.file_bytes}. Raise Limits.file_bytes if you trust it."
                )
            found[path] = info.st_size
            if len(found) > limits.files:
                raise TraceError(
                    f"{path}: a trace has at most {limits.files} files. Raise Limits.files if you "
                    "trust it."
                )


def open_file(folder: Path, name: str) -> BufferedReader:
    """A file of a trace, opened for reading; a link is refused even if it appeared just now.

    Raises:
        TraceError: it is not there or cannot be opened.
    """
    try:
        handle = os.open(folder / name, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    except OSError as why:
        raise TraceError(f"{name}: cannot be read ({why.strerror}).") from None
    return os.fdopen(handle, "rb")


def replace_file(path: Path, data: bytes) -> None:
    """Write so that other processes see the old file or the whole new one."""
    new = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    new.write_bytes(data)
    new.replace(path)


def read_bytes(folder: Path, name: str, most: int) -> bytes:
    """A whole small file.

    Raises:
        TraceError: it is not there, or has more than `most` bytes.
    """
    with open_file(folder, name) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise TraceError(f"{name}: has more than the {most} bytes that such a file may have.")
    return data
