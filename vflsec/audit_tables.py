"""An audit of tables in one call: draft a scenario as `vflsec init` does, train, attack, judge.

`vflsec.audit` is the function of this module.
"""

from __future__ import annotations

import inspect
import os
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from vflsec.cli.draft import Wishes, draft_scenario
from vflsec.cli.draft_systems import SYSTEMS
from vflsec.config.scenario import load_scenario
from vflsec.core import check
from vflsec.data.in_memory import make_temporary_folder, write_frame
from vflsec.engine.run import run_audit
from vflsec.plugins import registry
from vflsec.specs import DefenseSpec

if TYPE_CHECKING:
    from vflsec.report.notebook import Audit

Table = pd.DataFrame | str | Path
_RUN = ("device", "jobs", "fresh", "progress", "attacker")
"""Arguments of `vflsec.run_audit` among `params`."""


def audit(
    tables: Table | Sequence[Table] | Mapping[str, Table], label: str | Sequence[str],
    id: str | Mapping[str, str] = "", *, columns: Mapping[str, Sequence[str]] | None = None,
    divide: Mapping[str, Any] | None = None, algorithm: str = "splitnn",
    defenses: str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]] | None = None,
    attacks: str | Sequence[str | Mapping[str, Any]] | None = None, seeds: int | Sequence[int] = 5,
    max: float | None = None, out: str | Path | None = None, rare: str = "", bins: int = 0,
    regression: bool = False, numeric: Sequence[str] = (), categorical: Sequence[str] = (),
    group: str = "", id_match: Sequence[str] = (), duplicates: str = "",
    aggregate: Mapping[str, str] | None = None,
    missing: Mapping[str, str | Sequence[str]] | None = None, **params: Any,
) -> Audit:  # fmt: skip
    """Does training on these tables leak the label, how much, and to whom?

    DataFrames are written to a temporary folder for the run; no row of theirs stays behind.

    Args:
        tables: a DataFrame or a path for each party, by its name or in a list (then the party with
            the label is ``active``, or a party is called by its file); or one for all parties,
            whose columns are divided into halves, or as `columns` or `divide` say.
        label: the column to predict, or a list of several yes/no ones; the party whose table has
            them is the active one.
        id: the column that links rows, by party where it differs; found if it is obvious. A named
            index counts as a column.
        columns: of one table for all, the columns of each party; the first party has the label.
        divide: of one table for all, how its columns are drawn for ``active`` and ``passive``:
            ``{"importance": share}``, ``{"alpha": weight}`` or ``{"correlation": 0 to 1}``.
        algorithm: registered name.
        defenses: ``{name: strength}``, ``{name: [strengths]}``, ``{name: {"strength": ..., ...}}``
            or names; none with ``{}``. None takes the sweep that `vflsec init` writes.
        attacks: names, or mappings with ``name``, grants and hyper-parameters; None takes those
            that `vflsec init` writes for so many classes.
        seeds: their number, or the seeds.
        max: the advantage that passes; if not given, the limit that `vflsec init` writes. Where
            `defenses` are given it is asked at every strength of theirs; else where `vflsec init`
            asks it, beside a limit on the cost.
        out: results directory; default ``out/NAME``, after the active party's table.
        rare: what to do with classes of too few rows: ``drop`` or ``merge``.
        bins: classes to cut a label into that is a quantity; else it is predicted as a number.
        regression: predict the label as a number even if it could be classes.
        numeric, categorical: columns that hold numbers, or text, whatever they look like.
        group: column whose equal values stay on one side of a split, such as a person.
        id_match: what ids may differ in and still match: ``strip`` (blanks and hidden marks),
            ``punctuation``, ``casefold``, ``zeros`` (at the front).
        duplicates: ``first`` keeps the first of rows that are equal in every column.
        aggregate: by column how several rows of one id become one, such as ``mean``.
        missing: by column the values that mean "none", such as ``"-999"``.
        params: ``device``, ``jobs``, ``fresh``, ``progress``, ``attacker`` as for
            :func:`vflsec.run_audit`; all others are hyper-parameters of the algorithm.

    Returns:
        results as pandas, findings, verdicts; it shows itself in a notebook.

    Raises:
        DataError: a table cannot be used.
        ConfigError: an argument cannot.
    """
    check_arguments("audit", audit, params, algorithm)
    how = {k: params.pop(k) for k in _RUN if k in params}
    kinds = ([of] if isinstance(of, str) else of for of in (numeric, categorical))
    if divide is not None and (not isinstance(divide, Mapping) or not divide):
        raise check.fail("audit: divide", "a mapping that is not empty", divide)
    wishes = Wishes(
        "", (), (), (), (), rare, bins, regression, "", "audit", *kinds, group=group,
        id_match=[id_match] if isinstance(id_match, str) else id_match, duplicates=duplicates,
        aggregate=[f"{c}={way}" for c, way in (aggregate or {}).items()],
        missing=[
            f"{c}={text}" for c, given in (missing or {}).items()
            for text in ([given] if isinstance(given, str) else given)
        ],
        columns={} if columns is None else _check_columns(columns), divide=divide or {},
        algorithm=algorithm if algorithm in SYSTEMS else "splitnn",
        params=params if algorithm in SYSTEMS else {},
    )  # fmt: skip
    with open_tables(tables, label, id, wishes) as (scenario, notes, base):
        scenario["algorithm"] = {**scenario["algorithm"], "name": algorithm, **params}
        scenario["audit"]["seeds"] = seeds
        if attacks is not None:
            scenario["attack"] = list_sections("audit: attacks", attacks)
        _set_gates(scenario, defenses, max)
        audited = run_audit(load_scenario(scenario, base=base), out, **how)
    said = audited.found.notes
    more = [n for n in notes if not any(s.endswith(n) for s in said)]
    return replace(audited, summary={**audited.summary, "notes": [*more, *said]})


