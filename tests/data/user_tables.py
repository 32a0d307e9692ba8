"""Users' tables in one call each: written, read as sources, and refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from vflsec.data.load import load_source
from vflsec.data.source import Source
from vflsec.data.table_spec import TableSpec
from vflsec.data.tables import load_tables

Table = str | bytes | Mapping[str, Any] | pd.DataFrame


def write(path: Path, table: Table) -> Path:
    """A text as it is, or columns in the format that the file's ending says; returns the path."""
    if isinstance(table, str | bytes):
        path.write_bytes(table if isinstance(table, bytes) else table.encode())
    elif path.suffix == ".parquet":
        pd.DataFrame(table).to_parquet(path, index=False)
    else:
        pd.DataFrame(table).to_csv(path, index=False)
    return path


def load_one(path: Path, columns: Mapping[str, Any], **spec: Any) -> Source:
    """One table of two parties, whose label is ``y``."""
    return load_tables(path, TableSpec(**{"label": "y", "columns": columns, **spec}))


def load_pair(folder: Path, bank: Table, shop: Table, **spec: Any) -> Source:
    """Two tables, joined by ``id``; the label ``y`` is the bank's."""
    files = {"bank": write(folder / "bank.csv", bank), "shop": write(folder / "shop.csv", shop)}
    return load_tables(files, TableSpec(**{"label": "y", "id": "id", **spec}))


def load_set(name: str, folder: Path, **params: object) -> Source:
    """A published set from its files in a folder."""
    section = {"name": name, "params": {"folder": str(folder), **params}}
    return load_source(section, 0, Path("/"))


@contextmanager
def refused(kind: type[Exception], *parts: str) -> Iterator[None]:
    """An error whose message is one line and holds all `parts`."""
    with pytest.raises(kind) as caught:
        yield
    assert "\n" not in str(caught.value)
    for part in parts:
        assert part in str(caught.value), caught.value
