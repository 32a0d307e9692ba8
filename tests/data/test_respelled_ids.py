"""Ids of one row that two tables write otherwise: said with a code, joined only if asked."""

from __future__ import annotations

import datetime
import hashlib
import random
import uuid
from pathlib import Path

import pandas as pd
import pytest
from user_tables import load_pair, refused

from vflsec.cli.draft import Wishes, draft_scenario
from vflsec.config.scenario import load_scenario
from vflsec.data.id_spelling import Respelled, find_respelled
from vflsec.data.source import Source
from vflsec.data.table_warnings import list_warnings
from vflsec.errors import ConfigError, DataError

N = 60
DRAWN = random.Random(0)
LONG = [str(DRAWN.randrange(10**18, 10**19)) for _ in range(N)]
UUIDS = [str(uuid.UUID(int=DRAWN.getrandbits(128), version=4)) for _ in range(N)]
DAYS = [datetime.date(2020, 1, 20) + datetime.timedelta(i) for i in range(N)]
FLOATS = [str(int(float(text))) for text in LONG]


def two(folder: Path, mine: list[str], theirs: list[str], *id_match: str) -> Source:
    bank = "id,x,y\n" + "".join(f"{k},{i % 7},{i % 2}\n" for i, k in enumerate(mine))
    shop = "id,v\n" + "".join(f"{k},{i % 5}\n" for i, k in enumerate(theirs))
    return load_pair(folder, bank, shop, id_match=id_match)


def compared(mine: list[str], theirs: list[str]) -> list[Respelled]:
    return find_respelled({"bank": pd.Index(mine), "shop": pd.Index(theirs)}, ["bank", "shop"])


@pytest.mark.parametrize(
    ("mine", "theirs", "alike", "how", "example"),
    [
        ("{}", "{:05d}", 1, "zeros", ("9", "00009")),
        ("{}", "{:05d}", 57, "zeros", ("99", "00099")),
        ("00{}", "{}", 30, "zeros", ("0099", "99")),
        ("a{}", "A{}", 6, "casefold", ("x9", "X9")),
        ("a-{}", "a.{}", 6, "punctuation", ("x-9", "x.9")),
        ("b {}", "b{}", 6, "strip", ("x 9", "x9")),
    ],
)
def test_it_is_said_and_joined_only_if_asked(
    tmp_path: Path, mine: str, theirs: str, alike: int, how: str, example: tuple[str, str]
) -> None:
    """A spreadsheet or an export has changed all ids but some; only the overlap was printed."""
    here = [mine.format(i) for i in range(N)]
    there = [*here[:alike], *(theirs.format(i) for i in range(alike, N))]
    assert compared(here, there) == [Respelled(("bank", "shop"), (how,), N - alike, example)]
    source = two(tmp_path, here, there)
    assert len([r for r in list_warnings(source) if f"--id-match {how}`" in r]) == 1
    assert source.facts.tables.overlap[source.active].common == alike
    assert len(source.ids) == 2 * N - alike
    matched = two(tmp_path, here, there, how)
    assert (matched.facts.tables.overlap[matched.active].common, len(matched.ids)) == (N, N)
    assert matched.digest != source.digest


@pytest.mark.parametrize(
    ("mine", "theirs", "example"),
    [
        ("caf\u00e9{}", "cafe\u0301{}", ("xxxx9", "xxxx\u03019")),
        ("c{}", "c{}\u200b", ("x9", "x9\u200b")), ("12 {}", "12{}", ("99 9", "999")),
        ("c{}", "c\u00a0{}", ("x9", "x\xa09")),
    ],
)  # fmt: skip
def test_what_cannot_be_seen_is_said(
    tmp_path: Path, mine: str, theirs: str, example: tuple[str, str]
) -> None:
    here, there = ([form.format(i) for i in range(N)] for form in (mine, theirs))
    assert compared(here, there) == [Respelled(("bank", "shop"), ("strip",), N, example)]
    with refused(DataError, ascii(example[1])):
        two(tmp_path, here, there)
    assert compared(here, here[:54] + there[54:])[0].alike == 6


