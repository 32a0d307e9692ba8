"""A first scenario for the user's own tables: what `vflsec init` reads, refuses and writes.

What the tables say is not asked: the id column, a column that says train or test, columns that give
the label away. What `vflsec check` would refuse later (too few rows of a class, a label that is a
quantity) is refused here at once, with the option that settles it.
"""

from __future__ import annotations

import os
import re
import shlex
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from vflsec.cli.draft_systems import SYSTEMS
from vflsec.cli.draft_text import scenario_text
from vflsec.config.scenario import load_scenario
from vflsec.core import check
from vflsec.data import guess_roles
from vflsec.data.classes import is_quantity
from vflsec.data.layout import read_table
from vflsec.data.load import load_source
from vflsec.data.odd_values import leave_empty
from vflsec.data.profile import count_values
from vflsec.data.split import LEAST, present_rows, row_sets
from vflsec.data.table_facts import UserTables
from vflsec.data.table_spec import Aggregate, TableSpec
from vflsec.data.table_warnings import find_weaknesses
from vflsec.errors import ConfigError, DataError, format_list
from vflsec.plugins import registry
from vflsec.runtime.plain_values import Plain, Table

if TYPE_CHECKING:
    from vflsec.data.read_table import Frame
    from vflsec.data.source import Source

_LISTED = 60
"""Columns of a table that a message lists."""
_ENOUGH = sum(LEAST.values())
_OTHER = "other"
_GIVE_MORE = "Give more rows, or name another label."


@dataclass(frozen=True)
class Wishes:
    """What the user said; what is empty is found out.

    Attributes:
        label: the label column, or several yes/no ones.
        id, separator, decimal, encoding: one text, or ``PARTY=TEXT`` for each party.
        rare: what to do with classes of too few rows: ``drop``, ``merge``, or '' to be asked.
        bins: classes to cut a quantity into, 0 = none.
        regression: whether to predict the label as a number even if it could be classes.
        numeric, categorical: columns that hold numbers, or text, as ``column`` or
            ``party.column``.
        id_match, duplicates, aggregate, missing, drop: see
            :class:`vflsec.data.table_spec.TableSpec`; aggregate and missing as ``COLUMN=WAY``
            and ``COLUMN=VALUE``.
        group: column whose equal values stay on one side of a split.
        algorithm: how the parties train, one of :data:`vflsec.cli.draft_systems.SYSTEMS`.
        params: its hyper-parameters, which decide what attacks can run.
        columns: of one table for all, those of each party, of which the first has the label; if
            empty, a half for each of two.
        divide: of one table for all, how its columns are drawn, as in ``[data.divide]``.
        called: the name of the data in reports; '' for that of the file, or of the parties.
        caller: the function of Python that was called, for messages; "" for `vflsec init`.
    """

    label: str | Sequence[str]
    id: Sequence[str] = ()
    separator: Sequence[str] = ()
    decimal: Sequence[str] = ()
    encoding: Sequence[str] = ()
    rare: str = ""
    bins: int = 0
    regression: bool = False
    called: str = ""
    caller: str = ""
    numeric: Sequence[str] = ()
    categorical: Sequence[str] = ()
    group: str = field(default="", kw_only=True)
    id_match: Sequence[str] = field(default=(), kw_only=True)
    duplicates: str = field(default="", kw_only=True)
    aggregate: Sequence[str] = field(default=(), kw_only=True)
    missing: Sequence[str] = field(default=(), kw_only=True)
    drop: Sequence[str] = field(default=(), kw_only=True)
    algorithm: str = field(default="splitnn", kw_only=True)
    params: Table = field(default_factory=dict, kw_only=True)
    columns: Mapping[str, Sequence[str]] = field(default_factory=dict, kw_only=True)
    divide: Table = field(default_factory=dict, kw_only=True)

    @property
    def labels(self) -> list[str]:
        """The label columns, one or several."""
        return [self.label] if isinstance(self.label, str) else list(self.label)

    @property
    def who(self) -> str:
        """Who speaks in a message: ``init``, or the function."""
        return self.caller or "init"

    def name(self, key: str) -> str:
        """How a message names one of these: ``init: --label``, ``audit: label``."""
        return f"{self.who}: {self.flag(key)}"

    def flag(self, key: str) -> str:
        """``--label``, or ``label`` of a call."""
        return key if self.caller else f"--{key}"

    def option(self, key: str, value: Any) -> str:
        """How the user would write it: ``--rare drop``, ``rare='drop'``."""
        if self.caller:
            return f"{key}={value!r}"
        pairs = [f"{k}={v}" for k, v in value.items()] if isinstance(value, dict) else [str(value)]
        return " ".join(f"--{key} {shlex.quote(text)}" for text in pairs)


