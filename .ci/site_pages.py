"""The generated pages of the documentation: what is registered, every section, command and column.

`pages()` gives Markdown by path below ``docs/``; nothing is written. `make docs` builds them in
memory (`.ci/site_hook.py`), and a test holds that nothing registered is missing.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

import vflsec
from vflsec.audit.result_row import COLUMNS, ResultRow
from vflsec.cli import main
from vflsec.cli.catalog import KINDS, SECTION_NAMES, list_kind, lookup, read_attributes

ROOT = Path(__file__).resolve().parent.parent
BESIDE = {
    "security.md": "SECURITY.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
}
"""Documents beside ``docs/`` that are pages too, where they are there."""

TITLES = {
    "attacks": "Attacks",
    "defenses": "Defenses",
    "algorithms": "Algorithms",
    "datasets": "Data sets",
    "scenarios": "Packaged scenarios",
}
_ABOUT = {
    "attacks": "What each attack does, needs and cannot do. More: [attacks](../attacks.md).",
    "defenses": "What each defense does, promises, leaves open. More: [defenses](../defenses.md).",
    "algorithms": "How the parties train together: the names for `[algorithm]`.",
    "datasets": "Names for `[data]`. Your own tables: [own tables](../howto/own_tables.md).",
    "scenarios": "Each runs as `vflsec audit NAME` and is a file to copy from.",
}


def pages() -> dict[str, str]:
    """Markdown of every generated page, by path below ``docs/``."""
    out = {f"reference/{kind}.md": _kind(kind) for kind in KINDS}
    out["reference/sections.md"] = _sections()
    out["reference/commands.md"] = _commands()
    out["reference/exit_codes.md"] = _exit_codes()
    out["reference/columns.md"] = _columns()
    out["reference/python.md"] = _python()
    for page, file in BESIDE.items():
        if (ROOT / file).is_file():
            out[page] = _beside((ROOT / file).read_text(encoding="utf-8"))
    return out


def _beside(text: str) -> str:
    """A document of the repository's root as a page: links lead to pages, or become text."""
    here = {file: page for page, file in BESIDE.items()}

    def link(match: re.Match[str]) -> str:
        shown, target = match.groups()
        name, hash_, anchor = target.partition("#")
        if "://" in target or not name:
            return match.group()
        page = name.removeprefix("docs/") if name.startswith("docs/") else here.get(name, "")
        is_page = page.endswith(".md")
        return f"[{shown}]({page}{hash_}{anchor})" if is_page else shown

    return re.sub(r"\[([^\]]*)\]\(([^)\s]+)\)", link, text)


def _kind(kind: str) -> str:
    lines = [f"# {TITLES[kind]}", "", _ABOUT[kind], ""]
    items = list_kind(kind)
    lines += ["| name | what it is |", "|---|---|"]
    lines += [f"| [`{i['name']}`](#{i['name']}) | {_cell(i['summary'])} |" for i in items]
    for item in items:
        (found,) = (d for d in lookup(item["name"]) if d["kind"] == kind.removesuffix("s"))
        lines += ["", f"## {item['name']} {{ #{item['name']} }}", ""]
        if kind == "scenarios":
            lines += [item["summary"], "", "```toml", found["doc"].rstrip(), "```"]
            continue
        lines += [_rst(found["doc"]), ""]
        if found.get("aliases"):
            lines += [f"Also called: {', '.join(f'`{a}`' for a in found['aliases'])}.", ""]
        facts = [
            f"{key.replace('_', ' ')}: {_code(str(found[key]))}"
            for key in ("target", "needs", "strengths", "covers", "owner", "binary_only")
            if found.get(key) not in (None, "", "''")
        ]
        lines += ["; ".join(facts) + "." if facts else "", ""]
        lines += _parameters(found)
    return "\n".join(lines) + "\n"


def _parameters(found: Mapping[str, Any]) -> list[str]:
    if not found.get("parameters"):
        return ["No parameters."]
    lines = ["| parameter | type | default | meaning |", "|---|---|---|---|"]
    for p in found["parameters"]:
        default = _code(p["default"]) if p["default"] else "required"
        told = _cell(p["meaning"])
        lines.append(f"| `{p['name']}` | {_cell(p['type'])} | {default} | {told} |")
    return lines


def _sections() -> str:
    lines = ["# Sections of a scenario", ""]
    lines += [
        "`vflsec show data` prints the first of these tables on a terminal. Editors that know JSON",
        "schemas complete and check these keys: `vflsec init` writes the schema beside a draft,",
        "whose first line names it.",
        "",
    ]
    for name in SECTION_NAMES:
        (found,) = (d for d in lookup(name) if d["kind"] == "section")
        head, _, doc = found["doc"].partition("\n\n")
        lines += ["", f"## `{head}` {{ #{name} }}", "", doc, ""]
        lines += ["| key | type | default | meaning |", "|---|---|---|---|"]
        for p in found["parameters"]:
            default = _code(p["default"]) if p["default"] else ""
            lines.append(
                f"| `{p['name']}` | {_cell(p['type'])} | {default} | {_cell(p['meaning'])} |"
            )
    return "\n".join(lines) + "\n"


