"""What a program prints is in plain words: no private term, and sentences that can be read."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from generated import draw_summary

from vflsec.report.build import build_report
from vflsec.report.html import render_statement
from vflsec.report.tree import View

ROOT = Path(__file__).resolve().parents[2]
PRIVATE = re.compile(
    r"\b(own means|outlasts?|alive|dead|thin evidence|told|tells?|heard|lanes?|bare|mirrored|"
    r"surely|turned round|by itself|by themselves|which way round|whose secret|in common|"
    r"strongest control|would (?:only )?have found|crossed|only here)\b", re.IGNORECASE,
)  # fmt: skip
GRADE = 10.0
SCREENS = sorted((ROOT / "tests" / "report" / "screens").glob("*.txt"))


def printed(path: Path) -> Iterator[str]:
    """The texts of a module that are no docstring, of three words or more."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    said = {id(n.value) for n in nodes if isinstance(n, ast.Expr)}
    texts = (n for n in nodes if isinstance(n, ast.Constant) and id(n) not in said)
    yield from (n.value for n in texts if isinstance(n.value, str) and len(n.value.split()) > 2)


@pytest.mark.parametrize("folder", ["vflsec", "attacks", "defenses"])
def test_no_private_word_is_printed(folder: str) -> None:
    found = [
        f"{path.name}: {match[0]!r} in {text[:60]!r}"
        for path in (ROOT / folder).rglob("*.py") for text in printed(path)
        for match in PRIVATE.finditer(text)
    ]  # fmt: skip
    assert found == []


def count_syllables(word: str) -> int:
    """Groups of vowels, without a silent e."""
    groups = len(re.findall(r"[aeiouy]+", word.lower()))
    return max(1, groups - (word.lower().endswith("e") and groups > 1))


def grade(text: str) -> float:
    """Flesch-Kincaid grade (Kincaid et al. 1975) of the sentences of a text."""
    sentences = [w for s in re.split(r"[.!?]+(?:\s|$)|\n{2,}|\n- ", text)
                 if len(w := re.findall(r"[A-Za-z]{2,}", s)) > 3]  # fmt: skip
    words = [w for of in sentences for w in of]
    per_sentence = len(words) / len(sentences)
    per_word = sum(map(count_syllables, words)) / len(words)
    return 0.39 * per_sentence + 11.8 * per_word - 15.59


def prose(path: Path) -> str:
    """The prose of a page, without code, tables, links' targets and markup."""
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    lines = [x for x in text.splitlines() if not x.startswith(("|", "#", "!"))]
    return re.sub(r"\]\([^)]*\)|`[^`]*`|\*", "", "\n".join(lines))


def test_the_grade_is_that_of_its_definition() -> None:
    """Ten words of one syllable in one sentence: 0.39 x 10 + 11.8 - 15.59."""
    assert grade("The cat sat on the mat and ate the fish") == pytest.approx(0.11)


@pytest.mark.parametrize("page", ["README.md", "docs/start.md"])
def test_a_page_can_be_read(page: str) -> None:
    assert grade(prose(ROOT / page)) <= GRADE


def test_no_page_has_a_private_word() -> None:
    """But that on statistics, which defines controls, and output that others print."""
    made = ("statistics.md", "notebooks/", "evidence/trees", "evidence/claims", "evidence/hidden")
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in pages if not any(m in str(path) for m in made)
        for match in PRIVATE.finditer(prose(path))
    ]  # fmt: skip
    assert found == []


@pytest.mark.parametrize("path", SCREENS, ids=lambda p: p.stem)
def test_a_first_screen_can_be_read(path: Path) -> None:
    lines = [x for x in path.read_text(encoding="utf-8").splitlines() if "  +" not in x]
    assert grade("\n".join(lines).replace("?\n", "?\n\n")) <= GRADE


def test_the_statement_can_be_read() -> None:
    page = render_statement(build_report(draw_summary(0), View.STATEMENT))
    above = page.split("<main>")[1].split("Appendix A.")[0]
    text = re.sub(r"<[^>]+>", "", re.sub(r"</(p|li|h\d|caption|th|td|tr)>", ".\n\n", above))
    assert grade(text) <= GRADE
