"""Train once, attack for ever: kept views answer as the training would have."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from engine_fakes import Notes
from sampled import sampled

from vflsec.cli.main import main
from vflsec.config.scenario import load_scenario
from vflsec.engine.attack_kept_views import attempt
from vflsec.engine.dry_run import make_plan
from vflsec.engine.run import run_audit
from vflsec.errors import TraceError
from vflsec.plugins import registry
from vflsec.report.exports import load_summary
from vflsec.runtime.typed_values import write_plain
from vflsec.specs import AttackSpec
from vflsec.storage.view_folder import views_bytes
from vflsec.train import cohort
from vflsec.train.view_reader import _unpack, find_insufficient, read_about

pytestmark = [pytest.mark.usefixtures("no_reports"), pytest.mark.long]  # its slow tests

SMALL: dict[str, Any] = {
    "data": [{"name": "breast_cancer"}],
    "algorithm": [{"name": "splitnn", "epochs": 2}],
    "defense": [{"name": "iso", "strength": [0, 1]}],
    "attack": [{"name": "norm"}],
    "audit": {"seeds": 2, "references": [], "positive_control": False},
}
MORE: list[dict[str, Any]] = [
    {"name": "direction", "positives": 5, "over_time": True},
    {"name": "model_completion", "known_rows": 30, "variants": ["logistic"]},
    {"name": "gradient_completion", "known_rows": 12},
    {"name": "embedding_inversion", "adversary": "active", "aux_rows": 40, "variants": ["linear"]},
    {"name": "lea", "peer_model": True},
    {"name": "norm", "dosing": [0.5]},
]


def small(**changed: Any) -> dict[str, Any]:
    return {**SMALL, **changed}


def figures(out: Path) -> pd.DataFrame:
    frame = pd.read_parquet(out / "results.parquet")
    keys = ["cell", "attack_key", "phase", "split", "metric"]
    return frame.sort_values(keys).reset_index(drop=True)


def files(out: Path) -> dict[Path, int]:
    """When each file was written; SQLite touches its index of the log when it reads."""
    found = [p for p in out.rglob("*") if not p.name.endswith(("-shm", "-wal"))]
    return {p: p.stat().st_mtime_ns for p in found if p.is_file()}


def same(a: Path, b: Path) -> None:
    x, y = figures(a), figures(b)
    assert len(x)
    pd.testing.assert_frame_equal(x, y, check_exact=True)


def same_of_fewer(a: Path, b: Path) -> None:
    """What `a` found of some of the attacks of `b`."""
    found, want = figures(a), figures(b)
    want = want[want.attack_key.isin(found.attack_key)].reset_index(drop=True)
    pd.testing.assert_frame_equal(found, want, check_exact=True)


@pytest.fixture
def no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a training was begun")

    monkeypatch.setattr(cohort.Training, "build", refuse)
    monkeypatch.setattr(cohort.Training, "run", refuse)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("kept") / "out"
    run_audit(small(), out, keep_views=True, device="cpu")
    return out


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole") / "out"
    run_audit(small(attack=[*SMALL["attack"], *MORE]), out, device="cpu")
    return out


def test_an_added_attack_needs_no_training_and_finds_the_same(
    kept: Path, whole: Path, tmp_path: Path, no_training: None
) -> None:
    out = Path(shutil.copytree(kept, tmp_path / "out"))
    heard = Notes()
    run_audit(small(attack=[*SMALL["attack"], *MORE]), out, device="cpu", progress=heard)
    assert heard.said == []
    same(out, whole)
    found = figures(out)
    assert set(found["status"]) == {"ok"}


@pytest.mark.slow
def test_a_changed_grant_needs_no_training(kept: Path, tmp_path: Path, no_training: None) -> None:
    """More known rows, another adversary and no prior, on views that were kept without a grant."""
    out = Path(shutil.copytree(kept, tmp_path / "out"))
    for known, key in ((5, "x"), (60, "y")):
        one = {"name": "model_completion", "variants": ["logistic"], "known_rows": known}
        run_audit(small(attack=[{**one, "prior": key == "x"}]), out, device="cpu")
        found = figures(out)
        assert set(found[found.attack != ""].status) == {"ok"}
        assert set(found[found.attack != ""].known_rows) == {known}


@pytest.mark.parametrize("changed", sampled([{"accumulate": "false", "epoch": "last"}, {}]))
def test_attack_prints_a_table_and_leaves_all_as_it_was(
    kept: Path, changed: dict[str, str], no_training: None, capsys: pytest.CaptureFixture[str]
) -> None:
    before = files(kept)
    options = [x for k, v in changed.items() for x in ("--set", f"{k}={v}")]
    assert main(["attack", str(kept), "norm", *options]) == 0
    text = capsys.readouterr().out
    assert "norm" in text
    assert "breast_cancer" in text
    assert files(kept) == before


def test_attack_finds_what_the_audit_found(kept: Path, no_training: None) -> None:
    points = [p for p in attempt(kept, "norm")["points"] if p["attack"] == "norm"]
    want = load_summary(kept)["points"]
    want = [p for p in want if p["attack"] == "norm"]
    assert len(want) > 0
    assert json.loads(json.dumps(write_plain(points))) == want


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("gradient_replacement", "it acts during training"),
        ("no_such_attack", "no_such_attack"),
    ],
)
def test_attack_says_why_it_cannot(
    kept: Path, name: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--set", "known_rows=20"]
    assert main(["attack", str(kept), name, *given]) == 2
    assert why in capsys.readouterr().err


def test_an_attack_that_fails_on_every_training_is_refused(
    kept: Path, no_training: None, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Its errors counted as measures: they were printed, and the exit code was 0."""

    def broken(*_: Any) -> None:
        raise ValueError("no way")

    monkeypatch.setattr(registry.attacks.get("norm"), "infer", broken)
    before = files(kept)
    assert main(["attack", str(kept), "norm"]) == 2
    assert "no way" in capsys.readouterr().err
    assert files(kept) == before


