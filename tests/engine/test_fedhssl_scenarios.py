"""The scenarios of FedHSSL's tables run to their end, here much reduced, on any data set."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from vflsec.cli.main import main
from vflsec.report.exports import load_summary

pytestmark = pytest.mark.long  # its slow tests

TABLES = {"fedhssl_table4": 7, "fedhssl_table6": 1, "fedhssl_table7": 2, "fedhssl_table11": 2}
"""Scenario and number of its algorithm sections."""


def audit(table: str, out: Path, *options: str) -> int:
    tiny = [f"algorithm.{i}.{key}={value}" for i in range(TABLES[table]) for key, value in
            (("epochs", 1), ("own_control", "false"))]  # fmt: skip
    first = int(table == "fedhssl_table4")  # which has one without pre-training first, no attack
    tiny += [f"algorithm.{i}.pretrain_iterations=1" for i in range(first, TABLES[table])]
    if not first:
        tiny += ["attack.0.known_rows=20", 'attack.0.variants=["logistic"]']
    sets = [s for value in (*tiny, *options) for s in ("--set", value)]
    return main(["audit", table, "--out", str(out), "--quiet", "--seeds", "2", *sets])


@pytest.mark.parametrize(
    "table", ["fedhssl_table11", pytest.param("fedhssl_table6", marks=pytest.mark.slow)]
)
def test_tables_name_algorithm_and_phase_of_every_figure(
    table: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    two = ("defense.0.strength=[0, 25]",) if table == "fedhssl_table11" else ()
    assert audit(table, tmp_path, *two) == 0
    capsys.readouterr()
    assert main(["report", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    summary = load_summary(tmp_path)
    assert summary["complete"]
    assert {p["phase"] for p in summary["points"]} == {"pretrain", "finetune"}
    flat = re.sub(r"\s+", " ", said)
    for phase in ("pretrain", "finetune"):
        assert f"after {phase}" in flat
    if table == "fedhssl_table11":
        caps = {(c["algorithm"], c["phase"]): c["cap"] for c in summary["curves"]
                if c["split"] == "test"}  # fmt: skip
        assert set(caps) == {
            (a, p) for a in ("fedlocal_ssl", "fedhssl") for p in ("pretrain", "finetune")
        }
        assert all(0 < v < 1 for v in caps.values())
        page = (tmp_path / "report.html").read_text()
        markdown = (tmp_path / "summary.md").read_text()
        for algorithm in ("fedlocal_ssl", "fedhssl"):
            assert f"<td>{algorithm}, after finetune</td>" in page
            assert f"| {algorithm.replace('_', chr(92) + '_')}, after finetune |" in markdown


@pytest.mark.slow
def test_another_data_set_by_an_option(tmp_path: Path) -> None:
    options = (
        "data.0.name=breast_cancer", "data.0.labelled=60", "data.0.aligned=0.5",
        "algorithm.0.pretrain_batch_size=32", "algorithm.1.pretrain_batch_size=32",
    )  # fmt: skip
    assert audit("fedhssl_table7", tmp_path, *options) == 0
    summary = load_summary(tmp_path)
    assert {p["dataset"] for p in summary["points"]} == {"breast_cancer"}
    assert "auc" in {p["metric"] for p in summary["points"]}


@pytest.mark.slow
def test_table4_compares_all_methods(tmp_path: Path) -> None:
    assert audit("fedhssl_table4", tmp_path) == 0
    summary = load_summary(tmp_path)
    assert len({p["algorithm"] for p in summary["points"]}) == 7