@dataclass(frozen=True)
class Draft:
    """A scenario to write, and what is in the tables.

    Attributes:
        text: the scenario.
        tables: every column of them, and which rows parties share.
        notes: what was found or settled, in sentences.
    """

    text: str
    tables: UserTables
    notes: Sequence[str] = field(default_factory=tuple)


def draft_scenario(
    tables: Sequence[Path] | Mapping[str, Path], wishes: Wishes, base: Path
) -> Draft:
    """Read the tables and draft a scenario whose paths start from `base`.

    Args:
        tables: one for each party, or one for all; a party is called by its file if not named.
        wishes: what the user said.
        base: folder that the scenario's paths start from.

    Raises:
        DataError: a table cannot be read, or cannot be split so that every class is trained on
            and tested.
        ConfigError: a column is not there, a name is taken twice, or a wish makes no sense.
    """
    check.one_of(wishes.name("algorithm"), wishes.algorithm, SYSTEMS)
    parties = _name_parties(tables)
    dialect = {
        key: _read_by_party(key, wishes, parties) for key in ("separator", "decimal", "encoding")
    }
    spec = TableSpec(label="", **dialect)  # type: ignore[arg-type]
    single = len(parties) == 1
    frames = {of: read_table(spec, p, "" if single else of) for p, of in parties.items()}
    if not wishes.labels:
        raise _ask_for_label(frames, wishes)
    active = _find_holder(frames, wishes)
    frames = leave_empty(frames, _read_missing(wishes))
    notes: list[str] = []
    id_, sure = _find_ids(frames, wishes, parties)
    frame = frames[active]
    if sure:
        notes.append(_note_id(id_))
    split = guess_roles.find_split(frame, wishes.labels)
    paths = {party: _relative(p, base) for p, party in parties.items()}
    data: dict[str, Plain] = {
        "name": wishes.called or ("" if single else "_".join(frames)),
        **({"file": paths[active]} if single else {"files": paths}),
        "id": id_,
        **_read_rows(wishes),
        "label": wishes.label if isinstance(wishes.label, str) else wishes.labels,
        "active": "active" if single else active,
        **{k: v for k, v in dialect.items() if v},
        "numeric": list(wishes.numeric),
        "categorical": list(wishes.categorical),
        **({"split": split} if split else {}),
        "group": wishes.group,
        **_settle_label(frame, wishes, notes),
    }
    own_id = id_ if isinstance(id_, str) else id_[active]
    data |= _choose_columns(frame, wishes, data, (own_id, split, wishes.group), single)
    data = {k: v for k, v in data.items() if v not in ("", [], {})}
    source = load_source(data, 0, base)
    changed = {} if source.labels else _settle_classes(source, wishes, notes)
    if changed:
        data |= changed
        source = load_source(data, 0, base)
    registry.algorithms.create(wishes.algorithm).check_label(source.label.code)
    row_sets(source, 0)
    notes += find_weaknesses(source)
    text = scenario_text(
        data, source, algorithm=wishes.algorithm, params=wishes.params, found_id=sure
    )
    load_scenario(tomllib.loads(text), components=False)
    return Draft(text, source.facts.tables, notes)


def _choose_columns(
    frame: Frame, wishes: Wishes, data: Table, roles: Sequence[str], single: bool
) -> dict[str, Plain]:
    """Columns to leave out, and of one table those of each party."""
    asked = {c for own in wishes.columns.values() for c in own}
    twins = [c for c in _find_copies(frame, wishes, data, roles) if c not in asked]
    dropped = list(dict.fromkeys([*wishes.drop, *twins]))
    out: dict[str, Plain] = {"drop": dropped} if dropped else {}
    for key in ("columns", "divide"):
        if (given := getattr(wishes, key)) and not single:
            raise check.fail(wishes.name(key), "left out where each party has a table", given)
    if wishes.divide:
        out |= {"divide": dict(wishes.divide), "active": ""}
    if wishes.columns:
        own = {party: list(names) for party, names in wishes.columns.items()}
        out |= {"columns": own, "active": next(iter(own))}
    if single and not (wishes.divide or wishes.columns):
        taken = (*roles, *wishes.labels, *dropped)
        out["columns"] = _split_columns(frame, [c for c in frame.columns if c not in taken])
    return out


