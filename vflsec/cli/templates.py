"""Files to start from: a new attack, a new defense."""

from __future__ import annotations

import keyword
import re
from pathlib import Path
from string import Template

from vflsec.core import check
from vflsec.errors import ConfigError
from vflsec.plugins import registry
from vflsec.runtime.atomic_files import write_new

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

from vflsec.plugin import Attack, Guess, View, check, registry

FAMILY = "Others"  # or one of vflsec.report.attack_families


@registry.attack
@dataclass(frozen=True)
class $cls(Attack):
    """Hyper-parameters.

    Attributes:
        power: exponent of the norm, >= 0.
    """

    power: check.NonNegative = 1.0

    needs: ClassVar[frozenset[str]] = frozenset({"gradient:mean"})
    target: ClassVar[str] = "label"
    binary_only: ClassVar[bool] = True

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

from vflsec.plugin import Message, Own, Policy, check, registry


@registry.defense
@dataclass(frozen=True)
class $cls(Policy):
    """Hyper-parameters.

    Attributes:
        power: exponent applied to the strength, > 0.
    """

    power: check.Positive = 1.0

    strengths: ClassVar[str] = "what the swept number means, with its unit; 0 is off"
    covers: ClassVar[frozenset[str]] = frozenset({"gradient"})
    owner: ClassVar[str] = "active"

    def outgoing(self, message: Message, own: Own) -> Tensor:
        d = message.tensor  # (R, b, m)
        if not d.is_floating_point():
            raise self.refuse(message, "it is not a floating-point tensor.")
        scale = 1 - own.column(d).clamp(0, 1) ** self.power  # (R, 1, 1); 1 at strength 0
        return d * scale
'''


_PROJECT = """[build-system]
requires = ["setuptools>=68"]
build-backend = "setuptools.build_meta"

[project]
name = "my-vflsec"
version = "0.1"

[tool.setuptools]
py-modules = ["$name"]

[project.entry-points."vflsec.${kind}s"]
$name = "$name"
"""


def project_text(kind: str, name: str) -> str:
    """A pyproject.toml that registers a module which lies beside it."""
    return Template(_PROJECT).substitute(kind=kind, name=name)


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
    write_new(path, component_text(kind, name))
    return path


def is_registered(kind: str, path: Path) -> bool:
    """Whether discovery finds a file at `path`: it lies in vflsec's own folder."""
    return path.resolve().parent == (Path(__file__).parents[1] / f"{kind}s").resolve()
