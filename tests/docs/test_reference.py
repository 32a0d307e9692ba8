"""The generated reference leaves nothing out, and every page is in the navigation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from scripts import load

from vflsec.audit.result_row import COLUMNS
from vflsec.cli import main
from vflsec.cli.catalog import KINDS, SECTION_NAMES, list_kind
from vflsec.config.schema import SECTIONS

ROOT = Path(__file__).resolve().parents[2]
SITE_PAGES = ROOT / ".ci" / "site_pages.py"


@pytest.fixture(scope="module")
def made() -> dict[str, str]:
    return load(SITE_PAGES).pages()  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", KINDS)
def test_everything_registered_has_its_entry(kind: str, made: dict[str, str]) -> None:
    text = made[f"reference/{kind}.md"]
    names = [i["name"] for i in list_kind(kind)]
    headings = re.findall(r"^## (\S+) \{ #(\S+) \}$", text, re.M)
    assert headings == [(n, n) for n in names]
    for item in list_kind(kind):
        assert f"[`{item['name']}`](#{item['name']})" in text


@pytest.mark.parametrize("kind", ["attacks", "defenses", "algorithms", "datasets"])
def test_every_parameter_is_listed(kind: str, made: dict[str, str]) -> None:
    from vflsec.plugins import registry

    known = getattr(registry, kind)
    text = made[f"reference/{kind}.md"]
    parts = dict(re.findall(r"^## (\S+) \{[^\n]*\n(.*?)(?=^## |\Z)", text, re.M | re.S))
    for name in known.names():
        for parameter in registry.list_parameters(known.get(name)):
            assert f"| `{parameter}` |" in parts[name], (name, parameter)


def test_every_key_of_every_section_is_there(made: dict[str, str]) -> None:
    text = made["reference/sections.md"]
    parts = dict(re.findall(r"\{ #(\w+) \}\n(.*?)(?=^## |\Z)", text, re.M | re.S))
    assert list(parts) == list(SECTION_NAMES)
    for name, part in parts.items():
        keys = re.findall(r"^\| `(\w+)` \|", part, re.M)
        assert keys == list(SECTIONS[name].model_fields)


def test_every_command_and_option_is_there(made: dict[str, str]) -> None:
    text = made["reference/commands.md"]
    commands = load(SITE_PAGES).commands()
    assert {"audit", "check", "init", "gate", "show", "new attack"} <= set(commands)
    for name, command in commands.items():
        assert f"## vflsec {name} {{" in text
        for parameter in command.params:
            for option in parameter.opts:
                if option.startswith("--"):
                    assert option in text, (name, option)


def test_every_exit_code_and_column_is_there(made: dict[str, str]) -> None:
    codes = re.findall(r"^\| (\d+) \| (.+) \|$", made["reference/exit_codes.md"], re.M)
    assert dict(codes) == {str(k): v for k, v in main.EXIT_CODES.items()}
    columns = re.findall(r"^\| `(\w+)` \| (.+) \|$", made["reference/columns.md"], re.M)
    assert [c for c, _ in columns] == [*COLUMNS]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "\n".join(f"| {code} | {meaning} |" for code, meaning in codes) in readme


def test_every_public_name_is_there(made: dict[str, str]) -> None:
    import vflsec

    for name in set(vflsec.__all__) - {"__version__"}:
        assert f"## vflsec.{name} {{" in made["reference/python.md"]


def test_tables_are_tables(made: dict[str, str]) -> None:
    """Rows of one table have as many cells: no stray bar outside of code."""
    for path, text in made.items():
        text = re.sub(r"```.*?```", "", text, flags=re.S)
        for block in re.findall(r"(?:^\|.*\|$\n)+", text, re.M):
            bars = {
                len(re.findall(r"(?<!\\)\|", re.sub(r"`[^`]*`", "", row)))
                for row in block.splitlines()
            }
            assert len(bars) == 1, (path, block[:200])


def test_every_page_is_in_the_navigation(made: dict[str, str]) -> None:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    named = re.findall(r": ([\w/]+\.md)$", text, re.M)
    assert len(named) == len(set(named))
    assert set(made) <= set(named)
    written = {p.relative_to(ROOT / "docs").as_posix() for p in (ROOT / "docs").rglob("*.md")}
    assert written <= set(named), f"not in the nav of mkdocs.yml: {written - set(named)}"


def test_links_between_pages_lead_somewhere(made: dict[str, str]) -> None:
    docs = ROOT / "docs"
    pages = {p.relative_to(docs).as_posix(): p.read_text(encoding="utf-8")
             for p in docs.rglob("*.md")} | made  # fmt: skip
    for path, text in pages.items():
        text = re.sub(r"```.*?```|`[^`\n]*`|^    [^\n]*", "", text, flags=re.S | re.M)
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
            if "://" in target or target.startswith("mailto:"):
                continue
            there = (docs / path).parent.joinpath(target).resolve()
            name = there.relative_to(docs).as_posix() if there.is_relative_to(docs) else ""
            assert name in pages or there.is_file(), f"{path} links to {target}"


def test_links_of_the_readme_and_its_like_lead_somewhere() -> None:
    pages = [ROOT / n for n in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")]
    for page in [*pages, *sorted((ROOT / "notebooks").glob("*.md"))]:
        text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.S)
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
            if "://" not in target and not target.startswith("mailto:"):
                assert (page.parent / target).exists(), f"{page.name} links to {target}"
