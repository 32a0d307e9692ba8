"""The results directory under attack: races, foreign files, leftovers, edits, damage."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import stored
from audited import LEAKY, SCENARIO, SEALED, Killed, Planted, audited, gate, go, scenario
from command_line import Cli
from sampled import sampled

from vflsec.cli import main
from vflsec.engine.run import run_audit
from vflsec.errors import ConfigError
from vflsec.storage.results_folder import LOCK_NAME, OUR_FILES, claim
from vflsec.storage.store import Store

STRICT, LAX = gate(max=0.1), gate(max=0.4)


def test_a_killed_audit_leaves_no_earlier_verdict(tmp_path: Path, cli: Cli) -> None:
    """A build that uploads reports whatever happened showed the PASS of the commit before."""
    said = ("summary.json", "report.html", "junit.xml", "results.sarif", "summary.md")
    out = tmp_path / "out"

    first = scenario(tmp_path, "case", LAX)
    assert go(Planted(LEAKY), "audit", first, "--out", out) == 0
    assert all((out / name).is_file() for name in said)
    edited = tmp_path / "edited.toml"
    edited.write_text(SCENARIO.replace("seeds = 5", "seeds = 6") + STRICT, encoding="utf-8")
    assert go(Killed(LEAKY), "audit", edited, "--out", out) == 130
    assert not any((out / name).exists() for name in said)
    assert "its audit has not ended" in cli.refuses("report", out)
    assert main.main(["gate", str(out)]) in (1, 3)
    assert go(Planted(LEAKY), "audit", edited, "--out", out) == 1
    assert all((out / name).is_file() for name in said)


def test_the_store_alone_goes_on_and_has_no_report_to_upload(tmp_path: Path) -> None:
    """What docs/ci.md caches: a refused audit left the reports of the job before beside it."""

    first = scenario(tmp_path, "case", LAX)
    assert go(Planted(LEAKY), "audit", first, "--out", tmp_path / "out") == 0
    cached = tmp_path / "cached"
    cached.mkdir()
    for path in (tmp_path / "out").glob("results.sqlite*"):
        (cached / path.name).write_bytes(path.read_bytes())
    store = sorted(p.name for p in cached.iterdir())
    assert main.main(["audit", str(tmp_path / "nowhere.toml"), "--out", str(cached)]) == 2
    assert sorted(p.name for p in cached.iterdir()) == store
    assert go(Killed(LEAKY), "audit", first, "--out", cached) == 0  # nothing is trained
    assert (cached / "report.html").is_file()


def test_killed_between_its_files_a_judgement_leaves_none_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the gate was edited, so nothing trains: the summary said FAIL, the old report PASS."""
    from vflsec.report import exports

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    out = tmp_path / "out"
    assert go(Planted(LEAKY), "audit", scenario(tmp_path, "case", LAX), "--out", out) == 0
    monkeypatch.setattr(exports, "write_reports", killed)
    assert go(Planted(LEAKY), "audit", scenario(tmp_path, "case", STRICT), "--out", out) == 130
    said = json.loads((out / "summary.json").read_text())
    assert [v["verdict"] for v in said["gates"]].count("FAIL") > 0
    reports = ("report.html", "statement.html", "junit.xml", "results.sarif", "summary.md")
    assert not any((out / name).exists() for name in reports)