def _find_copies(frame: Frame, wishes: Wishes, data: Table, roles: Sequence[str]) -> list[str]:
    """Columns that give a label away by themselves, in the order of the table."""
    if data.get("label_edges") or data.get("task") == "regression":
        return []
    taken = (*roles, *wishes.labels)
    found = {c for one in wishes.labels for c in guess_roles.find_label_copies(frame, one, taken)}
    return [c for c in frame.columns if c in found]


def _note_id(id_: str | Mapping[str, str]) -> str:
    """That the id was found, in a sentence."""
    if isinstance(id_, str):
        return f"Using '{id_}' as the id: its values are unique."
    said = ", ".join(f"{column} in {party}" for party, column in id_.items())
    return f"{said} are the ids: their values are unique and match."


def _name_parties(paths: Sequence[Path] | Mapping[str, Path]) -> dict[Path, str]:
    if isinstance(paths, Mapping):
        named = {p: party for party, p in paths.items()}
        if len(named) != len(paths):
            raise ConfigError("audit: tables must differ by party, got one twice.")
        return named
    names = {p: re.sub(r"\W+", "_", p.name.split(".")[0]) for p in paths}
    if len(set(names.values())) != len(paths):
        raise ConfigError(
            f"init: tables must have different names, got {', '.join(map(str, paths))}. Rename one."
        )
    return names


def _read_by_party(key: str, wishes: Wishes, parties: Mapping[Path, str]) -> str | dict[str, str]:
    """One text for all, or one for each party that is named (``PARTY=TEXT``)."""
    texts: Sequence[str] = getattr(wishes, key)
    names = list(parties.values())
    pairs = {}
    for text in texts:
        party, equals, value = text.partition("=")
        if equals and party in names:
            pairs[party] = value
        elif len(texts) > 1:
            rule = f"PARTY=TEXT with a party of {', '.join(names)}"
            raise check.fail(wishes.name(key), rule, text, check.nearest(party, names))
    if pairs and len(names) == 1:
        return next(iter(pairs.values()))
    return pairs or (texts[0] if texts else "")


def _read_rows(wishes: Wishes) -> dict[str, Plain]:
    """How ids match, and how several rows of one become one."""
    return {
        "id_match": list(wishes.id_match),
        "duplicates": wishes.duplicates,
        "aggregate": dict(_read_way(wishes, text) for text in wishes.aggregate),
        "missing": _read_missing(wishes),
    }


def _read_missing(wishes: Wishes) -> dict[str, list[str]]:
    """By column its values that mean none, from ``COLUMN=VALUE``."""
    out: dict[str, list[str]] = {}
    for text in wishes.missing:
        column, equals, value = text.rpartition("=")
        if not equals:
            raise check.fail(wishes.name("missing"), "COLUMN=VALUE", text)
        out.setdefault(column, []).append(value)
    return out


def _read_way(wishes: Wishes, text: str) -> tuple[str, str]:
    """Column and way of ``COLUMN=WAY``."""
    column, equals, way = text.rpartition("=")
    if not equals or way not in get_args(Aggregate):
        rule = f"COLUMN=WAY with a way of {', '.join(get_args(Aggregate))}"
        raise check.fail(
            wishes.name("aggregate"), rule, text, check.nearest(way, get_args(Aggregate))
        )
    return column, way


def _ask_for_label(frames: Mapping[str, Frame], wishes: Wishes) -> ConfigError:
    """What there is to predict, table by table, and which columns have two values."""
    said, two = [], []
    for frame in frames.values():
        said.append(f"{frame.path} has {format_list(frame.columns, _LISTED)}.")
        two += [c for c, array in frame.columns.items() if count_values(array) == 2]
    hint = f" Columns with two values: {format_list(two)}." if two else ""
    return ConfigError(
        f"{wishes.name('label')} must be the column to predict, got none. {' '.join(said)}{hint}"
    )