@contextmanager
def open_tables(
    tables: Any, label: Any, id: Any, wishes: Wishes
) -> Iterator[tuple[dict[str, Any], list[str], Path]]:
    """The scenario that `vflsec init` drafts for tables, while DataFrames among them are files.

    Args:
        tables, label, id: as for :func:`audit`.
        wishes: of the draft, besides label and id; errors name its caller.

    Yields:
        the scenario, notes of the draft, and where its relative paths start from.
    """
    labels = _check_names(wishes.who, label, id)
    named = _name_tables(wishes.who, tables, labels)
    ids = [f"{p}={c}" for p, c in id.items()] if isinstance(id, Mapping) else [id] if id else []
    asked = labels[0] if len(labels) == 1 else labels
    wishes = replace(wishes, label=asked, id=ids)
    here = Path.cwd()
    in_memory = any(isinstance(t, pd.DataFrame) for t in named.values())
    with make_temporary_folder() if in_memory else nullcontext(here) as base:
        found = draft_scenario(_write_tables(named, base, here), wishes, base)
        scenario = tomllib.loads(found.text)
        data = scenario["data"]
        if in_memory:
            for p, t in named.items():
                if not isinstance(t, pd.DataFrame):
                    data["files"][p] = os.path.abspath(here / t)
        first = Path(data.get("file") or data["files"][data["active"]])
        scenario["name"] = first.name.split(".")[0]
        yield scenario, list(found.notes), base


def check_arguments(
    name: str, function: Callable[..., Any], given: Iterable[str], algorithm: str = ""
) -> None:
    """Refuse what is neither an argument of a function nor a hyper-parameter of an algorithm.

    Raises:
        ConfigError: there is such a name; the message says the nearest.
    """
    named = inspect.signature(function).parameters.values()
    known = [p.name for p in named if p.kind != p.VAR_KEYWORD]
    known += _RUN if function is audit else ()
    if algorithm:
        known += registry.list_parameters(registry.algorithms.get(algorithm))
    for argument in given:
        check.one_of(f"{name}: an argument", argument, known)


def _check_names(who: str, label: Any, id: Any) -> Sequence[str]:
    """The label columns, one or several; columns must be named by texts."""
    labels = [label] if isinstance(label, str) else label
    if not isinstance(labels, list | tuple) or not labels:
        raise check.fail(f"{who}: label", "the name of a column, or a list of them", label)
    for key, names in (("label", labels), ("id", () if isinstance(id, Mapping) else (id,))):
        for text in names:
            if not isinstance(text, str):
                raise check.fail(f"{who}: {key}", "the name of a column", text)
    return labels


