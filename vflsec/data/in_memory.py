"""Tables that are in memory: DataFrames become files of a temporary folder, for one run only."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import pyarrow as pa

from vflsec.data.read_table import check_names
from vflsec.errors import VflsecError, data_error, first_line, format_list
from vflsec.plugins.loading import TABLES

if TYPE_CHECKING:
    import pandas as pd


@contextmanager
def make_temporary_folder() -> Iterator[Path]:
    """A folder that only this user can read and that is gone afterwards.

    Errors of this package that pass through name its files without the folder.
    """
    with tempfile.TemporaryDirectory(prefix=TABLES) as name:
        folder = Path(name).resolve()
        try:
            yield folder
        except VflsecError as error:
            error.args = tuple(
                a.replace(f"{folder}/", "").replace(f"{folder}\\", "") if isinstance(a, str) else a
                for a in error.args
            )
            raise


def write_frame(frame: pd.DataFrame, name: str, folder: Path) -> str:
    """Write a DataFrame as Parquet; a named index becomes columns.

    Args:
        frame: with column names that are texts.
        name: of the table, for the file and for messages.
        folder: where.

    Returns:
        the file's name.

    Raises:
        DataError: Parquet cannot hold it.
    """
    named = [n for n in frame.index.names if n is not None]
    if named:
        twice = [str(n) for n in named if n in frame.columns]
        if twice:
            remedy = "Drop it with reset_index(drop=True)."
            raise data_error(
                name, "index", "have another name than the columns", format_list(twice), remedy
            )
        frame = frame.reset_index()
    strange = [c for c in frame.columns if not isinstance(c, str)]
    if strange:
        got, remedy = format_list(strange, 4), "df.rename(columns=str) makes them so."
        raise data_error(name, "columns", "be texts", got, remedy)
    check_names(name, list(frame.columns))
    file = (re.sub(r"[^-\w]+", "_", name)[:50] or "table") + ".parquet"
    while (folder / file).exists():
        file = f"_{file}"
    try:
        frame.to_parquet(folder / file, index=False)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        column = re.search(r"column (\S+) with type", str(error))
        what = f"column {column.group(1)!r}" if column else "table"
        rule, got = "hold one kind of value", first_line(error).strip("()'\" .")
        raise data_error(name, what, rule, got, "astype(str) makes it so.") from None
    return file


def write_frames(
    section: Mapping[str, Any], folder: Path, base: Path, under: str = ""
) -> dict[str, Any]:
    """A ``[data]`` section with its DataFrames as files of `folder`, and other paths absolute.

    Args:
        section: with DataFrames under ``file`` or ``files``, or none.
        folder: where they are written.
        base: where relative paths of the section start from.
        under: folder below `folder` to write into.
    """
    (folder / under).mkdir(exist_ok=True)

    def placed(table: Any, name: str) -> Any:
        if _is_frame(table):
            return (Path(under) / write_frame(table, name, folder / under)).as_posix()
        return os.path.abspath(base / table) if isinstance(table, str | Path) else table

    out = dict(section)
    if out.get("file") is not None:
        out["file"] = placed(out["file"], str(out.get("name") or "table"))
    if isinstance(out.get("files"), Mapping):
        out["files"] = {p: placed(t, str(p)) for p, t in out["files"].items()}
    params = out.get("params")
    if isinstance(params, Mapping) and isinstance(params.get("folder"), str):
        out["params"] = {**params, "folder": os.path.abspath(base / params["folder"])}
    return out


@contextmanager
def on_disk(scenario: Any) -> Iterator[tuple[Any, Path]]:
    """A scenario whose DataFrames are files while this lasts, and where its paths start from.

    What holds no DataFrame is handed on as it is, with the working directory.
    """
    here = Path.cwd()
    if not isinstance(scenario, Mapping) or not any(map(_held, _sections(scenario))):
        yield scenario, here
        return
    with make_temporary_folder() as folder:
        data = scenario["data"]
        if isinstance(data, Mapping):
            placed: Any = write_frames(data, folder, here)
        else:
            placed = [
                write_frames(s, folder, here, str(i)) if isinstance(s, Mapping) else s
                for i, s in enumerate(data)
            ]
        yield {**scenario, "data": placed}, folder


def _is_frame(table: object) -> TypeGuard[pd.DataFrame]:
    import pandas as pd

    return isinstance(table, pd.DataFrame)


def _sections(scenario: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    data = scenario.get("data")
    found = data if isinstance(data, list | tuple) else [data]
    return [s for s in found if isinstance(s, Mapping)]


def _held(section: Mapping[str, Any]) -> bool:
    files = section.get("files")
    tables = [section.get("file"), *(files.values() if isinstance(files, Mapping) else ())]
    return any(_is_frame(t) for t in tables)
