"""A report is of the results beside it, or there is none."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from audited import Planted, audited, gate
from command_line import Cli

PLANTED = Planted({"norm": 0.3, "model_completion": 0.2})


def altered(out: Path, statement: str) -> None:
    with closing(sqlite3.connect(out / "results.sqlite")) as db, db:
        db.execute(statement)


@pytest.mark.parametrize("harm", ["cut off", "edited", "with a hole", "of another audit"])
def test_no_report_is_printed_beside_results_that_do_not_bear_it_out(
    harm: str, tmp_path: Path, cli: Cli
) -> None:
    out = tmp_path / "out"
    assert audited(tmp_path, PLANTED, gate(max=0.4)).exit_code == 0
    command = ["report", str(out), "--to", str(tmp_path / "to")]
    if harm == "cut off":
        os.truncate(out / "results.sqlite", 20000)
    elif harm == "edited":
        altered(out, "update measures set value = 0.5")
    elif harm == "with a hole":
        altered(out, "delete from done where rowid = 2")
    else:
        other = tmp_path / "other"
        assert audited(other, PLANTED, gate(max=0.39)).exit_code == 0
        (other / "out" / "summary.json").replace(out / "summary.json")
    assert cli.refuses(*command).startswith(f"error: {out}")
    assert "PASS" not in cli.out
    assert not (tmp_path / "to").exists()
    for path in out.glob("results.sqlite*"):  # alone a summary has its own seal
        path.unlink()
    assert cli(*command) == 0
