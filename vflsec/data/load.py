"""The single door from a resolved ``[data]`` section of a scenario to a Source."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vflsec import check, registry
from vflsec.data.source import Source
from vflsec.errors import ConfigError

__all__ = ["SPLIT_KEYS", "TABLE_KEYS", "load_source", "split_options"]

SPLIT_KEYS = ("validation", "test", "labelled", "aligned", "shuffle_labels", "scale")
"""Keys that say how rows are split and scaled: arguments of :func:`~.prepare.make_task`."""

TABLE_KEYS = (
    "file", "files", "id", "label", "active", "columns", "categorical", "numeric", "drop",
    "split", "group",
)  # fmt: skip
"""Keys that describe the user's own tables: arguments of :func:`~.tables.load_tables`."""

OTHER_KEYS = ("name", "params", "digest")


def load_source(section: Mapping[str, Any], seed: int, base: Path) -> Source:
    """Load what a ``[data]`` section names.

    Either ``name`` (a registered data set) with ``params``, or ``file`` / ``files`` with the keys
    of :func:`~.tables.load_tables` (there ``name`` is optional, for reports). Keys whose value is
    None count as absent; the keys of :func:`split_options` and ``digest`` may stand beside them.

    Args:
        section: the section.
        seed: draws the world of a toy data set; real data do not depend on it.
        base: folder that relative paths start from, also a data set's parameter ``folder``.

    Raises:
        ConfigError: an unknown key, or a section that names no data or two.
        DataError: the tables are not usable.
    """
    given = {k: v for k, v in section.items() if v is not None}
    known = (*OTHER_KEYS, *TABLE_KEYS, *SPLIT_KEYS)
    for key in given:
        if key not in known:
            raise check.fail("data", f"made of the keys {', '.join(known)}", key,
                             check.nearest(key, known))  # fmt: skip
    own = [k for k in ("file", "files") if k in given]
    if len(own) == 2:
        raise ConfigError(
            "data: give either `file` (one table for all parties) or `files` (a table for each "
            "party), got both. Remove one."
        )
    if own:
        return _tables(given, base)
    if "name" not in given:
        raise ConfigError(
            "data: must have `name` (a registered data set: "
            f"{', '.join(registry.datasets.names())}), `files` or `file`, got none of them."
        )
    extra = [k for k in TABLE_KEYS if k in given]
    if extra:
        raise ConfigError(
            f"data: {extra[0]!r} describes own tables, but {given['name']!r} is a registered data "
            "set. Set its options under `params`, or name your tables with `file` or `files`."
        )
    params = dict(given.get("params") or {})
    if isinstance(params.get("folder"), str):
        params["folder"] = str(base / params["folder"])
    source: Source = registry.datasets.create(given["name"], params).load(seed)
    return source


def _tables(given: Mapping[str, Any], base: Path) -> Source:
    from vflsec.data.tables import load_tables

    if "params" in given:
        raise ConfigError("data: `params` belong to a registered data set; tables have none.")
    if "label" not in given:
        raise ConfigError(
            "data: label must name the label column, got nothing. Add label = \"COLUMN\"."
        )  # fmt: skip
    options = {k: given[k] for k in TABLE_KEYS if k in given and k not in ("file", "files")}
    if "file" in given:
        files: Any = base / _text("file", given["file"])
    else:
        if not isinstance(given["files"], Mapping):
            raise check.fail(
                "data: files", "a table with one path for each party", given["files"],
                "For one table with the columns of all parties use `file`.",
            )  # fmt: skip
        files = {p: base / _text(f"files.{p}", path) for p, path in given["files"].items()}
    for key in ("id", "label", "active", "split", "group"):
        if key in options:
            _text(key, options[key])
    for key in ("categorical", "numeric", "drop"):
        if key in options:
            _texts(key, options[key])
    if "columns" in options:
        if not isinstance(options["columns"], Mapping):
            raise check.fail(
                "data: columns", "a table with a list of columns for each party",
                options["columns"],
            )  # fmt: skip
        for party, names in options["columns"].items():
            _texts(f"columns.{party}", names)
    return load_tables(files, name=_text("name", given.get("name", "")), **options)


def _text(key: str, value: Any) -> str:
    if not isinstance(value, str | Path):
        raise check.fail(f"data: {key}", "text", value)
    return str(value)


def _texts(key: str, value: Any) -> None:
    if not isinstance(value, list | tuple) or not all(isinstance(v, str) for v in value):
        raise check.fail(f"data: {key}", "a list of column names", value)


def split_options(section: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of :func:`~.prepare.make_task` that a ``[data]`` section sets."""
    return {k: section[k] for k in SPLIT_KEYS if section.get(k) is not None}
