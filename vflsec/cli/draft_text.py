"""The words of a first scenario: one commented TOML file for the user to edit."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from vflsec.audit.exposed import LUCKY, count_nameable
from vflsec.audit.gate import MIN_ROWS
from vflsec.cli.draft_systems import SYSTEMS, System
from vflsec.config.components import flat_params
from vflsec.config.sections import Attack
from vflsec.config.toml_text import format_pair
from vflsec.core.quantity_questions import take_turns
from vflsec.core.rng import numpy_generator
from vflsec.data.prepare import build_schema
from vflsec.data.split import row_sets
from vflsec.plan import observe
from vflsec.plan.room import leaves_no_room, pick_scored
from vflsec.plan.values import DataInfo
from vflsec.plugins import registry
from vflsec.runtime.plain_values import Plain, Table
from vflsec.specs import WHICHEVER, AttackSpec, CellSpec

if TYPE_CHECKING:
    from vflsec.data.source import Source

EDITOR_SCHEMA = "vflsec.schema.json"
"""The file beside a draft that its first line names, so that folder and editor may move."""
_BINARY = ("model_completion", "norm", "direction", "similarity")
_MANY = ("model_completion", "similarity", "cluster")
_NUMERIC = ("value_completion", "residual")
_GRANTED = (*_NUMERIC, "model_completion", "similarity", "cluster")
"""Attacks of the list that get labelled rows of their own number."""
SETTINGS: dict[str, dict[str, Plain]] = {"model_completion": {"columns": True}}
"""Hyper-parameters that are not as published."""
USUAL = 20
"""Known rows of an attack that is not told how many."""
_WHOLE = (
    "zero_pattern", "dictionary", "message_completion", "gradient_completion", "joint_completion",
)  # fmt: skip
_WHOLE_ROWS = 50_000
"""They read every message of every epoch, which are kept in memory: up to tables of so many rows;
beyond, they are written as a comment."""
_SAMPLE, _NUMBERS, _LEAST = 100_000, 2**22, 1000
"""Rows that attacks guess, in tables of more than twice as many; fewer where the columns of a party
make more numbers of them than the second, but not fewer than the third."""
_SEES_ALL = 5
"""Times as many rows up to which attacks are given the messages of all."""
_UNEQUAL = 1 / 3
"""Share of the rarer of two classes below which attacks that tell classes by size are drafted."""
_LIMITS = (0.01, 0.02, 0.05, 0.1)
"""Limits on exposed rows that are drafted, the least that a PASS is in reach of."""
_CODES, _DIGITS = (3, 20), 5
"""How many different codes of one digit or more are few, and of how many digits any number is."""
_ADVANTAGE, _SHARE = 0.1, 0.25
"""The limit on an attack's advantage; that on the share of the remaining error, where own columns
leave less to gain."""


def scenario_text(
    data: Table, source: Source, *, algorithm: str = "splitnn", params: Table | None = None,
    found_id: bool = False,
) -> str:  # fmt: skip
    """The scenario for a ``[data]`` section: ``scenario.toml.j2`` filled in.

    Args:
        data: the keys of the section.
        source: what they load.
        algorithm: one of :data:`vflsec.cli.draft_systems.SYSTEMS`.
        params: its hyper-parameters, where they are not the draft's.
        found_id: whether the id column was found and not given.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    env = Environment(
        loader=FileSystemLoader(Path(__file__).parent), trim_blocks=True, lstrip_blocks=True,
        keep_trailing_newline=True, undefined=StrictUndefined,
    )  # fmt: skip
    sides, rows = source.label.sides, row_sets(source, 0).labelled
    system, one = SYSTEMS[algorithm], sides > 1 and not source.labels
    spare = len(rows) // 2
    widest = max(1, *(build_schema(p).width for p in source.parties.values()))
    most = min(_SAMPLE, max(_LEAST, _NUMBERS // widest))
    sample = most if len(source.y) > 2 * most else 0
    known = min(_count_known(sides), spare)
    grants: dict[str, Plain] = {"aux_rows": min(60, spare)}
    others = [p for p, own in source.parties.items() if p != source.active and own.names]
    victims: list[dict[str, Plain]] = [{"victim": p} if len(others) > 1 else {} for p in others]
    named = [{"column": c} if (c := _one_column(source, p)) else {} for p in others]
    text: str = env.get_template("scenario.toml.j2").render(
        schema=EDITOR_SCHEMA, data=data, comments=_explain(data, source, found_id),
        columns=[(p, _short(own.names)) for p, own in source.parties.items()],
        algorithm=algorithm, system=system,
        sweep=system.sweep if one else system.otherwise or system.sweep,
        of_columns=_list_readers(system, grants) if others else (),
        of_messages=_list_own(system, known, by_size=one and _is_unequal(source.y[rows])),
        refused=partial(_explain_refused, _describe(source, algorithm, params)),
        sides=sides, known=known, pair=format_pair, as_comment=_as_comment, grants=grants,
        attacks=_list_attacks(sides, known),
        many_rows=len(source.y) > _WHOLE_ROWS,
        sample=sample,
        sees_sample=len(source.y) > _SEES_ALL * _SAMPLE,
        of_every_epoch=("message_completion",) if sides == 1 else _WHOLE,
        questions=[{**grants, **v, "column": WHICHEVER} for v in victims],
        shares=[{**grants, **v, **c} for v, c in zip(victims, named, strict=True)],
        exposed=_exposed(source, rows, known, sample) if one else None,
        no_room=leaves_no_room(source, _ADVANTAGE), advantage=_ADVANTAGE, share=_SHARE,
        label=source.label.describe(source.y), codes=_find_codes(source),
    )  # fmt: skip
    return text


def _find_codes(source: Source) -> list[str]:
    """Columns that are read as numbers and may be codes."""
    tables = source.facts.tables.tables
    numbers = {(c.party, c.name) for t in tables for c in t.columns
               if (c.role, c.kind) == ("feature", "number")}  # fmt: skip
    return [
        name for party, data in source.parties.items()
        for name, column in zip(data.names, data.values.T, strict=True)
        if (party, name) in numbers and _may_be_codes(column)
    ]  # fmt: skip


def _may_be_codes(column: NDArray[np.float64]) -> bool:
    """Whether its values repeat and are whole numbers from 1 on, few or all of as many digits.

    Counts have a 0, and amounts as many digits as they need.
    """
    there = column[~np.isnan(column)]
    distinct = np.unique(there)
    whole = np.array_equal(there, np.trunc(there)) and len(there) >= 2 * len(distinct)
    if not whole or len(distinct) < _CODES[0] or distinct[0] < 1:
        return False
    digits = [len(f"{v:.0f}") for v in (distinct[0], distinct[-1])]
    return len(distinct) <= _CODES[1] or digits[0] == digits[1] >= _DIGITS


def _list_attacks(sides: int, known: int) -> list[tuple[str, dict[str, Plain]]]:
    """Attacks on labels of so many classes, and what their sections set."""
    names = {1: _NUMERIC, 2: _BINARY}.get(sides, _MANY)
    granted = names if known < USUAL else _GRANTED
    return [
        (a, ({"known_rows": known} if a in granted else {}) | SETTINGS.get(a, {})) for a in names
    ]


def _list_own(system: System, known: int, *, by_size: bool) -> list[tuple[str, dict[str, Plain]]]:
    """Attacks of a system's own messages, and what their sections set.

    Args:
        known: labelled rows that attackers are granted where nothing else is said.
        by_size: whether sizes tell classes apart.
    """
    return [
        (name, {"known_rows": known} | dict(settings)) for name, settings in system.attacks or ()
        if by_size or name not in system.by_size
    ]  # fmt: skip


def _list_readers(system: System, grants: Table) -> list[tuple[str, Table]]:
    """The attacks on columns by what a system sends, and what their sections set."""
    return [(name, {**grants, **keys}) for name, keys in system.columns]


def _describe(
    source: Source, algorithm: str, params: Table | None
) -> tuple[observe.System, set[str]]:
    """The system of a draft, and its parties with categories."""
    parties = (source.active, *(p for p in source.parties if p != source.active))
    info = DataInfo("", {}, parties, source.classes, 0, "", labels=source.labels,
                    label_holder=source.label_holder)  # fmt: skip
    settings = {**tomllib.loads("\n".join(SYSTEMS[algorithm].settings)), **(params or {})}
    coded = {p for p, own in source.parties.items() if any(own.categories)}
    return observe.System(info, CellSpec({}, algorithm, settings)), coded


def _explain_refused(
    about: tuple[observe.System, set[str]], name: str, keys: Table
) -> str:  # fmt: skip
    """Why an attack cannot run on the system of a draft, or ''."""
    (system, coded), section = about, Attack.model_validate({"name": name, **keys})
    params, info = flat_params(section), system.info
    attack = registry.attacks.create(name, params)
    role = section.adversary or observe.choose_attacker(attack, system)
    who = {"active": info.active, "passive": info.parties[-1]}.get(str(role), str(role))
    label = registry.attacks.get(name).each_label(info.labels, info.classes)[0]  # type: ignore[attr-defined]
    spec = AttackSpec(name, params, (who,), section.known_rows, section.prior, section.aux_rows,
                      of_label=label)  # fmt: skip
    refusal = observe.find_refusal(attack, spec, system)
    return refusal.reason if refusal else attack.explain_codes(sorted(coded - {who}))


def _as_comment(text: str) -> str:
    """Lines that are no comment yet, as one."""
    return "".join(f"{f'# {line}'.rstrip()}\n" for line in text.rstrip().split("\n"))


def _short(names: Sequence[str]) -> str:
    text = _shown(", ".join(names))
    return text if len(text) < 88 else f"{text[:85]}..."


def _explain(data: Table, source: Source, found_id: bool) -> dict[str, str]:
    """What stands above some keys of the section."""
    label = _shown(" or ".join(source.labels or [str(data["label"])]))
    said = {
        "task": source.label.remark,
        "label_edges": "Borders of the label's classes.",
        "merge_classes": "Classes of too few rows.",
        "drop_classes": "Classes of too few rows.",
        "drop": f"Left out: copies of {label}, and what you named.",
    }
    if not found_id:
        return said
    return said | {"id": "Found: its values are unique."}


def _count_known(sides: int) -> int:
    """Known rows to grant, where there are as many to spare."""
    return USUAL if sides <= 2 else max(40, 4 * sides)


def _one_column(source: Source, party: str) -> str:
    """The column of a party that attacks on one take by themselves, so that reports name it.

    A name with marks that stand between settings in an attack's label is left to the attack ('').
    """
    victim = source.parties[party]
    kinds = zip(victim.names, victim.categories, strict=True)
    name = next((n for n, kind in kinds if kind is not None), victim.names[0])
    return "" if set(name) & set("()=,+|") or not name.isprintable() else name


def _is_unequal(y: NDArray[np.int64]) -> bool:
    """Whether sizes tell classes (n,) apart: of more than two each from all others."""
    sizes = np.bincount(y)
    return len(sizes) > 2 or min(sizes) < _UNEQUAL * len(y)


class _Exposed(NamedTuple):
    """A gate on exposed rows: its limit in shares and in words, whom, and whether it can pass."""

    limit: float
    many: str
    whom: str
    rows: int
    fits: bool


def _exposed(
    source: Source, trained: NDArray[np.int64], known: int, sample: int
) -> _Exposed:  # fmt: skip
    """The gate on exposed rows: the least limit of a list that luck leaves room for.

    Args:
        trained: labelled rows that are trained on.
        known: how many of them attackers are granted.
        sample: how many of the others they guess, 0 for all.
    """
    y = source.y[pick_scored(source, _leave_known(source.y, trained, known), sample)]
    rows, luck = count_nameable(y)
    least = LUCKY[0] + LUCKY[1] * luck
    fit = [x for x in _LIMITS if rows >= MIN_ROWS and x * rows >= least]
    limit = min(fit, default=_LIMITS[-1])
    whom = " outside the largest class" if rows < len(y) else ""
    return _Exposed(limit, f"{1000 * limit:g}", whom, rows, bool(fit))


def _leave_known(
    y: NDArray[np.int64], rows: NDArray[np.int64], known: int
) -> NDArray[np.int64]:  # fmt: skip
    """The rows that are scored: without `known` ones, drawn as they are granted."""
    drawn = numpy_generator(0, "known_rows").permutation(rows)
    there, side = np.unique(y[drawn], return_inverse=True)
    kinds = ((c, len(there), torch.from_numpy(side == c)) for c in range(len(there)))
    return np.sort(drawn[take_turns(kinds, len(drawn)).argsort(stable=True).numpy()[known:]])


def _shown(name: str) -> str:
    """A column's name inside a comment."""
    return "".join(c if c.isprintable() else "?" for c in name)
