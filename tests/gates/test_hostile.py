"""Bad input of every kind: exit code 2, one clear message, no traceback, no half-written result."""

from __future__ import annotations

import errno
import json
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from vflsec import cli

GOOD = """\
[data]
file = "t.csv"
label = "y"
id = "id"
active = "a"
[data.columns]
a = ["x1"]
b = ["x2"]
[algorithm]
name = "splitnn"
epochs = 1
[[attack]]
name = "norm"
[audit]
seeds = 2
references = []
positive_control = false
[[gate]]
max = 0.1
"""
ROWS = "".join(f"{i},{i % 7},{i % 5},{i % 2}\n" for i in range(60))
TABLE = "id,x1,x2,y\n" + ROWS
BIG = "9" * 400

Case = tuple[str, str | bytes, str | bytes, str]


def table_with(cell: str, x2: str = "3") -> str:
    """The good table with this cell in row 8 of column x1."""
    assert "\n8,1,3,0\n" in TABLE
    return TABLE.replace("\n8,1,3,0\n", f"\n8,{cell},{x2},0\n")


def changed(old: str, new: str) -> str:
    assert old in GOOD, old
    return GOOD.replace(old, new)


# name: (scenario, table, words that the message must hold)
SCENARIOS: dict[str, tuple[str | bytes, str]] = {
    "empty": ("", "data is missing"),
    "unclosed table": ("[data\nname = 1", "not valid TOML"),
    "unclosed string": (changed('"norm"', '"norm'), "not valid TOML"),
    "duplicate key": (GOOD + '[data]\nname = "x"\n', "not valid TOML"),
    "not utf-8": (GOOD.encode() + b"# \xff\xfe", "UTF-8"),
    "utf-16": (GOOD.encode("utf-16"), "UTF-8"),
    "null byte": (GOOD + "\x00", "not valid TOML"),
    "binary": (bytes(range(256)), ""),
    "json": ('{"data": {"name": "adult"}}', "not valid TOML"),
    "yaml": ("data:\n  name: adult\n", "not valid TOML"),
    "unknown section": (GOOD + "[gates]\nmax = 0.1\n", "not a known key"),
    "unknown key": (changed("max = 0.1", "maxx = 0.1"), "not a known key"),
    "html as key": (changed("max = 0.1", '"<script>" = 0.1'), "not a known key"),
    "escape sequence as key": (changed("max = 0.1", '"\\u001b[31m" = 0.1'), "not a known key"),
    "text for a number": (changed("max = 0.1", 'max = "0.1"'), "must be"),
    "list for a number": (changed("max = 0.1", "max = [0.1]"), "must be"),
    "number for a name": (changed('name = "norm"', "name = 3"), "must be"),
    "bool for a number": (changed("max = 0.1", "max = true"), "must be"),
    "date for a number": (changed("max = 0.1", "max = 2026-01-01"), "date"),
    "nan threshold": (changed("max = 0.1", "max = nan"), "finite"),
    "infinite threshold": (changed("max = 0.1", "max = inf"), "finite"),
    "giant integer seed": (changed("seeds = 2", f"seeds = [{BIG}]"), ""),
    "giant number of seeds": (changed("seeds = 2", "seeds = 99999999999"), "10000"),
    "no seeds": (changed("seeds = 2", "seeds = []"), "at least 1"),
    "zero seeds": (changed("seeds = 2", "seeds = 0"), "must be"),
    "negative seed": (changed("seeds = 2", "seeds = [-1]"), "must be"),
    "repeated seed": (changed("seeds = 2", "seeds = [1, 1]"), "twice"),
    "no algorithm": (changed('[algorithm]\nname = "splitnn"\nepochs = 1', ""), "missing"),
    "unknown algorithm": (changed('"splitnn"', '"splitn"'), "splitnn"),
    "unknown attack": (changed('"norm"', '"nrom"'), "norm"),
    "unknown defense": (GOOD + '[[defense]]\nname = "isso"\n', "iso"),
    "traversal as attack": (changed('"norm"', '"../../etc/passwd"'), "passwd"),
    "unknown hyper-parameter": (changed("epochs = 1", "epoks = 1"), "epochs"),
    "epochs of text": (changed("epochs = 1", 'epochs = "many"'), "epochs"),
    "no epochs": (changed("epochs = 1", "epochs = -5"), "epochs"),
    "giant epochs": (changed("epochs = 1", f"epochs = {BIG}"), ""),
    "strength of text": (GOOD + '[[defense]]\nname = "iso"\nstrength = ["x"]\n', "strength"),
    "negative strength": (GOOD + '[[defense]]\nname = "iso"\nstrength = [-1]\n', "strength"),
    "both limits": (changed("max = 0.1", "max = 0.1\nmin = 0.0"), "both"),
    "no limit": (changed("max = 0.1", ""), "neither"),
    "gate on cap": (changed("max = 0.1", 'metric = "cap"\nmax = 0.1'), "never gated"),
    "gate on an unknown metric": (changed("max = 0.1", 'metric = "aucc"\nmax = 1'), "auc"),
    "gate confidence of 1": (changed("max = 0.1", "max = 0.1\nconfidence = 1.0"), "confidence"),
    "unknown party": (changed('name = "norm"', 'name = "norm"\nadversary = "eve"'), "eve"),
    "negative known rows": (changed('"norm"', '"norm"\nknown_rows = -1'), "known_rows"),
    "no such table": (changed("t.csv", "nowhere.csv"), "nowhere.csv"),
    "a folder as table": (changed("t.csv", "folder"), "folder"),
    "traversal as table": (changed("t.csv", "../../../../../etc/shadow-no"), "shadow-no"),
    "no label": (changed('label = "y"\n', ""), "label"),
    "unknown label": (changed('label = "y"', 'label = "yy"'), "yy"),
    "unknown column": (changed('["x2"]', '["x9"]'), "x9"),
    "a column twice": (changed('["x2"]', '["x1"]'), "x1"),
    "both table forms": (changed('"t.csv"', '"t.csv"\nfiles = {a = "t.csv"}'), "exclude"),
}  # fmt: skip

