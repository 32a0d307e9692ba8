"""What is registered, read from source files: for `list`, which imports none of them, and `show`.

Importing a component imports torch, which takes seconds; parameters, needs and target are therefore
read from the syntax tree. `show` imports an attack whose needs are computed.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vflsec.cli.type_words import describe_type
from vflsec.core import check
from vflsec.errors import ConfigError
from vflsec.plugins import registry
from vflsec.plugins.loading import parse_source

SECTION_NAMES = ("data", "parties", "algorithm", "defense", "attack", "audit", "gate")

KINDS = ("attacks", "defenses", "algorithms", "datasets", "scenarios")
_REGISTRIES = {
    "attacks": registry.attacks,
    "defenses": registry.defenses,
    "algorithms": registry.algorithms,
    "datasets": registry.datasets,
}
_SHOWN = ("needs", "optional", "target", "binary_only", "strengths", "sends", "covers", "owner")
_GIVEN = ("needs", "optional")


def list_kind(kind: str) -> list[dict[str, str]]:
    """Name, summary and source of everything of one kind, sorted by name.

    Raises:
        ConfigError: there is no such kind.
    """
    check.one_of("list: KIND", kind, KINDS)
    if kind == "scenarios":
        from vflsec.config.scenario import packaged_scenarios

        return [
            {"name": name, "summary": scenario_summary(path), "source": f"scenarios/{path.name}"}
            for name, path in packaged_scenarios().items()
        ]
    return [
        {"name": e.name, "summary": e.summary, "source": e.source}
        for e in _REGISTRIES[kind].entries().values()
    ]


def scenario_summary(path: Path) -> str:
    """The first comment line of a scenario."""
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("#:"):
            continue  # a word to editors
        if line.startswith("#"):
            return line.lstrip("# ").strip()
        if line.strip():
            break
    return ""


def lookup(name: str) -> list[dict[str, Any]]:
    """Everything that is called `name`: one entry for each kind that has it.

    ``data``, ``algorithm``, ``defense``, ``attack``, ``audit``, ``gate`` and ``parties`` are
    sections of a scenario; ``parameters`` are then their keys.

    Raises:
        ConfigError: nothing is.
    """
    found = []
    every: list[str] = list(SECTION_NAMES)
    if name in SECTION_NAMES:
        found.append(_describe_section(name))
    for kind, known in _REGISTRIES.items():
        for entry in known.entries().values():
            every += [entry.name, *entry.aliases]
            if name in (entry.name, *entry.aliases):
                found.append(_describe_entry(kind.removesuffix("s"), entry))
    for item in list_kind("scenarios"):
        every.append(item["name"])
        if item["name"] == name:
            from vflsec.config.scenario import packaged_scenarios

            text = packaged_scenarios()[name].read_text(encoding="utf-8")
            found.append({"kind": "scenario", **item, "doc": text})
    if not found:
        raise ConfigError(
            f"unknown name {name!r}. {check.nearest(name, every)} "
            f"See `vflsec list {'|'.join(KINDS)}`.".replace("  ", " ")
        )
    return found


def _describe_section(name: str) -> dict[str, Any]:
    from vflsec.config.schema import SECTIONS, list_fields

    doc = inspect.cleandoc(SECTIONS[name].__doc__ or "")
    head = {"data": "[data] or [[data]]", "algorithm": "[algorithm] or [[algorithm]]",
            "parties": "[parties.NAME]", "audit": "[audit]"}  # fmt: skip
    return {
        "kind": "section",
        "name": name,
        "summary": doc.splitlines()[0],
        "source": "vflsec/config/sections.py",
        "doc": f"{head.get(name, f'[[{name}]]')}\n\n{doc}",
        "parameters": list_fields(name),
    }


def _describe_entry(kind: str, entry: registry.Entry) -> dict[str, Any]:
    tree = parse_source(entry.path.read_text(encoding="utf-8"))
    found = _find_registered(tree, kind)
    facts = _read_class(tree, found) if found is not None else {}
    facts |= {k: _by_default(entry, kind, k, v) for k, v in facts.items() if k in _GIVEN}
    return {
        "kind": kind,
        "name": entry.name,
        "summary": entry.summary,
        "source": entry.source,
        "aliases": list(entry.aliases),
        "doc": entry.doc,
        "parameters_doc": ast.get_docstring(found) or "" if found is not None else "",
        **{k: v for k, v in facts.items() if k in _SHOWN},
        "parameters": facts.get("parameters", []),
        "path": str(entry.path),
    }


def _by_default(entry: registry.Entry, kind: str, key: str, source: str) -> str:
    """What an attack is to be given, as it is written; where it is computed, by its defaults."""
    if re.fullmatch(r"frozenset\((\{[^*(]*\})?\)", source):
        return source
    made = _REGISTRIES[f"{kind}s"].create(entry.name, {})
    return f"frozenset({{{', '.join(map(repr, sorted(getattr(made, key))))}}})"


def _find_registered(tree: ast.Module, kind: str) -> ast.ClassDef | None:
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            marks = [ast.unparse(d) for d in node.decorator_list]
            if any(m == kind or m.endswith(f".{kind}") for m in marks):
                return node
    return None


def _read_class(tree: ast.Module, node: ast.ClassDef) -> dict[str, Any]:
    """Class attributes and dataclass fields of a class and of its bases within reach."""
    parameters: dict[str, dict[str, str]] = {}
    out: dict[str, Any] = {}
    meaning = read_attributes(ast.get_docstring(node) or "")
    for base_tree, base in _find_bases(tree, node):
        inherited = _read_class(base_tree, base)
        for p in inherited.pop("parameters"):
            parameters.setdefault(p["name"], p)
        out |= inherited
    for name, p in parameters.items():
        p["meaning"] = meaning.get(name, p["meaning"])
    is_dataclass = any("dataclass" in ast.unparse(d) for d in node.decorator_list)
    for name, kind, value in _list_assigned(node):
        if kind is None or kind.startswith("ClassVar") or not is_dataclass:
            out[name] = value
            continue
        before = parameters.pop(name, {"meaning": ""})  # what is annotated again goes to the end
        parameters[name] = {
            "name": name, "type": describe_type(kind), "default": _format_default(value),
            "meaning": meaning.get(name, before["meaning"]),
        }  # fmt: skip
    return out | {"parameters": list(parameters.values())}


def _list_assigned(node: ast.ClassDef) -> Iterator[tuple[str, str | None, str]]:
    """(name, annotation or None, value) of what the body of a class defines."""
    for line in node.body:
        if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name):
            yield line.targets[0].id, None, ast.unparse(line.value)
        elif isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            value = ast.unparse(line.value) if line.value is not None else ""
            yield line.target.id, ast.unparse(line.annotation), value
        elif isinstance(line, ast.FunctionDef) and line.name in _SHOWN:
            yield line.name, None, "depends on the parameters"


def read_attributes(doc: str) -> dict[str, str]:
    """What a block of ``Attributes:`` or ``Args:`` says of each name (several may share a line)."""
    _, block = [*re.split(r"(?:Attributes|Args):\n", doc, maxsplit=1), ""][:2]
    out: dict[str, str] = {}
    names: list[str] = []
    for line in block.splitlines():
        match = re.match(r"    (\w[\w, ]*): (.*)", line)
        if match and not line.startswith("     "):
            names = [n.strip() for n in match.group(1).split(",")]
            out.update(dict.fromkeys(names, match.group(2)))
        elif line.startswith("        "):
            out.update({n: f"{out[n]} {line.strip()}" for n in names})
        elif line.strip():
            break
    return out


def _format_default(value: str) -> str:
    if value.startswith("field("):
        return value.partition("default_factory=")[2].rstrip(")") + "()"
    try:
        found = ast.literal_eval(value)
        return "none" if found is None else json.dumps(found)  # as it is written in a scenario
    except (ValueError, SyntaxError, TypeError):
        return value  # '' for none, or a name of the file


def _find_bases(tree: ast.Module, node: ast.ClassDef) -> Iterator[tuple[ast.Module, ast.ClassDef]]:
    here = {n.name: n for n in tree.body if isinstance(n, ast.ClassDef)}
    imported = {
        alias.asname or alias.name: (n.module, alias.name)
        for n in tree.body
        if isinstance(n, ast.ImportFrom) and n.module
        for alias in n.names
    }
    for base in reversed(node.bases):
        name = ast.unparse(base)
        if name in here:
            yield tree, here[name]
        elif name in imported:
            yield from _find_class(*imported[name])


def _find_class(module: str, name: str) -> Iterator[tuple[ast.Module, ast.ClassDef]]:
    """The class of that name in one of our modules, or where that module has it from."""
    spec = importlib.util.find_spec(module) if module.startswith("vflsec.") else None
    if spec is None or spec.origin is None:
        return
    tree = parse_source(Path(spec.origin).read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            yield tree, node
            return
    for line in ast.walk(tree):  # those for type checkers among them
        if isinstance(line, ast.ImportFrom) and line.module:
            for alias in line.names:
                if (alias.asname or alias.name) == name:
                    yield from _find_class(line.module, alias.name)
                    return
