"""Lines of keys, and the writer, against what tomllib reads."""

from __future__ import annotations

import tomllib
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from vflsec.config.toml_text import find_line, format_toml, key_lines

TEXT = '''# comment = 1
name = "a # not a comment"
[data]
files = {bank = "a,b.csv", bureau = "x}y.csv"}
columns.a = ["one", "two"]
"odd key" = 1

[data.params]
text = """
[not.a.section]
key = "value"
"""
raw = \'\'\'it's
"fine"\'\'\'
[[attack]]
name = "norm"
known_rows = 3
[[attack]]
name = "direction"
grid = [
  1,  # first
  [2, 3],
  {k = 4},
]
[attack.sub]
deep.er = 1979-05-27
[[attack.many]]
x = 1
[[attack.many]]
x = 2
[audit]
seeds = 5
'''


def test_every_key_has_the_line_it_stands_on() -> None:
    lines = key_lines(TEXT)
    wanted = {
        ("name",): 2,
        ("data",): 3,
        ("data", "files"): 4,
        ("data", "files", "bureau"): 4,
        ("data", "columns", "a"): 5,
        ("data", "columns", "a", 1): 5,
        ("data", "odd key"): 6,
        ("data", "params"): 8,
        ("data", "params", "text"): 9,
        ("data", "params", "raw"): 13,
        ("attack",): 15,
        ("attack", 0): 15,
        ("attack", 0, "known_rows"): 17,
        ("attack", 1): 18,
        ("attack", 1, "grid", 0): 21,
        ("attack", 1, "grid", 1, 1): 22,
        ("attack", 1, "grid", 2, "k"): 23,
        ("attack", 1, "sub", "deep", "er"): 26,
        ("attack", 1, "many", 0, "x"): 28,
        ("attack", 1, "many", 1, "x"): 30,
        ("audit", "seeds"): 32,
    }
    assert {path: lines.get(path) for path in wanted} == wanted


def test_every_value_of_the_text_is_found() -> None:
    def paths(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
        items: Any = ()
        if isinstance(value, dict):
            items = value.items()
        elif isinstance(value, list):
            items = enumerate(value)
        return [path, *(p for k, v in items for p in paths(v, (*path, k)))]

    assert set(paths(tomllib.loads(TEXT))) - {()} == set(key_lines(TEXT))


def test_a_missing_key_gets_the_line_of_its_section() -> None:
    lines = key_lines(TEXT)
    assert find_line(lines, ("attack", 1, "adversary")) == 18
    assert find_line(lines, ("gate",)) == 0


SCALARS = st.one_of(
    st.booleans(),
    st.integers(-(2**62), 2**62),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
)
KEYS = st.text("ab. \"'é", max_size=3)
VALUES = st.recursive(
    SCALARS,
    lambda v: st.lists(v, max_size=3) | st.dictionaries(KEYS, v, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text('abc-_ ."\n', min_size=1, max_size=4), VALUES, max_size=5))
def test_what_is_written_reads_back_the_same(table: dict[str, Any]) -> None:
    text = format_toml(table)
    assert tomllib.loads(text) == table
    key_lines(text)  # and the finder copes with it
