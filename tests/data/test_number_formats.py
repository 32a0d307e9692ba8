"""Numbers as people write them are the plain numbers, bit for bit; what is no number stays text."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from command_line import Cli
from user_tables import load_one, refused, write

import vflsec
from vflsec.config.scenario import load_scenario
from vflsec.data.number_formats import read_column
from vflsec.data.prepare import make_task
from vflsec.data.source import Source
from vflsec.data.table_spec import TableSpec
from vflsec.data.tables import load_tables
from vflsec.errors import DataError

N = 80


def marked(v: float, thousands: str = "", decimal: str = ".", digits: int = 2) -> str:
    """A size with its marks, without a sign."""
    text = f"{abs(v):,.{digits}f}"
    return text.replace(",", "\0").replace(".", decimal).replace("\0", thousands)


def signed(v: float, text: str) -> str:
    return f"-{text}" if v < 0 else text


def lakh(v: float) -> str:
    whole, _, rest = f"{abs(v):.2f}".partition(".")
    head, tail = whole[:-3], whole[-3:]
    pairs = [head[max(i - 2, 0) : i] for i in range(len(head), 0, -2)][::-1]
    return ",".join([*pairs, tail]) + f".{rest}"


SPELLINGS: dict[str, tuple[Callable[[float], str], str]] = {
    "percent": (lambda v: signed(v, f"{marked(v)} %"), "%"),
    "percent at once": (lambda v: signed(v, f"{marked(v)}%"), "%"),
    "per mille": (lambda v: signed(v, f"{marked(v, decimal=',')} ‰"), "‰"),
    "dollars": (lambda v: signed(v, f"${marked(v, ',')}"), "$"),
    "euros behind": (lambda v: signed(v, f"{marked(v, '.', ',')} EUR"), "EUR"),
    "euro sign and thin blanks": (
        lambda v: signed(v, f"{marked(v, chr(0x202F), ',')}{chr(0xA0)}€"), "€",
    ),
    "swiss": (lambda v: f"CHF {signed(v, marked(v, '’'))}", "CHF"),
    "accounting": (lambda v: f"({marked(v, ',')})" if v < 0 else marked(v, ","), ""),
    "accounting in dollars": (lambda v: f"$({marked(v)})" if v < 0 else f"${marked(v)}", "$"),
    "trailing minus": (lambda v: f"{marked(v, '.', ',')}-" if v < 0 else marked(v, ".", ","), ""),
    "typeset minus": (lambda v: signed(v, marked(v, "\u2009")).replace("-", "−"), ""),
    "kilograms": (lambda v: signed(v, f"{marked(v)} kg"), "kg"),
    "decimal commas": (lambda v: signed(v, marked(v, decimal=",")), ""),
    "rupees": (lambda v: signed(v, f"₹ {lakh(v)}"), "₹"),
    "words": (lambda v: signed(v, f"{marked(v, ' ', ',')} Mio. €/Jahr"), "Mio. €/Jahr"),
}  # fmt: skip


def sizes() -> list[float | None]:
    rng = np.random.default_rng(7)
    found: list[float | None] = (rng.lognormal(6, 3, N) * rng.choice([-1, 1], N)).round(2).tolist()
    return [None, 0.0, 0.05, 123456.0, *found[4:]]


def table(path: Path, x: list[str], kind: str = ".csv") -> Path:
    frame = pd.DataFrame({"id": range(N), "x": x, "z": [i % 7 for i in range(N)],
                          "y": [i * i % 3 % 2 for i in range(N)]})  # fmt: skip
    if kind == ".parquet":
        frame.to_parquet(path)
    else:
        frame.to_csv(path, index=False, quoting=csv.QUOTE_ALL)
    return path


def load(path: Path, **spec: object) -> Source:
    return load_one(path, {"a": ["z"], "b": ["x"]}, id="id", **spec)


@pytest.mark.parametrize("kind", [".csv", ".parquet"])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_spelled_column_is_the_plain_one_bit_for_bit(
    spelling: str, kind: str, tmp_path: Path
) -> None:
    spell, unit = SPELLINGS[spelling]
    texts = ["" if v is None else spell(v) for v in sizes()]
    plain = load(table(tmp_path / "plain.csv", ["" if v is None else f"{v:.2f}" for v in sizes()]))
    spelled = load(table(tmp_path / f"t{kind}", texts, kind))
    assert spelled.parties["b"].categories == (None,)
    for party in ("a", "b"):
        one, other = (s.parties[party].values for s in (plain, spelled))
        assert one.tobytes() == other.tobytes()
    assert spelled.facts.notes == []
    (column,) = (c for c in spelled.facts.tables.tables[0].columns if c.name == "x")
    assert (column.kind, column.unit) == ("number", unit)
    one, other = (make_task(s, 3) for s in (plain, spelled))
    assert one.schema == other.schema
    assert all(torch.equal(one.x[p], other.x[p]) for p in ("a", "b"))
    assert all(torch.equal(rows, other.sets[k]) for k, rows in one.sets.items())


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["1,234.5", "1,234"], [1234.5, 1234]),  # one row decides for the other
        (["1,234", "0,5"], [1.234, 0.5]),
        (["1.234.567 €", "1.234 €"], [1234567, 1234]),
        (["0.125 kg", "1.234 kg"], [0.125, 1.234]),
        (["€ 5,-", "€ 3,50"], [5, 3.5]),
        (["Fr. 5.—", "Fr. 1'234.50"], [5, 1234.5]),
        (["1e-05 %", "2.5E3 %"], [1e-5, 2500]),
        (["US-$ 5", "US-$ 7"], [5, 7]),
        (["Rs.500", "Rs. 7"], [500, 7]),
        (["-0 %", "5 %"], [-0.0, 5]),
        (["USD 5", "7 USD"], [5, 7]),
    ],
)
def test_the_whole_column_decides(texts: list[str], expected: list[float]) -> None:
    more = [f"{i},5" for i in range(30)] if texts[1] == "0,5" else []
    found = read_column([*texts, *more]).values
    assert found[:2] == expected
    assert np.signbit(found[0]) == np.signbit(expected[0])


NO_NUMBERS: dict[str, tuple[list[str], str]] = {
    "two units": (["5 kg", "700 g", "3 kg", "250 g", "4 kg"], "several units (kg 3, g 2)"),
    "two currencies": (["$5", "€7", "$3", "€2", "$4"], "several units"),
    "percent and none": (["5 %", "7", "3 %", "2", "4 %"], "several units (% 3, none 2)"),
    "iso dates": (["2024-01-31", "2024-02-01"], ""),
    "german dates": (["31.1.2024", "1.2.2024"], ""),
    "dates with months": (["5 May", "7 May"], ""),
    "times": (["12:30", "13:45"], ""),
    "hours": (["11 am", "12 am"], ""),
    "dialled": (["+34 612 345 678", "+34 711 222 33"], ""),
    "phone numbers": (["612 345 678", "711 222 333"], "phone numbers"),
    "phone numbers with zeros": (["030 123 456", "040 123 456"], ""),
    "codes with zeros": (["007 kg", "012 kg"], "not written alike"),
    "grouped codes with zeros": (["01.234", "02.345.678"], ""),
    "addresses": (["192.168.1.1", "10.0.0.1"], ""),
    "ranges": (["10-20", "20-30"], ""),
    "open ranges": (["18+", "65+"], ""),
    "counters with a name": (["ORD 12", "ORD 13"], ""),
    "seats": (["12A", "12B", "13A"], ""),
    "inches": (["5'11\"", "6'0\""], ""),
    "lists of two": (["1,5", "2,5", "3"], "numbers with commas"),
    "groups that are none": (["1,23 EUR", "1.234,5.6 EUR"], "not written alike"),
    "bracket left open": (["(5", "3"], ""),
    "two signs": (["-5-", "-3-"], ""),
    "long": (["9" * 100 + " kg", "1 kg"], ""),
}


@pytest.mark.parametrize("case", NO_NUMBERS)
def test_what_is_no_number_stays_text(case: str) -> None:
    texts, doubt = NO_NUMBERS[case]
    found = read_column(texts)
    assert None in found.values
    assert found.written is None
    assert found.ambiguous is None
    assert (doubt in found.doubt) if doubt else not found.doubt


UNSURE: dict[str, tuple[Callable[[int], str], str]] = {
    "two units": (lambda i: f"{i % 30} {('kg', 'g')[i % 2]}", "several units (kg 15, g 15)"),
    "few placeholders": (lambda i: f"{i / 8} %" if i % 7 else "-", "but for texts such as '-'"),
    "often a placeholder": (lambda i: f"{i / 8}" if i % 2 else "none", "such as 'none'"),
    "phone numbers": (lambda i: f"612 345 {i + 100}", "digits in groups"),
    "lists of two": (lambda i: f"{i % 5},5", "numbers with commas"),
    "below what is measured": (lambda i: f"{i / 8}" if i % 9 else "<0.1", "such as '<0.1'"),
}


@pytest.mark.parametrize("case", UNSURE)
def test_what_may_be_numbers_or_text_is_asked(case: str, tmp_path: Path) -> None:
    """As categories they would turn the verdict round, and a note is easily overlooked."""
    spell, said = UNSURE[case]
    path = table(tmp_path / "t.csv", [spell(i) for i in range(N)])
    wrong = {"few placeholders": "-", "often a placeholder": "none"}.get(case, "")
    with refused(DataError, str(path), "column 'x' must hold numbers of one format, or be declared",
                 said, 'categorical = ["x"]', "`--categorical x`",
                 *([f"--missing x={wrong}"] if wrong else ())):  # fmt: skip
        load(path)
    if wrong:
        assert np.isnan(load(path, missing={"x": [wrong]}).parties["b"].values).any()
    source = load(path, categorical=["x"])
    assert source.parties["b"].categories[0] is not None
    assert source.facts.notes == []


def test_codes_among_numbers_are_a_category(tmp_path: Path) -> None:
    """As V57 is among the diagnoses 250 and 401.9."""
    texts = [f"{100 + i}" if i % 40 else f"V{i + 10}" for i in range(N)]
    source = load(table(tmp_path / "t.csv", texts))
    assert source.parties["b"].categories[0] is not None
    assert "such as 'V10', that are no numbers" in source.facts.notes[0]


@pytest.mark.parametrize("written", [["n.a."], ["n.a.", "none"], ["V57"], ["V57", "E11"]])
def test_what_may_mean_no_value_among_few_numbers_can_be_left_empty(
    written: list[str], tmp_path: Path
) -> None:
    texts = [f"{i % 9}" if i % 40 else written[i // 40 % len(written)] for i in range(N)]
    path = table(tmp_path / "t.csv", texts)
    (note,) = load(path).facts.notes
    with pytest.raises(DataError) as caught:
        load(path, numeric=["x"])
    code = any(c.isdigit() for c in written[0])
    for said in (note, str(caught.value)):
        assert [f"--missing x={text}" in said for text in written] == [not code] * len(written)
    found = load(path, missing={"x": written}).parties["b"]
    assert found.categories[0] is None
    assert np.isnan(found.values).sum() == sum(text in written for text in texts)


def test_points_beside_whole_numbers_are_asked(tmp_path: Path) -> None:
    """Thousands of a table with German marks and no cents: 512 beside 1.234."""
    texts = [f"{512 + 57 * i:,}".replace(",", ".") for i in range(N)]
    path = table(tmp_path / "t.csv", texts)
    with pytest.raises(DataError, match=r"'1\.025' \(1\.025 or 1025\?\)"):
        load(path)
    assert load(path, decimal=",").parties["b"].values[9, 0] == 1025
    assert load(path, numeric=["x"]).parties["b"].values[9, 0] == 1.025
    for plain in (["0.512", "1.234"], ["1.234", "2.5"], ["1.234", "2.345"], ["1.234", "5000"]):
        assert read_column(plain).values == [float(text) for text in plain]
        assert load(table(path, [plain[i % 2] for i in range(N)])).facts.notes == []


def test_dates_stay_dates_and_zip_codes_say_so(tmp_path: Path) -> None:
    dates = load(table(tmp_path / "d.csv", [f"{i % 28 + 1}.3.2024" for i in range(N)]))
    assert dates.facts.tables.tables[0].columns[1].kind == "date"
    codes = load(table(tmp_path / "c.csv", [f"{i % 90 + 1000:05d}" for i in range(N)]))
    assert "begin with 0" in codes.facts.notes[0]


@pytest.mark.parametrize("kind", [".csv", ".parquet"])
@pytest.mark.parametrize(
    ("text", "point", "comma"),
    [("{},234", 1234, 1.234), ("${},234", 1234, 1.234), ("{}.234 EUR", 1.234, 1234)],
)
def test_what_could_be_two_numbers_is_asked(
    text: str, point: float, comma: float, kind: str, tmp_path: Path
) -> None:
    texts = [text.format(i % 30 + 1) for i in range(N)]
    path = table(tmp_path / f"t{kind}", texts, kind)
    with refused(DataError, str(path), "column 'x' must show which mark is decimal", repr(texts[0]),
                 'numeric = ["x"]', "`--numeric x`", "`--decimal ,`"):  # fmt: skip
        load(path)
    assert load(path, numeric=["x"]).parties["b"].values[0, 0] == point
    assert load(path, decimal=".").parties["b"].values[0, 0] == point
    assert load(path, numeric=["x"], decimal=",").parties["b"].values[0, 0] == comma
    assert load(path, categorical=["x"]).parties["b"].categories[0] is not None
    assert len({load(path, **{k: v}).digest for k, v in (("decimal", "."), ("decimal", ","))}) == 2


def test_columns_of_two_tables_are_asked_for_at_once(tmp_path: Path) -> None:
    texts = [f"{i % 30 + 1},234" for i in range(N)]
    one = table(tmp_path / "one.csv", texts)
    other = write(tmp_path / "other.csv", {"id": range(N), "net worth": texts})
    with refused(DataError, "one.csv", "other.csv", "--numeric x --numeric 'net worth'"):
        load_tables({"a": one, "b": other}, TableSpec(id="id", label="y"))


def test_a_label_that_could_be_two_numbers_is_asked(tmp_path: Path) -> None:
    columns = {"y": [f"{i + 1},234" for i in range(N)], "x": range(N), "z": range(N)}
    path, of = write(tmp_path / "t.csv", columns), {"a": ["x"], "b": ["z"]}
    with pytest.raises(DataError, match="column 'y' must show which mark is decimal"):
        load_one(path, of, task="regression")
    assert load_one(path, of, task="regression", decimal=".").values[0] == 1234


def write_ten(folder: Path, spelled: bool) -> Path:
    """Two tables of five columns each, of ten spellings or plain, and a scenario of them."""
    folder.mkdir()
    rng, names = np.random.default_rng(3), [*SPELLINGS][:10]
    sizes = {n: (rng.lognormal(6, 1, N) * rng.choice([-1, 1], N)).round(2) for n in names}
    texts = {
        n: [SPELLINGS[n][0](v) if spelled else f"{v:.2f}" for v in of] for n, of in sizes.items()
    }
    label = (sizes[names[0]] + sizes[names[7]] > 0).astype(int)
    for file, of, more in (("bank", names[:5], {"y": label}), ("shop", names[5:], {})):
        columns = {"id": range(N), **{n: texts[n] for n in of}, **more}
        pd.DataFrame(columns).to_csv(folder / f"{file}.csv", index=False, quoting=csv.QUOTE_ALL)
    (folder / "s.toml").write_text(
        """
