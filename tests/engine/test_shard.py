"""Shards: a division that every node finds alone, and a merge that equals one run."""

from __future__ import annotations

import json
import shutil
import sqlite3
import tomllib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from audited import gate
from engine_fakes import SCENARIO, Trainer, backend, source
from printed import junit_xml

import vflsec
from vflsec.audit.result import Audit
from vflsec.cli import main
from vflsec.engine import run
from vflsec.engine.dry_run import make_plan
from vflsec.engine.shard import Shard, divide_groups
from vflsec.errors import ConfigError
from vflsec.plan.estimate import compute_weight
from vflsec.specs import CellFacts, Measure
from vflsec.storage.results_folder import OUR_FILES, REPORTS
from vflsec.storage.store import Store, _lasting

pytestmark = pytest.mark.usefixtures("no_reports")

GATE = {"metric": "utility", "min": 0.01, "algorithm": "splitnn"}


def sections(**changed: Any) -> dict[str, Any]:
    return tomllib.loads(SCENARIO) | {"gate": [GATE]} | changed


def audit(out: Path, trainer: Any = None, given: Any = None, **how: Any) -> Audit:
    return vflsec.run_audit(
        given or sections(), out, device="cpu", backend=backend(trainer or Trainer()), **how
    )


def without_time(summary: dict[str, Any]) -> dict[str, Any]:
    """A summary without the clock and the folder it was made in."""
    out = json.loads(json.dumps(summary))
    out.pop("when")
    out["cost"].pop("run_seconds")
    out["command"].pop("folder")
    return out


@contextmanager
def resealed(folder: Path) -> Iterator[sqlite3.Connection]:
    """A store to be changed, as if vflsec had written it so: its seals are made again."""
    with closing(sqlite3.connect(folder / "results.sqlite")) as db, db:
        yield db
    names = ", ".join(f.name for f in fields(Measure))
    query = f"select {names} from measures where cell = ? and attack_key = ? order by rowid"
    with Store(folder) as store:
        for pair in store._rows("select cell, attack_key from done"):
            store._seal("done {} {}".format(*pair), _lasting(store._rows(query, pair)))


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole audit and its two shards, to be copied."""
    folder = tmp_path_factory.mktemp("ready")
    audit(folder / "whole")
    audit(folder / "one", shard="1/2")
    audit(folder / "two", shard="2/2")
    return folder


@pytest.fixture
def made(ready: Path, tmp_path: Path) -> Path:
    """A copy of these three."""
    shutil.copytree(ready, tmp_path / "made")
    return tmp_path / "made"


def test_every_cell_of_every_group_is_in_one_part() -> None:
    grid = sections(audit={"seeds": 7, "references": ["local"], "positive_control": True})
    plan = make_plan(vflsec.load_scenario(grid), try_out=False, load=source)
    asked = sorted((g.role, c.key, a.key) for g in plan.groups for c in g.cells for a in g.attacks)
    for of in (1, 2, 3, 40):
        parts = divide_groups(plan.groups, of)
        assert len(parts) == of
        split = [g for part in parts for g in part]
        assert (
            sorted((g.role, c.key, a.key) for g in split for c in g.cells for a in g.attacks)
            == asked
        )
        mains = [c.key for g in split for c in g.cells if g.main]
        assert sorted(mains) == sorted(c.key for g in plan.groups for c in g.cells if g.main)
        assert parts == divide_groups(plan.groups, of)  # every node finds the same
        loads = [sum(map(compute_weight, part)) for part in parts]
        largest = max(compute_weight(g) / len(g.cells) * 4 for g in plan.groups)
        assert max(loads) <= sum(loads) / of + largest  # what is not torn apart


def test_a_cohort_alone_is_cut_too() -> None:
    plan = make_plan(vflsec.load_scenario(sections()), try_out=False, load=source)
    group = plan.groups[0]
    assert len(group.cells) == 6
    sizes = [sum(len(g.cells) for g in part) for part in divide_groups([group], 2)]
    assert sizes == [3, 3]


@pytest.mark.slow
def test_merged_shards_equal_one_run(made: Path, tmp_path: Path) -> None:
    whole = audit(made / "whole", Trainer())
    parts = [set(pd.read_parquet(made / p / "results.parquet")["cell"]) for p in ("one", "two")]
    assert parts[0] | parts[1] == set(whole.results["cell"])
    assert not parts[0] & parts[1]  # each cell once, by one shard
    merged = vflsec.merge([made / "two", made / "one"], tmp_path / "merged")
    pd.testing.assert_frame_equal(merged.results, whole.results, check_exact=True)
    stored = pd.read_parquet(tmp_path / "merged" / "results.parquet")
    pd.testing.assert_frame_equal(stored, whole.results, check_exact=True)
    assert without_time(merged.summary) == without_time(whole.summary)
    assert merged.summary["command"]["folder"] == str(tmp_path / "merged")
    assert (merged.verdict, merged.exit_code) == (whole.verdict, whole.exit_code) == ("PASS", 0)
    assert {p.name for p in (tmp_path / "merged").iterdir()} <= set(OUR_FILES)
    again = Trainer()
    resumed = audit(tmp_path / "merged", again)
    assert again.calls == []
    pd.testing.assert_frame_equal(resumed.results, whole.results, check_exact=True)


@pytest.mark.parametrize("order", [("one", "two"), ("two", "one")])
def test_a_merge_has_the_looks_of_all_folders(tmp_path: Path, order: Any) -> None:
    """A node that joins later has not looked at fewer seeds."""
    audit(tmp_path / "one", shard="1/2", seeds=2)
    for i, name in enumerate(("one", "two"), 1):
        audit(tmp_path / name, shard=f"{i}/2", seeds=3)
    vflsec.merge([tmp_path / name for name in order], tmp_path / "merged")
    with Store(tmp_path / "merged", readonly=True) as store:
        record = store.record()
    assert (record.looks.seeds, record.level) == (((0, 1), (0, 1, 2)), 0.9875)


@pytest.mark.parametrize("shard", ["1/1", "1/2"])
def test_a_shard_never_passes(
    tmp_path: Path, shard: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not in its exit code, its files, nor when it is judged again; not even if it holds all."""
    monkeypatch.setattr(run, "default_backend", lambda: backend(Trainer()))
    scenario, out = tmp_path / "s.toml", tmp_path / "out"
    scenario.write_text(SCENARIO + gate(**GATE), encoding="utf-8")
    assert main.main(["audit", str(scenario), "--out", str(out), "--shard", shard]) == 3
    said = capsys.readouterr().out
    assert "PASS" not in said
    assert "report.html" not in said
    assert f"Shard {shard}: nothing is judged before `vflsec merge`." in said
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["complete"], summary["exit_code"], summary["gates"]) == (False, 3, [])
    assert not any((out / f).exists() for f in ("junit.xml", "results.sarif", "report.html"))
    for more in ([], ["--max", "0.4"], ["--baseline", str(out)], ["--scenario", str(scenario)]):
        assert main.main(["gate", str(out), *more]) == 2
        assert "vflsec merge" in capsys.readouterr().err
    assert main.main(["report", str(out)]) == 0
    assert "PASS" not in capsys.readouterr().out
    junit = junit_xml(summary)
    assert 'errors="1"' in junit
    assert "nothing is judged" in junit
    code = main.main(["merge", str(out), "--out", str(tmp_path / "whole")])
    last = capsys.readouterr().out.rstrip("\n").splitlines()[-1]
    assert code == (0 if shard == "1/1" else 3)
    assert last.startswith("PASS with" if shard == "1/1" else "UNFINISHED.")