def test_two_audits_in_one_folder_do_not_swap_verdicts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The strict one exited with 0 when a lax one was started into its folder meanwhile."""
    strict, lax = scenario(tmp_path, "strict", STRICT), scenario(tmp_path, "lax", LAX)
    out, codes = tmp_path / "out", []

    class Meanwhile(Planted):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            if not codes:
                other = threading.Thread(
                    target=lambda: codes.append(
                        go(Planted(LEAKY), "audit", lax, "--out", out, "-q")
                    )
                )
                other.start()
                other.join()
            return super().__call__(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("signal.signal", lambda *_: None)  # only a main thread may
        assert go(Meanwhile(LEAKY), "audit", strict, "--out", out, "-q") == 1
    assert codes == [2]
    seen = capsys.readouterr()
    assert f"process {os.getpid()} on" in seen.err
    assert "audits into this folder" in seen.err
    assert json.loads((out / "summary.json").read_text())["exit_code"] == 1


def test_the_record_in_memory_is_judged(tmp_path: Path) -> None:
    """Whatever happens to the one that is stored."""
    path = scenario(tmp_path, "strict", STRICT)

    class Swaps(Planted):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            with sqlite3.connect(tmp_path / "out" / "results.sqlite", timeout=10) as db:
                text = db.execute("select value from meta where key = 'audit'").fetchone()[0]
                lax = json.loads(text) | {"gates": [{"max": 0.9}]}
                db.execute("update meta set value = ? where key = 'audit'", (json.dumps(lax),))
            db.close()
            return super().__call__(*args, **kwargs)

    found = run_audit(path, tmp_path / "out", backend=Swaps(LEAKY).backend())
    assert found.exit_code == 1
    assert found.verdicts[0].threshold == 0.1


def test_a_thread_may_claim_again_and_others_may_not(tmp_path: Path) -> None:
    told: list[str] = []

    def other() -> None:
        try:
            with claim(tmp_path):
                told.append("got it")
        except ConfigError as error:
            told.append(str(error))

    with claim(tmp_path) as first, claim(tmp_path) as second:
        assert first is second
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    with claim(tmp_path):
        pass
    assert "audits into this folder" in told[0]


@pytest.mark.parametrize("name", sampled((n for n in OUR_FILES if n != LOCK_NAME), every=5))
@pytest.mark.parametrize("fresh", [False, True])
def test_a_file_that_is_not_ours_is_never_overwritten(
    name: str, fresh: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / name).write_bytes(b"my own work, 3 years of it\n" * 100)
    before = (out / name).read_bytes()
    options = ["--fresh"] if fresh else []
    path = scenario(tmp_path, "case", "")
    assert go(Planted(LEAKY), "audit", path, "--out", out, "-q", *options) == 2
    assert name in capsys.readouterr().err
    assert {p.name for p in out.iterdir()} == {name}
    assert (out / name).read_bytes() == before


def test_a_database_of_somebody_else_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    with sqlite3.connect(out / "results.sqlite") as db:
        db.execute("create table mine (x)")
    db.close()
    before = (out / "results.sqlite").read_bytes()
    path = scenario(tmp_path, "case", "")
    for options in ([], ["--fresh"]):
        assert go(Planted(LEAKY), "audit", path, "--out", out, "-q", *options) == 2
    assert "is no result store of vflsec" in capsys.readouterr().err
    assert (out / "results.sqlite").read_bytes() == before


def test_reports_and_baselines_overwrite_nothing_foreign(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, to, mine = tmp_path / "out", tmp_path / "public", tmp_path / "notes.txt"
    assert go(Planted(LEAKY), "audit", scenario(tmp_path, "c", STRICT), "--out", out, "-q") == 1
    to.mkdir()
    (to / "summary.md").write_text("# mine\n")
    mine.write_text("mine")
    capsys.readouterr()
    assert go(Planted(LEAKY), "report", out, "--to", to) == 2
    assert go(Planted(LEAKY), "gate", out, "--report", to) == 2
    assert go(Planted(LEAKY), "gate", out, "--baseline", mine, "--update-baseline") == 2
    assert (to / "summary.md").read_text() == "# mine\n"
    assert mine.read_text() == "mine"
    (to / "summary.md").unlink()
    for _ in range(2):  # its own files it does overwrite
        assert go(Planted(LEAKY), "report", out, "--to", to) == 0
        assert go(Planted(LEAKY), "gate", out, "--baseline", tmp_path / "b.json",
                  "--update-baseline") == 1  # fmt: skip


def test_reports_of_one_audit_do_not_stand_beside_the_results_of_another(tmp_path: Path) -> None:
    lax, strict = tmp_path / "lax", tmp_path / "strict"
    assert go(Planted(LEAKY), "audit", scenario(tmp_path, "a", ""), "--out", lax, "-q") == 0
    assert go(Planted(LEAKY), "audit", scenario(tmp_path, "b", STRICT), "--out", strict, "-q") == 1
    failed = (strict / "junit.xml").read_bytes()
    assert b"<failure" in failed
    assert go(Planted(LEAKY), "gate", lax, "--max", "0.4", "--report", strict) == 2
    assert go(Planted(LEAKY), "report", lax, "--to", strict) == 2
    assert (strict / "junit.xml").read_bytes() == failed
    assert go(Planted(LEAKY), "gate", strict, "--report", strict) == 1


def test_half_files_of_a_killed_export_are_removed(tmp_path: Path) -> None:
    out = tmp_path / "out"
    path = scenario(tmp_path, "case", "")
    run_audit(path, out, backend=Planted(LEAKY).backend())
    (out / ".results.csv.abcd1234").write_text("half")
    (out / ".results.csv.mine").write_text("mine")
    for name in (".controls.abcd1234", ".controls.mine"):
        (out / name).mkdir()
        (out / name / "x.safetensors").write_text("half")
    run_audit(path, out, backend=Planted(LEAKY).backend())
    assert not (out / ".results.csv.abcd1234").exists()
    assert not (out / ".controls.abcd1234").exists()
    assert (out / ".results.csv.mine").exists()
    assert (out / ".controls.mine" / "x.safetensors").exists()


def test_gate_says_whose_gates_it_judges_and_offers_the_edited_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """After an edit of the scenario the old gates were judged without a word."""
    path, out = scenario(tmp_path, "case", LAX), tmp_path / "out"
    args = ["--out", out, "-q", "--set", "audit.seeds=6"]
    assert go(Planted(LEAKY), "audit", path, *args) == 0
    capsys.readouterr()
    assert go(Planted(LEAKY), "gate", out) == 0
    said = capsys.readouterr().out
    assert "case.toml, audited" in said
    assert "edited" not in said
    path.write_text(SCENARIO + STRICT)
    assert go(Planted(LEAKY), "gate", out) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "was edited since" in said
    assert f"vflsec gate {out} --scenario" in said
    assert go(Planted(LEAKY), "gate", out, "--scenario", path) == 1
    path.write_text(SCENARIO + gate(max=0.1, attack="nrom"))
    assert go(Planted(LEAKY), "gate", out, "--scenario", path) == 2
    assert "Did you mean 'norm'?" in capsys.readouterr().err
    path.write_text(SCENARIO.replace("known_rows = 20", "known_rows = 30") + STRICT)
    assert go(Planted(LEAKY), "gate", out, "--scenario", path) == 2
    assert "attack differ from the audit" in capsys.readouterr().err


# damage ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    path = scenario(folder, "case", STRICT)
    with pytest.MonkeyPatch.context() as patch:
        from vflsec.report import html

        patch.setattr(html, "draw", lambda *_: "")
        assert run_audit(path, folder / "out", backend=Planted(LEAKY).backend()).exit_code == 1
    with Store(folder / "out") as store:
        store._db.execute("pragma wal_checkpoint(truncate)")
    return folder


def _copy(finished: Path, folder: Path) -> Path:
    out = folder / "out"
    out.mkdir()
    for file in (finished / "out").iterdir():
        (out / file.name).write_bytes(file.read_bytes())
    return out


def altered(out: Path, change: Callable[[sqlite3.Connection], object], sealed: bool) -> None:
    with sqlite3.connect(out / "results.sqlite") as db:
        change(db)
        if not sealed:
            db.execute("drop table seals")
    db.close()


def told(err: str, out: Path) -> None:
    assert str(out) in err or err.startswith("error: gate: ") or "intervals: confidence" in err
    assert "internal" not in err
    assert "Traceback" not in err
    assert "\x1b" not in err


@pytest.mark.parametrize("sealed", [True, False], ids=["sealed", "unsealed"])
@pytest.mark.parametrize("name", sampled(stored.SQL, every=8))
def test_a_damaged_store_is_told(
    name: str, sealed: bool, finished: Path, tmp_path: Path, cli: Cli
) -> None:
    out = _copy(finished, tmp_path)
    case = stored.SQL[name]
    statement, code = (case, 2) if isinstance(case, str) else case
    altered(out, lambda db: db.execute(statement), sealed)
    found = cli("gate", out)
    assert found == (code if sealed else 2), cli.err
    if found == 2:
        told(cli.err, out)
    else:
        assert "Not everything planned" in cli.out


@pytest.mark.parametrize("sealed", [True, False], ids=["sealed", "unsealed"])
@pytest.mark.parametrize("name", sampled(stored.RECORD, every=8))
def test_an_edited_record_is_told(
    name: str, sealed: bool, finished: Path, tmp_path: Path, cli: Cli
) -> None:
    out = _copy(finished, tmp_path)
    key, value = stored.RECORD[name]

    def edit(db: sqlite3.Connection) -> None:
        text = db.execute("select value from meta where key = 'audit'").fetchone()[0]
        new = json.dumps(json.loads(text) | {key: value})
        db.execute("update meta set value = ? where key = 'audit'", (new,))

    altered(out, edit, sealed)
    err = cli.refuses("gate", out)
    assert "\x1b" not in cli.out
    if sealed:
        assert "it was edited or damaged since vflsec wrote it" in err
    told(err, out)


@pytest.mark.parametrize("name", sampled(stored.SUMMARY, every=8))
def test_an_edited_summary_is_told(name: str, finished: Path, tmp_path: Path, cli: Cli) -> None:
    out = _copy(finished, tmp_path)
    path = out / "summary.json"
    key, value = stored.SUMMARY[name]
    summary = json.loads(path.read_text())
    summary[key] = value(summary[key]) if callable(value) else value
    for sealed in (True, False):
        if not sealed:
            del summary["seal"]
        path.write_text(json.dumps(summary))
        assert "it was edited or damaged since vflsec wrote it" in cli.refuses(
            "report", out, "--to", tmp_path / "to"
        )
        assert not (tmp_path / "to").exists()


@pytest.mark.parametrize("harm", ["edited", "of another audit", "cut off", "gone", "a pipe"])
def test_points_that_are_not_those_of_the_summary_are_told(
    harm: str, finished: Path, tmp_path: Path, cli: Cli
) -> None:
    out = _copy(finished, tmp_path)
    path = out / "points.parquet"
    if harm == "edited":
        pd.read_parquet(path).assign(value=0.5).to_parquet(path, index=False)
    elif harm == "of another audit":
        audited(tmp_path / "other", Planted(SEALED)).folder.joinpath(path.name).replace(path)
    elif harm == "cut off":
        os.truncate(path, 1000)
    else:
        path.unlink()
    if harm == "a pipe":
        os.mkfifo(path)
    assert str(out / "summary.json") in cli.refuses("report", out, "--to", tmp_path / "to")
    assert not (tmp_path / "to").exists()


def test_what_is_sealed_and_breaks_is_a_defect(
    finished: Path, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A defect of vflsec is never told as damage of what it wrote itself."""
    from vflsec.audit import evaluate

    out = _copy(finished, tmp_path)

    def broken(*_: object, **__: object) -> None:
        raise KeyError("planted")

    monkeypatch.setattr(evaluate, "evaluate", broken)
    assert cli("gate", out) == 4
    assert "KeyError: 'planted'" in cli.err