data = { files = { bank = "bank.csv", shop = "shop.csv" }, id = "id", label = "y", name = "ten" }
algorithm = { name = "splitnn", epochs = 1 }
attack = [{ name = "norm" }]
audit = { seeds = 2, references = [], positive_control = false }
gate = [{ attack = "norm", max = 0.1 }]
"""
    )
    return folder / "s.toml"


@pytest.mark.slow
def test_ten_spellings_give_the_verdict_of_the_plain_numbers(tmp_path: Path) -> None:
    plain, spelled = (
        vflsec.run_audit(write_ten(tmp_path / name, spelled), tmp_path / name / "out")
        for name, spelled in (("plain", False), ("spelled", True))
    )
    assert len(plain.results) > 3
    one, other = (
        a.results.drop(columns="cell") for a in (plain, spelled)
    )  # ids hold files' hashes
    pd.testing.assert_frame_equal(one, other, check_exact=True)
    assert plain.verdict == spelled.verdict
    assert plain.findings == spelled.findings


def test_init_says_the_unit_and_writes_numeric(tmp_path: Path, cli: Cli) -> None:
    out = tmp_path / "s.toml"
    path = write(tmp_path / "t.csv", {
        "id": range(N), "invoice_eur": [f"{i * 37 % 50},{i % 90 + 10} EUR" for i in range(N)],
        "salary": [f"${i % 40 + 20},000" for i in range(N)], "z": [i % 7 for i in range(N)],
        "y": [i * i % 3 % 2 for i in range(N)],
    })  # fmt: skip
    init = ["init", str(path), "--label", "y", "--out", str(out)]
    assert "--numeric salary" in cli.refuses(*init)
    said = " ".join(cli.says(*init, "--numeric", "salary").split())
    assert "invoice_eur active feature number, in EUR" in said
    assert "salary active feature number, in $" in said
    assert load_scenario(out).root.data[0].numeric == ["salary"]
    assert "invoice_eur (EUR)" in cli.says("check", out)
