"""Files that appear whole or not at all, folders that can be written, and what is closed again."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

from vflsec.errors import ConfigError

ANOTHER = "Choose another --out."

TRIES = 20
"""How often a folder is made again that another audit took away between two steps."""


class _Open(Protocol):
    def close(self) -> object: ...


Opened = TypeVar("Opened", bound=_Open)


@contextmanager
def or_closed(opened: Opened) -> Iterator[Opened]:
    """Close what was opened if the block fails; else it stays open."""
    try:
        yield opened
    except BaseException:
        opened.close()
        raise


def stamp_files(paths: Iterable[Path]) -> list[tuple[int, int]]:
    """Time of change and size of each file; (0, 0) where there is none."""
    found = [path.stat() if path.exists() else None for path in paths]
    return [(of.st_mtime_ns, of.st_size) if of else (0, 0) for of in found]


@contextmanager
def name_when_whole(path: Path) -> Iterator[Path]:
    """A place beside `path` for a file or a folder, which gets that name in the end.

    A kill leaves no part of it under the name, an error nothing.
    """
    new = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        yield new
        new.replace(path)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True) if new.is_dir() else new.unlink(missing_ok=True)
        raise


def write_atomic(path: Path, write: Callable[[Path], object]) -> None:
    """Call `write` with a temporary path in the same folder, then move it to `path`.

    Raises:
        ConfigError: the folder cannot be written.
    """
    temporary = None
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        os.close(handle)
        temporary = Path(name)
        write(temporary)
        temporary.chmod(0o644)
        os.replace(temporary, path)
    except (OSError, UnicodeError) as error:
        raise refuse_write(path, error) from None
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def refuse_write(path: object, error: OSError | ValueError) -> ConfigError:
    """The error for a file or a folder that cannot be written."""
    why = getattr(error, "strerror", None) or str(error)
    return ConfigError(f"{path}: cannot be written: {why}.")


def json_text(value: Any) -> str:
    """Plain values as JSON to write: letters as they are, but for halves of a letter.

    The name of a file whose bytes are no UTF-8 has such halves (PEP 383), which no text file can
    hold; spelt out, they come back as they were.
    """
    text = json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False)
    return re.sub("[\ud800-\udfff]", lambda half: f"\\u{ord(half[0]):04x}", text) + "\n"


def refuse_there(path: Path, *, force: bool | None) -> None:
    """Refuse a file that is there, unless `force`; None has no such option.

    Raises:
        ConfigError: it exists, or cannot be looked at.
    """
    try:
        there = path.exists() and not force
    except (OSError, ValueError) as error:
        raise refuse_write(path, error) from None
    if there:
        hint = "" if force is None else ", or add --force"
        raise ConfigError(f"{path}: exists already. Remove it, or name another file{hint}.")


def write_new(path: Path, text: str, *, force: bool | None = None) -> None:
    """Write a file that is not there yet; with `force`, replace it; None has no such option.

    Where it cannot be written as a whole, what was there before stays.

    Raises:
        ConfigError: it exists, is no plain file, or cannot be written.
    """
    refuse_there(path, force=force)
    try:
        if path.exists() and not path.is_file():
            raise OSError(errno.EINVAL, "it is a device, a pipe or a folder")
        whole = Path(os.path.realpath(path))  # what a link points at
    except (OSError, ValueError) as error:
        raise refuse_write(path, error) from None
    write_atomic(whole, lambda new: new.write_text(text, encoding="utf-8"))


def read_text(path: Path) -> str:
    """The text of a plain file.

    Raises:
        OSError: it cannot be read, or is no plain file.
        ValueError: it is not UTF-8.
    """
    return read_bytes(path).decode("utf-8")


def read_bytes(path: Path) -> bytes:
    """What a plain file holds; of a device or a pipe the end might never come.

    Raises:
        OSError: it cannot be read, or is no plain file.
    """
    with open(path, "rb", opener=_at_once) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is a device, a pipe or a folder", str(path))
        return file.read()


def append_text(path: Path, text: str) -> None:
    """Write at the end of a file, and do not wait where nobody reads it.

    Raises:
        OSError: it cannot be written, or is a pipe that nobody reads.
    """
    with open(path, "ab", opener=_at_once) as file:
        file.write(text.encode())


def _at_once(path: str, flags: int) -> int:
    """Open; a pipe without another end is no text, or an error, and nothing to wait for."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0), 0o666)


def make_folder(folder: Path) -> None:
    """Make a results directory and make sure it can be written.

    Raises:
        ConfigError: it cannot, with the reason.
    """
    try:
        for again in range(TRIES, 0, -1):
            try:
                folder.mkdir(parents=True, exist_ok=True)
                handle, name = tempfile.mkstemp(prefix=".vflsec-write-test-", dir=folder)
                break
            except FileNotFoundError:  # another audit that begins takes away what it tried to make
                if again == 1:
                    raise
                time.sleep(0.01)
        os.close(handle)
        os.unlink(name)
    except (OSError, ValueError) as error:
        shown = str(folder) if len(str(folder)) < 200 else f"{str(folder)[:200]}..."
        shown = shown if shown.isprintable() else repr(shown)
        if isinstance(error, FileExistsError | NotADirectoryError):
            raise ConfigError(f"{shown}: is a file, or below one. {ANOTHER}") from None
        raise ConfigError(f"{refuse_write(shown, error)} {ANOTHER}") from None
