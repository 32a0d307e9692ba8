"""Excel, Stata and SPSS tables, by pandas' own readers (`pip install 'vflsec[tables]'`)."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pyarrow as pa

from vflsec.data.limits import Limits, check_size, too_much
from vflsec.errors import DataError, MissingDependencyError, data_error, first_line

OFFICE = {".xlsx": "Excel", ".dta": "Stata", ".sav": "SPSS"}
"""Whose files these are, by their ending."""


def read_office(path: Path, raw: bytes, kind: str, limits: Limits) -> pa.Table | bytes:
    """The first sheet of a workbook, as a text separated by tabs; or a table with value labels.

    Raises:
        DataError: it is no such file, or beyond a limit.
        MissingDependencyError: the reader is not installed.
    """
    import pandas as pd

    try:
        if kind == ".xlsx":
            _check_packed(path, raw, limits)
            frame = pd.read_excel(io.BytesIO(raw), header=None, dtype=str, keep_default_na=False)
            check_size(path, *frame.shape, limits)
            return frame.to_csv(sep="\t", header=False, index=False).encode()
        frame = pd.read_stata(io.BytesIO(raw)) if kind == ".dta" else pd.read_spss(path)
        frame.attrs = {}  # of the file, such as the time at which it was written
        check_size(path, *frame.shape, limits)
        texts = frame.select_dtypes(["object", "category", "string"]).columns
        frame = frame.astype(dict.fromkeys(texts, "string[pyarrow]"))
        return pa.Table.from_pandas(frame, preserve_index=False)
    except ImportError as why:
        package = why.name or OFFICE[kind]
        raise MissingDependencyError.lacks(path, package, "tables") from why
    except DataError:
        raise
    except Exception as why:  # these readers raise whatever they meet
        rule = f"be a file of {OFFICE[kind]}"
        raise data_error(path, "table", rule, first_line(why), "Export it as CSV.") from None


def _check_packed(path: Path, raw: bytes, limits: Limits) -> None:
    """Refuse a workbook that unpacks beyond the limit."""
    with zipfile.ZipFile(io.BytesIO(raw)) as packed:
        size = sum(part.file_size for part in packed.infolist())
    if size > limits.bytes:
        raise too_much(path, f"{size:,} unpacked", limits.bytes, "max_bytes")