def _find_holder(frames: Mapping[str, Frame], wishes: Wishes) -> str:
    """The party whose table has the labels."""
    every = sorted({c for f in frames.values() for c in f.columns})
    of: dict[str, str] = {}
    for label in wishes.labels:
        holders = [p for p, f in frames.items() if label in f.columns]
        if len(holders) != 1:
            where = " and ".join(str(frames[p].path) for p in holders) or "no table"
            how = "Rename it in the others, or leave a copy out."
            if not holders:
                how = check.nearest(label, every) or f"There are: {format_list(every)}."
            raise ConfigError(
                f"{wishes.name('label')} must be a column of one table, got {label!r} in {where}. "
                f"{how}"
            )
        of[label] = holders[0]
    if len(set(of.values())) > 1 or len(of) < len(wishes.labels):
        where = ", ".join(f"{label!r} in {frames[of[label]].path}" for label in wishes.labels)
        raise ConfigError(
            f"{wishes.name('label')} must be different columns of one table, got {where}."
        )
    return next(iter(of.values()))


def _find_ids(
    frames: Mapping[str, Frame], wishes: Wishes, parties: Mapping[Path, str]
) -> tuple[str | dict[str, str], bool]:
    """The id column, by party where it differs, and whether it was found and not given."""
    given = _read_by_party("id", wishes, parties)
    several = len(frames) > 1
    if isinstance(given, dict):
        left = [p for p in frames if p not in given]
        if left:
            raise ConfigError(
                f"{wishes.name('id')} must be given for every table, got none for "
                f"{', '.join(left)}. Add {_format_ids(frames, wishes, dict.fromkeys(left, ''))}."
            )
    for p, frame in frames.items():
        column = given if isinstance(given, str) else given[p]
        if column and column not in frame.columns:
            hint = check.nearest(column, list(frame.columns))
            other = f" Or: {_format_ids(frames, wishes)}."
            raise ConfigError(
                f"{wishes.name('id')} must be a column of {frame.path}, got {column!r}. "
                f"{hint}{other if several else ''}".replace("  ", " ").rstrip()
            )
    if given:
        return given, False
    found = guess_roles.find_id(list(frames.values()), wishes.labels)
    if found or not several:
        return found, bool(found)
    matched = guess_roles.find_ids(frames, wishes.labels)
    if matched:
        return matched, True
    nearest = guess_roles.describe_nearest_id(frames, wishes.labels, wishes.option)
    known = not nearest or guess_roles.match_ids(frames, wishes.labels)[0]
    named = f" {'Or a' if nearest else 'A'}dd {_format_ids(frames, wishes)}." if known else ""
    raise ConfigError(
        f"{wishes.who}: needs {wishes.flag('id')}: no column is in every table and unique there."
        f"{nearest}{named}"
    )


def _format_ids(
    frames: Mapping[str, Frame], wishes: Wishes, only: Mapping[str, str] | None = None
) -> str:
    """``--id bank=customer_id --id shop="Customer ID"`` with the columns that match best."""
    found, ways = guess_roles.match_ids(frames, wishes.labels)
    asked = list(only if only is not None else frames)
    best = {p: found.get(p) or guess_roles.find_unique(frames[p], wishes.labels) or "COLUMN"
            for p in asked}  # fmt: skip
    if wishes.caller:
        return f"id={best!r}" + (f", id_match={ways!r}" if ways else "")
    words = [f"--id-match {','.join(ways)}"] if ways else []
    for p, column in best.items():
        plain = re.fullmatch(r"[\w .-]+", column) is not None
        spaced = f'{p}="{column}"' if " " in column else f"{p}={column}"
        words.append("--id " + (spaced if plain else shlex.quote(f"{p}={column}")))
    return " ".join(words)


def _relative(path: Path, base: Path) -> str:
    try:
        return Path(os.path.relpath(path.resolve(), base.resolve())).as_posix()
    except ValueError:  # another drive
        return path.resolve().as_posix()


def _split_columns(frame: Frame, features: Sequence[str]) -> dict[str, list[str]]:
    if len(features) < 2:
        raise ConfigError(f"{frame.path} needs two feature columns or more.")
    half = (len(features) + 1) // 2
    return {"active": list(features[:half]), "passive": list(features[half:])}