def commands() -> dict[str, Any]:
    """Every command by its words, ``new attack`` among them."""
    out: dict[str, Any] = {}

    def walk(command: Any, words: tuple[str, ...]) -> None:
        below = getattr(command, "commands", None)
        if below is None:
            out[" ".join(words)] = command
            return
        for name, sub in below.items():
            walk(sub, (*words, name))

    walk(typer.main.get_command(main.app), ())
    return out


def _commands() -> str:
    lines = ["# Commands", "", "`vflsec COMMAND --help` prints the same on a terminal.", ""]
    for name, command in commands().items():
        usage = command.make_context(name, [], resilient_parsing=True)
        lines += ["", f"## vflsec {name} {{ #{name.replace(' ', '-')} }}", ""]
        lines += [inspect.cleandoc(command.help or ""), ""]
        pieces = " ".join(command.collect_usage_pieces(usage))
        lines += ["```text", f"vflsec {name} {pieces}", "```", ""]
        lines += ["| option | meaning |", "|---|---|"]
        for p in command.params:
            record = p.get_help_record(usage)
            shown, told = record if record else (p.make_metavar(usage), getattr(p, "help", ""))
            lines.append(f"| {_code(shown)} | {_cell(told or '')} |")
    return "\n".join(lines) + "\n"


def _exit_codes() -> str:
    lines = ["# Exit codes", "", "| code | meaning |", "|---|---|"]
    lines += [f"| {code} | {meaning} |" for code, meaning in main.EXIT_CODES.items()]
    lines += ["", "A pipeline that wants to stop on inconclusive verdicts too treats 3 like 1:"]
    lines += ["see [CI](../ci.md)."]
    return "\n".join(lines) + "\n"


def _columns() -> str:
    lines = ["# Columns of the results", ""]
    lines += ["`results.parquet` and `results.csv` have one row for each measure. Texts are never"]
    lines += ["missing (they are empty); a number that does not exist is missing, never 0."]
    lines += ["`points.parquet` has a row for each attack at each training: means over seeds with"]
    lines += ["their intervals ([statistics](../statistics.md)); `summary.json` has the rest.", ""]
    lines += ["| column | meaning |", "|---|---|"]
    docs = (inspect.getdoc(base) or "" for base in reversed(ResultRow.__mro__))
    told = {name: text for doc in docs for name, text in read_attributes(doc).items()}
    lines += [f"| `{c}` | {_cell(_rst(told[c]))} |" for c in COLUMNS]
    return "\n".join(lines) + "\n"


def _python() -> str:
    lines = [
        "# Python",
        "",
        "What `import vflsec` offers. It imports torch when it is first used.",
        "",
    ]
    for name in sorted(set(vflsec.__all__) - {"__version__"}):
        thing = getattr(vflsec, name)
        doc = inspect.getdoc(thing) or ""
        lines += ["", f"## vflsec.{name} {{ #{name} }}", ""]
        target = thing if not inspect.ismodule(thing) else getattr(thing, name, None)
        try:
            signature = str(inspect.signature(target)) if callable(target) else ""
        except (TypeError, ValueError):
            signature = ""
        if signature:
            lines += ["```python", f"vflsec.{name}{_unquoted(signature)}", "```", ""]
        lines.append(_rst(doc or (inspect.getdoc(target) or "")))
    return "\n".join(lines) + "\n"


def _unquoted(signature: str) -> str:
    return re.sub(r"<function <lambda> at 0x\w+>", "...", signature.replace("'", ""))


def _cell(text: str) -> str:
    """Text inside a table."""
    return _plain(" ".join(text.split())).replace("|", "\\|")


def _code(text: str) -> str:
    """Code inside a table; nothing needs escaping there."""
    return f"`{' '.join(text.split())}`"


def _plain(line: str) -> str:
    """A line in which nothing outside of code is markup."""
    parts = line.split("`")
    for i in range(0, len(parts), 2):
        text = parts[i].replace("<", "&lt;").replace("](", "]\\(")
        parts[i] = re.sub(r"(?<=\S)\*|\*(?=\S)", r"\\*", text)
    return "`".join(parts)


def _rst(doc: str) -> str:
    """A docstring as Markdown: literals, roles, and the blocks ``Args:`` and the like."""
    text = inspect.cleandoc(doc)
    text = re.sub(r":\w+:`~?\.?([^`]*)`", r"`\1`", text)
    text = text.replace("``", "`")
    out: list[str] = []
    block = False
    for line in text.splitlines():
        line = line if line.startswith("    ") and not block else _plain(line)
        if re.fullmatch(r"(Args|Attributes|Returns|Raises|Example|Yields):", line):
            out += ["", f"**{line[:-1]}**", ""]
            block = True
        elif block and line.startswith("    "):
            item = re.match(r"    (\S[^:]*): (.*)", line)
            if item and not line.startswith("     "):
                out.append(f"- `{item.group(1)}`: {item.group(2)}")
            else:
                out.append(f"  {line.strip()}" if out[-1].startswith(("-", "  ")) else line.strip())
        elif re.match(r" {2,}\S", line):
            if out and out[-1] and not out[-1].startswith("    "):
                out.append("")
            out.append(line if line.startswith("    ") else f"    {line}")
        else:
            block = block and not line
            if line and out and out[-1].startswith("    "):
                out.append("")
            out.append(line)
    return "\n".join(out)
