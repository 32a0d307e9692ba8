"""The words of a first scenario: one commented TOML file for the user to edit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from string import Template
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vflsec.audit.exposed import LUCKY, count_nameable
from vflsec.audit.gate import MIN_ROWS
from vflsec.config.schema import SCHEMA_FILE
from vflsec.config.toml_text import pair
from vflsec.data.split import rarest, row_sets
from vflsec.runtime.plain_values import Plain, Table
from vflsec.specs import WHICHEVER

if TYPE_CHECKING:
    from vflsec.data.source import Source

_BINARY = ("model_completion", "norm", "direction", "similarity")
_MANY = ("model_completion", "similarity", "cluster")
_NUMERIC = ("value_completion", "residual")
_GRANTED = (*_NUMERIC, "model_completion", "similarity", "cluster")
"""Attacks of the list that get labelled rows of their own number."""
_NOTE = "known_rows: how many labelled rows the attacker was given; its control gets the same"
USUAL = 20
"""Known rows of an attack that is not told how many."""
_WHOLE = (
    "zero_pattern", "dictionary", "message_completion", "gradient_completion", "joint_completion",
)  # fmt: skip
_WHOLE_ROWS = 50_000
"""They read every message of every epoch, which are kept in memory: up to tables of so many rows;
beyond, they are written as a comment."""
_LEFT_OUT = (
    "# What one epoch hides behind noise, many tell. These keep every message of every epoch in",
    "# memory, which is much for so many rows: take the # away, with --replicas 4 if need be.",
)


@dataclass(frozen=True)
class Sweep:
    """A defense in a draft.

    Attributes:
        defense: its name.
        about: the comment above it.
        grid, strength: strengths to sweep, and the one that gates are about.
    """

    defense: str
    about: str
    grid: tuple[float, ...]
    strength: float


@dataclass(frozen=True)
class System:
    """How parties train together in a draft, with what defends it and what attacks it.

    Attributes:
        settings: lines of its section below its name, comments among them.
        sweep: what defends it.
        otherwise: what does where the label is not one of classes; None for the same.
        attacks: on labels, with their settings; None for those on gradients of networks.
        classes: of these, attacks that have no meaning but for one label of classes.
    """

    settings: str
    sweep: Sweep
    otherwise: Sweep | None = None
    attacks: tuple[tuple[str, Table], ...] | None = None
    classes: frozenset[str] = frozenset()


SYSTEMS: Mapping[str, System] = {
    "splitnn": System(
        "# epochs = 30\n# batch_size = 128",
        Sweep(
            "iso",
            "# Noise on the gradients; each strength is a training, 0 is the undefended system.",
            (0, 1, 5, 25), 5,
        ),
    ),
    "secureboost": System(
        '# Which system shows what to whom: "paper", "fate-2", "secretflow" or "xgboost-open".\n'
        'profile = "fate-2"\n# trees = 10\n# depth = 3',
        Sweep(
            "local_trees",
            "# So many of the first trees are grown by the active party alone (complete_secure in\n"
            "# FATE); each number is a training, 0 is the undefended system.",
            (0, 1, 5), 5,
        ),
        attacks=(
            ("leaf_vote", {}), ("leaf_vote", {"by": "model", "beside": True}), ("leaf_graph", {}),
        ),
        classes=frozenset({"leaf_graph"}),
    ),
    "vertical_glm": System(
        "# epochs = 20\n# batch_size = 320",
        Sweep(
            "label_dp",
            "# Labels are randomised before training, by 1 / epsilon; each strength is a\n"
            "# training, 0 is the undefended system.",
            (0, 0.5, 1), 1,
        ),
        Sweep(
            "min_batch",
            "# So many rows of a batch, at least, for each column of the widest passive party;\n"
            "# each number is a training, 0 is the undefended system.",
            (0, 2), 2,
        ),
        attacks=(("glm_gradient", {}),),
    ),
}  # fmt: skip
"""What `init` drafts, by algorithm."""


def scenario_text(
    data: Table, source: Source, *, algorithm: str = "splitnn", found_id: bool = False
) -> str:
    """The scenario for a ``[data]`` section.

    Args:
        data: the keys of the section.
        source: what they load.
        algorithm: one of :data:`SYSTEMS`.
        found_id: whether the id column was found and not given.
    """
    system, sides = SYSTEMS[algorithm], source.label.sides
    one = sides > 1 and not source.labels
    sweep = system.sweep if one else system.otherwise or system.sweep
    labelled = row_sets(source, 0).labelled
    spare = len(labelled) // 2
    known = _known(sides, spare, rarest(source, labelled))
    filled = {
        "data": _data(data, source, found_id),
        "rows": _SPLIT_ROWS if "split" in data else _OWN_ROWS,
        "drop": "" if "drop" in data else _DROP,
        "attacks": _attacks(sides, known, len(source.y)) + _by(source, spare)
        if system.attacks is None
        else _list_attacks(system, known, one=one),
        "exposed": _exposed(source.y[labelled], known) if one else "",
        "name": algorithm,
        "settings": system.settings,
        "about": sweep.about,
        "grid": ", ".join(map(str, sweep.grid)),
        "columns": _COLUMNS if system.attacks is None else "",
        "label": source.label.describe(source.y),
        "schema": SCHEMA_FILE.as_uri(),
    }
    point = {"defense": sweep.defense, "at": str(sweep.strength)}
    filled["exposed"] = Template(filled["exposed"]).substitute(point)
    return Template(_SCENARIO).substitute(filled | point)


def _data(data: Table, source: Source, found_id: bool) -> str:
    comments: dict[str, str] = {
        "task": source.label.remark,
        "label_edges": "The label is a quantity; these are the borders of its classes.",
        "merge_classes": "These classes have too few rows to be trained on and tested alone.",
        "drop_classes": "Rows of these classes, which are too few, count as rows without a label.",
    }
    label = _shown(" or ".join(source.labels or [str(data["label"])]))
    comments["drop"] = f"Left out: every value goes with one {label} only, as its twin would."
    if found_id:
        which = data["id"]
        if isinstance(which, Mapping):
            names = ", ".join(map(str, which.values()))
            said = f"{names} are taken as the ids: their values are unique."
        else:
            said = f"{which} is taken as the id: its values are unique."
        comments["id"] = _shown(said)
    if "file" in data:
        head = "# One table. Say below which party holds which columns: this split is only a guess."
        lines = [head]
    else:
        lines = ["# One table for each party. The active party is the one that has the label."]
        for party, own in source.parties.items():
            names = _shown(", ".join(own.names))
            lines.append(f"#   {party}: {names if len(names) < 88 else names[:85] + '...'}")
    lines.append("[data]")
    for key, value in data.items():
        if key == "columns":
            continue
        if key in comments:
            lines.append(f"# {comments[key]}")
        lines.append(pair(key, value))
    columns = data.get("columns")
    if isinstance(columns, Mapping):
        lines += ["", "[data.columns]", *(pair(p, c) for p, c in columns.items())]
    return "\n".join(lines) + "\n"


def _known(sides: int, spare: int, of_rarest: int) -> int:
    """Known rows to grant: drawn from each class in turn, they leave half of the rarest class."""
    wanted = min(USUAL if sides <= 2 else max(40, 4 * sides), spare)
    return min(wanted, max(1, of_rarest // 2) * sides) if of_rarest else wanted


def _attacks(sides: int, known: int, rows: int) -> str:
    names = {1: _NUMERIC, 2: _BINARY}.get(sides, _MANY)
    whole = ("message_completion",) if sides == 1 else _WHOLE
    lines = [f"# {_NOTE} rows."]
    for name in names:
        granted = name in _GRANTED or known < USUAL
        lines += _attack(name, known_rows=known) if granted else _attack(name)
    every = [line for name in whole for line in _attack(name, known_rows=known)]
    if rows <= _WHOLE_ROWS:
        return "\n".join([*lines, *every])
    if sides > 1:
        lines += _attack("gradient_completion", known_rows=known, epochs="mean")
    out = [f"# {line}".rstrip() for line in every[:-1]]
    return "\n".join([*lines, *_LEFT_OUT, *out, ""])


def _list_attacks(system: System, known: int, *, one: bool) -> str:
    """Attacks of a system that is no network; `one` label of classes, or another kind."""
    lines = [f"# {_NOTE} rows."]
    for name, settings in system.attacks or ():
        if one or name not in system.classes:
            lines += _attack(name, **settings, known_rows=known)
    return "\n".join(lines)


def _attack(name: str, **keys: Plain) -> list[str]:
    return ["[[attack]]", pair("name", name), *(pair(k, v) for k, v in keys.items()), ""]


def _by(source: Source, spare: int) -> str:
    """Attacks of the party that holds the labels on the columns of the others."""
    others = [p for p, own in source.parties.items() if p != source.active and own.names]
    lines = ["# The other direction: what embeddings reveal of columns to the label party.",
             "# aux_rows: for how many rows it knows the other party's columns."]  # fmt: skip
    grants: dict[str, Plain] = {"adversary": source.active, "aux_rows": min(60, spare)}
    lines += _attack("embedding_inversion", **grants)
    victims: list[dict[str, Plain]] = [{"victim": p} if len(others) > 1 else {} for p in others]
    lines += [
        "# Who is in a category, above a mean, far from a median, among the largest or smallest?",
        "# Of all such questions the one that auxiliary rows show to be revealed best; name a",
        "# column to ask about that one.",
    ]
    for victim in victims:
        lines += _attack("attribute", **grants, **victim, column=WHICHEVER)
    lines += ["# How many rows: of one column of one party; name the one that must stay secret."]
    for party, victim in zip(others, victims, strict=True):
        one = _one_column(source, party)
        lines += _attack("property", **(grants | victim | ({"column": one} if one else {})))
    return "\n" + "\n".join(lines)


def _one_column(source: Source, party: str) -> str:
    """The column of a party that attacks on one take by themselves, so that reports name it.

    A name with marks that stand between settings in an attack's label is left to the attack ('').
    """
    victim = source.parties[party]
    kinds = zip(victim.names, victim.categories, strict=True)
    name = next((n for n, kind in kinds if kind is not None), victim.names[0])
    return "" if set(name) & set("()=,+|") or not name.isprintable() else name


def _exposed(y: NDArray[np.int64], known: int) -> str:
    """The gate on exposed people: the least limit of a list that luck leaves room for.

    Args:
        y: classes of the training rows.
        known: labelled rows that attackers are granted, of each class as many.
    """
    sizes = np.maximum(np.bincount(y) - known // max(1, len(np.unique(y))), 0)
    rows, luck = count_nameable(np.repeat(np.arange(len(sizes)), sizes))
    least = LUCKY[0] + LUCKY[1] * luck
    fit = [x for x in _LIMITS if rows >= MIN_ROWS and x * rows >= least]
    limit = min(fit, default=_LIMITS[-1])
    whom = " outside the largest class" if rows < sizes.sum() else ""
    text = Template(_EXPOSED).substitute(limit=limit, many=f"{1000 * limit:g}", whom=whom)
    if fit:
        return text
    few = f"# (Left out: only {rows} rows that are trained on could be named, too few to tell.)"
    gate = [f"# {line}".rstrip() for line in text.splitlines() if line[:1] != "#"]
    return "\n".join([few, *gate, ""])


def _shown(name: str) -> str:
    """A column's name inside a comment."""
    return "".join(c if c.isprintable() else "?" for c in name)