def test_a_training_that_was_deleted_is_trained_again(finished: Path, tmp_path: Path) -> None:
    out = _copy(finished, tmp_path)
    altered(out, lambda db: db.execute("delete from cells where rowid = 2"), sealed=True)
    planted = Planted(LEAKY)
    path = scenario(tmp_path, "case", STRICT)
    assert go(planted, "audit", path, "--out", out, "-q") == 1
    assert len(planted.trained) == 1
    assert json.loads((out / "summary.json").read_text())["complete"]


@pytest.mark.parametrize("content", ["", "mine"])
def test_a_lock_that_links_elsewhere_is_refused(
    content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, mine = tmp_path / "out", tmp_path / "mine.txt"
    out.mkdir()
    mine.write_text(content)
    (out / LOCK_NAME).symlink_to(mine)
    (out / ".vflsec-write-test").symlink_to(mine)
    path = scenario(tmp_path, "case", "")
    assert go(Planted(LEAKY), "audit", path, "--out", out, "-q") == 2
    assert "results.lock: is a link" in capsys.readouterr().err
    assert mine.read_text() == content
    (out / LOCK_NAME).unlink()
    assert go(Planted(LEAKY), "audit", path, "--out", out, "-q") == 0
    assert mine.read_text() == content


@pytest.mark.parametrize("page", sampled(range(12), every=6))
def test_a_flipped_page_is_told_or_changes_nothing(
    page: int, finished: Path, tmp_path: Path, cli: Cli
) -> None:
    out = _copy(finished, tmp_path)
    store = out / "results.sqlite"
    data = bytearray(store.read_bytes())
    for i in range(page * 4096, min((page + 1) * 4096, len(data))):
        data[i] ^= 0xFF
    store.write_bytes(bytes(data))
    code = cli("gate", out)
    assert code in (1, 2)
    assert "internal" not in cli.err
    assert code == 1 or "results.sqlite" in cli.err


def test_fresh_replaces_a_damaged_store(finished: Path, tmp_path: Path) -> None:
    out = _copy(finished, tmp_path)
    store = out / "results.sqlite"
    store.write_bytes(store.read_bytes()[:5000])
    path = scenario(tmp_path, "case", STRICT)
    assert go(Planted(LEAKY), "audit", path, "--out", out, "-q") == 2
    assert go(Planted(LEAKY), "audit", path, "--out", out, "-q", "--fresh") == 1


def test_a_lost_log_loses_nothing_that_was_stored(finished: Path, tmp_path: Path) -> None:
    out = _copy(finished, tmp_path)
    for name in ("results.sqlite-wal", "results.sqlite-shm"):
        (out / name).unlink(missing_ok=True)
    assert main.main(["gate", str(out)]) == 1


def test_formulas_in_texts_are_quoted_in_csv(tmp_path: Path) -> None:
    import pandas as pd

    from vflsec.report.exports import _harmless

    frame = pd.DataFrame({"dataset": ["=cmd|' /C calc'!A0", "@x", "-1", "t"], "n": [1, -2, 3, 4]})
    found = _harmless(frame)
    assert list(found.dataset) == ["'=cmd|' /C calc'!A0", "'@x", "'-1", "t"]
    assert list(found.n) == [1, -2, 3, 4]
