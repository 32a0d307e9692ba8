"""The results directory: whose it is, who writes in it now, and what may be removed from it."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from vflsec.errors import AGAIN, ConfigError
from vflsec.runtime.atomic_files import ANOTHER, TRIES, make_folder
from vflsec.storage.store import STORE_NAME
from vflsec.storage.view_folder import clear_views, tidy_views

LOCK_NAME = "results.lock"

REPORTS = (
    "report.html", "statement.html", "report.pdf", "statement.pdf", "summary.md", "junit.xml",
    "results.sarif",
)  # fmt: skip

WRITTEN = (
    STORE_NAME, "results.parquet", "results.csv", "points.parquet", "summary.json",
    "scenario.resolved.toml", *(name for name in REPORTS if not name.endswith(".pdf")),
)  # fmt: skip
"""What every audit that ends has left."""

OUR_FILES = (
    *WRITTEN, f"{STORE_NAME}-wal", f"{STORE_NAME}-shm", "report.pdf", "statement.pdf", LOCK_NAME,
)  # fmt: skip
"""What an audit writes into a results directory; ``--fresh`` removes these and nothing else."""

_TEMPORARY = re.compile(rf"\.({'|'.join(map(re.escape, OUR_FILES))})\.[a-z0-9_]{{8}}")
_CONTROLS = ".controls."
_MARK = b"vflsec"
_held: dict[tuple[str, int], Lock] = {}


class Lock:
    """Held by whoever audits into a folder; see :func:`claim`."""

    def __init__(self, db: sqlite3.Connection, path: Path) -> None:
        self._db, self._path = db, path
        self._file = _identity(path)

    def held(self) -> None:
        """Make sure that this still is the lock that others find in the folder.

        Raises:
            ConfigError: it was removed, perhaps with the folder, so that another may audit there.
        """
        if _identity(self._path) != self._file:
            raise ConfigError(f"{self._path}: was removed during this audit. {AGAIN}")

    def forget(self) -> None:
        """What was audited before no longer stands in the folder, even if this audit is killed."""
        _keep(self._db, "done", "")
        self.stand("")
        self._db.execute("commit")
        _begin(self._db, self._path)

    def stands(self, mark: str) -> bool:
        """Whether this is what :meth:`stand` was told last."""
        return bool(mark) and _read(self._db, "stands") == mark

    def stand(self, mark: str) -> None:
        """Say by a mark which audit the folder holds, whole."""
        _keep(self._db, "stands", mark)

    def was_done(self, run: str) -> bool:
        """Whether what stands in the folder was audited in this run."""
        return bool(run) and _read(self._db, "done") == run

    def done(self, run: str) -> None:
        """Say that what stands in the folder was audited in this run."""
        _keep(self._db, "done", run)


@contextmanager
def claim(folder: Path, patience: float = 0.0) -> Iterator[Lock]:
    """Be the only one who audits into `folder`.

    The lock is a SQLite transaction on a file in the folder, so it is let go when the process ends,
    however it ends. The thread that has it may claim it again.

    Args:
        folder: the results directory; made if it is not there.
        patience: how long to wait for another, in seconds.

    Raises:
        ConfigError: another process audits into it, or the folder cannot be written.
    """
    here = (str(folder.resolve()), threading.get_ident())
    if here in _held:
        yield _held[here]
        return
    path = folder / LOCK_NAME
    _make_with(folder, path)
    try:
        db = sqlite3.connect(path, timeout=patience, isolation_level=None)
        with closing(db):
            _begin(db, path)
            _held[here] = Lock(db, path)
            try:
                yield _held[here]
                db.execute("commit")
            finally:
                del _held[here]
    except sqlite3.Error as error:
        raise ConfigError.unreadable(path, error, ANOTHER) from None


def _make_with(folder: Path, path: Path) -> None:
    """Make a folder that the :func:`probe` of another audit cannot take away: it has a file."""
    for _ in range(TRIES):
        make_folder(folder)
        if path.is_symlink():
            raise _foreign(path, "is a link")
        try:
            path.touch()
        except FileNotFoundError:
            continue
        except OSError:  # SQLite says what is wrong with it
            pass
        return


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _begin(db: sqlite3.Connection, path: Path) -> None:
    """Take the lock: first leave a name that others can read, then keep them out."""
    who = {
        "pid": os.getpid(), "host": socket.gethostname(),
        "since": datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
    }  # fmt: skip
    try:
        db.execute("begin immediate")
        db.execute("create table if not exists kept (name primary key, value)")
        _keep(db, "holder", json.dumps(who))
        db.execute("commit")
        db.execute("begin immediate")
    except sqlite3.OperationalError as error:
        if "locked" not in str(error):
            raise
        text = f"{path.parent}: {_holder(path)} audits into this folder. Wait for it. {ANOTHER}"
        raise ConfigError(text) from None


def _keep(db: sqlite3.Connection, name: str, value: str) -> None:
    db.execute("insert or replace into kept values (?, ?)", (name, value))


def _read(db: sqlite3.Connection, name: str) -> str:
    """What was kept under a name, '' if nothing was."""
    found = db.execute("select value from kept where name = ?", (name,)).fetchone()
    return str(found[0]) if found else ""


def _holder(path: Path) -> str:
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as db:
            who = json.loads(_read(db, "holder"))
        return f"process {who['pid']} on {who['host']} (since {who['since']})"
    except (sqlite3.Error, TypeError, KeyError, ValueError):
        return "another process"


def probe(folder: Path) -> None:
    """Make sure that `folder` can be written, and leave nothing there.

    Raises:
        ConfigError: it cannot, or it holds files under our names that no audit wrote.
    """
    made = []
    spot = folder
    with suppress(ValueError):  # a null character; told below
        while not os.path.lexists(spot) and spot != spot.parent:
            made.append(spot)
            spot = spot.parent
    try:
        make_folder(folder)
        only_ours(folder)
    finally:
        for path in made:
            with suppress(OSError, ValueError):
                path.rmdir()


def only_ours(folder: Path) -> None:
    """Refuse a folder in which a file under one of our names is not ours.

    Raises:
        ConfigError: there is one.
    """
    store = folder / STORE_NAME
    if store.is_file() and store.stat().st_size:
        if not _is_store(store):
            raise _foreign(store, "is no result store of vflsec")
        return  # what an audit wrote into its own folder
    for name in OUR_FILES:
        if name != LOCK_NAME:
            only_our_file(folder / name)


def only_our_file(path: Path) -> None:
    """Refuse to overwrite a file that is not ours.

    Raises:
        ConfigError: it is there.
    """
    if path.exists() and not _is_ours(path):
        raise _foreign(path, "was not written by vflsec")


def for_reports(to: Path, of: Path) -> None:
    """Make the folder `to` for reports of the audit in `of`, and remove those of an earlier
    judgement: killed in between, no file stands beside one of another.

    Raises:
        ConfigError: it holds another audit, beside whose results they would stand, a file under
            one of our names that is not ours, or it cannot be made.
    """
    if (to / STORE_NAME).exists() and to.resolve() != of.resolve():
        raise ConfigError.taken(to, "another audit")
    only_ours(to)
    make_folder(to)
    for name in REPORTS:
        _remove(to / name)


def _foreign(path: Path, what: str) -> ConfigError:
    return ConfigError(f"{path}: {what}. Name another folder, or move it away.")


def _is_store(path: Path) -> bool:
    """Whether it is our database; one that is damaged counts, for it may hold our results."""
    with path.open("rb") as file:
        if file.read(16) != b"SQLite format 3\0":
            return False
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as db:
            names = {str(r[0]) for r in db.execute("select name from sqlite_master")}
    except sqlite3.Error:
        return True
    return not names or "meta" in names


def _is_ours(path: Path) -> bool:
    """Whether a file looks like what vflsec writes under its name."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        head = file.read(4096)
        file.seek(max(0, path.stat().st_size - 65536))
        tail = file.read()
    if path.name == "results.csv":
        return head.startswith(b"cell,dataset,algorithm,")
    if path.suffix == ".parquet":
        return head[:4] == b"PAR1" and b"attack_key" in head + tail
    if path.name == "summary.json":
        return b'"scenario_hash"' in head
    if path.name == "scenario.resolved.toml":
        return b"[audit]" in head + tail
    return _MARK in head + tail or not head