TABLES: dict[str, tuple[str | bytes, str]] = {
    "empty table": ("", "t.csv"),
    "header only": ("id,x1,x2,y\n", ""),
    "one row": ("id,x1,x2,y\n1,2,3,0\n", ""),
    "infinite cell": (
        table_with("inf"),
        "column 'x1' must hold finite numbers, got inf in row 10",
    ),
    "minus infinite cell": (table_with("-Infinity"), "must hold finite numbers, got -inf"),
    "a number beyond float64": (table_with("1e999"), "must hold finite numbers, got inf"),
    "an infinite cell beside nan": (table_with("nan", x2="inf"), "column 'x2' must hold finite"),
    "a label of nan only": (re.sub(r",\d\n", ",nan\n", TABLE), "'y'"),
    "one class": ("id,x1,x2,y\n" + "".join(f"{i},{i},{i},0\n" for i in range(60)), ""),
    "a class of one row": (TABLE + "99,1,1,2\n", ""),
    "ragged rows": (TABLE + "61,1\n", ""),
    "repeated column": (TABLE.replace("id,x1,x2,y", "id,x1,x1,y"), ""),
    "repeated id": (TABLE + "0,1,1,1\n", ""),
    "table not utf-8": (TABLE.encode() + b"61,1,\xff,0\n", ""),
    "table of nulls": (b"\x00" * 400, ""),
    "a png as table": (b"\x89PNG\r\n\x1a\n" + bytes(200), ""),
    "html names without the columns": (TABLE.replace("x1", "<script>alert(1)</script>"), "x1"),
}


def one_message(err: str) -> None:
    assert err.startswith(("error: ", "Usage: ")), err
    assert err.lower().count("error: ") == 1
    assert "Traceback" not in err
    assert "internal" not in err
    assert "\x1b" not in err
    assert 10 < len(err) < 3000