def _write_tables(named: Mapping[str, Table], base: Path, here: Path) -> dict[str, Path]:
    """The file of each table; those in memory are written to `base`."""
    return {
        p: base / write_frame(t, p, base) if isinstance(t, pd.DataFrame) else here / t
        for p, t in named.items()
    }


def _name_tables(who: str, tables: Any, labels: Sequence[str]) -> dict[str, Table]:
    """The tables by party; one that stands alone is called ``table`` or by its file."""
    rule = "a DataFrame, a path, a list of them, or {party: table}"
    if isinstance(tables, Mapping):
        named = {str(p): t for p, t in tables.items()}
    else:
        listed = [tables] if isinstance(tables, Table) else tables
        if not isinstance(listed, list | tuple):
            raise check.fail(f"{who}: tables", rule, type(tables).__name__)
        named = {}
        for t in listed:
            name = _name_table(t, labels, len(listed), named)
            if name in named:
                raise check.fail(f"{who}: tables", f"{rule}, by names that differ", name,
                                 "Name the parties: {party: table}.")  # fmt: skip
            named[name] = t
    for p, t in named.items():
        if not isinstance(t, Table) or (isinstance(t, str) and not t.strip()):
            raise check.fail(f"{who}: tables", rule, f"{type(t).__name__} for {p!r}")
    if not named:
        raise check.fail(f"{who}: tables", rule, "none")
    return named


def _name_table(table: Any, labels: Sequence[str], count: int, taken: Mapping[str, Any]) -> str:
    if not isinstance(table, pd.DataFrame):
        return Path(str(table)).name.split(".")[0]
    if count == 1:
        return "table"
    if any(label in table.columns for label in labels):
        return "active"
    return "passive" if count == 2 else f"passive_{sum(t.startswith('passive') for t in taken) + 1}"


def list_sections(what: str, given: Any) -> list[dict[str, Any]]:
    """Names, mappings with ``name`` and specifications as sections of a scenario.

    Raises:
        ConfigError: something is neither; `what` says where.
    """
    listed = [given] if isinstance(given, str | Mapping) else given
    rule = "names, or mappings with `name`"
    if not isinstance(listed, Iterable):
        raise check.fail(what, rule, given)
    out: list[dict[str, Any]] = []
    for one in listed:
        if isinstance(one, DefenseSpec):
            out.append({**one.params, "name": one.name, "party": one.party})
            if one.strength is not None:
                out[-1]["strength"] = one.strength
        elif isinstance(one, str) or (isinstance(one, Mapping) and "name" in one):
            out.append({"name": one} if isinstance(one, str) else dict(one))
        else:
            raise check.fail(what, rule, one)
    return out


def list_defenses(who: str, given: Any) -> list[dict[str, Any]]:
    """Defenses as sections of a scenario: as :func:`list_sections`, or ``{name: settings}``."""
    if isinstance(given, Mapping) and "name" not in given:
        named = {n: s if isinstance(s, Mapping) else {"strength": s} for n, s in given.items()}
        given = [{"name": n, **{k: v for k, v in s.items() if (k, v) != ("strength", None)}}
                 for n, s in named.items()]  # fmt: skip
    return list_sections(f"{who}: defenses", given)


def _check_columns(columns: Any) -> dict[str, list[str]]:
    """Lists of columns by party."""
    rule = "lists of columns by party"
    if not isinstance(columns, Mapping) or not columns:
        raise check.fail("audit: columns", rule, columns)
    for names in columns.values():
        if isinstance(names, str) or not isinstance(names, Iterable):
            raise check.fail("audit: columns", rule, names)
    return {str(party): list(names) for party, names in columns.items()}


def _set_gates(scenario: dict[str, Any], defenses: Any, limit: float | None) -> None:
    """The defenses that were named, and the gates on them."""
    gates = scenario["gate"]
    if limit is not None:  # of the advantage, whatever the draft limits in its place
        gates[0] = {k: v for k, v in gates[0].items() if k != "of"}
        gates[0]["max"] = check.finite("audit: max", limit)
    if defenses is None:
        return
    scenario["defense"] = list_defenses("audit", defenses)
    where = "defended" if scenario["defense"] else "none"
    asked = {k: gates[0][k] for k in ("metric", "of", "max") if k in gates[0]}
    scenario["gate"] = [asked | {"defense": where}]
