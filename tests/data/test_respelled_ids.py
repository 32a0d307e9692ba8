"""Ids of one row that two tables write otherwise: said with an example, and never joined."""

from __future__ import annotations

from pathlib import Path

import pytest

from vflsec.data.source import Source
from vflsec.data.table_spec import TableSpec
from vflsec.data.table_warnings import list_warnings
from vflsec.data.tables import load_tables
from vflsec.errors import DataError

N = 60


def two(folder: Path, mine: list[str], theirs: list[str]) -> Source:
    bank, shop = folder / "bank.csv", folder / "shop.csv"
    bank.write_text("id,x,y\n" + "".join(f"{k},{i % 7},{i % 2}\n" for i, k in enumerate(mine)))
    shop.write_text("id,v\n" + "".join(f"{k},{i % 5}\n" for i, k in enumerate(theirs)))
    return load_tables({"bank": bank, "shop": shop}, TableSpec(label="y", id="id"))


@pytest.mark.parametrize(
    ("mine", "theirs", "alike", "example"),
    [
        ("{}", "{:05d}", 1, "'9' and '00009'"), ("{}", "{:05d}", 57, "'99' and '00099'"),
        ("00{}", "{}", 30, "'0099' and '99'"), ("a{}", "A{}", 6, "'x9' and 'X9'"),
    ],
)  # fmt: skip
def test_it_is_said_and_nothing_is_joined(
    tmp_path: Path, mine: str, theirs: str, alike: int, example: str
) -> None:
    """A spreadsheet or an export has changed all ids but some; only the overlap was printed."""
    here = [mine.format(i) for i in range(N)]
    there = [*here[:alike], *(theirs.format(i) for i in range(alike, N))]
    source = two(tmp_path, here, there)
    (said,) = [r for r in list_warnings(source) if "differ only in" in r]
    assert said == (
        f"{N - alike} ids of bank and shop differ only in case or leading zeros, as "
        f"{example} would (9 and x are any digits and letters); they are not the same. If they "
        "are of the same rows, write them alike in both tables, as text: spreadsheets drop zeros."
    )
    assert source.facts["overlap"] == alike
    assert len(source.ids) == 2 * N - alike


@pytest.mark.parametrize(
    ("mine", "theirs", "example"),
    [
        ("caf\u00e9{}", "cafe\u0301{}", r"'xxxx9' and 'xxxx\u03019'"),
        ("c{}", "c{}\u200b", r"'x9' and 'x9\u200b'"), ("c{}", "\u2060C{}", r"'x9' and '\u2060X9'"),
        ("12 {}", "12{}", "'99 9' and '999'"), ("c{}", "c\u00a0{}", r"'x9' and 'x\xa09'"),
    ],
)  # fmt: skip
def test_what_cannot_be_seen_is_said(tmp_path: Path, mine: str, theirs: str, example: str) -> None:
    """The error showed two ids that look the same, and of one in ten nothing was said at all."""
    here, there = ([form.format(i) for i in range(N)] for form in (mine, theirs))
    with pytest.raises(DataError) as caught:
        two(tmp_path, here, there)
    words = (
        "differ only in case, leading zeros, blanks, hidden marks or how letters are encoded, as "
        f"{example} would"
    )
    assert f"60 ids of bank and shop {words}" in str(caught.value)
    (said,) = [
        r for r in list_warnings(two(tmp_path, here, here[:54] + there[54:])) if "differ" in r
    ]
    assert said.startswith(f"6 ids of bank and shop {words.partition(', as ')[0]}, as ")


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        (["1", "001"], ["01"]),  # two rows of one table: which of them is it?
        ([], []),
        (["x1"], ["y1"]),
        (["07"], ["7"]),  # one of many
        (["0"], ["x"]),
    ],
)
def test_it_is_not_said(tmp_path: Path, mine: list[str], theirs: list[str]) -> None:
    common = [str(i) for i in range(100, 100 + N)]
    source = two(tmp_path, [*mine, *common], [*common, *theirs])
    assert not [r for r in list_warnings(source) if "differ only in" in r]
    assert source.facts["overlap"] == N