def nothing_written(out: Path) -> None:
    left = {p.name for p in out.iterdir()} if out.is_dir() else set()
    assert left <= {"results.sqlite", "results.sqlite-wal", "results.sqlite-shm"}, left


def run(capsys: pytest.CaptureFixture[str], *args: object, words: str = "", code: int = 2) -> None:
    found = cli.main([str(a) for a in args])
    err = capsys.readouterr().err
    assert found == code, err
    one_message(err)
    assert words in err


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenarios(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, words = SCENARIOS[name]
    (tmp_path / "folder").mkdir()
    (tmp_path / "t.csv").write_text(TABLE)
    path = tmp_path / "case.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
    run(capsys, "audit", path, "--out", tmp_path / "out", "-q", words=words)
    nothing_written(tmp_path / "out")


@pytest.mark.parametrize("name", TABLES)
def test_tables(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table, words = TABLES[name]
    (tmp_path / "t.csv").write_bytes(table if isinstance(table, bytes) else table.encode())
    path = tmp_path / "case.toml"
    path.write_text(GOOD)
    run(capsys, "audit", path, "--out", tmp_path / "out", "-q", words=words)
    nothing_written(tmp_path / "out")


@pytest.mark.parametrize("cell", ["nan", "NaN", "", "NA", "null", "?"])
def test_a_cell_without_a_value_is_counted_and_no_error(
    cell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """NaN is a missing value by design: `vflsec check` accepts it and says how many, where."""
    (tmp_path / "t.csv").write_text(table_with(cell).replace("\n9,2,4,1\n", f"\n9,2,{cell},1\n"))
    path = tmp_path / "case.toml"
    path.write_text(GOOD)
    assert cli.main(["check", str(path)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "t: missing values at a, of 60 rows: x1 1; a missing number becomes" in said
    assert "t: missing values at b, of 60 rows: x2 1;" in said
    assert cli.main(["check", str(path), "--format", "json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["plan"]["data"][0]["missing"] == {"a": {"x1": 1}, "b": {"x2": 1}}


def _missing(folder: Path) -> list[object]:
    return ["audit", folder / "nowhere.toml"]


def _folder(folder: Path) -> list[object]:
    return ["audit", folder]


def _out_is_a_file(folder: Path) -> list[object]:
    (folder / "out").write_text("mine")
    return ["audit", folder / "case.toml", "--out", folder / "out"]


def _out_below_a_file(folder: Path) -> list[object]:
    (folder / "file").write_text("mine")
    return ["audit", folder / "case.toml", "--out", folder / "file" / "out"]


def _out_has_a_null(folder: Path) -> list[object]:
    return ["audit", folder / "case.toml", "--out", f"{folder}/a\x00b"]


def _out_is_too_long(folder: Path) -> list[object]:
    return ["audit", folder / "case.toml", "--out", folder / ("x" * 300)]


def _foreign_store(folder: Path) -> list[object]:
    (folder / "out").mkdir()
    (folder / "out" / "results.sqlite").write_bytes(b"not a database" * 100)
    return ["audit", folder / "case.toml", "--out", folder / "out"]


def _bad_set(folder: Path) -> list[object]:
    return ["audit", folder / "case.toml", "--set", "audit"]


def _set_nowhere(folder: Path) -> list[object]:
    return ["audit", folder / "case.toml", "--set", "attack.7.name=norm"]


def _unknown_device(folder: Path) -> list[object]:
    return ["audit", folder / "case.toml", "--device", "abacus"]


def _budget(folder: Path) -> list[object]:
    return ["audit", folder / "case.toml", "--until-decided", "1"]


def _gate_nothing(folder: Path) -> list[object]:
    return ["gate", folder]


def _gate_file(folder: Path) -> list[object]:
    return ["gate", folder / "case.toml"]


def _compare_nothing(folder: Path) -> list[object]:
    return ["compare", folder, folder]


def _report_nothing(folder: Path) -> list[object]:
    return ["report", folder]


def _report_broken(folder: Path) -> list[object]:
    (folder / "summary.json").write_text('{"schema_version": 1')
    return ["report", folder]


def _report_old(folder: Path) -> list[object]:
    (folder / "summary.json").write_text('{"schema_version": 99}')
    return ["report", folder]


def _init_exists(folder: Path) -> list[object]:
    out = folder / "case.toml"
    return ["init", folder / "t.csv", "--label", "y", "--out", out]


def _new_traversal(folder: Path) -> list[object]:
    return ["new", "attack", "../../evil"]


COMMANDS: list[Callable[[Path], list[object]]] = [
    _missing, _folder, _out_is_a_file, _out_below_a_file, _out_has_a_null, _out_is_too_long,
    _foreign_store, _bad_set, _set_nowhere, _unknown_device, _budget, _gate_nothing, _gate_file,
    _compare_nothing, _report_nothing, _report_broken, _report_old, _init_exists, _new_traversal,
]  # fmt: skip


@pytest.mark.parametrize("make", COMMANDS, ids=lambda m: m.__name__.strip("_"))
def test_commands(
    make: Callable[[Path], list[object]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t.csv").write_text(TABLE)
    (tmp_path / "case.toml").write_text(GOOD)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    run(capsys, *make(tmp_path))
    for path, data in before.items():
        assert path.read_bytes() == data


BASELINES = {
    "text": "hello",
    "list": "[1, 2]",
    "another version": '{"baseline_version": 7, "points": []}',
    "no points": '{"baseline_version": 1}',
    "points of text": '{"baseline_version": 1, "points": ["x"]}',
    "a point without a key": '{"baseline_version": 1, "points": [{"advantage": {"0": 1}}]}',
    "an infinite advantage": '{"baseline_version": 1, "points": [{"advantage": {"0": Infinity}}]}',
    "giant": '{"baseline_version": ' + "9" * 5000 + "}",
    "deep": "[" * 100_000,
}


@pytest.mark.parametrize("name", BASELINES)
def test_baselines(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "baseline.json"
    path.write_text(BASELINES[name])
    run(capsys, "gate", tmp_path, "--baseline", path, words=str(path))


def test_the_corpus_is_large() -> None:
    assert len(SCENARIOS) + len(TABLES) + len(COMMANDS) + len(BASELINES) >= 60


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT])
def test_a_disk_that_takes_nothing(
    code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full, read-only or forbidden folder, by a fake: root may write anywhere."""
    from audited import Planted

    from vflsec.engine import run as engine

    planted = Planted({"norm": 0.0})
    monkeypatch.setattr(engine, "default_backend", planted.backend)
    text = '[data]\nname = "breast_cancer"\n' + GOOD[GOOD.index("[algorithm]") :]
    (tmp_path / "case.toml").write_text(text)
    first = tempfile.mkstemp
    calls = []

    def full(*args: object, **kwargs: object) -> object:
        if str(kwargs.get("dir", "")).startswith(str(tmp_path)):
            calls.append(args)
            raise OSError(code, os.strerror(code))
        return first(*args, **kwargs)  # type: ignore[call-overload]

    monkeypatch.setattr(tempfile, "mkstemp", full)
    out = tmp_path / "out"
    run(capsys, "audit", tmp_path / "case.toml", "--out", out, "-q", words="cannot be written")
    assert calls
    nothing_written(out)


def test_a_store_that_fills_the_disk(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite reports a full disk while a cell is committed; max_page_count is a small quota."""
    from audited import SCENARIO, Planted

    from vflsec.engine import run as engine
    from vflsec.engine.store import Store

    monkeypatch.setattr(
        engine, "default_backend", Planted({"norm": 0, "model_completion": 0}).backend
    )
    (tmp_path / "case.toml").write_text(SCENARIO)
    first = Store._open

    def small(self: Store) -> object:
        db = first(self)
        db.execute("pragma max_page_count = 12")
        return db

    monkeypatch.setattr(Store, "_open", small)
    out = tmp_path / "out"
    run(capsys, "audit", tmp_path / "case.toml", "--out", out, "-q", words="full")
    nothing_written(out)
