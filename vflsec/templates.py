"""Files to start from: a new attack, a new defense, a scenario for the user's own tables."""

from __future__ import annotations

import keyword
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any

from vflsec import check, registry
from vflsec.config.toml_text import pair
from vflsec.errors import ConfigError

__all__ = ["component_text", "is_registered", "scenario_text", "write_component", "write_scenario"]

_ATTACK = '''"""ONE SENTENCE: what the attack does, in plain words.

The formula, with shapes: the score of row i is r_i = ...

Attacker: who it is, what it sees, what it was granted. Needs: gradients.
Does not work: ...

Source: AUTHORS, "TITLE", VENUE YEAR, arXiv:NUMBER, section N.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from vflsec import check, registry
from vflsec.attack import Attack
from vflsec.guess import Guess
from vflsec.view import View


@registry.attack
@dataclass(frozen=True)
class $cls(Attack):
    """Hyper-parameters.

    Attributes:
        power: exponent of the norm, >= 0.
    """

    power: float = 1.0

    needs: ClassVar[frozenset[str]] = frozenset({"gradient:mean"})
    target: ClassVar[str] = "label"
    binary_only: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check.non_negative("$name.power", self.power)

    def infer(self, view: View, rng: torch.Generator) -> Guess:
        rows = view.targets["train"]  # (n,) sample ids
        g = view.received("gradient").of_rows(rows)  # (n, d)
        scores = g.norm(dim=1) ** self.power  # (n,), larger = class 1 more certain
        return Guess(self.target, rows, scores)
'''

_DEFENSE = '''"""ONE SENTENCE: what the defense does, in plain words.

The formula, with shapes: an outgoing batch d (b, m) becomes ...

Hook: outgoing. Owner: the active party. Guarantee: none.
Does not stop: ...

Source: AUTHORS, "TITLE", VENUE YEAR, arXiv:NUMBER, section N.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from vflsec import check, registry
from vflsec.message import Message
from vflsec.policy import Own, Policy


@registry.defense
@dataclass(frozen=True)
class $cls(Policy):
    """Hyper-parameters.

    Attributes:
        power: exponent applied to the strength, > 0.
    """

    power: float = 1.0

    strengths: ClassVar[str] = "what the swept number means, with its unit; 0 is off"
    covers: ClassVar[frozenset[str]] = frozenset({"gradient"})
    owner: ClassVar[str] = "active"

    def __post_init__(self) -> None:
        check.positive("$name.power", self.power)

    def outgoing(self, message: Message, own: Own) -> Tensor:
        d = message.tensor  # (R, b, m)
        if not d.is_floating_point():
            raise self.refuse(message, "it is not a floating-point tensor.")
        scale = 1 - own.column(d).clamp(0, 1) ** self.power  # (R, 1, 1); 1 at strength 0
        return d * scale
'''


def component_text(kind: str, name: str) -> str:
    """The source of a new attack or defense; it registers and runs as it is."""
    template = {"attack": _ATTACK, "defense": _DEFENSE}[kind]
    cls = "".join(part.capitalize() for part in name.split("_"))
    return Template(template).substitute(name=name, cls=cls)


def write_component(kind: str, name: str, folder: Path) -> Path:
    """Write it under ``attacks/`` or ``defenses/`` below `folder` if there is one, else in it.

    Raises:
        ConfigError: the name is taken or no module name, or the file exists.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        rule = "a module name: small letters, digits and underscores"
        raise check.fail(f"new {kind}: NAME", rule, name, "For example tail_score.")
    known = registry.attacks if kind == "attack" else registry.defenses
    entry = next((e for e in known.entries().values() if name in (e.name, *e.aliases)), None)
    if entry is not None:
        raise ConfigError(f"new {kind}: {name!r} is taken by {entry.path}. Choose another name.")
    home = folder / f"{kind}s"
    path = (home if home.is_dir() else folder) / f"{name}.py"
    _write_new(path, component_text(kind, name))
    return path


def is_registered(kind: str, path: Path) -> bool:
    """Whether discovery finds a file at `path`: it lies in vflsec's own folder."""
    return path.resolve().parent == (Path(__file__).parent / f"{kind}s").resolve()