def test_a_shard_leaves_no_verdict_of_an_audit_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even where that audit has trained all that the shard would."""
    monkeypatch.setattr(run, "default_backend", lambda: backend(Trainer()))
    scenario, out = tmp_path / "s.toml", tmp_path / "out"
    scenario.write_text(SCENARIO + gate(**GATE), encoding="utf-8")
    assert main.main(["audit", str(scenario), "--out", str(out)]) == 0
    assert (out / "junit.xml").exists()
    capsys.readouterr()
    assert main.main(["audit", str(scenario), "--out", str(out), "--shard", "1/2"]) == 3
    assert "report.html" not in capsys.readouterr().out
    assert not any((out / name).exists() for name in REPORTS)


def test_too_few_shards_are_said_to_be_too_few_and_can_be_finished(
    made: Path, tmp_path: Path
) -> None:
    merged = vflsec.merge([made / "one"], tmp_path / "merged")
    assert (merged.exit_code, merged.verdict, merged.summary["gates"]) == (3, "UNFINISHED", [])
    assert main.main(["gate", str(tmp_path / "merged"), "--metric", "utility", "--min", "1"]) == 3
    whole = pd.read_parquet(made / "whole" / "results.parquet")
    trainer = Trainer()
    finished = audit(tmp_path / "merged", trainer)
    assert 0 < len(trainer.trained) < len(set(whole["cell"]))
    pd.testing.assert_frame_equal(finished.results, whole, check_exact=True)
    assert finished.exit_code == 0


@pytest.mark.parametrize("first", ["one", "whole"])
def test_what_broke_in_one_folder_is_taken_from_another(
    made: Path, tmp_path: Path, first: str
) -> None:
    with resealed(made / "one") as db:
        pair = db.execute("select attack_key, cell from done where attack_key != ''").fetchone()
        where = "where attack_key = ? and cell = ?"
        db.execute(f"update done set status = 'error' {where}", pair)
        db.execute(f"update measures set status = 'error', value = null {where}", pair)
    second = {"one": "whole", "whole": "one"}[first]
    merged = vflsec.merge([made / first, made / second], tmp_path / "merged", fresh=True)
    whole = pd.read_parquet(made / "whole" / "results.parquet")
    pd.testing.assert_frame_equal(merged.results, whole, check_exact=True)


def test_an_attacked_training_does_not_stand_for_the_audited_one(tmp_path: Path) -> None:
    """The cell of an active attacker, in another shard, must not lend its ledger to the cell."""

    def ledgers(cells: list[Any], attacks: list[Any], tasks: Any, **how: Any) -> list[Any]:
        out = Trainer()(cells, attacks, tasks, **how)
        for result in out:
            result.facts = CellFacts(rows={"main": int(how["main"])})
        return out

    given = sections(attack=[{"name": "norm"}, {"name": "active_completion", "known_rows": 20}])
    folders = [tmp_path / f"p{i}" for i in (1, 2)]
    for i, folder in enumerate(folders, 1):
        audit(folder, ledgers, given, shard=f"{i}/2")
    for order in (folders, folders[::-1]):
        vflsec.merge(order, tmp_path / "merged", fresh=True)
        with closing(sqlite3.connect(tmp_path / "merged" / "results.sqlite")) as db:
            facts = {row[0] for row in db.execute("select facts from cells")}
        assert [json.loads(of)["rows"] for of in facts] == [{"main": 1}]


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("scenario_hash", "f00", "scenario of .*two.* got f00"),
        ("data", {"breast_cancer": "f00"}, "data of .*two.* got breast_cancer f00"),
        ("versions", {"vflsec": "0.0.1"}, "versions of .*two"), ("wanted", {}, "plan of .*two"),
    ],
)  # fmt: skip
def test_folders_of_other_audits_are_refused(
    made: Path, tmp_path: Path, key: str, value: Any, why: str
) -> None:
    with Store(made / "two") as store:
        store.keep(replace(store.record(), **{key: value}))
    with pytest.raises(ConfigError, match=rf"{why}.*Merge parts"):
        vflsec.merge([made / "one", made / "two"], tmp_path / "merged")
    assert not (tmp_path / "merged").exists()


def test_an_edited_gate_is_another_scenario(made: Path, tmp_path: Path) -> None:
    """Else a folder with a laxer gate, given first, would be what is judged by."""
    audit(tmp_path / "lax", given=sections(gate=[GATE | {"min": 0.001}]), shard="1/2")
    with pytest.raises(ConfigError, match="scenario of"):
        vflsec.merge([tmp_path / "lax", made / "two"], tmp_path / "merged")


@pytest.mark.parametrize(
    "change",
    ["value = 0.5", """controls = '{"majority": {"value": 0.99, "cv": null}}'"""],
    ids=["figure", "control"],
)
def test_two_truths_about_one_cell_are_refused(made: Path, tmp_path: Path, change: str) -> None:
    """Of a control too: the advantage is what is left over it."""
    with resealed(made / "one") as db:
        db.execute(f"update measures set {change} where attack = 'norm'")
    with pytest.raises(ConfigError, match=r"other figures for norm of cell [0-9a-f]{24} \(seed "):
        vflsec.merge([made / "one", made / "whole"], tmp_path / "merged")
    assert main.main(["gate", str(tmp_path / "merged")]) == 2  # the first of the two passed there
    with closing(sqlite3.connect(tmp_path / "merged" / "results.sqlite")) as left:
        assert left.execute("select count(*) from cells").fetchone() == (0,)


def test_a_merge_that_was_interrupted_goes_on(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asked for --fresh, as did a merge with the shard that was left out."""
    out, whole = tmp_path / "merged", pd.read_parquet(made / "whole" / "results.parquet")
    for stop in ("_take_views", "judge"):
        with monkeypatch.context() as patch:
            patch.setattr(f"vflsec.engine.merge.{stop}", interrupt)
            with pytest.raises(KeyboardInterrupt):
                vflsec.merge([made / "one"], out)
    assert vflsec.merge([made / "one"], out).exit_code == 3
    merged = vflsec.merge([made / "two"], out)
    pd.testing.assert_frame_equal(merged.results, whole, check_exact=True)
    with pytest.raises(ConfigError, match="holds a shard"):
        vflsec.merge([made / "one"], made / "two")


def interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def test_merge_overwrites_nothing_unasked(made: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    audit(other, given=sections(gate=[GATE | {"min": 0.001}]))
    before = (other / "summary.json").read_bytes()
    with pytest.raises(ConfigError, match=r"scenario of .*other.*--fresh"):
        vflsec.merge([made / "one"], other)
    assert (other / "summary.json").read_bytes() == before
    with pytest.raises(ConfigError, match="holds a shard"):
        vflsec.merge([made / "one"], made / "two" / ".." / "one", fresh=True)
    with pytest.raises(ConfigError, match=r"has no results\.sqlite"):
        vflsec.merge([made / "one", tmp_path / "nowhere"], tmp_path / "merged")
    with pytest.raises(ConfigError, match="folders"):
        vflsec.merge([], tmp_path / "merged")


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "1/0", "a/b", "-1/2", "1/2/3", "1.5/2", " "])
def test_a_wrong_shard_is_one_clear_error(text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--shard must be I/N with 1 <= I <= N, as in 2/8"):
        audit(tmp_path, shard=text)


def test_a_shard_knows_no_verdict_to_wait_for(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--shard: .* --until-decided"):
        audit(tmp_path, shard="1/2", sequential=True)
    assert Shard.parse("02/8") == Shard(2, 8)