def clear(folder: Path) -> None:
    """Remove an earlier audit's files.

    Raises:
        ConfigError: a file under one of our names is not ours, or cannot be removed.
    """
    only_ours(folder)
    for name in OUR_FILES:
        if name != LOCK_NAME:
            _remove(folder / name)
    clear_views(folder, _remove)


def withdraw(folder: Path) -> None:
    """Remove what says how an earlier audit ended, for another has begun and may be killed.

    Raises:
        ConfigError: a file cannot be removed.
    """
    for name in ("summary.json", *REPORTS):
        _remove(folder / name)


def tidy(folder: Path) -> None:
    """Remove what an audit leaves when it is killed: half files of exports, shared controls."""
    for path in folder.iterdir():
        if _TEMPORARY.fullmatch(path.name):
            _remove(path)
        elif re.fullmatch(rf"{re.escape(_CONTROLS)}[a-z0-9_]{{8}}", path.name):
            shutil.rmtree(path, ignore_errors=True)
    tidy_views(folder, _remove)


@contextmanager
def for_controls(folder: Path) -> Iterator[Path]:
    """A folder in the results directory, for as long as workers share controls in it."""
    with TemporaryDirectory(prefix=_CONTROLS, dir=folder, ignore_cleanup_errors=True) as name:
        yield Path(name)


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be removed: {error.strerror}.") from None