def _settle_label(frame: Frame, wishes: Wishes, notes: list[str]) -> dict[str, Plain]:
    """What the label is where it is no class: a quantity, or its cut points if bins are wished."""
    if not isinstance(wishes.label, str):
        for key in ("regression", "bins", "rare"):
            if getattr(wishes, key):
                raise ConfigError(
                    f"{wishes.who}: {wishes.flag(key)} is for one label, got {len(wishes.label)}. "
                    "Leave it out, or name one label."
                )
        return {"task": "multilabel"}
    label = wishes.label
    if wishes.regression and wishes.bins:
        raise ConfigError(
            f"{wishes.who}: {wishes.flag('regression')} and {wishes.flag('bins')} exclude each "
            "other. Leave one out."
        )
    if not wishes.bins:
        if wishes.regression or is_quantity(frame, label):
            values = frame.numbers(label)[0]
            notes.append(
                f"{label} is a quantity ({np.nanmin(values):g} to {np.nanmax(values):g}); "
                f"{wishes.option('bins', 2)} cuts it into classes."
            )
            return {"task": "regression"}
        return {}
    check.integer(wishes.name("bins"), wishes.bins, low=2, high=100)
    values, bad = frame.numbers(label)
    if len(bad):
        raise DataError(
            f"{frame.path}: label {label!r} must hold numbers, got "
            f"{frame.columns[label][int(bad[0])].as_py()!r}. Leave {wishes.flag('bins')} out."
        )
    there = values[~np.isnan(values)]
    shares = np.arange(1, wishes.bins) / wishes.bins
    edges = sorted({float(f"{q:.4g}") for q in np.quantile(there, shares)} - {float(there.min())})
    edges = [e for e in edges if there.min() < e <= there.max()]
    if not edges:
        raise DataError(f"{frame.path}: label {label!r} must have more than one value.")
    shown = ", ".join(f"{e:g}" for e in edges)
    notes.append(f"{label} is a quantity, cut into classes at {shown}.")
    return {"label_edges": edges}


def _settle_classes(source: Source, wishes: Wishes, notes: list[str]) -> dict[str, Plain]:
    """Keys that settle classes of too few rows, as was wished for."""
    everyone = np.logical_and.reduce(list(present_rows(source).values()))
    counts = np.bincount(source.y[everyone & (source.y >= 0)], minlength=len(source.class_names))
    size = dict(zip(source.class_names, counts.tolist(), strict=True))
    rare = [c for c, k in size.items() if k < _ENOUGH]
    if not rare:
        return {}
    enough = [c for c in size if c not in rare]
    what = ", ".join(f"{c!r} {size[c]}" for c in rare[:8]) + (" ..." if len(rare) > 8 else "")
    merged = [*rare]
    left = {"merge": 1 + len(_take_smallest(merged, enough, size)), "drop": len(enough)}
    if not wishes.rare:
        held = "" if bool(everyone.all()) else f" of the {everyone.sum()} shared"
        raise DataError(
            f"{wishes.who}: each class must have at least {_ENOUGH} rows{held}, got {what}. "
            + _ask_for_rare(wishes, left, len(size))
        )
    check.one_of(wishes.name("rare"), wishes.rare, ("drop", "merge"))
    if left[wishes.rare] < 2:
        raise DataError(
            f"{wishes.who}: two classes must be left after {wishes.option('rare', wishes.rare)}, "
            f"got {left[wishes.rare]} ({what}). {_GIVE_MORE}"
        )
    if wishes.rare == "drop":
        notes.append(f"Classes of fewer than {_ENOUGH} rows are left out: {what}.")
        return {"drop_classes": rare}
    name = _OTHER
    while name in size and name not in merged:
        name += "_"
    joined = ", ".join(f"{c!r} {size[c]}" for c in merged if size[c] >= _ENOUGH)
    joined = f", with {joined}" if joined else ""
    notes.append(f"Classes of fewer than {_ENOUGH} rows become one, {name!r}: {what}{joined}.")
    return {"merge_classes": {name: merged}}


def _ask_for_rare(wishes: Wishes, left: Mapping[str, int], classes: int) -> str:
    """What to add where nobody said what to do with classes of too few rows.

    Args:
        wishes: of the draft.
        left: classes that each way of settling them leaves.
        classes: how many there are now.
    """
    ways = [wishes.option("rare", way) for way, count in left.items() if count > 1]
    if classes > 20:
        ways += [wishes.flag("regression"), wishes.option("bins", 2)]
    return f"Add {' or '.join(ways)}." if ways else _GIVE_MORE


def _take_smallest(rare: list[str], enough: Sequence[str], size: Mapping[str, int]) -> list[str]:
    """Add the smallest classes to those that are too few together; the classes that are left."""
    left = sorted(enough, key=lambda c: size[c])
    while sum(size[c] for c in rare) < _ENOUGH and left:
        rare.append(left.pop(0))
    return left