@pytest.mark.slow
def test_what_is_not_kept_is_trained_and_said(kept: Path, tmp_path: Path) -> None:
    out = Path(shutil.copytree(kept, tmp_path / "out"))
    heard = Notes()
    more = [*SMALL["attack"], {"name": "gradient_replacement", "known_rows": 10}, MORE[1]]
    run_audit(small(attack=more), out, device="cpu", progress=heard)
    assert heard.said == [
        "gradient_replacement: trained again for it, for it acts during training."
    ]
    fresh = tmp_path / "fresh"
    run_audit(small(attack=more), fresh, device="cpu")
    same(out, fresh)


def test_damaged_views_are_said_and_trained_again(kept: Path, whole: Path, tmp_path: Path) -> None:
    out = Path(shutil.copytree(kept, tmp_path / "out"))
    first, second, *_ = sorted((out / "views").iterdir())
    first.write_bytes(b"no archive")
    data = bytearray(second.read_bytes())
    data[len(data) // 3] ^= 0xFF
    second.write_bytes(bytes(data))
    heard = Notes()
    run_audit(small(attack=[*SMALL["attack"], MORE[1]]), out, device="cpu", progress=heard)
    assert any("trained again" in n for n in heard.said)
    same_of_fewer(out, whole)


@pytest.mark.slow
def test_the_bound_is_kept_and_said(tmp_path: Path) -> None:
    out, heard = tmp_path / "out", Notes()
    run_audit(small(), out, keep_views=True, views_mb=1, device="cpu", progress=heard)
    assert 0 < views_bytes(out) <= 1_000_000
    assert 0 < len(list((out / "views").iterdir())) < 4
    (said,) = heard.said
    assert "are not kept, beyond 1 MB" in said
    heard.said.clear()
    run_audit(small(attack=[*SMALL["attack"], MORE[1]]), out, device="cpu", progress=heard)
    assert heard.said == [
        "model_completion(variants=['logistic']): trained again for it, for its views are not kept."
    ]


def test_fresh_removes_views_and_nothing_of_others(kept: Path, tmp_path: Path) -> None:
    out = Path(shutil.copytree(kept, tmp_path / "out"))
    there = out / "views"
    (there / "notes.txt").write_text("mine", encoding="utf-8")
    (there / f"{'a' * 24}.zip").write_bytes(b"also mine")
    (there / f".{'b' * 24}.part").mkdir()
    ours = {p.name for p in there.glob("*.zip")} - {f"{'a' * 24}.zip"}
    run_audit(small(), out, device="cpu", fresh=True)
    assert {p.name for p in there.iterdir()} == {"notes.txt", f"{'a' * 24}.zip"}
    assert ours
    assert (there / "notes.txt").read_text("utf-8") == "mine"


def test_kept_views_are_for_their_owner_only(kept: Path) -> None:
    assert (kept / "views").stat().st_mode & 0o077 == 0


@pytest.mark.slow
def test_killed_while_views_are_written_it_resumes(tmp_path: Path, root: Path, whole: Path) -> None:
    scenario, out = tmp_path / "s.toml", tmp_path / "out"
    scenario.write_text(
        'data = { name = "breast_cancer" }\nalgorithm = { name = "splitnn", epochs = 2 }\n'
        'defense = [{ name = "iso", strength = [0, 1] }]\nattack = [{ name = "norm" }]\n'
        "audit = { seeds = 2, references = [], positive_control = false }\n",
        encoding="utf-8",
    )
    command = [sys.executable, "-m", "vflsec", "audit", str(scenario), "--out", str(out),
               "--device", "cpu", "--replicas", "1", "--keep-views"]  # fmt: skip
    path = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    while process.poll() is None and not list(out.glob("views/.*.part/trace/view/*/raw-*")):
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert list(out.glob("views/.*.part")), "it was not killed while it wrote"
    more = [*SMALL["attack"], MORE[1]]
    run_audit(small(), out, device="cpu", keep_views=True)
    assert len(list(out.glob("views/*.zip"))) == 4
    assert not list(out.glob("views/.*"))
    heard = Notes()
    run_audit(small(attack=more), out, device="cpu", progress=heard)
    assert heard.said == []
    same_of_fewer(out, whole)


def test_parameter_gradients_are_never_kept() -> None:
    spec = AttackSpec("batch_inference", adversary=("shop",))
    attack = registry.attacks.create("batch_inference")
    assert find_insufficient(spec, attack, {}) == "parameter gradients are not kept"


def test_a_message_kind_that_was_not_kept_is_not_taken_for_one_that_never_passed() -> None:
    """Evidence of absence is declared: views without gradients do not make `norm` unobservable."""
    spec, attack = AttackSpec("norm", adversary=("shop",)), registry.attacks.create("norm")
    said: dict[str, Any] = {"ways": {("received", "embedding")}, "weak": {}}
    assert find_insufficient(spec, attack, said) == "'gradient' messages are not kept"
    said["ways"].add(("received", "gradient"))
    assert find_insufficient(spec, attack, said) == ""
    said["weak"] = {"shop": "shop has several towers, which are not kept"}
    assert find_insufficient(spec, attack, said) == said["weak"]["shop"]


def test_check_estimates_the_size(kept: Path) -> None:
    cost = make_plan(load_scenario(small())).to_json()["cost"]
    assert 0.5 < views_bytes(kept) / cost["views_bytes"] < 2


OTHER = {
    "fedbcd": ({"algorithm": [{"name": "fedbcd", "epochs": 2}], "defense": []}, MORE[:2]),
    "randomised labels in double precision": (
        {"algorithm": [{"name": "splitnn", "epochs": 2, "patience": 1, "top": [],
                        "linear_top": False, "aggregation": "sum"}],
         "audit": {**SMALL["audit"], "dtype": "float64"},
         "defense": [{"name": "label_dp", "strength": [0, 1]}]},
        [{"name": "direct"}, MORE[1], {"name": "grn", "adversary": "active", "peer_model": True}],
    ),
    "self-supervised": (
        {"algorithm": [{"name": "fedhssl", "hidden": [8], "cut": 8, "embedding": 4,
                        "local_updates": 1, "pretrain_iterations": 2, "epochs": 1}],
         "data": [{"name": "breast_cancer", "aligned": 0.5}], "defense": []},
        [MORE[1], MORE[3]],
    ),
    "coalition": (
        {"data": [{"name": "breast_cancer", "params": {"parties": 3}}], "defense": []},
        [{**MORE[1], "adversary": ["passive1", "passive2"]},
         {"name": "norm", "adversary": ["passive1", "passive2"]}],
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", sampled(OTHER))
def test_other_trainings(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    settings: dict[str, Any] = OTHER[name][0]
    more: list[dict[str, Any]] = OTHER[name][1]
    out, fresh, heard = tmp_path / "out", tmp_path / "fresh", Notes()
    both = small(**settings, attack=[*SMALL["attack"], *more])
    run_audit(both, fresh, device="cpu")
    run_audit(small(**settings), out, keep_views=True, device="cpu")
    if not settings.get("defense", True):  # a claim of epsilon tries out the first step
        request.getfixturevalue("no_training")
    run_audit(both, out, device="cpu", progress=heard)
    same(out, fresh)
    assert heard.said == []


@pytest.mark.slow
def test_where_views_do_not_suffice_it_trains_again_and_says_so(tmp_path: Path) -> None:
    settings = {
        "algorithm": [{"name": "fedcvt", "epochs": 2}], "defense": [],
        "data": [{"name": "breast_cancer", "aligned": 0.5}],
    }  # fmt: skip
    out, fresh, heard = tmp_path / "out", tmp_path / "fresh", Notes()
    run_audit(small(**settings), out, keep_views=True, device="cpu")
    both = small(**settings, attack=[*SMALL["attack"], MORE[1]])
    run_audit(both, out, device="cpu", progress=heard)
    run_audit(both, fresh, device="cpu")
    same(out, fresh)
    assert len(heard.said) == 1
    assert "trained again for it, for " in heard.said[0]
    assert "cannot be written" in heard.said[0]


@pytest.mark.slow
def test_workers_keep_views_too_and_what_was_finished_before_is_said(tmp_path: Path) -> None:
    out, heard = tmp_path / "out", Notes()
    two = small(defense=[{"name": "iso", "strength": [0]}])
    run_audit({**two, "audit": {**SMALL["audit"], "seeds": [0]}}, out, device="cpu")
    run_audit(
        {**two, "audit": {**SMALL["audit"], "seeds": 3}}, out, device="cpu", jobs=2, replicas=1,
        keep_views=True, progress=heard,
    )  # fmt: skip
    assert len(list((out / "views").glob("*.zip"))) == 2
    assert heard.said == ["views of 1 training are not kept. --fresh trains them once more."]


def test_a_hostile_archive_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("kept.json", "{}")
        file.writestr("../outside", "x")
    with pytest.raises(TraceError, match="damaged"):
        read_about(path)
    with pytest.raises(TraceError, match="has no place"):
        _unpack(path, tmp_path / "to")
    assert not (tmp_path / "outside").exists()