def write_scenario(tables: Sequence[Path], *, label: str, id: str, out: Path) -> None:
    """Write a commented scenario for the user's tables; the one with the label is active.

    Raises:
        DataError: a table cannot be read.
        ConfigError: a column is not there, a name is taken twice, or `out` exists.
    """
    from vflsec.data import guess_roles
    from vflsec.data.reading import read_frame

    frames = {path: read_frame(path) for path in tables}
    columns = {path: list(frame.columns) for path, frame in frames.items()}
    holder = next((f for f in frames.values() if label in f.columns), None)
    known: dict[str, Any] = {}
    if holder is not None:
        found = "" if id else guess_roles.id_column(list(frames.values()), label)
        id = id or found
        known["split"] = guess_roles.split_column(holder, label)
        known["classes"], known["largest"] = guess_roles.label_shares(holder, label)
        known["twins"] = guess_roles.label_twins(holder, label, (id, known["split"]))
        known["found_id"] = bool(found)
    _write_new(out, scenario_text(columns, label=label, id=id, base=out.parent, **known))


def scenario_text(
    columns: Mapping[Path, Sequence[str]], *, label: str, id: str, base: Path,
    classes: int = 2, largest: float = 0.5, split: str = "", twins: Sequence[str] = (),
    found_id: bool = False,
) -> str:  # fmt: skip
    """A scenario for tables with these columns, paths written relative to `base`.

    Args:
        columns: by table.
        label, id: column names.
        base: folder of the scenario.
        classes: number of distinct labels; attacks that have no meaning for it are left out.
        largest: share of the largest class, told beside the floor of utility.
        split: column that says train or test, "" for none.
        twins: columns that give the label away by themselves; they are left out.
        found_id: whether `id` was read off the tables and not given.

    Raises:
        ConfigError: a column is not there or ambiguous, or two tables have one name.
    """
    parties = _parties(list(columns))
    holders = [p for p in columns if label in columns[p]]
    if len(holders) != 1:
        every = sorted({c for names in columns.values() for c in names})
        where = "no table" if not holders else " and ".join(str(p) for p in holders)
        raise ConfigError(
            f"init: --label must be a column of exactly one table, got {label!r}, which is in "
            f"{where}. {check.nearest(label, every)}".rstrip()
        )
    for path, names in columns.items():
        if id and id not in names:
            raise ConfigError(
                f"init: --id must be a column of every table, got {id!r}, which {path} lacks. "
                f"{check.nearest(id, names)}".rstrip()
            )
    if len(columns) > 1 and not id:
        raise ConfigError(
            "init: several tables need --id, the column that links their rows; none is in every "
            "table with another value in every row."
        )
    if len(columns) == 1:
        names = [c for c in next(iter(columns.values())) if c not in (split, *twins)]
        data = _one_table(next(iter(columns)), names, label, id, base)
    else:
        data = _many_tables(columns, parties, parties[holders[0]], label, id, base)
    if split:
        head, mark, groups = data.partition("\n[data.columns]\n")
        data = f"{head.rstrip()}\n{pair('split', split)}\n{mark}{groups}"
    if twins:
        head, mark, groups = data.partition("\n[data.columns]\n")
        note = f"# Left out: every value goes with one {_shown(label)} only, as its twin would."
        data = f"{head.rstrip()}\n{note}\n{pair('drop', list(twins))}\n{mark}{groups}"
    if found_id:
        note = f"# {_shown(id)} has another value in every row, so it is taken as the id."
        data = data.replace("\nid = ", f"\n{note}\nid = ", 1)
    known = {"rows": _SPLIT_ROWS if split else _OWN_ROWS, "drop": "" if twins else _DROP}
    known["attacks"] = _BINARY if classes == 2 else _MANY
    known["label"] = f"{classes} classes, the largest has {largest:.0%} of the rows"
    return Template(_SCENARIO).substitute(data=data, **known)


