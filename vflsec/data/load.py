"""The single door from a resolved ``[data]`` section of a scenario to a Source."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vflsec.core import check
from vflsec.data.limits import Limits
from vflsec.data.source import Source
from vflsec.data.table_spec import FILE_KEYS, TABLE_KEYS, read_files, read_table_spec
from vflsec.errors import ConfigError
from vflsec.plugins import registry
from vflsec.runtime.plain_values import Plain, Table

SPLIT_KEYS = ("validation", "test", "labelled", "aligned", "shuffle_labels", "scale")
"""Keys that say how rows are split and scaled: arguments of :func:`~.prepare.make_task`."""

OTHER_KEYS = ("name", "params", "digest")


def load_source(section: Table, seed: int, base: Path) -> Source:
    """Load what a ``[data]`` section names.

    Either ``name`` (a registered data set) with ``params``, or ``file`` / ``files`` with the keys
    of :class:`~.table_spec.TableSpec` (``name`` is optional there). Keys whose value is
    None count as absent; the keys of :func:`split_options` and ``digest`` may stand beside them.

    Args:
        section: the section.
        seed: draws the world of a toy data set; real data do not depend on it.
        base: folder that relative paths start from, also a data set's parameter ``folder``.

    A table is read once in a process, as long as its file stays the same.

    Raises:
        ConfigError: an unknown key, or a section that names no data or two.
        DataError: the tables, or what a data set gives, are not usable.
    """
    given: Any = {k: v for k, v in section.items() if v is not None}
    known = (*OTHER_KEYS, *TABLE_KEYS, *SPLIT_KEYS)
    for key in given:
        check.one_of("data: key", key, known)
    own = [k for k in FILE_KEYS if k in given]
    if len(own) == 2:
        raise ConfigError("data: give `file` or `files`, not both.")
    if own:
        return _kept.load(given, base)
    if "name" not in given:
        listed = ", ".join(registry.datasets.names())
        raise ConfigError(f"data: give `name` (one of {listed}), `files` or `file`.")
    extra = [k for k in TABLE_KEYS if k in given]
    if extra:
        text = f"data: {extra[0]!r} is for tables, not {given['name']!r}."
        raise ConfigError(f"{text} Set its options under `params`.")
    params = dict(given.get("params") or {})
    if isinstance(params.get("folder"), str):
        params["folder"] = str(base / params["folder"])
    return _registered(given["name"], params, seed)


def _registered(name: str, params: Table, seed: int) -> Source:
    from vflsec.core.rng import Globals
    from vflsec.data.layout import check_parties
    from vflsec.data.source_check import check_source, hash_content

    made, stand = registry.datasets.create(name, params), Globals()
    source = check_source(made.load(seed), name)
    check_parties(list(source.parties), source.active, None)
    remedy = "Draw from vflsec.core.rng.numpy_generator(seed, NAME)."
    stand.hold(f"data set {name}", ConfigError, remedy)
    if not source.digest and registry.datasets.entry(name).package:
        return replace(source, digest=hash_content(source))
    return source


def _read_tables(given: Table, base: Path) -> Source:
    from vflsec.data.tables import load_tables

    return load_tables(read_files(given, base), read_table_spec(given))


def table_files(section: Table, base: Path) -> list[Path]:
    """Paths of a section's own tables."""
    named = section.get("files")
    paths = named.values() if isinstance(named, Mapping) else [section.get("file", "")]
    return [base / str(p) for p in paths]


class _Kept:
    """Sources of own tables that are in memory, by what they were asked for and their bytes."""

    def __init__(self, most: int = 1 << 30) -> None:
        self.most, self.sources = most, dict[str, Source]()

    def load(self, given: Table, base: Path) -> Source:
        """The source of a section, read again only if a file changed."""
        files = table_files(given, base)
        wanted = {k: v for k, v in given.items() if k not in (*SPLIT_KEYS, "digest")}
        most = wanted.get("max_bytes") or Limits().bytes
        asked, held = [wanted, str(base.resolve())], _hash(files, most)
        key = json.dumps([asked, held], sort_keys=True, default=str)
        source = self.sources.pop(key, None)
        if source is None:
            source = _read_tables(given, base)
            if not held or held != _hash(files, most):
                return source
        self.sources[key] = source
        while len(self.sources) > 1 and self.most < sum(
            p.values.nbytes for s in self.sources.values() for p in s.parties.values()
        ):
            del self.sources[next(iter(self.sources))]
        return source


def _hash(files: Sequence[Path], most: Plain) -> list[str]:
    """What files hold, as hashes; empty if one cannot be read or has more bytes than `most`."""
    out = []
    for path in files:
        try:
            if not path.is_file() or path.stat().st_size > float(str(most)):
                return []
            with path.open("rb") as file:
                out.append(hashlib.file_digest(file, "sha256").hexdigest())
        except (OSError, ValueError):
            return []
    return out


_kept = _Kept()


def split_options(section: Table) -> dict[str, Any]:
    """The arguments of :func:`~.prepare.make_task` that a ``[data]`` section sets."""
    return {k: section[k] for k in SPLIT_KEYS if section.get(k) is not None}
