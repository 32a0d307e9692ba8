"""How a user's own tables are to be read: the keys of a ``[data]`` section as one value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args

from vflsec.core import check
from vflsec.data.divide import Division
from vflsec.errors import ConfigError
from vflsec.label import TaskName
from vflsec.runtime.plain_values import Plain, Table

IdMatch = Literal["strip", "punctuation", "casefold", "zeros"]
"""What ids may differ in and still match."""
Aggregate = Literal["mean", "sum", "min", "max", "count", "first", "last"]
"""How the values of several rows of one id become one."""


@dataclass(frozen=True, kw_only=True)
class TableSpec:
    """What is said of tables beside their paths.

    The attributes are keys of :class:`vflsec.config.sections.Data`, which says what they mean. By
    default `active` is the party whose table has the label column, with one table the party called
    ``active``, else the first of `columns`; `columns` are, with several files, all that have no
    other role; columns are numeric that hold numbers or dates (:mod:`vflsec.data.dates`), others
    categorical; dialects are found out (:mod:`vflsec.data.dialect`); limits are those of
    :class:`vflsec.data.limits.Limits`.
    """

    id: str | Mapping[str, str] | None = None
    label: str | Sequence[str]
    active: str | None = None
    columns: Mapping[str, Sequence[str]] | None = None
    divide: Division | None = None
    categorical: Sequence[str] = ()
    numeric: Sequence[str] = ()
    drop: Sequence[str] = ()
    split: str | None = None
    group: str | None = None
    merge_classes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    drop_classes: Sequence[str] = ()
    label_edges: Sequence[float] = ()
    task: TaskName = "classification"
    separator: str | Mapping[str, str] = ""
    decimal: str | Mapping[str, str] = ""
    encoding: str | Mapping[str, str] = ""
    max_bytes: int | None = None
    max_cells: int | None = None
    max_columns: int | None = None
    id_match: Sequence[IdMatch] = ()
    duplicates: Literal["", "first"] = ""
    aggregate: Mapping[str, Aggregate] = field(default_factory=dict)
    missing: Mapping[str, Sequence[str]] = field(default_factory=dict)
    name: str = ""

    @property
    def labels(self) -> tuple[str, ...]:
        """The label columns, one or several."""
        return (self.label,) if isinstance(self.label, str) else tuple(self.label)

    @property
    def several(self) -> tuple[str, ...]:
        """The label columns where a row has several labels, else empty."""
        return () if isinstance(self.label, str) else self.labels

    @property
    def dialects(self) -> dict[str, str | Mapping[str, str]]:
        """How text tables are written, by key; each for all of them, or by party."""
        return {"separator": self.separator, "decimal": self.decimal, "encoding": self.encoding}

    def id_of(self, party: str) -> str:
        """The id column of a party's table, '' where there is none."""
        return self.id.get(party, "") if isinstance(self.id, Mapping) else self.id or ""

    def taken(self, party: str) -> dict[str, str]:
        """The role of each column of a party's table that is no feature."""
        pairs = [("id", self.id_of(party)), *(("label", c) for c in self.labels),
                 ("split", self.split), ("group", self.group)]  # fmt: skip
        return {column: role for role, column in pairs if column}


ONE_TABLE = "For one table use `file`."
FILE_KEYS = ("file", "files")
"""Keys of a ``[data]`` section that hold paths."""

TABLE_KEYS = (*FILE_KEYS, *(f.name for f in fields(TableSpec) if f.name != "name"))
"""Keys of a ``[data]`` section that describe the user's own tables."""


def read_files(section: Table, base: Path) -> Path | dict[str, Path]:
    """The path of the one table, or of each party's, from the folder `base`.

    Raises:
        ConfigError: a path is no text.
    """
    if "file" in section:
        return base / _read_text("file", section["file"])
    files = section["files"]
    if not isinstance(files, Mapping):
        raise check.fail("data: files", "a table with one path for each party", files, ONE_TABLE)
    return {p: base / _read_text(f"files.{p}", path) for p, path in files.items()}


def name_tables(files: Mapping[str, str | Path] | str | Path) -> str:
    """What tables without a name are called: their parties together, or the file of one for all."""
    return "_".join(files) if isinstance(files, Mapping) else Path(files).name.split(".")[0]


def read_table_spec(section: Table) -> TableSpec:
    """What a ``[data]`` section says of own tables.

    Raises:
        ConfigError: a key has a value of another form, there are the keys of a registered data
            set, or there is no label.
    """
    if "params" in section:
        raise ConfigError("data: `params` are for registered data sets, not tables.")
    if "label" not in section:
        raise ConfigError('data: lacks a label. Add label = "COLUMN".')
    given: Any = {k: section[k] for k in TABLE_KEYS if k in section and k not in FILE_KEYS}
    for key, value in given.items():
        if key != "divide":
            _check_form(key, value)
    if "divide" in given:
        given["divide"] = Division.read(given["divide"])
    return TableSpec(name=_read_text("name", section.get("name", "")), **given)


_NUMBERS = ("max_bytes", "max_cells", "max_columns")
_TABLES = {
    "columns": "party",
    "merge_classes": "class",
    "missing": "column",
}
_LISTS = ("categorical", "numeric", "drop", "drop_classes", "id_match")
_BY_PARTY = ("id", "separator", "decimal", "encoding")
"""Keys by the form of their value; that of all others is a text."""


def _check_form(key: str, value: Any) -> None:
    """Refuse a value of another form than its key has."""
    if key in _NUMBERS:
        check.integer(f"data: {key}", value)
    elif key == "label_edges":
        for number in value:
            check.finite(f"data: {key}", number)
    elif key == "aggregate":
        for name, way in value.items() if isinstance(value, Mapping) else [(key, value)]:
            check.one_of(f"data: aggregate.{name}", way, get_args(Aggregate))
    elif key in _TABLES:
        if not isinstance(value, Mapping):
            raise check.fail(f"data: {key}", f"a table with a list for each {_TABLES[key]}", value)
        for name, texts in value.items():
            _check_texts(f"{key}.{name}", texts)
    elif key in _LISTS or (key == "label" and isinstance(value, list | tuple)):
        _check_texts(key, value)
        for name in value if key == "id_match" else ():
            check.one_of("data: id_match", name, get_args(IdMatch))
    elif key in _BY_PARTY and isinstance(value, Mapping):
        for party, text in value.items():
            _read_text(f"{key}.{party}", text)
    else:
        _read_text(key, value)


def _read_text(key: str, value: Plain | Path) -> str:
    if not isinstance(value, str | Path):
        raise check.fail(f"data: {key}", "text", value)
    return str(value)


def _check_texts(key: str, value: Plain) -> None:
    if not isinstance(value, list | tuple) or not all(isinstance(v, str) for v in value):
        raise check.fail(f"data: {key}", "a list of texts", value)