def _parties(paths: Sequence[Path]) -> dict[Path, str]:
    names = {p: re.sub(r"\W+", "_", p.name.split(".")[0]) for p in paths}
    if len(set(names.values())) != len(names):
        raise ConfigError(
            f"init: tables must have different names, got {', '.join(map(str, paths))}. "
            "A party is called by its file; rename one."
        )
    return names


def _shown(name: str) -> str:
    """A column's name inside a comment."""
    return "".join(c if c.isprintable() else "?" for c in name)


def _relative(path: Path, base: Path) -> str:
    try:
        return Path(os.path.relpath(path.resolve(), base.resolve())).as_posix()
    except ValueError:  # another drive
        return path.resolve().as_posix()


def _many_tables(
    columns: Mapping[Path, Sequence[str]], parties: Mapping[Path, str], active: str, label: str,
    id: str, base: Path,
) -> str:  # fmt: skip
    files = {parties[p]: _relative(p, base) for p in columns}
    lines = ["# One table for each party. The active party is the one that has the label."]
    for path, names in columns.items():
        own = ", ".join(c for c in names if c not in (label, id))
        lines.append(f"#   {parties[path]}: {own if len(own) < 88 else own[:85] + '...'}")
    body = {"files": files, "id": id, "label": label, "active": active}
    return "\n".join(lines) + "\n[data]\n" + _pairs(body)


def _one_table(path: Path, names: Sequence[str], label: str, id: str, base: Path) -> str:
    features = [c for c in names if c not in (label, id)]
    if len(features) < 2:
        raise ConfigError(f"init: {path} needs two feature columns or more to be split vertically.")
    half = (len(features) + 1) // 2
    body = {"file": _relative(path, base), "id": id, "label": label, "active": "active"}
    groups = {"active": features[:half], "passive": features[half:]}
    return (
        "# One table. Say below which party holds which columns: this split is only a guess.\n"
        "[data]\n" + _pairs(body) + "\n[data.columns]\n" + _pairs(groups)
    )


def _pairs(body: Mapping[str, object]) -> str:
    return "".join(f"{pair(key, value)}\n" for key, value in body.items() if value != "")


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

_MANY = """\
# known_rows: how many labelled rows the attacker was given; its control gets the same rows.
[[attack]]
name = "model_completion"
known_rows = 40
"""

_BINARY = """\
# known_rows: how many labelled rows the attacker was given; its control gets the same rows.
[[attack]]
name = "model_completion"
known_rows = 20

[[attack]]
name = "norm"

[[attack]]
name = "direction"
"""

_SCENARIO = """\
# Does training on these tables leak the label to the parties that do not have it?
#
# Check it:  vflsec check FILE        Run it:  vflsec audit FILE

$data
$rows# Columns are read as categories when they hold text; say so where numbers are codes.
# categorical = ["COLUMN"]
$drop
# How the parties train together. `vflsec list algorithms` names others.
[algorithm]
name = "splitnn"
# epochs = 30
# batch_size = 128

# Noise on the gradients; each strength is a training, 0 is the undefended system.
[[defense]]
name = "iso"
strength = [0, 1, 5, 25]

$attacks
[audit]
seeds = 5

# Two limits at the point you would deploy. Strength 5 is only a start: run once, see the report,
# and name the strength you choose. An attack may beat the attacker's own means by 0.1 at most, ...
[[gate]]
metric = "advantage"
max = 0.1
defense = "iso"
strength = 5

# ... and the defense may cost 0.05 of utility at most.
[[gate]]
metric = "utility_drop"
max = 0.05
defense = "iso"
strength = 5

# A floor for the model itself ($label):
# [[gate]]
# metric = "utility"
# min = 0.7
"""


def _write_new(path: Path, text: str) -> None:
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ConfigError(f"{path}: exists already. Name another file, or remove it.") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}.") from None