@pytest.mark.parametrize(
    ("mine", "theirs", "how"),
    [
        (UUIDS, [u.replace("-", "").upper() for u in UUIDS], ("punctuation", "casefold")),
        (LONG, FLOATS, ("rounded",)),
        (LONG, [f"{float(text):.17E}" for text in LONG], ("rounded",)),
        ([d.isoformat() for d in DAYS], [f"{d:%d.%m.%Y}" for d in DAYS], ("date",)),
        ([f"CUST-{i:03d}" for i in range(N)], [str(i) for i in range(N)], ("prefix",)),
        (UUIDS, [hashlib.sha256(u.encode()).hexdigest() for u in UUIDS], ("sha256",)),
        ([hashlib.md5(u.encode()).hexdigest().upper() for u in UUIDS], UUIDS, ("md5",)),
        (UUIDS, LONG, None),
        (LONG, [text[::-1] for text in LONG], None),
    ],
)
def test_how_ids_differ_is_found(
    tmp_path: Path, mine: list[str], theirs: list[str], how: tuple[str, ...] | None
) -> None:
    found = compared(mine, theirs)
    assert [(r.how, r.alike) for r in found] == ([(how, N)] if how else [])
    for r in found:  # each id of the example is one of its own table
        for shown, ids in zip(r.example, (mine, theirs), strict=True):
            assert len(shown) in {len(text) for text in ids}
    with pytest.raises(DataError):
        two(tmp_path, mine, theirs)


def test_an_example_differs_in_all_ways_if_one_does() -> None:
    mine = [*(f"a{i}" for i in range(5)), *(f"00{i}" for i in range(5, 9)), "0b9"]
    theirs = [*(f"A{i}" for i in range(5)), *(str(i) for i in range(5, 9)), "B9"]
    for here, there, example in ((mine, theirs, ("0x9", "X9")), (theirs, mine, ("X9", "0x9"))):
        (found,) = compared(here, there)
        assert (found.how, found.alike, found.example) == (("casefold", "zeros"), 10, example)


def test_ids_that_were_rounded_are_never_joined(tmp_path: Path) -> None:
    some = LONG[:3] + FLOATS[3:]
    assert [(r.how, r.alike) for r in compared(LONG, some)] == [(("rounded",), N - 3)]
    with pytest.raises(DataError):
        two(tmp_path, LONG, some)


def test_ids_of_two_rows_never_become_one(tmp_path: Path) -> None:
    here = [f"{i:03d}" for i in range(N)]
    with refused(DataError, "'007', '7'"):
        two(tmp_path, [*here, "7"], here, "zeros")
    data = {"files": {"a": "a.csv", "b": "b.csv"}, "label": "y", "id": "id", "id_match": ["no"]}
    with pytest.raises(ConfigError):
        load_scenario({"data": data, "algorithm": {"name": "splitnn"}})


def test_init_names_the_columns_and_how_they_match(tmp_path: Path) -> None:
    bank, shop = tmp_path / "bank.csv", tmp_path / "shop.csv"
    rows = [DRAWN.random() for _ in range(N)]
    bank.write_text("customer,x,y\n" + "".join(f"A-{i},{v},{i % 2}\n" for i, v in enumerate(rows)))
    shop.write_text("Kunde,v\n" + "".join(f"a{i},{v}\n" for i, v in enumerate(rows)))
    advice = "--id-match punctuation,casefold --id bank=customer --id shop=Kunde"
    with refused(ConfigError, advice):
        draft_scenario([bank, shop], Wishes("y"), tmp_path)
    asked = Wishes("y", ["bank=customer", "shop=Kunde"], id_match=("punctuation", "casefold"))
    assert draft_scenario([bank, shop], asked, tmp_path).tables.overlap["shop"].common == N


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
    assert not source.facts.respelled
    assert source.facts.tables.overlap[source.active].common == N
