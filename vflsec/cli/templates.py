"""Files to start from: a new attack, a new defense."""

from __future__ import annotations

import keyword
import re
from pathlib import Path

from jinja2 import Template

from vflsec.core import check
from vflsec.errors import ConfigError
from vflsec.plugins import registry
from vflsec.runtime.atomic_files import write_new


def _render(template: str, **words: object) -> str:
    """A text that lies beside this module, with these words in their places."""
    text = Path(__file__).with_name(template).read_text(encoding="utf-8")
    return Template(text, keep_trailing_newline=True, trim_blocks=True).render(words)


def project_text(folder: Path, *, whole: bool) -> str:
    """What a pyproject.toml says that registers every attack and defense which lies beside it; the
    `whole` of it, or without what it says of the project.
    """
    kinds: dict[str, list[str]] = {}
    for path in sorted(folder.glob("*.py")):
        text = path.read_text(encoding="utf-8", errors="replace")
        for kind in re.findall(r"^@registry\.(attack|defense)\b", text, re.M)[:1]:
            kinds.setdefault(kind, []).append(path.stem)
    modules = ", ".join(f'"{name}"' for names in kinds.values() for name in names)
    return _render("new_project.toml.j2", kinds=kinds, modules=modules, whole=whole)


def component_text(kind: str, name: str) -> str:
    """The source of a new attack or defense; it registers and runs as it is."""
    return _render(f"new_{kind}.py.j2", cls="".join(x.capitalize() for x in name.split("_")))


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
