"""Bad input of every kind: exit code 2, one clear message, no traceback, no half-written result."""

from __future__ import annotations

import errno
import json
import os
import sys
import tempfile
from pathlib import Path

import pytest
from cases import CASES, cases, lay
from command_line import Cli
from corpus import GOOD, table_with
from sampled import sampled

from vflsec.cli import main
from vflsec.plugins.registry import Registry


def one_message(err: str) -> None:
    assert err.startswith(("error: ", "Usage: ")), err
    assert "Traceback" not in err
    assert "internal" not in err
    assert "\x1b" not in err
    assert 10 < len(err) < 8000


def only_the_store(out: Path) -> None:
    """What was finished is kept for the next run of the same command, and nothing half-written."""
    left = {path.name for path in out.iterdir()}
    assert left <= {"results.sqlite", "results.sqlite-wal", "results.sqlite-shm", "results.lock"}
    assert "results.sqlite" in left


def run(cli: Cli, *args: object, words: str = "", code: int = 2) -> None:
    assert cli(*args) == code, cli.err
    one_message(cli.err)
    assert words in cli.err, cli.err


@pytest.mark.parametrize("name", sampled(CASES, every=10))
def test_every_case(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    case = CASES[name]
    args = lay(case, tmp_path)
    monkeypatch.chdir(tmp_path)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    path = list(sys.path)
    try:
        run(cli, *args, words=case.words, code=case.code)
    finally:
        sys.path[:] = path
        sys.modules.pop("mine", None)
    after = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    for file in set(after) - set(before):
        assert "__pycache__" in file.parts, f"{file} was written"
    assert {p: after[p] for p in before} == before


def test_a_check_of_three_thousand_strengths_answers(
    tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is looked up for each strength; tests/plan/test_plan.py counts what else is done."""
    lookups = []
    first = Registry._claims
    monkeypatch.setattr(Registry, "_claims", lambda self: (lookups.append(1), first(self))[1])
    grid = ", ".join(str(i / 10) for i in range(3000))
    text = GOOD[GOOD.index("[algorithm]") :] + f'[[defense]]\nname = "iso"\nstrength = [{grid}]\n'
    path = tmp_path / "case.toml"
    path.write_text(f'[data]\nname = "breast_cancer"\n{text}')
    assert "6000" in cli.says("check", path)
    assert len(lookups) < 100


@pytest.mark.slow
def test_a_check_of_many_columns_takes_time_in_proportion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By counting Python calls, so that no clock is needed: 100,000 columns take 10 x 10,000."""
    calls = []
    for n in (250, 1000):
        names = [f"c{i}" for i in range(n)]
        rows = "".join(f"{r},{r % 2}," + ",".join(["1"] * n) + "\n" for r in range(40))
        (tmp_path / "wide.csv").write_text("id,y," + ",".join(names) + "\n" + rows)
        half = n // 2
        text = GOOD.replace("t.csv", "wide.csv").replace('["x1"]', json.dumps(names[:half]))
        path = tmp_path / "wide.toml"
        path.write_text(text.replace('["x2"]', json.dumps(names[half:])))
        count = 0

        def counted(*_: object) -> None:
            nonlocal count
            count += 1

        sys.setprofile(counted)
        try:
            assert main.main(["check", str(path)]) == 0
        finally:
            sys.setprofile(None)
        calls.append(count)
    assert calls[1] < 4.5 * calls[0]


def test_the_corpus_is_large() -> None:
    assert len(CASES) == len(list(cases())) >= 400


@pytest.mark.parametrize("cell", ["nan", "NaN", "", "NA", "null", "?"])
def test_a_cell_without_a_value_is_counted_and_no_error(
    cell: str, tmp_path: Path, cli: Cli
) -> None:
    """NaN is a missing value by design: `vflsec check` accepts it and says how many, where."""
    (tmp_path / "t.csv").write_text(table_with(cell).replace("\n9,2,4,1\n", f"\n9,2,{cell},1\n"))
    path = tmp_path / "case.toml"
    path.write_text(GOOD)
    said = " ".join(cli.says("check", path).split())
    assert "t: missing values at a, of 60 rows: x1 1" in said
    assert "; at b, of 60 rows: x2 1" in said
    (found,) = json.loads(cli.says("check", path, "--format", "json"))
    assert found["plan"]["data"][0]["missing"] == {"a": {"x1": 1}, "b": {"x2": 1}}


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT])
def test_a_disk_that_takes_nothing(
    code: int, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
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
        told = "write-test" in str(kwargs.get("prefix"))  # that would be before any work
        if str(kwargs.get("dir", "")).startswith(str(tmp_path)) and not told:
            calls.append(args)
            raise OSError(code, os.strerror(code))
        return first(*args, **kwargs)  # type: ignore[call-overload]

    monkeypatch.setattr(tempfile, "mkstemp", full)
    out = tmp_path / "out"
    run(cli, "audit", tmp_path / "case.toml", "--out", out, "-q", words="cannot be written")
    assert calls
    only_the_store(out)


def test_a_store_that_fills_the_disk(
    tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite reports a full disk while a cell is committed; max_page_count is a small quota."""
    from audited import SCENARIO, Planted

    from vflsec.engine import run as engine
    from vflsec.storage.store import Store

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
    run(cli, "audit", tmp_path / "case.toml", "--out", out, "-q", words="full")
    only_the_store(out)
