"""One SQLite file in WAL mode, safe for several writers and kill -9, every entry with its hash.

What is written stands beside a hash of it, so that edits and damage are found when it is read.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Self

from vflsec.errors import AGAIN, EDITED, ConfigError, DataError
from vflsec.runtime.atomic_files import make_folder, or_closed
from vflsec.specs import hash_value

SCHEMA_VERSION = 1
"""Of what the file holds; others are refused."""
STORE_NAME = "results.sqlite"
FRESH = "Use --fresh, or name another --out."

_OWN = """
create table if not exists meta (key text primary key, value text not null);
create table if not exists seals (what text primary key, digest text not null);
"""


class SealedFile:
    """The file of a results directory, open, or made: transactions, plain values by name, seals.

    Args:
        folder: the results directory; made if it is not there.
        readonly: never write; the file must exist.

    Attributes:
        TABLES: SQL that makes the tables of a subclass where they are missing.

    Raises:
        ConfigError: the directory or the file cannot be used.
    """

    TABLES: ClassVar[str] = ""

    def __init__(self, folder: Path, *, readonly: bool = False) -> None:
        self.folder, self.path = folder, folder / STORE_NAME
        if readonly:
            self._db = self._open_readonly()
        else:
            make_folder(folder)
            self._db = self._open()
        with or_closed(self._db):
            self._check_version(readonly)

    def _open(self) -> sqlite3.Connection:
        try:
            with or_closed(sqlite3.connect(self.path, timeout=120, isolation_level=None)) as db:
                db.execute("pragma journal_mode=wal")
                db.execute("pragma synchronous=full")
                db.executescript(_OWN + self.TABLES)
                return db
        except sqlite3.Error as error:
            raise ConfigError.unreadable(self.path, error, FRESH) from None

    def _open_readonly(self) -> sqlite3.Connection:
        if not self.path.is_file():
            raise ConfigError(
                f"{self.folder}: has no {STORE_NAME}. Name a folder of `vflsec audit`."
            )
        error: Exception | None = None
        place = f"{self.path.resolve().as_uri()}?mode=ro"
        for opened in (lambda: sqlite3.connect(place, uri=True), self._copied):
            try:
                with or_closed(opened()) as db:
                    if not db.execute("select 1 from sqlite_master").fetchone():
                        return self._make_empty()
                    db.execute("select count(*) from meta").fetchone()
                    return db
            except (sqlite3.Error, OSError) as caught:
                error = caught
        raise ConfigError.unreadable(self.path, error or "")

    def _make_empty(self) -> sqlite3.Connection:
        """What is read of a file in which a full disk let no table be made."""
        with or_closed(sqlite3.connect(":memory:")) as db:
            db.executescript(_OWN + self.TABLES)
            return db

    def _copied(self) -> sqlite3.Connection:
        """The store in memory: where nothing may be written SQLite reads no log without its index,
        and what was stored last may be in the log alone.
        """
        with TemporaryDirectory() as folder:
            for path in (self.path, self.path.with_name(f"{STORE_NAME}-wal")):
                if path.exists():
                    shutil.copyfile(path, Path(folder) / path.name)
            with closing(sqlite3.connect(Path(folder) / STORE_NAME)) as found:
                db = sqlite3.connect(":memory:")
                with or_closed(db):
                    found.backup(db)
                return db

    def _check_version(self, readonly: bool) -> None:
        found = self.meta("schema_version")
        if found is None:  # nothing is in it yet
            if not readonly:
                self.set_meta("schema_version", SCHEMA_VERSION)
        elif found != SCHEMA_VERSION:
            what, rule = f"{self.path}: schema version", f"be {SCHEMA_VERSION}"
            raise ConfigError.must(what, rule, found, FRESH)

    def _rows(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        """All rows of a query.

        Raises:
            ConfigError: the file is damaged.
        """
        try:
            return self._db.execute(query, values).fetchall()
        except (sqlite3.Error, OverflowError, UnicodeDecodeError) as error:
            raise self.damaged(str(error)) from None

    def damaged(self, why: str) -> ConfigError:
        """The error to raise where the store does not hold what vflsec wrote."""
        error = ConfigError.damaged(self.path, why)
        return ConfigError(f"{error} Restore it from a copy, or audit again with --fresh.")

    def _seal(self, what: str, value: Any) -> None:
        """Keep a hash of what is written; each is a row or rows as the file gives them back."""
        self._insert("replace", "seals", (what, _hash(value)))

    def _insert(self, verb: str, table: str, values: Sequence[Any]) -> sqlite3.Cursor:
        """Write a row; `verb` says whether one of the same identity is to `replace` or `ignore`."""
        marks = ", ".join("?" * len(values))
        return self._db.execute(f"insert or {verb} into {table} values ({marks})", values)

    def _check_seal(self, what: str, value: Any) -> None:
        """Refuse what vflsec did not write so: what breaks later is a defect of its own."""
        if self._rows("select digest from seals where what = ?", (what,)) != [(_hash(value),)]:
            raise self.damaged(EDITED)

    def close(self) -> None:
        """Close the file; everything committed stays."""
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All that is written within, or nothing; one within another is part of it."""
        if self._db.in_transaction:
            yield
            return
        try:
            self._db.execute("begin immediate")
            yield
            self._db.execute("commit")
        except sqlite3.Error as error:
            self._rollback()
            text = f"{self.path}: results cannot be stored: {error}. Make room. {AGAIN}"
            raise ConfigError(text) from None
        except BaseException:
            self._rollback()
            raise

    def _rollback(self) -> None:
        if self._db.in_transaction:  # a full disk has rolled back by itself
            with suppress(sqlite3.Error):
                self._db.execute("rollback")

    def meta(self, key: str) -> Any:
        """A value set with :meth:`set_meta`, or None."""
        rows = self._rows("select value from meta where key = ?", (key,))
        if not rows:
            return None
        self._check_seal(f"meta {key}", rows)
        return json.loads(rows[0][0])

    def set_meta(self, key: str, value: Any) -> None:
        """Keep a plain value under a name; None is as if there were none."""
        with self.transaction():
            text = dump_json(value)
            self._insert("replace", "meta", (key, text))
            self._seal(f"meta {key}", [(text,)])
        with suppress(sqlite3.Error):  # into the file itself, which may be copied without its log
            self._db.execute("pragma wal_checkpoint(full)")


def _hash(value: Any) -> str:
    try:
        return hash_value(value)
    except (TypeError, ValueError):  # bytes, which vflsec never writes
        return ""


def dump_json(value: Any) -> str:
    """A value as JSON, with what numpy and mappings hold as plain values.

    Raises:
        DataError: it holds something else.
    """
    try:
        return json.dumps(value, default=_plain)
    except (TypeError, ValueError) as error:
        raise DataError(f"results hold a value that cannot be stored: {error}") from None


def _plain(value: Any) -> Any:
    """Numpy numbers, sets and mappings as JSON knows them."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, set | frozenset):
        return sorted(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Iterable):
        return list(value)
    return str(value)