_LIMITS = (0.01, 0.02, 0.05, 0.1)
"""Limits on exposed people that are drafted, the least that a PASS is in reach of."""

_EXPOSED = """\
# ... of 1,000 people$whom who are trained on it may name at most $many with
# certainty that nothing else names (an average does not see the one person who is exposed), ...
[[gate]]
metric = "advantage"
of = "exposed"
target = "label"
split = "train"
max = $limit
defense = "$$defense"
strength = $$at

"""

_OWN_ROWS = """\
# Rows are split by seed; uncomment to change the shares, or name a column that says train or test.
# test = 0.25
# validation = 0.15
# split = "COLUMN"
# Several rows of one person must stay on one side of the split:
# group = "COLUMN"
"""

_DROP = """\
# drop = ["COLUMN"]
"""

_SPLIT_ROWS = """\
# The table says itself which rows are for training and which for testing; see `split` above.
"""

_COLUMNS = """\
# Noise on gradients changes nothing for columns, which embeddings reveal (`embedding_noise` would).
# Limits for that, of the column that is revealed best ("r2" is the mean over columns), and of the
# question about one:
# [[gate]]
# metric = "advantage"
# target = "feature"
# of = "r2_column"
# max = 0.1
#
# [[gate]]
# metric = "advantage"
# target = "attribute"
# max = 0.1

"""

_SCENARIO = """\
#:schema $schema
# Does training on these tables leak the label to the parties that do not have it?
#
# Check it:  vflsec check FILE        Run it:  vflsec audit FILE

$data
$rows# Columns are read as categories when they hold text; say so where numbers are codes.
# categorical = ["COLUMN"]
$drop
# How the parties train together. `vflsec list algorithms` names others.
[algorithm]
name = "$name"
$settings

$about
[[defense]]
name = "$defense"
strength = [$grid]

$attacks
[audit]
seeds = 5

# Limits at the point you would deploy. Strength $at is only a start: run once, see the report,
# and name the strength you choose. An attack on the labels may beat the attacker's baseline (the
# same party without the federation) by 0.1 at most, ...
[[gate]]
metric = "advantage"
target = "label"
max = 0.1
defense = "$defense"
strength = $at

$exposed# ... and the defense may cost 0.05 of utility at most.
[[gate]]
metric = "utility_drop"
max = 0.05
defense = "$defense"
strength = $at

$columns# A floor for the model itself ($label):
# [[gate]]
# metric = "utility"
# min = 0.7
"""
