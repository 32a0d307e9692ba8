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
from vflsec.errors import ConfigError, TraceError

OTHER_WIDTH = "Record other widths under name='...', or pad to one length."
ASTRAY = "Remove what does not belong there."
UNSEEN = "unseen by attacks"
UNCOMPRESSED = "be uncompressed"
FINITE = "hold finite numbers"
COPY = "Copy the whole trace again."

NAME = re.compile(r"[A-Za-z0-9_+-][A-Za-z0-9._+-]{0,79}")
"""Names of parties, phases and files."""


def check_name(where: str, name: str) -> None:
    """Refuse a party that no folder of a trace can be called after.

    Raises:
        ConfigError: it is no :data:`NAME`.
    """
    if not isinstance(name, str) or not NAME.fullmatch(name):
        rule = "at most 80 letters without accents, digits, '_', '-', '+' or '.' (not first)"
        raise check.fail(f"{where}: a party's name", rule, name)


def check_new(folder: str | Path) -> Path:
    """A folder for a trace or for guesses, which must be new or empty.

    Raises:
        ConfigError: something is there.
    """
    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder}: is not empty. Give a new folder.")
    return folder


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

    def hold(self, where: object, field: str, value: int) -> None:
        """Refuse more than the limit `field` allows.

        Raises:
            TraceError: it is more.
        """
        most = getattr(self, field)
        if value > most:
            remedy = f"Raise Limits.{field} if you trust it."
            raise TraceError.at_most(f"{where}: {field}", most, value, remedy)


TRUSTED = Limits(trusted=True)
"""How traces that were recorded here are read."""


def refuse_file(path: str) -> TraceError:
    """The error for a file that the format has no place for."""
    return TraceError(f"{path}: is no file of a trace. {ASTRAY}")


def list_files(folder: Path, limits: Limits) -> dict[str, int]:
    """Relative path and size of every file below `folder`, in order of the paths.

    Raises:
        TraceError: not a folder; a link or another special file; a name outside :data:`NAME`; too
            many files, too deep, or too large.
    """
    if not folder.is_dir():
        raise TraceError(f"{folder}: is no folder. Unpack archives first.")
    found: dict[str, int] = {}
    _walk(folder, "", 0, found, limits)
    limits.hold(folder, "trace_bytes", sum(found.values()))
    return dict(sorted(found.items()))


def _walk(folder: Path, prefix: str, depth: int, found: dict[str, int], limits: Limits) -> None:
    with os.scandir(folder) as entries:
        for entry in entries:
            path = f"{prefix}{entry.name}"
            if not NAME.fullmatch(entry.name):
                raise refuse_file(repr(path))
            info = entry.stat(follow_symlinks=False)
            if stat.S_ISDIR(info.st_mode):
                limits.hold(path, "depth", depth + 2)
                _walk(folder / entry.name, f"{path}/", depth + 1, found, limits)
                continue
            if not stat.S_ISREG(info.st_mode):
                raise TraceError(f"{path}: is a link or a special file. {ASTRAY}")
            limits.hold(path, "file_bytes", info.st_size)
            found[path] = info.st_size
            limits.hold(path, "files", len(found))


def open_file(folder: Path, name: str) -> BufferedReader:
    """A file of a trace, opened for reading; a link is refused even if it appeared just now.

    Raises:
        TraceError: it is not there or cannot be opened.
    """
    try:
        handle = os.open(folder / name, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    except OSError as why:
        raise TraceError.unreadable(folder / name, why) from None
    return os.fdopen(handle, "rb")


def read_bytes(folder: Path, name: str, most: int) -> bytes:
    """A whole small file.

    Raises:
        TraceError: it is not there, or has more than `most` bytes.
    """
    with open_file(folder, name) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise TraceError.at_most(name, f"{most} bytes", "more")
    return data
