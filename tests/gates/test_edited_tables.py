"""Stored results that are judged again after their tables were changed: that is said."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sound import AUDIT

from vflsec.cli import main

CASE = """name = "case"
[data]
files = { clinic = "tables/clinic.csv", shop = "tables/shop.csv" }
id = "id"
label = "y"
""" + AUDIT.replace("max = 0.1", "max = 0.4")


@pytest.fixture
def audited(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    (tmp_path / "tables").mkdir()
    for name in ("clinic", "shop"):
        table = pd.DataFrame(rng.standard_normal((200, 2))).add_prefix(name)
        if name == "clinic":
            table["y"] = np.arange(200) % 2
        table.to_csv(tmp_path / "tables" / f"{name}.csv", index_label="id")
    (tmp_path / "case.toml").write_text(CASE, encoding="utf-8")
    out = tmp_path / "results" / "out"
    main.main(["audit", str(tmp_path / "case.toml"), "--out", str(out), "--device", "cpu", "-q"])
    return tmp_path


def test_a_table_that_was_changed_since_is_said(
    audited: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The old results were judged as if they were of the table that lies there."""
    out, table = audited / "results" / "out", audited / "tables" / "shop.csv"
    capsys.readouterr()
    code = main.main(["gate", str(out)])
    assert "warning" not in capsys.readouterr().err
    text = table.read_text()
    os.utime(table, (1, 1))  # a checkout gives files other times
    assert main.main(["gate", str(out)]) == code
    assert "warning" not in capsys.readouterr().err

    first = text.splitlines()[1]
    table.write_text(text.replace(first, first.split(",")[0] + ",1.5,1.5"))
    monkeypatch.chdir(audited / "tables")
    for asked in (["gate", str(out)], ["gate", str(out), "--max", "0.4"]):
        assert main.main(asked) == code
        told = capsys.readouterr()
        assert told.err.splitlines() == [
            "warning: shop.csv was changed since this audit. Run the audit again."
        ]
    table.unlink()  # results that are judged elsewhere have no table beside them
    assert main.main(["gate", str(out)]) == code
    assert "warning" not in capsys.readouterr().err
