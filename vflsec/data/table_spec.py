"""How a user's own tables are to be read: the keys of a ``[data]`` section as one value."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from vflsec.core import check
from vflsec.errors import ConfigError
from vflsec.label import TaskName

__all__ = ["FILE_KEYS", "TABLE_KEYS", "TableSpec", "check_section", "read_files", "read_table_spec"]


@dataclass(frozen=True, kw_only=True)
class TableSpec:
    """What is said of tables beside their paths.

    Attributes:
        label: the label column. Classes may be integers, text or booleans; empty = no label. A list
            of at least two columns with two classes each if `task` is ``multilabel``.
        id: the id column, by party where it differs; needed with several files. Ids are compared
            as trimmed text.
        active: the party with the labels. Default: the party whose table has the label column;
            with one table, the party called ``active``, else the first of `columns`.
        columns: feature columns by party. Optional with several files, where the default is all
            columns that have no other role. The active party may have none and hold labels only.
        categorical, numeric: columns declared to be so, as ``column`` or ``party.column``.
            Undeclared columns: numbers and dates (:mod:`vflsec.data.dates`) are numeric, text and
            booleans categorical.
        drop: columns to leave out.
        split: column with ``train`` / ``test`` (or ``validation``) for a fixed split.
        group: column whose equal values stay on one side of a split, for example a person.
        merge_classes, drop_classes, label_edges: see :class:`vflsec.data.classes.Relabel`.
        task: what kind of label it is, by its name (:data:`vflsec.label.KINDS`).
        separator, decimal, encoding: of text tables, by party where they differ; found out if not
            given, see :mod:`vflsec.data.dialect`.
        max_bytes, max_cells, max_columns: the most that is read of one table, see
            :class:`vflsec.data.limits.Limits`; None takes its defaults.
        name: of the data set in reports; default: the stem of the active party's file.
    """

    id: str | Mapping[str, str] | None = None
    label: str | Sequence[str]
    active: str | None = None
    columns: Mapping[str, Sequence[str]] | None = None
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
    name: str = ""

    @property
    def labels(self) -> tuple[str, ...]:
        """The label columns, one or several."""
        return (self.label,) if isinstance(self.label, str) else tuple(self.label)


FILE_KEYS = ("file", "files")
"""Keys of a ``[data]`` section that hold paths."""

TABLE_KEYS = (*FILE_KEYS, *(f.name for f in fields(TableSpec) if f.name != "name"))
"""Keys of a ``[data]`` section that describe the user's own tables."""


def read_files(section: Mapping[str, Any], base: Path) -> Path | dict[str, Path]:
    """The path of the one table, or of each party's, from the folder `base`.

    Raises:
        ConfigError: a path is no text.
    """
    if "file" in section:
        return base / _check_text("file", section["file"])
    files = section["files"]
    if not isinstance(files, Mapping):
        raise check.fail(
            "data: files", "a table with one path for each party", files,
            "For one table with the columns of all parties use `file`.",
        )  # fmt: skip
    return {p: base / _check_text(f"files.{p}", path) for p, path in files.items()}


def read_table_spec(section: Mapping[str, Any]) -> TableSpec:
    """What a ``[data]`` section says of own tables.

    Raises:
        ConfigError: a key has a value of another form.
    """
    given = {k: section[k] for k in TABLE_KEYS if k in section and k not in FILE_KEYS}
    for key, check_form in _FORMS.items():
        if key in given:
            check_form(key, given[key])
    return TableSpec(name=_check_text("name", section.get("name", "")), **given)


def check_section(section: Mapping[str, Any]) -> None:
    """Refuse a section of own tables that has the keys of a registered data set, or no label.

    Raises:
        ConfigError: it is so.
    """
    if "params" in section:
        raise ConfigError("data: `params` belong to a registered data set; tables have none.")
    if "label" not in section:
        raise ConfigError(
            "data: label must name the label column, got nothing. Add label = \"COLUMN\"."
        )  # fmt: skip


def _check_text(key: str, value: Any) -> str:
    if not isinstance(value, str | Path):
        raise check.fail(f"data: {key}", "text", value)
    return str(value)


def _check_texts(key: str, value: Any) -> None:
    if not isinstance(value, list | tuple) or not all(isinstance(v, str) for v in value):
        raise check.fail(f"data: {key}", "a list of column names", value)


def _check_text_or_texts(key: str, value: Any) -> None:
    (_check_texts if isinstance(value, list | tuple) else _check_text)(key, value)


def _check_text_by_party(key: str, value: Any) -> None:
    if not isinstance(value, Mapping):
        _check_text(key, value)
        return
    for party, text in value.items():
        _check_text(f"{key}.{party}", text)


def _check_texts_by(what: str) -> Callable[[str, Any], None]:
    def check_form(key: str, value: Any) -> None:
        if not isinstance(value, Mapping):
            raise check.fail(f"data: {key}", f"a table with a list of {what}", value)
        for name, texts in value.items():
            _check_texts(f"{key}.{name}", texts)

    return check_form


def _check_numbers(key: str, value: Any) -> None:
    for number in value:
        check.finite(f"data: {key}", number)


def _check_integer(key: str, value: Any) -> None:
    check.integer(f"data: {key}", value)


_FORMS: dict[str, Callable[[str, Any], Any]] = {
    "label": _check_text_or_texts,
    **dict.fromkeys(("active", "split", "group"), _check_text),
    **dict.fromkeys(("id", "separator", "decimal", "encoding"), _check_text_by_party),
    **dict.fromkeys(("categorical", "numeric", "drop", "drop_classes"), _check_texts),
    "columns": _check_texts_by("columns for each party"),
    "merge_classes": _check_texts_by("old classes for each new class"),
    "label_edges": _check_numbers,
    **dict.fromkeys(("max_bytes", "max_cells", "max_columns"), _check_integer),
}
"""What form the value of a key must have, in the order in which they are looked at."""
